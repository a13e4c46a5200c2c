"""What lessons 05 and 06a promise: a crash costs an epoch, or three steps, and no byte, whenever it comes."""

import re

import pytest
import torch
import torch.distributed as dist

import workload
from tests.helpers.changed_lessons import copy_lessons
from tests.helpers.lines import column
from tests.helpers.outcomes import curve_of
from tests.helpers.promises import check_files
from tools import launcher, lessons
from tools.makers import chaos

SMALL = ("--train-size", 480, "--test-size", 20, "--batch-size", 24, "--epochs")  # 20 steps an epoch
EPOCHS, STEPS = "05_snapshots", "06a_any_step"  # after what they save
# For each: an undisturbed run, one that is killed, and from where that one goes on.
LESSONS = {
    EPOCHS: ((*SMALL, 4), ("--crash-at", 3), "after epoch 2"),
    STEPS: ((*SMALL, 3), ("--snapshot-every", 3, "--crash-at", 2), "in epoch 2 after step 18"),
}


@pytest.mark.quick("06a_any_step-4-fork")
@pytest.mark.long("05_snapshots-2-run")
@pytest.mark.night
@pytest.mark.parametrize(
    ("stem", "processes", "way"),
    [
        (EPOCHS, 2, "run"),
        (STEPS, 2, "run"),
        (STEPS, 1, "fork"),
        (STEPS, 2, "fork"),
        (STEPS, 3, "fork"),
        (STEPS, 4, "fork"),
    ],
)
def test_a_crashed_run_ends_with_the_bytes_of_one_that_never_crashed(request, fork, stem, processes, way):
    """With "run", by its documented command. What lesson 05 ends with, lesson 04 gives in peace."""
    sizes, crash, place = LESSONS[stem]
    before = "04_ddp_torchrun" if stem == EPOCHS else stem
    whole = fork(before, processes, *sizes, folder="whole")
    crashed = request.getfixturevalue(way)(stem, processes, *sizes, *crash, folder="crashed")
    assert crashed.stdout.count(f"resumed {place}\n") == 1
    printed = list(map(int, re.findall(r"^epoch +(\d+) ", crashed.stdout, re.M)))
    assert printed == list(range(1, sizes[-1] + 1))
    assert curve_of(crashed.out, stem) == curve_of(whole.out, before)
    file = crashed.out / f"{stem}.pt"
    file_of_whole = whole.out / f"{before}.pt"
    found = torch.load(file, weights_only=True)
    for name, weight in torch.load(file_of_whole, weights_only=True).items():
        assert torch.equal(found[name], weight)
    if stem != EPOCHS:  # a file holds its own name
        assert file.read_bytes() == file_of_whole.read_bytes()
    check_files(crashed, stem)


def test_an_interval_that_is_longer_than_an_epoch_saves_at_the_end_of_each(fork):
    result = fork(STEPS, 2, *SMALL, 2, "--snapshot-every", 100, "--crash-at", 1)
    assert column(launcher.read_curve(result.out, STEPS), "epoch") == [1, 2]
    assert "resumed in epoch 1 after step 20\n" in result.stdout


@pytest.mark.parametrize(
    ("stem", "expected"),
    [(EPOCHS, ["resumed after epoch 4"]), (STEPS, ["resumed in epoch 3 after step 20", "epoch  3"])],
)
def test_a_finished_run_repeats_at_most_the_report_of_its_last_epoch(fork, stem, expected):
    sizes = LESSONS[stem][0]
    first = fork(stem, 2, *sizes)
    weights, curve = (first.out / f"{stem}.pt").read_bytes(), curve_of(first.out, stem)
    again = fork(stem, 2, *sizes)
    assert (again.out / f"{stem}.pt").read_bytes() == weights
    assert curve_of(again.out, stem) == curve
    beginnings = [line.partition(" |")[0] for line in again.stdout.splitlines()]
    assert beginnings == expected
    # Nothing else, for example no warning that the scheduler is stepped before the optimizer.
    assert again.stderr == f"nothing is left to train: to start over, remove out/{stem}.*\n"


@pytest.mark.quick("05_snapshots-2-3", "06a_any_step-4-2")
@pytest.mark.long
@pytest.mark.parametrize(("stem", "first", "then"), [(EPOCHS, 2, 3), (STEPS, 4, 2), (STEPS, 2, 3)])
def test_another_number_of_processes_goes_on_with_the_same_losses(fork, reference, stem, first, then):
    """06a in the middle of an epoch, so that the order of the images and the loss so far must fit too."""
    sizes, crash, place = LESSONS[stem]
    assert fork(stem, first, *sizes, *crash, refused=True).code != 0
    result = fork(stem, then, *sizes)
    assert f"resumed {place}\n" in result.stdout
    limits = lessons.Curve(early=1e-6, late=1e-6)
    assert launcher.difference(launcher.read_curve(result.out, stem), reference(*sizes), limits) == ""


# ---- what a snapshot must hold ----


# A text of lesson 06a, and what stands there where a snapshot forgets something: the table on its page.
RANDOM = '                workload.set_random_state(processes[rank % len(processes)]["random"], device)\n'
FORGETS = {
    "nothing": ("import workload\n", "import workload\n"),
    "momentum": (' "optimizer": optimizer,', ""),
    "scheduler": (', "scheduler": scheduler}', "}"),
    "buffers": (
        '"model": model.module,',
        '"model": nn.ParameterDict({k.replace(".", "_"): p for k, p in model.module.named_parameters()}),',
    ),
    "random state": (RANDOM, ""),
    "random state of the others": ("processes[rank % len(processes)]", "processes[0]"),
    "step": ('state["step"], state["processes"]', '0, state["processes"]'),
    "epoch": ('= state["epoch"],', '= state["epoch"] - 1,'),
    "loss so far": ("loss_sum += sum(", "0 * sum("),
    "order of the gradients": ("    workload.settle(model, train_set.images[:1].to(device))\n", ""),
}


@pytest.mark.quick("momentum", "nothing")
@pytest.mark.night
@pytest.mark.parametrize("part", FORGETS)
def test_whatever_a_snapshot_forgets_is_seen(forks, tmp_path, part):
    """The model is that of victim.py, which has all that can be forgotten. For 05, see the last test."""
    (sizes, crash, _), (text, instead), results = LESSONS[STEPS], FORGETS[part], []
    copy_lessons(tmp_path / "lessons")
    path = tmp_path / f"lessons/{STEPS}.py"
    lesson = path.read_text()
    assert lesson.count(text) == 1, "the lesson has changed: change this test with it"
    path.write_text(lesson.replace(text, instead))
    for folder, options in (("peace", sizes), ("crash", (*sizes, *crash))):
        # One agent, which starts all again after a crash.
        script = launcher.ROOT / "tools/testbed/victim.py"
        words, environment = launcher.command(EPOCHS, 4, *options, script=script)
        result = forks.finish(words, tmp_path / folder, environment | {"LESSON": str(path)})
        assert result.code == 0, result.stderr
        results.append(((result.out / f"{STEPS}.pt").read_bytes(), curve_of(result.out, STEPS)))
    assert (results[0] == results[1]) == (part == "nothing")


# A script that has these lines of the lesson, and random augmentation. Without one of them: does a killed run
# end with the same bytes, do two ranks' images differ, and does --seed change them?
SEED = "torch.manual_seed(arguments.seed * 10**7 + epoch * 10**4 + rank)"
RESTORE = RANDOM.replace("workload.set_random_state", "torch.set_rng_state").replace(", device", "")
LINES = {
    "all": ("", "", (True, True, True)),
    "no seed, no workers": (SEED, "pass", (True, False, True)),
    "no seed": (SEED, "pass", (False, False, True)),
    "no random state": (RESTORE, "", (False, True, True)),
    "too early": (RESTORE, f"                if step == 1:\n    {RESTORE}", (False, True, True)),
    "persistent workers": ("num_workers=", "persistent_workers=True, num_workers=", (False, True, True)),
}


@pytest.mark.quick("0-all")
@pytest.mark.long("2-all")
@pytest.mark.night
@pytest.mark.parametrize(
    ("workers", "lines"),
    [
        *((0, "all"), (2, "all"), (0, "no seed, no workers"), (2, "no seed")),
        *((0, "no random state"), (0, "too early"), (2, "persistent workers")),
    ],
)
def test_random_augmentation_goes_on_as_if_nobody_had_killed_the_run(forks, tmp_path, workers, lines):
    lesson = lessons.get(STEPS).path.read_text()
    script = tmp_path / "augmenting.py"
    left_out, instead, expected = LINES[lines]
    text = (launcher.ROOT / "tests/probes/augmenting.py").read_text()
    assert SEED in lesson and SEED in text and RANDOM in lesson and RESTORE in text
    script.write_text(text.replace(left_out, instead) if left_out else text)
    weights = {}
    drawn = {}
    runs = {"whole": (), "killed": ("--crash-at", 2), "another seed": ("--seed", 1)}
    for name, options in runs.items():
        words, environment = launcher.command(EPOCHS, 2, "--workers", workers, *options, script=script)
        result = forks.finish(words, tmp_path / name, environment)
        assert result.code == 0, result.stderr
        resumed = 2 if name == "killed" else 0  # both processes say so
        assert result.stdout.count("resumed in epoch 2 after step 4\n") == resumed
        weights[name] = (result.out / "weights").read_bytes()
        assert torch.load(result.out / "weights")["0.weight"].isfinite().all()
        drawn[name] = [torch.load(result.out / f"drawn{rank}") for rank in range(2)]
    one, two = drawn["whole"]
    found = (
        weights["killed"] == weights["whole"],
        not torch.equal(one, two),
        not torch.equal(one, drawn["another seed"][0]),
    )
    assert found == expected


def test_the_pass_that_does_not_count_leaves_no_mark(tmp_path):
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    layers = torch.nn.Linear(2, 3), torch.nn.BatchNorm1d(3), torch.nn.Dropout(), torch.nn.Linear(3, 1)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(*layers))
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    random = torch.get_rng_state()
    workload.settle(model, torch.ones(4, 2))
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[name])
    assert torch.equal(torch.get_rng_state(), random)
    assert model.training
    for parameter in model.parameters():
        assert parameter.grad is None
    dist.destroy_process_group()


@pytest.mark.long
def test_killed_at_random_moments_05_ends_with_the_same_bytes(forks, tmp_path):
    """One of each kind. In mid-save, rank 0 is killed when a part of the temporary file is on the disk."""
    kinds = dict.fromkeys(("one process", "all processes", "in mid-save", "SIGTERM"), 1)
    rows = chaos.chaos(len(kinds), tmp_path, processes=(2,), kinds=kinds, forks=forks, lesson=EPOCHS)
    assert sorted(column(rows, "kind")) == sorted(kinds)
