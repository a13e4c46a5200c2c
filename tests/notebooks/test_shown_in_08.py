"""What the prose of notebook 08 says about its outputs, wherever it was executed."""

import re

from tests.helpers.shown import alts, percent, printed, table


def alt_that_begins(words):
    for alt in alts("08_real_training"):
        if alt.startswith(words):
            return alt
    raise LookupError(words)


def test_the_killed_run_ends_with_the_same_bytes():
    text = printed("08_real_training")
    assert "resumed in epoch 2 after step 8" in text and "the same bytes in both files: True" in text
    best = re.findall(r"best: epoch \d+, accuracy (\S+); on the test images (\S+)\n", text)
    of_validation, of_test = map(percent, best[0])
    assert of_validation < of_test, "the notebook says that it can be the lower of the two"


def test_batch_norm_and_rounding():
    text = printed("08_real_training")
    assert "20 batch norms, 40 all-reduces" in text
    means = alt_that_begins("The mean by which")
    alone = re.search(r"BatchNorm2d: ([\d., ]+)\. With", means)[1].split(", ")
    assert len(set(alone)) == 4
    first, last = map(float, re.search(r"32 bits: (\S+) in step 1, (\S+) in step 15", text).groups())
    assert first < 1e-5 < last
    assert float(re.search(r"64 bits: .* (\S+) in step 15", text)[1]) < 1e-10


def test_the_rows_of_all_ranks_give_the_statistics_of_the_whole_batch():
    text = printed("08_real_training")
    from_rows = re.search(r"from the four rows: +mean (\S+), variance (\S+)", text).groups()
    assert from_rows == re.search(r"from the whole batch: +mean (\S+), variance (\S+)", text).groups()

    drawn = alt_that_begins("The tensor `rows`")
    means = re.findall(r"rank \d ([\d.]+) and \d+", drawn)
    assert len(means) == 4
    assert f"With nn.BatchNorm2d: {', '.join(means)}." in alt_that_begins("The mean by which")


def test_the_run_stops_when_its_patience_ends():
    drawn = alt_that_begins("The accuracy on the validation images")
    best, last, epochs, patience = re.search(
        r"after epoch (\d+), .* after epoch (\d+) of (\d+), with a patience of (\d+)", drawn
    ).groups()
    assert int(last) == int(best) + int(patience) < int(epochs)

    text = printed("08_real_training")
    run = text.partition("08_real_training/early\n")[2].partition("best: ")[0]
    accuracies = [percent(found) for found in re.findall(r"accuracy +(\S+) \|", run)]
    assert len(accuracies) == int(last)
    assert accuracies.index(max(accuracies)) + 1 == int(best)
    before_best = accuracies[: int(best)]
    assert before_best != sorted(before_best), "the notebook says that it falls before the best epoch"


def test_the_rates_rise_to_their_highest_in_half_an_epoch():
    rates = alt_that_begins("The learning rate")
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
