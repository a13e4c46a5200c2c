"""Lesson 08's records of a run: its settings, its curves in TensorBoard, a profile, and
its model FLOPs utilization (MFU).
"""

import atexit
import copy
import json
import os
import platform
import sys

import torch
from torch.utils.flop_counter import FlopCounterMode

import workload
from parts.snapshot import survive_a_full_disk


class Board:
    """Prints and writes the records on rank 0. On all other ranks, a Board does nothing."""

    def __init__(self, arguments, rank, first, model, optimizer, image):
        self.arguments, self.rank, self.optimizer = arguments, rank, optimizer
        self.flops = self.profile = None
        if rank != 0:
            return
        from torch.utils.tensorboard import SummaryWriter

        record(arguments)
        folder = arguments.out / f"{arguments.lesson}.tensorboard"
        # purge_step hides what a crashed run wrote about this epoch and later epochs.
        self.writer = SummaryWriter(folder, purge_step=first)
        if arguments.peak_tflops is not None:
            self.flops = count_flops(model, image)
        if arguments.profile:
            self.start_profile(arguments.out / f"{arguments.lesson}.trace.json.gz")

    def start_profile(self, path):
        def save(profile):
            profile.export_chrome_trace(str(path))

        os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # otherwise the profiler logs its own messages
        plan = torch.profiler.schedule(wait=1, warmup=1, active=5, repeat=1)
        self.profile = torch.profiler.profile(schedule=plan, on_trace_ready=save)
        self.profile.start()
        atexit.register(self.profile.stop)  # a process that exits during profiling crashes with signal 11

    def step(self):
        if self.profile is not None:
            self.profile.step()

    def show(self, epoch, loss, accuracy, speed):
        if self.rank != 0:
            return
        workload.report(self.arguments, epoch, loss, accuracy, speed)
        values = {"loss": loss, "accuracy": accuracy, "images_per_second": speed}
        values["lr"] = self.optimizer.param_groups[0]["lr"]
        if self.flops is not None:
            peak = self.arguments.peak_tflops
            values["mfu"] = share_of_peak(speed, self.flops, peak, self.arguments.world_size)
            print(f"         | MFU {values['mfu']:.1%} of {peak:g} TFLOP/s for each process", flush=True)
        for name, value in values.items():
            self.writer.add_scalar(name, value, epoch)
        self.writer.flush()  # a crash would lose buffered values

    def finish(self, best_epoch, accuracy, test_accuracy):
        if self.rank != 0:
            return
        print(f"best: epoch {best_epoch}, accuracy {accuracy:.1%}; on the test images {test_accuracy:.1%}")
        record(self.arguments, best_epoch=best_epoch, test_accuracy=test_accuracy)


def record(arguments, **results):
    """Write everything that is needed to repeat this run to OUT/<lesson>.run.json, next to its curve."""
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    values = {
        "command": sys.argv,
        "settings": vars(arguments),
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "cuda": torch.version.cuda,
        },
        "machine": {"host": platform.node(), "system": platform.platform(), "gpu": gpu},
        "results": results,
    }
    path = arguments.out / f"{arguments.lesson}.run.json"
    temporary = path.with_suffix(".temporary")
    with survive_a_full_disk(path, temporary):
        temporary.write_text(json.dumps(values, indent=1, default=str) + "\n")
        temporary.replace(path)


def count_flops(model, image):
    """Count the multiplications and additions for one image, forward and backward."""
    # Use a copy, because a backward pass through the DDP model would all-reduce the gradients.
    model = copy.deepcopy(model).eval()
    device = next(model.parameters()).device
    with FlopCounterMode(display=False) as counter:
        model(image[:1].to(device)).sum().backward()
    return counter.get_total_flops()


def share_of_peak(speed, flops, peak_tflops, world_size):
    """Model FLOPs utilization (MFU): the model's FLOP/s as a share of the hardware's peak."""
    return speed * flops / (peak_tflops * 1e12 * world_size)
