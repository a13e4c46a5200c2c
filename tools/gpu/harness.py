"""How `make gpu` runs things: children with limits, stages with deadlines, rows with a verdict."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
VARIANT = ROOT / "tools/bench/variant.py"
sys.path[:0] = [str(HERE.parent), str(ROOT / "tests/helpers"), str(ROOT / "lessons")]
import launcher
import lessons
import pretending
from processes import alive

# What "the same bytes" needs on GPUs; correct.py says of which lessons it is asked.
SAME_BYTES = {"NCCL_NVLS_ENABLE": "0", "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
VERDICTS = {
    "ok": "as expected",
    "failed": "failed",
    "met": "goals met",
    "missed": "goals missed",
    "measured": "measured only",
    "not here": "not for this machine",
    "not run": "not run for want of time",
}

# What a rehearsal cannot test, and why. A row says so where a run on GPUs would test it.
ONLY_ON_GPUS = {
    "speed": "the CPU computes small sizes here, so the numbers above say nothing about a GPU",
    "torch.compile": "on two cores it takes longer than the rest, and it makes no kernels for a GPU",
    "kernels": "no kernel runs on a GPU here, so the profiler has none to show",
    "memory": "a simulated GPU does not count memory, and a process on the CPU holds more than tensors",
    "P2P": "a simulated GPU keeps its tensors in the CPU's memory",
    "messages of NCCL": "gloo carries the data here, and reports a failed rank in its own words",
}


class Row(NamedTuple):
    stage: str
    name: str
    value: str
    expected: str
    verdict: str


class Stage(NamedTuple):
    """A part of the check. `work(check)` adds rows, and has about these seconds."""

    name: str
    seconds: float
    work: Callable


@dataclass
class Job:
    """A command for an empty folder of its own."""

    words: list
    environment: dict = field(default_factory=dict)
    limit: float = 60  # seconds
    ranks: int = 1
    folder: Path | None = None  # if it is to go on in that of an earlier one


class Result:
    """What has become of a job. `problem` is empty if it ended well."""

    def __init__(self, folder: Path, problem: str = "", was_begun: bool = True, seconds: float = 0):
        self.folder, self.problem, self.was_begun, self.seconds = folder, problem, was_begun, seconds
        self.out = folder / "out"

    def text(self, name: str) -> str:
        path = self.folder / name
        return path.read_text(errors="replace") if path.exists() else ""

    @property
    def stdout(self) -> str:
        return self.text(".stdout")

    @property
    def stderr(self) -> str:
        return self.text(".stderr")

    def said(self) -> dict:
        """The line of JSON that a probe of ours prints."""
        lines = [line for line in (self.stdout + self.stderr).splitlines() if line.startswith('{"probe"')]
        return json.loads(lines[-1])


class Child:
    """A job that has begun, in a process group of its own."""

    def __init__(self, check: "Check", job: Job, folder: Path, seconds: float):
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.mark, self.began = folder, f"{check.mark}-{uuid.uuid4().hex}", time.monotonic()
        self.seconds = seconds
        environment = check.environment | {"CHILD_OF_GPU_CHECK": self.mark} | job.environment
        self.is_pretended, self.is_on_cpu = check.is_pretended, environment.get("CUDA_VISIBLE_DEVICES") == ""
        self.gpus, self.reports = check.gpus, check.folder / "reports" / self.mark
        if self.is_pretended:
            self.reports.mkdir(parents=True)
            # Last, since a launcher sets PATH: the pretended nvidia-smi must come first there.
            environment |= pretending.environment(self.gpus, self.reports, environment)
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

    def has_ended_or(self, name: str) -> bool:
        """Ended, or written this file."""
        return self.has_ended() or (self.folder / name).exists()

    def is_late(self) -> bool:
        return time.monotonic() - self.began > self.seconds

    def pids(self, rank: int) -> list[int]:
        """The processes that a launcher told that this is their rank."""
        found = []
        for pid, _ in alive(self.mark):
            with contextlib.suppress(OSError):
                if f"RANK={rank}".encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                    found.append(pid)
        return sorted(found)

    def end(self) -> None:
        """End it with all that it has started: torchrun's ranks have process groups of their own."""
        if not self.has_ended():  # afterwards its number may be somebody else's
            os.killpg(self.process.pid, signal.SIGKILL)
        for pid, _ in alive(self.mark):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()

    def finish(self) -> Result:
        """Wait for its end, or end it at its limit."""
        while not self.has_ended() and not self.is_late():
            time.sleep(0.02)
        ran_out = not self.has_ended()
        self.end()  # also what a launcher that was killed has left
        result = Result(self.folder, seconds=time.monotonic() - self.began)
        code = self.process.returncode
        if ran_out:
            result.problem = f"still ran after {self.seconds:.0f} s, and was ended"
        elif code != 0:
            result.problem = f"status {code}: {last_words(result)}"
        elif self.is_pretended:
            result.problem = self.unseen()
        return result

    def unseen(self) -> str:
        """What is wrong about the GPUs that its processes saw. With none, they use the CPU and pass."""
        counts = [json.loads(path.read_text())["gpus"] for path in self.reports.glob("*.json")]
        if self.is_on_cpu:
            return "" if counts and not any(counts) else f"it was for the CPU, and saw GPUs: {counts}"
        try:
            pretending.waits(self.gpus, self.reports)
        except AssertionError as error:
            return str(error)
        return "" if min(counts) > 0 else f"a process saw no GPU: {counts}"


def last_words(result: Result) -> str:
    """The line that says what went wrong, as well as one can tell."""
    lines = [line.strip() for line in (result.stdout + result.stderr).splitlines() if line.strip()]
    refused = [line for line in lines if "error: " in line]
    raised = [line for line in lines if "Error: " in line and "ChildFailed" not in line]
    return (refused or raised or lines or ["it said nothing"])[-1][:300]


class Check:
    """One `make gpu`: its time, its children and its rows."""

    def __init__(self, out: Path, minutes: float, is_rehearsal: bool, gpus: int):
        self.out, self.is_rehearsal, self.gpus = Path(out), is_rehearsal, gpus
        self.is_pretended = is_rehearsal and gpus > 0
        self.began = time.monotonic()
        self.end = self.deadline = self.began + 60 * minutes
        self.patience = 8 if is_rehearsal else 1  # on a busy laptop all takes longer
        self.rows: list[Row] = []
        self.facts: dict = {}  # what the picture and the file show beside the rows
        self.stage, self.mark = "", uuid.uuid4().hex
        # Ranks that share a GPU get slices of its time: the more of them, the longer each collective. With
        # 12 ranks at once, the stage with several ranks might have to leave rows out (a guess).
        cores = len(os.sched_getaffinity(0))
        self.at_once = min(cores, 6 * gpus) if gpus else cores
        self.children: list[Child] = []
        self.lock = threading.RLock()
        # Not below --out: a DataLoader's workers make sockets in TMPDIR, whose paths must be short.
        self.folder = Path(tempfile.mkdtemp(prefix="gpu-check-"))
        self.out.mkdir(parents=True, exist_ok=True)
        (self.out / "gpu.log").write_text("")
        self.environment = os.environ | SAME_BYTES
        for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"):
            self.environment.pop(name, None)
        self.environment |= {
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": str(ROOT / "lessons"),
            "TMPDIR": str(self.folder),
            "TORCHINDUCTOR_CACHE_DIR": str(self.folder / "inductor"),
            "TORCHINDUCTOR_COMPILE_THREADS": "4",
        }
        if self.is_pretended:
            self.environment["PYTHONPATH"] += f"{os.pathsep}{pretending.WITNESS}"
            self.environment.pop("CUDA_VISIBLE_DEVICES", None)
        elif is_rehearsal:
            self.environment["CUDA_VISIBLE_DEVICES"] = ""

    def where(self) -> str:
        """What it runs on, in words."""
        if self.gpus == 0:
            return "the CPU"
        return f"{self.gpus} {'simulated ' if self.is_pretended else ''}GPU{'s' * (self.gpus > 1)}"

    def title(self) -> str:
        return f"a rehearsal on {self.where()}" if self.is_rehearsal else f"on {self.where()}"

    # ---- rows

    def row(self, name: str, value: object, expected: str = "", verdict: str = "measured") -> None:
        self.rows.append(Row(self.stage, name, " ".join(str(value).split()), expected, verdict))
        print(f"  {verdict:8}  {name}: {self.rows[-1].value}", flush=True)
        self.save()

    def judge(
        self, name: str, results: Iterable[Result], look: Callable, expected: str = "", goal: bool = False
    ) -> None:
        """A row about some results: look(*results) returns a value, or a value and whether it is right."""
        results = list(results)
        problems = [result.problem for result in results if result.problem]
        if any(not result.was_begun for result in results):
            return self.row(name, "its stage had no time left", expected, "not run")
        if problems:
            # A lesson says so itself, in one line, and is right.
            is_too_new = "this lesson needs torch" in problems[0]
            return self.row(name, problems[0], expected, "not here" if is_too_new else "failed")
        try:
            found = look(*results)
        except Exception as error:
            return self.row(name, f"{type(error).__name__}: {error}", expected, "failed")
        value, is_right = found if isinstance(found, tuple) else (found, None)
        bad, good = ("missed", "met") if goal else ("failed", "ok")
        return self.row(name, value, expected, {None: "measured", True: good, False: bad}[is_right])

    def is_real(self, what: str) -> bool:
        """Whether this can be tested here. In a rehearsal, a row says why it cannot."""
        if self.is_rehearsal:
            self.row(what, ONLY_ON_GPUS[what], "", "not here")
        return not self.is_rehearsal

    def save(self) -> None:
        """After each row, since whoever started this may end it at any time."""
        table = {
            "rehearsal": self.is_rehearsal,
            "on": self.where(),
            "seconds": round(time.monotonic() - self.began, 1),
            "counts": self.counts(),
            "facts": self.facts,
            "rows": [row._asdict() for row in self.rows],
        }
        temporary = self.out / "gpu.json.temporary"
        temporary.write_text(json.dumps(table, indent=1) + "\n")
        temporary.replace(self.out / "gpu.json")

    def counts(self) -> dict[str, int]:
        return {name: sum(row.verdict == name for row in self.rows) for name in VERDICTS}

    # ---- children

    def begin(self, job: Job) -> Child:
        """Begin a job. Its limit ends at the stage's deadline at the latest."""
        with self.lock:  # the kills begin theirs in threads
            folder = job.folder or self.folder / f"{len(self.children):03}"
            left = self.deadline - time.monotonic()
            self.children.append(Child(self, job, folder, min(job.limit * self.patience, left)))
            return self.children[-1]

    def not_begun(self) -> Result:
        return Result(self.folder / "none", "not begun", was_begun=False)

    def run(self, jobs: dict[str, Job]) -> dict[str, Result]:
        """Run all of them, no more ranks at once than the machine can take."""
        waiting, children, found = dict(jobs), {}, {}
        while waiting or children:
            for name, child in list(children.items()):
                if child.has_ended() or child.is_late():
                    found[name] = self.note(name, children.pop(name).finish())
            for name, job in list(waiting.items()):
                busy = sum(jobs[other].ranks for other in children)
                if self.is_over():
                    found[name] = self.not_begun()
                elif busy == 0 or busy + job.ranks <= self.at_once:
                    children[name] = self.begin(job)
                if name in found or name in children:
                    del waiting[name]
            time.sleep(0.01)
        return {name: found[name] for name in jobs}

    def run_one(self, job: Job) -> Result:
        return self.run({"": job})[""]

    def is_over(self) -> bool:
        return time.monotonic() > self.deadline - 2

    def take_turns(self, jobs: dict[str, Job]) -> dict[str, Result]:
        """All prepare at once, which is most of their time, and are measured one after the other.

        A child that is prepared waits in wait_for_turn(). Preparing ends after 60% of what the stage has:
        who compiles for longer than that is ended, so that nobody else is measured beside it.
        """
        until = time.monotonic() + 0.6 * (self.deadline - time.monotonic())
        waiting, children, at_work, found = dict(jobs), {}, [], {}

        while (waiting or at_work) and time.monotonic() < until:
            # In small groups where there are few cores: else all would prepare until the last second.
            while waiting and len(at_work) < 2 * self.at_once:
                name = next(iter(waiting))
                waiting[name].environment["TAKES_TURNS"] = "1"
                children[name] = self.begin(waiting.pop(name))
                at_work.append(name)
            time.sleep(0.05)
            at_work = [name for name in at_work if not children[name].has_ended_or(".ready")]
        for name in at_work:
            children[name].end()
            late = f"not prepared after {time.monotonic() - children[name].began:.0f} s, and ended"
            found[name] = self.note(name, Result(children[name].folder, late))
        for name in [name for name in jobs if name not in found]:
            if name in waiting or self.is_over():
                found[name] = self.not_begun()
                continue
            child, now = children[name], time.monotonic()
            (child.folder / ".go").touch()
            left = min(jobs[name].limit * self.patience, self.deadline - now)
            child.seconds = now - child.began + left
            while not child.has_ended_or(".done") and not child.is_late():
                time.sleep(0.01)
            if child.is_late():
                found[name] = self.note(name, child.finish())  # not beside the next one
            child.seconds += 10  # to go down, while the next one is measured
        for name in jobs.keys() - found:
            found[name] = self.note(name, children[name].finish())
        self.end_children()
        return found

    def note(self, name: str, result: Result) -> Result:
        """Keep what a child that failed has said: its folder goes."""
        if result.problem:
            said = result.stdout + result.stderr
            with self.lock, open(self.out / "gpu.log", "a") as log:
                log.write(f"==== {self.stage}: {name}: {result.problem}\n{said[-20_000:]}\n")
        return result

    def end_children(self) -> None:
        with self.lock:
            for child in self.children:
                if not child.has_ended():
                    child.end()

    # ---- stages

    def go(self, stages: Iterable[Stage]) -> int:
        """Run the stages that fit. Returns the exit status: 1 if anything failed."""
        stages = list(stages)
        try:
            for number, stage in enumerate(stages):
                now, wanted = time.monotonic(), stage.seconds * self.patience
                # What earlier stages have left over is shared out.
                share = (self.end - now) * stage.seconds / sum(each.seconds for each in stages[number:])
                self.stage = stage.name
                print(f"{stage.name} ({now - self.began:.0f} s gone, about {wanted:.0f} s)", flush=True)
                if self.end - now < wanted:
                    left = max(0, self.end - now)
                    self.row("the stage", f"needs {wanted:.0f} s, and {left:.0f} s are left", "", "not run")
                    continue
                self.deadline = now + max(wanted, share)
                try:
                    stage.work(self)
                except Exception as error:  # a fault of ours must not take the other stages with it
                    self.row("the stage", f"{type(error).__name__}: {error}", "", "failed")
                finally:
                    self.end_children()
                self.facts.setdefault("seconds of stages", {})[stage.name] = round(time.monotonic() - now, 1)
                self.save()
        finally:
            self.deadline = 0  # nothing more begins
            self.end_children()
            shutil.rmtree(self.folder, ignore_errors=True)
        return 1 if self.counts()["failed"] else 0

    # ---- commands

    def lesson(
        self,
        stem: str,
        ranks: int,
        *arguments,
        folder: Path | None = None,
        limit: float = 60,
        script: Path | None = None,
        variant: str = "",
        **more,
    ) -> Job:
        """A lesson by its documented command; or a script in its place, or a variant of it (variant.py)."""
        words, environment = launcher.command(stem, ranks, *arguments)
        path = str(lessons.get(stem).path)
        if variant:
            script = VARIANT
            environment |= {"VARIANT": variant, "VARIANT_OF": path}
        words = [script if script and word == path else word for word in words]
        return Job(words, environment | self.share(ranks) | more, limit, ranks, folder)

    def probe(self, *words: str, ranks: int = 0, limit: float = 60, **options) -> Job:
        """One of probes.py, by its name; under torchrun if it has a number of ranks."""
        start = launcher.command("04_ddp_torchrun", ranks)[0][:-1] if ranks else [sys.executable]
        given = [f"{name}={value}" for name, value in options.items()]
        return Job([*start, HERE / "probes.py", *words, *given], self.share(ranks), limit, max(1, ranks))

    def share(self, ranks: int) -> dict:
        """Ranks share GPUs only where there are too few: with one each, NCCL has its own ways."""
        return {"SHARE_GPU": int(ranks > self.gpus)}


def small(stem: str) -> tuple[str, ...]:
    return tuple(lessons.get(stem).small.split())
