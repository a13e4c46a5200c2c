"""The measurements of `make bench`. Each function runs something once in an empty folder and returns numbers
by name. SECTIONS has them by the section of the page that shows them, in the order in which they take turns.
"""

import json
import os
import re
import statistics
import sys
import time
from pathlib import Path

from tools import launcher
from tools.makers import running
from tools.makers.running import LIMIT, empty_folder, finish
from tools.testbed import hosts

HERE = Path(__file__).resolve().parent
VICTIM = launcher.ROOT / "tools/testbed/victim.py"
ENVIRONMENT = os.environ | {
    "OMP_NUM_THREADS": "1",
    "CUDA_VISIBLE_DEVICES": "-1",
    "PYTHONPATH": str(launcher.ROOT / "lessons"),
}
STAGES = ("launcher", "import torch", "processes meet", "images", "model, DDP, optimizer", "first step")
OWN = ("--epochs", 2)
FEW = ("--epochs", 2, "--train-size", 1200, "--test-size", 60)  # for large models, and large snapshots
BF16 = ("--precision", "bf16", "--accumulate", 1)
# The ring in pieces is notebook 03a's.
PATH_OF_RINGS = os.pathsep.join((ENVIRONMENT["PYTHONPATH"], str(launcher.ROOT / "notebooks/show/travel")))
STEM = "04_ddp_torchrun"
STEM_06B = "06b_preemption"
STEM_07 = "07_mixed_precision"


# ---- start something, and read what it says -----------------------------------------------------


def begin(words, folder, **environment):
    return running.start(words, folder, ENVIRONMENT | environment)


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
            environment["SCRIPT"] = str(HERE / "variant.py")  # for two_terminals.sh
    return begin(words, folder, **environment)


def said(stderr, what):
    """What variant.py reports under this name; two_terminals.sh puts the node before it."""
    lines = re.findall(rf'^(?:node \d \| )?(\{{"{what}": .*\}})$', stderr, re.M)
    return json.loads(lines[0])[what]


def speed_of(folder, stem):
    """Images per second, without the first epoch, which fills caches."""
    return median_speed(launcher.read_curve(folder / "out", stem))


def median_speed(epochs):
    return statistics.median(epoch["images_per_second"] for epoch in epochs[1:])


def spent(times, began):
    """Seconds of each stage from the command to the end of the first step."""
    names = ("started", "imported", "met", "images", "built", "stepped")
    found = {}
    for stage, name in zip(STAGES, names, strict=True):
        found[stage] = times[name] - began
        began = times[name]
    return found


def share_of_saving(times):
    stood = times["stood"]
    share = sum(stood) / times["whole"]
    return {"seconds": statistics.median(stood), "bytes": times["bytes"], "share": share}


# ---- what a row runs ----------------------------------------------------------------------------


def job(stem, processes, options, variant, speed="", step="", start="", saving=""):
    """What runs a lesson and reads numbers. Each of the last four is the name under which one is kept."""

    def run(folder):
        began = time.time()
        _, stderr = finish(lesson(stem, processes, folder, *options, variant=variant))
        found = {}
        if speed:
            found["speed"] = {speed: speed_of(folder, stem)}
        if step:
            found["step"] = {step: said(stderr, "stepped")}
        if start:
            found["start"] = {start: spent(said(stderr, "clocked"), began)}
        if saving:
            found["saving"] = {saving: share_of_saving(said(stderr, "saving"))}
        return found

    return run


def apart(options, variant, name):
    """What runs two independent processes at the same time, each with half of the batch."""

    def run(folder):
        words = (*options, "--batch-size", 60)
        one = lesson(STEM, 1, folder / "a", *words, variant=variant)
        other = lesson(STEM, 1, folder / "b", *words, variant=variant)
        finish(one)
        finish(other)
        return {"speed": {name: speed_of(folder / "a", STEM) + speed_of(folder / "b", STEM)}}

    return run


def tutorial(folder):
    stdout, stderr = finish(begin([sys.executable, HERE / "tutorial_loop.py", 2], folder))
    rate = median_speed(list(map(json.loads, stdout.splitlines())))
    return {"speed": {"usual loop": rate}, "step": {"usual loop": said(stderr, "stepped")}}


def start_ranks(script, folder, *arguments, world_size=2, **more):
    """Run a script on several ranks, and return what rank 0 prints."""
    environment = {"STORE": str(folder / "store"), "WORLD_SIZE": str(world_size)} | more
    words = [sys.executable, HERE / script, *arguments]
    ranks = []
    for rank in range(world_size):
        ranks.append(begin(words, folder, RANK=str(rank), **environment))
    printed = []
    for process in ranks:
        stdout, _ = finish(process)
        printed.append(stdout)
    return json.loads(printed[0])


def overlap(folder):
    found = start_ranks("overlap.py", folder, "wide", 64, 20)
    return {"overlap": {"inside the machine, 64 images": flat(found)}}


def small_steps(folder):
    """The steps of lesson 04's model on two processes: anywhere, and each process bound to a core."""
    found = {}
    for name, bound in (("anywhere", ""), ("bound", "1")):
        with empty_folder() as empty:
            found[name] = flat(start_ranks("overlap.py", empty, "lesson", 60, 200, BOUND=bound))
    return {"waiting": found}


def on_two_hosts(folder, rate, burst, *words, limit=LIMIT, **environment):
    """Run Python with these words on two hosts, and return what rank 0 prints. The kernel limits the rate of
    their links (tbf), after so many bytes at once."""
    with hosts.Hosts(folder, 2) as two:
        for number in (1, 2):
            link = ("tc", "qdisc", "add", "dev", f"link{number}", "root", "tbf")
            two.call(*link, "rate", rate, "burst", burst, "latency", "100ms")
        both = []
        for rank in (0, 1):
            own = {
                "RANK": str(rank),
                "WORLD_SIZE": "2",
                "STORE": str(folder / "store"),
                "GLOO_SOCKET_IFNAME": "eth0",
                "RESULT": str(folder / f"{rank}.json"),
            }
            own = ENVIRONMENT | own | environment
            both.append(two.run(rank + 1, sys.executable, *words, environment=own))
        codes = [command.finish(limit) for command in both]
        if codes != [0, 0]:
            sys.exit(f"error: {words[0]} failed on two hosts:\n{both[0].output()}{both[1].output()}")
        return both[0].output()


def overlap_between_hosts(folder):
    if hosts.why_not():
        return {}
    said = on_two_hosts(folder, "1gbit", "256kb", HERE / "overlap.py", "wide", 512, 6)
    return {"overlap": {"a link of 1 Gbit/s, 512 images": flat(json.loads(said.splitlines()[-1]))}}


def flat(found):
    kept = {"bytes": found["bytes"]}
    for name, seconds in found["seconds"].items():
        kept[f"{name}, seconds"] = seconds
        kept[f"{name}, CPU seconds"] = found["cpu_seconds"][name]
    return kept


def reduce(world_size):
    def run(folder):
        found = start_ranks("reduce.py", folder, world_size=world_size, PYTHONPATH=PATH_OF_RINGS)
        return {"all-reduce": {str(world_size): found}}

    return run


def recovery(folder):
    """Seconds from the death of one of two processes to the next step, with torchrun's real restart."""
    words, environment = launcher.command("06b_preemption", 2, "--epochs", 2, "--crash-at", 1)
    script = str(launcher.ROOT / "lessons/06b_preemption.py")
    words[words.index(script)] = VICTIM
    finish(begin(words, folder, **environment, LESSON=script))
    times = {}
    for line in (folder / ".steps").read_text().splitlines():
        when, process, *_ = line.split()
        times.setdefault(process, []).append(float(when))
    before, after = list(times.values())[:2]
    return {"recovery": after[0] - before[-1]}


# ---- all of them --------------------------------------------------------------------------------

BOTH = "clocked,stepped"
LARGE = "large,clocked,stepped"
SECTIONS = {
    "one process": {
        "the usual loop": tutorial,
        "lesson 01": job(
            "01_single_gpu", 1, OWN, BOTH, **dict.fromkeys(("speed", "step", "start"), "lesson 01")
        ),
        "lesson 07 in bf16": job(
            STEM_07, 1, (*OWN, *BF16), "stepped", speed="lesson 07 in bf16", step="lesson 07 in bf16"
        ),
        "a large model on one": job(STEM, 1, FEW, LARGE, speed="a large one, 1"),
        "a large model in bf16": job(STEM_07, 1, (*FEW, *BF16), "large", speed="a large one in bf16"),
    },
    "two processes": {
        "lesson 04 on one process": job(STEM, 1, OWN, BOTH, speed="its own model, 1", step="lesson 04, 1"),
        "lesson 04 on two": job(
            STEM, 2, OWN, BOTH, speed="its own model, 2", step="lesson 04, 2", start="lesson 04"
        ),
        "two that do not talk": apart(OWN, BOTH, "its own model, apart"),
        "a large model on two": job(STEM, 2, FEW, LARGE, speed="a large one, 2"),
        "two large ones that do not talk": apart(FEW, LARGE, "a large one, apart"),
        "what DDP adds to a step": small_steps,
    },
    "overlap": {"inside the machine": overlap, "between two hosts": overlap_between_hosts},
    "all-reduce": {"two processes": reduce(2)},
    "snapshots": {
        "lesson 06b": job(
            STEM_06B, 2, OWN, "saving,stepped", saving="lesson 06b", step="lesson 06b", speed="lesson 06b"
        ),
        "large snapshots": job(
            STEM_06B, 2, FEW, "wide,saving", saving="lesson 06b, wide", speed="lesson 06b, wide"
        ),
        "large snapshots, asynchronous": job(
            "09_fsdp", 2, FEW, "wide,saving", saving="lesson 09, wide", speed="lesson 09, wide"
        ),
        "a process dies": recovery,
    },
    "start": {
        "lesson 03": job("03_ddp_spawn", 2, ("--epochs", 1), "clocked", start="lesson 03"),
        "lesson 06, two nodes": job("06_multinode", 2, ("--epochs", 1), "clocked", start="lesson 06"),
    },
}
