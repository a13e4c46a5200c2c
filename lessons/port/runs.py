"""One run of the script that check.py checks: started in a copy of the folder, watched, ended, and read."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import torch
import torch.distributed as dist

HERE = Path(__file__).resolve().parent
NOT_COPIED = (".git", ".venv", "venv", "node_modules", "__pycache__")
LARGEST_COPY = 1 << 30
QUIET = 5  # seconds: if nothing has moved for so long, we look where the processes wait
PATIENCE = 60  # seconds that a process may wait outside torch, for example for a download


@dataclass
class Run:
    """A run, and what its processes have seen."""

    label: str
    folder: Path
    command: list  # the script and its options
    world_size: int = 1
    launchers: int = 1  # 0: the script is started by python
    limit: int = 600  # seconds
    steps: int = 0
    is_exact: bool = False
    is_nudged: bool = False
    kill: tuple = ()  # the rank and the step at whose end the process is killed

    processes: list = field(default_factory=list)  # the launchers, or the script itself
    family: set = field(default_factory=set)  # these and all that they have started
    waiting: dict = field(default_factory=dict)  # for each rank the line in which it waits, if the run hangs
    stacks: str = ""
    is_slow: bool = False
    failed: bool = False
    seconds: float = 0.0
    ranks: dict = field(default_factory=dict)  # the rows of each rank, in its last attempt
    drawn: dict = field(default_factory=dict)  # the random states that each rank has drawn examples with
    printed: dict = field(default_factory=dict)  # the text of each rank's stdout and stderr

    @property
    def work(self):
        return self.folder / "work"

    @property
    def seen(self):
        return self.folder / "seen"

    @property
    def logs(self):
        return self.folder / "logs"

    def rows(self, rank, kind):
        return [row for row in self.ranks.get(rank, []) if row["kind"] == kind]

    def steps_of(self, rank):
        """The steps of a rank, each with its forward passes and the sum of its losses."""
        steps = []
        forwards = []
        loss = 0.0
        for row in self.ranks.get(rank, []):
            if row["kind"] == "forward":
                forwards.append(row)
            elif row["kind"] == "loss":
                loss += row["loss"]
            elif row["kind"] == "step":
                steps.append(row | {"forwards": forwards, "loss": loss})
                forwards = []
                loss = 0.0
        return steps

    def short(self, text):
        return text.replace(f"{self.work}{os.sep}", "")


def run(links, **settings):
    """Run the script to its end."""
    this = Run(**settings)
    print(f"running: {this.label} ...", file=sys.stderr, flush=True)
    prepare(this, links)
    begin = time.monotonic()
    try:
        launch(this)
        has_ended = wait(this)
    finally:
        this.seconds = time.monotonic() - begin
        end(this)
    this.failed = not has_ended or any(process.returncode for process in this.processes)
    read(this)
    shutil.rmtree(this.work)
    return this


# ---- to begin


def short_folder():
    """Workers of a loader make sockets in the folder for temporary files, and their paths must be short: at
    most 103 characters on macOS, whose own folder for temporary files has 50."""
    usual = tempfile.gettempdir()
    return Path(tempfile.mkdtemp(prefix="port-", dir=usual if len(usual) <= 40 else "/tmp")).resolve()


def prepare(this, links):
    """Copy the current folder, and make folders for what the run leaves."""
    for folder in (this.folder, this.seen, this.logs, this.folder / "t"):
        folder.mkdir()
    copy_folder(this.work, links)


def copy_folder(target, links):
    here = Path.cwd()
    size = 0

    def ignore(folder, names):
        nonlocal size
        left_out = set()
        for name in names:
            path = Path(folder, name)
            if name in NOT_COPIED or str(path.relative_to(here)) in links:
                left_out.add(name)
            else:
                size += path.lstat().st_size
        if size > LARGEST_COPY:
            sys.exit("error: this folder holds more than 1 GiB: name the folders of your data after --link")
        return left_out

    shutil.copytree(here, target, symlinks=True, ignore=ignore)
    for name in filter(os.path.exists, links):
        (target / name).symlink_to(Path(name).resolve())


def environment(this, gpus):
    """The environment of a launcher whose processes see these GPUs."""
    ours = dict(os.environ)
    ours.pop("RANK", None)
    ours.pop("WORLD_SIZE", None)

    paths = [str(HERE / "inside")]
    if ours.get("PYTHONPATH"):
        paths.append(ours["PYTHONPATH"])
    ours["PYTHONPATH"] = os.pathsep.join(paths)

    ours["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, gpus)) or "-1"
    ours["TMPDIR"] = str(this.folder / "t")
    ours["TORCHDYNAMO_DISABLE"] = "1"
    ours.setdefault("OMP_NUM_THREADS", "1")
    ours["PORT_SEEN"] = str(this.seen)
    if this.launchers == 0:
        ours["PORT_ALONE"] = "1"
    if this.is_exact:
        ours["PORT_EXACT"] = "1"
    if this.is_nudged:
        ours["PORT_NUDGE"] = "1"
    if this.steps:
        ours["PORT_STEPS"] = str(this.steps)
    if this.kill:
        rank, step = this.kill
        ours["PORT_KILL"] = f"{rank} {step} {this.folder}/killed"
        # A restart needs a new store. Without restarts, torchrun's own store is safer: for a new one it first
        # looks for a free port, which another program may take before rank 0 listens there.
        ours["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
    return ours


def launch(this):
    """Start the script by itself, or on several processes under one launcher or two."""
    gpu_count = torch.cuda.device_count()
    if this.launchers == 0:
        command = [sys.executable, *this.command]
        this.logs.joinpath("alone").mkdir()
        start(this, command, environment(this, range(min(gpu_count, 1))), this.logs / "alone")
        return
    store = dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)  # the system's free port
    for node in range(this.launchers):
        first = node * this.world_size // this.launchers
        behind = (node + 1) * this.world_size // this.launchers
        gpus = range(first, behind) if gpu_count >= this.world_size else ()
        command = [sys.executable, "-m", "torch.distributed.run", "--nnodes", str(this.launchers)]
        command += ["--nproc-per-node", str(behind - first), "--max-restarts", "3" if this.kill else "0"]
        command += ["--rdzv-backend", "c10d", "--rdzv-id", "check"]
        command += ["--rdzv-endpoint", f"localhost:{store.port}", "--rdzv-conf", "is_host=0,join_timeout=60"]
        command += ["--local-addr", "localhost"]
        command += ["--redirects", "3", "--log-dir", str(this.logs / str(node)), *this.command]
        folder = this.folder / f"launcher{node}"
        folder.mkdir()
        start(this, command, environment(this, gpus), folder)
    this.store = store  # it lives as long as the run


def start(this, command, variables, folder):
    with open(folder / "stdout.log", "w") as stdout, open(folder / "stderr.log", "w") as stderr:
        process = psutil.Popen(
            command, cwd=this.work, env=variables, stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr
        )
    this.processes.append(process)


# ---- while it runs


def living_ranks(this):
    """The ranks that run, by the files that record_process.py has begun."""
    ranks = {}
    for path in this.seen.glob("*.seen"):
        rank, pid, _ = path.name.split(".")
        try:
            process = psutil.Process(int(pid))
        except psutil.Error:
            continue  # it has ended
        if is_alive(process):
            ranks[int(rank)] = process
    return ranks


def is_alive(process):
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def with_children(processes):
    found = set(processes)
    for process in processes:
        with suppress(psutil.Error):  # it has ended
            found.update(process.children(recursive=True))
    return found


def wants_to_run(process):
    """Whether it waits for a core or for a disk, as on a busy machine, and not for another process."""
    if sys.platform != "linux":
        return False  # macOS says of all processes that they run
    with suppress(psutil.Error):  # it has ended
        return process.status() in (psutil.STATUS_RUNNING, psutil.STATUS_DISK_SLEEP)
    return False


def cpu_seconds(processes):
    used = 0.0
    for process in processes:
        with suppress(psutil.Error):  # it has ended
            times = process.cpu_times()
            used += times.user + times.system
    return used


def wait(this):
    """Wait for the end. If nothing moves, note the line in which each process waits, and return False."""
    begin = moved = looked = time.monotonic()
    last_size = -1
    used = 0.0
    while any(process.poll() is None for process in this.processes):
        time.sleep(0.1)
        now = time.monotonic()
        if now - looked < 1:  # to look at all processes takes time, which the script needs
            continue
        looked = now
        ranks = living_ranks(this)
        family = with_children(this.processes) | set(ranks.values())
        this.family |= family
        size = sum(path.stat().st_size for path in this.seen.iterdir())
        used_now = cpu_seconds(family - set(this.processes) if this.launchers else family)
        is_moving = size != last_size or abs(used_now - used) > 0.03 or not ranks
        if is_moving or any(map(wants_to_run, ranks.values())):
            last_size = size
            used = used_now
            moved = now

        is_late = now - begin > this.limit
        if now - moved > QUIET or is_late:
            lines = lines_of_ranks(this, ranks)
            hangs = bool(lines) and all(is_in_torch for _, is_in_torch in lines.values())
            if hangs or now - moved > PATIENCE or is_late:
                this.waiting = {rank: line for rank, (line, _) in lines.items()}
                this.is_slow = not hangs and now - moved <= PATIENCE
                return False
    return True


def lines_of_ranks(this, ranks):
    """For each rank the line of the script in which it is, and whether it is inside torch."""
    asked = {}
    this.stacks = ""
    for rank, process in ranks.items():
        path = this.seen / f"{rank}.{process.pid}.stack"
        if path.exists():
            process.send_signal(signal.SIGURG)  # faulthandler answers, even if Python waits
            asked[rank] = path
    time.sleep(0.5)
    lines = {}
    for rank, path in asked.items():
        stack = main_thread(path.read_text())
        this.stacks += stack
        frames = re.findall(r'File "(.*)", line (\d+) in', stack) or [("?", "0")]
        is_in_torch = f"{os.sep}torch{os.sep}" in frames[0][0] and "<frozen importlib" not in stack
        lines[rank] = own_line(this, frames), is_in_torch
    return lines


def main_thread(stack):
    return stack.rpartition("hread 0x")[2]  # faulthandler writes it last


def own_line(this, frames):
    """The innermost frame in the folder of the script."""
    for path, line in frames:
        is_own = str(this.work) in path or not os.path.isabs(path)
        if is_own and not path.startswith("<"):
            return this.short(f"{path}:{line}")
    return ":".join(frames[0])


# ---- to end


def end(this):
    """Kill what is left of a run, and what it has started: nothing may go on when check.py has ended."""
    left = this.family | with_children(this.processes) | set(living_ranks(this).values())
    for _ in range(5):
        for process in left:
            with suppress(psutil.Error):  # it has ended
                process.kill()
        deadline = time.monotonic() + 10
        while any(map(is_alive, left)) and time.monotonic() < deadline:
            time.sleep(0.02)
        left = set(processes_of(this.seen))
        if not left:
            break
    for process in this.processes:
        process.wait()


def processes_of(seen):
    """All processes of this user that were started by a run, known by their environment."""
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):  # another user's, or it has ended
            if process.environ().get("PORT_SEEN") == str(seen):
                yield process


def read(this):
    """Read what the ranks have written down in their last attempt, and what they have printed in all."""
    for path in this.seen.glob("*.seen"):
        rows = read_rows(path)
        if rows:
            rank = rows[0]["rank"]
            begin = rows[0]["time"]
            if rank not in this.ranks or begin > this.ranks[rank][0]["time"]:
                this.ranks[rank] = without_zeroed(rows)
    this.ranks = dict(sorted(this.ranks.items()))

    for path in this.seen.glob("*.fetch"):
        rank = int(path.name.split(".")[0])
        this.drawn.setdefault(rank, []).extend(read_rows(path))

    for path in sorted(this.logs.rglob("std*.log")):
        node = path.relative_to(this.logs).parts[0]
        rank = 0
        if node != "alone":
            rank = int(node) * this.world_size // this.launchers + int(path.parent.name)
        text = path.read_text(errors="replace")
        text = re.sub(r"(?m)^\[rank\d+\]: ?", "", text)  # torch's, before each line of a traceback
        this.printed[rank, path.stem] = this.printed.get((rank, path.stem), "") + this.short(text)


def read_rows(path):
    return [json.loads(line) for line in path.read_text().splitlines() if line.endswith("}")]


def without_zeroed(rows):
    """Leave out passes whose gradients were set to zero before a step used them, such as one to warm up."""
    kept = []
    pending = []  # since the last step
    for row in rows:
        if row["kind"] == "zero":
            pending = [row for row in pending if row["kind"] not in ("forward", "loss")]
        pending.append(row)
        if row["kind"] == "step":
            kept += pending
            pending = []
    return kept + pending


# ---- why it has failed

ROWS = {  # what PyTorch says, and the row of the page that helps
    r"Expected more than 1 value": "batch-norm",
    r"Expected hidden": "columns-of-one-long-text",
    r"SyncBatchNorm layers": "batch-norm",
    r"'DistributedDataParallel' object has no attribute": "attributes-of-the-model",
    r"key\(s\) in state_dict": "loading-a-checkpoint",
    r"finished reduction in the prior iteration": "unused-parameters",
    r"invalid device ordinal|not compiled with CUDA|device type mps|MPS Tensor": "cpu-builds-and-cuda",
    r"mutually exclusive with shuffle": "a-shuffled-dataloader",
    r"unspecified sampler option": "an-iterabledataset",
    r"bootstrapping phase": "no-main-guard",
    r"FileNotFound|FileExists|central directory|EOFError": "downloads-and-preparations",
}


def reason(this):
    """Why the run has failed, and the row of the page."""
    if mode := other_mode(this):
        return f"{mode}, and {failure(this)[0]}", "evaluation"
    return failure(this)


def failure(this):
    if this.is_slow:
        return slow(this)
    if this.waiting:
        return hanging(this)

    is_follower, text, row = exception_of(this)
    found = None
    if is_follower or not text:  # if a signal has ended a peer, the exception of a follower explains nothing
        found = signal_of(this)
    if text and not found:
        found = text, row
    return found or last_line_of(this)


def slow(this):
    lines = [f"rank {rank} is in {line}" for rank, line in sorted(this.waiting.items())]
    text = f"it has not ended after {this.limit} s (--limit): {', '.join(lines)}"
    return f"{text}; let it do less, or give it more time", ""


def hanging(this):
    lines = []
    for rank, line in sorted(this.waiting.items()):
        lines.append(f"rank {rank} waits in {line}")
    for rank in this.ranks:
        if rank not in this.waiting:
            lines.append(f"rank {rank} has ended")
    row = "an-incomplete-last-batch" if "backward" in this.stacks else "evaluation"
    return f"it hangs: {', '.join(lines)}", row


def other_mode(this):
    """A model that rank 0 runs in evaluation mode when the others train it, or the other way round."""
    for rank in list(this.ranks)[1:]:
        for mine, its in zip(ddp_calls(this, 0), ddp_calls(this, rank), strict=False):
            if mine["model"] == its["model"] and mine["training"] != its["training"]:
                text = f"rank 0 runs {mine['model']} in {mode_of(mine)} mode "
                return f"{text}while rank {rank} runs it in {mode_of(its)} mode"
    return ""


def ddp_calls(this, rank):
    return [call for call in this.rows(rank, "call") if call["is_ddp"]]


def mode_of(call):
    return "training" if call["training"] else "evaluation"


def exception_of(this):
    """The exception that came first, and whether another process has caused it: when a process fails, its
    peers fail because their connections close."""
    found = []
    for (rank, stream), text in this.printed.items():
        blocks = re.findall(r"Traceback \(most recent call last\):\n((?:[ \t]+.*\n)+)(\S.*)", text)
        if not blocks and stream == "stderr":  # an error of syntax has no such heading
            blocks = re.findall(r'((?:^  File ".*", line \d+\n)(?:    .*\n)+)(\w*Error: .*)', text, re.M)
        if blocks:
            frames, exception = blocks[-1]
            found.append(("onnection" in exception, rank, frames, exception))
    if not found:
        return False, "", ""
    is_follower, rank, frames, exception = min(found, key=lambda row: row[:2])
    line = own_line(this, re.findall(r'File "(.*)", line (\d+)', frames)[::-1] or [("?", "0")])
    gone = silent_ranks(this)
    if is_follower and gone:
        row = "an-incomplete-last-batch" if "backward" in frames else "evaluation"
        return True, f"rank {rank} waits in {line}, but rank {', '.join(gone)} has ended", row
    return is_follower, f"rank {rank} failed in {line}: {exception[:200]}", row_of(exception)


def silent_ranks(this):
    """The ranks that have printed no error: first those without a file for errors, then those with an empty
    one."""
    without_file = []
    empty = []
    for rank in this.ranks:
        if (rank, "stderr") not in this.printed:
            without_file.append(str(rank))
        elif not this.printed[rank, "stderr"].strip():
            empty.append(str(rank))
    return without_file + empty


def row_of(exception):
    for pattern, row in ROWS.items():
        if re.search(pattern, exception):
            return row
    return ""


def signal_of(this):
    """A process that a signal has ended, such as SIGABRT of gloo, and its line."""
    for path in this.seen.glob("*.crash"):
        stack = path.read_text()
        if stack:
            rank = path.name.split(".")[0]
            kind = stack.partition("\n")[0].removeprefix("Fatal Python error: ")
            frames = re.findall(r'File "(.*)", line (\d+) in', main_thread(stack)) or [("?", "0")]
            line = own_line(this, frames)
            last = last_line(this.printed.get((int(rank), "stderr"), ""))
            said = f": {last[:150]}" if last else ""
            row = "an-incomplete-last-batch" if "backward" in stack else "evaluation"
            return f"rank {rank} was ended by a signal ({kind}) in {line}{said}", row
    return None


def last_line_of(this):
    """What a process says that ends with sys.exit, or torchrun itself."""
    texts = []
    for (_, stream), text in sorted(this.printed.items()):
        if stream == "stderr":
            texts.append(text)
    for path in this.folder.glob("launcher*/stderr.log"):
        texts.append(path.read_text(errors="replace"))

    for text in texts:
        if last := last_line(text):
            return f"its last line is: {last[:200]}", ""
    return f"it ended after {this.seconds:.0f} s without a message", ""


def last_line(text):
    """The last line that is not empty, or "" if there is none."""
    for line in reversed(text.splitlines()):
        if line.strip():
            return line.strip()
    return ""
