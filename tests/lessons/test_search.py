"""The planner's search, held against what was really chosen, misses included.

Each row of PUBLISHED is a run whose layout its authors printed; published.toml says where. The search gets
the model, the GPUs, the links and the batch, and what the software of that day could not do: in 2021 it had
no ZeRO, and computed all layers again.
"""

import json
import time

import test_planner
from test_planner import call, job

from planner import formulas, plans, search

A100 = {"peak": 312e12, "bandwidth_node": 300e9, "bandwidth_network": 25e9}
SOFTWARE = {
    "": {},
    "2021": A100 | {"stage": 0, "recompute": "full", "context_parallel": 1},
    "2022": A100 | {"stage": 0, "recompute": "selective", "context_parallel": 1},
    "TITAN": {"memory": 96e9},
    "FP8": {"memory": 96e9, "precision": "fp8"},
}
NANOTRON = {"stage": 1, "recompute": "selective", "context_parallel": 1, "interleave": 1}


def gpt(layers, hidden, heads):
    params = round(formulas.transformer_params(layers, hidden, 51_200, 2048))
    return {"params": params, "layers": layers, "hidden": hidden, "heads": heads}


def nanotron(layers, hidden, heads, feed_forward, logits=1):
    """No grouped queries; the two small ones have no logits of their own."""
    sizes = {"layers": layers, "hidden": hidden, "heads": heads, "kv_heads": heads}
    sizes |= {"feed_forward": feed_forward, "vocab": 131_072}
    return sizes | {"params": formulas.gated_params(**sizes) - (1 - logits) * sizes["vocab"] * hidden}


MODELS = {
    "1b": nanotron(16, 2048, 32, 8192, logits=0),
    "3b": nanotron(28, 3072, 32, 8192, logits=0),
    "8b": nanotron(32, 4096, 32, 14_336),
    "80b": nanotron(80, 8192, 64, 28_672),
}
PLAYBOOK = test_planner.PUBLISHED["playbook"]["rows"]
PUBLISHED = []
for source, model, software, *sizes, chosen in test_planner.PUBLISHED["choices"]["rows"]:
    shape = plans.named(model) if isinstance(model, str) else gpt(*model)
    PUBLISHED.append((source, shape, SOFTWARE[software], *sizes, tuple(chosen)))
PUBLISHED += [
    ("playbook", MODELS[name], NANOTRON, gpus, 4096, 256, (*best, 1)) for name, gpus, best, *_ in PLAYBOOK
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
    """30 of 55 published choices are among the first three; but in 5 of those rows no more than four layouts
    fit at all. Two are not among what the search tries: 32 stages for 80 layers, and tensor parallelism over
    two machines. Three are planned to have less than 80% of the best speed, the lowest 68%."""
    among, few, shares, untried = 0, 0, [], []
    for source, model, given, gpus, seq, texts, chosen in PUBLISHED:
        speeds = speeds_of(model, given, gpus, seq, texts)
        place = list(speeds).index(chosen) + 1 if chosen in speeds else None
        if place is None:
            untried.append(chosen)
        else:
            shares.append(speeds[chosen] / max(speeds.values()))
            among += place <= 3
            few += place <= 3 and len(speeds) <= 4
        print(f"{source:15}{model['params']:9.1e}{gpus:8,}{seq:9,}  {chosen} is {place} of {len(speeds)}")
    assert (among, few, len(PUBLISHED)) == (30, 5, 55)
    assert untried == [(4, 32, 1), (16, 1, 1)]
    assert 0.68 < min(shares) < 0.69
    assert [sum(share > least for share in shares) for least in (0.8, 0.9)] == [50, 38]


def test_what_the_search_puts_first_was_measured_too():
    """SOURCES["playbook"], whose authors ran nearly every layout: what would the planner's advice have cost?

    For the two small models, the first of the search has at least 87.5% of the best measured speed in 9
    rows of 14, and less from 256 GPUs (1b) and 128 (3b) on. The planner expects next to no loss there,
    and what was measured falls: to a ninth of the speed on 8 GPUs for 1b, to a quarter for 3b. For the
    two large models all runs of the first failed. nanotron adds gradients up in 32 bits, which takes 4
    bytes for each parameter that the planner does not count. Where they are counted, what comes first
    ran in 7 of the 12 rows.
    """
    for name, gpus, best, speed, first, speed_of_first, leaner, _ in PLAYBOOK:
        sizes = {"gpus": gpus, "seq": 4096, "batch_tokens": 256 * 4096}
        found = search.search(searched(**MODELS[name] | NANOTRON | sizes), None)
        planned = found[0]["tokens_per_second"] / gpus
        print(f"{name:4}{gpus:5}  {best} was {speed}, {first} {speed_of_first}, planned {planned:,.0f}")
        assert list(layout_of(found[0])[:2]) == first, "look up what was measured of the new first"
        fits = [one for one in found if sum(one["memory_bytes"].values()) + sums_bytes(one) <= 80e9]
        assert list(layout_of(fits[0])[:2]) == leaner, "look up what was measured of it"
    small, large = PLAYBOOK[:14], PLAYBOOK[14:]
    assert sum(row[5] >= 0.875 * row[3] for row in small) == 9
    assert [row[1] for row in small if row[5] < 0.8 * row[3]] == [256, 512, 128, 256, 512]
    assert not any(row[5] for row in large) and sum(row[7] > 0 for row in large) == 7


def sums_bytes(found):
    """Of gradients in 32 bits, beside those in 16."""
    return 4 * found["job"]["params"] / found["job"]["tensor_parallel"] / found["job"]["pipeline"]


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
    sizes = {"gpus": 64, "seq": 4096, "batch_tokens": 2**20, "bandwidth_network": 6e9}
    found = search.search(searched(**model, **sizes, expert_parallel=None))
    assert found[0]["job"]["expert_parallel"] > 1
    alone = search.search(searched(**model, **sizes))
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
    search.search(searched(**plans.named("llama3-405b"), gpus=16384, seq=8192, expert_parallel=None))
    assert time.process_time() - start < 2


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
