"""Lesson 09, whose first checkpoint is written only after three more steps of training."""

import threading

from torch.distributed.checkpoint import FileSystemWriter
from torch.optim.optimizer import register_optimizer_step_post_hook

from meshes import become

steps = threading.Semaphore(0)
as_it_was = FileSystemWriter.write_data


def write_after_three_more_steps(self, *arguments, **options):
    while steps.acquire(blocking=False):
        pass
    if str(self.path).endswith("epoch0001"):
        assert all(steps.acquire(timeout=30) for _ in range(3)), "training has waited for the checkpoint"
    return as_it_was(self, *arguments, **options)


register_optimizer_step_post_hook(lambda *_: steps.release())
FileSystemWriter.write_data = write_after_three_more_steps
become("09_fsdp")
