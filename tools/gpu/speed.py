"""The stages of `make gpu` that ask how fast it is, and what limits it."""

import math
import re
from functools import partial
from itertools import product

from tools.gpu.harness import Check, Job
from tools.testbed import pretending

# NVIDIA's data sheets and white papers, dense, 10**12 operations a second: bf16 with tensor cores that add up
# in fp32, and fp32 without tensor cores.
PEAKS = {
    "H200": (989, 67),
    "H100 80GB HBM3": (989, 67),
    "H100 PCIe": (756, 51),
    "A100": (312, 19.5),
    "L40S": (362, 91.6),
    "L4": (121, 30.3),
    "A10": (125, 31.2),
    "RTX 5090": (209.5, 104.8),
    "RTX 4090": (165.2, 82.6),
    "RTX 3090": (71, 35.6),
}
STEPS = {
    "repeatable": "a plain loop in fp32 that writes the same bytes each time, as the lessons do",
    "plain": "a plain loop with PyTorch's defaults",
    "input": "with the images kept and prepared on the GPU",
    "bf16": "with bf16",
    "channels_last": "with channels_last",
    "benchmark": "with cuDNN's fastest kernels",
    "fused": "with a fused optimizer",
    "compile": "with torch.compile",
}
# Each with what the one before it has, but for the last, whose scores take too much memory for 32 texts.
GPTS = {
    "gpt": {},
    "gpt, compiled": {"kinds": ["compiled"]},
    "gpt, batches of 16": {"kinds": ["compiled"], "size": 16},
    "gpt, one product for query, key and value": {"kinds": ["compiled", "fused"], "size": 16},
    "gpt, batches of 32": {"kinds": ["compiled", "fused"], "size": 32, "steps": 5},
    "gpt, cuDNN's attention": {"kinds": ["compiled", "fused", "cudnn"], "size": 32, "steps": 5},
    "gpt, 50,304 words": {"kinds": ["compiled", "fused"], "size": 16, "characters": 50304},
}
IN_FP32 = ("repeatable", "plain", "input")
SMALL_LOOP = {"width": 4, "images": 32, "size": 8, "rounds": 1, "steps": 2}
SMALL_GPT = {"hidden": 32, "layers": 1, "heads": 2, "length": 16, "size": 2, "steps": 1, "rounds": 1}


def share_of_peak(check: Check, operations: float, is_fp32: bool = False) -> str:
    """Of what the data sheet promises for this kind of numbers."""
    gpu = (check.facts.get("gpus") or [""])[0]
    for name, peaks in PEAKS.items():
        if re.search(rf"\b{name}\b(?! (?:Ti|D|Laptop))", gpu):  # these have other peaks
            share = operations / (peaks[is_fp32] * 1e12)
            return f"{share:.1%} of the {'fp32' if is_fp32 else 'bf16'} peak"
    return "an unknown share of the peak"


def limits(busy: dict[str, float]) -> str:
    if not busy:
        return "nothing was seen on a GPU"
    kinds = sorted(busy.keys() - {"busy", "hidden"}, key=busy.get, reverse=True)
    hidden = f"; NCCL beside other kernels {busy['hidden']:.0%}" if "hidden" in busy else ""
    return f"GPU busy {busy['busy']:.0%}: " + ", ".join(f"{name} {busy[name]:.0%}" for name in kinds) + hidden


def loop(check: Check, step: str, **options) -> Job:
    job = check.probe("loop", step, **(SMALL_LOOP if check.is_rehearsal else {}) | options)
    job.memory = 0 if check.is_rehearsal else 8e9  # 7.3 in fp32, on an H100, and CUDA's context
    return job


def gpt(check: Check, kinds: tuple = (), **options) -> Job:
    job = check.probe("gpt", *kinds, **options | (SMALL_GPT if check.is_rehearsal else {}))
    job.memory = 0 if check.is_rehearsal else needs(**options)
    job.seconds = 70  # compiling takes over 40 of these
    return job


def needs(size: int = 8, characters: int = 64, **options) -> float:
    """Bytes of the GPU's memory, about: 607 million parameters with AdamW, the texts, and scores of words."""
    return (10 + 1.2 * size) * 1e9 + characters * (2 * 16 * 2048 + 12 * size * 1024)


def spread(rounds: list[float]) -> str:
    return f"{min(rounds):,.0f} to {max(rounds):,.0f} in {len(rounds)} rounds"


def title(name: str) -> str:
    """Of its row."""
    return f"ResNet-18, {STEPS[name]}" if name in STEPS else f"a large {name}"


def is_compiled(name: str) -> bool:
    return name == "compile" or "compiled" in GPTS.get(name, {}).get("kinds", ())


def lacks(check: Check, name: str, job: Job) -> str:
    """Why it cannot be measured here, or an empty string."""
    if job.memory > check.room:
        return f"needs {job.memory / 1e9:.0f} GB, and {check.room / 1e9:.0f} are free"
    if name not in IN_FP32 and check.facts.get("bf16") is False:
        return "this GPU has no bf16"
    return pretending.no_compiler() if is_compiled(name) else ""


def alone(check: Check) -> None:
    """All prepare at once, which is most of their time, and have turns to be measured: see probes.py. What no
    GPU has shown yet comes first."""
    jobs = {}
    for name in sorted((*STEPS, *GPTS), key=lambda name: title(name) in check.before):
        job = loop(check, name) if name in STEPS else gpt(check, **GPTS[name])
        # On two cores, compiling takes longer than all the rest.
        is_left_out = is_compiled(name) if check.is_rehearsal else check.is_left_out(title(name))
        if is_left_out:
            continue
        if reason := lacks(check, name, job):
            check.row(title(name), reason, "", "not run")
        else:
            jobs[name] = job

    def step_of_resnet(said, name):
        check.facts.setdefault("ladder", {})[name] = said
        peak = share_of_peak(check, said["images/s"] * said["flops"], name == "repeatable")
        waits = f"{said['input']:.0%} of a step for input"
        speed = f"{said['images/s']:,.0f} images/s ({spread(said['rounds'])})"
        return f"{speed}, {peak}, {waits}; {limits(said['busy'])}"

    def large_gpt(said, name):
        check.facts.setdefault("gpt", {})[name] = said
        size = f"{said['parameters'] / 1e6:,.0f} million parameters"
        peak = share_of_peak(check, said["flops"] / said["seconds"])
        causal = share_of_peak(check, said["causal"] / said["seconds"])
        speed = f"{said['tokens/s']:,.0f} tokens/s, {size}, {said['bytes'] / 1e9:.0f} GB, {peak}"
        return f"{speed} ({causal} if attention is causal); {limits(said['busy'])}"

    def row(name, child):
        look = step_of_resnet if name in STEPS else large_gpt
        check.judge(title(name), [child], partial(look, name=name))

    check.run(jobs, row)


def memory(check: Check) -> None:
    counts = (1, 2) if check.is_rehearsal else (1, 2, 4)
    width = {"width": 128, "layers": 4} if check.is_rehearsal else {"width": 2048}
    times = {"times": 2, "largest": 20} if check.is_rehearsal else {}
    (child,) = check.run({"all-reduce": check.probe("sizes", ranks=2, **times)}).values()
    how = {0: " on the CPU", 1: " that share a GPU"}.get(check.gpus, ", a GPU each")

    def sizes(said):
        found = check.facts["all-reduce"] = {int(size): seconds for size, seconds in said["seconds"].items()}
        shown = (min(found), 2**20, max(found))
        return ", ".join(f"{size // 2**10:,} KiB {1e6 * found[size]:,.0f} us" for size in shown)

    def held(said):
        if not said["bytes"]:
            return "it ran; nothing counts memory here"
        most, weights = (f"{said[name] / 2**20:,.0f} MiB" for name in ("bytes", "of weights"))
        return f"{most} for {weights} of weights"

    def falls(ddp, fsdp):
        share = fsdp["bytes"] / ddp["bytes"]
        return f"{share:.2f} of DDP's", share < 0.6  # a rank of 4 holds a quarter, and a layer or two

    check.judge(f"all-reduce on 2 ranks{how}", [child], sizes)
    jobs = {}
    for kind, ranks in product(("ddp", "fsdp"), counts):
        job = check.probe("memory", kind, ranks=ranks, **width)
        # 1.7 GB on an H100, and CUDA's context.
        job.memory = 0 if check.is_rehearsal else 2.5e9 * math.ceil(ranks / max(1, check.gpus))
        jobs[f"peak memory of a rank, {kind} on {ranks}"] = job
    jobs = {name: job for name, job in jobs.items() if not check.is_left_out(name)}
    found = check.run(jobs, lambda name, child: check.judge(name, [child], held))
    both = [f"peak memory of a rank, {kind} on {counts[-1]}" for kind in ("ddp", "fsdp")]
    if not check.is_rehearsal and set(both) <= jobs.keys():
        children = [found[name] for name in both]
        check.judge(f"fsdp against ddp on {counts[-1]}", children, falls, "less than 0.6")


def several_gpus(check: Check) -> None:
    """P2P, scaling, and whether communication is hidden behind computation."""
    if check.gpus < 2:
        return check.row("P2P, scaling", "needs two GPUs", "", "not run")
    (child,) = check.run({"peers": check.probe("peers", power=20 if check.is_rehearsal else 28)}).values()

    def peers(said):
        found = check.facts["peers"] = said["peers"]
        wrong = "the bytes that arrive are not those that were sent (try NCCL_P2P_DISABLE=1)"
        shown = ", ".join(
            f"GPU {number} {each['bytes/s'] / 1e9:.0f} GB/s{', through the host' * (not each['P2P'])}"
            f"{(', ' + wrong) * (not each['same'])}"
            for number, each in found.items()
        )
        return shown, all(each["same"] for each in found.values())

    check.judge("P2P from GPU 0 and back", [child], peers, "the same bytes")
    size = 16 if check.is_rehearsal else 1024
    most = max(n for n in (2, 4, 8) if n <= check.gpus)
    weak = f"{size} images on each"
    # What matters most comes first: each takes about 20 seconds.
    runs = [("ddp", 1, size, weak), ("ddp", most, size, weak), ("ddp", most, size, "without P2P")]
    runs += [("ddp", most, size // most, f"{size} images together"), ("fsdp", most, size, weak)]
    runs += [("ddp", ranks, size, weak) for ranks in (2, 4) if ranks < most]
    runs += [("ddp", ranks, size // ranks, f"{size} images together") for ranks in (2, 4) if ranks < most]
    if not any(each["P2P"] for each in check.facts.get("peers", {1: {"P2P": True}}).values()):
        runs = [run for run in runs if run[-1] != "without P2P"]  # as all the others are
    has_bf16 = check.facts.get("bf16") is not False
    for kind, ranks, each, how in runs:
        job = loop(check, kind, ranks=ranks, size=each, bf16=int(has_bf16))
        if how == "without P2P":  # NVLS, where there is a switch, would be another way over NVLink
            job.environment |= {"NCCL_P2P_DISABLE": 1, "NCCL_NVLS_ENABLE": 0}
        name = f"{kind} on {ranks}, {how}"
        (child,) = check.run({name: job}).values()  # one after the other: they would share GPUs

        def look(said, ranks=ranks, name=name):
            check.facts.setdefault("scaling", {})[name] = said
            shown = f"{said['images/s']:,.0f} images/s ({spread(said['rounds'])})"
            if one := check.facts["scaling"].get(f"ddp on 1, {weak}"):
                shown += f", {said['images/s'] / one['images/s'] / ranks:.2f} of ideal"
            return f"{shown}; {limits(said['busy'])}"

        check.judge(f"ResNet-18 in {'bf16' if has_bf16 else 'fp32'}, {name}", [child], look)
    return None
