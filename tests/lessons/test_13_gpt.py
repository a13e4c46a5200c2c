"""Lesson 13: one curve on every mesh, a quarter of the model on each process, kill and resume, limericks."""

import hashlib
import importlib
import json
import re
import subprocess

import pytest
import torch
from torch.utils.data import DistributedSampler

import launcher
import workload
from lines import refusal
from meshes import limerick_arguments, run_probe
from parts import limericks

STEM = "13_gpt"
SMALL = ("--train-size", 133, "--batch-size", 12, "--test-size", 13, "--epochs", 2, "--characters", 14)


def values(result):
    return [(row["epoch"], row["loss"], row["accuracy"]) for row in launcher.read_curve(result.out, STEM)]


@pytest.fixture(scope="module")
def one(forks, tmp_path_factory):
    """The job in one process."""
    folder = tmp_path_factory.mktemp("one")
    words, environment = launcher.command(STEM, 1, *SMALL)
    code, left = forks.run(words, folder, environment, limit=240)
    assert (code, left) == (0, []), (folder / ".err").read_text()
    return launcher.read_curve(folder / "out", STEM), (folder / ".out").read_text()


@pytest.mark.quick("2-2")
@pytest.mark.long("4-2")
@pytest.mark.night
@pytest.mark.parametrize(("processes", "tensor"), [(2, 1), (2, 2), (3, 1), (4, 1), (4, 2), (4, 4)])
def test_one_curve_on_every_mesh(fork, one, processes, tensor):
    result = fork(STEM, processes, *SMALL, *(("--tensor-parallel", tensor) if tensor != 2 else ()))
    curve = launcher.read_curve(result.out, STEM)
    assert launcher.difference(curve, one[0]) == ""
    assert [row["accuracy"] for row in curve] == [row["accuracy"] for row in one[0]]
    assert {row["world_size"] for row in curve} == {processes}
    assert curve[-1]["accuracy"] == recount(result.out / f"{STEM}.pt", 13)
    assert written(result.stdout)[0] == written(one[1])[0]
    assert {path.name for path in result.out.iterdir()} == {
        f"{STEM}.jsonl",
        f"{STEM}.pt",
        *(f"{STEM}.epoch000{epoch}-step000000.snapshot" for epoch in (2, 3)),
    }


@pytest.mark.long
def test_one_process_trains_like_a_loop_that_knows_of_no_mesh(one):
    workload.set_seed(0)
    characters, train_set, test_set = limericks.load(limerick_arguments(13, 133))
    model, curve = importlib.import_module(STEM).build_model(len(characters)), []
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.008)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.008, 22, pct_start=0.2)
    sampler = DistributedSampler(train_set, 1, 0, seed=0)
    for epoch in (1, 2):
        sampler.set_epoch(epoch)
        losses = []
        for rows in torch.tensor(list(sampler))[:132].split(12):
            texts, following = train_set[rows]
            loss = torch.nn.functional.cross_entropy(model(texts).flatten(0, 1), following.flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            scheduler.step()
            losses.append(loss.item())
        with torch.no_grad():
            right = (model(test_set.images).argmax(dim=2) == test_set.labels).float().mean().item()
        curve.append({"epoch": epoch, "loss": sum(losses) / 11, "accuracy": right})
    assert launcher.difference(one[0], curve) == ""


def test_no_position_of_a_text_sees_what_comes_later():
    torch.manual_seed(0)
    model = importlib.import_module(STEM).build_model(61)
    texts = torch.randint(61, (2, 40))
    other = texts.clone()
    other[:, 25] = (other[:, 25] + 1) % 61
    with torch.no_grad():
        off = (model(texts) - model(other)).abs().amax(dim=(0, 2))
    assert off[:25].max() == 0 and off[25:].min() > 0


def recount(path, pieces):
    """The share of characters that these weights foresee, counted in one process, one piece at a time."""
    arguments = limerick_arguments(pieces)
    characters, _, test_set = limericks.load(arguments)
    model = importlib.import_module(STEM).build_model(len(characters))
    model.load_state_dict(torch.load(path, weights_only=True))
    correct = 0
    for texts, following in test_set:
        with torch.no_grad():
            correct += (model(texts[None])[0].argmax(dim=1) == following).sum().item()
    return correct / (pieces * limericks.LENGTH)


def written(stdout):
    """What the run wrote before and after."""
    before = re.search(r"---- before epoch 1\n\n(.*?)\n\n----\n", stdout, re.S)
    after = re.search(r"---- after training\n\n(.*?)\n\n----\n", stdout, re.S)
    return before and before[1], after[1]


@pytest.mark.night
def test_the_same_command_gives_the_same_bytes_and_the_same_limericks(fork):
    first, again = (fork(STEM, 4, *SMALL, folder=folder) for folder in ("first", "again"))
    assert first.stdout.split("epoch")[0] == again.stdout.split("epoch")[0]
    assert written(first.stdout) == written(again.stdout)
    assert (first.out / f"{STEM}.pt").read_bytes() == (again.out / f"{STEM}.pt").read_bytes()
    other = fork(STEM, 1, *SMALL, "--seed", 1, "--epochs", 1, folder="other")
    assert written(other.stdout)[0] != written(first.stdout)[0]


@pytest.mark.long
def test_a_killed_run_goes_on_with_the_curve_unbroken(fork):
    sizes = (*SMALL, "--snapshot-every", 2)
    whole = fork(STEM, 4, *sizes, folder="whole")
    killed = fork(STEM, 4, *sizes, "--crash-at", 2, folder="killed", refused=True)
    assert killed.code != 0
    assert [row["epoch"] for row in launcher.read_curve(killed.out, STEM)] == [1]
    subprocess.run(["cp", "-r", killed.out, f"{killed.out}-copy"], check=True)
    resumed = fork(STEM, 4, *sizes, folder="killed")
    assert "resumed in epoch 2 after step 4\n" in resumed.stdout
    assert "---- before epoch 2\n" in resumed.stdout
    assert values(resumed) == values(whole)
    assert written(resumed.stdout)[1] == written(whole.stdout)[1]
    assert (resumed.out / f"{STEM}.pt").read_bytes() == (whole.out / f"{STEM}.pt").read_bytes()
    again = fork(STEM, 4, *sizes, folder="killed")  # it is finished: nothing is trained, and all as it was
    assert "resumed in epoch 3 after step 0\n" in again.stdout
    assert (again.out / f"{STEM}.pt").read_bytes() == (whole.out / f"{STEM}.pt").read_bytes()


@pytest.mark.night
def test_another_mesh_goes_on_where_the_first_was_killed_while_it_saved(forks, fork, one, tmp_path):
    sizes = (*SMALL, "--snapshot-every", 2)
    words = (STEM, "write_data", "epoch0002-step000006", "__0_0.distcp")
    command = launcher.command(STEM, 4, *sizes)
    assert run_probe(forks, tmp_path / "run", "killed_while_saving", command, *words).code != 0
    half = tmp_path / f"run/out/{STEM}.epoch0002-step000006.temporary/__0_0.distcp"
    assert half.stat().st_size == 198
    resumed = fork(STEM, 3, *sizes, "--characters", 190, "--temperature", 50)
    assert "resumed in epoch 2 after step 4\n" in resumed.stdout
    assert launcher.difference(launcher.read_curve(resumed.out, STEM), one[0]) == ""
    assert not list(resumed.out.glob("*.temporary"))
    assert len(list(resumed.out.glob("*.snapshot"))) == 2
    # It reads the last 176 of them, and writes on. So hot, it hardly ever ends a limerick.
    assert max(map(len, written(resumed.stdout)[1].split("\n\n"))) == 190


REFUSED = {
    "three share four heads": (
        ("--tensor-parallel", 3),
        3,
        "--tensor-parallel 3 does not divide 4 heads and 3 processes: take 1",
    ),
    "two share three": (
        ("--tensor-parallel", 2),
        3,
        "--tensor-parallel 2 does not divide 4 heads and 3 processes: take 1",
    ),
    "shared by none": (("--tensor-parallel", -1), 1, "--tensor-parallel -1 does not divide"),
    "digits": (("--data", "digits"), 1, "this lesson reads limericks, not digits: leave --data out"),
    "too cold": (("--temperature", 0), 1, "--temperature must be a number above 0, not 0.0"),
    "much text": (("--train-size", 9999), 2, "the limericks make 720 sequences of 176 characters, not 9999"),
    "much to test on": (("--test-size", 99), 1, "sequences of 176 characters, not 99"),
    "uneven shares": (("--batch-size", 13), 2, "--batch-size 13 does not divide by 2 processes"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_work_is_refused_in_one_line(fork, case):
    options, processes, message = REFUSED[case]
    assert message in refusal(fork(STEM, processes, *SMALL, *options, refused=True))


def test_a_snapshot_of_other_settings_is_refused(fork):
    fork(STEM, 1, *SMALL, "--epochs", 1)
    result = fork(STEM, 2, *SMALL, "--epochs", 1, "--lr", 0.01, refused=True)
    assert result.code != 0
    assert "has lr 0.008, not 0.01: remove it, or name another --out\n" in result.stderr
    assert not re.search(r'File ".*/lessons/', result.stderr)


@pytest.fixture(scope="module")
def probes(forks, tmp_path_factory):
    folder = tmp_path_factory.mktemp("probe")
    result = run_probe(forks, folder, "gpt_on_mesh", launcher.command(STEM, 4))
    assert result.code == 0, result.stderr
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(4)]


def count(shapes):
    return sum(torch.Size(shape).numel() for shape in shapes)


def test_each_process_holds_a_quarter(probes):
    sizes = probes[0]["sizes"]
    total = count(sizes.values())
    for probe in probes:
        assert 0.245 * total < count(probe["held"].values()) < 0.256 * total
    for name, shape in sizes.items():
        copies = sum(count([probe["held"][name]]) for probe in probes) / count([shape])
        matrix = len(shape) == 2 and "shares" not in name
        columns = re.search(r"(query|key|value|up)\.bias|head\.bias", name)
        assert copies == (1 if matrix or columns else 2), name  # two processes with the same heads: a vector


def test_gradients_are_those_of_one_process(probes):
    assert all(probe["off"] < 1e-5 for probe in probes)


def test_all_processes_write_the_same_and_the_seed_decides_what(probes):
    first = probes[0]["seen"]
    assert all(probe["seen"] == first for probe in probes)
    assert first[0] == first[1] != first[2]
    assert first[3][0] == first[3][1] == first[3][2]  # near zero, only the likeliest is ever taken
    assert first[0][0] != first[0][1]


def test_the_text_is_what_it_says():
    data = (launcher.ROOT / "lessons/parts/limericks.txt").read_bytes()
    assert hashlib.sha256(data).hexdigest().startswith("f0e528756e640cb3")
    text = data.decode("ascii")
    assert set(text) <= set("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz !\"',-.:;?\n")
    poems = text.removesuffix("\n").split("\n\n")
    assert len(poems) == len(set(poems)) == 211
    for poem in poems:
        assert len(poem.splitlines()) == 5
        assert poem.startswith(("There was a", "There is a"))
        assert all(re.match(r"\"?[A-Z]", line) and line == line.strip() for line in poem.splitlines()), poem


def test_a_piece_needs_one_character_more_than_it_has(capsys):
    assert len(limericks.sequences(["a" * 177], ["a"], 1)) == 1
    with pytest.raises(SystemExit):
        limericks.sequences(["a" * 176], ["a"], 1)
    assert "make 0 sequences of 176 characters, not 1" in capsys.readouterr().err


def test_no_limerick_is_both_learned_and_tested_on():
    characters, train_set, test_set = limericks.load(limerick_arguments(28))
    assert (len(train_set), len(test_set)) == (704, 28)
    learned, tested = (
        ["".join(characters[number] for number in numbers) for numbers in data.images]
        for data in (train_set, test_set)
    )
    for data in (train_set, test_set):
        assert torch.equal(data.images[:, 1:], data.labels[:, :-1])
    poems = (launcher.ROOT / "lessons/parts/limericks.txt").read_text().rstrip("\n").split("\n\n")
    kept = [poem for number, poem in enumerate(poems) if number % 7 < 6]
    for pieces, own in ((learned[:180], kept), (tested, poems[6::7])):
        assert all(piece.startswith(poem[:176]) for piece, poem in zip(pieces, own, strict=False))
    assert len(learned[:180]) == len(set(learned)) == 180 and learned[180:360] == learned[:180]
    assert not any(poem[:100] in piece or poem[-100:] in piece for poem in poems[6::7] for piece in learned)


@pytest.mark.night
def test_the_documented_command_learns_and_writes(run):
    result = run(STEM, 4, "--train-size", 240, "--epochs", 2, "--characters", 30)
    curve = launcher.read_curve(result.out, STEM)
    assert curve[1]["loss"] < curve[0]["loss"] < 4.2
    before, after = written(result.stdout)
    assert len(before.split("There was a")) == len(after.split("There was a")) == 5
    assert result.stderr == ""
