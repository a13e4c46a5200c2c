"""Plan one job: combine the formulas of formulas.py, with assumptions where they leave something
open.
"""

import math
from typing import Any

from planner import formulas

Job = dict[str, Any]  # the planner's options, with _ for -
Plan = dict[str, Any]  # what `plan` returns

VOCAB = 51_200  # as in Megatron-LM; it hardly matters here
LLAMA3 = {"kv_heads": 8, "vocab": 128_256}
MODELS = {  # as published; Mixtral has the same vocabulary as Llama 2
    "llama3-8b": LLAMA3 | {"layers": 32, "hidden": 4096, "heads": 32, "feed_forward": 14_336},
    "llama3-70b": LLAMA3 | {"layers": 80, "hidden": 8192, "heads": 64, "feed_forward": 28_672},
    "llama3-405b": LLAMA3 | {"layers": 126, "hidden": 16_384, "heads": 128, "feed_forward": 53_248},
    "mixtral-8x7b": {"layers": 32, "hidden": 4096, "heads": 32, "kv_heads": 8, "feed_forward": 14_336}
    | {"vocab": 32_000, "experts": 8, "experts_used": 2},
}


def named(model: str) -> Job:
    """The options of a published model, including its exact number of parameters."""
    sizes = formulas.pick(model, MODELS, "the model")
    counted = {name: size for name, size in sizes.items() if name != "experts_used"}
    return sizes | {"params": formulas.gated_params(**counted)}


def guess(job: Job) -> tuple[int, int, int]:
    """Layers, width and heads; in GPT-3's proportions where not given: 128 x layers
    wide, heads of 128.
    """
    layers = job["layers"] or max(1, round((job["params"] / 12 / 128**2) ** (1 / 3)))
    hidden = job["hidden"] or 128 * layers
    return layers, hidden, job["heads"] or max(1, hidden // 128)


def scale(job: Job) -> float:
    """The parameters divided by those of the shape, which is a guess except for gated layers."""
    if job["feed_forward"]:
        return 1.0
    layers, hidden, _ = guess(job)
    return job["params"] / formulas.transformer_params(layers, hidden, job["vocab"], job["seq"])


def step_flops(job: Job, texts: int, recompute: str) -> float:
    """Operations of one step. If the shape is guessed, they are scaled to the number of parameters."""
    layers, hidden, heads = guess(job)
    shape = (layers, hidden, job["vocab"], job["seq"])
    if job["feed_forward"]:
        inside = (hidden, heads, job["kv_heads"], job["feed_forward"], job["experts_used"])
        return formulas.step_flops(*shape, texts, recompute, formulas.layer_weights(*inside))
    return formulas.step_flops(*shape, texts, recompute) * scale(job)


def experts_params(job: Job) -> int:
    layers, hidden, _ = guess(job)
    return layers * job["experts"] * formulas.feed_forward_weights(hidden, job["feed_forward"])


def check_experts(job: Job) -> None:
    if job["experts"] > 1 and not job["feed_forward"]:
        raise ValueError("--experts needs --feed-forward, the width of each")
    if job["experts"] < job["experts_used"]:
        raise ValueError(f"a token cannot use {job['experts_used']} of {job['experts']} experts")
    if job["experts"] > 1 and experts_params(job) > job["params"]:
        raise ValueError(f"the experts alone have {experts_params(job):.3g} parameters: more than --params")


def divide(job: Job) -> tuple[int, int]:
    """How many copies of the model there are, and how many micro-batches each computes
    in a step.
    """
    copy = job["tensor_parallel"] * job["pipeline"] * job["context_parallel"]
    if job["gpus"] % copy:
        raise ValueError(
            f"one copy of the model takes {copy} GPUs, so --gpus must be a multiple of {copy}, "
            f"such as {math.ceil(job['gpus'] / copy) * copy}"
        )
    data, texts = job["gpus"] // copy, job["batch_tokens"] // job["seq"]
    ranks = data * job["context_parallel"]
    for name in ("replicate", "expert_parallel"):
        if ranks % job[name]:
            option = f"--{name.replace('_', '-')} {job[name]}"
            raise ValueError(f"{ranks:,} ranks that have the same layers do not divide by {option}")
    if job["experts"] % job["expert_parallel"]:
        raise ValueError(f"{job['experts']} experts do not divide by {job['expert_parallel']} ranks")
    if job["seq"] % job["context_parallel"]:
        raise ValueError(f"{job['seq']} tokens do not divide by --context-parallel {job['context_parallel']}")
    if texts < data * job["micro_batch"]:
        least = data * job["micro_batch"] * job["seq"]
        raise ValueError(
            f"a step of {job['batch_tokens']:,} tokens has {texts:,} texts of {job['seq']:,}, too few for "
            f"{data:,} data-parallel ranks: --batch-tokens must be at least {least} (a model may then learn "
            "less per token), or each copy of the model must take more GPUs"
        )
    microbatches = math.ceil(texts / data / job["micro_batch"])
    rounds = max(1, microbatches // job["pipeline"])
    if job["interleave"] > 1 and microbatches % rounds:  # as in PyTorch 2.13's schedule
        fits = math.ceil(microbatches / job["pipeline"]) * job["pipeline"]
        raise ValueError(
            f"{microbatches} micro-batches do not divide by the {rounds} rounds of an interleaved schedule: "
            f"take --batch-tokens {fits * job['micro_batch'] * data * job['seq']}"
        )
    return data, microbatches


def weights_of_rank(job: Job, data: int) -> list[tuple[float, int, int]]:
    """How many parameters one rank computes with, how many ranks have the same parameters, and how
    far apart in a row these ranks are. Several experts get an entry of their own, because they are
    spread over neighbouring data-parallel ranks.
    """
    each = job["tensor_parallel"] * job["pipeline"]
    ranks = data * job["context_parallel"]  # they have the same weights and different tokens
    apart = job["tensor_parallel"]
    if job["experts"] == 1:
        return [(job["params"] / each, ranks, apart)]
    experts, spread = experts_params(job), job["expert_parallel"]
    return [
        ((job["params"] - experts) / each, ranks, apart),
        (experts / each / spread, ranks // spread, apart * spread),
    ]


def memory_bytes(job: Job, data: int, microbatches: int) -> dict[str, float]:
    """What a GPU of the first pipeline stage holds, by part. Buffers and the framework
    come on top.
    """
    layers, hidden, heads = guess(job)
    parts = {}
    for params, ranks, _ in weights_of_rank(job, data):
        sharded_over = max(1, ranks // job["replicate"])
        for name, size in formulas.memory_parts(params, sharded_over, job["stage"]).items():
            parts[name] = parts.get(name, 0) + size
    kept = formulas.activation_bytes(
        job["seq"],
        job["micro_batch"],
        hidden,
        heads,
        layers,
        tensor_parallel=job["tensor_parallel"],
        sequence_parallel=job["sequence_parallel"],
        recompute=job["recompute"],
        kv_heads=job["kv_heads"],
        feed_forward=job["feed_forward"],
        experts_used=job["experts_used"],
    )
    held = formulas.pipeline_held(job["pipeline"], microbatches, job["interleave"])
    return parts | {"activations": kept * held / job["context_parallel"]}


def data_parallel_seconds(job: Job, data: int, microbatches: int) -> float:
    """Seconds in which the data-parallel ranks send in a step, whether or not computation hides
    them.
    """
    # Stage 3 also gathers the parameters for each forward and each backward, so it sends one and a
    # half times as much (Rajbhandari 2020, 7.2), and does so for each micro-batch. The other stages
    # sum gradients once per step. For stage 2 with several micro-batches this is too little: to hold
    # only a shard of the gradients, a rank must send after each micro-batch.
    times = 1.5 * microbatches if job["stage"] == 3 else 1
    network = (job["bandwidth_network"], job["latency"])
    node = {"node_bandwidth": job["bandwidth_node"], "node_latency": job["latency"]}
    seconds = 0.0
    for params, ranks, apart in weights_of_rank(job, data):
        node["ranks_per_node"] = max(1, job["gpus_per_node"] // apart)
        copies = (
            min(job["replicate"], ranks) if job["stage"] == 3 else 1
        )  # below stage 3, all ranks sum in one group
        shards = ranks // copies
        seconds += times * formulas.all_reduce_seconds(2 * params, shards, *network, job["algorithm"], **node)
        seconds += formulas.all_reduce_seconds(2 * params / shards, copies, *network, "ring")
    return seconds


def link(job: Job, ranks: int) -> tuple[float, float]:
    """Bandwidth and latency between this many neighbouring GPUs."""
    name = "node" if ranks <= job["gpus_per_node"] else "network"
    return job[f"bandwidth_{name}"], job["latency"]


def compute_seconds(job: Job, texts: int) -> tuple[float, float]:
    """Seconds of computation in a step, and the seconds of attention among them. In 8 bits, products
    with weights run at twice the peak; attention and logits stay in 16 bits.
    """
    layers, hidden, _ = guess(job)
    rate = job["gpus"] * job["peak"] * job["mfu"]
    attention = formulas.attention_flops(layers, hidden, job["seq"], texts, job["recompute"]) * scale(job)
    flops = step_flops(job, texts, job["recompute"])
    if job["precision"] == "fp8":
        logits = 6 * texts * job["seq"] * job["vocab"] * hidden * scale(job)
        flops -= (flops - attention - logits) / 2
    return flops / rate, attention / rate


def step_seconds(job: Job, data: int, microbatches: int) -> dict[str, float]:
    """Seconds of a step, by part. The parts follow each other; communication that computation
    hides is not included.
    """
    layers, hidden, heads = guess(job)
    ways, around, spread = (job[f"{name}_parallel"] for name in ("tensor", "context", "expert"))
    is_full = job["recompute"] == "full"
    # All ranks wait for the rank with the most work.
    compute, attention = compute_seconds(job, data * microbatches * job["micro_batch"])
    idle = formulas.pipeline_idle_to_ideal(job["pipeline"], microbatches, job["interleave"])
    times = microbatches * layers / job["pipeline"]  # how often a rank computes a layer
    message = 2 * job["seq"] // around * job["micro_batch"] * hidden
    sums = 6 if is_full else 4  # a layer: 2 forward, 2 backward (Narayanan 2021, 2.3)
    tensor = formulas.all_reduce_seconds(message, ways, *link(job, ways), "ring")
    beside = compute / microbatches * (3 / 4 if is_full else 2 / 3)  # in the last micro-batch
    if job["stage"] == 3:
        beside = compute
    sent = data_parallel_seconds(job, data, microbatches)
    parts = {
        "compute": compute,
        "pipeline idle": compute * idle,
        "tensor-parallel communication": times * sums * tensor,
        "exposed data-parallel communication": formulas.exposed_seconds(sent, beside),
    }
    if around > 1:
        kv_heads = job["kv_heads"] or heads
        pairs = 2 * message * kv_heads / heads / ways
        passed = formulas.ring_attention_seconds(pairs, around, *link(job, ways * around), job["recompute"])
        parts["exposed context-parallel communication"] = formulas.exposed_seconds(times * passed, attention)
    if spread > 1:
        tokens = message * job["experts_used"]
        if job["sequence_parallel"]:
            tokens /= ways
        once = formulas.all_to_all_seconds(tokens, spread, *link(job, ways * spread))
        # As many as sums: to the experts and back, in the forward and in the backward pass.
        parts["expert-parallel communication"] = times * sums * once
    return parts


def plan(job: Job) -> Plan:
    """Everything that the planner computes for a job, which is a dictionary of the planner's options,
    with _ for -.

    Raises a ValueError with one line for the reader if the job cannot run.
    """
    check_experts(job)
    data, microbatches = divide(job)
    layers, hidden, heads = guess(job)
    memory, step = memory_bytes(job, data, microbatches), step_seconds(job, data, microbatches)
    seconds, texts = sum(step.values()), job["batch_tokens"] // job["seq"]
    between = formulas.seconds_between_failures(job["gpus"], job["failure_rate"])
    interval = formulas.checkpoint_interval(job["save_seconds"], between, "daly")
    lost = (job["save_seconds"], job["restart_seconds"], between)
    moving = formulas.effective_time_ratio(interval, *lost, "daly")
    if moving < 0.01:
        raise ValueError(
            f"{job['gpus']:,} GPUs are interrupted every {between:.0f} s: saves of {job['save_seconds']:g} s "
            f"and restarts of {job['restart_seconds']:g} s leave hardly any time to train; make them shorter"
        )
    tokens = job["tokens"] or 20 * job["params"]
    days = tokens / (texts * job["seq"]) * seconds / moving / formulas.DAY
    useful = step_flops(job, texts, "none")
    return {
        "job": job | {"layers": layers, "hidden": hidden, "heads": heads, "tokens": tokens, "texts": texts},
        "data_parallel": data,
        "microbatches": microbatches,
        "fits": sum(memory.values()) <= job["memory"],
        "memory_bytes": memory,
        "step_seconds": step,
        "data_parallel_seconds": data_parallel_seconds(job, data, microbatches),
        "pipeline_idle_share": formulas.pipeline_idle_share(job["pipeline"], microbatches, job["interleave"]),
        "model_flops_utilization": useful / seconds / job["gpus"] / job["peak"],
        "tokens_per_second": texts * job["seq"] / seconds * moving,
        "days": days,
        "dollars": days * 24 * job["gpus"] * job["price_per_hour"],
        "interruptions": formulas.interruptions(job["gpus"], days, job["failure_rate"]),
        "checkpoint_interval_seconds": interval,
        "effective_time_ratio": moving,
    }


def sweep(job: Job) -> tuple[list[Plan], str]:
    """Plan a job on more and more GPUs: the fewest that it divides over, doubled up to job["gpus"] or
    until the job cannot run. Also return the reason why the sweep stops.
    """
    ranks = math.lcm(*(job[name] for name in ("context_parallel", "expert_parallel", "replicate")))
    rows, gpus = [], job["tensor_parallel"] * job["pipeline"] * ranks
    while gpus <= job["gpus"]:
        try:
            rows.append(plan(job | {"gpus": gpus}))
        except ValueError as error:
            if not rows:
                raise
            return rows, str(error)
        gpus *= 2
    if not rows:
        divide(job)
    return rows, ""
