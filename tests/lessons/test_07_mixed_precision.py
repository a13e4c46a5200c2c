"""Lesson 07: fp32 keeps lesson 01's curve, 16 bits stay close to it, and what a step sends is counted."""

import functools
import gc
import importlib
import re
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist

import launcher
import workload
from lines import check_what_it_printed, refusal
from weights import recount

STEM = "07_mixed_precision"
PARAMETERS = sum(parameter.numel() for parameter in workload.ConvNet((1, 28, 28)).parameters())
# 1,055 images lack one to a full batch, 997 make uneven shares; with this learning rate 20 steps learn much.
SIZES = (
    "--train-size",
    1055,
    "--batch-size",
    96,
    "--test-size",
    997,
    "--epochs",
    2,
    "--seed",
    3,
    "--lr",
    0.3,
)
FP32 = ("--precision", "fp32", "--clip-norm", "inf")
FP16 = ("--precision", "fp16")


def told(result):
    """What the last line says: the precision, and the counts."""
    pattern = (
        r"(\w+) \| each step: all-reduces ([\d.]+), bytes ([\d,]+) \| "
        r"steps (\d+), clipped (\d+), skipped (\d+)"
    )
    precision, *numbers = re.fullmatch(pattern, result.stdout.splitlines()[-1]).groups()
    names = ("reductions", "bytes", "steps", "clipped", "skipped")
    counts = {name: float(number.replace(",", "")) for name, number in zip(names, numbers, strict=True)}
    return SimpleNamespace(precision=precision, **counts)


def apart(curve, reference):
    """The relative difference of two curves' losses, for each epoch."""
    pairs = zip(curve, reference, strict=True)
    return [abs(row["loss"] - other["loss"]) / other["loss"] for row, other in pairs]


@pytest.mark.quick("2-more1")
@pytest.mark.long("4-more4")
@pytest.mark.night
@pytest.mark.parametrize(
    ("processes", "more"),
    [
        (1, ("--accumulate", 1)),
        (2, ("--accumulate", 5)),  # of 48 images: 10, 10, 10, 9 and 9
        (2, ("--accumulate", 3, "--sync-always")),
        (3, ("--accumulate", 32)),  # one image each
        (4, ()),
    ],
)
def test_fp32_without_clipping_has_lesson_01s_curve(fork, reference, processes, more):
    result = fork(STEM, processes, *SIZES, *FP32, *more)
    curve = launcher.read_curve(result.out, STEM)
    assert launcher.difference(curve, reference(*SIZES)) == ""
    assert [row["accuracy"] for row in curve] == [row["accuracy"] for row in reference(*SIZES)]
    assert curve[-1]["accuracy"] == recount(result.out / f"{STEM}.pt", 997)
    check_what_it_printed(result.stdout, curve)
    counts = told(result)
    times = more[1] if "--sync-always" in more else 1
    assert (counts.reductions, counts.bytes) == (times, times * 4 * PARAMETERS)
    assert (counts.precision, counts.steps, counts.clipped, counts.skipped) == ("fp32", 20, 0, 0)


@pytest.mark.quick("2")
@pytest.mark.long("4")
@pytest.mark.night
@pytest.mark.parametrize("processes", [1, 2, 4])
def test_bf16_stays_near_lesson_01s_curve(fork, reference, processes):
    """Measured, with three seeds on 1, 2 and 4 processes: at most 7e-6 in epoch 1 and 3e-4 in epoch 2."""
    result = fork(STEM, processes, *SIZES, folder="first")
    curve = launcher.read_curve(result.out, STEM)
    early, late = apart(curve, reference(*SIZES))
    assert early < 7e-5
    assert 5e-6 < late < 3e-3
    assert abs(curve[-1]["accuracy"] - reference(*SIZES)[-1]["accuracy"]) < 0.02
    assert curve[-1]["accuracy"] == recount(result.out / f"{STEM}.pt", 997)  # in fp32, as lesson 01 counts
    counts = told(result)
    assert (counts.precision, counts.reductions, counts.bytes) == ("bf16", 1, 4 * PARAMETERS)
    assert {path.name for path in result.out.iterdir()} == {f"{STEM}.jsonl", f"{STEM}.pt"}
    again = fork(STEM, processes, *SIZES, folder="again")
    assert (again.out / f"{STEM}.pt").read_bytes() == (result.out / f"{STEM}.pt").read_bytes()


# The first steps, in which nothing is learnt yet: rounding has not been magnified, and limits can be narrow.
FEW = ("--train-size", 480, "--batch-size", 48, "--test-size", 10, "--epochs", 1, "--lr", 0.3)


@functools.cache
def clipped_lesson_01(limit, *arguments):
    """Lesson 01 with its gradients clipped: lesson 07 in one process, without anything that is new in it."""
    curve = []
    lesson = importlib.import_module("01_single_gpu")

    class Clipped(torch.optim.SGD):
        def step(self, closure=None):
            gradients = [parameter.grad for parameter in self.param_groups[0]["params"]]
            norm = torch.cat([gradient.flatten() for gradient in gradients]).norm()
            for gradient in gradients:
                gradient *= min(1, limit / norm)
            return super().step(closure)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.optim, "SGD", Clipped)
        patch.setattr(torch, "save", lambda *arguments: None)
        patch.setattr(
            workload, "report", lambda *values: curve.append({"epoch": values[1], "loss": values[2]})
        )
        lesson.train(workload.parser("01.py", "").parse_args([str(argument) for argument in arguments]))
    return curve


@pytest.mark.quick("fp32-1-1e-05")
@pytest.mark.long("fp16-2-1e-05")
@pytest.mark.night
@pytest.mark.parametrize(
    ("precision", "processes", "limit"), [("fp32", 1, 1e-5), ("fp32", 3, 1e-5), ("fp16", 2, 1e-5)]
)
def test_clipping_is_of_the_whole_gradient_and_not_of_a_scaled_one(fork, precision, processes, limit):
    arguments = ("--clip-norm", 0.2, "--precision", precision, "--accumulate", 3)
    result = fork(STEM, processes, *FEW, *arguments, folder="first")
    curve, expected = launcher.read_curve(result.out, STEM), clipped_lesson_01(0.2, *FEW)
    assert apart(curve, expected)[0] < limit
    assert apart(clipped_lesson_01(float("inf"), *FEW), expected)[0] > 5e-4, "clipping would not be noticed"
    assert 0 < told(result).clipped < told(result).steps == 10
    again = fork(STEM, processes, *FEW, *arguments, folder="again")
    assert (again.out / f"{STEM}.pt").read_bytes() == (result.out / f"{STEM}.pt").read_bytes()


@pytest.fixture
def variant(forks, tmp_path):
    """Run a copy of the lesson with a line changed, on two processes; each saves all it knows at the end."""
    last = "    if rank == 0:  # they all hold"
    save = (
        "    known = {'weights': model.module.state_dict(), 'scale': scaler.get_scale(), **counts}\n"
        "    torch.save(known, arguments.out / f'rank{rank}.pt')\n"
    )

    def variant(old, new, *arguments):
        text = (launcher.ROOT / "lessons" / f"{STEM}.py").read_text()
        assert text.count(old) == 1 and text.count(last) == 1
        (tmp_path / "variant.py").write_text(text.replace(last, save + last).replace(old, new))
        words, environment = launcher.command(STEM, 2, *arguments)
        words = [str(tmp_path / "variant.py") if word.endswith(f"{STEM}.py") else word for word in words]
        code, left = forks.run(words, tmp_path, environment, limit=240)
        assert (code, left) == (0, []), (tmp_path / ".err").read_text()
        return [torch.load(tmp_path / f"out/rank{rank}.pt", weights_only=False) for rank in (0, 1)]

    return variant


@pytest.mark.parametrize("micro_batch", [1, 2])
def test_an_overflow_on_one_rank_makes_all_skip_the_step(variant, micro_batch):
    """Whether the micro-batch that overflows is averaged at once, or waits under no_sync."""
    loss = "scaler.scale(loss).backward()"
    spoilt = f"float('inf') if (rank, number, counts['steps']) == (1, {micro_batch}, 2) else 1"
    arguments = (*FEW[2:], "--train-size", 192, *FP16)
    ranks = variant(loss, f"(scaler.scale(loss) * ({spoilt})).backward()", *arguments)
    for known in ranks:
        assert (known["steps"], known["skipped"], int(known["clipped"])) == (4, 1, 0)
        assert known["scale"] == 2.0**15
        assert all(weight.isfinite().all() for weight in known["weights"].values())
    for name, weight in ranks[0]["weights"].items():
        assert torch.equal(weight, ranks[1]["weights"][name])


def test_a_gradient_without_end_is_skipped_and_not_counted_as_clipped(variant):
    """As in the test above, but the norm is inf, which is more than any limit; there it was nan."""
    unscale = "scaler.unscale_(optimizer)"
    spoil = "if counts['steps'] == 2: next(model.parameters()).grad.fill_(float('inf'))"
    arguments = (*FEW[2:], "--train-size", 192, *FP16)
    for known in variant(f"            {unscale}", f"            {spoil}\n            {unscale}", *arguments):
        assert (known["steps"], known["skipped"], int(known["clipped"])) == (4, 1, 0)


def test_a_scale_that_is_too_large_is_halved_until_it_fits(variant):
    one, other = variant("import workload\n", "import workload\n", *FEW, *FP16, "--first-scale", 2**24)
    assert 0 < one["skipped"] < one["steps"] == 10
    assert one["scale"] == 2.0 ** (24 - one["skipped"])
    assert (other["skipped"], other["scale"]) == (one["skipped"], one["scale"])
    assert all(torch.equal(weight, other["weights"][name]) for name, weight in one["weights"].items())
    assert all(weight.isfinite().all() for weight in one["weights"].values())


def test_the_forward_pass_is_in_16_bits_and_what_lasts_in_32(variant):
    seen = "counts['types'] = (model(images).dtype, loss.dtype, {p.dtype for p in model.parameters()}"
    seen += ", {p.grad.dtype for p in model.parameters()})"
    loss = "                    scaler.scale(loss).backward()\n"
    look = f"{loss}                    with autocast:\n                        {seen}\n"
    one, _ = variant(loss, look, *FEW[2:], "--train-size", 48, "--sync-always")
    assert one["types"] == (torch.bfloat16, torch.float32, {torch.float32}, {torch.float32})
    assert one["scale"] == 1, "bf16 needs none"


@pytest.fixture
def alone(tmp_path):
    """A process group of this process only."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    gc.collect()
    dist.destroy_process_group()


@pytest.mark.long("more1-4")
@pytest.mark.night
@pytest.mark.parametrize(("more", "times"), [((), 1), (("--sync-always",), 4)])
def test_what_is_counted_is_what_gloo_was_given(alone, tmp_path, capsys, monkeypatch, more, times):
    """The profiler sees every collective, whoever calls it."""
    lesson = importlib.import_module(STEM)
    words = [*FEW, "--accumulate", 4, *more, "--out", tmp_path]
    parser = lesson.workload.parser("07.py", "")
    for name, default in (("precision", "bf16"), ("clip-norm", 5.0), ("first-scale", 2.0**16)):
        parser.add_argument(f"--{name}", default=default)
    parser.add_argument("--accumulate", type=int)
    parser.add_argument("--sync-always", action="store_true")
    arguments = parser.parse_args([str(word) for word in words])
    monkeypatch.setattr(workload, "set_seed", torch.manual_seed)
    with torch.profiler.profile(record_shapes=True) as profile:
        lesson.train(0, 1, torch.device("cpu"), arguments)
    shapes = [event.input_shapes for event in profile.events() if event.name == "gloo:all_reduce"]
    gradients = [shape for shape in shapes if shape == [[PARAMETERS]]]
    print(shapes)
    assert len(gradients) == 10 * times
    assert len(shapes) == len(gradients) + 2  # the loss and the accuracy, once an epoch
    counts = told(SimpleNamespace(stdout=capsys.readouterr().out.rpartition("\n[[")[0]))
    assert (counts.reductions, counts.bytes) == (times, times * 4 * PARAMETERS)


@pytest.mark.parametrize(
    ("device", "has_it", "precision"),
    [("cpu", False, "bf16"), ("cuda", True, "bf16"), ("cuda", False, "fp16")],
)
def test_auto_takes_bf16_where_the_hardware_has_it(monkeypatch, device, has_it, precision):
    def is_supported(including_emulation=True):
        return has_it or including_emulation

    monkeypatch.setattr(torch.cuda, "is_bf16_supported", is_supported)
    pick = importlib.import_module(STEM).pick_precision
    assert pick("auto", torch.device(device)) == precision
    assert pick("fp32", torch.device(device)) == "fp32"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ("--accumulate", 0),
            "--accumulate must be from 1 to the 60 images of a process, not 0",
        ),
        (
            ("--accumulate", 61),
            "--accumulate must be from 1 to the 60 images of a process, not 61",
        ),
        (("--clip-norm", 0), "--clip-norm must be above 0 (inf to clip nothing), not 0.0"),
        (("--clip-norm", "nan"), "--clip-norm must be above 0 (inf to clip nothing), not nan"),
        (("--first-scale", 0.5), "--first-scale must be from 1 to 4294967296, not 0.5"),
        (("--first-scale", "inf"), "--first-scale must be from 1 to 4294967296, not inf"),
        (("--precision", "fp8"), "argument --precision: invalid choice: 'fp8'"),
        (("--batch-size", 51), "--batch-size 51 does not divide by 2 processes"),
    ],
)
def test_bad_options_are_refused(fork, arguments, message):
    assert message in refusal(fork(STEM, 2, *arguments, refused=True))


def test_the_documented_command(run, reference):
    sizes = ("--train-size", 1200, "--test-size", 300, "--epochs", 2)
    result = run(STEM, 2, *sizes)
    curve = launcher.read_curve(result.out, STEM)
    assert max(apart(curve, reference(*sizes))) < 1e-4
    assert [row["world_size"] for row in curve] == [2, 2]
    assert {path.name for path in result.out.iterdir()} == {f"{STEM}.jsonl", f"{STEM}.pt"}
    assert result.stdout.splitlines()[-1] == (
        "bf16 | each step: all-reduces 1, bytes 129,128 | steps 20, clipped 0, skipped 0"
    )
