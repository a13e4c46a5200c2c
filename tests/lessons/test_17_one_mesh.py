"""Lesson 17: who is where on each mesh, and bytes counted."""

from types import SimpleNamespace

import pytest
import torch

from parts import one_mesh
from tests.helpers.probe_runs import total

STEM = "17_one_mesh"
SHAPES = ("1x2x2x2", "2x1x2x2", "2x2x1x2", "2x2x2x1")
TEXTS, POSITIONS, HIDDEN, NUMBER, MICROBATCHES, BLOCKS = 8, 24, 8, 8, 2, 4  # of the probe, in 64 bits


@pytest.mark.quick("2x1x2x2")
@pytest.mark.night
@pytest.mark.parametrize("shape", SHAPES)
def test_each_process_has_its_place_and_its_part(found, shape):
    """Neighbours in "tensor" are neighbours among the ranks; a stage has half of the blocks."""
    steps = found("one_step", STEM, 8, 17, shape)
    sizes = list(map(int, shape.split("x")))
    stages = sizes[1]
    places = torch.arange(8).view(sizes)
    for rank, step in enumerate(steps):
        assert list(step["where"]) == list(one_mesh.NAMES)
        assert places[tuple(step["where"].values())] == rank
        stage = step["where"]["pipeline"]
        held = set()
        for block in range(stage * BLOCKS // stages, (stage + 1) * BLOCKS // stages):
            held.add(f"blocks.{block}")
        if stage == 0:
            held |= {"embedding.weight", "position.weight"}
        if stage == stages - 1:
            held |= {"head.bias", "head.weight", "norm.bias", "norm.weight"}
        assert set(step["held"]) == held


@pytest.mark.quick("2x1x2x2")
@pytest.mark.night
@pytest.mark.parametrize("shape", SHAPES)
def test_as_many_bytes_in_each_dimension_as_the_formulas_say(found, shape):
    sizes = dict(zip(one_mesh.NAMES, map(int, shape.split("x")), strict=True))
    data, pipeline, context, tensor = sizes.values()
    # What a block hands on, of one micro-batch: texts, positions, numbers, bytes.
    state = TEXTS // data // MICROBATCHES * (POSITIONS // context) * HIDDEN * NUMBER
    passes = MICROBATCHES * BLOCKS // pipeline  # how often a step goes through a block here
    messages = (context - 1) * 2 + context  # forward, backward; gradients go one step further
    for step in found("one_step", STEM, 8, 17, shape):
        weights = [step["tensors"], step["bytes"]]
        expected = {
            ("tensor", "all-reduce"): [4 * passes, 4 * passes * state],
            ("context", "send"): [messages * passes, 2 * messages * passes * state // tensor],
            ("context", "all-reduce"): weights,
            ("pipeline", "send"): [MICROBATCHES, MICROBATCHES * state],
            ("data", "all-reduce"): weights,
        }
        for dimension, kind in list(expected):
            if sizes[dimension] == 1:
                del expected[dimension, kind]
        assert total(step["sent"], "dimension", "kind") == expected


def sizes_of(world_size, **asked):
    asked = {f"{name}_parallel": asked.get(name) for name in one_mesh.NAMES[1:]}
    return tuple(one_mesh.sizes_of(SimpleNamespace(world_size=world_size, **asked)).values())


def test_the_sizes_of_the_mesh():
    assert sizes_of(1) == (1, 1, 1, 1)
    assert sizes_of(2) == (1, 1, 1, 2)
    assert sizes_of(3) == (3, 1, 1, 1)
    assert sizes_of(4) == (1, 1, 2, 2)
    assert sizes_of(8) == (1, 2, 2, 2)
    assert sizes_of(16) == (2, 2, 2, 2)
    assert sizes_of(8, pipeline=4) == (1, 4, 1, 2)
