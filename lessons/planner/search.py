"""The best ways to shard a job: plan every layout that fits, and keep the fastest."""

from collections.abc import Iterator

from planner import plans
from planner.plans import Job, Plan
from planner.report import count, duration

WAYS = ("tensor_parallel", "pipeline", "context_parallel", "expert_parallel")
# Values that are tried for each layout. An option that you set stays as it is.
SEARCHED = (*WAYS, "interleave", "micro_batch", "recompute", "stage", "replicate")


def powers(most: int) -> list[int]:
    return [2**power for power in range(most.bit_length())]


def tried(job: Job, name: str, choices: list) -> list:
    """The values to try, or the value that was set."""
    return choices if job[name] is None else [job[name]]


def layouts(job: Job) -> Iterator[Job]:
    """Tensor parallelism inside a machine, as many stages as divide the layers evenly, and
    the rest for data. Embedding and logits may count as a layer each, as Llama 3's do.
    """
    _, _, heads = plans.guess(job)
    even = even_stages(job)
    for tensor in tried(job, "tensor_parallel", powers(job["gpus_per_node"])):
        for context in tried(job, "context_parallel", powers(max(1, min(64, job["seq"] // 2048)))):
            for pipeline in tried(job, "pipeline", even):
                if heads % tensor or job["gpus"] % (tensor * context * pipeline):
                    continue
                ranks = job["gpus"] // tensor // pipeline
                for expert in tried(job, "expert_parallel", powers(min(job["experts"], ranks))):
                    found = {
                        "tensor_parallel": tensor,
                        "pipeline": pipeline,
                        "context_parallel": context,
                        "expert_parallel": expert,
                        "sequence_parallel": tensor > 1,
                    }
                    for interleave in tried(job, "interleave", interleaves(even, pipeline)):
                        yield job | found | {"interleave": interleave}


def even_stages(job: Job) -> list[int]:
    """The numbers of stages that divide the layers evenly."""
    layers, _, _ = plans.guess(job)
    if job["layers"] is None:  # a guessed number of layers must not rule out two stages
        return powers(layers)
    return [size for size in range(1, layers + 3) if layers % size == 0 or (layers + 2) % size == 0]


def interleaves(even: list[int], pipeline: int) -> list[int]:
    """How many stages each process may hold."""
    if pipeline == 1:
        return [1]
    return [size // pipeline for size in even if size % pipeline == 0] or [1]


def candidates(layout: Job) -> Iterator[Job]:
    """The remaining choices of a layout. Texts must divide evenly, so that no rank waits."""
    ranks = layout["gpus"] // layout["tensor_parallel"] // layout["pipeline"]
    data = ranks // layout["context_parallel"]
    texts = layout["batch_tokens"] // layout["seq"]
    near = max(1, layout["gpus_per_node"] // layout["tensor_parallel"])
    for micro_batch in tried(layout, "micro_batch", powers(8)):
        if texts % (data * micro_batch):
            continue
        if micro_batch > 1 and layout["context_parallel"] > 1:  # or take one text on more data-parallel ranks
            continue
        for recompute in tried(layout, "recompute", ["selective", "full"]):
            for stage in tried(layout, "stage", [1, 2, 3]):
                copies = {1}
                if stage == 3 and ranks % near == 0:
                    copies.add(ranks // near)
                for replicate in tried(layout, "replicate", sorted(copies)):
                    rest = {"recompute": recompute, "stage": stage, "replicate": replicate}
                    yield layout | rest | {"micro_batch": micro_batch}


def search(job: Job, most: int | None = 5) -> list[Plan]:
    """Plans, the fastest first: of each layout the best that fits. Raises a ValueError if none does.

    An option of SEARCHED that is None is searched.
    """
    plans.check_experts(job)  # otherwise the search might report that nothing fits
    best: dict[tuple, tuple[float, Job]] = {}
    for layout in layouts(job):
        key = tuple(layout[name] for name in WAYS)
        for one in candidates(layout):
            try:
                data, microbatches = plans.divide(one)
                if sum(plans.memory_bytes(one, data, microbatches).values()) > one["memory"]:
                    continue
                seconds = sum(plans.step_seconds(one, data, microbatches).values())
            except ValueError:  # this layout cannot run
                continue
            if key not in best or seconds < best[key][0]:
                best[key] = (seconds, one)
    if not best:
        raise ValueError(
            f"no way to shard {count(job['params'])} parameters over {job['gpus']:,} GPUs fits in "
            f"{job['memory'] / 1e9:.0f} GB each and divides the texts of a step evenly: take more GPUs, "
            "fewer tokens in a text, or other --batch-tokens"
        )
    fastest = sorted(best.values(), key=lambda found: found[0])[:most]
    return [plans.plan(one) for _, one in fastest]


def bound(found: Plan) -> str:
    """What takes the most time apart from compute; or compute, if that is less than 5%."""
    step = found["step_seconds"]
    others = [name for name in step if name != "compute"]
    name = max(others, key=step.get)
    share = step[name] / sum(step.values())
    if share < 0.05:
        return "compute"
    words = name.removeprefix("exposed ").removesuffix(" communication")
    return f"{words} ({share:.0%})"


HEAD = ("data", "tensor", "pipeline", "context", "expert", "texts", "again", "ZeRO", "GB each", "a step")
HEAD += ("of peak", "time", "dollars", "  bound by")
FORM = "{:>7}{:>7}{:>9}{:>8}{:>7}{:>6}  {:10}{:>7}{:>8} {:>9}{:>8} {:>11} {:>12}{}"


def cells(found: Plan) -> list[str]:
    job = found["job"]
    chunks = f" x {job['interleave']}" if job["interleave"] > 1 else ""
    copies = f" x {job['replicate']}" if job["replicate"] > 1 else ""
    return [
        f"{found['data_parallel']:,}",
        f"{job['tensor_parallel']}",
        f"{job['pipeline']}{chunks}",
        f"{job['context_parallel']}",
        f"{job['expert_parallel']}",
        f"{job['micro_batch']}",
        job["recompute"],
        f"{job['stage']}{copies}",
        f"{sum(found['memory_bytes'].values()) / 1e9:,.1f}",
        duration(sum(found["step_seconds"].values())),
        f"{found['model_flops_utilization']:.1%}",
        duration(found["days"] * 86_400),
        f"{found['dollars']:,.0f}",
        f"  {bound(found)}",
    ]


def table(rows: list[Plan]) -> str:
    job = rows[0]["job"]
    lines = [f"{count(job['params'])} parameters on {job['gpus']:,} GPUs, the fastest first:", ""]
    for row in (HEAD, *map(cells, rows)):
        lines.append(FORM.format(*row).rstrip())
    return "\n".join(lines)
