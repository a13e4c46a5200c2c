"""The planner's formulas for memory, arithmetic, communication, idle time and failures.
There are no tensors in this file.

Units are bytes, seconds and days, named in each function or its docstring. Sizes are for
16-bit training with Adam, for GPTs as in Megatron-LM and for models like Llama.
tests/lessons/test_planner.py lists the papers' figures, and where the formulas differ from
them.
"""

import math
from collections.abc import Collection
from typing import Any

DAY = 24 * 60 * 60
BUS_FACTORS = {  # doc/PERFORMANCE.md of NVIDIA/nccl-tests, for n ranks
    "all-reduce": lambda n: 2 * (n - 1) / n,
    "reduce-scatter": lambda n: (n - 1) / n,
    "all-gather": lambda n: (n - 1) / n,
    "all-to-all": lambda n: (n - 1) / n,
    "broadcast": lambda n: 1,
    "reduce": lambda n: 1,
}


def pick(name: str, choices: Collection, what: str) -> Any:
    """The value for this name. For an unknown name, an error that lists the known names,
    never a default.
    """
    if name not in choices:
        raise ValueError(f"{what} must be one of {', '.join(map(str, choices))}, not {name}")
    return choices[name] if isinstance(choices, dict) else name


def memory_parts(params: float, data_parallel: int, stage: int) -> dict[str, float]:
    """Bytes of one rank, by part. A parameter takes 2, its gradient 2, and its fp32 copy
    and moments in Adam 12.

    ZeRO stage 1 shards these 12 over the ranks, stage 2 also the gradients, stage 3 also
    the parameters (Rajbhandari 2020, section 5). Stage 0 is DDP with
    gradient_as_bucket_view=True: without it, buckets take another 2. With torch.autocast,
    a parameter takes 4 (and up to 2 for a 16-bit copy), its gradient 4 and its moments 8.
    """
    pick(stage, range(4), "the stage")
    return {
        "optimizer": 12 * params / (data_parallel if stage >= 1 else 1),
        "gradients": 2 * params / (data_parallel if stage >= 2 else 1),
        "parameters": 2 * params / (data_parallel if stage >= 3 else 1),
    }


def memory_per_rank(params: float, data_parallel: int, stage: int) -> float:
    """Bytes of parameters, gradients and optimizer on one rank. Activations come on top."""
    return sum(memory_parts(params, data_parallel, stage).values())


def transformer_params(layers: int, hidden: int, vocab: int, seq: int) -> float:
    """12 l h^2 (1 + 13/(12 h) + (V + s)/(12 l h)): equation 2 of Narayanan 2021, without
    the last norm.
    """
    return 12 * layers * hidden**2 * (1 + 13 / (12 * hidden) + (vocab + seq) / (12 * layers * hidden))


def feed_forward_weights(hidden: int, feed_forward: int | None = None) -> int:
    """Weights of one layer or expert: 3 h f if gated (SwiGLU), else 8 h^2, for a width of 4 h."""
    return 3 * hidden * feed_forward if feed_forward else 8 * hidden**2


def layer_weights(
    hidden: int,
    heads: int,
    kv_heads: int | None = None,
    feed_forward: int | None = None,
    experts_used: int = 1,
) -> float:
    """The weights that a token is multiplied with in a layer: 12 h^2 in a GPT.

    With k heads of keys and values for a of queries (GQA), attention has 2 h^2 (1 + k/a).
    """
    attention = 2 * hidden**2 * (1 + (kv_heads or heads) / heads)
    return attention + experts_used * feed_forward_weights(hidden, feed_forward)


def gated_params(
    layers: int,
    hidden: int,
    heads: int,
    kv_heads: int,
    feed_forward: int,
    vocab: int,
    experts: int = 1,
) -> int:
    """All parameters of a model like Llama: no biases, separate logits, norms of h.

    l (2 h^2 (1 + k/a) + 3 E h f + 2 h) + 2 V h + h. With several experts, add E h for a router.
    """
    router = experts * hidden if experts > 1 else 0
    layer = layer_weights(hidden, heads, kv_heads, feed_forward, experts) + router + 2 * hidden
    return round(layers * layer + 2 * vocab * hidden + hidden)


def attention_flops(layers: int, hidden: int, seq: int, batch: int, recompute: str = "full") -> float:
    """Operations for scores and their products with the values, in one step: 12 B s^2 l h.
    The half that a causal mask hides is counted, as in the papers.

    Full recomputation takes 16. Selective recomputation repeats these products: 24 in
    Korthikanti 2022.
    """
    factors = {"none": 12, "selective": 24, "full": 16}
    return pick(recompute, factors, "recompute") * batch * seq**2 * layers * hidden


def step_flops(
    layers: int,
    hidden: int,
    vocab: int,
    seq: int,
    batch: int,
    recompute: str = "full",
    weights: float | None = None,
) -> float:
    """Operations of one step on `batch` sequences: 72 B s l h^2 (1 + s/(6h) + V/(12 l
    h)), products only. For a layer that is not a GPT's, `weights` replaces 12 h^2.

    Selective recomputation repeats attention's products: s/(3h) (Korthikanti 2022,
    equations 7 and 8). Full recomputation repeats the layers' forward: 96 B s l h^2 (1 + s/(6h)
    + V/(16 l h)) (Narayanan 2021, equation 3).
    """
    times = {"none": 6, "selective": 6, "full": 8}
    weights = weights or 12 * hidden**2
    layer = pick(recompute, times, "recompute") * weights
    logits = 6 * vocab * hidden  # never recomputed
    attention = attention_flops(layers, hidden, seq, batch, recompute)
    return batch * seq * (layers * layer + logits) + attention


def training_days(
    params: float,
    tokens: float,
    gpus: int,
    flops_per_gpu: float,
    recompute: bool = True,
) -> float:
    """8 T P / (n X) seconds with full recomputation, 6 without, as days (Narayanan 2021,
    equation 4).

    X is what a GPU reaches, not its peak. Attention's own products, a few percent, are
    not included.
    """
    return (8 if recompute else 6) * tokens * params / (gpus * flops_per_gpu) / DAY


def activation_bytes(
    seq: int,
    batch: int,
    hidden: int,
    heads: int,
    layers: int,
    tensor_parallel: int = 1,
    sequence_parallel: bool = False,
    recompute: str = "none",
    kv_heads: int | None = None,
    feed_forward: int | None = None,
    experts_used: int = 1,
) -> float:
    """Bytes that one rank keeps for backward, for all layers: table 2 of Korthikanti
    2022, times the number of layers.

    PyTorch keeps for a gated layer: 8 s b h for norms and their outputs, 4 (1 + k/a) for
    queries, keys, values and their result, 6 f/h for the gate, what it gates and their
    product, and 2 f/h for the gate after its activation. A pipeline's first stage holds the
    same amount, whatever its length (equation 5). Embeddings and logits are not included.
    """
    # FlashAttention and a fused SwiGLU do not keep this: plan with "selective".
    again = 5 * heads * seq / hidden
    whole, split = 10, 24
    if feed_forward:
        gated = experts_used * feed_forward / hidden
        whole, split = 8, 4 * (1 + (kv_heads or heads) / heads) + 6 * gated
        again += 2 * gated
    along = (
        tensor_parallel if sequence_parallel else 1
    )  # norms and dropout are sharded only along the sequence
    kept = {
        "none": whole / along + (split + again) / tensor_parallel,
        "selective": whole / along + split / tensor_parallel,
        "full": 2 / along,
    }
    return seq * batch * hidden * layers * pick(recompute, kept, "recompute")


def pipeline_idle_to_ideal(stages: int, microbatches: int, interleave: int = 1) -> float:
    """Idle time of a stage divided by its work time: (p - 1)/(v m) (Narayanan 2021, 2.2).
    It may exceed 1.

    With fewer micro-batches than stages, each chunk after the first also waits for the
    missing ones: (p - 1 + (v - 1) (p - m))/(v m), as in PyTorch 2.13's schedules.
    """
    missing = max(0, stages - microbatches)
    return (stages - 1 + (interleave - 1) * missing) / (interleave * microbatches)


def pipeline_idle_share(stages: int, microbatches: int, interleave: int = 1) -> float:
    """Idle time of a stage divided by the total time: (p - 1)/(v m + p - 1) for at least
    as many micro-batches as stages, as in GPipe (Huang 2019). Always below 1.
    """
    ratio = pipeline_idle_to_ideal(stages, microbatches, interleave)
    return ratio / (1 + ratio)


def pipeline_held(stages: int, microbatches: int, interleave: int = 1) -> float:
    """The most that the first stage keeps for backward, divided by what all layers keep of
    one micro-batch.

    1F1B: p micro-batches of 1/p of the layers, so 1. Interleaved: (v - 1) r + 2 (p - 1)
    + 1 of 1/(p v), in rounds of r micro-batches, which are p if p divides m (Korthikanti
    2022, 4.2.3). Never more than all m. PyTorch 2.13's schedules do the same.
    """
    rounds = max(1, microbatches // stages)
    held = (interleave - 1) * (microbatches // rounds) + 2 * (stages - 1) + 1
    if interleave == 1:
        held = stages
    return min(held, interleave * microbatches) / (stages * interleave)


def all_reduce_seconds(
    bytes: float,
    ranks: int,
    bandwidth: float,
    latency: float,
    algorithm: str,
    ranks_per_node: int = 8,
    node_bandwidth: float | None = None,
    node_latency: float | None = None,
) -> float:
    """Seconds to sum S bytes over n ranks, at B bytes per second each way and a seconds of
    latency per message.

    server: (n - 1) S/B + 2 a, if rank 0 answers while it receives; up to twice that if it
        waits.
    ring: 2 (n - 1) a + 2 (n - 1)/n S/B (Patarasuk 2009).
    tree: 2 ceil(log2 n) (a + S/B). NCCL's two trees, half of the bytes on each, come
        close to 2 S/B.
    two-level: a ring in each node, then a ring over the nodes for each of its ranks,
        with its share of S.
    """
    pick(algorithm, ("server", "ring", "tree", "two-level"), "the algorithm")
    if ranks == 1:
        return 0.0
    if algorithm == "server":
        return (ranks - 1) * bytes / bandwidth + 2 * latency
    if algorithm == "tree":
        return 2 * math.ceil(math.log2(ranks)) * (latency + bytes / bandwidth)
    if algorithm == "ring":
        return 2 * (ranks - 1) * (latency + bytes / ranks / bandwidth)
    inside = min(ranks, ranks_per_node)
    if ranks % inside:
        filled = math.ceil(ranks / inside) * inside
        raise ValueError(f"{ranks} ranks do not fill nodes of {inside}: take {filled}, or another algorithm")
    near = (node_bandwidth or bandwidth, latency if node_latency is None else node_latency)
    far = all_reduce_seconds(bytes / inside, ranks // inside, bandwidth, latency, "ring")
    return all_reduce_seconds(bytes, inside, *near, "ring") + far


def ring_attention_seconds(
    bytes: float,
    ranks: int,
    bandwidth: float,
    latency: float,
    recompute: str = "none",
) -> float:
    """Seconds for n ranks to pass their keys and values, S bytes of each rank, n - 1 times
    in forward and in backward, and their gradients n times: (3 n - 2) (a + S/B), as in
    lesson 15.

    Full recomputation passes keys and values n - 1 times more (Liu 2023: ring attention).
    """
    if ranks == 1:
        return 0.0
    times = 4 * ranks - 3 if recompute == "full" else 3 * ranks - 2
    return times * (latency + bytes / bandwidth)


def all_to_all_seconds(bytes: float, ranks: int, bandwidth: float, latency: float) -> float:
    """Seconds for each of n ranks to send an nth of its S bytes to each other rank: (n - 1)
    (a + S/n/B).
    """
    return (ranks - 1) * (latency + bytes / ranks / bandwidth)


def bus_bandwidth(
    bytes: float,
    seconds: float,
    ranks: int,
    collective: str = "all-reduce",
) -> float:
    """Bytes per second that the slowest link must have carried: S/t times the factor of
    nccl-tests (BUS_FACTORS).
    """
    return bytes / seconds * pick(collective, BUS_FACTORS, "the collective")(ranks)


def seconds_between_failures(gpus: int, failure_rate: float) -> float:
    """The mean seconds between failures, for a job that any GPU can interrupt.
    `failure_rate`: unplanned interruptions per GPU and day, all causes.
    """
    return DAY / (gpus * failure_rate)


def interruptions(gpus: int, days: float, failure_rate: float) -> float:
    """The expected number: GPUs x days x `failure_rate`, per GPU and day (Kokolis 2025,
    figure 7).
    """
    return gpus * days * failure_rate


def checkpoint_interval(
    save_seconds: float,
    mtbf_seconds: float,
    order: str = "young",
) -> float:
    """The best seconds between checkpoints: sqrt(2 d M) (Young 1974).

    daly: sqrt(2 d M) (1 + sqrt(d/2M)/3 + (d/2M)/9) - d, and M from d = 2 M on (Daly
    2006).
    """
    young = math.sqrt(2 * save_seconds * mtbf_seconds)
    if pick(order, ("young", "daly"), "the order") == "young":
        return young
    if save_seconds >= 2 * mtbf_seconds:
        return mtbf_seconds
    ratio = save_seconds / (2 * mtbf_seconds)
    return young * (1 + math.sqrt(ratio) / 3 + ratio / 9) - save_seconds


def effective_time_ratio(
    interval_seconds: float,
    save_seconds: float,
    restart_seconds: float,
    mtbf_seconds: float,
    order: str = "young",
) -> float:
    """Share of the time that is training progress: 1 - d/t - (R + t/2)/M, or 0 (Young's
    formula; Kokolis 2025).

    It holds if intervals are rarely interrupted. daly: t/M e^(-R/M) / (e^((t + d)/M) - 1)
    also holds if intervals, saves and restarts are often interrupted (Daly 2006). There, t
    is the time from the end of a save to the start of the next.
    """
    if pick(order, ("young", "daly"), "the order") == "daly":
        period = (interval_seconds + save_seconds) / mtbf_seconds
        # As e^-x/(1 - e^-x), because e^x overflows for a large x.
        repeated = math.exp(-restart_seconds / mtbf_seconds - period) / -math.expm1(-period)
        return interval_seconds / mtbf_seconds * repeated
    lost = save_seconds / interval_seconds + (restart_seconds + interval_seconds / 2) / mtbf_seconds
    return max(0.0, 1 - lost)


def waiting_share(spares: int, broken: float) -> float:
    """Share of the time in which a job waits for a machine, if `broken` of them would be in
    repair on average had it always a spare: Erlang's loss formula for spares + 1 (1917).
    """
    share = 1.0
    for number in range(1, spares + 2):
        share = broken * share / (number + broken * share)
    return share


def exposed_seconds(communication_seconds: float, hiding_seconds: float) -> float:
    """Communication that does not fit beside the computation that it may run beside (Li
    2020: DDP).
    """
    return max(0.0, communication_seconds - hiding_seconds)
