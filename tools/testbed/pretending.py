"""GPUs for a command: the machine's own, or pretended ones, which are compiled once."""

import fcntl
import functools
import hashlib
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections import Counter
from importlib.util import find_spec
from itertools import combinations
from pathlib import Path

import psutil

from tools.testbed.command_environment import own_torchrun

PREFLIGHT = Path(__file__).resolve().parents[2] / "lessons/launch/preflight.py"
HERE = Path(__file__).resolve().parent / "simulated_gpus"
SOURCE = HERE / "pretend.cpp"
AT_EXIT = Path(__file__).resolve().parent / "threads_at_exit"  # for PYTHONPATH: it imports pretend
TORCH = "2.13.0"  # it uses what torch does not promise to keep


def is_for_gpus():
    """Whether this build of torch is NVIDIA's or AMD's. Only the CPU's can have pretended ones."""
    import torch

    return bool(torch.version.cuda or torch.version.hip)


def real():
    import torch  # here, because a student's check waits for it otherwise

    return torch.cuda.device_count() if is_for_gpus() else 0


def missing(gpus=1):
    """Why a command cannot have this many GPUs here, or an empty string."""
    import torch

    if is_for_gpus():
        if real() < gpus:
            return f"needs {gpus} GPUs"
        return cannot_talk() if gpus > 1 else ""
    is_all = sys.platform == "linux" and shutil.which("g++") and has_header()
    if not (is_all and torch.__version__.startswith(TORCH)):
        return f"needs Linux, g++, Python.h and torch {TORCH} to pretend GPUs"
    return ""


@functools.cache
def cannot_talk(limit=120):
    """Why two GPUs of this machine cannot exchange tensors, or an empty string. Asked once: each test on
    several GPUs would wait for so long."""
    words = own_torchrun("--standalone", "--nproc-per-node", "2", PREFLIGHT)
    reason = "needs GPUs that can exchange tensors: see lessons/launch/nccl.md"
    run = subprocess.Popen(
        words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    try:
        run.wait(limit)
    except subprocess.TimeoutExpired:
        for process in [*psutil.Process(run.pid).children(recursive=True), run]:
            process.kill()
        run.wait()
        return reason
    return ""  # what else is wrong with the machine, the tests say


def has_header():
    """On Debian, python3-dev installs it."""
    return Path(sysconfig.get_paths()["include"], "Python.h").exists()


def no_compiler():
    """Why torch.compile cannot work on a GPU here, or an empty string: Triton compiles C for Python."""
    if not find_spec("triton"):
        return "no compiler: torch.compile needs triton"
    if not shutil.which(os.environ.get("CC", "gcc")) and not shutil.which("clang"):
        return "no compiler: torch.compile needs gcc or clang"
    if not has_header():
        return "no compiler: torch.compile needs Python.h (python3-dev)"
    return ""


def library():
    """The compiled pretend.cpp. Compiling takes 20 seconds."""
    import torch

    folder = Path(torch.__file__).parent
    key = hashlib.sha256(SOURCE.read_bytes() + f"{folder} {torch.__version__} {sys.version}".encode())
    made = Path(
        tempfile.gettempdir(), f"rungs-pretend-{os.getuid()}", key.hexdigest()[:16], "pretend_cuda.so"
    )
    made.parent.mkdir(parents=True, exist_ok=True)
    with open(made.with_suffix(".lock"), "w") as lock:  # one process compiles, and the others wait
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not made.exists():
            # Under another name until it is whole: a compiler that is killed leaves half a file.
            temporary = made.with_suffix(".temporary")
            compile_library(folder, temporary)
            temporary.replace(made)
    return made


def environment(gpus, reports, before):
    """What a command needs in addition to `before` to have this many GPUs. Pretended ones write what each
    process has seen into the folder `reports`."""
    if gpus == 0:
        return {"CUDA_VISIBLE_DEVICES": "-1"}  # AMD's library takes an empty one for none
    if real() >= gpus:
        names = before.get("CUDA_VISIBLE_DEVICES") or ",".join(map(str, range(gpus)))
        return {"CUDA_VISIBLE_DEVICES": ",".join(names.split(",")[:gpus])}
    return {
        "PRETEND_GPUS": str(gpus),
        "PRETEND_LIBRARY": str(library()),
        "PRETEND_REPORT": str(reports),
        "PATH": f"{HERE / 'bin'}{os.pathsep}{before['PATH']}",  # nvidia-smi
    }


def compile_library(folder, target):
    """Compile pretend.cpp with the headers and libraries of torch in this folder."""
    words = ["g++", "-std=c++20", "-O1", "-fPIC", "-shared", SOURCE, "-o", target]
    for path in ("include", "include/torch/csrc/api/include", sysconfig.get_paths()["include"]):
        words += ["-isystem", folder / path]
    words += [f"-L{folder}/lib", "-ltorch_python", "-ltorch_cpu", "-ltorch", "-lc10"]
    words += [f"-Wl,-rpath,{folder}/lib"]
    run = subprocess.run(list(map(str, words)), capture_output=True, text=True)
    if run.returncode:
        raise RuntimeError(f"pretended CUDA: g++ failed\n{run.stderr[:2000]}")


def check_that_they_agree(one, other):
    """Two ranks ask the communicators that they share for the same operations, in one order for all of these.
    One that was ended has asked for fewer. Messages between two ranks are not compared."""
    common = communicators(one) & communicators(other)
    ours = operations_of(one, common)
    theirs = operations_of(other, common)
    for number, (line, their) in enumerate(zip(ours, theirs, strict=False), 1):
        words = "another order" if line.split()[0] != their.split()[0] else "another operation"
        assert line == their, f"operation {number} of two ranks, {words}: {line}, and {their}"


def communicators(log):
    """The first word of each line names the communicator."""
    return {line.split()[0] for line in log}


def operations_of(log, common):
    """The lines of a log about these communicators, without messages between two ranks."""
    found = []
    for line in log:
        if line.split()[0] in common and " message " not in line:
            found.append(line)
    return found


def waits(gpus, reports):
    """How often rank 0 would have waited for its GPU, by line. A command that did not find its GPUs has used
    the CPU, and must not pass."""
    if gpus <= real():
        return {}
    counts = []
    logs = []
    found = Counter()
    for path in Path(reports).glob("*.json"):
        seen = json.loads(path.read_text())
        counts.append(seen["gpus"])
        if seen.get("operations"):
            logs.append(seen["operations"])
        if path.name.startswith("rank0."):
            found.update(seen["waits"])
    assert counts and max(counts) > 0, f"no process has seen {gpus} GPUs: {counts}"
    for one, other in combinations(logs, 2):
        check_that_they_agree(one, other)
    return dict(found)
