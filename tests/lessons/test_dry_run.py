"""The dry run says what real processes do; at sizes that nobody here has, what formulas say."""

import json
import math
import os
import re
import resource
import subprocess
import sys
from collections import Counter

import pytest
import torch
import torch.distributed as dist

from parts import limericks
from planner import dry_run
from planner import formulas as planner
from tests.helpers.probe_runs import run_probe
from tools import launcher
from tools.lessons import ROOT

TINY = {"vocabulary": 11, "length": 6, "hidden": 12, "heads": 4, "layers": 2}  # shards of these are uneven
EVEN = TINY | {"vocabulary": 16, "layers": 3}
CASES = [
    ({"data": 2, "tensor": 2}, {"model": TINY, "batch": 2}),
    ({"data": 4, "tensor": 1}, {"model": TINY, "batch": 2}),
    ({"replicate": 2, "data": 2, "tensor": 1}, {"model": EVEN, "precision": "bf16"}),
    ({"replicate": 2, "data": 1, "tensor": 2}, {"model": EVEN}),
]


def sizes_of(data=1, pipeline=1, context=1, tensor=1, expert=None):
    spread = {"expert": expert} if expert else {}
    return {"data": data, "pipeline": pipeline, "context": context} | spread | {"tensor": tensor}


STAGED = EVEN | {"length": 8, "layers": 6}
ALL = {"model": STAGED, "batch": 2, "microbatches": 3}
WITH_EXPERTS = ALL | {"experts": 4}
MANY_CASES = [
    (sizes_of(pipeline=2, context=2), ALL),
    (sizes_of(data=2, pipeline=2), ALL),
    (sizes_of(context=2, tensor=2), ALL),
    (sizes_of(expert=2, tensor=2), WITH_EXPERTS),
    (sizes_of(pipeline=2, expert=2), WITH_EXPERTS),
    (sizes_of(context=2, expert=2), WITH_EXPERTS | {"experts": 2}),
]


@pytest.fixture(scope="module")
def real(forks, tmp_path_factory):
    """What each of several real processes found: on gloo, with tensors that have a content."""

    def run(probe, cases=CASES):
        folder = tmp_path_factory.mktemp(probe)
        (folder / "cases.json").write_text(json.dumps(cases))
        result = run_probe(forks, folder, probe, launcher.command("13_gpt", 4), folder / "cases.json")
        assert result.code == 0, result.stderr
        return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(4)]

    return run


@pytest.fixture(scope="module")
def measured(real):
    return real("dry_run_measure")


def as_json(found):
    return json.loads(json.dumps(found))


@pytest.mark.long
@pytest.mark.parametrize("number", range(len(CASES)))
def test_it_says_what_four_real_processes_do(measured, number):
    mesh, options = CASES[number]
    dry = as_json(dry_run.report(4, mesh, **options))
    first, *others = (found[number] for found in measured)
    assert dry == first
    for other in others:
        if options["model"]["vocabulary"] % mesh["tensor"] == 0:  # or else rank 0 has the longer part
            assert other["collectives"] == dry["collectives"]
        for name, size in other["memory"].items():
            assert size <= dry["memory"][name], name


def stage_of(rank, mesh):
    """`data` comes before `pipeline`, all others after."""
    return rank // (math.prod(mesh.values()) // mesh["data"] // mesh["pipeline"]) % mesh["pipeline"]


@pytest.mark.night
def test_on_all_dimensions_too(real):
    """Each stage's dry run is what its real processes found. All shards of a stage are as long."""
    measured = real("dry_run_measure", MANY_CASES)
    for number, (mesh, options) in enumerate(MANY_CASES):
        stages = {}
        for found in (each[number] for each in measured):
            stage = stage_of(found["rank"], mesh)
            if stage not in stages:
                stages[stage] = as_json(dry_run.report(4, mesh, stage, **options))
                assert found["rank"] == stages[stage]["rank"]
            assert found | {"rank": 0} == stages[stage] | {"rank": 0}, mesh
        assert len(stages) == mesh["pipeline"]


@pytest.mark.long
def test_it_says_what_a_step_of_lesson_13_does(real):
    """Three steps less two: what is left is one step, whatever comes before and after."""
    characters = len(set((ROOT / "lessons/parts/limericks.txt").read_text()))
    model = {"vocabulary": characters, "length": limericks.LENGTH, "hidden": 64, "heads": 4, "layers": 2}
    expected = Counter()
    for row in dry_run.report(4, CASES[0][0], model=model, batch=4)["collectives"]:
        key = tuple(row[name] for name in dry_run.Collective._fields[1:])
        expected["", *key] += row["times"]
    for found in real("gpt_steps")[::2]:  # ranks 1 and 3 have a character less
        one, two, three = map(counted, found)
        assert three - two == two - one == expected


def counted(run):
    counts = Counter()
    for *key, times in run:
        counts[tuple(key)] = times
    return counts


def test_the_activations_are_those_that_the_backward_pass_needs():
    """By pencil, in numbers of 4 bytes and of 8, for ranks that share no matrix."""
    batch, model = 3, EVEN
    places, hidden = batch * model["length"], model["hidden"]
    state = places * hidden
    norm = 2 * places  # beside its input: a mean and a spread
    # Its input and that normed; query, key, value and what they give; again for the neurons, 4 times wider.
    block = 2 * state + norm + 4 * state + places * model["heads"] + 2 * state + norm + 2 * 4 * state
    recent = batch * (model["length"] + 3) * hidden
    numbers = recent + model["layers"] * block + 2 * state + norm + places * model["vocabulary"] + 1
    held = dry_run.report(4, {"data": 4, "tensor": 1}, model=model, batch=batch)["memory"]["activations"]
    assert held == 4 * numbers + 8 * (places + model["length"])


# ---- all dimensions, and the planner's formulas ----

MESHES_OF_16384 = [
    (sizes_of(64, pipeline=8, context=4, tensor=8), {"microbatches": 8}, False),
    (sizes_of(16, pipeline=8, context=2, expert=8, tensor=8), {"microbatches": 12, "experts": 64}, True),
]


@pytest.mark.quick("mesh0-options0-False")
@pytest.mark.long
@pytest.mark.parametrize(("mesh", "options", "is_last"), MESHES_OF_16384)
def test_what_is_sent_over_each_dimension_is_what_the_planner_computes_with(mesh, options, is_last):
    """At a byte a second and without latency, a formula's seconds are bytes."""
    stages = mesh["pipeline"]
    context = mesh["context"]
    tensor = mesh["tensor"]
    stage = stages - 1 if is_last else 0
    dry = dry_run.report(16384, mesh, stage, **options)
    model = dry_run.MODEL
    microbatches = options["microbatches"]
    layers = microbatches * model["layers"] // stages
    message = 4 * model["length"] // context * model["hidden"]
    passes = Counter()
    for row in dry["collectives"]:
        if row["when"] in ("forward", "backward"):
            passes[row["dimension"], row["kind"]] += row["times"] * row["sent"]
    expected = {
        ("context", "send"): layers * planner.ring_attention_seconds(2 * message / tensor, context, 1, 0),
        ("tensor", "all-reduce"): layers * 4 * planner.all_reduce_seconds(message, tensor, 1, 0, "ring"),
        ("pipeline", "send"): microbatches * message,
    }
    if experts := options.get("experts"):
        counts = 8 * experts * mesh["expert"]  # what each rank has for each expert
        spread = planner.all_to_all_seconds(message, mesh["expert"], 1, 0)
        expected["expert", "all-to-all"] = layers * 4 * spread
        expected["expert", "all-gather"] = layers * counts * (mesh["expert"] - 1) // mesh["expert"]
    assert +passes == expected
    held = dry["memory"]["parameters"]
    of_experts = 0
    if experts:
        of_experts = 4 * 8 * model["hidden"] ** 2 * model["layers"] // stages * experts // tensor
    averaged = {"data": held, "context": held, "expert": held - of_experts // mesh.get("expert", 1)}
    for name, size in averaged.items():
        sent = 0
        for row in dry["collectives"]:
            if (row["when"], row["dimension"]) == ("gradients", name):
                sent += row["times"] * row["sent"]
        assert sent == pytest.approx(planner.all_reduce_seconds(size, mesh.get(name, 1), 1, 0, "ring"))


@pytest.mark.long
@pytest.mark.parametrize(("stages", "microbatches"), [(1, 1), (4, 9)])
def test_the_first_stage_holds_what_the_planner_says_and_the_last_one_micro_batch(stages, microbatches):
    def held(stage, count):
        sizes = {"model": STAGED | {"layers": 4}, "microbatches": count}
        found = dry_run.report(2 * stages, sizes_of(2, pipeline=stages), stage, **sizes)
        return found["memory"]["activations"]

    assert held(0, microbatches) == held(0, 1) * planner.pipeline_held(stages, microbatches) * stages
    assert held(stages - 1, microbatches) == held(stages - 1, 1)


# ---- the command ----


@pytest.mark.long
def test_the_documented_command_is_short():
    documented = re.search(r"^    python (.+)$", dry_run.__doc__, re.M)[1].split()
    words = [sys.executable, "-W", "error", *documented]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    text = subprocess.check_output(words, cwd=ROOT, env=environment, text=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert text.startswith("6,864,708,736 parameters on data 2,048 x tensor 8 ranks.")
    row = r"forward +all-gather +data +2,048  float32 +32 +176,291,840 +5,638,584,320"
    for line in (row, r"    parameters +2,889,760"):
        assert re.search(f"^{line}$", text, re.M)
    assert after.ru_utime - before.ru_utime < 30, "seconds of one core; idle, a quarter of it"


def test_the_mesh_and_the_model_are_the_readers(capsys):
    model = {"vocabulary": 16, "length": 6, "hidden": 12, "heads": 4, "layers": 3}
    words = []
    for name, size in model.items():
        words += [f"--{name}", str(size)]
    words += ["--tensor-parallel", "2", "--replicate", "3", "--batch", "5", "--precision", "bf16", "--json"]
    dry_run.main(["24", *words])
    mesh = {"replicate": 3, "data": 4, "tensor": 2}
    expected = dry_run.report(24, mesh, model=model, batch=5, precision="bf16")
    assert json.loads(capsys.readouterr().out) == as_json(expected)


def test_a_collective_that_it_does_not_know_ends_it():
    dist.init_process_group("fake", rank=0, world_size=4)
    recorder = dry_run.Recorder(dist.init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tensor")))
    with pytest.raises(KeyError, match="broadcast_"), recorder:
        dist.broadcast(torch.zeros(3), 0)
    dist.destroy_process_group()
