"""Run a lesson with one thing changed: VARIANT=large LESSON=lessons/04_ddp_torchrun.py variant.py ...

    large    a model with 30 times the work a step
    tiny     a model with next to no work a step
    kinked   ReLU and max pooling in place of GELU and average pooling
    clocked  nothing changed; process 0 prints when it reached what, as one JSON line on standard error
    saving   nothing changed; process 0 prints how long it saved, and how long it trained in all

What a lesson does is not touched: this file runs its text. It is also what mp.spawn's children import.
"""

import json
import os
import sys
import time
from pathlib import Path

started = time.time()

from torch import nn  # noqa: E402

LESSON = Path(os.environ["LESSON"]).resolve()
sys.path.insert(0, str(LESSON.parent))
import workload  # noqa: E402

imported = time.time()


class Large(nn.Sequential):
    def __init__(self, shape):
        channels, height, width = shape
        super().__init__(
            workload.Normalize(),
            nn.Conv2d(channels, 64, kernel_size=5, padding=2, stride=2),
            nn.GELU(),
            nn.Conv2d(64, 128, kernel_size=5, padding=2),
            nn.AvgPool2d(2),
            nn.GELU(),
            nn.Flatten(),
            nn.Linear(128 * (height // 4) * (width // 4), 10),
        )


class Tiny(nn.Sequential):
    def __init__(self, shape):
        channels, height, width = shape
        super().__init__(workload.Normalize(), nn.Flatten(), nn.Linear(channels * height * width, 10))


class Kinked(nn.Sequential):
    """ConvNet with a kink wherever it is smooth."""

    def __init__(self, shape):
        kinks = {nn.GELU: lambda: nn.ReLU(), nn.AvgPool2d: lambda: nn.MaxPool2d(2)}
        super().__init__(*(kinks.get(type(part), lambda part=part: part)() for part in Smooth(shape)))


def clock():
    """Note the time at the points that every lesson passes, and print them after the first step."""
    times = {"started": started, "imported": imported}
    load_images, progress = workload.load_images, workload.progress

    def clocked_load_images(arguments):
        times["met"] = time.time()
        images = load_images(arguments)
        times["images"] = time.time()
        return images

    def clocked_progress(batches, epoch, quiet=False):
        for number, batch in enumerate(progress(batches, epoch, quiet)):
            if epoch == 1 and number < 2 and not quiet:
                times["built" if number == 0 else "stepped"] = time.time()
                if number == 1:
                    print(json.dumps(times), file=sys.stderr, flush=True)
            yield batch

    workload.load_images, workload.progress = clocked_load_images, clocked_progress


def clock_saving():
    """Note how long snapshots take, from the gathering of what is in them to the last rename."""
    import atexit
    import contextlib

    import snapshot

    times = {"began": None, "saving": 0.0, "saves": 0}
    progress, what_else, survive = workload.progress, snapshot.what_else, snapshot.survive_a_full_disk

    def clocked_progress(*arguments, **options):
        times["began"] = times["began"] or time.perf_counter()
        return progress(*arguments, **options)

    def clocked_what_else(loss_sum):
        times["save"] = time.perf_counter()
        return what_else(loss_sum)

    @contextlib.contextmanager
    def clocked_survive(*arguments):
        with survive(*arguments):
            yield
        times["ended"] = time.perf_counter()
        times["saving"] += times["ended"] - times["save"]
        times["saves"] += 1

    def tell():
        if "ended" in times:
            whole = times["ended"] - times["began"]
            line = {"saving": times["saving"], "saves": times["saves"], "whole": whole}
            print(json.dumps(line), file=sys.stderr, flush=True)

    workload.progress, snapshot.what_else = clocked_progress, clocked_what_else
    snapshot.survive_a_full_disk = clocked_survive
    atexit.register(tell)


Smooth = workload.ConvNet
if os.environ["VARIANT"] == "clocked":
    clock()
elif os.environ["VARIANT"] == "saving":
    clock_saving()
else:
    workload.ConvNet = {"large": Large, "tiny": Tiny, "kinked": Kinked}[os.environ["VARIANT"]]
parser = workload.parser
workload.parser = lambda file, description: parser(LESSON, description)
exec(compile(LESSON.read_text(), str(LESSON), "exec"))
