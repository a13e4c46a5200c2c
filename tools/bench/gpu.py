"""The bench's row for a GPU. Nobody has had one yet: it was tried on a CPU only, in small."""

import functools
import json
import os
import statistics
import sys

import report
import rows

STEPS = {
    "0": "a plain loop in fp32",
    "1": "and bf16",
    "2": "and channels_last",
    "3": "and torch.compile, a fused optimizer",
    "4": "and the images kept on the GPU",
}
STEM = "04_ddp_torchrun"
CUTS = {"ddp": "DDP, all GPUs", "fsdp": "FSDP, all GPUs"}
# Data sheets, dense, 10**12 operations a second: bf16 with tensor cores, fp32 without.
PEAKS = {
    "H200": (989, 67),
    "H100 80GB HBM3": (989, 67),
    "H100 PCIe": (756, 51),
    "A100": (312, 19.5),
    "L40S": (362, 91.6),
}


def visible():
    """The GPUs that this command may use, by number. The other rows hide them."""
    import torch

    numbers = os.environ.get("CUDA_VISIBLE_DEVICES", ",".join(map(str, range(torch.cuda.device_count()))))
    return [number for number in numbers.split(",") if number]


def run(folder, step, arguments=()):
    words = [sys.executable, rows.HERE / "gpu_loop.py", step, *arguments]
    if step in CUTS:
        launch = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", max(1, len(visible())))
        words[1:1] = launch
    stdout, _ = rows.finish(rows.start(words, folder, CUDA_VISIBLE_DEVICES=",".join(visible())))
    return {"gpu": {step: json.loads(stdout.splitlines()[-1])}}


def ddp(folder, processes, arguments=()):
    """Lesson 04 with the large model and a large batch, on so many GPUs."""
    words = ("--epochs", 3, "--batch-size", 1200, *arguments)
    some = ",".join(visible()[:processes])
    started = rows.lesson(STEM, processes, folder, *words, variant="large", CUDA_VISIBLE_DEVICES=some)
    rows.finish(started)
    return {"ddp on GPUs": {str(processes): rows.speed(folder, STEM)}}


def measures():
    steps = {f"GPU: {words}": functools.partial(run, step=step) for step, words in (STEPS | CUTS).items()}
    counts = range(1, min(4, len(visible())) + 1)
    return steps | {f"lesson 04 on {count} GPUs": functools.partial(ddp, processes=count) for count in counts}


def text(result):
    found, name = result["rows"]["gpu"], result["machine"]["gpus"][0]
    peaks = next((peaks for part, peaks in PEAKS.items() if part in name), None)
    count = len(result["machine"]["gpus"])
    lines, share = [], None
    for step, words in (STEPS | CUTS).items():
        speed = found[step]["images/s"]
        share = None
        if peaks:
            peak = peaks[step == "0"] * 1e12 * (count if step in CUTS else 1)
            share = statistics.median(speed) * found[step]["flops"][0] / peak
        lines.append(
            [
                words,
                report.middle(speed),
                report.reach(speed),
                f"{report.ratio(speed, found['0']['images/s']):.1f}",
                f"{share:.0%}" if share is not None else "",
                report.middle(found[step]["bytes"], 2**-30, 1),
            ]
        )
    head = ["", "images/s", "least to most", "times the plain loop", "MFU", "GiB"]
    times = report.ratio(found["4"]["images/s"], found["0"]["images/s"])
    words = f"The aim is 8 times the plain loop on an H100 {report.verdict(times, 8)}"
    if peaks:
        used = statistics.median(found["4"]["images/s"]) * found["4"]["flops"][0] / (peaks[0] * 1e12)
        words += f" and 35% MFU {report.verdict(100 * used, 35, unit='%')}"
    alone, *more = result["rows"]["ddp on GPUs"].items()
    shares = [f"{report.ratio(speed, alone[1], int(number)):.2f} on {number}" for number, speed in more]
    scaling = f" Lesson 04 with the large model, of ideal: {', '.join(shares)}." if shares else ""
    return f"""**On a GPU** ({count} x {name}): lesson 08's ResNet-18, 1,024 images of 32x32 a step for each GPU.

{report.table(head, lines)}

{words}. MFU is the share of what the data sheet promises for the kind of numbers that is used: fp32 in the first row, bf16 in the others.{scaling}"""
