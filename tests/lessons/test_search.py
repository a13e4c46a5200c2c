"""The planner's search, held against what was really chosen, misses included.

Each row of PUBLISHED is a run whose layout its authors printed. The search gets the model, the GPUs, the
links and the batch, and what the software of that day could not do: in 2021 it had no ZeRO, and computed all
layers again.
"""

import json
import time

import pytest
from test_planner import call, job

from planner import __main__ as command
from planner import formulas, plans, search

SOURCES = {
    "llama3": "Dubey 2024, table 4: public file 52425891727",
    "megatron-2021": "Narayanan 2021, table 1: public file 66766946069",
    "megatron-2022": "Korthikanti 2022, table 3: public file 69442322288",
    "torchtitan": "pytorch/torchtitan, benchmarks/llama3_h100_202412_torchtitan.md",
}
A100 = {"peak": 312e12, "bandwidth_node": 300e9, "bandwidth_network": 25e9}
OLD = A100 | {"stage": 0, "recompute": "full", "context_parallel": 1}
NEWER = A100 | {"stage": 0, "recompute": "selective", "context_parallel": 1}
TITAN = {"memory": 96e9}
FP8 = TITAN | {"precision": "fp8"}
LLAMA = {size: plans.named(f"llama3-{size}") for size in ("8b", "70b", "405b")}


def gpt(layers, hidden, heads):
    params = round(formulas.transformer_params(layers, hidden, 51_200, 2048))
    return {"params": params, "layers": layers, "hidden": hidden, "heads": heads}


# Source, model, what was given, GPUs, tokens of a text, texts of a step; tensor, pipeline, context.
PUBLISHED = [
    ("llama3", LLAMA["405b"], {}, 8192, 8192, 2048, (8, 16, 1)),
    ("llama3", LLAMA["405b"], {}, 16384, 8192, 2048, (8, 16, 1)),
    ("llama3", LLAMA["405b"], {}, 16384, 131_072, 128, (8, 16, 16)),
    ("megatron-2021", gpt(24, 2304, 24), OLD, 32, 2048, 512, (1, 1, 1)),
    ("megatron-2021", gpt(30, 3072, 32), OLD, 64, 2048, 512, (2, 1, 1)),
    ("megatron-2021", gpt(36, 4096, 32), OLD, 128, 2048, 512, (4, 1, 1)),
    ("megatron-2021", gpt(40, 6144, 48), OLD, 256, 2048, 1024, (8, 1, 1)),
    ("megatron-2021", gpt(48, 8192, 64), OLD, 512, 2048, 1536, (8, 2, 1)),
    ("megatron-2021", gpt(60, 10240, 80), OLD, 1024, 2048, 1792, (8, 4, 1)),
    ("megatron-2021", gpt(80, 12288, 96), OLD, 1536, 2048, 2304, (8, 8, 1)),
    ("megatron-2021", gpt(96, 16384, 128), OLD, 1920, 2048, 2160, (8, 16, 1)),
    ("megatron-2021", gpt(105, 20480, 128), OLD, 2520, 2048, 2520, (8, 35, 1)),
    ("megatron-2021", gpt(128, 25600, 160), OLD, 3072, 2048, 3072, (8, 64, 1)),
    ("megatron-2022", gpt(48, 6144, 64), NEWER, 8, 2048, 4, (8, 1, 1)),
    ("megatron-2022", gpt(96, 12288, 96), NEWER, 64, 2048, 64, (8, 8, 1)),
    ("megatron-2022", gpt(105, 20480, 128), NEWER, 280, 2048, 280, (8, 35, 1)),
    ("megatron-2022", gpt(128, 25600, 160), NEWER, 512, 2048, 512, (8, 64, 1)),
    ("torchtitan", LLAMA["8b"], TITAN, 8, 8192, 16, (1, 1, 1)),
    ("torchtitan", LLAMA["8b"], TITAN, 128, 8192, 256, (1, 1, 1)),
    ("torchtitan", LLAMA["8b"], FP8, 8, 32_768, 8, (1, 1, 1)),
    ("torchtitan", LLAMA["8b"], FP8, 8, 65_536, 4, (1, 1, 2)),
    ("torchtitan", LLAMA["8b"], FP8, 8, 131_072, 2, (1, 1, 4)),
    ("torchtitan", LLAMA["8b"], FP8, 8, 262_144, 1, (1, 1, 8)),
    ("torchtitan", LLAMA["70b"], FP8, 256, 8192, 512, (8, 1, 1)),
    ("torchtitan", LLAMA["405b"], FP8, 512, 8192, 256, (8, 8, 1)),
    ("torchtitan", LLAMA["405b"], FP8, 512, 32_768, 64, (8, 8, 1)),
    ("torchtitan", LLAMA["405b"], FP8, 512, 65_536, 32, (8, 8, 2)),
    ("torchtitan", LLAMA["405b"], FP8, 512, 131_072, 16, (8, 8, 4)),
    ("torchtitan", LLAMA["405b"], FP8, 512, 262_144, 8, (8, 8, 8)),
]


def searched(**given):
    return job() | dict.fromkeys(search.SEARCHED) | {"expert_parallel": 1} | given


def layout_of(found):
    return tuple(found["job"][name] for name in ("tensor_parallel", "pipeline", "context_parallel"))


def speeds_of(model, given, gpus, seq, texts):
    """All layouts that fit, the fastest first, with their speeds."""
    sizes = {"gpus": gpus, "seq": seq, "batch_tokens": seq * texts}
    found = search.search(searched(**model | given | sizes), None)
    return {layout_of(one): one["tokens_per_second"] for one in found}


def test_published_choices_among_those_that_the_search_finds():
    """SOURCES["llama3"], SOURCES["megatron-2021"], SOURCES["megatron-2022"], SOURCES["torchtitan"].

    Every published choice is found to fit, and none is planned to have less than 80% of the best speed. 14 of
    29 are among the first three; but in 5 of those rows no more than four layouts fit at all."""
    form = "{:15}{:>9}{:>8}{:>9}  {:13}{:>5}{:>4}{:>8}  {}"
    lines = [form.format("source", "params", "GPUs", "text", "published", "is", "of", "speed", "first")]
    among, few, shares = 0, 0, []
    for source, model, given, gpus, seq, texts, chosen in PUBLISHED:
        speeds = speeds_of(model, given, gpus, seq, texts)
        position, first = list(speeds).index(chosen) + 1, next(iter(speeds))
        shares.append(speeds[chosen] / speeds[first])
        among += position <= 3
        few += len(speeds) <= 4
        sizes = (f"{model['params'] / 1e9:.1f}e9", f"{gpus:,}", f"{seq:,}")
        found = (position, len(speeds), f"{shares[-1]:.0%}", str(first))
        lines.append(form.format(source, *sizes, str(chosen), *found))
    lines.append(f"Among the first three: {among} of {len(shares)} (tensor, pipeline, context)")
    print("\n".join(lines))
    assert (among, few, len(shares)) == (14, 5, 29)
    assert 0.80 < min(shares) < 0.81
    assert sum(share > 0.9 for share in shares) == 23


def test_most_misses_come_from_what_tensor_parallelism_sends():
    """The planner hides none of it. If it cost nothing inside a machine, 21 of 29 choices would be among the
    first three, all of Megatron's with them. Llama 3's two of 8k are the fifth of those without context
    parallelism; with it, ring attention takes a part of tensor parallelism's work, and hides it."""
    among = []
    for source, model, given, *sizes, chosen in PUBLISHED:
        speeds = speeds_of(model, given | {"bandwidth_node": 1e15}, *sizes)
        if chosen in list(speeds)[:3]:
            among.append(source)
    assert len(among) == 21 and sum(source.startswith("megatron") for source in among) == 14
    for _, model, given, *sizes, chosen in PUBLISHED[:2]:
        assert list(speeds_of(model, given | {"context_parallel": 1}, *sizes)).index(chosen) == 4


def test_a_search_is_a_plan_of_each_and_none_is_faster():
    """The fastest is first, all fit, and what was given stays."""
    given = plans.named("llama3-70b") | {"gpus": 512, "batch_tokens": 2**22, "seq": 8192}
    found = search.search(searched(**given), None)
    speeds = [one["tokens_per_second"] for one in found]
    assert speeds == sorted(speeds, reverse=True) and all(one["fits"] for one in found)
    for one in found[:20]:
        assert one == plans.plan({name: one["job"][name] for name in job()})
        ranks = one["data_parallel"]
        for size in layout_of(one):
            ranks *= size
        assert ranks == 512
    by_hand = {"tensor_parallel": 4, "pipeline": 4, "interleave": 2, "stage": 1, "sequence_parallel": True}
    assert plans.plan(job(**given, **by_hand))["tokens_per_second"] <= speeds[0]
    some = search.search(searched(**given, tensor_parallel=8, stage=3, recompute="full"))
    assert len(some) == 5
    assert {(one["job"]["tensor_parallel"], one["job"]["stage"]) for one in some} == {(8, 3)}
    assert {one["job"]["recompute"] for one in some} == {"full"}


def test_experts_are_spread_where_that_is_faster():
    """Over a slow network, to gather all experts for each micro-batch costs more than to send tokens inside a
    machine."""
    model = plans.named("mixtral-8x7b")
    sizes = {
        "gpus": 64,
        "seq": 4096,
        "batch_tokens": 2**20,
        "bandwidth_network": 6e9,
        "expert_parallel": None,
    }
    found = search.search(searched(**model, **sizes))
    assert found[0]["job"]["expert_parallel"] > 1
    alone = search.search(searched(**model, **sizes | {"expert_parallel": 1}))
    assert found[0]["tokens_per_second"] > alone[0]["tokens_per_second"]


def test_what_bounds_a_plan():
    step = {"compute": 90.0, "pipeline idle": 4.0, "exposed data-parallel communication": 3.0}
    assert search.bound({"step_seconds": step}) == "compute"
    step |= {"exposed data-parallel communication": 6.0}
    assert search.bound({"step_seconds": step}) == "data-parallel (6%)"
    assert search.bound({"step_seconds": step | {"pipeline idle": 24.0}}) == "pipeline idle (20%)"


def test_the_command_searches_16_384_gpus_in_two_seconds():
    words = ("--model", "llama3-405b", "--gpus", 16384, "--seq", 8192, "--search")
    result = call(*words)
    assert result.returncode == 0, result.stderr
    head, _, names, *lines = result.stdout.splitlines()
    assert head == "405.9 billion parameters on 16,384 GPUs, the fastest first:"
    assert names.split()[:5] == ["data", "tensor", "pipeline", "context", "expert"] and len(lines) == 5
    rows = json.loads(call(*words, "--json").stdout)
    assert [row["data_parallel"] for row in rows] == [int(line.split()[0].replace(",", "")) for line in lines]
    start = time.process_time()  # of this process: others may have the cores
    search.search(searched(**LLAMA["405b"], gpus=16384, seq=8192, expert_parallel=None))
    assert time.process_time() - start < 2


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (
            "--params 70e9 --gpus 4 --search",
            "no way to shard 70 billion parameters over 4 GPUs fits in 80 GB each",
        ),
        (
            "--params 7e9 --gpus 8 --search --sweep gpus",
            "argument --sweep: not allowed with argument --search",
        ),
        ("--params 7e9 --gpus 8 --search --stage 4", "--stage is 0 to 3"),
        ("--params 50e9 --gpus 64 --experts 8 --search", "--experts needs --feed-forward, the width of each"),
        (
            "--model llama3-8b --gpus 64 --experts-used 2 --memory 1e9 --search",  # nor would it fit
            "a token cannot use 2 of 1 experts",
        ),
        (
            "--params 7e9 --gpus 64 --experts 8 --feed-forward 14336 --search",
            "the experts alone have 4.8e+10 parameters: more than --params",
        ),
    ],
)
def test_what_cannot_be_searched_gets_one_line(words, error, capsys):
    with pytest.raises(SystemExit) as ended:
        command.main(words.split())
    said = capsys.readouterr()
    assert (ended.value.code, said.out) == (2, "")
    assert said.err.startswith(f"error: {error}") and said.err.count("\n") == 1


def test_layers_that_are_guessed_forbid_no_number_of_stages():
    """33 of them: neither they nor 35 divide by two."""
    found = search.search(searched(params=7e9, gpus=64, stage=0, pipeline=2))
    assert {one["job"]["pipeline"] for one in found} == {2}
    assert 2 in {one["job"]["pipeline"] for one in search.search(searched(params=7e9, gpus=64), None)}


def test_short_texts_are_searched_too():
    found = search.search(searched(params=7.5e9, gpus=64, seq=1024), None)
    assert {one["job"]["context_parallel"] for one in found} == {1}
    assert len(found) > 5


def test_no_rank_waits_for_one_that_has_more_texts():
    found = search.search(searched(params=7e9, gpus=64, batch_tokens=96 * 2048), None)
    for one in found:
        assert 96 % (one["data_parallel"] * one["job"]["micro_batch"]) == 0
    assert max(one["data_parallel"] for one in found) == 32
