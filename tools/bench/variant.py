"""Run a lesson with a change or a clock: VARIANT=large,clocked VARIANT_OF=lessons/04_ddp_torchrun.py
variant.py ...

    large    a model with 30 times the work per step
    tiny     a model with almost no work per step
    wide     a model with 8 million parameters, and little work for each
    kinked   ReLU and max pooling instead of GELU and average pooling
    clocked  no change; process 0 reports when it reached each stage
    stepped  no change; process 0 reports how its steps spend their time
    saving   no change; process 0 reports how long each snapshot stopped training

Each report is one line of JSON on standard error. The lesson stays as it is: this file executes its text. The
children of mp.spawn import this file too.
"""

import json
import os
import sys
import time
from pathlib import Path

started = time.time()

import torch.distributed as dist
from torch import nn

LESSON = Path(os.environ["VARIANT_OF"]).resolve()
sys.path.insert(0, str(LESSON.parent))
import workload

imported = time.time()
sys.path.insert(0, str(Path(__file__).resolve().parent))
import steps


class Large(nn.Sequential):
    def __init__(self, shape, width):
        channels, rows, columns = shape
        super().__init__(
            workload.Normalize(),
            nn.Conv2d(channels, 64, kernel_size=5, padding=2, stride=2),
            nn.GELU(),
            nn.Conv2d(64, 128, kernel_size=5, padding=2),
            nn.AvgPool2d(2),
            nn.GELU(),
            nn.Flatten(),
            nn.Linear(128 * (rows // 4) * (columns // 4), 10),
        )


class Tiny(nn.Sequential):
    def __init__(self, shape, width):
        channels, rows, columns = shape
        super().__init__(workload.Normalize(), nn.Flatten(), nn.Linear(channels * rows * columns, 10))


class Wide(nn.Sequential):
    def __init__(self, shape, width):
        channels, rows, columns = shape
        super().__init__(
            workload.Normalize(),
            nn.Flatten(),
            nn.Linear(channels * rows * columns, 2208),
            nn.GELU(),
            nn.Linear(2208, 2208),
            nn.GELU(),
            nn.Linear(2208, 640),
            nn.GELU(),
            nn.Linear(640, 10),
        )


class Kinked(nn.Sequential):
    """ConvNet with a kink wherever it is smooth."""

    def __init__(self, shape, width):
        kinks = {nn.GELU: lambda: nn.ReLU(), nn.AvgPool2d: lambda: nn.MaxPool2d(2)}
        super().__init__(*(kinks.get(type(part), lambda part=part: part)() for part in Smooth(shape, width)))


def is_first():
    """Whether this is process 0, or the only one."""
    return not dist.is_initialized() or dist.get_rank() == 0


def tell(what, value):
    print(json.dumps({what: value}), file=sys.stderr, flush=True)


def clock():
    """Note the time at the points that every lesson passes, and report them after the first step."""
    times = {"started": started, "imported": imported}
    load_images, progress = workload.load_images, workload.progress

    def clocked_load_images(*arguments):
        times["met"] = time.time()
        images = load_images(*arguments)
        times["images"] = time.time()
        return images

    def clocked_progress(batches, epoch):
        for number, batch in enumerate(progress(batches, epoch)):
            if epoch == 1 and number < 2 and is_first():
                times["built" if number == 0 else "stepped"] = time.time()
                if number == 1:
                    tell("clocked", times)
            yield batch

    workload.load_images, workload.progress = clocked_load_images, clocked_progress


def clock_saving():
    """Note how long snapshots stop training: from gathering their content until training goes on. In lesson
    06b that includes all of the writing; in 09 only the rest of the previous snapshot."""
    import atexit

    times = {"began": None, "stood": [], "ended": 0.0}
    progress = workload.progress

    def clocked_progress(*arguments, **options):
        times["began"] = times["began"] or time.perf_counter()
        return progress(*arguments, **options)

    workload.progress = clocked_progress
    (clock_lesson_09 if LESSON.stem == "09_fsdp" else clock_lesson_06b)(times)

    def say():
        if times["stood"]:
            size = max(map(size_of, Path("out").glob(f"{LESSON.stem}.epoch*")))
            whole = times["ended"] - times["began"]
            tell("saving", {"stood": times["stood"], "whole": whole, "bytes": size})

    if os.environ.get("RANK", "0") == "0":
        atexit.register(say)


def size_of(path):
    return sum(file.stat().st_size for file in ([path] if path.is_file() else path.iterdir()))


def clock_lesson_06b(times):
    from parts import snapshot

    random_state, save = workload.random_state, snapshot.Snapshots.save

    def clocked_random_state(*arguments):
        times["save"] = time.perf_counter()
        return random_state(*arguments)

    def clocked_save(*arguments):
        save(*arguments)
        times["ended"] = time.perf_counter()
        times["stood"].append(times["ended"] - times["save"])

    workload.random_state = clocked_random_state
    snapshot.Snapshots.save = clocked_save


def clock_lesson_09(times):
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint import state_dict

    get_state_dict, async_save, waited = state_dict.get_state_dict, dcp.async_save, [0.0]

    def clocked_get_state_dict(*arguments, **options):
        times["save"] = time.perf_counter()
        return get_state_dict(*arguments, **options)

    def clocked_async_save(*arguments, **options):
        future = async_save(*arguments, **options)
        times["ended"] = time.perf_counter()
        times["stood"].append(times["ended"] - times["save"] + waited.pop())
        result = future.result

        def clocked_result():
            start = time.perf_counter()
            result()
            waited.append(time.perf_counter() - start)

        future.result = clocked_result
        return future

    state_dict.get_state_dict, dcp.async_save = clocked_get_state_dict, clocked_async_save


MODELS = {"large": Large, "tiny": Tiny, "wide": Wide, "kinked": Kinked}
CLOCKS = {"clocked": clock, "saving": clock_saving, "stepped": steps.clock}
Smooth = workload.ConvNet
for word in os.environ["VARIANT"].split(","):
    if word in CLOCKS:
        CLOCKS[word]()
    else:
        workload.ConvNet = MODELS[word]
parser = workload.parser
workload.parser = lambda file, description: parser(LESSON, description)
exec(compile(LESSON.read_text(), str(LESSON), "exec"))
