"""Lesson 17: who is where on each mesh, gradients averaged where they must be, and bytes counted."""

from types import SimpleNamespace

import pytest
import torch

from meshes import total
from parts import one_mesh

STEM = "17_one_mesh"
SHAPES = ("1x2x2x2", "2x1x2x2", "2x2x1x2", "2x2x2x1")


# ---- one step, from inside ----------------------------------------------------------------------

TEXTS, POSITIONS, HIDDEN, NUMBER, MICROBATCHES, BLOCKS = 8, 24, 8, 8, 2, 4  # of the probe, in 64 bits


@pytest.fixture
def steps(found):
    """What each of eight processes finds in a step on a mesh."""
    return lambda shape: found("one_step", STEM, 8, 17, shape)


@pytest.mark.quick("2x1x2x2")
@pytest.mark.night
@pytest.mark.parametrize("shape", SHAPES)
def test_the_gradients_are_those_of_one_process(steps, shape):
    assert all(step["off"] < 1e-13 for step in steps(shape))


@pytest.mark.quick("2x1x2x2")
@pytest.mark.night
@pytest.mark.parametrize("shape", SHAPES)
def test_who_is_where_and_holds_what(steps, shape):
    """Neighbours in "tensor" are neighbours among the ranks; a stage has half of the blocks."""
    sizes = [int(size) for size in shape.split("x")]
    places = torch.arange(8).view(sizes)
    for rank, found in enumerate(steps(shape)):
        assert list(found["where"]) == list(one_mesh.NAMES)
        assert places[tuple(found["where"].values())] == rank
        stage, stages = found["where"]["pipeline"], sizes[1]
        blocks = range(BLOCKS)[stage * BLOCKS // stages : (stage + 1) * BLOCKS // stages]
        held = {f"blocks.{number}" for number in blocks}
        held |= {"embedding.weight", "position.weight"} if stage == 0 else set()
        held |= {"head.bias", "head.weight", "norm.bias", "norm.weight"} if stage == stages - 1 else set()
        assert set(found["held"]) == held
        # Only the last stage knows the losses, and who was right: of its positions, on six texts.
        is_last = stage == stages - 1
        assert found["correct"] == (6 * POSITIONS // sizes[2] if is_last else 0)
        assert len(found["losses"]) == (MICROBATCHES if is_last else 0)


@pytest.mark.quick("2x1x2x2")
@pytest.mark.night
@pytest.mark.parametrize("shape", SHAPES)
def test_the_loss_is_a_mean_over_data_and_context(steps, shape):
    data, _, context, tensor = (int(size) for size in shape.split("x"))
    losses = [sum(step["losses"]) / MICROBATCHES for step in steps(shape) if step["losses"]]
    assert len(losses) == data * context * tensor
    assert sum(losses) / len(losses) == pytest.approx(steps(shape)[0]["expected"], rel=1e-12)


@pytest.mark.quick("2x1x2x2")
@pytest.mark.night
@pytest.mark.parametrize("shape", SHAPES)
def test_as_many_bytes_in_each_dimension_as_the_formulas_say(steps, shape):
    data, pipeline, context, tensor = (int(size) for size in shape.split("x"))
    # What a block hands on, of one micro-batch: texts, positions, numbers, bytes.
    state = TEXTS // data // MICROBATCHES * (POSITIONS // context) * HIDDEN * NUMBER
    passes = MICROBATCHES * BLOCKS // pipeline  # how often a step goes through a block here
    for found in steps(shape):
        weights = [found["tensors"], found["bytes"]]
        expected = {}
        if tensor > 1:
            expected["tensor", "all-reduce"] = [4 * passes, 4 * passes * state]
        if context > 1:
            messages = (context - 1) * 2 + context  # forward, backward; gradients go one step further
            expected["context", "send"] = [messages * passes, 2 * messages * passes * state // tensor]
            expected["context", "all-reduce"] = weights
        if pipeline > 1:
            expected["pipeline", "send"] = [MICROBATCHES, MICROBATCHES * state]
        if data > 1:
            expected["data", "all-reduce"] = weights
        assert total(found["sent"], "dimension", "kind") == expected


# ---- sizes --------------------------------------------------------------------------------------


def sizes_of(world_size, **asked):
    asked = {f"{name}_parallel": asked.get(name) for name in one_mesh.NAMES[1:]}
    return tuple(one_mesh.sizes_of(SimpleNamespace(world_size=world_size, **asked)).values())


def test_the_sizes_of_the_mesh():
    found = {world_size: sizes_of(world_size) for world_size in (1, 2, 3, 4, 6, 8, 16)}
    assert found == {
        1: (1, 1, 1, 1),
        2: (1, 1, 1, 2),
        3: (3, 1, 1, 1),
        4: (1, 1, 2, 2),
        6: (3, 1, 1, 2),
        8: (1, 2, 2, 2),
        16: (2, 2, 2, 2),
    }
    assert sizes_of(8, pipeline=4) == (1, 4, 1, 2)
    assert [sizes_of(8, **{name: 1}) for name in ("pipeline", "context", "tensor")] == [
        (2, 1, 2, 2),
        (2, 2, 1, 2),
        (2, 2, 2, 1),
    ]
