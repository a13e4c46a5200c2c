"""What the prose of notebook 08 says about its outputs, wherever it was executed."""

import re

from tests.helpers.shown import alts, percent, printed, table


def test_the_killed_run_ends_with_the_same_bytes():
    text = printed("08_real_training")
    assert "resumed in epoch 2 after step 8" in text and "the same bytes in both files: True" in text


def test_batch_norm_and_rounding():
    text = printed("08_real_training")
    assert "20 batch norms, 40 all-reduces" in text
    means = next(alt for alt in alts("08_real_training") if alt.startswith("The mean by which"))
    alone = re.search(r"BatchNorm2d: ([\d., ]+)\. With", means)[1].split(", ")
    assert len(set(alone)) == 4
    first, last = map(float, re.search(r"32 bits: (\S+) in step 1, (\S+) in step 15", text).groups())
    assert first < 1e-5 < last
    assert float(re.search(r"64 bits: .* (\S+) in step 15", text)[1]) < 1e-10


def test_the_rates_rise_to_their_highest_in_half_an_epoch():
    rates = next(alt for alt in alts("08_real_training") if alt.startswith("The learning rate"))
    assert "to 0.1, 0.2, 0.4, and falls" in rates


def test_seeds_eval_luck_and_decisions():
    text = printed("08_real_training")
    assert re.findall(r"the same image in both runs: (\w+)", text) == ["True", "False"]
    (_, with_eval), (sorted_without, sorted_with) = table(
        "08_real_training", "order of the test images"
    ).values()
    on_two_processes = re.search(r"the run on two processes printed (\S+)", text)[1]
    assert with_eval == sorted_with == on_two_processes
    assert percent(sorted_without) < percent(sorted_with) - 0.2
    gaps = [float(row[-1]) for row in table("08_real_training", "images that choose").values()]
    assert gaps == sorted(gaps, reverse=True) and 4 < gaps[2] < 6
    alone = re.findall(r"process \d alone ends after epoch (\d)", text)
    assert alone[0] != alone[1] and "by the sum of both, each ends after epoch 5" in text
