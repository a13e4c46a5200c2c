"""Lesson 13: a quarter of the model on each process, kill and resume, and limericks."""

import importlib
import re

import pytest
import torch

from parts import limericks
from tests.helpers.lines import column
from tests.helpers.probe_runs import limerick_arguments, run_probe
from tests.helpers.promises import SMALL as SIZES
from tests.helpers.promises import trained_plainly
from tools import launcher

STEM = "13_gpt"
SMALL = SIZES[STEM]


def test_no_position_of_a_text_sees_what_comes_later():
    torch.manual_seed(0)
    model = importlib.import_module(STEM).build_model(61)
    texts = torch.randint(61, (2, 40))
    other = texts.clone()
    other[:, 25] = (other[:, 25] + 1) % 61
    with torch.no_grad():
        off = (model(texts) - model(other)).abs().amax(dim=(0, 2))
    assert off[:25].max() == 0 and off[25:].min() > 0


def written(stdout):
    """What the run wrote before and after."""
    before = re.search(r"---- before epoch 1\n\n(.*?)\n\n----\n", stdout, re.S)
    after = re.search(r"---- after training\n\n(.*?)\n\n----\n", stdout, re.S)
    return before and before[1], after[1]


@pytest.mark.long("2-2", "4-2")
@pytest.mark.night
@pytest.mark.parametrize(("processes", "tensor"), [(2, 1), (2, 2), (3, 1), (4, 1), (4, 2), (4, 4)])
def test_before_training_every_mesh_writes_what_one_process_does(kept, processes, tensor):
    options = ("--tensor-parallel", tensor) if tensor != 2 else ()
    both = kept(STEM, processes, *SMALL, *options), kept(STEM, 1, *SMALL)
    assert written(both[0].stdout)[0] == written(both[1].stdout)[0]


@pytest.mark.night
def test_another_mesh_goes_on_where_the_first_was_killed_while_it_saved(forks, fork, tmp_path):
    sizes = (*SMALL, "--snapshot-every", 2)
    words = (STEM, "killed", "write_data", "epoch0002-step000006", "__0_0.distcp")
    command = launcher.command(STEM, 4, *sizes)
    assert run_probe(forks, tmp_path / "run", "in_a_run", command, *words).code != 0
    half = tmp_path / f"run/out/{STEM}.epoch0002-step000006.temporary/__0_0.distcp"
    assert half.stat().st_size == 198
    resumed = fork(STEM, 3, *sizes, "--characters", 190, "--temperature", 50)
    assert "resumed in epoch 2 after step 4\n" in resumed.stdout
    curve = launcher.read_curve(resumed.out, STEM)
    assert launcher.difference(curve, trained_plainly(STEM)[0]) == ""
    assert not list(resumed.out.glob("*.temporary"))
    assert len(list(resumed.out.glob("*.snapshot"))) == 2
    # It reads the last 176 of them, and writes on. So hot, it hardly ever ends a limerick.
    assert max(map(len, written(resumed.stdout)[1].split("\n\n"))) == 190


def count(shapes):
    return sum(torch.Size(shape).numel() for shape in shapes)


def test_each_process_holds_a_quarter_and_all_write_the_same(found):
    probes = found("one_step", STEM, 4, 13)
    assert max(column(probes, "off")) < 1e-5  # the gradients, from those of one process
    sizes, seen = probes[0]["sizes"], probes[0]["seen"]
    total = count(sizes.values())
    for probe in probes:
        assert 0.245 * total < count(probe["held"].values()) < 0.256 * total
        assert probe["seen"] == seen
    for name, shape in sizes.items():
        held = count(probe["held"][name] for probe in probes)
        copies = held / count([shape])
        matrix = len(shape) == 2 and "shares" not in name
        columns = re.search(r"(query|key|value|up)\.bias|head\.bias", name)
        assert copies == (1 if matrix or columns else 2), name  # two processes with the same heads: a vector
    assert seen[0] == seen[1] != seen[2]  # the seed decides
    assert seen[3][0] == seen[3][1] == seen[3][2]  # near zero, only the likeliest is ever taken
    assert seen[0][0] != seen[0][1]


def texts_of(data, characters):
    texts = []
    for numbers in data.images:
        texts.append("".join(characters[number] for number in numbers))
    return texts


def test_no_limerick_is_both_learned_and_tested_on():
    characters, train_set, test_set = limericks.load(limerick_arguments(28))
    assert (len(train_set), len(test_set)) == (704, 28)
    learned = texts_of(train_set, characters)
    tested = texts_of(test_set, characters)
    for data in (train_set, test_set):
        assert torch.equal(data.images[:, 1:], data.labels[:, :-1])
    poems = (launcher.ROOT / "lessons/parts/limericks.txt").read_text().rstrip("\n").split("\n\n")
    kept = [poem for number, poem in enumerate(poems) if number % 7 < 6]
    for pieces, own in ((learned[:180], kept), (tested, poems[6::7])):
        for piece, poem in zip(pieces, own, strict=False):
            assert piece.startswith(poem[:176])
    assert len(learned[:180]) == len(set(learned)) == 180
    assert learned[180:360] == learned[:180]
    for poem in poems[6::7]:
        for piece in learned:
            assert poem[:100] not in piece and poem[-100:] not in piece
