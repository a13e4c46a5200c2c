"""What the prose of notebook 01 says about its outputs, wherever it was executed."""

import json
import re

from tests.helpers.shown import alts, percent, printed


def test_nothing_is_learned_without_zero_grad_and_a_sum_keeps_its_history():
    text = printed("01_single_gpu")
    assert "10 batches, 960 images" in text and re.search(r"\n0 bytes of \d+ differ", text)
    forgot, right = (percent(found) for found in re.findall(r"zero_grad\(\): +([\d.]+%)", text))
    assert forgot < 0.15 and right > 0.6
    kept, detached = (int(found) for found in re.findall(r"keeps +(\d+)", text))
    assert kept > 5 * 10 and detached == 0
    shared = re.search(r"forward and backward: ([\d.]+%)", text)[1]
    assert percent(shared) > 0.8


def test_the_loss_falls():
    losses = [float(loss) for loss in re.findall(r"epoch +\d \| loss ([\d.]+)", printed("01_single_gpu"))]
    assert losses[7] < losses[0] / 10


def test_the_picture_of_the_batches_has_the_orders_that_the_cell_prints():
    (drawn,) = [alt for alt in alts("01_single_gpu") if "in the order of their numbers" in alt]
    epochs = re.findall(r"epoch (\d): order (\[.*\]), batches (\[\[.*\]\])\n", printed("01_single_gpu"))
    assert [epoch for epoch, *_ in epochs] == ["1", "2"]
    for epoch, order, batches in epochs:
        assert f"In epoch {epoch}, the order is {order}, the batches are {batches}" in drawn
        numbers = json.loads(order)
        in_batches = []
        for batch in json.loads(batches):
            in_batches += batch
        assert in_batches == numbers[:9], "the batches are cut from the order"
        assert f"and {numbers[9:]} is dropped" in drawn
    assert json.loads(epochs[0][1])[9] != json.loads(epochs[1][1])[9], "the answer to Predict 1"


def test_the_picture_of_a_step_has_the_numbers_of_sgd_with_momentum():
    (drawn,) = [alt for alt in alts("01_single_gpu") if "in memory after each line" in alt]
    weight, rate = 1.0, 0.1
    gradient = 2 * weight  # of the square
    assert (
        f"step() makes weight {weight - rate * gradient:.2f}; step() makes momentum {gradient:.2f}" in drawn
    )
    new = 2 * (weight - rate * gradient)
    wrong = gradient + new
    assert f"backward() makes .grad {wrong:.2f}" in drawn and f"{new:.2f} new" in drawn
    momentum = 0.9 * gradient + wrong
    after = weight - rate * gradient - rate * momentum
    assert f"step() makes weight {after:.2f}; step() makes momentum {momentum:.2f}" in drawn


def test_the_picture_of_the_history_has_the_numbers_that_the_cell_prints():
    kept, detached = re.findall(r"keeps +(\d+)", printed("01_single_gpu"))
    (drawn,) = [alt for alt in alts("01_single_gpu") if "refers to" in alt]
    assert f"keeps {kept} operations" in drawn and f"keeps {detached} operations" in drawn
