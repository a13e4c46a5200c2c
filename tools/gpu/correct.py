"""The stages of `make gpu` that ask whether it is right."""

import os
import shutil
import signal
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from harness import Check, Child, Result, small

import launcher
import lessons

EPOCHS = ("--epochs", 2)
CPU = {"CUDA_VISIBLE_DEVICES": ""}
# cuDNN may compute a convolution by Winograd's algorithm, which rounds more. TF32 would be off by 3e-4.
EXACT = "relative error under 1e-5"
EQUAL = "the same bytes"
FLAGS = {
    "cudnn.benchmark": False,
    "cudnn.deterministic": True,
    "convolutions": "ieee",
    "products": "ieee",
    "old flag of TF32": False,
}
RANK_STEMS = ("04_ddp_torchrun", "06_multinode", "06b_preemption", "09_fsdp")
RANK_STEMS += ("11_tensor_parallel", "12_mesh", "13_gpt")
OPTIONS_09 = (("--precision", "bf16"), ("--checkpoint-activations",), ("--offload",), ("--no-reshard",))
SCHEDULES = ("1f1b", "naive", "gpipe", "interleaved")
REHEARSED = ("04_ddp_torchrun", "06_multinode", "09_fsdp", "13_gpt")
FP16 = launcher.ROOT / "lessons/parts/fp16.py"
# Not 13: torch calls the backward of its attention on GPUs non-deterministic; see variant.py.
BYTES = ("04_ddp_torchrun", "09_fsdp")


def same_bytes(stem: str) -> Callable:
    def look(one: Result, other: Result):
        equal = (one.out / f"{stem}.pt").read_bytes() == (other.out / f"{stem}.pt").read_bytes()
        return ("the same" if equal else "other ones"), equal

    return look


def losses_off(one: Result, other: Result, stem: str, of: str = "", epochs: int | None = None) -> float:
    """The largest relative difference of the losses of an epoch."""
    curves = launcher.read_curve(one.out, stem)[:epochs], launcher.read_curve(other.out, of or stem)[:epochs]
    return max(abs(row["loss"] / expected["loss"] - 1) for row, expected in zip(*curves, strict=True))


def same_curve(stem: str, of: str = "", limits: lessons.Curve = launcher.THE_SAME) -> Callable:
    def look(one: Result, other: Result):
        curves = launcher.read_curve(one.out, stem), launcher.read_curve(other.out, of or stem)
        different = launcher.difference(*curves, limits)
        return different or f"losses off by {losses_off(one, other, stem, of):.1e} at most", not different

    return look


def resumed(words: str, look: Callable) -> Callable:
    """That it said these words when it resumed, and what else is looked at."""

    def look_at_both(result: Result, reference: Result):
        value, is_right = look(result, reference)
        said = words in result.stdout
        return f"{'resumed' if said else 'not resumed'}, {value}", said and is_right

    return look_at_both


def within(limits: lessons.Curve) -> str:
    return f"losses within {limits.early:g}"


# ---- what is here -------------------------------------------------------------------------------


def numerics(check: Check) -> None:
    result = check.run_one(check.probe("numerics"))

    def versions(result):
        found = result.said()
        check.facts["gpus"], check.facts["versions"] = found["gpus"], found["versions"]
        named = ", ".join(f"{name} {version}" for name, version in found["versions"].items())
        return f"{', '.join(found['gpus']) or 'no GPU'}; {named}", len(found["gpus"]) == check.gpus

    def flags(result):
        found = result.said()["flags"]
        return ", ".join(f"{name} {value}" for name, value in found.items()), found == FLAGS

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

    jobs, references = {}, {"CPU": found[last], "device": found[f"{last} on the CPU"]}
    for where, start in references.items():  # in a copy of its folder, without the last epoch's snapshot
        if not start.problem:
            folder = check.folder / f"resumed on the {where}"
            shutil.copytree(start.folder, folder)
            sorted((folder / "out").glob("*.snapshot"))[-1].unlink()
            jobs[where] = job(last, folder=folder, **(CPU if where == "CPU" else {}))
    again, look = check.run(jobs), resumed("resumed in epoch 2 after step ", same_curve(last, "", limits))
    for where, reference in references.items():
        results = [again.get(where, reference), reference]
        check.judge(f"a snapshot resumed on the {where}", results, look, "resumed, within 1e-3")
    refusals(check)


def refusals(check: Check) -> None:
    stem = "04_ddp_torchrun"
    asked = {"a batch that does not divide": (2, ("--batch-size", 25), "does not divide by 2 processes")}
    if check.gpus:
        options = ("--batch-size", 4 * check.gpus + 4)
        asked["more ranks than GPUs"] = (check.gpus + 1, options, "put SHARE_GPU=1 in front")
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
    stems = REHEARSED if check.is_rehearsal else RANK_STEMS
    options_09 = OPTIONS_09[:1] if check.is_rehearsal else OPTIONS_09
    ladder, lesson_07 = lessons.LADDER[0].stem, lessons.get("07_mixed_precision")
    jobs, rows = {}, []

    def add(name, stem, ranks, *more, **options):
        jobs[name] = check.lesson(stem, ranks, *small(stem), *EPOCHS, *more, limit=90, **options)

    def compare(name, stem, reference, limits=launcher.THE_SAME, of=""):
        rows.append((f"{name}, curve", name, reference, same_curve(stem, of, limits), within(limits)))

    add("01", ladder, 1)
    for ranks in counts:
        for stem in stems:
            reference, of = "01", ladder
            if lessons.get(stem).curve.is_its_own():
                reference, of = f"{stem} on 1", stem
            if reference not in jobs:
                add(reference, stem, 1)
            add(f"{stem} on {ranks}", stem, ranks)
            compare(f"{stem} on {ranks}", stem, reference, of=of)
        for stem in BYTES[: 1 if check.is_rehearsal else None] if ranks == 2 else ():
            name = f"{stem} on 2"
            add(f"{name} again", stem, 2)
            rows.append((f"{name}, twice", name, f"{name} again", same_bytes(stem), EQUAL))
        for precision in ("bf16", "fp16") if check.is_rehearsal else ("fp32", "bf16", "fp16"):
            name = f"{lesson_07.stem} in {precision} on"
            stem, words, script = lesson_07.stem, ("--precision", precision), None
            if precision == "fp16":  # a script of its own, with the same command
                stem, words, script = FP16.stem, (), FP16
            for number in {1, ranks} if ranks == 2 else {ranks}:
                add(f"{name} {number}", lesson_07.stem, number, *words, "--test-size", 600, script=script)
            limits = launcher.THE_SAME if precision == "fp32" else lesson_07.curve
            compare(f"{name} {ranks}", stem, f"{name} 1", limits)
    for option in options_09:
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


def bytes_of_13(check: Check, plain: Result) -> None:
    stem = "13_gpt"
    variants = {"as it is": "", "told": "deterministic", "told again": "deterministic"}
    jobs = {
        name: check.lesson(stem, 2, *small(stem), *EPOCHS, variant=variant)
        for name, variant in variants.items()
    }
    found, look = check.run(jobs), same_bytes(stem)
    both = [plain, found["as it is"]]
    check.judge("13_gpt on 2 as it is, twice", both, lambda *each: look(*each)[0], "may differ on a GPU")
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
    stem, before, after = "09_fsdp", 4, 2
    four = four or check.run_one(check.lesson(stem, before, *small(stem), *EPOCHS))
    name, result = f"{stem}, a checkpoint of {before} ranks on {after}", four
    if not four.problem:
        shutil.rmtree(four.out / f"{stem}.epoch0002")
        result = check.run_one(check.lesson(stem, after, *small(stem), *EPOCHS, folder=four.folder))
    look = resumed("resumed after epoch 1", same_curve(stem, lessons.LADDER[0].stem))
    check.judge(name, [result, reference], look, "resumed, the same curve")


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
    kinds, found = ("uninterrupted", *MESSAGES), {}
    pool = ThreadPoolExecutor(len(kinds))  # in a `with`, its end would wait for children whom nobody ends
    runs = {kind: pool.submit(struck, check, kind) for kind in kinds}
    for kind, run in runs.items():
        error = run.exception()
        none = Result(check.folder / "none", f"{type(error).__name__}: {error}")
        found[kind] = (none, 0.0, "") if error else run.result()
    for kind, messages in MESSAGES.items():
        result, seconds, text = found[kind]

        def look(*results, seconds=seconds, text=text, messages=messages, kind=kind):
            said = next((words for words in messages if words in text), None)
            value, is_equal = same_bytes(STRUCK)(*results)
            line = next((line for line in text.splitlines() if said and said in line), "")
            check.facts.setdefault("kills", {})[kind] = {"seconds": seconds, "line": line[:300]}
            words = f'it said "{said}"' if said else "no message"
            return f"resumed after {seconds:.1f} s, {value} at the end, {words}", is_equal and bool(said)

        results = [result, found["uninterrupted"][0]]
        check.judge(f"{STRUCK} on 2, {kind}", results, look, f"{EQUAL}, a message")
    check.is_real("messages of NCCL")


def struck(check: Check, kind: str) -> tuple[Result, float, str]:
    """How a run ended that was struck, the seconds until it resumed, and all that was said."""
    epochs = ("--epochs", 6 if check.is_rehearsal else 12)  # a GPU takes the same steps sooner
    limit = ("--time-limit", 20 if check.is_rehearsal else 5)
    arguments = (*STRUCK_SIZES, *epochs, "--snapshot-every", 5, *limit)
    job = check.lesson(STRUCK, 2, *arguments, limit=600, TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC=1000)
    child = check.begin(job)
    if kind == "uninterrupted":
        return check.note(kind, child.finish()), 0.0, ""
    wait_for(child, lambda: "epoch  1 |" in Result(child.folder).stdout, "the first epoch")
    began, said = time.monotonic(), ""
    if kind == "SIGTERM":
        os.kill(child.process.pid, signal.SIGTERM)  # torchrun hands it on to its ranks
        stopped = child.finish()
        said = stopped.stdout + stopped.stderr
        if "still ran" in stopped.problem:
            return stopped, 0.0, said
        job.folder = child.folder
        child = check.begin(job)
    else:
        os.kill(child.pids(1)[-1], signal.SIGKILL if kind == "kill -9" else signal.SIGSTOP)
    wait_for(child, lambda: "resumed in epoch" in Result(child.folder).stdout, "the run to resume")
    seconds = time.monotonic() - began
    result = check.note(kind, child.finish())
    return result, seconds, said + result.stdout + result.stderr


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
        off = losses_off(one, other, stem, epochs=1)
        return f"first epoch's loss off by {off:.1e}, {one.seconds:.0f} s", off < 1e-2

    def double(one, other):
        off = losses_off(one, other, stem)
        return f"losses off by {off:.1e} at most", off < 5e-7

    def trace(result):
        path = result.out / f"{stem}.trace.json.gz"
        return f"a trace of {path.stat().st_size:,} bytes", path.stat().st_size > 1000

    def judge(name, asked, look, expected):
        check.judge(name, [found[each] for each in asked], look, expected)

    if has_compiled:
        judge("08 compiled against eager", ("compiled", "eager"), compiled, "within 1e-2")
    both, same = ("2 in float64", "1 in float64"), same_bytes(stem)
    judge("SyncBatchNorm on 2 ranks against 1, float64", both, double, "losses within 5e-7")
    judge("08 on 2, a crash", ("a crash", "2"), resumed("resumed in epoch 1", same), f"resumed, {EQUAL}")
    judge("08 on 2, with workers", ("workers", "2"), same, EQUAL)
    judge("08 with --profile", ("eager",), trace, "a trace")
