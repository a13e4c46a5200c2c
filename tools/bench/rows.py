"""The measurements of `make bench`. Each function runs something once in an empty folder and returns numbers
by name; MEASURES has them in the order in which they take turns.
"""

import contextlib
import functools
import itertools
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from pathlib import Path

HERE = Path(__file__).resolve().parent
HELPERS = HERE.parents[1] / "tests/helpers"
sys.path[:0] = [str(HERE.parent), str(HELPERS)]
import hosts
import launcher
from processes import alive

MARK = f"bench-{uuid.uuid4().hex}"  # in the environment of every process started here
ENVIRONMENT = os.environ | {
    "BENCH_MARK": MARK,
    "OMP_NUM_THREADS": "1",
    "CUDA_VISIBLE_DEVICES": "",
    "PYTHONPATH": str(launcher.ROOT / "lessons"),
}
STARTED = []  # processes that may still run
LIMIT = 120  # seconds, for each process
LINK = "1gbit"


# ---- start something, and read what it says -----------------------------------------------------


@contextlib.contextmanager
def empty_folder():
    """A folder for one run. At its end, all processes that it started are ended, including torchrun's ranks
    and the processes that ran beside a failed one. Otherwise they would disturb the next measurement."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            yield Path(folder)
        finally:
            deadline = time.monotonic() + 10
            while (left := alive(MARK)) and time.monotonic() < deadline:
                for pid, _ in left:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                time.sleep(0.02)
            while STARTED:
                with STARTED.pop() as process:
                    process.kill()


def start(words, folder, **environment):
    folder.mkdir(parents=True, exist_ok=True)
    process = subprocess.Popen(
        [str(word) for word in words],
        cwd=folder,
        env=ENVIRONMENT | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    STARTED.append(process)
    return process


def finish(process):
    try:
        stdout, stderr = process.communicate(timeout=LIMIT)
    except subprocess.TimeoutExpired:
        process.kill()
        sys.exit(f"error: {' '.join(process.args)} still ran after {LIMIT} seconds")
    if process.returncode:
        sys.exit(f"error: {' '.join(process.args)} failed:\n{stderr}")
    return stdout, stderr


def lesson(stem, processes, folder, *arguments, variant="", **more):
    """Start a lesson by its documented command; `variant` is the VARIANT of variant.py."""
    words, environment = launcher.command(stem, processes, *arguments)
    environment |= more
    if variant:
        script = str(launcher.ROOT / "lessons" / f"{stem}.py")
        environment |= {"VARIANT": variant, "VARIANT_OF": script}
        if script in words:
            words[words.index(script)] = HERE / "variant.py"
        else:
            environment["LESSON"] = str(HERE / "variant.py")  # for two_terminals.sh
    return start(words, folder, **environment)


def said(stderr, what):
    """What variant.py reports under this name; two_terminals.sh puts the node before it."""
    lines = re.findall(rf'^(?:node \d \| )?(\{{"{what}": .*\}})$', stderr, re.M)
    return json.loads(lines[0])[what]


def speed(folder, stem):
    """Images per second, without the first epoch, which fills caches."""
    curve = launcher.read_curve(folder / "out", stem)
    return statistics.median(row["images_per_second"] for row in curve[1:])


def spent(times, began):
    """Seconds of each stage from the command to the end of the first step."""
    points = [began, *(times[name] for name in ("started", "imported", "met", "images", "built", "stepped"))]
    seconds = [later - earlier for earlier, later in itertools.pairwise(points)]
    return dict(zip(STAGES, seconds, strict=True))


STAGES = ("launcher", "import torch", "processes meet", "images", "model, DDP, optimizer", "first step")


# ---- row 1: one process -------------------------------------------------------------------------


def tutorial(folder):
    stdout, stderr = finish(start([sys.executable, HERE / "tutorial_loop.py", 3], folder))
    rate = statistics.median(json.loads(line)["images_per_second"] for line in stdout.splitlines()[1:])
    return {"speed": {"usual loop": rate}, "step": {"usual loop": said(stderr, "stepped")}}


def single(folder):
    began = time.time()
    _, stderr = finish(lesson("01_single_gpu", 1, folder, "--epochs", 3, variant="clocked,stepped"))
    return {
        "speed": {"lesson 01": speed(folder, "01_single_gpu")},
        "step": {"lesson 01": said(stderr, "stepped")},
        "start": {"lesson 01": spent(said(stderr, "clocked"), began)},
    }


def half(folder):
    arguments = ("--epochs", 3, "--precision", "bf16", "--accumulate", 1)
    _, stderr = finish(lesson("07_mixed_precision", 1, folder, *arguments, variant="stepped"))
    return {
        "speed": {"lesson 07 in bf16": speed(folder, "07_mixed_precision")},
        "step": {"lesson 07 in bf16": said(stderr, "stepped")},
    }


def large_half(folder):
    arguments = (*LARGE, "--precision", "bf16", "--accumulate", 1)
    finish(lesson("07_mixed_precision", 1, folder, *arguments, variant="large"))
    return {"speed": {"a large one in bf16": speed(folder, "07_mixed_precision")}}


# ---- row 2: several -----------------------------------------------------------------------------


def ddp(folder, name, processes, variant, arguments):
    began = time.time()
    words = f"{variant},clocked,stepped".lstrip(",")
    _, stderr = finish(lesson("04_ddp_torchrun", processes, folder, *arguments, variant=words))
    found = {"speed": {f"{name}, {processes}": speed(folder, "04_ddp_torchrun")}}
    if name == "its own model":
        found["step"] = {f"lesson 04, {processes}": said(stderr, "stepped")}
        if processes == 2:
            found["start"] = {"lesson 04": spent(said(stderr, "clocked"), began)}
    return found


def apart(folder, name, variant, arguments):
    """Two independent processes at the same time, each with half of the batch."""
    both = [
        lesson("04_ddp_torchrun", 1, folder / part, *arguments, "--batch-size", 60, variant=variant)
        for part in ("a", "b")
    ]
    for process in both:
        finish(process)
    return {"speed": {f"{name}, apart": sum(speed(folder / part, "04_ddp_torchrun") for part in ("a", "b"))}}


def start_ranks(script, folder, *arguments):
    """Run a script on two ranks, and return what rank 0 prints."""
    environment = {"STORE": str(folder / "store"), "WORLD_SIZE": "2"}
    both = [
        start([sys.executable, HERE / script, *arguments], folder, RANK=str(rank), **environment)
        for rank in (0, 1)
    ]
    said, _ = [finish(process)[0] for process in both]
    return json.loads(said)


def overlap(folder):
    return {"overlap": {"inside the machine, 64 images": flat(start_ranks("overlap.py", folder, 64, 20))}}


def overlap_between_hosts(folder):
    """The same on two hosts with a link whose rate the kernel limits (tbf)."""
    if hosts.why_not():
        return {}
    with hosts.Hosts(folder, 2) as two:
        for number in (1, 2):
            shape = ("rate", LINK, "burst", "256kb", "latency", "100ms")
            two.call("tc", "qdisc", "add", "dev", f"link{number}", "root", "tbf", *shape)
        environment = ENVIRONMENT | {"STORE": str(folder / "store"), "WORLD_SIZE": "2"}
        environment |= {"GLOO_SOCKET_IFNAME": "eth0"}
        words = (sys.executable, HERE / "overlap.py", 512, 6)
        both = [two.run(rank + 1, *words, environment=environment | {"RANK": str(rank)}) for rank in (0, 1)]
        if [command.finish(LIMIT) for command in both] != [0, 0]:
            sys.exit(f"error: overlap.py failed on two hosts:\n{both[0].output()}{both[1].output()}")
        return {
            "overlap": {"a link of 1 Gbit/s, 512 images": flat(json.loads(both[0].output().splitlines()[-1]))}
        }


def flat(found):
    seconds = {f"{name}, seconds": value for name, value in found["seconds"].items()}
    return seconds | {f"{name}, CPU seconds": value for name, value in found["cpu_seconds"].items()}


# ---- rows 3 to 5 --------------------------------------------------------------------------------


def reduce(folder):
    return {"all-reduce": start_ranks("reduce.py", folder)}


def saving(folder, name, stem, variant, arguments=()):
    _, stderr = finish(lesson(stem, 2, folder, *arguments, variant=variant))
    times = said(stderr, "saving")
    stood = times["stood"]
    found = {
        "seconds": statistics.median(stood),
        "bytes": times["bytes"],
        "share": sum(stood) / times["whole"],
    }
    return {"saving": {name: found}, "speed": {name: speed(folder, stem)}}


def recovery(folder):
    """Seconds from the death of one of two processes to the next step, with torchrun's real restart."""
    words, environment = launcher.command("06b_preemption", 2, "--epochs", 2, "--crash-at", 1)
    script = next(word for word in words if word.endswith(".py"))
    words[words.index(script)] = HELPERS / "victim.py"
    finish(start(words, folder, **environment, LESSON=script))
    steps = [line.split() for line in (folder / ".steps").read_text().splitlines()]
    again = next(number for number, step in enumerate(steps) if step[1] != steps[0][1])
    return {"recovery": float(steps[again][0]) - float(steps[again - 1][0])}


def startup(folder, name, stem, processes):
    began = time.time()
    _, stderr = finish(lesson(stem, processes, folder, "--epochs", 1, variant="clocked"))
    return {"start": {name: spent(said(stderr, "clocked"), began)}}


# ---- all of them --------------------------------------------------------------------------------

OWN = ("--epochs", 3)
LARGE = ("--epochs", 3, "--train-size", 1200, "--test-size", 60)
SAVED = ("--epochs", 3, "--train-size", 1200, "--test-size", 60)
own = {"name": "its own model", "arguments": OWN}
large = {"name": "a large one", "arguments": LARGE}
tiny = {"name": "a tiny one", "arguments": OWN, "variant": "tiny"}
part = functools.partial
MEASURES = {
    "the usual loop": tutorial,
    "lesson 01": single,
    "lesson 07 in bf16": half,
    "lesson 04 on one process": part(ddp, **own, processes=1, variant=""),
    "lesson 04 on two": part(ddp, **own, processes=2, variant=""),
    "two that do not talk": part(apart, **own, variant="clocked,stepped"),
    "a large model on one": part(ddp, **large, processes=1, variant="large"),
    "a large model in bf16": large_half,
    "a large model on two": part(ddp, **large, processes=2, variant="large"),
    "two large ones that do not talk": part(apart, **large, variant="large,clocked,stepped"),
    "a tiny model on one": part(ddp, **tiny, processes=1),
    "a tiny model on two": part(ddp, **tiny, processes=2),
    "overlap inside the machine": overlap,
    "overlap between two hosts": overlap_between_hosts,
    "all-reduce": reduce,
    "snapshots": part(
        saving, name="lesson 06b", stem="06b_preemption", variant="saving", arguments=("--epochs", 4)
    ),
    "large snapshots": part(
        saving, name="lesson 06b, wide", stem="06b_preemption", variant="wide,saving", arguments=SAVED
    ),
    "large snapshots, asynchronous": part(
        saving, name="lesson 09, wide", stem="09_fsdp", variant="wide,saving", arguments=SAVED
    ),
    "a process dies": recovery,
    "start of lesson 03": part(startup, name="lesson 03", stem="03_ddp_spawn", processes=2),
    "start of lesson 06, two nodes": part(startup, name="lesson 06", stem="06_multinode", processes=2),
}
