"""What the notebooks on DataParallel and on how gradients travel stand on."""

import sys

import matplotlib

matplotlib.use("agg")
import matplotlib.pyplot as plt
import pytest
import torch
from torch.nn.functional import cross_entropy

import launcher
import workload

sys.path.insert(0, str(launcher.ROOT / "notebooks"))
from show import replicas, rings

SERVER = [[(1, 0, 0, "add"), (1, 0, 1, "add")], [(0, 1, 0, "replace"), (0, 1, 1, "replace")]]
SWAP = [[(0, 1, 0, "add"), (1, 0, 1, "add")], [(1, 0, 0, "replace"), (0, 1, 1, "replace")]]


def test_play_says_who_has_been_added_up_and_finds_what_is_wrong():
    start, half, end = rings.play(2, SWAP)
    assert start == [[{0}, {0}], [{1}, {1}]]
    assert half == [[{0}, {0, 1}], [{0, 1}, {1}]]
    assert end == [[{0, 1}, {0, 1}]] * 2
    with pytest.raises(AssertionError, match="counted twice"):
        rings.play(2, [SWAP[0], SWAP[0]])
    with pytest.raises(AssertionError, match="not everyone has the sum"):
        rings.play(2, SWAP[:1])


def test_a_panel_has_a_frame_around_what_has_arrived_and_a_sign_for_the_sum():
    rings.draw(2, SERVER, ["collect", "hand out"])
    start, _, half, end = plt.gcf().axes
    assert [text.get_text() for text in half.texts] == ["Σ", "Σ", "1", "1"]
    assert [text.get_text() for text in end.texts] == ["Σ"] * 4
    framed = [[patch.get_linewidth() > 0 for patch in axes.patches[:4]] for axes in (start, half)]
    assert framed == [[False] * 4, [True, True, False, False]]
    assert [axes.get_title() for axes in (half, end)] == ["collect 1", "hand out 1"]
    plt.close("all")


@pytest.mark.parametrize(("count", "threads"), [(12, 2), (7, 4), (5, 4)])
def test_the_gradients_are_those_of_the_whole_batch_however_uneven_the_parts(count, threads):
    digits = workload.draw_digits(count, seed=1)
    model = workload.ConvNet((1, 28, 28))

    def gradients(forward):
        model.zero_grad()
        cross_entropy(forward(digits.images), digits.labels).backward()
        return torch.cat([parameter.grad.flatten() for parameter in model.parameters()])

    parallel = replicas.DataParallel(model, [torch.device("cpu")] * threads)
    torch.testing.assert_close(gradients(parallel), gradients(model), rtol=1e-4, atol=1e-7)


def test_a_step_taken_apart_is_a_step():
    digits, cpu = workload.draw_digits(8, seed=1), torch.device("cpu")
    model, alone = workload.ConvNet((1, 28, 28)), workload.ConvNet((1, 28, 28))
    alone.load_state_dict(model.state_dict())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    images, labels = digits[:]
    bars, copies, threads = replicas.take_apart(replicas, [cpu, cpu], model, optimizer, images, labels)
    cross_entropy(alone(images), labels).backward()
    torch.optim.SGD(alone.parameters(), lr=0.1).step()
    for own, other in zip(model.parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(own, other, rtol=1e-4, atol=1e-6)
    assert [part for _, _, part in bars["main thread"]] == list(replicas.COLOURS)
    assert [part for name in ("replica 0", "replica 1") for _, _, part in bars[name]] == ["forward"] * 2
    assert sorted(threads) == [0, 1] and len(copies) == 2
    assert not model._forward_hooks and not model._forward_pre_hooks


@pytest.mark.parametrize("world_size", [2, 3, 4, 7])
def test_the_second_half_that_the_notebook_does_not_show_gives_all_to_all(world_size):
    ranks, steps = range(world_size), range(world_size - 1)
    first = [[(r, (r + 1) % world_size, (r - step) % world_size, "add") for r in ranks] for step in steps]
    assert len(rings.all_gather(world_size)) == world_size - 1
    last = rings.play(world_size, first + rings.all_gather(world_size))[-1]
    assert last == [[set(ranks)] * world_size] * world_size
