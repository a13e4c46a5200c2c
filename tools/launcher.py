"""How each lesson is started, for `make run`, the tests and the bench: by the command its docstring gives."""

import functools
import json
import os
import socket
import sys
from pathlib import Path

import psutil

from tools import lessons
from tools.lessons import ROOT, Curve

EARLY_EPOCHS = 3
THE_SAME = Curve()


def command(stem: str, processes: int, *arguments, script: Path | None = None) -> tuple[list[str], dict]:
    """The command that starts a lesson on this many processes, and what it adds to the environment.

    `script` is another file that is started in the lesson's stead, in the same way.
    """
    lesson = lessons.get(stem)
    script = script or lesson.path
    # torchrun of the Python that runs this; a PATH may lead to another environment's.
    beside = Path(sys.executable).parent
    path = f"{beside}{os.pathsep}{os.environ.get('PATH', '')}"
    torchrun = [beside / "torchrun"]
    if not torchrun[0].exists():  # as on Colab, where the two are in different folders
        torchrun = [sys.executable, "-m", "torch.distributed.run"]
    environment = {}
    if lesson.is_one_process():
        words = [sys.executable, script]
    elif lesson.launcher == "mp.spawn":
        words = [sys.executable, script, "--world-size", processes]
    elif lesson.launcher == "two agents" and processes % 2 == 0:  # they have two, four, six processes
        words = ["bash", ROOT / "lessons/launch/two_terminals.sh"]
        environment["PATH"] = path
        environment["PROCESSES"] = str(processes // 2)
    else:
        words = [*torchrun, "--standalone", *local_address(), "--nproc-per-node", processes]
        if lesson.restarts:
            words += ["--max-restarts", 3]
            environment["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
        words += [script]
    return [str(word) for word in [*words, *arguments]], environment


@functools.cache
def local_address() -> list[str]:
    """What torchrun needs where this machine's own name does not resolve, or it waits for many minutes."""
    try:
        socket.getaddrinfo(socket.getfqdn(), None)
    except OSError:
        return ["--local-addr", "127.0.0.1"]
    return []


def loopback() -> str:
    """The name of the interface that has 127.0.0.1: lo, and on macOS lo0."""
    for name, addresses in psutil.net_if_addrs().items():
        for address in addresses:
            if address.address == "127.0.0.1":
                return name
    raise SystemExit("error: no network interface has 127.0.0.1: switch the loopback interface on")


def in_one_agent(stem: str, processes: int, *arguments) -> tuple[list[str], dict]:
    """The same for a fork server, which has one agent where true launches have two."""
    lesson = lessons.get(stem)
    if lesson.launcher != "two agents":
        return command(stem, processes, *arguments)
    return command("04_ddp_torchrun", processes, *arguments, script=lesson.path)


def as_typed(words: list[str], environment: dict[str, str]) -> str:
    """The command as a reader would type it in the repository's root."""
    shown = {name: value for name, value in environment.items() if name != "PATH"}
    short = []
    for word in words:
        path = Path(word)
        if path.suffix in (".py", ".sh"):
            word = str(path.relative_to(ROOT))
        elif path.parent == Path(sys.executable).parent:
            word = "python" if path.name.startswith("python") else path.name
        short.append(word)
    return " ".join([f"{name}={value}" for name, value in shown.items()] + short)


def read_curve(out: Path, stem: str) -> list[dict]:
    return [json.loads(line) for line in (Path(out) / f"{stem}.jsonl").read_text().splitlines()]


def difference(curve: list[dict], reference: list[dict], limits: Curve = THE_SAME) -> str:
    """What is different about this curve, in words; an empty string if it is the same."""
    if [row["epoch"] for row in curve] != [row["epoch"] for row in reference]:
        return f"epochs {[row['epoch'] for row in curve]}, not {[row['epoch'] for row in reference]}"
    for row, expected in zip(curve, reference, strict=True):
        limit = limits.early if row["epoch"] <= EARLY_EPOCHS else limits.late
        off = abs(row["loss"] - expected["loss"]) / expected["loss"]
        if not off <= limit:
            return f"the loss of epoch {row['epoch']} is off by {off:.1e}, more than {limit:.0e}"
    off = abs(curve[-1]["accuracy"] - reference[-1]["accuracy"])
    if not off <= limits.accuracy + 1e-12:
        return f"the accuracy is off by {off:.2%}, more than {limits.accuracy:.1%}"
    return ""
