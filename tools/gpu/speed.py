"""The stages of `make gpu` that ask how fast it is, how much memory it takes, and what limits it."""

import json
import re
import sys

from harness import HERE, Check, Job, Result

import launcher
import lessons

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
SMALL_LOOP = ("--width", 4, "--images", 32, "--batch-size", 8, "--rounds", 1, "--steps", 2)
SMALL_GPT = ("--hidden", 32, "--layers", 1, "--heads", 2, "--length", 16, "--batch-size", 2, "--steps", 1)


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


def loop(check: Check, step: str, *arguments, ranks: int = 0, **options) -> Job:
    return check.probe(
        "loop", step, *(SMALL_LOOP if check.is_rehearsal else arguments), ranks=ranks, **options
    )


def train(check: Check, stem: str, batch: int, epochs: int) -> Job:
    """A lesson as it is, watched by watched.py."""
    size = ("--train-size", 240) if check.is_rehearsal else ()
    job = check.lesson(stem, 1, "--batch-size", batch, "--epochs", epochs, *size, "--test-size", 60)
    job.words.insert(job.words.index(str(lessons.get(stem).path)), HERE / "watched.py")
    return job


def alone(check: Check) -> None:
    # The slowest to prepare come first.
    jobs: dict[str, Job] = {}
    gpt = SMALL_GPT if check.is_rehearsal else ()
    steps = list(STEPS)
    if check.is_real("torch.compile"):
        jobs["compile"] = loop(check, "compile", limit=20)
        jobs["gpt compiled"] = check.probe("gpt", "--compile", *gpt, limit=20)
    else:
        steps.remove("compile")
    jobs["gpt"] = check.probe("gpt", *gpt, limit=20)
    jobs |= {step: loop(check, step, limit=20) for step in steps if step != "compile"}
    size, steps_of_input = (24, 2) if check.is_rehearsal else (1200, 200)
    for kind in INPUTS:
        words = ("--batch-size", size, "--steps", steps_of_input)
        jobs[kind] = check.probe("inputs", kind, *words, limit=20)
    epochs = SMALL_EPOCHS if check.is_rehearsal else EPOCHS
    for batch in epochs:
        jobs |= {f"{stem}, {batch:,}": train(check, stem, batch, epochs[batch]) for stem in LESSONS}
    found = check.take_turns(jobs)
    ladder(check, {step: found[step] for step in steps})
    large_gpt(check, {name: found[name] for name in ("gpt", "gpt compiled") if name in found})
    for kind in INPUTS:
        check.judge(f"images of batches of {size:,}, {kind}", [found[kind]], bring)
    for batch in epochs:
        for stem in LESSONS:

            def look(result, batch=batch, stem=stem):
                said = result.said()
                place = check.facts.setdefault("lessons", {}).setdefault(stem, {})
                place[batch] = said
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
            share = said["mfu"] = share_of_peak(
                check, said["images/s"] * said["flops"], is_fp32=step in ("plain", "input")
            )
            kind = "fp32" if step in ("plain", "input") else "bf16"
            return (
                f"{said['images/s']:,.0f} images/s, {percent(share)} of the {kind} peak, "
                f"{said['input']:.0%} of a step for input; {limits(said['busy'])}"
            )

        check.judge(f"ResNet-18, {STEPS[step]}", [result], look)
    worked = {step: result for step, result in found.items() if not result.problem}
    if "plain" not in worked or len(worked) < 2:
        missing = next((each for each in found.values() if each.problem), Result(check.folder, "missing"))
        return check.judge("ResNet-18, the best step", [missing], lambda result: "", "8 times the plain loop")
    speeds = {step: result.said()["images/s"] for step, result in worked.items()}
    best = max((step for step in speeds if step != "plain"), key=speeds.get)
    times, standing = speeds[best] / speeds["plain"], worked[best].said()["input"]
    results = [worked[best], worked["plain"]]

    def reached(*_):
        return f"{times:.1f} times, by: {STEPS[best]}", times >= 8

    def stood(*_):
        return f"{standing:.1%}", standing <= 0.05

    goal(check, "ResNet-18, the best step", results, reached, "at least 8 times the plain loop")
    goal(check, "its steps stand still for input", results, stood, "at most 5% of a step")
    return None


def large_gpt(check: Check, found: dict[str, Result]) -> None:
    shares = {}
    for name, result in found.items():

        def look(result, name=name):
            said = check.facts.setdefault("gpt", {})[name] = result.said()
            shares[name] = said["mfu"] = share_of_peak(check, said["flops"] / said["seconds"])
            return (
                f"{said['tokens/s']:,.0f} tokens/s, {said['parameters'] / 1e6:,.0f} million parameters, "
                f"{percent(said['mfu'])} of the bf16 peak; {limits(said['busy'])}"
            )

        check.judge(f"a large {name}", [result], look)
    known = {name: share for name, share in shares.items() if share is not None}
    if not known:
        return check.row(
            "a large gpt, the best", "share of the peak unknown", "at least 35% of the bf16 peak"
        )
    best = max(known, key=known.get)

    def reached(_):
        return f"{known[best]:.1%} ({best})", known[best] >= 0.35

    goal(check, "a large gpt, the best", [found[best]], reached, "at least 35% of the bf16 peak")
    return None


def goal(check: Check, name: str, results: list, look, expected: str) -> None:
    """A goal is for a GPU: a rehearsal only shows the number."""
    if check.is_rehearsal:
        check.judge(name, results, lambda *each: look(*each)[0], expected)
    else:
        check.judge(name, results, look, expected, goal=True)


# ---- memory, saving, sizes ----------------------------------------------------------------------


def memory(check: Check) -> None:
    counts = (1, 2) if check.is_rehearsal else (1, 2, 4)
    width = ("--width", 128, "--layers", 4) if check.is_rehearsal else ("--width", 2048)
    jobs = {"saving": saving(check)}
    jobs["all-reduce"] = check.probe("sizes", *(("--times", 2) if check.is_rehearsal else ()), ranks=2)
    for kind in ("fsdp", "ddp"):
        for ranks in counts:
            jobs[f"{kind}, {ranks}"] = check.probe("memory", kind, *width, ranks=ranks)
    found = check.run(jobs)
    for kind in ("ddp", "fsdp"):
        for ranks in counts:

            def look(result, kind=kind, ranks=ranks):
                said = result.said()
                if said["bytes"] == 0:
                    return "it ran; nothing counts memory here"
                check.facts.setdefault("memory", {}).setdefault(kind, {})[ranks] = said["bytes"]
                return (
                    f"{said['bytes'] / 2**20:,.0f} MiB for {said['of weights'] / 2**20:,.0f} MiB of weights"
                )

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


def saving(check: Check) -> Job:
    size = ("--train-size", 240) if check.is_rehearsal else ("--train-size", 1200)
    job = check.lesson("09_fsdp", 2, "--epochs", 3, *size, "--test-size", 60)
    place = job.words.index(str(lessons.get("09_fsdp").path))
    job.environment |= {"VARIANT": "wide,saving", "VARIANT_OF": job.words[place]}
    job.words[place] = launcher.ROOT / "tools/bench/variant.py"
    return job


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
    small = (*lessons.get("02_data_parallel").small.split(), "--epochs", 2)
    prepare = {"02": check.lesson("02_data_parallel", 1, *small), "01": check.lesson(LESSONS[0], 1, *small)}
    if check.gpus >= 2:
        power = 20 if check.is_rehearsal else 28
        prepare["peers"] = Job([sys.executable, HERE / "peers.py", "--bytes", 2**power])
    found = check.run(prepare)
    if "peers" in found:
        check.judge("P2P from GPU 0", [found["peers"]], peers)
        check.is_real("P2P")
    else:
        check.row("P2P", "needs two GPUs", "", "not here")

    def data_parallel(one, other):
        curves = launcher.read_curve(one.out, "02_data_parallel"), launcher.read_curve(other.out, LESSONS[0])
        different = launcher.difference(*curves)
        return different or "the curve of 01", not different

    check.judge("DataParallel", [found["02"], found["01"]], data_parallel, "the curve of 01")
    speeds: dict[tuple[str, int], float] = {}
    asked = [("ddp", ranks) for ranks in counts] + [("fsdp", counts[-1])]
    for kind, ranks in asked:  # one after the other: they would share GPUs
        (result,) = check.run({kind: loop(check, kind, ranks=ranks)}).values()

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
