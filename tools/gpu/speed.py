"""The stages of `make gpu` that ask how fast it is, how much memory it takes, and what limits it."""

import json
import re

from harness import Check, Job, Result, small

import launcher

# Data sheets, dense, 10**12 operations a second: bf16 with tensor cores, fp32 without.
PEAKS = {
    "H200": (989, 67),
    "H100 80GB HBM3": (989, 67),
    "H100 PCIe": (756, 51),
    "A100": (312, 19.5),
    "L40S": (362, 91.6),
}
STEPS = {
    "plain": "a plain loop in fp32",
    "input": "with the images kept and prepared on the GPU",
    "bf16": "with bf16",
    "channels_last": "with channels_last",
    "fused": "with a fused optimizer, and cuDNN's fastest kernels",
    "compile": "with torch.compile",
}
LESSONS = ("01_single_gpu", "04_ddp_torchrun", "07_mixed_precision")
EPOCHS = {120: 6, 1200: 20, 12_000: 40}  # by batch: of 100, 10 and 1 steps
SMALL_EPOCHS = {24: 3}
INPUTS = ("pageable", "pinned", "resident")
SMALL_LOOP = {"width": 4, "images": 32, "size": 8, "rounds": 1, "steps": 2}
SMALL_GPT = {"hidden": 32, "layers": 1, "heads": 2, "length": 16, "size": 2, "steps": 1}


def share_of_peak(check: Check, operations: float, is_fp32: bool = False) -> float | None:
    """Of what the data sheet promises for this kind of numbers; None for a GPU whose sheet is not here."""
    for name, peaks in PEAKS.items():
        if check.facts.get("gpus") and name in check.facts["gpus"][0]:
            return operations / (peaks[is_fp32] * 1e12)
    return None


def percent(share: float | None) -> str:
    return "unknown" if share is None else f"{share:.1%}"


def limits(busy: dict[str, float]) -> str:
    if not busy:
        return "nothing was seen on a GPU"
    kinds = sorted((name for name in busy if name != "busy"), key=busy.get, reverse=True)
    return f"GPU busy {busy['busy']:.0%}: " + ", ".join(f"{name} {busy[name]:.0%}" for name in kinds)


def loop(check: Check, step: str, **options) -> Job:
    return check.probe("loop", step, **options, **(SMALL_LOOP if check.is_rehearsal else {}))


def alone(check: Check) -> None:
    # The slowest to prepare come first.
    jobs: dict[str, Job] = {}
    gpt = {"limit": 20} | (SMALL_GPT if check.is_rehearsal else {})
    steps = list(STEPS)
    if check.is_real("torch.compile"):
        jobs["compile"] = loop(check, "compile", limit=20)
        jobs["gpt compiled"] = check.probe("gpt", is_compiled=1, **gpt)
    else:
        steps.remove("compile")
    jobs["gpt"] = check.probe("gpt", **gpt)
    jobs |= {step: loop(check, step, limit=20) for step in steps if step != "compile"}
    size, steps_of_input = (24, 2) if check.is_rehearsal else (1200, 200)
    jobs |= {kind: check.probe("inputs", kind, size=size, steps=steps_of_input, limit=20) for kind in INPUTS}
    epochs = SMALL_EPOCHS if check.is_rehearsal else EPOCHS
    few = ("--train-size", 240) if check.is_rehearsal else ()
    trained = [(batch, stem) for batch in epochs for stem in LESSONS]
    for batch, stem in trained:
        options = ("--batch-size", batch, "--epochs", epochs[batch], *few, "--test-size", 60)
        jobs[f"{stem}, {batch:,}"] = check.lesson(stem, 1, *options, variant="watched")
    found = check.take_turns(jobs)
    ladder(check, {step: found[step] for step in steps})
    large_gpt(check, {name: found[name] for name in ("gpt", "gpt compiled") if name in found})
    for kind in INPUTS:
        check.judge(f"images of batches of {size:,}, {kind}", [found[kind]], bring)
    for batch, stem in trained:

        def look(result, batch=batch, stem=stem):
            said = result.said()
            check.facts.setdefault("lessons", {}).setdefault(stem, {})[batch] = said
            return f"{said['images/s']:,.0f} images/s, {limits(said['busy'])}"

        check.judge(f"{stem}, batches of {batch:,}", [found[f"{stem}, {batch:,}"]], look)
    check.is_real("speed")
    check.is_real("kernels")


def bring(result: Result) -> str:
    said = result.said()
    return f"{said['images/s']:,.0f} images/s, {said['input']:.0%} of a step for input"


def ladder(check: Check, found: dict[str, Result]) -> None:
    for step, result in found.items():

        def look(result, step=step):
            said = check.facts.setdefault("ladder", {})[step] = result.said()
            is_fp32 = step in ("plain", "input")
            said["mfu"] = share_of_peak(check, said["images/s"] * said["flops"], is_fp32)
            peak = f"{percent(said['mfu'])} of the {'fp32' if is_fp32 else 'bf16'} peak"
            speed, _, inputs = bring(result).partition(", ")
            return f"{speed}, {peak}, {inputs}; {limits(said['busy'])}"

        check.judge(f"ResNet-18, {STEPS[step]}", [result], look)
    worked = {step: result for step, result in found.items() if not result.problem}
    if "plain" not in worked or len(worked) < 2:
        missing = next((each for each in found.values() if each.problem), Result(check.folder, "missing"))
        return check.judge("ResNet-18, the best step", [missing], lambda result: "", "8 times the plain loop")
    speeds = {step: result.said()["images/s"] for step, result in worked.items()}
    best = max((step for step in speeds if step != "plain"), key=speeds.get)
    times, standing = speeds[best] / speeds["plain"], worked[best].said()["input"]
    results = [worked[best], worked["plain"]]
    reached = f"{times:.1f} times, by: {STEPS[best]}", times >= 8
    goal(check, "ResNet-18, the best step", results, reached, "at least 8 times the plain loop")
    stood = f"{standing:.1%}", standing <= 0.05
    return goal(check, "its steps stand still for input", results, stood, "at most 5% of a step")


def large_gpt(check: Check, found: dict[str, Result]) -> None:
    shares = {}
    for name, result in found.items():

        def look(result, name=name):
            said = check.facts.setdefault("gpt", {})[name] = result.said()
            shares[name] = said["mfu"] = share_of_peak(check, said["flops"] / said["seconds"])
            size = f"{said['parameters'] / 1e6:,.0f} million parameters"
            peak = f"{percent(said['mfu'])} of the bf16 peak; {limits(said['busy'])}"
            return f"{said['tokens/s']:,.0f} tokens/s, {size}, {peak}"

        check.judge(f"a large {name}", [result], look)
    known = {name: share for name, share in shares.items() if share is not None}
    name, expected = "a large gpt, the best", "at least 35% of the bf16 peak"
    if not known:
        return check.row(name, "share of the peak unknown", expected)
    best = max(known, key=known.get)
    return goal(check, name, [found[best]], (f"{known[best]:.1%} ({best})", known[best] >= 0.35), expected)


def goal(check: Check, name: str, results: list, found: tuple[str, bool], expected: str) -> None:
    """A goal is for a GPU: a rehearsal only shows the number."""
    shown = found[0] if check.is_rehearsal else found
    check.judge(name, results, lambda *each: shown, expected, goal=not check.is_rehearsal)


# ---- memory, saving, sizes ----------------------------------------------------------------------


def memory(check: Check) -> None:
    counts = (1, 2) if check.is_rehearsal else (1, 2, 4)
    width = {"width": 128, "layers": 4} if check.is_rehearsal else {"width": 2048}
    size = ("--train-size", 240 if check.is_rehearsal else 1200, "--test-size", 60)
    jobs = {
        "saving": check.lesson("09_fsdp", 2, "--epochs", 3, *size, variant="wide,saving"),
        "all-reduce": check.probe("sizes", ranks=2, **({"times": 2} if check.is_rehearsal else {})),
    }
    for kind in ("fsdp", "ddp"):
        for ranks in counts:
            jobs[f"{kind}, {ranks}"] = check.probe("memory", kind, ranks=ranks, **width)
    found = check.run(jobs)
    for kind in ("ddp", "fsdp"):
        for ranks in counts:

            def look(result, kind=kind, ranks=ranks):
                said = result.said()
                if said["bytes"] == 0:
                    return "it ran; nothing counts memory here"
                check.facts.setdefault("memory", {}).setdefault(kind, {})[ranks] = said["bytes"]
                held, weights = (f"{said[name] / 2**20:,.0f} MiB" for name in ("bytes", "of weights"))
                return f"{held} for {weights} of weights"

            check.judge(f"peak memory of a rank, {kind} on {ranks}", [found[f"{kind}, {ranks}"]], look)

    def falls(ddp, fsdp):
        share = fsdp.said()["bytes"] / ddp.said()["bytes"]
        return f"{share:.2f} of DDP's", share < 0.6  # a rank of 4 holds a quarter, and a layer or two

    if check.is_real("memory"):
        most = counts[-1]
        both = [found[f"ddp, {most}"], found[f"fsdp, {most}"]]
        check.judge(f"fsdp against ddp on {most}", both, falls, "less than 0.6")
    check.judge("an asynchronous save of lesson 09, 8 million parameters", [found["saving"]], stall)
    check.judge("all-reduce on 2 ranks", [found["all-reduce"]], lambda result: sizes(check, result))


def stall(result: Result) -> str:
    (line,) = re.findall(r'^\{"saving": .*\}$', result.stderr, re.M)
    said = json.loads(line)["saving"]
    stood = sorted(said["stood"])[len(said["stood"]) // 2]
    return f"stands still for {1000 * stood:.0f} ms of {said['bytes'] / 1e6:.0f} MB"


def sizes(check: Check, result: Result) -> str:
    found = {int(size): seconds for size, seconds in result.said()["seconds"].items()}
    check.facts["all-reduce"] = found
    shown = [min(found), 2**20, max(found)]
    return ", ".join(f"{size // 2**10:,} KiB {1e6 * found[size]:,.0f} us" for size in shown if size in found)


# ---- several GPUs -------------------------------------------------------------------------------


def several_gpus(check: Check) -> None:
    """P2P, DataParallel and true scaling. A rehearsal on the CPU scales over two ranks."""
    if check.gpus < 2 and not check.is_rehearsal:
        return check.row("P2P, DataParallel, scaling", "needs two GPUs", "", "not here")
    counts = [n for n in (1, 2, 4, 8) if n <= max(2, check.gpus)]
    few = (*small("02_data_parallel"), "--epochs", 2)
    stems = {"02": "02_data_parallel", "01": LESSONS[0]}
    prepare = {name: check.lesson(stem, 1, *few) for name, stem in stems.items()}
    if check.gpus >= 2:
        prepare["peers"] = check.probe("peers", power=20 if check.is_rehearsal else 28)
    found = check.run(prepare)
    if "peers" in found:
        check.judge("P2P from GPU 0", [found["peers"]], peers)
        check.is_real("P2P")
    else:
        check.row("P2P", "needs two GPUs", "", "not here")

    def data_parallel(*both):
        curves = map(launcher.read_curve, (each.out for each in both), stems.values())
        different = launcher.difference(*curves)
        return different or "the curve of 01", not different

    check.judge("DataParallel", [found["02"], found["01"]], data_parallel, "the curve of 01")
    speeds: dict[tuple[str, int], float] = {}
    asked = [("ddp", ranks) for ranks in counts] + [("fsdp", counts[-1])]
    for kind, ranks in asked:  # one after the other: they would share GPUs
        result = check.run_one(loop(check, kind, ranks=ranks))

        def look(result, kind=kind, ranks=ranks):
            speeds[kind, ranks] = result.said()["images/s"]
            share = speeds[kind, ranks] / speeds["ddp", 1] / ranks
            return f"{speeds[kind, ranks]:,.0f} images/s, {share:.2f} of ideal"

        check.judge(f"ResNet-18 in bf16, {kind} on {ranks}", [result], look)
    return None


def peers(result: Result) -> str:
    found = result.said()["peers"].items()
    return ", ".join(
        f"GPU {number} {'directly' if each['P2P'] else 'through the host'} {each['bytes/s'] / 1e9:.0f} GB/s"
        for number, each in found
    )
