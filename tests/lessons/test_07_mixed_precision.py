"""Lesson 07: bf16 stays close to lesson 01's curve, a step has one all-reduce; and fp16."""

import argparse
import functools
import importlib
import os
import re
import shlex
import sys

import pytest
import torch

import workload
from tests.helpers.lines import check_what_it_printed, refusal
from tests.helpers.outcomes import recount
from tests.helpers.promises import SMALL, check_files
from tools import diffs, launcher

STEM = "07_mixed_precision"
LESSON = launcher.ROOT / f"lessons/{STEM}.py"
FP16 = launcher.ROOT / "lessons/parts/fp16.py"
PARAMETERS = sum(parameter.numel() for parameter in workload.ConvNet((1, 28, 28)).parameters())
SIZES = SMALL[STEM]
# The first steps, in which nothing is learnt yet: rounding has not been magnified, and limits can be narrow.
FEW = ("--train-size", 480, "--batch-size", 48, "--test-size", 10, "--epochs", 1, "--lr", 0.3)
FOUR_STEPS = (*FEW[2:], "--train-size", 192)
FP32 = ("--precision", "fp32")
# A copy of a script that counts what DDP gives to all_reduce.
WRAPPED = "    model = nn.parallel.DistributedDataParallel(model)\n"
COUNTED = f"""{WRAPPED}
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

    sizes = []
    model.register_comm_hook(
        sizes, lambda sizes, bucket: (sizes.append(bucket.buffer().nbytes), allreduce_hook(None, bucket))[1]
    )
"""
COUNT = (WRAPPED, COUNTED)


def apart(curve, reference):
    """The relative difference of two curves' losses, for each epoch."""
    pairs = zip(curve, reference, strict=True)
    return [abs(row["loss"] - other["loss"]) / other["loss"] for row, other in pairs]


@pytest.fixture
def altered(forks, tmp_path):
    """Run a script with some lines changed. Each rank saves its weights and what `known` says."""

    def altered(script, processes, *arguments, changes=(), known="", folder="altered", fails=False):
        text = script.read_text()
        last = "    if rank == 0:  # all ranks hold"
        known = f"dict(weights=model.module.state_dict(), {known})"
        save = f"    torch.save({known}, arguments.out / f'rank{{rank}}.pt')\n"
        for old, new in (*changes, (last, save + last)):
            assert text.count(old) == 1, old
            text = text.replace(old, new)
        path = tmp_path / folder / script.name
        path.parent.mkdir()
        path.write_text(text)
        words, environment = launcher.command(STEM, processes, *arguments, script=path)
        result = forks.finish(words, path.parent, environment)
        assert (result.code != 0) == fails, result.stderr
        result.ranks = []
        if not fails:
            for rank in range(processes):
                saved = torch.load(result.out / f"rank{rank}.pt", weights_only=False)
                result.ranks.append(argparse.Namespace(**saved))
        return result

    return altered


# ---- the lesson


def test_a_step_of_five_micro_batches_has_one_all_reduce(altered):
    result = altered(LESSON, 2, *FOUR_STEPS, "--accumulate", 5, changes=(COUNT,), known="sizes=sizes")
    for rank in result.ranks:
        assert rank.sizes == [4 * PARAMETERS] * 4
    assert len(result.ranks) == 2


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
    check_what_it_printed(result.stdout, curve)
    check_files(result, STEM)
    again = fork(STEM, processes, *SIZES, folder="again")
    assert (again.out / f"{STEM}.pt").read_bytes() == (result.out / f"{STEM}.pt").read_bytes()


def test_a_gpu_without_bf16_is_refused_and_fp16_named(monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation=True: including_emulation)
    cpu, gpu = torch.device("cpu"), torch.device("cuda")
    workload.require_precision("bf16", cpu)
    workload.require_precision("fp32", gpu)
    with pytest.raises(SystemExit):
        workload.require_precision("bf16", gpu)
    (named,) = re.findall(r"lessons/\S+\.py", capsys.readouterr().err)
    assert launcher.ROOT / named == FP16 and FP16.exists()


# ---- fp16: a scaler, and clipping

BEGIN, STEP = "    clipped = skipped = 0\n", "            optimizer.zero_grad()\n"
COUNT_STEPS = ((BEGIN, f"{BEGIN}    step = 0\n"), (STEP, f"{STEP}            step += 1\n"))
KNOWN = "scale=scaler.get_scale(), clipped=int(clipped), skipped=int(skipped)"


def read_last_line(result):
    """What the last line of an fp16 run says."""
    pattern = r"steps (\d+), clipped (\d+), skipped (\d+), scale ([\d,]+)"
    *counts, scale = re.fullmatch(pattern, result.stdout.splitlines()[-1]).groups()
    return *map(int, counts), int(scale.replace(",", ""))


def check_alike_and_finite(weights, others):
    for name, weight in weights.items():
        assert torch.equal(weight, others[name])
        assert weight.isfinite().all()


@functools.cache
def clipped_lesson_01(limit, *arguments):
    """Lesson 01 with its gradients clipped: lesson 07 in one process, without anything that is new in it."""
    curve = []
    lesson = importlib.import_module("01_single_gpu")

    class Clipped(torch.optim.SGD):
        def step(self, closure=None):
            parameters = self.param_groups[0]["params"]
            norm = torch.cat([parameter.grad.flatten() for parameter in parameters]).norm()
            for parameter in parameters:
                parameter.grad *= min(1, limit / norm)
            return super().step(closure)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.optim, "SGD", Clipped)
        patch.setattr(torch, "save", lambda *arguments: None)
        patch.setattr(
            workload, "report", lambda *values: curve.append({"epoch": values[1], "loss": values[2]})
        )
        lesson.train(workload.parser("01.py", "").parse_args([str(argument) for argument in arguments]))
    return curve


@pytest.mark.quick("1")
@pytest.mark.long
@pytest.mark.parametrize("processes", [1, 2])
def test_clipping_is_of_the_whole_gradient_and_not_of_a_scaled_one(altered, processes):
    arguments = ("--clip-norm", 0.2, "--accumulate", 3)
    result = altered(FP16, processes, *FEW, *arguments, folder="first")
    curve, expected = launcher.read_curve(result.out, "fp16"), clipped_lesson_01(0.2, *FEW)
    assert apart(curve, expected)[0] < 1e-5
    assert apart(clipped_lesson_01(float("inf"), *FEW), expected)[0] > 5e-4, "clipping would not be noticed"
    steps, clipped, skipped, _ = read_last_line(result)
    assert 0 < clipped < steps == 10 and skipped == 0
    again = altered(FP16, processes, *FEW, *arguments, folder="again")
    assert (again.out / "fp16.pt").read_bytes() == (result.out / "fp16.pt").read_bytes()


@pytest.mark.parametrize("micro_batch", [1, 2])
def test_an_overflow_on_one_rank_makes_all_skip_the_step(altered, micro_batch):
    """Whether the micro-batch that overflows is averaged at once, or waits under no_sync."""
    loss = "scaler.scale(loss).backward()"
    spoilt = f"(scaler.scale(loss) * (float('inf') if (rank, number, step) == (1, {micro_batch}, 3) else 1))"
    result = altered(
        FP16, 2, *FOUR_STEPS, changes=(*COUNT_STEPS, (loss, f"{spoilt}.backward()")), known=KNOWN
    )
    assert read_last_line(result) == (4, 0, 1, 2**15)
    one, other = result.ranks
    for rank in (one, other):
        assert (rank.clipped, rank.skipped, rank.scale) == (0, 1, 2.0**15)
    check_alike_and_finite(one.weights, other.weights)


def test_a_scale_that_is_too_large_is_halved_until_it_fits(altered):
    """In 16 bits: in 32, this scale would fit."""
    result = altered(FP16, 2, *FEW, "--first-scale", 2**24, known=KNOWN)
    steps, _, skipped, scale = read_last_line(result)
    assert 0 < skipped < steps == 10 and scale == 2 ** (24 - skipped)
    one, other = result.ranks
    assert (other.skipped, other.scale) == (skipped, scale)
    check_alike_and_finite(one.weights, other.weights)


def test_fp16_has_one_all_reduce_a_step(altered):
    words = (*FEW[2:], "--train-size", 48, "--accumulate", 3)
    result = altered(FP16, 2, *words, changes=(COUNT,), known="sizes=sizes")
    for rank in result.ranks:
        assert rank.sizes == [4 * PARAMETERS]
    assert len(result.ranks) == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--accumulate", 61), "--accumulate must be from 1 to the 60 images of a process, not 61"),
        (("--clip-norm", "nan"), "--clip-norm must be above 0 (inf to clip nothing), not nan"),
        (("--first-scale", "inf"), "--first-scale must be from 1 to 4294967296, not inf"),
    ],
)
def test_bad_options_of_fp16_are_refused(altered, arguments, message):
    assert message in refusal(altered(FP16, 2, *arguments, fails=True))


@pytest.mark.long
def test_the_documented_command_of_fp16(start, reference):
    sizes = ("--train-size", 480, "--batch-size", 48, "--test-size", 300, "--epochs", 2)
    torchrun, *words = shlex.split(diffs.command(FP16))
    assert (torchrun, words[-1]) == ("torchrun", "lessons/parts/fp16.py")
    words = [sys.executable, "-m", "torch.distributed.run", *words[:-1], str(FP16)]
    result = start("fp16", words=[*words, *map(str, sizes)]).finish()
    assert result.code == 0, result.stderr
    curve = launcher.read_curve(result.out, "fp16")
    assert max(apart(curve, reference(*sizes))) < 1e-3
    assert read_last_line(result) == (20, 0, 0, 2**16)
    assert set(os.listdir(result.out)) == {"fp16.jsonl", "fp16.pt"}
