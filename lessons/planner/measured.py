"""Any model under DDP, planned from what one process measured: a ResNet, for instance.

plans.py knows the operations and the memory of transformers. For another model, a run on
one GPU gives both: the seconds that an example takes, and the bytes that it adds.
"""

import math

from planner import formulas
from planner.report import count, duration, line


def plan(job: dict) -> dict:
    """Memory and step time of each GPU. ValueError if the GPUs cannot share the batch equally."""
    gpus, params = job["gpus"], job["params"]
    each, rest = divmod(job["batch_examples"], gpus)
    if rest:
        raise ValueError(f"--batch-examples {job['batch_examples']:,} does not divide by {gpus:,} GPUs")
    memory = {
        "parameters, gradients, Adam in fp32": 16 * params,
        "activations": each * job["activations_per_example"],
    }
    network = (job["bandwidth_network"], job["latency"], job["algorithm"])
    node = {"node_bandwidth": job["bandwidth_node"], "node_latency": job["latency"]}
    sent = formulas.all_reduce_seconds(
        4 * params, gpus, *network, ranks_per_node=job["gpus_per_node"], **node
    )
    compute = each * job["seconds_per_example"]
    exposed = formulas.exposed_seconds(sent, compute * 2 / 3)  # backward takes two thirds of a step
    step = {"compute": compute, "exposed data-parallel communication": exposed}
    return {
        "job": job | {"examples_per_gpu": each},
        "fits": sum(memory.values()) <= job["memory"],
        "memory_bytes": memory,
        "step_seconds": step,
        "data_parallel_seconds": sent,
        "examples_per_second": job["batch_examples"] / sum(step.values()),
        "of_linear": compute / sum(step.values()),
    }


def text(found: dict) -> str:
    job, memory, step = found["job"], found["memory_bytes"], found["step_seconds"]
    whole, each = sum(step.values()), job["examples_per_gpu"]
    verdict = f"(needs {sum(memory.values()) / 1e9:,.1f} GB of {job['memory'] / 1e9:,.0f} GB a GPU)"
    if not found["fits"]:
        verdict += "; use more GPUs, gradient accumulation or FSDP"
    return "\n".join(
        [
            f"a measured model of {count(job['params'])} parameters, DDP",
            f"{job['gpus']:,} GPUs: {each:,} examples each\n",
            f"fits: {'yes' if found['fits'] else 'no'} {verdict}",
            *(line(name, f"{size / 1e9:,.2f} GB") for name, size in memory.items()),
            f"\na step: {duration(whole)}, {job['batch_examples']:,} examples",
            *(line(name, duration(part), f"{part / whole:.1%}") for name, part in step.items()),
            line("all-reduce, hidden or not", duration(found["data_parallel_seconds"])),
            line("examples a second", f"{math.floor(found['examples_per_second']):,}"),
            line("of linear scaling", f"{found['of_linear']:.1%}"),
        ]
    )
