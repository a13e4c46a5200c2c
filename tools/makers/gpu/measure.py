"""Measure how fast this machine's GPUs train, and what limits them: `make gpu-speed`

    python -m tools.makers.gpu.measure                   everything
    python -m tools.makers.gpu.measure --only gpt        any of: loop gpt all-reduce memory several language
    python -m tools.makers.gpu.measure --text FOLDER     lesson 18 also trains 124M parameters on your text
    python -m tools.makers.gpu.measure --minutes 4       begin no measurement after 4 minutes

You will see a line for each measurement. They run one after the other, so that nothing else uses the GPU, and
each is kept in OUT/results as soon as it ends. A measurement that fails prints its error, and the others go
on. Compiling takes most of the time: a GPT needs about a minute.
"""

import argparse
import datetime
import json
import os
import re
import sys
import time
from pathlib import Path

import torch

import workload
from tools.lessons import ROOT
from tools.makers import machine, result_files, running
from tools.testbed import pretending
from tools.testbed.command_environment import own_torchrun, python_path
from workload.machine import unseen_gpu

PROBES = Path(__file__).resolve().parent / "probes.py"
LIMIT = 180  # seconds of a measurement
LANGUAGE_LIMIT = 240  # of lesson 18: its tokens, two compilations, the run, and all held-out files
# NVIDIA's data sheets and white papers, dense, 10**12 operations a second: bf16 with tensor cores that add up
# in fp32.
PEAKS = {
    "H200": 989,
    "H100 80GB HBM3": 989,
    "H100 PCIe": 756,
    "A100": 312,
    "L40S": 362,
    "L40": 181,
    "L4": 121,
    "A10": 125,
    "RTX 5090": 209.5,
    "RTX 4090": 165.2,
    "RTX 3090": 71,
}
# What changes from one loop to the next: each has the changes of those before it.
LOOPS = {
    "repeatable": "the lessons' flags: convolutions in 32 bits, repeatable kernels",
    "plain": "PyTorch's flags: TF32 in convolutions, any kernel",
    "input": "images stay on the GPU, which prepares whole batches; no `loss.item()`",
    "bf16": "`torch.autocast` in bf16",
    "channels_last": "`channels_last`",
    "benchmark": "`cudnn.benchmark = True`",
    "fused": "`SGD(fused=True)`",
    "compile": "`torch.compile`",
}
IN_32_BITS = ("repeatable", "plain", "input")
# The last one has batches of 16 again: with 32 texts, the scores of all words take too much memory.
GPTS = {
    "gpt": {},
    "gpt, compiled": {"kinds": ["compiled"]},
    "gpt, batches of 16": {"kinds": ["compiled"], "size": 16},
    "gpt, one product for query, key and value": {"kinds": ["compiled", "fused"], "size": 16},
    "gpt, batches of 32": {"kinds": ["compiled", "fused"], "size": 32, "steps": 5},
    "gpt, cuDNN's attention": {"kinds": ["compiled", "fused", "cudnn"], "size": 32, "steps": 5},
    "gpt, 50,304 words": {"kinds": ["compiled", "fused"], "size": 16, "characters": 50304},
}
# Lesson 18 as it is, with other sizes: the number of ranks, and the lesson's options. Ten epochs of PyTorch's
# source are 92 million tokens. The largest model runs only with --text, and only for its speed.
LANGUAGES = {
    "10M": (1, "--layers 5 --width 384 --heads 6 --epochs 10"),
    "10M on 2": (2, "--layers 5 --width 384 --heads 6 --steps 1000"),
    "30M": (1, "--layers 9 --width 512 --heads 8 --epochs 10"),
    "124M": (1, "--layers 16 --width 768 --heads 12 --length 1024 --tokens 16384 --steps 300"),
}
LANGUAGE = (
    "--compile --length 512 --batch-size 32 --accumulate 1 --lr 0.001 --warm-up 200 --validate-every 250"
)


def job(*words, ranks=0, kinds=(), **options):
    """The command and environment of a probe; under torchrun if it has a number of ranks."""
    start = own_torchrun("--standalone", "--nproc-per-node", ranks) if ranks else [sys.executable]
    command = [*start, PROBES, *words, *kinds]
    for name, value in options.items():
        command.append(f"{name}={value}")
    return command, surroundings(ranks)


def surroundings(ranks):
    """The environment of a job."""
    environment = dict(os.environ)
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"):
        environment.pop(name, None)
    environment["OMP_NUM_THREADS"] = "1"
    environment["PYTHONPATH"] = python_path(ROOT / "lessons", ROOT)
    if ranks > workload.gpu_count():  # with a GPU for each rank, NCCL has its own ways
        environment["SHARE_GPU"] = "1"
    return environment


def language(ranks, options, text=None):
    """The command and environment of lesson 18. A later option replaces an earlier one."""
    start = own_torchrun("--standalone", "--nproc-per-node", ranks)
    words = [*start, ROOT / "lessons/18_language_model.py", *LANGUAGE.split(), *options.split()]
    if text:
        words += ["--text", text.resolve()]
    return words, surroundings(ranks)


# ---- what is measured: names and jobs -----------------------------------------------------------


def loops():
    return {name: job("loop", name) for name in LOOPS}


def gpts():
    return {name: job("gpt", **options) for name, options in GPTS.items()}


def all_reduces():
    return {"2 ranks": job("sizes", ranks=2)}


def memories():
    """What a rank holds when a model is replicated, and when it is sharded."""
    found = {}
    for kind in ("ddp", "fsdp"):
        for ranks in (1, 2, 4):
            found[f"{kind} on {ranks}"] = job("memory", kind, ranks=ranks, width=2048)
    return found


def several_gpus():
    """Copies between GPUs, weak and strong scaling, and the speed without P2P."""
    gpus = workload.gpu_count()
    if gpus < 2:
        return {}
    size = 1024
    found = {
        "copies from GPU 0": job("peers"),
        f"ddp on 1, {size} images on each": job("loop", "ddp", ranks=1, size=size),
    }
    for ranks in (2, 4, 8):
        if ranks <= gpus:
            found[f"ddp on {ranks}, {size} images on each"] = job("loop", "ddp", ranks=ranks, size=size)
            found[f"ddp on {ranks}, {size} images together"] = job(
                "loop", "ddp", ranks=ranks, size=size // ranks
            )
            found[f"fsdp on {ranks}, {size} images on each"] = job("loop", "fsdp", ranks=ranks, size=size)
    words, environment = job("loop", "ddp", ranks=2, size=size)
    # NVLS, where there is a switch, would be another way over NVLink.
    environment |= {"NCCL_P2P_DISABLE": "1", "NCCL_NVLS_ENABLE": "0"}
    found[f"ddp on 2, {size} images on each, without P2P"] = (words, environment)
    return found


def languages(text=None):
    """Lesson 18, with PyTorch's source. The model of 124M parameters trains on a text of your own."""
    found = {}
    for name, (ranks, options) in LANGUAGES.items():
        if name != "124M":
            found[name] = language(ranks, options)
        elif text:
            found[name] = language(ranks, options, text)
    return found


KINDS = {
    "loop": loops,
    "gpt": gpts,
    "all-reduce": all_reduces,
    "memory": memories,
    "several": several_gpus,
    "language": languages,
}


# ---- a line for each ----------------------------------------------------------------------------


def peak():
    """What this GPU's data sheet promises in bf16, or 0 if it is not in the list."""
    gpu = torch.cuda.get_device_name(0)
    for name, tera in PEAKS.items():
        if re.search(rf"\b{name}\b(?! (?:Ti|D|Laptop))", gpu):  # these have other peaks
            return tera * 1e12
    return 0


def share_of_peak(operations):
    whole = peak()
    return f", {operations / whole:.1%} of the peak in bf16" if whole else ""


def limits(busy):
    """What the GPU does in a step, the longest first."""
    if not busy:
        return ""
    shares = []
    for kind in sorted(busy.keys() - {"busy", "hidden"}, key=busy.get, reverse=True):
        shares.append(f"{kind} {busy[kind]:.0%}")
    said = f"; GPU busy {busy['busy']:.0%}: {', '.join(shares)}"
    if "hidden" in busy:
        said += f"; NCCL beside other kernels {busy['hidden']:.0%}"
    return said


def line(row):
    """A row in words."""
    if "failed" in row:
        return row["failed"]
    for key, words in WORDS.items():
        if key in row:
            return words(row)
    raise ValueError(f"a row of an unknown kind: {row}")


def line_of_loop(row):
    share = "" if row["name"] in IN_32_BITS else share_of_peak(row["images/s"] * row["flops"])
    return f"{row['images/s']:,.0f} images/s{share}{limits(row['busy'])}"


def line_of_language(row):
    mfu = "" if row["MFU"] is None else f", MFU {row['MFU']:.1%}"
    said = f"{row['bits per byte']:.3f} bits per byte of all held-out files (xz {row['xz']:.3f})"
    return f"{row['parameters']:,} parameters: {row['tokens/s']:,.0f} tokens/s{mfu}; {said}"


def line_of_gpt(row):
    share = share_of_peak(row["flops"] / row["seconds"])
    memory = f"{row['bytes'] / 1e9:.0f} GB"
    return f"{row['tokens/s']:,.0f} tokens/s, {memory}{share}{limits(row['busy'])}"


def line_of_peers(row):
    said = []
    for number, copy in row["peers"].items():
        words = f"to GPU {number} {copy['bytes/s'] / 1e9:.0f} GB/s"
        if not copy["P2P"]:
            words += " through the host"
        if not copy["same"]:
            words += ": THE BYTES THAT ARRIVE ARE WRONG, try NCCL_P2P_DISABLE=1"
        said.append(words)
    return ", ".join(said)


def line_of_memory(row):
    return f"{row['bytes'] / 2**20:,.0f} MiB for {row['of weights'] / 2**20:,.0f} MiB of weights"


def line_of_all_reduce(row):
    seconds = {int(size): taken for size, taken in row["by size"].items()}  # JSON makes words of numbers
    said = []
    for size in (min(seconds), 2**20, max(seconds)):
        said.append(f"{size // 2**10:,} KiB {1e6 * seconds[size]:,.0f} us")
    return ", ".join(said)


# By a key that only rows of this kind have. A row of lesson 18 has tokens/s, too, so it comes before a GPT's.
WORDS = {
    "images/s": line_of_loop,
    "bits per byte": line_of_language,
    "tokens/s": line_of_gpt,
    "peers": line_of_peers,
    "of weights": line_of_memory,
    "by size": line_of_all_reduce,
}


def lacks(kind, name):
    """Why this cannot be measured here, or an empty string."""
    has_bf16 = torch.cuda.is_bf16_supported(including_emulation=False)
    if name not in IN_32_BITS and kind in ("loop", "gpt", "several") and not has_bf16:
        return "this GPU has no bf16"
    is_compiled_gpt = "compiled" in GPTS.get(name, {}).get("kinds", ())
    if name == "compile" or kind == "language" or is_compiled_gpt:
        return pretending.no_compiler()
    return ""


def read_probe(stdout):
    (said,) = [text for text in stdout.splitlines() if text.startswith('{"probe"')]
    return json.loads(said)["probe"]


def read_language(stdout):
    """What lesson 18 has printed: its last report, and the end."""
    speeds = re.findall(r"([\d,]+) tokens/s(?: \| MFU ([\d.]+)%)?$", stdout, re.M)
    speed, mfu = speeds[-1]
    return {
        "parameters": int(re.search(r"model of ([\d,]+) parameters", stdout)[1].replace(",", "")),
        "tokens/s": int(speed.replace(",", "")),
        "MFU": float(mfu) / 100 if mfu else None,
        "bits per byte": float(re.search(r"all held-out files: ([\d.]+) bits", stdout)[1]),
        "gzip": float(re.search(r"gzip ([\d.]+)", stdout)[1]),
        "xz": float(re.search(r"xz ([\d.]+)", stdout)[1]),
    }


def measure(kind, name, words, environment, limit=LIMIT):
    """Run a probe in an empty folder. The row is what it said, or how it failed."""
    row = {"kind": kind, "name": name}
    began = time.monotonic()
    try:
        with running.empty_folder() as folder:
            stdout, _ = running.finish(running.start(words, folder, environment), limit)
        row |= read_language(stdout) if kind == "language" else read_probe(stdout)
    except SystemExit as error:
        row["failed"] = reason_of(str(error))
    return row | {"took": round(time.monotonic() - began, 3)}


def reason_of(said):
    """The last error in what a failed probe has said, or its last words. torchrun's own error says less."""
    lines = []
    errors = []
    for text in said.splitlines():
        if text.strip():
            lines.append(text)
        if "rror: " in text and "ChildFailed" not in text:
            errors.append(text)
    return (errors or lines)[-1][:300]


def main():
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=formatter)
    parser.add_argument("--out", type=Path, default=Path("out"), help="folder of all that it writes (out)")
    parser.add_argument("--only", nargs="+", choices=list(KINDS), default=list(KINDS), help="what to measure")
    parser.add_argument("--text", type=Path, help="a folder of your own text, for lesson 18's largest model")
    parser.add_argument("--minutes", type=float, default=60, help="after which no more is begun (60)")
    arguments = parser.parse_args()
    if workload.gpu_count() == 0:
        return f"error: {unseen_gpu() or 'there is no GPU here'}: make bench measures the CPU"

    began = time.monotonic()
    about = {"date": datetime.date.today().isoformat(), "commit": machine.commit()}
    about |= {"machine": machine.machine(), "versions": machine.versions()}
    path = arguments.out / "results" / machine.file_name("gpu", about)
    if path.exists():  # of an earlier run on this day
        about, rows = result_files.read(path)
    else:
        rows = []
    failed = 0
    for kind in arguments.only:
        jobs = languages(arguments.text) if kind == "language" else KINDS[kind]()
        for name, (words, environment) in jobs.items():
            if time.monotonic() - began > 60 * arguments.minutes:
                print(f"{kind}, {name}: not begun after {arguments.minutes:g} minutes", flush=True)
                continue
            if reason := lacks(kind, name):
                print(f"{kind}, {name}: {reason}", flush=True)
                continue
            limit = LANGUAGE_LIMIT if kind == "language" else LIMIT
            row = measure(kind, name, words, environment, limit)
            print(f"{kind}, {name}: {line(row)}  [{row['took']:.0f} s]", flush=True)
            failed += "failed" in row
            rows.append(row)
            result_files.write(path, about, rows)
    print(f"{failed} failed. Kept: {path}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
