"""What a file of results says of the machine, and of the programs that measured it."""

import contextlib
import os
import platform
import re
import subprocess
from importlib import metadata
from pathlib import Path

import torch

from tools.lessons import ROOT


def machine():
    """The machine, without the names of people or hosts."""
    information = Path("/proc/cpuinfo")
    lines = information.read_text() if information.exists() else ""
    model = re.search(r"^model name\s*: (.*)$", lines, re.M)
    cpu = model[1] if model else platform.processor() or platform.machine()
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    gpus = []
    for number in range(torch.cuda.device_count()):
        gpus.append(torch.cuda.get_device_name(number))
    return {
        "cpu": cpu,
        "cores": os.cpu_count(),
        "memory_gib": round(memory / 2**30),
        "bf16": any(flag in lines for flag in ("avx512_bf16", "amx_bf16", " bf16")),
        "virtual": " hypervisor" in lines,
        "gpus": gpus,
        "system": f"{platform.system()} {platform.machine()}",
    }


def versions():
    found = {"python": platform.python_version()}
    for name in ("torch", "torchvision", "numpy"):
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


def git(*words):
    run = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True)
    return run.stdout.strip() if run.returncode == 0 else ""


def commit():
    """The commit of the programs, with a plus if some have changed since; empty outside a repository."""
    found = git("rev-parse", "--short=8", "HEAD")
    # Results, pages and pictures are not programs.
    others = (":!*.json", ":!*.jsonl", ":!*.md", ":!*.svg")
    if git("status", "--porcelain", "--untracked-files=no", ":/", *others):
        found += "+"
    return found


def cpu_ticks():
    """All ticks of all cores so far, and those that the host of this virtual machine gave to others."""
    stat = Path("/proc/stat")
    if not stat.exists():
        return 0, 0
    ticks = list(map(int, stat.read_text().splitlines()[0].split()[1:9]))
    return sum(ticks), ticks[7]


def file_name(kind, run):
    """The name of a file of results: what was measured, the machine and the day."""
    what = run["machine"]
    words = f"{what['cpu']} {what['cores']} cores"
    if kind == "gpu":
        words = what["gpus"][0]
    words = re.sub(r"[^a-z0-9]+", "-", words.lower()).strip("-")
    return f"{kind}-{words}-{run['date']}.jsonl"
