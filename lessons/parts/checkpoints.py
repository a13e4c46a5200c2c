"""The other half of lesson 09: checkpoints that a thread writes while training continues.

Each process writes its own shards of all tensors and reads only the shards that contain rows it needs,
so a run on any number of processes can resume from a checkpoint.
"""

from datetime import timedelta

import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

import workload


class Checkpoints:
    def __init__(self, arguments, model, optimizer, scheduler):
        self.folder = arguments.out
        self.lesson = arguments.lesson
        self.settings = workload.settings(arguments, model) | {"precision": arguments.precision}
        self.model = model
        self.optimizer = optimizer
        self.scheduler = scheduler
        # Use a separate group: otherwise the messages of the two threads would get mixed up.
        self.group = dist.new_group(backend="gloo", timeout=timedelta(minutes=2))
        self.saving = None

    def save(self, epoch):
        """Copy the state and return, while a thread writes the copy."""
        self.wait()
        path = self.folder / f"{self.lesson}.epoch{epoch:04}"
        self.saving = dcp.async_save(self.state(), checkpoint_id=path, process_group=self.group)

    def wait(self):
        """Wait until the last checkpoint is written. If writing failed, this raises the error."""
        if self.saving:
            self.saving.result()

    def load_newest(self):
        """Load the newest checkpoint and return its epoch, or 0 if there is none."""
        # DCP writes .metadata last and then renames it, so a folder without .metadata is not a
        # complete checkpoint.
        found = sorted(self.folder.glob(f"{self.lesson}.epoch*/.metadata"))
        if not found:
            return 0
        path = found[-1].parent
        self.refuse_other_settings(path)
        state = self.state()
        dcp.load(state, checkpoint_id=path, process_group=self.group)
        set_state_dict(
            self.model,
            self.optimizer,
            model_state_dict=state["model"],
            optim_state_dict=state["optimizer"],
        )
        epoch = self.scheduler.last_epoch
        if dist.get_rank() == 0:
            print(f"resumed after epoch {epoch}", flush=True)
            if epoch == self.settings["epochs"]:
                workload.say_nothing_left(self.folder, self.lesson)
        return epoch

    def state(self):
        model, optimizer = get_state_dict(self.model, self.optimizer)
        return {
            "model": model,
            "optimizer": optimizer,
            "scheduler": self.scheduler,
            "settings": self.settings,
        }

    def refuse_other_settings(self, path):
        theirs = dict(self.settings)
        dcp.load({"settings": theirs}, checkpoint_id=path, process_group=self.group)
        if problem := workload.problem_with(path, theirs, self.settings):
            workload.refuse(problem)
