"""What lessons 07 to 17 promise alike: one curve, the same bytes, a documented command, what is refused."""

import itertools
import math
import re
import sys

import pytest
import torch

from tests.helpers.lines import column, refusal
from tests.helpers.promises import SMALL, check_files, check_run, check_weights, trained_plainly
from tools import launcher, lessons


def stem_of(number):
    return next(lesson.stem for lesson in lessons.LESSONS if lesson.number == number)


def runs():
    for lesson in lessons.LESSONS:
        for run in lesson.runs:
            tier, processes, *options = run.split()
            name = " ".join([f"{lesson.number}-{processes}", *options])
            mark = getattr(pytest.mark, tier)
            yield pytest.param(lesson.stem, int(processes), options, id=name, marks=mark)


@pytest.mark.parametrize(("stem", "processes", "options"), [*runs()])
def test_one_curve_the_same_bytes_and_every_image_once(kept, fork, reference, stem, processes, options):
    words = (*SMALL[stem], *options)
    result = kept(stem, processes, *words)
    if stem == "12_mesh":  # lesson 11's job
        alone = kept("11_tensor_parallel", 1, *SMALL[stem])
        curve = launcher.read_curve(alone.out, "11_tensor_parallel")
        weights = torch.load(alone.out / "11_tensor_parallel.pt", weights_only=True)
    elif lessons.get(stem).curve.of == "01_single_gpu":
        curve, weights = reference(*SMALL[stem]), None
    else:
        curve, weights = trained_plainly(stem)
    check_run(result, stem, processes, curve)
    if stem == "17_one_mesh":
        said = re.match(r"mesh +\| (data (\d), pipeline (\d), context (\d), tensor (\d))\n", result.stdout)
        assert math.prod(map(int, said.groups()[1:])) == processes
        asked = zip(options[::2], options[1::2], strict=True)
        sizes = {f"{name[2:-9]} {size}" for name, size in asked if name.endswith("-parallel")}
        assert sizes <= set(said[1].split(", "))
    if close := lessons.get(stem).close:
        check_weights(result.out / f"{stem}.pt", weights, close)
    again = fork(stem, processes, *words)
    assert (again.out / f"{stem}.pt").read_bytes() == (result.out / f"{stem}.pt").read_bytes()


# Lesson 09's is compared byte by byte, in its own test.
LEARNING = [lesson for lesson in lessons.LESSONS if lesson.learns]


@pytest.mark.night("12_mesh", "13_gpt", "16_experts", "17_one_mesh")
@pytest.mark.long
@pytest.mark.parametrize("stem", [lesson.stem for lesson in LEARNING])
def test_its_documented_command_learns(run, reference, stem):
    """As a reader starts it, only shorter."""
    lesson = lessons.get(stem)
    processes = lesson.processes_for(0)
    sizes = lesson.learns
    result = run(stem, processes, *sizes.split())
    curve = launcher.read_curve(result.out, stem)
    losses = column(curve, "loss")
    assert losses[0] < 4.2
    for earlier, later in itertools.pairwise(losses):
        assert later < earlier
    assert losses[-1] < losses[0] - 0.02 or stem not in ("11_tensor_parallel", "12_mesh")
    assert set(column(curve, "world_size")) == {processes}
    assert result.stderr == ""
    if stem == "10_pipeline":
        assert launcher.difference(curve, reference(*sizes.split())) == ""
    if stem == "07_mixed_precision":
        limits = lessons.Curve(early=1e-4, late=1e-4, accuracy=0.02)
        assert launcher.difference(curve, reference(*sizes.split()), limits) == ""
    if stem == "13_gpt":
        before, after = re.findall(r"^---- .*?\n\n(.*?)\n\n----\n", result.stdout, re.S | re.M)
        assert len(before.split("There was a")) == len(after.split("There was a")) == 5
    if stem == "16_experts":
        *_, one, two = re.findall(r"^block \d  \| load of its experts(.*)$", result.stdout, re.M)
        assert all(5 < int(share) < 60 for share in re.findall(r"\d+", one + two))
    else:
        check_files(result, stem)


@pytest.mark.long
@pytest.mark.parametrize(
    ("stem", "first", "then", "step", "options"),
    [
        pytest.param("13_gpt", 4, 4, 4, (), id="13"),
        pytest.param("15_context_parallel", 2, 1, 1, (), id="15-1"),
        pytest.param("15_context_parallel", 2, 3, 1, (), id="15-3"),
        pytest.param("16_experts", 4, 2, 4, ("--double",), id="16"),
    ],
)
def test_a_killed_run_goes_on_with_its_curve(fork, kept, stem, first, then, step, options):
    """On another number of processes; on the same one it ends with the same bytes."""
    every = ("--snapshot-every", min(step, 2))
    words = (*SMALL[stem], *options)
    killed = fork(stem, first, *words, *every, "--crash-at", 2, refused=True)
    assert killed.code != 0
    assert column(launcher.read_curve(killed.out, stem), "epoch") == [1]
    # On the same number of processes, the whole run saves as often: a save averages the sum of losses over
    # the processes, which rounds its last digit.
    saves = every if first == then else ()
    whole = kept(stem, then, *words, *saves)
    resumed = fork(stem, then, *words, *every)
    assert f"resumed in epoch 2 after step {step}\n" in resumed.stdout
    curve = launcher.read_curve(resumed.out, stem)
    expected = launcher.read_curve(whole.out, stem)
    limits = lessons.Curve(early=1e-6 if options else 1e-5)
    assert launcher.difference(curve, expected, limits) == ""
    assert column(curve, "accuracy") == column(expected, "accuracy")
    assert resumed.stdout.partition("---- after")[2] == whole.stdout.partition("---- after")[2]
    loads = re.findall("^block.*", resumed.stdout, re.M)
    assert loads[-2:] == re.findall("^block.*", whole.stdout, re.M)[-2:]
    if first == then:
        assert column(curve, "loss") == column(expected, "loss")
        again = fork(stem, then, *words, *every)  # it is finished: nothing is trained, and all as it was
        assert "resumed in epoch 3 after step 0\n" in again.stdout
        assert (again.out / f"{stem}.pt").read_bytes() == (whole.out / f"{stem}.pt").read_bytes()


# ---- what they refuse ---------------------------------------------------------------------------

# In addition to SMALL.
REFUSED = """
07 2 --accumulate 49: --accumulate must be from 1 to the 48 images of a process, not 49
07 2 --batch-size 51: --batch-size 51 does not divide by 2 processes
08 2 --width 0: --width must be at least 1, not 0
08 2 --patience 0: --patience must be at least 1, not 0
08 2 --workers -1: --workers must be at least 0, not -1
08 2 --warm-up 2.5: --warm-up must be from 0 to the 2 epochs, not 2.5
08 2 --peak-tflops 0: --peak-tflops must be a number above 0, not 0.0
08 2 --validation-size 0: --validation-size must be at least 1, not 0
08 2 --train-size 120: 120 images without the 97 of --validation-size do not fill one --batch-size of 24
09 2 --batch-size 51: --batch-size 51 does not divide by 2 processes: take 52, for instance
10 2 --batch-size 120 --microbatches 7: --batch-size 120 does not divide by 7 micro-batches: take 126
10 2 --microbatches 0: --microbatches must be at least 1, not 0
10 4 --microbatches 3: 1f1b on 4 processes needs 4 micro-batches or more, not 3
10 2 --batch-size 85 --schedule interleaved --microbatches 5: interleaved has 2 rounds here, and 5 \
micro-batches do not divide by 2: take 6
10 5 --microbatches 12: the model has 4 layers with weights: 5 processes are too many
10 2 --microbatches 12 --pretend-milliseconds -1 --timeline: --pretend-milliseconds must be from 0 to 60000
10 2 --microbatches 12 --pretend-milliseconds 5: --pretend-milliseconds needs --timeline
11 3: error: 3 processes cannot share 4 heads evenly: take 1, 2 or 4
12 3 --tensor-parallel 3: --tensor-parallel 3 does not divide 4 heads and 3 processes: take 1
12 3 --tensor-parallel 2: --tensor-parallel 2 does not divide 4 heads and 3 processes: take 1
12 2 --batch-size 51: --batch-size 51 does not divide by 2 processes: take 52
13 3 --tensor-parallel 2: --tensor-parallel 2 does not divide 4 heads and 3 processes: take 1
13 1 --data digits: this lesson reads limericks, not digits: leave --data out
13 1 --temperature 0: --temperature must be a number above 0, not 0.0
13 2 --train-size 9999: the limericks make 720 sequences of 176 characters, not 9999
13 2 --batch-size 13: --batch-size 13 does not divide by 2 processes
15 2 --length 50: --length 50 does not divide into 4 chunks, two for each process: take 48
15 3 --context-parallel 2: --context-parallel 2 does not divide 3 processes: take 1
15 1 --length 34000: the limericks make 0 sequences of 34000 characters, not 38
16 3: --experts 4 is not a multiple of 3 processes: take 6, for example
16 1 --experts-per-token 3: --experts-per-token must be 1 or 2, and at most --experts, not 3
16 1 --balance -1: --balance must be 0 or more, not -1.0
16 1 --capacity 0: --capacity must be a number above 0, not 0.0
17 2 --tensor-parallel 3: --tensor-parallel 3 does not divide 2 processes: take 1
17 3 --tensor-parallel 3: --tensor-parallel 3 does not divide 4 heads: take 1
17 3 --pipeline-parallel 3: --pipeline-parallel 3 does not divide 4 blocks: take 1
17 2 --pipeline-parallel 2 --microbatches 1: 2 stages need at least 2 micro-batches, not 1
17 3 --batch-size 9: --batch-size 9 does not divide into 6 micro-batches of all: take 12
17 4 --length 30: --length 30 does not divide into 4 chunks, two for each process: take 32
""".strip().splitlines()


def refused():
    """The first row of each lesson runs while you work, the others in CI."""
    seen = set()
    for row in REFUSED:
        typed, _, _ = row.partition(": ")
        number = typed.split()[0]
        yield pytest.param(row, id=typed, marks=pytest.mark.long if number in seen else pytest.mark.quick)
        seen.add(number)


@pytest.mark.parametrize("row", [*refused()])
def test_what_cannot_work_is_refused_in_one_line(fork, row):
    typed, _, message = row.partition(": ")
    number, processes, *options = typed.split()
    stem = stem_of(number)
    assert message in refusal(fork(stem, int(processes), *SMALL[stem], *options, refused=True))


@pytest.mark.parametrize("stem", ["09_fsdp", "10_pipeline", "11_tensor_parallel"])
def test_plain_python_is_told_how_to_start_the_lesson(forked, stem):
    line = refusal(forked([sys.executable, lessons.get(stem).path]))
    assert re.search(rf"started by torchrun: torchrun --standalone --nproc-per-node 2 \S+{stem}.py$", line)


OTHER = {
    "13 --lr 0.01": "has lr 0.008, not 0.01",
    "15 --length 96": "has ",
    "16 --capacity 1": "has model Transformer of",
}


@pytest.mark.quick("16 --capacity 1")
@pytest.mark.long
@pytest.mark.parametrize("typed", OTHER)
def test_a_snapshot_of_other_settings_is_refused(fork, typed):
    number, *options = typed.split()
    stem = stem_of(number)
    words = (*SMALL[stem], "--train-size", 24, "--epochs", 1)
    fork(stem, 1, *words)
    result = fork(stem, 2, *words, *options, refused=True)
    assert result.code != 0
    assert re.search(rf"{OTHER[typed]}.*: remove it, or name another --out\n", result.stderr), result.stderr
    assert not re.search(r'File ".*/lessons/', result.stderr)
