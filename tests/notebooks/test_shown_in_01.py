"""What the prose of notebook 01 says about its outputs, wherever it was executed."""

import re

from tests.helpers.shown import percent, printed


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
