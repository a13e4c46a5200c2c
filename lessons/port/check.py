"""Proves that a port to DDP is right: runs your script as it is, and compares what its processes do.

    python lessons/port/check.py -- my.py --epochs 2

Start it where you start your script, and give options that make a run short: two epochs of a few steps.
torchrun runs the script on one process, on two, on two of which one is killed (SIGKILL) at a random step, and
under two launchers, of which one loses a process. A line for each promise appears when its verdict is known:
`ok`, `wrong` or `not seen` (nothing could be compared), with the reason and the row of lessons/pages/port.md
that helps.

Your script and its folder stay as they are: each run gets a copy of the current folder, so it finds no
snapshot of another run. Folders that you name after --link, for example those of data sets, are linked. Files
that the script writes at absolute paths are not kept apart. With fewer GPUs than processes, the runs use the
CPU. `torch.compile` is off.

--exact compares one process and several to nine digits. In these two runs everything is float64, the seed is
0 until your script sets one, dropout and autocast are off, and the augmentation of an example depends only on
its index.
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
from itertools import combinations, pairwise
from pathlib import Path

import torch
import torch.distributed as dist

HERE = Path(__file__).resolve().parent
PAGE = "lessons/pages/port.md"
PROMISES = {
    "weights": "all processes hold the same weights, buffers and learning rates",
    "output": "only one process prints and writes what is there once",
    "batches": "each example is used once in an epoch, and no two processes get the same batch",
    "gradients": "losses and gradients are those of one process",
    "restarts": "if a process is killed, the weights at the end are the same",
    "collectives": "all processes call the same collectives, and none waits forever",
}
SITECUSTOMIZE = """
import importlib.machinery, importlib.util, os, sys

def load(name, path):
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module

class AfterTorch:
    # Finds torch as Python would have found it, and begins to watch when it has been imported.
    def find_spec(self, name, path, target=None):
        if name == "torch":
            sys.meta_path.remove(self)
            spec = importlib.util.find_spec("torch")
            execute = spec.loader.exec_module
            def both(module):
                execute(module)
                load("port_watch", {watch!r}).begin({seen!r})
            spec.loader.exec_module = both
            return spec

if "RANK" in os.environ:
    sys.meta_path.insert(0, AfterTorch())
paths = [path for path in sys.path if path != {inside!r}]
if spec := importlib.machinery.PathFinder.find_spec("sitecustomize", paths):
    load("sitecustomize", spec.origin)  # the one that Python would have found
"""
NOT_COPIED = (".git", ".venv", "venv", "node_modules", "__pycache__")
LARGEST_COPY = 1 << 30
QUIET = 5  # seconds: if nothing has moved for so long, check.py looks where the processes wait
PATIENCE = 60  # seconds that a process may wait outside torch, for example for a download
EARLY = 3  # steps to compare without --exact: after them, float32 has rounded too differently


def main():
    words = [*sys.argv[1:], "--"]
    split = words.index("--")
    parser = argparse.ArgumentParser(
        usage="%(prog)s [options] -- SCRIPT [its options]",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--exact", action="store_true", help="compare one process and several to nine digits")
    parser.add_argument("--steps", type=int, default=0, help="end each run after this many optimizer steps")
    parser.add_argument("--one", default="", metavar="OPTIONS", help="options of the script on one process")
    parser.add_argument("--link", nargs="*", default=["data"], help="folders to link (default: data)")
    parser.add_argument(
        "--only", nargs="*", default=list(PROMISES), choices=PROMISES, help="promises to check"
    )
    parser.add_argument("--limit", type=int, default=600, help="seconds that a run may take")
    arguments = parser.parse_args(words[:split])
    arguments.script = words[split + 1 : -1]
    script = Path.cwd() / (arguments.script or ["."])[0]
    if not script.is_file() or not script.resolve().is_relative_to(Path.cwd()):
        parser.error("name a script of this folder after --, as in: check.py -- my.py --epochs 2")
    arguments.script[0] = os.path.relpath(arguments.script[0])
    words = set()
    with tempfile.TemporaryDirectory(prefix="port-check-") as folder:
        for name, (word, reason, row) in check(Path(folder).resolve(), arguments):
            number = list(PROMISES).index(name) + 1
            row = f" ({PAGE}#{row})" if row else ""
            print(f"{word:8}  {number}. {PROMISES[name]}\n          {reason}{row}", flush=True)
            words.add(word)
    sys.exit("wrong" in words)


def ok(reason):
    return "ok", reason, ""


def wrong(reason, row):
    return "wrong", reason, row


def unseen(reason, row=""):
    return "not seen", reason, row


def check(folder, arguments):
    """Yields the promises and their verdicts, one after the other."""
    only, exact = arguments.only, arguments.exact
    many = Run(folder, arguments, "many")
    runs = [many]
    if "weights" in only:
        yield "weights", same_weights(many)
    if "output" in only:
        yield "output", one_writer(many)
    if {"batches", "gradients"} & set(only):
        one = Run(folder, arguments, "one", processes=1, exact=exact)
        if one.failed and exact:
            print(f"--exact fails on this script, so it is left out: {one.reason()[1]}")
            one, exact = Run(folder, arguments, "one again", processes=1), False
        if one.failed or not one.steps(0):
            reason = (
                one.reason()[1] if one.failed else "it took no step: is there a snapshot of an earlier run?"
            )
            sys.exit(f"the script does not work on one process: {reason}")
        same = Run(folder, arguments, "many exact", exact=True) if exact else many
        if "batches" in only:
            yield "batches", own_batches(one, many, same)
        if "gradients" in only:
            yield "gradients", same_gradients(one, same, exact)
    if "restarts" in only:
        yield "restarts", same_after_kill(folder, arguments, many, runs)
    if "collectives" in only:
        yield "collectives", same_collectives(runs)


class Run:
    """The script, run to its end in a copy of the folder, and what its processes have seen."""

    def __init__(self, folder, arguments, name, processes=None, exact=False, kill=None, launchers=1):
        print(f"running: {name} ...", file=sys.stderr, flush=True)
        self.world_size = processes = processes or arguments.processes
        self.folder = folder / name.replace(" ", "-")
        self.work, self.seen, self.logs = (self.folder / name for name in ("work", "seen", "logs"))
        copy_folder(self.work, arguments.link)
        inside, temporary = self.folder / "inside", self.folder / "tmp"
        for path in (self.seen, inside, temporary):
            path.mkdir()
        words = {"inside": str(inside), "watch": str(HERE / "watch.py"), "seen": str(self.seen)}
        (inside / "sitecustomize.py").write_text(SITECUSTOMIZE.format(**words))
        environment = {
            name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE")
        }
        paths = filter(None, [str(inside), environment.get("PYTHONPATH")])
        environment |= {"PYTHONPATH": os.pathsep.join(paths), "TMPDIR": str(temporary)}
        environment |= {"TORCHDYNAMO_DISABLE": "1"}
        # A restart needs a new store. Without restarts, torchrun's own store is safer: for a new one it first
        # looks for a free port, which another program may take before rank 0 listens there.
        environment |= {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"} if kill else {}
        environment |= {"PORT_EXACT": "1"} if exact else {}
        environment |= {"PORT_STEPS": str(arguments.steps)} if arguments.steps else {}
        environment |= {"PORT_KILL": f"{kill[0]} {kill[1]} {self.folder}/killed"} if kill else {}
        environment.setdefault("OMP_NUM_THREADS", "1")
        gpus = [str(gpu) for gpu in range(torch.cuda.device_count())]
        store = dist.TCPStore(
            "localhost", 0, is_master=True, wait_for_workers=False
        )  # the system's free port
        self.launchers, self.waiting, self.stacks, begin = [], {}, "", time.monotonic()
        self.limit, self.is_slow = arguments.limit, False
        for node in range(launchers):
            share = range(node * processes // launchers, (node + 1) * processes // launchers)
            visible = ",".join(gpus[i] for i in share) if len(gpus) >= processes else ""
            torchrun = (
                f"-m torch.distributed.run --nnodes {launchers} --nproc-per-node {len(share)} --redirects 3"
            )
            torchrun += f" --max-restarts {3 if kill else 0} --rdzv-backend c10d --rdzv-id check"
            torchrun += (
                f" --rdzv-endpoint localhost:{store.port} --rdzv-conf is_host=0,join_timeout=60 --log-dir"
            )
            words = [sys.executable, *torchrun.split(), str(self.logs / str(node)), *arguments.script]
            words += arguments.one.split() if processes == 1 else []
            with open(self.folder / f"launcher{node}", "w") as log:
                self.launchers.append(
                    start(words, self.work, environment | {"CUDA_VISIBLE_DEVICES": visible}, log)
                )
        try:
            self.ended = self.wait(arguments.limit)
        finally:
            self.seconds = time.monotonic() - begin
            for pid in processes_of(self.seen):
                os.kill(pid, signal.SIGKILL)
            for launcher in self.launchers:
                launcher.kill()
                launcher.wait()
        self.failed = not self.ended or any(launcher.returncode for launcher in self.launchers)
        self.read()
        shutil.rmtree(self.work)

    def wait(self, limit):
        """Wait for the end. If nothing moves, end the run, and keep the line in which each process waits."""
        begin = moved = time.monotonic()
        last, used = None, 0.0
        while any(launcher.poll() is None for launcher in self.launchers):
            time.sleep(0.2)
            now = time.monotonic()
            running = processes_of(self.seen, "RANK=")
            state = sum(path.stat().st_size for path in self.seen.glob("*.seen")), len(running)
            if state != last or sum(running.values()) > used + 0.1 or not running:
                last, used, moved = state, sum(running.values()), now
            if now - moved > QUIET or now - begin > limit:
                stacks = self.read_stacks(running)
                hangs = bool(stacks) and all(is_inside for _, is_inside in stacks.values())
                if hangs or now - moved > PATIENCE or now - begin > limit:
                    self.waiting = {rank: line for rank, (line, _) in stacks.items()}
                    self.is_slow = not hangs and now - moved <= PATIENCE
                    return False
        return True

    def read_stacks(self, running):
        """For each rank that runs: the line of the script in which it is, and whether it is inside torch."""
        ranks = {path: map(int, path.stem.split(".")) for path in self.seen.glob("*.stack")}
        ranks = {
            path: rank
            for path, (rank, pid) in ranks.items()
            if pid in running and not os.kill(pid, signal.SIGURG)
        }
        time.sleep(0.5)
        stacks = {}
        for path, rank in ranks.items():
            last = path.read_text().rpartition("hread 0x")[2]  # the main thread comes last
            self.stacks += last
            frames = re.findall(r'File "(.*)", line (\d+) in', last) or [("?", "0")]
            own = [frame for frame in frames if str(self.work) in frame[0] or frame[0][0] not in f"{os.sep}<"]
            stacks[rank] = self.short(":".join((own or frames)[0])), f"{os.sep}torch{os.sep}" in frames[0][0]
        return stacks

    def short(self, words):
        return words.replace(f"{self.work}{os.sep}", "")

    def read(self):
        """What the ranks have written down in their last attempt, and what they have printed in all."""
        self.ranks = {}
        for path in self.seen.glob("*.seen"):
            rows = [json.loads(line) for line in path.read_text().splitlines() if line.endswith("}")]
            if rows and rows[0]["time"] > self.ranks.get(rows[0]["rank"], [{"time": 0}])[0]["time"]:
                self.ranks[rows[0]["rank"]] = without_zeroed(rows)
        self.ranks = dict(sorted(self.ranks.items()))
        self.printed = {}
        for path in sorted(self.logs.glob("*/*/attempt_*/*/std*.log")):
            text = self.short(path.read_text(errors="replace"))
            self.printed[int(path.parent.name), path.stem] = text

    def rows(self, rank, kind):
        return [row for row in self.ranks.get(rank, []) if row["kind"] == kind]

    def steps(self, rank):
        """The steps of a rank, each with its forward passes and the sum of its losses."""
        steps, forwards, loss = [], [], 0.0
        for row in self.ranks.get(rank, []):
            if row["kind"] == "forward":
                forwards.append(row)
            elif row["kind"] == "loss":
                loss += row["loss"]
            elif row["kind"] == "step":
                steps.append(row | {"forwards": forwards, "loss": loss})
                forwards, loss = [], 0.0
        return steps

    def reason(self):
        """Why the run has failed, with the row that fits what the processes were doing then."""
        if self.is_slow:
            lines = [f"rank {rank} is in {line}" for rank, line in sorted(self.waiting.items())]
            reason = f"the run has not ended after {self.limit} s (--limit): {', '.join(lines)}"
            return unseen(f"{reason}; let it do less, or give it more time")
        if self.waiting:
            lines = [f"rank {rank} waits in {line}" for rank, line in sorted(self.waiting.items())]
            lines += [f"rank {rank} has ended" for rank in self.ranks if rank not in self.waiting]
            reason, text = f"the run hangs: {', '.join(lines)}", self.stacks
        else:
            reason, text = f"the run failed after {self.seconds:.0f} s", ""
            # If a process fails, its peers fail too, because their connections are closed.
            for (rank, _), text in sorted(self.printed.items(), key=lambda item: "onnection" in item[1]):
                if found := re.findall(r"^(?:\w+\.)*\w*(?:Error|Exception|Exit|Interrupt)\b.*$", text, re.M):
                    lines = [":".join(line) for line in re.findall(r'File "(.*)", line (\d+)', text)]
                    own = [line for line in lines if not line.startswith("/")] or lines or ["?"]
                    reason = f"rank {rank} failed in {own[-1]}: {found[-1][:200]}"
                    gone = [str(other) for other in self.ranks if not self.printed.get((other, "stderr"))]
                    if "onnection" in found[-1] and gone:
                        reason = f"rank {rank} waits in {own[-1]}, but rank {', '.join(gone)} has ended"
                    break
        if "FileNotFound" in reason or "FileExists" in reason:
            return wrong(reason, "downloads-and-preparations")
        return wrong(reason, "an-incomplete-last-batch" if "backward" in text else "evaluation")


def start(words, folder, environment, log):
    return subprocess.Popen(
        words, cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log
    )


def copy_folder(target, links):
    here, size = Path.cwd(), 0

    def ignore(folder, names):
        nonlocal size
        paths = {name: Path(folder, name) for name in names}
        left_out = {
            name for name in names if name in NOT_COPIED or str(paths[name].relative_to(here)) in links
        }
        size += sum(path.lstat().st_size for name, path in paths.items() if name not in left_out)
        if size > LARGEST_COPY:
            sys.exit("this folder holds more than 1 GiB: name the folders of your data after --link")
        return left_out

    shutil.copytree(here, target, symlinks=True, ignore=ignore)
    for name in filter(os.path.exists, links):
        (target / name).symlink_to(Path(name).resolve())


def processes_of(folder, mark=""):
    """The processes of a run, known by their environment, and the CPU seconds that each has used."""
    found = {}
    for path in Path("/proc").glob("[0-9]*"):
        try:
            environment, stat = (path / "environ").read_bytes(), (path / "stat").read_text()
        except OSError:
            continue  # it has ended, or is another user's
        if str(folder.parent).encode() in environment and mark.encode() in environment:
            fields = stat.rpartition(")")[2].split()
            found[int(path.name)] = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return found


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


# The promises. Each function returns a verdict, its reason, and the row of the page.


def same_weights(many):
    ranks = {rank: many.rows(rank, "weights") + many.steps(rank) for rank in many.ranks}
    if not ranks.get(0) or not many.steps(0):
        reason = "no step of an optimizer was seen, and no change of the weights by hand"
        return many.reason() if many.failed else unseen(reason)
    for other in list(ranks)[1:]:
        for mine, its in zip(ranks[0], ranks[other], strict=False):
            when = f"of rank {other} is not rank 0's since step {mine['step']}".replace(
                "since step 0", "at the start"
            )
            if mine.get("rates") != its.get("rates"):
                return wrong(f"the learning rate {when}", "a-learning-rate-in-a-plain-variable")
            if name := differing(mine["weights"], its["weights"]):
                synced = all(forward["syncs"] for forward in mine.get("forwards", [])[-1:])
                return wrong(f"{name} {when}", "the-ten-lines" if synced else "gradient-accumulation")
            for forwards in zip(mine.get("forwards", []), its.get("forwards", []), strict=False):
                if name := differing(*(forward.get("buffers", {}) for forward in forwards)):
                    return wrong(f"the buffer {name} {when}", "batch-norm")
        for mine, its in zip(many.rows(0, "closure"), many.rows(other, "closure"), strict=False):
            if str(mine["loss"]) != str(its["loss"]):
                values = f"{mine['loss']:.6g} on rank 0, {its['loss']:.6g} on rank {other}"
                return wrong(f"the closure of the optimizer returns {values}", "an-optimizer-with-a-closure")
        for mine, its in zip(many.rows(0, "plateau"), many.rows(other, "plateau"), strict=False):
            if str(mine["metric"]) != str(its["metric"]):  # as text, because nan is not equal to nan
                values = f"{mine['metric']:.4g} on rank 0, {its['metric']:.4g} on rank {other}"
                return wrong(
                    f"ReduceLROnPlateau gets {values} in {many.short(mine['line'])}", "reducelronplateau"
                )
        if len(ranks[0]) != len(ranks[other]) and not many.failed:
            numbers = f"rank 0 took {len(many.steps(0))} steps, rank {other} {len(many.steps(other))}"
            return wrong(numbers, "early-stopping-and-the-best-model")
    words = "" if ranks[0][-1].get("rates") else "; no optimizer was seen, and so no learning rate"
    return ok(f"{len(ranks[0][-1]['weights'])} tensors at {len(many.steps(0))} steps{words}")


def differing(mine, its):
    return next((name for name in mine if mine[name] != its.get(name)), None)


def own_batches(one, many, same):
    """`many` is the script as it is, `same` the run to compare with one process's."""
    row = "a-shuffled-dataloader" if many.rows(0, "loader") else "no-dataloader"
    for first, second in combinations(many.ranks, 2):
        pairs = list(zip(many.rows(first, "forward"), many.rows(second, "forward"), strict=False))
        for model in {mine["model"] for mine, _ in pairs}:
            calls = [(mine, its) for mine, its in pairs if mine["model"] == its["model"] == model]
            equal = sum(mine["batch"] == its["batch"] for mine, its in calls)
            if calls and 2 * equal >= len(calls):
                return wrong(
                    f"rank {first} and {second} got the same batch in {equal} of {len(calls)} passes", row
                )
            drawn = [mine["random"] == its["random"] for mine, its in calls if mine["draws"] and its["draws"]]
            if drawn and 2 * sum(drawn) >= len(drawn):
                words = f"rank {first} and {second} draw the same random numbers, for example for dropout"
                return wrong(words, "seeds-and-dropout")
    orders, sampler = Counter(), None
    for seen in many.ranks.get(0, []):
        if seen["kind"] == "sampler":
            sampler = seen
        elif seen["kind"] == "forward" and sampler:  # so it is the sampler of the training examples
            orders[sampler["epoch"]] += sampler["shuffle"]
            sampler = None
    if max(orders.values(), default=0) > 1:
        return wrong("two epochs have the same order: set_epoch was not called with another number", row)
    if not many.rows(0, "forward"):
        return unseen("no model was called with tensors")
    if not (is_same := matching(one, same)):
        return unseen("several processes took no step")
    if all(is_same):
        return ok(f"the examples of each of {len(is_same)} steps are those of one process")
    first = [examples([run.steps(rank)[0] for rank in run.ranks]) for run in (one, same)]
    dim = int(first[0][0] != first[1][0] and first[0][1] == first[1][1])  # whether columns are the examples
    alone, together = first_epoch(one, dim), first_epoch(same, dim)
    if not alone or not together:
        return unseen("no two processes got the same batch; an epoch is only seen with a DataLoader", row)
    word, reason, _ = once(alone, together, same, first[1][dim])
    return word, reason, "" if word == "ok" else row


def first_epoch(run, dim):
    """How often each row, or each column, of the batches was used in the first epoch by all ranks."""
    counts = Counter()
    for rank in run.ranks:
        loaders = [place for place, seen in enumerate(run.ranks[rank]) if seen["kind"] == "loader"]
        epochs = [run.ranks[rank][a:b] for a, b in pairwise([*loaders, None])]
        epochs = [[seen for seen in epoch if seen["kind"] == "forward"] for epoch in epochs]
        for forward in next(filter(None, epochs), []):
            counts.update(*forward["examples"][dim : dim + 1])
    return counts


def once(alone, together, run, batch):
    """Compare an epoch's examples. A sampler may repeat some to fill the last batch, or drop some."""
    more = together.total() - alone.total()
    again = sum(max(0, together[example] - max(alone[example], 1)) for example in together)
    new = sum(together[example] for example in together if example not in alone)
    missing = (alone - together).total()
    numbers = (
        f"in an epoch, one process uses {alone.total()} examples, {run.world_size} use {together.total()}"
    )
    natural = alone.total() - len(
        alone
    )  # those that one process has used again: the data may hold them twice
    if more >= batch or again > max(0, more) + natural:
        return wrong(f"{numbers}, {again} of them again" if again else numbers, "")
    if not new and missing >= batch:
        return wrong(f"{numbers}, {missing} are missing", "")
    if 2 * new > together.total():
        return unseen("the examples are not those of one process: augmentation? try --exact", "")
    return ok(numbers)


def matching(one, many):
    """For each step whether the processes together used the examples that one process used."""
    result = []
    for mine, *theirs in zip(one.steps(0), *map(many.steps, many.ranks), strict=False):
        counts = []
        for steps in ([mine], theirs):
            passes = [forward["examples"] for step in steps for forward in step["forwards"]]
            passes = [both + [[]] * (2 - len(both)) for both in passes]
            counts.append([Counter(x for both in passes for x in both[dim]) for dim in (0, 1)])
        result.append(any(a and a == b for a, b in zip(*counts, strict=True)))
    return result


def same_gradients(one, many, exact):
    ranks, is_same = [many.steps(rank) for rank in many.ranks], matching(one, many)
    if not is_same:
        return unseen("several processes took no step")
    early = 1 if one.rows(0, "loader") else EARLY  # without a DataLoader, the sizes of batches may be random
    alone, together = (
        [examples(steps) for steps in zip(*run, strict=False)][:early] for run in ([one.steps(0)], ranks)
    )
    if [[rows * len(ranks), columns * len(ranks)] for rows, columns in alone] == together:
        words = f"a step of one process uses {alone[0][0]} examples, of {len(ranks)}: {together[0][0]}"
        words += '; if you mean that, give the batch size of all with --one "OPTIONS"'
        return wrong(words, "the-batch-size-used-later")
    if differing(*(run.rows(0, "weights")[0]["weights"] for run in (one, many))):
        return unseen("the weights at the start are others: no seed was set", "seeds-and-dropout")
    limit, count = (1e-9, 12) if exact else (1e-2, EARLY)
    advice = "" if exact else "; try --exact"
    furthest, compared = 0.0, 0
    for number, (mine, *theirs) in enumerate(list(zip(one.steps(0), *ranks, strict=False))[:count], 1):
        if not is_same[number - 1]:
            break
        if mine.get("rates") != theirs[0].get("rates"):
            words = (
                f"the learning rate of step {number} is {theirs[0]['rates']}, one process's {mine['rates']}"
            )
            return wrong(words, "a-learning-rate-schedule")
        forwards = mine["forwards"] + [forward for step in theirs for forward in step["forwards"]]
        has_norm = any(forward["has_norm"] for forward in forwards)
        off, name = max(distance(mine, theirs[0], "gradients"), distance(mine, theirs[0], "values"))
        loss = sum(step["loss"] for step in theirs) / len(theirs)
        losses = f"the mean loss of step {number} is {loss:.4g}, one process's {mine['loss']:.4g}"
        if off > limit and abs(len(theirs) * loss - mine["loss"]) < 0.05 * abs(mine["loss"]):
            return wrong(losses, "a-loss-that-is-a-sum")
        draws = any(forward["draws"] for forward in forwards)
        if off > limit and (draws or (has_norm and not exact)):
            if abs(loss - mine["loss"]) > 0.3 * abs(mine["loss"]):
                return wrong(losses, "the-loss-that-is-printed")
            cause = "the model draws random numbers" if draws else "there is batch norm"
            row = "noise-in-the-model" if exact else "seeds-and-dropout" if draws else "batch-norm"
            return unseen(f"{cause}; the loss agrees within 30%{advice}", row)
        if off > limit:
            words = f"{name} differ by {off:.1e} in step {number} (allowed: {limit:.0e})"
            unequal = len({tuple(examples([step])) for step in theirs}) > 1
            return wrong(
                words,
                "an-incomplete-last-batch" if unequal else "batch-norm" if has_norm else "the-ten-lines",
            )
        furthest, compared = max(furthest, off), number
    if not compared:
        row = "a-shuffled-dataloader" if many.rows(0, "loader") else "no-dataloader"
        row = "noise-in-the-model" if exact else row
        return unseen(f"step 1 uses other examples, because of order, augmentation or noise{advice}", row)
    return ok(
        f"the first {compared} steps, with the same examples, differ by {furthest:.0e} (allowed: {limit:.0e})"
    )


def examples(steps):
    """How many rows and columns went into the models in these steps."""
    shapes = [forward["shape"] for step in steps for forward in step["forwards"]]
    return [sum(shape[dim] for shape in shapes if len(shape) > dim) for dim in (0, 1)]


def distance(mine, its, what):
    """How far apart the tensors of two runs are, relative to the norm of all, and which is furthest."""
    mine, its = mine.get(what, {}), its.get(what, {})
    norm = sum(numbers[-1] ** 2 for numbers in mine.values()) ** 0.5 or 1.0
    both = [name for name in mine if name in its]
    found = [
        (max(abs(a - b) for a, b in zip(mine[x], its[x], strict=True)) / norm, f"{what} of {x}") for x in both
    ]
    return max(found, default=(0.0, what))


def same_after_kill(folder, arguments, many, runs):
    total, words = len(many.steps(0)), []
    if many.failed or total < 2:
        return unseen("the run without a kill must take at least two steps")
    final = many.steps(0)[-1]["weights"]
    earliest = max(total // 2, first_write(many) + 1)  # a kill before the first snapshot says little about it
    for name, launchers in (("kill", 1), ("two launchers", 2)):
        rank, step = random.randrange(many.world_size), random.randint(min(earliest, total - 1), total - 1)
        run = Run(folder, arguments, name, kill=(rank, step), launchers=launchers)
        runs.append(run)
        words.append(
            f"rank {rank} was killed at step {step} of {total}{' under two launchers' * (launchers - 1)}"
        )
        row = "snapshots-for-your-script" if launchers == 1 else "many-machines"
        if run.failed:
            return wrong(f"{words[-1]}, and then {run.reason()[1]}", row)
        # With --steps, a run that goes on from a snapshot ends later than the one without a kill.
        steps, name = run.steps(0), "no weight"
        while steps and (name := differing(final, steps[-1]["weights"])) and arguments.steps:
            steps.pop()
        if name:
            again = Run(folder, arguments, "again") if launchers == 1 else many
            if again.failed or differing(final, again.steps(0)[-1]["weights"]):
                return unseen("two runs without a kill end with different weights", "seeds-and-dropout")
            return wrong(f"{words[-1]}, and {name} is another one at the end", row)
        where = f"went on at step {total - len(steps) + 1}" if len(steps) < total else "began again at step 1"
        words[-1] += f", and the run {where}"
    row = "snapshots-for-your-script" if "began again" in words[0] else ""
    return "ok", "; ".join(words), row


def first_write(many):
    """After how many steps a process has written its first file of the training, or 0 if none has."""
    counts = []
    for rank in many.ranks:
        kinds = [seen["kind"] for seen in many.ranks[rank]]
        begin = kinds.index("step") if "step" in kinds else len(kinds)
        if "file" in kinds[begin:]:
            counts.append(kinds[: kinds.index("file", begin)].count("step"))
    return min(counts, default=0)


def same_collectives(runs):
    for run in runs:
        for ranks in combinations(run.ranks, 2):
            both = [
                [x for x in run.rows(rank, "collective") if set(ranks) <= set(x["ranks"])] for rank in ranks
            ]
            for calls in zip(*both, strict=False):
                if calls[0]["what"] != calls[1]["what"]:
                    words = [f"{call['what']} in {run.short(call['line'])}" for call in calls]
                    return wrong(
                        f"rank {ranks[0]} calls {words[0]}, rank {ranks[1]} {words[1]}", "evaluation"
                    )
            if len(both[0]) != len(both[1]) and not run.failed:
                longer = int(len(both[1]) > len(both[0]))
                call = both[longer][len(both[1 - longer])]
                return wrong(
                    f"only rank {ranks[longer]} calls {call['what']} in {run.short(call['line'])}",
                    "evaluation",
                )
        if run.failed:
            return run.reason()
    return ok(f"{len(runs[0].rows(0, 'collective'))} calls by each process, besides those that DDP makes")


def one_writer(many):
    lines, files = {}, {}
    for rank in many.ranks:
        for seen in many.rows(rank, "file"):
            path = re.sub(r"(events\.out\.tfevents).*", r"\1", many.short(seen["path"]))
            is_temporary = path.startswith(f"{many.folder / 'tmp'}{os.sep}")
            if not is_temporary and not re.search(r"^/(dev|proc|sys)/|__pycache__|\.lock$", path):
                files.setdefault(path, set()).add(rank)
    for path, ranks in files.items():
        if len(ranks) > 1:
            return wrong(f"ranks {sorted(ranks)} write {path}", "saving-weights")
    for (rank, stream), text in many.printed.items():
        for line in re.split(r"[\r\n]+", text):
            is_bar = "%|" in line or "it/s" in line
            is_named = re.search(r"\b(rank|process|worker|gpu|cuda|device|node|host|pid)", line, re.I)
            if is_bar or (stream == "stdout" and re.search(r"\w", line) and not is_named):
                pattern = (
                    "a progress bar"
                    if is_bar
                    else re.sub(r"[-+]?\d[\d.:e+-]*|\bnan\b|\binf\b", "#", line.strip())
                )
                lines.setdefault(pattern, {})[rank] = line.strip()[:90]
    for found in lines.values():
        if len(found) > 1:
            return wrong(f"ranks {sorted(found)} print: {found[min(found)]}", "printing-and-progress-bars")
    names = sorted(path.rpartition(os.sep)[2] for path in files)
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ok(f"one process writes {', '.join(names[:3])}{more}" if names else "no file is written")


if __name__ == "__main__":
    main()
