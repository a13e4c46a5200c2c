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
from torch.distributed.tensor import DTensor, Partial, debug

from parts import limericks
from planner import dry_run
from planner import formulas as planner
from tests.helpers.probe_runs import run_probe
from tools import launcher
from tools.lessons import ROOT

TINY = {"vocabulary": 11, "length": 6, "hidden": 12, "heads": 4, "layers": 2}  # shards of these are uneven
FLAT = [{"data": data, "tensor": 4 // data} for data in (2, 4, 1)]
MESHES = [*FLAT, *({"replicate": 2, "data": data, "tensor": 2 // data} for data in (2, 1))]
CASES = [(mesh, {"model": TINY, "batch": 2}) for mesh in MESHES]
EVEN = TINY | {"vocabulary": 16, "layers": 3}
CASES += [(MESHES[0], {"model": EVEN, "batch": 1, "precision": "bf16"}), (MESHES[4], {"model": EVEN})]


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
    (sizes_of(pipeline=2, tensor=2), ALL),
    (sizes_of(context=4), {"model": STAGED}),
    (sizes_of(expert=4), WITH_EXPERTS),
    (sizes_of(expert=2, tensor=2), WITH_EXPERTS),
    (sizes_of(pipeline=2, expert=2), WITH_EXPERTS),
    (sizes_of(context=2, expert=2), WITH_EXPERTS | {"experts": 2}),
    (sizes_of(data=4, expert=1), WITH_EXPERTS),
]
ON_EIGHT = [
    (sizes_of(pipeline=2, context=2, tensor=2), ALL),
    (sizes_of(data=2, pipeline=2, tensor=2), ALL),
    (sizes_of(pipeline=2, expert=2, tensor=2), WITH_EXPERTS),
]
# Each group is one start of four or eight processes.
FIRST = (0, 6, 7)
GROUPS = {
    "pipeline and context, experts and tensor, pipeline and experts": (4, [MANY_CASES[at] for at in FIRST]),
    "the others": (4, [case for at, case in enumerate(MANY_CASES) if at not in FIRST]),
    "on eight": (8, ON_EIGHT),
}


@pytest.fixture(scope="module")
def real(forks, tmp_path_factory):
    """What each of several real processes found: on gloo, with tensors that have a content."""

    def run(probe, cases=CASES, processes=4):
        folder = tmp_path_factory.mktemp(probe)
        (folder / "cases.json").write_text(json.dumps(cases))
        result = run_probe(forks, folder, probe, launcher.command("13_gpt", processes), folder / "cases.json")
        assert result.code == 0, result.stderr
        return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(processes)]

    return run


@pytest.fixture(scope="module")
def measured(real):
    return real("dry_run_measure")


def as_json(found):
    return json.loads(json.dumps(found))


@pytest.mark.long("3")
@pytest.mark.night
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
@pytest.mark.parametrize(("processes", "cases"), GROUPS.values(), ids=GROUPS)
def test_on_all_dimensions_too(real, processes, cases):
    """Each stage's dry run is what its real processes found. All shards of a stage are as long."""
    measured = real("dry_run_measure", cases, processes)
    for number, (mesh, options) in enumerate(cases):
        print(mesh)  # of the one that differs, which is the last
        stages = {}
        for found in (each[number] for each in measured):
            stage = stage_of(found["rank"], mesh)
            if stage not in stages:
                stages[stage] = as_json(dry_run.report(processes, mesh, stage, **options))
                assert found["rank"] == stages[stage]["rank"]
            assert found | {"rank": 0} == stages[stage] | {"rank": 0}
        assert len(stages) == mesh["pipeline"]


def counted(rows):
    """How often each collective is, whenever it is."""
    counts = Counter()
    for row in rows:
        counts[tuple(row[name] for name in dry_run.Collective._fields[1:])] += row["times"]
    return counts


@pytest.mark.long("3")
@pytest.mark.night
@pytest.mark.parametrize("number", [0, 1, 3])
def test_torchs_own_schedule_sends_as_much_and_holds_as_many(real, number):
    """The dry run takes one micro-batch and multiplies. Here four processes take them all."""
    mesh, options = MANY_CASES[number]
    for rank, found in enumerate(real("dry_run_schedule", (mesh, options))):
        stage = stage_of(rank, mesh)
        planned = dry_run.report(4, mesh, stage, **options)["collectives"]
        passes = [row for row in planned if row["when"] in ("forward", "backward")]
        assert counted(found["collectives"]) == counted(passes)
        assert found["most"] == min(2 - stage, options["microbatches"])


@pytest.mark.long
def test_it_says_what_a_step_of_lesson_13_does(real):
    """Three steps less two: what is left is one step, whatever comes before and after."""
    for found in real("gpt_steps")[::2]:  # ranks 1 and 3 have a character less
        one, two, three = (Counter({tuple(key): times for *key, times in run}) for run in found)
        assert three - two == two - one
        characters = len(set((ROOT / "lessons/parts/limericks.txt").read_text()))
        model = {"vocabulary": characters, "length": limericks.LENGTH, "hidden": 64, "heads": 4, "layers": 2}
        expected = counted(dry_run.report(4, MESHES[0], model=model, batch=4)["collectives"])
        assert three - two == {("", *key): times for key, times in expected.items()}


# ---- what nobody here can run ----


def cut(rows, columns, data):
    """Rows over the ranks of data: what one rank has, and what all send, who fill up to equal parts."""
    return math.ceil(rows / data) * columns, math.ceil(rows / data) * columns * data


def formulas(mesh, model, batch=1, word=4, master=4):
    """What a step sends and holds, by pencil: (when, kind, dimension, bytes) and how often; the memory."""
    data, tensor, copies = mesh["data"], mesh["tensor"], mesh.get("replicate", 1)
    words, length, hidden, layers = (model[name] for name in ("vocabulary", "length", "hidden", "layers"))
    heads, neurons = hidden // tensor, 4 * hidden // tensor
    block = 4 * [(hidden, 1)] + 3 * [(heads, hidden), (heads, 1)] + [(hidden, heads), (hidden, 1)]
    block += [(neurons, hidden), (neurons, 1), (hidden, neurons), (hidden, 1)]
    root = [(words, heads), (8, hidden), (length, heads), (words // tensor, hidden), (words // tensor, 1)]
    root += [(hidden, 1), (hidden, 1)]
    own, whole = {}, {}
    for name, parts in (("block", block), ("root", root)):
        own[name], whole[name] = (sum(part) for part in zip(*(cut(*one, data) for one in parts), strict=True))
    sent, state = Counter(), batch * length * hidden * word
    for name, times in (("root", 1), ("block", layers)):
        sent["forward", "all-gather", "data", whole[name] * word] += times
        sent["backward", "reduce-scatter", "data", whole[name] * master] += times
        if copies > 1:
            sent["backward", "all-reduce", "replicate", own[name] * master] += times
    sent["backward", "all-gather", "data", whole["block"] * word] += layers  # what it did not keep
    if tensor > 1:
        sent["forward", "all-reduce", "tensor", state] += 2 * layers  # after attention, and after the neurons
        sent["backward", "all-reduce", "tensor", state] += 2 * layers + 1  # before both, and before the head
        sent["forward", "all-gather", "tensor", state] += 1
        sent["forward", "all-gather", "tensor", length * hidden * word] += 1
        # For each position: the highest score; the sum of the exponents and the loss, which have 32 bits.
        sent["forward", "all-reduce", "tensor", batch * length * word] += 1
        sent["forward", "all-reduce", "tensor", batch * length * 4] += 2
    held, tensors = master * (own["root"] + layers * own["block"]), 7 + 16 * layers
    memory = {"parameters": held, "gradients": held, "optimizer": 2 * held + 4 * tensors}
    return sent, memory | {"gathered group": word * max(whole.values())}


BIG = dry_run.MODEL | {"layers": 2}
SIZES = [
    ({"data": 8, "tensor": 1}, {}),
    ({"data": 512, "tensor": 8}, {"batch": 3}),
    ({"data": 2048, "tensor": 8}, {"precision": "bf16"}),
    ({"data": 16384, "tensor": 1}, {}),
    ({"replicate": 32, "data": 64, "tensor": 8}, {"precision": "bf16"}),
]


@pytest.mark.quick("mesh0-options0", "mesh4-options4")
@pytest.mark.night
@pytest.mark.parametrize(("mesh", "options"), SIZES)
def test_at_any_size_it_says_what_formulas_say(mesh, options):
    dry = dry_run.report(math.prod(mesh.values()), mesh, model=BIG, **options)
    word = 2 if options.get("precision") == "bf16" else 4
    sent, memory = formulas(mesh, BIG, options.get("batch", 1), word)
    found = Counter()
    for row in dry["collectives"]:
        if row["ranks"] > 1:
            found[tuple(row[name] for name in ("when", "kind", "dimension", "bytes"))] += row["times"]
        assert row["ranks"] == mesh[row["dimension"]]
    assert found == sent
    assert dry["memory"].items() >= memory.items()
    hidden, length = BIG["hidden"], BIG["length"]
    ends = 2 * BIG["vocabulary"] * hidden + BIG["vocabulary"] + length * hidden
    ends += (4 + 2) * hidden  # what Recent has, and the last norm
    assert dry["parameters"] == ends + BIG["layers"] * (12 * hidden**2 + 13 * hidden)


@pytest.mark.parametrize("batch", [1, 3])
def test_the_activations_are_those_that_the_backward_pass_needs(batch):
    """By pencil, in numbers of 4 bytes and of 8, for ranks that share no matrix."""
    model = {"vocabulary": 16, "length": 6, "hidden": 12, "heads": 4, "layers": 3}
    places, hidden = batch * model["length"], model["hidden"]
    state = places * hidden
    norm = 2 * places  # beside its input: a mean and a spread
    # Its input and that normed; query, key, value and what they give; again for the neurons, 4 times wider.
    block = 2 * state + norm + 4 * state + places * model["heads"] + 2 * state + norm + 2 * 4 * state
    recent = batch * (model["length"] + 3) * hidden
    numbers = recent + model["layers"] * block + 2 * state + norm + places * model["vocabulary"] + 1
    held = dry_run.report(4, {"data": 4, "tensor": 1}, model=model, batch=batch)["memory"]["activations"]
    assert held == 4 * numbers + 8 * (places + model["length"])


@pytest.mark.night
def test_blocks_that_are_alike_cost_alike():
    """So that a notebook may take the figures of many from those of few."""
    models = [TINY | {"layers": layers} for layers in (2, 3, 4)]
    found = [dry_run.report(64, {"data": 32, "tensor": 2}, model=model)["memory"] for model in models]
    for two, three, four in zip(*(one.values() for one in found), strict=True):
        assert four - three == three - two


# ---- all dimensions, and the planner's formulas ----

MESHES_OF_16384 = [
    (sizes_of(64, pipeline=8, context=4, tensor=8), {"microbatches": 8}),
    (sizes_of(128, pipeline=16, context=1, tensor=8), {"microbatches": 40, "batch": 2}),
    (sizes_of(128, context=16, tensor=8), {}),
    (sizes_of(16, pipeline=8, context=2, expert=8, tensor=8), {"microbatches": 12, "experts": 64}),
]


@pytest.mark.quick("mesh0-options0-False", "mesh3-options3-True")
@pytest.mark.night
@pytest.mark.parametrize("is_last", [False, True])
@pytest.mark.parametrize(("mesh", "options"), MESHES_OF_16384)
def test_what_is_sent_over_each_dimension_is_what_the_planner_computes_with(mesh, options, is_last):
    """At a byte a second and without latency, a formula's seconds are bytes."""
    stages, context, tensor = (mesh[name] for name in ("pipeline", "context", "tensor"))
    stage = stages - 1 if is_last else 0
    dry = dry_run.report(16384, mesh, stage, **options)
    model, batch = dry_run.MODEL, options.get("batch", 1)
    microbatches = options.get("microbatches", 1)
    layers = microbatches * model["layers"] // stages
    message = 4 * batch * model["length"] // context * model["hidden"]
    passes = Counter()
    for row in dry["collectives"]:
        if row["when"] in ("forward", "backward"):
            passes[row["dimension"], row["kind"]] += row["times"] * row["sent"]
    expected = {
        ("context", "send"): layers * planner.ring_attention_seconds(2 * message / tensor, context, 1, 0),
        ("tensor", "all-reduce"): layers * 4 * planner.all_reduce_seconds(message, tensor, 1, 0, "ring"),
        ("pipeline", "send"): microbatches * message if stages > 1 else 0,
    }
    if experts := options.get("experts"):
        counts = 8 * experts * mesh["expert"]  # what each rank has for each expert
        spread = planner.all_to_all_seconds(message, mesh["expert"], 1, 0)
        expected["expert", "all-to-all"] = layers * 4 * spread
        expected["expert", "all-gather"] = layers * counts * (mesh["expert"] - 1) // mesh["expert"]
    assert +passes == {key: size for key, size in expected.items() if size}

    hidden, blocks, own = model["hidden"], model["layers"] // stages, Counter()
    own["all"] = blocks * ((4 * hidden**2 + 3 * hidden) / tensor + 5 * hidden)  # attention, and two norms
    if experts:
        own["all"] += blocks * experts * hidden  # the router
        own["expert"] = blocks * experts / mesh["expert"] * 8 * hidden**2 / tensor
    else:
        own["all"] += blocks * ((8 * hidden**2 + 4 * hidden) / tensor + hidden)
    if stage == 0:
        own["all"] += (model["vocabulary"] + model["length"]) * hidden
    if stage == stages - 1:
        own["all"] += 2 * hidden + model["vocabulary"] * (hidden + 1)
    assert dry["memory"]["parameters"] == dry["memory"]["gradients"] == 4 * own.total()
    neurons = experts * (8 * hidden + 1) if experts else 8 * hidden + 5
    ends = (2 * model["vocabulary"] + model["length"] + 2) * hidden + model["vocabulary"]
    assert dry["parameters"] == model["layers"] * hidden * (4 * hidden + 8 + neurons) + ends
    for name in ("data", "context", "expert"):
        count = own["all"] if name == "expert" else own.total()
        rows = [row for row in dry["collectives"] if (row["when"], row["dimension"]) == ("gradients", name)]
        sent = sum(row["times"] * row["sent"] for row in rows)
        assert sent == pytest.approx(planner.all_reduce_seconds(4 * count, mesh.get(name, 1), 1, 0, "ring"))


@pytest.mark.quick("4-9")
@pytest.mark.night
@pytest.mark.parametrize(("stages", "microbatches"), [(1, 1), (2, 2), (4, 4), (4, 9)])
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
    words = [word for name, size in model.items() for word in (f"--{name}", str(size))]
    words += ["--tensor-parallel", "2", "--replicate", "3", "--batch", "5", "--precision", "bf16", "--json"]
    dry_run.main(["24", *words])
    mesh = {"replicate": 3, "data": 4, "tensor": 2}
    expected = dry_run.report(24, mesh, model=model, batch=5, precision="bf16")
    assert json.loads(capsys.readouterr().out) == as_json(expected)


def test_a_mesh_that_does_not_multiply_is_refused(capsys):
    with pytest.raises(SystemExit):
        dry_run.report(16, {"data": 4, "tensor": 2})
    assert capsys.readouterr().err == "error: a mesh of {'data': 4, 'tensor': 2} has 8 ranks, not 16\n"


@pytest.fixture
def recorder():
    dist.init_process_group("fake", rank=0, world_size=4)
    yield dry_run.Recorder(dist.init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tensor")))
    dist.destroy_process_group()


def test_a_collective_that_it_does_not_know_ends_it(recorder):
    with pytest.raises(KeyError, match="broadcast_"), recorder:
        dist.broadcast(torch.zeros(3), 0)


@pytest.mark.usefixtures("recorder")
def test_what_a_dtensor_sends_inside_an_operation_is_seen():
    """The exponential of a sum of which each rank has a part: the parts must be added up before."""
    mesh = dist.init_device_mesh("cpu", (4,), mesh_dim_names=("all",))
    recorder = dry_run.Recorder(mesh)
    part = DTensor.from_local(torch.ones(3), mesh, [Partial()])
    with recorder:
        part.exp()
    assert recorder.counts == {("", "all-reduce", "all", 4, "float32", 12, 18): 1}
    debug._clear_sharding_prop_cache()
