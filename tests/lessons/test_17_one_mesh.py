"""Lesson 17: one curve on each mesh, gradients averaged where they must be, and bytes counted."""

import importlib
import json
from types import SimpleNamespace

import pytest
import torch
from torch.nn.functional import cross_entropy
from torch.utils.data import DistributedSampler

import launcher
import workload
from lines import refusal
from meshes import run_probe
from parts import limericks, one_mesh

STEM = "17_one_mesh"
TRAIN, BATCH, TEST, LENGTH, WIDTH = 18, 8, 4, 24, 16  # two texts fill no batch
SMALL = ("--train-size", TRAIN, "--batch-size", BATCH, "--test-size", TEST, "--length", LENGTH)
SMALL += ("--width", WIDTH, "--epochs", 2)
SHAPES = ("1x2x2x2", "2x1x2x2", "2x2x1x2", "2x2x2x1")


def options_of(shape):
    _data, *sizes = shape.split("x")  # data is what is left
    pairs = zip(one_mesh.NAMES[1:], sizes, strict=True)
    return [word for name, size in pairs for word in (f"--{name}-parallel", size)]


def processes_of(shape):
    return torch.tensor([int(size) for size in shape.split("x")]).prod().item()


@pytest.fixture(scope="module")
def plain():
    """The curve and the weights of a loop in one process, whose attention is torch's own."""
    workload.set_seed(0)
    arguments = SimpleNamespace(data="limericks", train_size=TRAIN, test_size=TEST, length=LENGTH)
    characters, train_set, test_set = limericks.load(arguments)
    model, curve = importlib.import_module(STEM).build_model(len(characters), LENGTH, WIDTH), []
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.008)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.008, 4, pct_start=0.2)
    sampler = DistributedSampler(train_set, 1, 0, seed=0)
    for epoch in (1, 2):
        sampler.set_epoch(epoch)
        losses = []
        for rows in torch.tensor(list(sampler))[:16].split(BATCH):
            texts, following = train_set[rows]
            loss = cross_entropy(model(texts).flatten(0, 1), following.flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            scheduler.step()
            losses.append(loss.item())
        with torch.no_grad():
            right = (model(test_set.images).argmax(dim=2) == test_set.labels).sum().item()
        curve.append({"epoch": epoch, "loss": sum(losses) / 2, "accuracy": right / (TEST * LENGTH)})
    return curve, model.state_dict()


@pytest.mark.quick("2x1x1x1")
@pytest.mark.long("1x2x2x2")
@pytest.mark.night
@pytest.mark.parametrize("shape", [*SHAPES, "1x1x1x1", "1x4x1x1", "1x1x3x1", "1x1x1x4", "2x1x1x1"])
def test_one_curve_on_every_mesh(fork, plain, shape):
    more = ("--microbatches", 4) if "4" in shape else ()  # as many as stages
    result = fork(STEM, processes_of(shape), *SMALL, *more, *options_of(shape))
    curve = launcher.read_curve(result.out, STEM)
    assert launcher.difference(curve, plain[0]) == ""
    assert [row["accuracy"] for row in curve] == [row["accuracy"] for row in plain[0]]
    assert {row["world_size"] for row in curve} == {processes_of(shape)}
    said = zip(one_mesh.NAMES, shape.split("x"), strict=True)
    assert result.stdout.startswith(f"mesh      | {', '.join(f'{name} {size}' for name, size in said)}\n")
    assert result.stderr == ""
    assert {path.name for path in result.out.iterdir()} == {f"{STEM}.jsonl", f"{STEM}.pt"}
    weights = torch.load(result.out / f"{STEM}.pt", weights_only=True)
    assert {name: type(value) for name, value in weights.items()} == dict.fromkeys(plain[1], torch.Tensor)
    for name, value in plain[1].items():
        # A key's bias has no gradient but for rounding, of which AdamW makes steps of full size.
        if not name.endswith("key.bias"):
            torch.testing.assert_close(weights[name], value, rtol=0, atol=1e-4)


@pytest.mark.night
def test_the_same_command_gives_the_same_bytes(fork):
    first, again = (fork(STEM, 8, *SMALL, folder=folder) for folder in ("first", "again"))
    assert (first.out / f"{STEM}.pt").read_bytes() == (again.out / f"{STEM}.pt").read_bytes()


# ---- one step, from inside ----------------------------------------------------------------------

TEXTS, POSITIONS, HIDDEN, NUMBER, MICROBATCHES, BLOCKS = 8, 24, 8, 8, 2, 4  # of the probe, in 64 bits


@pytest.fixture(scope="module")
def steps(forks, tmp_path_factory):
    """What each of eight processes finds in a step on a mesh. Made once for each."""
    made = {}

    def steps(shape):
        if shape not in made:
            folder = tmp_path_factory.mktemp(shape)
            result = run_probe(forks, folder, "one_mesh_step", launcher.command(STEM, 8), shape)
            assert result.code == 0, result.stderr
            made[shape] = [json.loads((folder / f"{rank}.json").read_text()) for rank in range(8)]
        return made[shape]

    return steps


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
        expected = {name: {} for name in one_mesh.NAMES}
        if tensor > 1:
            expected["tensor"]["allreduce"] = [4 * passes, 4 * passes * state]
        if context > 1:
            messages = (context - 1) * 2 + context  # forward, backward; gradients go one step further
            expected["context"]["send"] = [messages * passes, 2 * messages * passes * state // tensor]
            expected["context"]["allreduce"] = weights
        if pipeline > 1:
            expected["pipeline"]["send"] = [MICROBATCHES, MICROBATCHES * state]
        if data > 1:
            expected["data"]["allreduce"] = weights
        assert found["sent"] == expected


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


REFUSED = {
    "no third": (("--tensor-parallel", 3), 2, "--tensor-parallel 3 does not divide 2 processes: take 1"),
    "none": (("--context-parallel", 0), 2, "--context-parallel 0 does not divide 2 processes: take 1"),
    "heads": (("--tensor-parallel", 3), 3, "--tensor-parallel 3 does not divide 4 heads: take 1"),
    "blocks": (("--pipeline-parallel", 3), 3, "--pipeline-parallel 3 does not divide 4 blocks: take 1"),
    "stages": (
        ("--pipeline-parallel", 2, "--microbatches", 1),
        2,
        "2 stages need at least 2 micro-batches, not 1",
    ),
    "no micro-batch": (("--microbatches", 0), 1, "--microbatches must be at least 1, not 0"),
    "uneven": (("--batch-size", 9), 3, "--batch-size 9 does not divide into 6 micro-batches of all: take 12"),
    "chunks": (
        ("--length", 30),
        4,
        "--length 30 does not divide into 4 chunks, two for each process: take 32",
    ),
    "no test": (("--test-size", 5), 1, "--test-size 5 does not divide into 2 micro-batches: take 6"),
    "digits": (("--data", "digits"), 1, "this lesson reads limericks, not digits: leave --data out"),
}


@pytest.mark.quick("heads", "uneven", "chunks")
@pytest.mark.long
@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_work_is_refused_in_one_line(fork, case):
    options, processes, message = REFUSED[case]
    assert message in refusal(fork(STEM, processes, *SMALL, *options, refused=True))


@pytest.mark.long
def test_the_documented_command_learns(run):
    """As a reader starts it, only shorter."""
    result = run(STEM, 8, "--train-size", 48, "--test-size", 4, "--epochs", 2)
    curve = launcher.read_curve(result.out, STEM)
    assert curve[1]["loss"] < curve[0]["loss"] < 4.2
    assert result.stderr == ""
