"""A lesson, in which something is watched or goes wrong: in_a_run.py LESSON WHAT [WORDS of what] OPTIONS

WHAT is a function below. It changes or wraps something first, and then the lesson runs as if it had been
started in the probe's stead.
"""

import gc
import inspect
import json
import os
import signal
import sys
import threading
import warnings
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed import fsdp
from torch.distributed.checkpoint import FileSystemWriter
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.debug import CommDebugMode
from torch.optim.optimizer import register_optimizer_step_post_hook

import workload
from tests.helpers.probe_runs import become


def counted():
    """For each step: its collectives, what it keeps for backward, the kinds it sends."""
    kinds = set()

    def note(call, what):
        def noted(output, input, **options):
            kinds.add(f"{what} {input.dtype}")
            return call(output, input, **options)

        return noted

    def progress(batches, epoch):
        warnings.simplefilter("ignore")  # the counter's hooks make views of the outputs, which FSDP warns of
        for batch in batches:
            kept = []

            def keep(tensor, kept=kept):
                kept.append([list(tensor.shape), str(tensor.dtype), tensor.nbytes])
                return tensor

            hooks = torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor)
            with CommDebugMode() as mode, hooks:
                yield batch
            # Later, the first step after a test prefetches a layer in vain.
            if dist.get_rank() == 0 and epoch == 1:
                sent = {str(name).split("_")[1]: number for name, number in mode.get_comm_counts().items()}
                print(f"counted {json.dumps([sent, kept, sorted(kinds)])}\n", end="")

    dist.all_gather_single = note(dist.all_gather_single, "gather")
    dist.reduce_scatter_single = note(dist.reduce_scatter_single, "scatter")
    workload.progress = progress


def held():
    """How many bytes of weights a process has while lesson 09 builds the model; RANK.held.json."""
    shard, seen = fsdp.fully_shard, []

    def note_bytes():
        """Every parameter that has memory. FSDP keeps its own as parameters too."""
        # Asked for their class, as isinstance does, torch's deprecated objects warn.
        tensors = [value for value in gc.get_objects() if issubclass(type(value), torch.Tensor)]
        held = [value for value in tensors if isinstance(value, torch.nn.Parameter)]
        held = [value.to_local() if isinstance(value, DTensor) else value for value in held]
        storages = [value.untyped_storage() for value in held if value.device.type != "meta"]
        seen.append(sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values()))

    def watched(module, **options):
        note_bytes()
        shard(module, **options)
        gc.collect()
        note_bytes()
        Path(f"{os.environ['RANK']}.held.json").write_text(json.dumps(seen))
        return module

    fsdp.fully_shard = watched


def policies():
    """Where lesson 09 offloads each layer to. A CPU has nowhere to offload to: all that can be seen here is
    that it was asked for, for 4 layers by 2."""
    fully_shard = fsdp.fully_shard

    def note_policy(layer, **options):
        # In one write: with several, two ranks write into each other's lines.
        print(f"policy: {options.get('offload_policy')}\n", end="")
        return fully_shard(layer, **options)

    fsdp.fully_shard = note_policy


def before_it_writes(accident, method="write_data"):
    """`accident(path)` comes first when DCP's writer is about to write at this path."""
    as_it_was = getattr(FileSystemWriter, method)

    def spoilt(self, *arguments, **options):
        accident(str(self.path))
        return as_it_was(self, *arguments, **options)

    setattr(FileSystemWriter, method, spoilt)


def full_disk():
    """When the first checkpoint is written."""

    def accident(path):
        if path.endswith("epoch0001"):
            raise OSError(28, "No space left on device")

    before_it_writes(accident)


def slow_disk():
    """The first checkpoint is written only after three more steps of training."""
    steps = threading.Semaphore(0)

    def accident(path):
        while steps.acquire(blocking=False):
            pass
        if path.endswith("epoch0001"):
            assert all(steps.acquire(timeout=30) for _ in range(3)), "training has waited for the checkpoint"

    register_optimizer_step_post_hook(lambda *_: steps.release())
    before_it_writes(accident)


def killed(method, checkpoint, file):
    """Rank 0, in a method of DCP's writer, at a checkpoint with this in its name. It leaves half a file."""

    def accident(path):
        if checkpoint in path and os.environ["RANK"] == "0":
            with open(f"{path}/{file}", "wb") as half:
                half.write(b"PK" * 99)
            os.kill(os.getpid(), signal.SIGKILL)

    before_it_writes(accident, method)


if __name__ == "__main__":
    _, lesson, what, *words = sys.argv
    count = len(inspect.signature(globals()[what]).parameters)
    globals()[what](*words[:count])
    sys.argv = [sys.argv[0], *words[count:]]
    become(lesson)
