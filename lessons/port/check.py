"""Checks a port to DDP: runs your script as it is, and compares what its processes do.

    python lessons/port/check.py --exact --original "before.py --epochs 2" -- my.py --epochs 2

Start it where you start your script, and give options that make a run short: two epochs of a few steps.
torchrun runs the script on one process, on two, and under two launchers, of which one loses a process
(SIGKILL) at a random step. A line for each promise appears when its verdict is known: `ok`, `wrong` or
`not seen` (nothing could be compared), with the reason and the row of lessons/pages/port.md that helps.

Your script and its folder stay as they are: each run gets a copy of the current folder, so it finds no
snapshot of another run. Folders that you name after --link, for example those of data sets, are linked. Files
that the script writes at absolute paths are not kept apart. With fewer GPUs than processes, the runs use the
CPU. `torch.compile` is off.

--exact compares one process and several to nine digits, and the numbers that they print. In these two runs
everything is float64, the seed is 0 until your script sets one, dropout and autocast are off, the order of
the examples depends only on the epoch, and their augmentation only on their index.

--original compares your script on one process with the script that it came from, which python starts. It
turns --exact on. Without options of its own, the original gets those of your script.
"""

import argparse
import os
import shlex
import shutil
import signal
import sys
from functools import cached_property
from pathlib import Path

import promises
from runs import reason, run, short_folder

PAGE = "lessons/pages/port.md"
PROMISES = {
    "original": ("on one process, it does what the original script does", promises.like_the_original),
    "end": ("several processes run to the end", promises.to_the_end),
    "weights": ("all processes hold the same weights, buffers and learning rates", promises.same_weights),
    "output": ("only one process prints and writes what is there once", promises.one_writer),
    "batches": (
        "each example is used once in an epoch, and no two processes get the same batch",
        promises.own_batches,
    ),
    "gradients": ("losses and gradients are those of one process", promises.same_gradients),
    "numbers": ("the numbers that rank 0 prints are those of one process", promises.same_numbers),
    "restarts": ("if a process is killed, the weights at the end are the same", promises.same_after_kill),
    "collectives": (
        "all processes call the same collectives, and none waits forever",
        promises.same_collectives,
    ),
}


def main():
    arguments = parse()
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # so that nothing is left
    folder = short_folder()
    verdicts = set()
    try:
        runs = Runs(folder, arguments)
        for number, name in enumerate(PROMISES, 1):
            if name in arguments.only:
                verdict, text, row = judge(name, runs)
                link = f" ({PAGE}#{row})" if row else ""
                print(f"{verdict:8}  {number}. {PROMISES[name][0]}\n          {text}{link}", flush=True)
                verdicts.add(verdict)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    sys.exit("wrong" in verdicts)


def parse():
    words = [*sys.argv[1:], "--"]
    split = words.index("--")
    parser = argparse.ArgumentParser(
        usage="%(prog)s [options] -- SCRIPT [its options]",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    option = parser.add_argument
    option("--processes", type=int, default=2)
    option("--exact", action="store_true", help="compare one process and several to nine digits")
    option("--original", default="", metavar='"SCRIPT OPTIONS"', help="the script for one process")
    option("--steps", type=int, default=0, help="end each run after this many optimizer steps")
    option("--one", default="", metavar="OPTIONS", help="options of the script on one process")
    option("--link", nargs="*", default=["data"], help="folders to link (default: data)")
    option("--only", nargs="*", default=list(PROMISES), choices=PROMISES, help="promises to check")
    option("--limit", type=int, default=600, help="seconds that a run may take")
    arguments = parser.parse_args(words[:split])
    arguments.script = words[split + 1 : -1]
    arguments.original = shlex.split(arguments.original)
    if not is_here(arguments.script):
        parser.error("name a script of this folder after --, as in: check.py -- my.py --epochs 2")
    arguments.script[0] = os.path.relpath(arguments.script[0])
    if arguments.original:
        if not is_here(arguments.original):
            parser.error("name a script of this folder after --original")
        if len(arguments.original) == 1:
            arguments.original += arguments.script[1:]
        arguments.exact = True
    if arguments.processes < 2:
        parser.error("--processes must be at least 2")
    return arguments


def is_here(command):
    """Whether a command begins with a script in the current folder, of which each run gets a copy."""
    script = Path.cwd() / (command or ["."])[0]
    return script.is_file() and script.resolve().is_relative_to(Path.cwd())


def judge(name, runs):
    """The verdict on a promise. A run that has failed keeps none, unless something wrong was seen before."""
    verdict, text, row = PROMISES[name][1](runs)
    if name not in ("original", "end") and runs.many.failed and verdict == "ok":
        return "not seen", f"the run on {runs.many.world_size} processes fails: {reason(runs.many)[0]}", ""
    return verdict, text, row


class Runs:
    """The runs that the promises need. Each is made when it is first asked for."""

    def __init__(self, folder, arguments):
        self.folder = folder
        self.arguments = arguments
        self.count = 0
        self.several = []  # all runs on several processes

    def run(self, label, **settings):
        self.count += 1
        arguments = self.arguments
        ours = {"command": arguments.script, "world_size": arguments.processes, "limit": arguments.limit}
        ours |= {"folder": self.folder / str(self.count), "steps": arguments.steps, "label": label}
        done = run(arguments.link, **(ours | settings))
        if done.world_size > 1:
            self.several.append(done)
        return done

    def on_one(self, label, **settings):
        command = [*self.arguments.script, *shlex.split(self.arguments.one)]
        return self.run(label, command=command, world_size=1, **settings)

    @cached_property
    def many(self):
        return self.run("several processes")

    @cached_property
    def one(self):
        if self.arguments.exact:
            one = self.on_one("one process, --exact", is_exact=True)
            if not one.failed:
                return one
            print(f"--exact fails on this script, so it is left out: {reason(one)[0]}", flush=True)
        return self.on_one("one process")

    @property
    def is_exact(self):
        return self.one.is_exact

    @cached_property
    def same(self):
        """The run on several processes that is compared with the one on one process."""
        return self.run("several processes, --exact", is_exact=True) if self.is_exact else self.many

    @cached_property
    def nudged(self):
        return self.on_one("one process, with other last bits", is_exact=self.is_exact, is_nudged=True)

    @cached_property
    def original(self):
        command = self.arguments.original
        return self.run("the original", command=command, world_size=1, launchers=0, is_exact=True)

    @cached_property
    def again(self):
        return self.run("several processes again")

    def killed(self, rank, step, launchers):
        label = "a kill under two launchers" if launchers == 2 else "a kill"
        return self.run(label, kill=(rank, step), launchers=launchers)


if __name__ == "__main__":
    main()
