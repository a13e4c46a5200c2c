"""The fork server: runs in the sandbox, has imported torch, and forks the ranks of each run. It never runs a
student's code.

The grader (grader/server.py) talks to it through a socket, and to each rank through pipes of the rank's own,
so no rank can read what another one was given. A rank answers with lines of JSON: its calls of
torch.distributed as they happen, and at the end its result. A tensor in them is its dtype, shape and bytes.
Nothing is unpickled.
"""

import base64
import contextlib
import gc
import importlib
import io
import json
import os
import resource
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil

sys.path.insert(0, str(Path(__file__).resolve().parent))

import limits
import linux_proc
from json_messages import Channel

FORK = sys.platform == "linux" and "RUNGS_SPAWN" not in os.environ
DTYPES = ["float64", "float32", "float16", "bfloat16", "complex64"]
DTYPES += ["int64", "int32", "int16", "int8", "uint8", "bool"]


def pack(value):
    """Nested lists and dicts (with words for keys) of numbers, words, None and tensors, as one line."""
    return json.dumps(value, default=plain).encode()


def plain(thing):
    import torch

    if isinstance(thing, torch.Tensor):
        data = thing.detach().cpu().clone(memory_format=torch.contiguous_format)  # or no last stride may be 1
        data = base64.b64encode(data.reshape(-1).view(torch.uint8).numpy().tobytes()).decode()
        return {"dtype": str(thing.dtype)[6:], "shape": list(thing.shape), "bytes": data}
    if isinstance(thing, bytes):
        return plain(torch.frombuffer(bytearray(thing), dtype=torch.uint8) if thing else torch.ByteTensor())
    if hasattr(thing, "item") and getattr(thing, "ndim", 1) == 0:  # a number of NumPy
        return thing.item()
    return f"something of the type {type(thing).__name__}"


def unpack(data):
    """Raises ValueError, TypeError, KeyError, RuntimeError or RecursionError for what pack() has not
    written."""
    return json.loads(data, object_hook=tensor, parse_int=whole)


def whole(digits):
    if len(digits) > 20:  # no tensor could hold it, and a comparison would fall over
        raise ValueError("a whole number of more than 64 bits")
    return int(digits)


def tensor(found):
    if found.keys() != {"dtype", "shape", "bytes"}:
        return found
    import torch

    if found["dtype"] not in DTYPES:
        raise ValueError(f"a tensor of {found['dtype']}")
    data = bytearray(base64.b64decode(found["bytes"]))
    dtype = getattr(torch, found["dtype"])
    # Without data there may be no numbers, however many the shape claims.
    flat = torch.frombuffer(data, dtype=dtype) if data else torch.empty(0, dtype=dtype)
    return flat.reshape(found["shape"])


def warm():
    """What torch does at its first use, done here once and not in each rank. No backward pass: a process that
    has done one must not fork."""
    gc.disable()  # it takes a sixth of the time of these imports, and finds nothing
    import torch
    import torch._dynamo
    import torch.distributed
    import torch.nn.utils.parametrize
    import torch.utils.data.distributed
    import torch.utils.serialization.config

    for path in Path(__file__).parent.glob("*.py"):  # Landlock will not let a rank read them
        importlib.import_module(path.stem)

    torch.set_num_threads(1)
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 4))
    outputs = model(torch.randn(4, 8))
    torch.nn.functional.cross_entropy(outputs, torch.zeros(4, dtype=torch.long)).item()
    outputs.softmax(1).argmax(1).eq(torch.zeros(4)).sum().item()
    for kind in (torch.optim.SGD, torch.optim.AdamW):
        optimizer = kind(model.parameters(), 0.1)
        for parameter in model.parameters():
            parameter.grad = torch.zeros_like(parameter)
        optimizer.step()
    list(torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.zeros(4, 2)), 2, shuffle=True))
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    torch.load(file)
    # init_process_group empties these tables, which in a rank, by copy on write, takes a tenth of its time.
    torch._dynamo.trace_rules.clear_lru_cache()
    gc.collect()
    gc.freeze()
    gc.enable()


def start(number, order, home, ends):
    """One rank, forked or (where a process that has imported torch must not fork, on macOS) started anew."""
    if not FORK:
        words = [sys.executable, str(Path(__file__).parent / "worker.py")]
        words.append(json.dumps([number, order, home, ends]))
        return subprocess.Popen(words, pass_fds=ends, stdin=subprocess.DEVNULL).pid
    pid = os.fork()
    if pid == 0:
        try:
            import worker

            worker.live(number, order, home, ends)
        finally:
            os._exit(70)
    return pid


def below(pid):
    """The children of a process, and theirs."""
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.Error:  # it has ended
        return []


def end(pids, codes):
    """End the ranks and everything that they have started."""
    for _ in range(500):
        todo = [-1]  # all that there is in the sandbox
        if os.getpid() != 1:
            todo = [*pids, *(process.pid for process in below(os.getpid()))]
        for pid in todo:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        if not reap(codes):
            return
        time.sleep(0.002)


def life_of(process):
    """What linux_proc.life() says, as well as psutil can say it elsewhere."""
    if linux_proc.IS_HERE:
        return linux_proc.life(process.pid)
    try:
        times = process.cpu_times()
        waits = process.status() != psutil.STATUS_DISK_SLEEP
    except psutil.Error:
        return None
    ticks = 100 * (times.user + times.system)
    return {
        "ticks": ticks,
        "gloo_ticks": 0,
        "waits": waits,
        "gloo_waits": True,
        "delay": 0.0,
        "sleeps": False,
    }


def memory_of(process):
    if linux_proc.IS_HERE:
        return linux_proc.memory_of(process.pid)
    try:
        return process.memory_info().rss
    except psutil.Error:
        return 0


def look(pids, codes, home):
    """What there is to see of a run: how ranks have ended, what each does with all that it has started, and
    what all processes have taken together."""
    reap(codes)
    parents = {}
    everything = below(os.getpid())
    for process in everything:
        with contextlib.suppress(psutil.Error):
            parents[process.pid] = process.ppid()
    lives = {pid: [] for pid in pids}
    for process in everything:
        pid = process.pid
        while pid in parents and pid not in lives:
            pid = parents[pid]
        life = life_of(process) if pid in lives else None
        if life is not None:
            lives[pid].append(life)
    count, lying = linux_proc.sockets()
    disk = os.statvfs(home)
    own = resource.getrusage(resource.RUSAGE_CHILDREN)
    return {
        "codes": [codes.get(pid) for pid in pids],
        "lives": [lives[pid] for pid in pids],
        "memory": sum(map(memory_of, everything)),
        "files": disk.f_files - disk.f_ffree,
        "sockets": count,
        "lying": lying,
        "ended": own.ru_utime + own.ru_stime,
    }


def reap(codes):
    """Note how children have ended. False if none is left."""
    try:
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                return True
            codes[pid] = os.waitstatus_to_exitcode(status)
    except ChildProcessError:
        return False


def remove(path):
    """A submission may have made folders in folders until Python cannot follow, or one that is closed."""
    if path.is_dir() and not path.is_symlink():
        with contextlib.suppress(RecursionError):
            shutil.rmtree(path, ignore_errors=True)
        if path.exists():
            for words in (["chmod", "-R", "u+rwX"], ["rm", "-rf"]):
                subprocess.run([*words, str(path)], stderr=subprocess.DEVNULL)
    else:
        path.unlink(missing_ok=True)


class Server:
    """The ranks of one run, and what becomes of them."""

    def __init__(self, home, uid):
        self.home, self.uid = Path(home), uid
        self.pids, self.codes = [], {}

    def start(self, order, descriptors):
        """A rank for each share of the descriptors. Returns their process ids, as they are in here."""
        count = order["ranks"]
        folders = [self.home / "run", self.home / "disk"]
        folders += [self.home / "run" / str(number) for number in range(count)]
        for folder in folders:
            folder.mkdir(exist_ok=True)
            if self.uid is not None:
                os.chown(folder, self.uid, self.uid)
        for name in order["imports"]:
            with contextlib.suppress(ImportError):
                importlib.import_module(name)
        each = len(descriptors) // count
        for number in range(count):
            own = descriptors[each * number : each * (number + 1)]
            self.pids.append(start(number, order | {"uid": self.uid}, str(self.home), own))
        for descriptor in descriptors:
            os.close(descriptor)
        return self.pids

    def look(self, order, descriptors):
        return look(self.pids, self.codes, self.home)

    def where(self, order, descriptors):
        """Have these ranks write down where they are."""
        for number in order["ranks"]:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(self.pids[number], signal.SIGUSR2)

    def end(self, order, descriptors):
        """End the run. Files in `disk` are kept for the next one."""
        end(self.pids, self.codes)
        self.pids, self.codes = [], {}
        for path in self.home.iterdir():
            if path.name != "disk":
                remove(path)

    def wipe(self, order, descriptors):
        """End the run, and keep nothing."""
        self.end(order, descriptors)
        remove(self.home / "disk")


def serve(own, home, uid):
    if any(Path(home).iterdir()):
        sys.exit(f"error: {home}, the home of the sandbox, is not empty")
    limits.prctl(limits.SUBREAPER, 1)
    limits.prctl(limits.DUMPABLE, 0)  # no rank may look into this process
    if FORK:
        warm()
    channel = Channel(own)
    channel.send({"number": "ready"})
    server = Server(home, uid)
    while True:
        try:
            order, descriptors = channel.receive()
        except EOFError:  # the grader has ended, perhaps in the middle of a run
            end(server.pids, server.codes)
            os._exit(0)
        answer = getattr(server, order["do"])(order, descriptors)
        # With the number of the question: an answer that came late would else be taken for another one's.
        channel.send({"number": order["number"], "answer": answer})


if __name__ == "__main__":
    number, home, uid = json.loads(sys.argv[1])
    serve(socket.socket(fileno=number), home, uid)
