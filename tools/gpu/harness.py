"""How `make gpu` runs things: children, stages with deadlines, rows with a verdict."""

import contextlib
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from tools.testbed import pretending
from tools.testbed.processes import alive
from tools.testbed.surroundings import own_torchrun, python_path, short_folder

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]


class Row(NamedTuple):
    stage: str
    name: str
    value: str
    expected: str
    verdict: str  # ok, failed, measured, or not run: for want of time, or of what it needs
    seconds: float | None = None  # it took these, of those that it might have taken
    limit: float | None = None


class Stage(NamedTuple):
    """A part of the check. `work(check)` adds rows, and has about these seconds, or those in a rehearsal."""

    name: str
    seconds: float
    rehearsal: float
    work: Callable


@dataclass
class Job:
    """A command for an empty folder of its own."""

    words: list
    environment: dict = field(default_factory=dict)
    ranks: int = 1
    memory: float = 0.0  # bytes of GPU 0, about
    seconds: float = 0.0  # that it needs: ended before, it has not failed


class Child:
    """A job that has begun, in a process group of its own. `problem` says how it failed."""

    def __init__(self, job: Job, folder: Path, environment: dict, limit: float):
        self.folder, self.mark, self.began = folder, f"gpu-{uuid.uuid4().hex}", time.monotonic()
        self.problem, self.limit, self.took = "", limit, 0.0
        self.had_time = limit >= job.seconds
        folder.mkdir()
        environment = environment | {"MARK_OF_CHILD": self.mark} | job.environment
        with open(folder / ".stdout", "w") as stdout, open(folder / ".stderr", "w") as stderr:
            self.process = subprocess.Popen(
                [str(word) for word in job.words],
                cwd=folder,
                env={name: str(value) for name, value in environment.items()},
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
                process_group=0,
            )

    def has_ended(self) -> bool:
        return self.process.poll() is not None

    def end(self) -> None:
        """End it with all that it has started: torchrun's ranks have process groups of their own."""
        self.took = self.took or time.monotonic() - self.began
        if not self.has_ended():
            self.problem = f"still ran after {self.took:.0f} s, and was ended"
            os.killpg(self.process.pid, signal.SIGKILL)
        for pid, _ in alive(self.mark):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if code := self.process.wait():
            self.problem = self.problem or f"status {code}: {self.last_words()}"

    def verdict(self) -> str:
        """Of its problem: one that was ended before it could be ready has shown nothing."""
        return "failed" if self.had_time or not self.problem.startswith("still ran") else "not run"

    def text(self) -> str:
        return "".join((self.folder / name).read_text(errors="replace") for name in (".stdout", ".stderr"))

    def last_words(self) -> str:
        """The line that says what went wrong, as well as one can tell."""
        lines = [line.strip() for line in self.text().splitlines() if line.strip()]
        raised = [line for line in lines if "rror: " in line and "ChildFailed" not in line]
        return (raised or lines or ["it said nothing"])[-1][:300]

    def said(self) -> dict:
        """The line of JSON that a probe of ours prints."""
        return json.loads([line for line in self.text().splitlines() if line.startswith('{"probe"')][-1])


class Check:
    """One `make gpu`: its time, its children and its rows."""

    def __init__(self, out: Path, minutes: float, is_rehearsal: bool, gpus: int, patience: float = 1):
        self.out, self.is_rehearsal, self.gpus = Path(out), is_rehearsal, gpus
        self.began = time.monotonic()
        self.end = self.deadline = self.began + 60 * minutes * patience
        self.patience = patience  # times all limits, for a slow machine or a busy one
        self.before: dict[str, float] = {}  # what earlier files of rows have shown: see seen.py
        self.only_new = False
        self.room = math.inf  # bytes of GPU 0's memory
        self.rows: list[Row] = []
        self.facts: dict = {}  # what the file has beside the rows
        self.stage, self.children = "", []
        # What is measured is on GPU 0, however many there are. Ranks that share a GPU get slices of its time:
        # the more of them, the longer each collective.
        cores = len(os.sched_getaffinity(0))
        self.at_once = min(cores, 6) if gpus else cores
        self.folder = short_folder("gpu-check-")  # not below --out, which may be deep
        self.out.mkdir(parents=True, exist_ok=True)
        (self.out / "gpu.log").write_text("")
        names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
        self.environment = {name: value for name, value in os.environ.items() if name not in names}
        self.environment |= {"OMP_NUM_THREADS": "1", "TMPDIR": self.folder}
        self.on_gpus = {
            "LOCK_OF_TURNS": self.folder / "turns",
            "SECONDS_OF_TURN": int(100 * self.patience),
            "PYTHONPATH": python_path(ROOT / "lessons", ROOT, pretending.AT_EXIT),
            "TORCHINDUCTOR_CACHE_DIR": self.folder / "inductor",
            "TORCHINDUCTOR_COMPILE_THREADS": "4",
        }
        if is_rehearsal:
            self.environment.pop("CUDA_VISIBLE_DEVICES", None)
            self.on_gpus |= pretending.environment(gpus, self.folder, os.environ)
            if gpus == 0:  # the tests, too, take no real ones
                self.environment["CUDA_VISIBLE_DEVICES"] = ""

    def title(self) -> str:
        """What it runs on, in words."""
        kind = "simulated " if self.is_rehearsal else ""
        where = f"{self.gpus} {kind}GPU{'s' * (self.gpus > 1)}" if self.gpus else "the CPU"
        return f"a rehearsal on {where}" if self.is_rehearsal else f"on {where}"

    # ---- rows

    def row(
        self,
        name: str,
        value: object,
        expected: str = "",
        verdict: str = "measured",
        seconds: float | None = None,
        limit: float | None = None,
    ) -> None:
        times = [each if each is None else round(each, 1) for each in (seconds, limit)]
        self.rows.append(Row(self.stage, name, " ".join(str(value).split()), expected, verdict, *times))
        shown = f"{name}: {self.rows[-1].value}" + (f"  (expected: {expected})" if expected else "")
        shown += f"  [{seconds:.0f} s of {limit:.0f}]" if seconds is not None else ""
        print(f"  {verdict:8}  {shown}", flush=True)
        self.save()

    def judge(self, name: str, children: Iterable[Child | None], look: Callable, expected: str = "") -> None:
        """A row about some children: look(what they say) returns a value, and perhaps whether it is right."""
        children = list(children)
        if None in children:
            return self.row(name, "its stage had no time left", expected, "not run")
        longest = max(children, key=lambda child: child.took)
        times = (longest.took, longest.limit)
        if bad := next((child for child in children if child.problem), None):
            return self.row(name, bad.problem, expected, bad.verdict(), *times)
        found = look(*(child.said() for child in children))
        value, is_right = found if isinstance(found, tuple) else (found, None)
        verdict = {None: "measured", True: "ok", False: "failed"}[is_right]
        return self.row(name, value, expected, verdict, *times)

    def is_left_out(self, name: str) -> bool:
        """With --only-new, what an earlier file of rows has shown right."""
        return self.only_new and name in self.before

    def save(self) -> None:
        """After each row, since whoever started this may end it at any time."""
        table = {
            "rehearsal": self.is_rehearsal,
            "on": self.title(),
            "seconds": round(time.monotonic() - self.began, 1),
            "counts": Counter(row.verdict for row in self.rows),
            "facts": self.facts,
            "rows": [row._asdict() for row in self.rows],
        }
        temporary = self.out / "gpu.json.temporary"
        temporary.write_text(json.dumps(table, indent=1) + "\n")
        temporary.replace(self.out / "gpu.json")

    # ---- children

    def begin(self, job: Job) -> Child:
        folder, limit = self.folder / f"{len(self.children):03}", self.deadline - time.monotonic()
        self.children.append(Child(job, folder, self.environment, limit))
        return self.children[-1]

    def is_over(self) -> bool:
        return time.monotonic() > self.deadline

    def has_room(self, job: Job, others: list[Job]) -> bool:
        """Whether it can run beside these: all that runs at once must fit into the GPU's memory."""
        ranks = sum(each.ranks for each in (job, *others))
        memory = sum(each.memory for each in (job, *others))
        return not others or (ranks <= self.at_once and memory <= self.room)

    def run(self, jobs: dict[str, Job], look: Callable = lambda name, child: None) -> dict:
        """Run all of them, as many at once as the machine can take. look(name, child) is called as soon as
        one has ended, or with None if there was no time left for it; these are also returned."""
        waiting, running = dict(jobs), {}
        found = dict.fromkeys(jobs)
        while running or (waiting and not self.is_over()):
            for name, child in list(running.items()):
                if child.has_ended() or self.is_over():
                    found[name] = self.finish(name, running.pop(name))
                    look(name, found[name])
            for name, job in list(waiting.items()):
                if not self.is_over() and self.has_room(job, [jobs[other] for other in running]):
                    running[name] = self.begin(waiting.pop(name))
            time.sleep(0.02)
        for name in waiting:
            look(name, None)
        return found

    def finish(self, name: str, child: Child) -> Child:
        """End it, and keep what it has said if it failed: its folder goes."""
        child.end()
        if child.problem:
            self.log(f"==== {self.stage}: {name}: {child.problem}\n{child.text()[-20_000:]}\n")
        return child

    def log(self, text: str) -> None:
        with open(self.out / "gpu.log", "a") as log:
            log.write(text)

    # ---- stages

    def go(self, stages: Iterable[Stage]) -> int:
        """Run the stages that fit. Returns the exit status: 1 if anything failed."""
        stages = list(stages)
        try:
            for number, stage in enumerate(stages):
                now = time.monotonic()
                wanted = (stage.rehearsal if self.is_rehearsal else stage.seconds) * self.patience
                # What earlier stages have left over is shared out.
                share = (self.end - now) * stage.seconds / sum(each.seconds for each in stages[number:])
                self.stage, left = stage.name, max(0, self.end - now)
                print(f"{stage.name} ({now - self.began:.0f} s gone, about {wanted:.0f} s)", flush=True)
                if left < wanted / 2:
                    self.row("the stage", f"needs {wanted:.0f} s, and {left:.0f} s are left", "", "not run")
                    continue
                # A rehearsal shows that each stage keeps to its own time.
                limit = wanted if self.is_rehearsal else min(left, max(wanted, share))
                self.deadline = now + limit
                try:
                    stage.work(self)
                except Exception as error:  # a fault of ours must not take the other stages with it
                    self.row("the stage", f"{type(error).__name__}: {error}", "", "failed")
                seconds = time.monotonic() - now
                value, verdict = (
                    ("in time", "ok") if seconds <= limit else ("more to do than time", "not run")
                )
                verdict = "failed" if verdict != "ok" and self.is_rehearsal else verdict
                self.row("the whole stage", value, "", verdict, seconds, limit)
        finally:
            for child in self.children:
                child.end()
            shutil.rmtree(self.folder, ignore_errors=True)
        return int(any(row.verdict == "failed" for row in self.rows))

    # ---- commands

    def probe(self, *words: str, ranks: int = 0, **options) -> Job:
        """One of probes.py, by its name; under torchrun if it has a number of ranks."""
        start = own_torchrun("--standalone", "--nproc-per-node", ranks) if ranks else [sys.executable]
        given = [f"{name}={value}" for name, value in options.items()]
        # Ranks share GPUs only where there are too few: with one each, NCCL has its own ways.
        environment = self.on_gpus | {"SHARE_GPU": int(ranks > self.gpus)}
        return Job([*start, HERE / "probes.py", *words, *given], environment, max(1, ranks), seconds=30)
