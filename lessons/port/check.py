"""Proves that a port to DDP is right: runs a script as it is, and compares what its processes do.

    python lessons/port/check.py -- my.py --epochs 2

Start it in the folder from which you start your script, with options that make a run short: two epochs of a
few steps. torchrun runs the script four times: on one process, on two, on two of which one is killed
(SIGKILL) at a random step, and under two launchers, of which one loses a process. The table that it prints has
one line for each promise: `ok`, `wrong` or `not seen`, with the reason and the row of lessons/pages/port.md.

Your script and its folder stay as they are. Each run gets a copy of the folder in a temporary one, so no run sees
what another has written. Folders that are named by --link (such as data sets) are linked, not copied. What the
script writes at absolute paths is not caught. Runs use CPUs if there are fewer GPUs than processes.
`torch.compile` does nothing in these runs.

--exact compares the gradients of one process and of several to nine digits. For these two runs it sets float64,
the seed 0 at the start, dropout 0 and autocast off, and draws the augmentation of an example from its number.
"""

import argparse
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from itertools import combinations
from pathlib import Path

import torch
import torch.distributed as dist

HERE = Path(__file__).resolve().parent
PROMISES = {
    "weights": "all processes hold the same weights, buffers and learning rates",
    "batches": "each example is used once in an epoch, and no two processes get the same batch",
    "gradients": "losses and gradients are those of one process",
    "collectives": "all processes call the same collectives, and none waits forever",
    "restarts": "a killed process costs nothing: the weights at the end are the same",
    "output": "one process prints and writes what only one should",
}
SITECUSTOMIZE = """
import importlib.machinery, importlib.util, sys
folder = {inside!r}
spec = importlib.machinery.PathFinder.find_spec("sitecustomize", [path for path in sys.path if path != folder])
if spec:  # somebody else's sitecustomize, which this one hides
    spec.loader.exec_module(importlib.util.module_from_spec(spec))
spec = importlib.util.spec_from_file_location("port_watch", {watch!r})
watch = importlib.util.module_from_spec(spec)
spec.loader.exec_module(watch)
watch.begin({seen!r})
"""
IGNORED = (".git", ".venv", "venv", "node_modules", "__pycache__", ".ipynb_checkpoints")
LARGEST_COPY = 1 << 30
QUIET = 5  # seconds without progress after which a run is looked at
PATIENCE = 60  # seconds that a process may wait for something outside torch, such as a download
EARLY_STEPS = 3  # compared without --exact: float32 rounds differently on several processes
MORE = "lessons/pages/port.md#"


def main():
    words = sys.argv[1:]
    if "--" not in words:
        words.append("--")
    split = words.index("--")
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        usage="%(prog)s [options] -- SCRIPT ...",
    )
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--exact", action="store_true", help="compare one process and several to nine digits")
    parser.add_argument("--steps", type=int, default=0, help="end each run after this many optimizer steps")
    parser.add_argument(
        "--one", default="", metavar="OPTIONS", help="more of the script's options for one process"
    )
    parser.add_argument("--link", nargs="*", default=["data"], help="folders to link instead of copying them")
    parser.add_argument("--only", nargs="*", choices=PROMISES, default=list(PROMISES), metavar="PROMISE",
                        help=f"check these promises only: {', '.join(PROMISES)}")  # fmt: skip
    parser.add_argument("--limit", type=int, default=600, help="seconds that a run may take")
    arguments = parser.parse_args(words[:split])
    arguments.script = words[split + 1 :]
    if not arguments.script:
        parser.error("name your script after --, as in: check.py -- my.py --epochs 2")
    script = Path(arguments.script[0])
    if script.is_absolute() and script.is_relative_to(Path.cwd()):
        arguments.script[0] = str(script.relative_to(Path.cwd()))
    elif script.is_absolute() or not script.exists() or ".." in script.parts:
        parser.error(f"there is no {script} in this folder: start check.py where you start your script")
    with tempfile.TemporaryDirectory(prefix="port-check-") as folder:
        verdicts = check(Path(folder).resolve(), arguments)
    for number, (name, words) in enumerate(PROMISES.items(), 1):
        if name in verdicts:
            verdict, reason, row = verdicts[name]
            print(f"{verdict:8}  {number}. {words}")
            print(f"          {reason}{f': see {MORE}{row}' if row and verdict != 'ok' else ''}")
    sys.exit(any(verdict == "wrong" for verdict, _, _ in verdicts.values()))


def check(folder, arguments):
    only, exact = arguments.only, arguments.exact
    many = Run(folder, arguments, "many")
    verdicts = {}
    if "weights" in only:
        verdicts["weights"] = same_weights(many)
    if {"batches", "gradients"} & set(only):
        one = Run(folder, arguments, "one", processes=1, exact=exact)
        if one.failed and exact:
            print(f"--exact fails on this script, so it is left out: {one.reason()[1]}")
            one, exact = Run(folder, arguments, "one again", processes=1), False
        if one.failed:
            sys.exit(f"the script fails on one process, too: {one.reason()[1]}")
        if not one.steps(0):
            sys.exit("the script took no step: does it resume an earlier run's snapshot, or lack options?")
        compared = Run(folder, arguments, "many exact", exact=True) if exact else many
        if "batches" in only:
            verdicts["batches"] = own_batches(one, many, compared)
        if "gradients" in only:
            verdicts["gradients"] = same_gradients(one, compared, exact)
    runs = [many]
    if "restarts" in only:
        if many.failed or len(many.steps(0)) < 2:
            verdicts["restarts"] = "not seen", "a run without a kill must take at least two steps", ""
        else:
            verdicts["restarts"], more = same_after_kill(folder, arguments, many)
            runs += more
    if "collectives" in only:
        verdicts["collectives"] = same_collectives(runs)
    if "output" in only:
        verdicts["output"] = one_writer(many)
    return verdicts


class Run:
    """The script, run to its end in a copy of the folder, and what its processes have seen."""

    def __init__(self, folder, arguments, name, processes=None, exact=False, kill=None, launchers=1):
        print(f"running: {name} ...", file=sys.stderr, flush=True)
        self.world_size = processes = processes or arguments.processes
        self.folder = folder / name.replace(" ", "-")
        self.work, self.seen, self.logs = self.folder / "work", self.folder / "seen", self.folder / "logs"
        copy_folder(self.work, arguments.link)
        inside = self.folder / "inside"
        for path in (self.seen, inside, self.folder / "tmp"):
            path.mkdir()
        words = {"inside": str(inside), "watch": str(HERE / "watch.py"), "seen": str(self.seen)}
        (inside / "sitecustomize.py").write_text(SITECUSTOMIZE.format(**words))
        environment = {
            name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE")
        }
        paths = [str(inside), *filter(None, [environment.get("PYTHONPATH")])]
        environment |= {"PYTHONPATH": os.pathsep.join(paths), "TMPDIR": str(self.folder / "tmp")}
        environment |= {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", "TORCHDYNAMO_DISABLE": "1"}
        environment.setdefault("OMP_NUM_THREADS", "1")
        environment |= {"PORT_EXACT": "1"} if exact else {}
        environment |= {"PORT_STEPS": str(arguments.steps)} if arguments.steps else {}
        environment |= {"PORT_KILL": f"{kill[0]} {kill[1]} {self.folder}/killed"} if kill else {}
        gpus = [str(gpu) for gpu in range(torch.cuda.device_count())]
        options = arguments.one.split() if processes == 1 else []
        store = dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
        self.launchers = []
        for node in range(launchers):
            share = range(node * processes // launchers, (node + 1) * processes // launchers)
            visible = {
                "CUDA_VISIBLE_DEVICES": ",".join(gpus[i] for i in share) if len(gpus) >= processes else ""
            }
            torchrun = [sys.executable, "-m", "torch.distributed.run", "--nnodes", launchers]
            torchrun += ["--nproc-per-node", len(share), "--max-restarts", 3 if kill else 0]
            torchrun += ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"localhost:{store.port}"]
            torchrun += ["--rdzv-id", "check", "--rdzv-conf", "is_host=0,join_timeout=60"]
            torchrun += ["--redirects", "3", "--log-dir", self.logs / str(node)]
            torchrun += [*arguments.script, *options]
            with open(self.folder / f"launcher{node}", "w") as log:
                words = [str(word) for word in torchrun]
                self.launchers.append(start(words, self.work, environment | visible, log))
        self.waiting = {}
        try:
            self.ended = self.wait(arguments.limit)
        finally:
            for pid in processes_of(self.seen):
                os.kill(pid, signal.SIGKILL)
            for launcher in self.launchers:
                launcher.kill()
                launcher.wait()
        self.failed = not self.ended or any(launcher.returncode for launcher in self.launchers)
        self.read()
        shutil.rmtree(self.work)

    def wait(self, limit):
        """Wait for the end. A run in which nothing moves is ended, with the line each process waits in."""
        begin = moved = time.monotonic()
        last = None
        while any(launcher.poll() is None for launcher in self.launchers):
            time.sleep(0.2)
            now = time.monotonic()
            running = processes_of(self.seen, "RANK=")
            size = sum(path.stat().st_size for path in self.seen.glob("*.seen"))
            state = size, len(running)
            if last is None or state != last[0] or sum(running.values()) - last[1] > 0.1 or not running:
                last, moved = (state, sum(running.values())), now
            if now - moved < QUIET and now - begin < limit:
                continue
            stacks = self.look(running)
            if (
                now - moved > PATIENCE
                or now - begin > limit
                or (stacks and all(inside for _, inside in stacks.values()))
            ):
                self.waiting = {rank: line for rank, (line, _) in stacks.items()}
                self.seconds = now - begin
                return False
            time.sleep(1)
        return True

    def look(self, running):
        """For each rank that runs: the script's line in which it is, and whether it waits inside torch."""
        for path in self.seen.glob("*.seen"):
            pid = int(path.stem.split(".")[1])
            if pid in running:
                os.kill(pid, signal.SIGURG)
        time.sleep(0.5)
        stacks = {}
        for path in self.seen.glob("*.stack"):
            rank, pid = map(int, path.stem.split("."))
            frames = re.findall(r'File "(.*)", line (\d+) in', path.read_text().split("hread 0x")[-1])
            if pid in running and frames:
                own = [f"{self.short(file)}:{line}" for file, line in frames if str(self.work) in file]
                is_inside = f"{os.sep}torch{os.sep}" in frames[0][0]
                stacks[rank] = (own or [f"{frames[0][0]}:{frames[0][1]}"])[0], is_inside
        return stacks

    def short(self, words):
        return words.replace(f"{self.work}{os.sep}", "")

    def read(self):
        """What the ranks of the last attempt have written down."""
        self.ranks = {}
        for path in self.seen.glob("*.seen"):
            rows = [json.loads(line) for line in path.read_text().splitlines() if line.endswith("}")]
            if not rows:
                continue
            before = self.ranks.get(rows[0]["rank"], rows)
            if rows[0]["time"] >= before[0]["time"]:
                self.ranks[rows[0]["rank"]] = without_zeroed(rows)
        self.printed = {}
        for path in sorted(self.logs.glob("*/*/attempt_*/*/std*.log")):
            rank = int(path.parent.name)
            text = path.read_text(errors="replace")
            self.printed[rank, path.stem] = self.short(text)

    def rows(self, rank, kind):
        return [row for row in self.ranks.get(rank, []) if row["kind"] == kind]

    def steps(self, rank):
        """The steps of a rank: each with its forward passes, its losses and what came out of it."""
        steps, forwards, losses = [], [], []
        for row in self.ranks.get(rank, []):
            forwards += [row] if row["kind"] == "forward" else []
            losses += [row["loss"]] if row["kind"] == "loss" else []
            if row["kind"] == "step":
                steps.append(row | {"forwards": forwards, "loss": sum(losses)})
                forwards, losses = [], []
        return steps

    def reason(self):
        """Why a run has failed, in one line, and the row of the page."""
        if self.waiting:
            lines = ", ".join(f"rank {rank} in {line}" for rank, line in sorted(self.waiting.items()))
            gone = [str(rank) for rank in sorted(set(self.ranks) - set(self.waiting))]
            ended = f", and rank {', '.join(gone)} has ended" if gone else ""
            return "wrong", f"the processes wait for each other: {lines}{ended}", "evaluation"
        if not self.ended:
            return "wrong", f"the run had not ended after {self.seconds:.0f} s: give it fewer steps", ""
        errors = {}
        for (rank, stream), text in self.printed.items():
            found = re.findall(r"^(?:\w+\.)*\w*(?:Error|Exception|Exit|Interrupt)\b.*$", text, re.M)
            if stream == "stderr" and found:
                lines = re.findall(r'File "(.*)", line (\d+)', text)
                own = [f"{file}:{line}" for file, line in lines if not os.path.isabs(file)]
                errors[rank] = f"rank {rank} failed in {(own or ['?'])[-1]}: {found[-1][:200]}"
        first = sorted(errors.values(), key=lambda words: "onnection" in words)
        return "wrong", first[0] if first else "a process ended with an error", "the-ten-lines"


def without_zeroed(rows):
    """Leave out passes whose gradients were set to zero before a step used them, such as one to warm up."""
    kept, pending = [], []
    for row in rows:
        if row["kind"] == "zero":
            pending = [row for row in pending if row["kind"] not in ("forward", "loss")]
        pending.append(row)
        if row["kind"] == "step":
            kept, pending = kept + pending, []
    return kept + pending


def start(words, folder, environment, log):
    return subprocess.Popen(
        words, cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log
    )


def copy_folder(target, links):
    size = 0

    def ignore(folder, names):
        nonlocal size
        inside = Path(folder).relative_to(Path.cwd())
        left_out = {name for name in names if name in IGNORED or str(inside / name) in links}
        for name in set(names) - left_out:
            path = Path(folder, name)
            size += path.stat().st_size if path.is_file() and not path.is_symlink() else 0
        if size > LARGEST_COPY:
            sys.exit("this folder holds more than 1 GiB: name the folders of your data after --link")
        return left_out

    shutil.copytree(Path.cwd(), target, symlinks=True, ignore=ignore)
    for name in links:
        if Path(name).exists():
            (target / name).symlink_to(Path(name).resolve())


def processes_of(folder, mark=""):
    """The processes of a run, known by their environment, and the CPU seconds that each has used."""
    found = {}
    for path in Path("/proc").glob("[0-9]*"):
        try:
            environment = (path / "environ").read_bytes()
            if str(folder.parent).encode() in environment and mark.encode() in environment:
                fields = (path / "stat").read_text().rpartition(")")[2].split()
                if fields[0] != "Z":
                    found[int(path.name)] = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        except OSError:
            continue  # it has ended, or is another user's
    return found


# The promises. Each returns a verdict, the reason for it, and the row of the page that helps.


def same_weights(many):
    if many.failed and not many.steps(0):
        return "not seen", "the run failed before its first step", ""
    ranks = {rank: many.steps(rank) for rank in sorted(many.ranks)}
    starts = {rank: many.rows(rank, "weights") for rank in ranks}
    compared = 0
    for other in list(ranks)[1:]:
        pairs = [*zip(starts[0], starts[other], strict=False), *zip(ranks[0], ranks[other], strict=False)]
        for mine, its in pairs:
            for what, row in (("learning rate", "reducelronplateau"), ("weight", "the-ten-lines")):
                first = differing(
                    mine.get(f"{what}s".replace("learning ", ""), {}),
                    its.get(f"{what}s".replace("learning ", ""), {}),
                )
                if first is not None:
                    if what == "weight":
                        row = how_averaged(mine, row)
                    where = f"since step {mine['step']}" if mine["step"] else "before the first step"
                    return "wrong", f"{what} {first} of rank {other} is not rank 0's {where}", row
            for forward, its_forward in zip(mine.get("forwards", []), its.get("forwards", []), strict=False):
                first = differing(forward.get("buffers", {}), its_forward.get("buffers", {}))
                if first is not None:
                    words = f"buffer {first} of rank {other} is not rank 0's in step {mine['step']}"
                    return "wrong", words, "batch-norm"
            compared += 1
        for mine, its in zip(many.rows(0, "plateau"), many.rows(other, "plateau"), strict=False):
            if mine["metric"] != its["metric"]:
                words = f"ReduceLROnPlateau gets {mine['metric']:.4g} on rank 0, {its['metric']:.4g} on rank {other}"
                return "wrong", f"{words} in {many.short(mine['line'])}", "reducelronplateau"
        if len(ranks[0]) != len(ranks[other]) and not many.failed:
            words = f"rank 0 took {len(ranks[0])} steps, rank {other} {len(ranks[other])}"
            return "wrong", words, "early-stopping-and-the-best-model"
    if not compared:
        return "not seen", "no step of an optimizer and no backward pass was seen", ""
    tensors = len(ranks[0][-1]["weights"]) if ranks[0] else 0
    return "ok", f"{tensors} tensors at {len(ranks[0])} steps", ""


def how_averaged(step, row):
    last = (step.get("forwards") or [{}])[-1]
    return "gradient-accumulation" if not last.get("syncs", True) else row


def differing(mine, its):
    """The first thing that is different in two dictionaries or lists."""
    if isinstance(mine, list):
        mine, its = dict(enumerate(mine)), dict(enumerate(its))
    return next((name for name in mine if name in its and mine[name] != its[name]), None)


def own_batches(one, many, compared):
    forwards = {rank: many.rows(rank, "forward") for rank in sorted(many.ranks)}
    row = "a-shuffled-dataloader" if many.rows(0, "loader") else "no-dataloader"
    for mine, its in combinations(forwards, 2):
        pairs = list(zip(forwards[mine], forwards[its], strict=False))
        for name in {forward["model"] for forward, _ in pairs}:
            calls = [(a, b) for a, b in pairs if a["model"] == b["model"] == name]
            same = sum(a["batch"] == b["batch"] for a, b in calls)
            if calls and 2 * same >= len(calls):
                words = f"rank {mine} and rank {its} got the same batch in {same} of {len(calls)} passes"
                return "wrong", f"{words} through {name}", row
            drawn = [a["random"] == b["random"] for a, b in calls if a["draws"] and b["draws"]]
            if drawn and 2 * sum(drawn) >= len(drawn):
                words = f"rank {mine} and rank {its} draw the same random numbers (dropout) in {name}"
                return "wrong", words, "seeds-and-dropout"
    if (repeated := repeated_order(many)) is not None:
        return "wrong", f"two epochs had the same order: set_epoch({repeated}) was never changed", row
    if not any(forwards.values()):
        return "not seen", "no model was called with tensors", ""
    first, each = epochs(one, [0]), epochs(compared, sorted(compared.ranks))
    size = sum(
        forward["shape"][0] for rank in compared.ranks for forward in compared.steps(rank)[0]["forwards"]
    )
    if not first or not each:
        steps = matching(one, compared)
        if steps and all(steps):
            return "ok", f"the examples of {len(steps)} steps are those of one process", ""
        return (
            "not seen",
            "no two processes got the same batch; without a DataLoader, an epoch is not seen",
            row,
        )
    found = [once(first[0][dim], each[0][dim], compared.world_size, size) for dim in (0, 1)]
    best = min(found, key=lambda verdict: ["ok", "wrong", "not seen"].index(verdict[0]))
    return (*best, row)


def once(first, each, processes, size):
    """Compare how often the examples of an epoch were used by one process and by several."""
    more = each.total() - first.total()
    twice = sum(max(0, each[x] - max(first[x], 1)) for x in each)
    new = sum(each[x] for x in each if x not in first)
    missing = (first - each).total()
    if not first:
        return "not seen", "the batches are too large to look at each example"
    if more >= size or twice > max(0, more):
        return (
            "wrong",
            f"an epoch of one process uses {first.total()} examples, of {processes}: {each.total()}, {twice} of them again",
        )
    if new == 0 and missing >= size:
        return "wrong", f"{missing} of {first.total()} examples are used by no process in an epoch"
    if 2 * new > each.total():
        return "not seen", "random augmentation changes each example; --exact turns it off"
    return "ok", f"{each.total()} examples in an epoch, {first.total()} on one process"


def epochs(run, ranks):
    """For each epoch how often each example was used by these ranks, if rows or columns are examples."""
    result = []
    for rank in ranks:
        epoch, is_new = -1, None
        for row in run.ranks[rank]:
            if row["kind"] == "loader":
                is_new = True
            if row["kind"] == "forward" and is_new is not None:
                epoch, is_new = epoch + is_new, False
                result += [(Counter(), Counter())] if len(result) <= epoch else []
                for counter, samples in zip(result[epoch], row["samples"], strict=False):
                    counter.update(samples)
    return result


def repeated_order(run):
    """The epoch that a shuffling sampler was given twice, in training."""
    given, last = [], None
    for row in run.ranks[0]:
        if row["kind"] == "sampler":
            last = row
        elif row["kind"] == "forward" and last:
            given, last = [*given, last["epoch"]] if last["shuffle"] else given, None
    return next((epoch for epoch, number in Counter(given).items() if number > 1), None)


def matching(one, many):
    """For each early step whether the processes together used the examples that one process used."""
    result = []
    for mine, *theirs in zip(one.steps(0), *map(many.steps, sorted(many.ranks)), strict=False):
        result.append(False)
        for dim in (0, 1):
            counters = []
            for steps in ([mine], theirs):
                passes = [forward["samples"] for step in steps for forward in step["forwards"]]
                counters.append(sum((Counter(each[dim]) for each in passes if len(each) > dim), Counter()))
            result[-1] |= bool(counters[0]) and counters[0] == counters[1]
    return result


def same_gradients(one, many, exact):
    if many.failed:
        return "not seen", f"the run on {many.world_size} processes failed", ""
    ranks = [many.steps(rank) for rank in sorted(many.ranks)]
    mine = one.steps(0)
    sizes = [
        [sum(f["shape"][dim] for f in step["forwards"] if len(f["shape"]) > dim) for dim in (0, 1)]
        for step in (mine[0], *[rank[0] for rank in ranks])
    ]
    together = [sum(size[dim] for size in sizes[1:]) for dim in (0, 1)]
    if sizes[0][0] != together[0] and sizes[0][1] != together[1]:
        words = (
            f"the first step of one process uses {sizes[0][0]} examples, of {many.world_size}: {together[0]}"
        )
        return (
            "wrong",
            f'{words}; if that is meant, give --one "OPTIONS" with the batch size of all',
            "the-batch-size-used-later",
        )
    starts = [run.rows(0, "weights") for run in (one, many)]
    if starts[0] and starts[1] and starts[0][0]["weights"] != starts[1][0]["weights"]:
        return (
            "not seen",
            "one process and several begin with different weights: set a seed first",
            "seeds-and-dropout",
        )
    is_same = matching(one, many)
    limit, count = (1e-9, 12) if exact else (1e-2, EARLY_STEPS)
    worst, compared, noisy = 0.0, 0, False
    for number, (step, *theirs) in enumerate(zip(mine, *ranks, strict=False)):
        if number >= count or not is_same[number]:
            break
        forwards = step["forwards"] + [forward for each in theirs for forward in each["forwards"]]
        noisy = any(forward["draws"] or (forward["has_norm"] and not exact) for forward in forwards)
        loss = sum(each["loss"] for each in theirs) / len(theirs)
        what, (name, off) = max(
            (
                (what, furthest(step.get(what, {}), theirs[0].get(what, {})))
                for what in ("gradients", "values")
            ),
            key=lambda found: found[1][1],
        )
        if off > limit and not noisy:
            words = f"{what} of {name} differ by {off:.1e} in step {number + 1} (allowed: {limit:.0e})"
            return "wrong", words, row_of(step, theirs)
        if noisy and abs(loss - step["loss"]) > 0.3 * abs(step["loss"]):
            words = f"the mean loss of step {number + 1} is {loss:.4g}, one process's is {step['loss']:.4g}"
            return "wrong", words, "an-incomplete-last-batch"
        if off > limit:
            break
        worst, noisy = max(worst, off), False
        compared = number + 1
    if not compared and not noisy:
        words = (
            "step 1 uses other examples (order or augmentation), so only the number of examples was compared"
        )
        return (
            "not seen",
            words + ("" if exact else "; try --exact"),
            "a-shuffled-dataloader" if many.rows(0, "loader") else "no-dataloader",
        )
    if not compared:
        return (
            "not seen",
            "dropout or BatchNorm: only the first loss was compared, within 30%"
            + ("" if exact else "; try --exact"),
            "seeds-and-dropout",
        )
    return (
        "ok",
        f"{compared} steps with the same examples differ by at most {worst:.0e} (allowed: {limit:.0e})",
        "",
    )


def row_of(step, theirs):
    if any(forward["has_norm"] for forward in step["forwards"]):
        return "batch-norm"
    sizes = {sum(forward["shape"][0] for forward in each["forwards"]) for each in theirs}
    if len(sizes) > 1:
        return "an-incomplete-last-batch"
    if step.get("rates") != theirs[0].get("rates"):
        return "a-learning-rate-schedule"
    return "gradient-accumulation" if len(theirs[0]["forwards"]) > 1 else "the-ten-lines"


def furthest(mine, its):
    """The tensor that differs most, relative to the norm of all."""
    norm = sum(numbers[3] ** 2 for numbers in mine.values()) ** 0.5 or 1.0
    both = [name for name in mine if name in its]
    off = {name: max(abs(a - b) for a, b in zip(mine[name], its[name], strict=True)) / norm for name in both}
    name = max(off, key=off.get, default="")
    return name, off.get(name, 0.0)


def same_after_kill(folder, arguments, many):
    total, runs, words = len(many.steps(0)), [], []
    final = many.steps(0)[-1]["weights"]
    for name, launchers in (("kill", 1), ("two launchers", 2)):
        step = random.randint(max(1, total // 2), total - 1)
        rank = random.randrange(many.world_size)
        run = Run(folder, arguments, name, kill=(rank, step), launchers=launchers)
        runs.append(run)
        where = f"rank {rank} was killed at step {step} of {total}{' on two launchers' * (launchers - 1)}"
        row = "snapshots-for-your-script" if launchers == 1 else "many-machines"
        if run.failed:
            return ("wrong", f"{where}, and then {run.reason()[1]}", row), runs
        steps = run.steps(0)
        first = differing(final, steps[-1]["weights"]) if steps else "?"
        if first is not None:
            if launchers == 1:
                again = Run(folder, arguments, "again")
                if again.failed or differing(final, again.steps(0)[-1]["weights"]) is not None:
                    return (
                        "not seen",
                        "two runs without a kill end with different weights",
                        "seeds-and-dropout",
                    ), runs
            return ("wrong", f"{where}, and {first} differs at the end", row), runs
        begin = "from the beginning" if len(steps) == total else f"at step {total - len(steps) + 1}"
        words.append(f"{where}: the run started again {begin}")
    return ("ok", "; ".join(words), ""), runs


def same_collectives(runs):
    for run in runs:
        calls = {rank: run.rows(rank, "collective") for rank in sorted(run.ranks)}
        for mine, its in combinations(calls, 2):
            both = [
                [call for call in calls[rank] if {mine, its} <= set(call["ranks"])] for rank in (mine, its)
            ]
            for a, b in zip(*both, strict=False):
                if a["what"] != b["what"]:
                    words = (
                        f"rank {mine} calls {a['what']} in {run.short(a['line'])}, while rank {its} calls "
                    )
                    return "wrong", f"{words}{b['what']} in {run.short(b['line'])}", "the-ten-lines"
            if len(both[0]) != len(both[1]) and not run.failed:
                longer, shorter = (0, 1) if len(both[0]) > len(both[1]) else (1, 0)
                extra = both[longer][len(both[shorter])]
                who = (mine, its)[longer]
                return (
                    "wrong",
                    f"only rank {who} calls {extra['what']} in {run.short(extra['line'])}",
                    "evaluation",
                )
        if run.failed:
            return run.reason()
    number = len(runs[0].rows(0, "collective"))
    return "ok", f"{number} calls of torch.distributed by each process, besides DDP's own", ""


DELIBERATE = re.compile(r"\b(rank|process|worker|gpu|cuda|device|node|host|pid)", re.I)


def one_writer(many):
    files = {}
    for rank in many.ranks:
        for path in {row["path"] for row in many.rows(rank, "file")}:
            path = re.sub(r"events\.out\.tfevents.*", "events.out.tfevents", many.short(path))
            if not path.startswith(("/dev/", "/proc/", "/sys/")) and not re.search(
                r"__pycache__|\.lock$", path
            ):
                files.setdefault(path, set()).add(rank)
    for path, ranks in files.items():
        if len(ranks) > 1:
            return "wrong", f"ranks {sorted(ranks)} write {path}", "saving-weights"
    lines = {}
    for (rank, stream), text in many.printed.items():
        for line in re.split(r"[\r\n]+", text):
            pattern = re.sub(r"[-+]?\d[\d.:e+-]*|nan|inf", "#", line.strip())
            is_bar = "%|" in line or "it/s" in line
            if is_bar if stream == "stderr" else re.search(r"\w", line) and not DELIBERATE.search(line):
                lines.setdefault("progress bar" if is_bar else pattern, {}).setdefault(rank, line.strip())
    for found in lines.values():
        if len(found) > 1:
            return (
                "wrong",
                f"ranks {sorted(found)} print: {next(iter(found.values()))[:90]}",
                "printing-and-progress-bars",
            )
    return "ok", f"{len(files)} files, each written by one process", ""


if __name__ == "__main__":
    main()
