"""Run a lesson with a change or a clock: VARIANT=large,clocked VARIANT_OF=lessons/04_ddp_torchrun.py
variant.py ...

    large    a model with 30 times the work per step
    wide     a model with 8 million parameters, and little work for each
    kinked   ReLU and max pooling instead of GELU and average pooling
    clocked  no change; process 0 reports when it reached each stage
    stepped  no change; process 0 reports how its steps spend their time
    saving   no change; process 0 reports how long each snapshot stopped training
    traced   buckets of 0.25 MB; each process writes PyTorch's trace of its steps 7 to 15 into the file RESULT
    deterministic  torch takes deterministic algorithms only; needs CUBLAS_WORKSPACE_CONFIG=:4096:8

Each report is one line of JSON on standard error. The lesson stays as it is: this file executes its text. The
children of mp.spawn import this file too.
"""

import atexit
import functools
import itertools
import json
import math
import os
import sys
import time
from pathlib import Path

started = time.time()

import torch
import torch.distributed as dist
from torch import nn

LESSON = Path(os.environ["VARIANT_OF"]).resolve()
sys.path.insert(0, str(LESSON.parent))
import workload

imported = time.time()
from steps import around
from steps import clock as clock_steps


def large(shape, width):
    channels, rows, columns = shape
    return nn.Sequential(
        workload.Normalize(),
        nn.Conv2d(channels, 64, kernel_size=5, padding=2, stride=2),
        nn.GELU(),
        nn.Conv2d(64, 128, kernel_size=5, padding=2),
        nn.AvgPool2d(2),
        nn.GELU(),
        nn.Flatten(),
        nn.Linear(128 * (rows // 4) * (columns // 4), 10),
    )


def wide(shape, width):
    widths = (math.prod(shape), 2208, 2208, 640, 10)
    layers = [workload.Normalize(), nn.Flatten()]
    for before, after in itertools.pairwise(widths):
        layers += [nn.Linear(before, after), nn.GELU()]
    return nn.Sequential(*layers[:-1])


def kinked(shape, width):
    """ConvNet with a kink wherever it is smooth."""
    layers = []
    for layer in Smooth(shape, width):
        if isinstance(layer, nn.GELU):
            layer = nn.ReLU()
        elif isinstance(layer, nn.AvgPool2d):
            layer = nn.MaxPool2d(2)
        layers.append(layer)
    return nn.Sequential(*layers)


def is_first():
    """Whether this is process 0, or the only one."""
    return not dist.is_initialized() or dist.get_rank() == 0


def tell(what, value):
    print(json.dumps({what: value}), file=sys.stderr, flush=True)


def clock():
    """Note the time at the points that every lesson passes, and report them after the first step."""
    progress = workload.progress
    times = {"started": started, "imported": imported}

    def note(name):
        times[name] = time.time()

    def clocked_progress(batches, epoch):
        for number, batch in enumerate(progress(batches, epoch)):
            if epoch == 1 and number < 2 and is_first():
                note("stepped" if number else "built")
                if number == 1:
                    tell("clocked", times)
            yield batch

    workload.progress = clocked_progress
    around(workload, "load_images", lambda: note("met"), lambda images: note("images"))


def size_of(path):
    files = [path] if path.is_file() else path.iterdir()
    return sum(file.stat().st_size for file in files)


def clock_saving():
    """Note how long snapshots stop training: in 09, only the rest of the previous snapshot is waited for."""
    times = {}
    stood = []
    waited = 0.0

    def note(name):
        times[name] = time.perf_counter()

    def trains_on(*found):
        nonlocal waited
        note("ended")
        stood.append(times["ended"] - times["save"] + waited)
        waited = 0.0

    def wait_is_over(*found):
        nonlocal waited
        waited = time.perf_counter() - times["wait"]

    def saves(future):
        trains_on()
        around(future, "result", lambda: note("wait"), wait_is_over)

    around(workload, "progress", lambda: times.setdefault("began", time.perf_counter()))
    if LESSON.stem == "09_fsdp":
        import torch.distributed.checkpoint as dcp
        from torch.distributed.checkpoint import state_dict

        around(state_dict, "get_state_dict", lambda: note("save"))
        around(dcp, "async_save", after=saves)
    else:
        from parts import snapshot

        around(workload, "random_state", lambda: note("save"))
        around(snapshot.Snapshots, "save", after=trains_on)

    def say():
        if stood:
            size = max(map(size_of, Path("out").glob(f"{LESSON.stem}.epoch*")))
            whole = times["ended"] - times["began"]
            tell("saving", {"stood": stood, "whole": whole, "bytes": size})

    if os.environ.get("RANK", "0") == "0":
        atexit.register(say)


def trace():
    """Buckets that are small enough for three of them, and the profiler around the steps of an epoch."""
    progress = workload.progress
    wrap = nn.parallel.DistributedDataParallel
    models = []

    def with_small_buckets(model):
        models.append(wrap(model, bucket_cap_mb=0.25))
        return models[-1]

    def keep(profile):
        profile.export_chrome_trace(os.environ["RESULT"])
        # A reference that is left would keep the process group alive, and the process could abort at its end.
        model = models.pop()
        if is_first():
            tell("buckets", model._get_ddp_logging_data()["rebuilt_bucket_sizes"])

    def traced_progress(batches, epoch):
        # DDP arranges its buckets anew after the first step, and the profiler needs a step before it records.
        when = torch.profiler.schedule(wait=0, warmup=6, active=9, repeat=1)
        activities = [torch.profiler.ProfilerActivity.CPU]
        with torch.profiler.profile(activities=activities, schedule=when, on_trace_ready=keep) as profile:
            for batch in progress(batches, epoch):
                yield batch
                profile.step()

    workload.progress = traced_progress
    nn.parallel.DistributedDataParallel = with_small_buckets


MODELS = {"large": large, "wide": wide, "kinked": kinked}
CHANGES = {"clocked": clock, "saving": clock_saving, "stepped": clock_steps, "traced": trace}
CHANGES["deterministic"] = functools.partial(torch.use_deterministic_algorithms, True)
Smooth = workload.ConvNet
for word in os.environ["VARIANT"].split(","):
    if word in CHANGES:
        CHANGES[word]()
    else:
        workload.ConvNet = MODELS[word]
parser = workload.parser
workload.parser = lambda file, description: parser(LESSON, description)
exec(compile(LESSON.read_text(), str(LESSON), "exec"))
