"""The stages of `make gpu` that ask whether it is right."""

import os
import shutil
import signal
import threading
import time
from collections.abc import Callable

from harness import Check, Child, Result, small

import launcher
import lessons

EPOCHS = ("--epochs", 2)
CPU = {"CUDA_VISIBLE_DEVICES": ""}
# cuDNN may compute a convolution by Winograd's algorithm, which rounds more. TF32 would be off by 3e-4.
EXACT = "relative error under 1e-5"
EQUAL = "the same bytes"
RANK_STEMS = (
    *("04_ddp_torchrun", "06_multinode", "06b_preemption", "09_fsdp"),
    *("11_tensor_parallel", "12_mesh", "13_gpt"),
)
OPTIONS_09 = (("--precision", "bf16"), ("--checkpoint-activations",), ("--offload",), ("--no-reshard",))
SCHEDULES = ("1f1b", "naive", "gpipe", "interleaved")
REHEARSED = ("04_ddp_torchrun", "06_multinode", "09_fsdp", "13_gpt")
# Not 13: torch calls the backward of its attention on GPUs non-deterministic; see deterministic.py.
FP16 = launcher.ROOT / "lessons/parts/fp16.py"
BYTES = ("04_ddp_torchrun", "09_fsdp")


def same_bytes(stem: str) -> Callable:
    def look(one: Result, other: Result):
        equal = (one.out / f"{stem}.pt").read_bytes() == (other.out / f"{stem}.pt").read_bytes()
        return ("the same" if equal else "other ones"), equal

    return look


def same_curve(stem: str, of: str = "", limits: lessons.Curve = launcher.THE_SAME) -> Callable:
    def look(one: Result, reference: Result):
        curves = launcher.read_curve(one.out, stem), launcher.read_curve(reference.out, of or stem)
        off = max(abs(row["loss"] / expected["loss"] - 1) for row, expected in zip(*curves, strict=True))
        different = launcher.difference(*curves, limits)
        return different or f"losses off by {off:.1e} at most", not different

    return look


def within(limits: lessons.Curve) -> str:
    return f"losses within {limits.early:g}"


# ---- what is here -------------------------------------------------------------------------------


def numerics(check: Check) -> None:
    (result,) = check.run({"numerics": check.probe("numerics")}).values()

    def versions(result):
        found = result.said()
        check.facts["gpus"], check.facts["versions"] = found["gpus"], found["versions"]
        named = ", ".join(f"{name} {version}" for name, version in found["versions"].items())
        return f"{', '.join(found['gpus']) or 'no GPU'}; {named}", len(found["gpus"]) == check.gpus

    def flags(result):
        expected = {
            "cudnn.benchmark": False,
            "cudnn.deterministic": True,
            "convolutions": "ieee",
            "products": "ieee",
            "old flag of TF32": False,
        }
        found = result.said()["flags"]
        return ", ".join(f"{name} {value}" for name, value in found.items()), found == expected

    check.judge("the machine", [result], versions, check.where())
    check.judge("flags after set_seed", [result], flags, "repeatable, and fp32 with 32 bits")
    for name in ("convolution", "product"):

        def look(result, name=name):
            error = result.said()[name]
            return f"{error:.1e}", error < 1e-5

        check.judge(f"a {name} in fp32 against float64", [result], look, EXACT)


# ---- one rank -----------------------------------------------------------------------------------


def one_rank(check: Check) -> None:
    stems = [lesson.stem for lesson in lessons.LADDER if lesson.launcher != "two agents"]
    stems.append("06b_preemption")  # it keeps two snapshots: one can resume from the one before the last
    first, last = stems[0], stems[-1]
    if check.is_rehearsal:
        stems = [first, "04_ddp_torchrun", last]
    twice = ("04_ddp_torchrun",) if check.is_rehearsal else stems
    epochs = ("--epochs", 3)  # the last of which is taken again, on the other device

    def job(stem, **more):
        return check.lesson(stem, 1, *small(stem), *epochs, **more)

    jobs = {stem: job(stem) for stem in stems}
    jobs |= {f"{stem} on the CPU": job(stem, **CPU) for stem in (first, last)}
    jobs |= {f"{stem} again": job(stem) for stem in twice}
    found = check.run(jobs)
    for stem in twice:
        check.judge(f"{stem}, twice", [found[stem], found[f"{stem} again"]], same_bytes(stem), EQUAL)
    for stem in stems[1:]:
        look = same_curve(stem, first)
        check.judge(f"{stem} against 01", [found[stem], found[first]], look, within(launcher.THE_SAME))
    limits = lessons.Curve(early=1e-3, late=1e-3)
    on_cpu = found[f"{first} on the CPU"]
    check.judge(f"{first} against the CPU's", [found[first], on_cpu], same_curve(first, "", limits), "1e-3")

    def resume(start: Result, where: str, **more):
        """In a copy of its folder, without the snapshot of the last epoch's end."""
        if start.problem:
            return None
        folder = check.folder / f"resumed on the {where}"
        shutil.copytree(start.folder, folder)
        sorted((folder / "out").glob("*.snapshot"))[-1].unlink()
        return job(last, folder=folder, **more)

    there = {
        "CPU": resume(found[last], "CPU", **CPU),
        "device": resume(found[f"{last} on the CPU"], "device"),
    }
    resumed = check.run({f"{last} on the {name}": job for name, job in there.items() if job})
    for where, reference in (("CPU", found[last]), ("device", found[f"{last} on the CPU"])):

        def look(result, reference):
            value, is_right = same_curve(last, "", limits)(result, reference)
            said = "resumed in epoch 2 after step " in result.stdout
            return f"{'resumed' if said else 'not resumed'}, {value}", said and is_right

        result = resumed.get(f"{last} on the {where}", reference)
        check.judge(f"a snapshot resumed on the {where}", [result, reference], look, "resumed, within 1e-3")
    refusals(check)


def refusals(check: Check) -> None:
    stem = "04_ddp_torchrun"
    asked = {"a batch that does not divide": (2, ("--batch-size", 25), "does not divide by 2 processes")}
    if check.gpus:
        asked["more ranks than GPUs"] = (
            check.gpus + 1,
            ("--batch-size", 4 * check.gpus + 4),
            "put SHARE_GPU=1 in front",
        )
    else:
        check.row("more ranks than GPUs", "the CPU takes any number", "refused in one line", "not here")
    jobs = {
        name: check.lesson(stem, ranks, *small(stem), *more, SHARE_GPU=int("GPU" not in name))
        for name, (ranks, more, _) in asked.items()
    }
    for name, result in check.run(jobs).items():
        lines = [line for line in result.stderr.splitlines() if line.startswith("error:")]
        result.problem = ""  # it must fail

        def look(result, lines=lines, words=asked[name][2]):
            return (lines or ["not refused"])[0], len(lines) == 1 and words in lines[0]

        check.judge(name, [result], look, "refused in one line")


# ---- several ranks ------------------------------------------------------------------------------


def several_ranks(check: Check) -> None:
    """All of it in small: ranks that share a GPU wait for one another at every collective."""
    counts = (2,) if check.is_rehearsal else (2, 4)
    jobs, rows = {}, []

    def add(name, stem, ranks, *more, **environment):
        jobs[name] = check.lesson(stem, ranks, *small(stem), *EPOCHS, *more, limit=90, **environment)
        return jobs[name].words

    def compare(name, stem, reference, limits=launcher.THE_SAME, of=""):
        rows.append((f"{name}, curve", name, reference, same_curve(stem, of, limits), within(limits)))

    def alike(name, stem):
        add(f"{name} again", stem, 2)
        rows.append((f"{name}, twice", name, f"{name} again", same_bytes(stem), EQUAL))

    ladder = lessons.LADDER[0].stem
    add("01", ladder, 1)
    for ranks in counts:
        for stem in REHEARSED if check.is_rehearsal else RANK_STEMS:
            lesson, name = lessons.get(stem), f"{stem} on {ranks}"
            add(name, stem, ranks)
            if lesson.curve.is_its_own():
                if ranks == 2:
                    add(f"{stem} on 1", stem, 1)
                compare(name, stem, f"{stem} on 1")
            else:
                compare(name, stem, "01", of=ladder)
        if ranks == 2:
            for stem in BYTES[:1] if check.is_rehearsal else BYTES:
                alike(f"{stem} on 2", stem)
        precisions = ("bf16", "fp16") if check.is_rehearsal else ("fp32", "bf16", "fp16")
        mixed_precision(ranks, precisions, add, compare)
    for option in OPTIONS_09[:1] if check.is_rehearsal else OPTIONS_09:
        name = f"09_fsdp on 2, {' '.join(option).strip('-')}"
        add(name, "09_fsdp", 2, *option)
        # bf16 everywhere, here: weights, gradients and activations.
        limits = lessons.Curve(early=5e-2, late=5e-2, accuracy=0.1) if "bf16" in option else launcher.THE_SAME
        compare(name, "09_fsdp", "01", limits, ladder)
    add("10_pipeline on 2, 1f1b", "10_pipeline", 2)
    compare("10_pipeline on 2, 1f1b", "10_pipeline", "01", of=ladder)
    found = check.run(jobs)
    for name, one, other, look, expected in rows:
        check.judge(name, [found[one], found[other]], look, expected)
    bytes_of_13(check, found["13_gpt on 2"])
    schedules(check, found["10_pipeline on 2, 1f1b"], found["01"], counts)
    four_to_two(check, found.get("09_fsdp on 4"), found["01"])


def mixed_precision(ranks: int, precisions: tuple[str, ...], add: Callable, compare: Callable) -> None:
    lesson = lessons.get("07_mixed_precision")
    for precision in precisions:
        name = f"{lesson.stem} in {precision} on"
        stem, arguments = lesson.stem, ("--precision", precision, "--test-size", 600)
        if precision == "fp16":  # a script of its own, with the same command
            stem, arguments = FP16.stem, ("--test-size", 600)
        for number in {1, ranks} if ranks == 2 else {ranks}:
            words = add(f"{name} {number}", lesson.stem, number, *arguments)
            if precision == "fp16":
                words[words.index(str(lesson.path))] = str(FP16)
        limits = launcher.THE_SAME if precision == "fp32" else lesson.curve
        compare(f"{name} {ranks}", stem, f"{name} 1", limits)


def bytes_of_13(check: Check, plain: Result) -> None:
    stem = "13_gpt"
    words = {}
    for name in ("told", "told again"):
        words[name] = check.lesson(stem, 2, *small(stem), *EPOCHS)
        place = words[name].words.index(str(lessons.get(stem).path))
        words[name].words.insert(place, launcher.ROOT / "tools/gpu/deterministic.py")
    found = check.run({"as it is": check.lesson(stem, 2, *small(stem), *EPOCHS)} | words)

    def look(one, other):
        return same_bytes(stem)(one, other)[0]

    check.judge("13_gpt on 2 as it is, twice", [plain, found["as it is"]], look, "may differ on a GPU")
    look = same_bytes(stem)
    both = [found["told"], found["told again"]]
    check.judge("13_gpt on 2 with use_deterministic_algorithms, twice", both, look, EQUAL)


def schedules(check: Check, first: Result, reference: Result, counts: tuple[int, ...]) -> None:
    asked = [(kind, ranks) for ranks in counts for kind in SCHEDULES][1:]
    if check.is_rehearsal:
        asked = [("interleaved", 2)]
    if "this lesson needs torch" in first.problem:  # and says so in one line: the row above has it
        return
    stem = "10_pipeline"
    jobs = {
        f"{stem} on {ranks}, {kind}": check.lesson(stem, ranks, *small(stem), *EPOCHS, "--schedule", kind)
        for kind, ranks in asked
    }
    for name, result in check.run(jobs).items():
        look = same_curve(stem, lessons.LADDER[0].stem)
        check.judge(f"{name}, curve", [result, reference], look, within(launcher.THE_SAME))


def four_to_two(check: Check, four: Result | None, reference: Result) -> None:
    """The checkpoint of 4 ranks, loaded by 2."""
    stem = "09_fsdp"
    before, after = 4, 2
    if four is None:
        (four,) = check.run({stem: check.lesson(stem, before, *small(stem), *EPOCHS)}).values()
    name = f"{stem}, a checkpoint of {before} ranks on {after}"
    if four.problem:
        return check.judge(name, [four], lambda result: "", "resumed")
    shutil.rmtree(four.out / f"{stem}.epoch0002")
    job = check.lesson(stem, after, *small(stem), *EPOCHS, folder=four.folder)
    (result,) = check.run({name: job}).values()

    def look(result, reference):
        value, is_right = same_curve(stem, lessons.LADDER[0].stem)(result, reference)
        said = "resumed after epoch 1" in result.stdout
        return f"{'resumed' if said else 'not resumed'}, {value}", said and is_right

    return check.judge(name, [result, reference], look, "resumed, the same curve")


# ---- a rank is killed ---------------------------------------------------------------------------

STRUCK = "06b_preemption"
STRUCK_SIZES = ("--train-size", 1200, "--test-size", 60, "--batch-size", 24)
# What one reads, as tools/faults.py has it for gloo; NCCL has words of its own.
MESSAGES = {
    "kill -9": ("failed (exitcode: -9)",),
    "SIGSTOP": ("Timed out waiting", "Watchdog caught collective operation timeout", "timed out", "timeout"),
    "SIGTERM": ("told to stop: saved, and ending with status 75",),
}


def kills(check: Check) -> None:
    """A launcher with two ranks for each kind, all at once: a stopped process is given 30 s to end."""
    found: dict[str, dict] = {}
    threads = []
    for kind in ("uninterrupted", *MESSAGES):
        threads.append(threading.Thread(target=strike, args=(check, kind, found), daemon=True))
        threads[-1].start()
    for thread in threads:
        thread.join(max(0, check.deadline - time.monotonic()) + 5)
    peace = found.get("uninterrupted", {})
    for kind, messages in MESSAGES.items():
        struck = found.get(kind, {"problem": "it did not come to an end"})

        def look(result, peace_result, struck=struck, messages=messages, kind=kind):
            said = [words for words in messages if words in struck["said"]]
            value, is_equal = same_bytes(STRUCK)(result, peace_result)
            line = next((line for line in struck["said"].splitlines() if said and said[0] in line), "")
            check.facts.setdefault("kills", {})[kind] = {"seconds": struck["seconds"], "line": line[:300]}
            words = f"resumed after {struck['seconds']:.1f} s, {value} at the end, "
            return words + (f'it said "{said[0]}"' if said else "no message"), is_equal and bool(said)

        results = [
            each.get("result") or Result(check.folder / "none", each.get("problem", "missing"))
            for each in (struck, peace)
        ]
        check.judge(f"{STRUCK} on 2, {kind}", results, look, f"{EQUAL}, a message")
    check.is_real("messages of NCCL")


def strike(check: Check, kind: str, found: dict[str, dict]) -> None:
    try:
        found[kind] = struck(check, kind)
    except Exception as error:
        found[kind] = {"problem": f"{type(error).__name__}: {error}"}


def struck(check: Check, kind: str) -> dict:
    epochs = ("--epochs", 6 if check.is_rehearsal else 12)  # a GPU takes the same steps sooner
    limit = ("--time-limit", 20 if check.is_rehearsal else 5)
    arguments = (*STRUCK_SIZES, *epochs, "--snapshot-every", 5, *limit)
    job = check.lesson(STRUCK, 2, *arguments, limit=600, TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC=1000)
    child = check.begin(job)
    if kind == "uninterrupted":
        return {"result": check.note(kind, child.finish())}
    wait_for(child, lambda: "epoch  1 |" in Result(child.folder).stdout, "the first epoch")
    began, said = time.monotonic(), ""
    if kind == "SIGTERM":
        os.kill(child.process.pid, signal.SIGTERM)  # torchrun hands it on to its ranks
        stopped = child.finish()
        said = stopped.stdout + stopped.stderr
        if "still ran" in stopped.problem:
            return {"problem": stopped.problem}
        job.folder = child.folder
        child = check.begin(job)
    else:
        os.kill(child.pids(1)[-1], signal.SIGKILL if kind == "kill -9" else signal.SIGSTOP)
    wait_for(child, lambda: "resumed in epoch" in Result(child.folder).stdout, "the run to resume")
    seconds = time.monotonic() - began
    result = check.note(kind, child.finish())
    return {"result": result, "seconds": seconds, "said": said + result.stdout + result.stderr}


def wait_for(child: Child, condition: Callable, what: str) -> None:
    while not condition():
        if child.has_ended() or child.is_late():
            result = child.finish()
            raise RuntimeError(f"waited in vain for {what}: {result.problem or 'it had ended'}")
        time.sleep(0.02)


# ---- lesson 08 ----------------------------------------------------------------------------------


def real_training(check: Check) -> None:
    stem = "08_real_training"
    jobs = {}

    def add(name, ranks, *more, limit=60):
        sizes = (*small(stem), *EPOCHS, "--width", 4, "--lr", 0.02)
        jobs[name] = check.lesson(stem, ranks, *sizes, *more, limit=limit)

    has_compiled = check.is_real("torch.compile")
    if has_compiled:
        add("compiled", 1, "--compile", limit=75)
    add("eager", 1, "--profile")
    add("1 in float64", 1, "--double")
    add("2 in float64", 2, "--double")
    add("2", 2)
    add("a crash", 2, "--crash-at", 1, "--snapshot-every", 4)
    add("workers", 2, "--workers", 2)
    found = check.run(jobs)

    def compiled(one, other):
        losses = [launcher.read_curve(each.out, stem)[0]["loss"] for each in (one, other)]
        off = abs(losses[0] / losses[1] - 1)
        return f"first epoch's loss off by {off:.1e}, {one.seconds:.0f} s", off < 1e-2

    def double(one, other):
        curves = [launcher.read_curve(each.out, stem) for each in (one, other)]
        off = max(abs(a["loss"] / b["loss"] - 1) for a, b in zip(*curves, strict=True))
        return f"losses off by {off:.1e} at most", off < 5e-7

    def crashed(one, other):
        value, is_equal = same_bytes(stem)(one, other)
        is_resumed = "resumed in epoch 1" in one.stdout
        return f"{'resumed' if is_resumed else 'not resumed'}, {value}", is_resumed and is_equal

    def trace(result):
        path = result.out / f"{stem}.trace.json.gz"
        return f"a trace of {path.stat().st_size:,} bytes", path.stat().st_size > 1000

    if has_compiled:
        both = [found["compiled"], found["eager"]]
        check.judge("08 compiled against eager", both, compiled, "within 1e-2")
    both = [found["2 in float64"], found["1 in float64"]]
    check.judge("SyncBatchNorm on 2 ranks against 1, float64", both, double, "losses within 5e-7")
    check.judge("08 on 2, a crash", [found["a crash"], found["2"]], crashed, f"resumed, {EQUAL}")
    check.judge("08 on 2, with workers", [found["workers"], found["2"]], same_bytes(stem), EQUAL)
    check.judge("08 with --profile", [found["eager"]], trace, "a trace")
