"""One step of lesson 13's or 17's model on any number of pretended ranks, in one process.

    python lessons/planner/dry_run.py 16384 --tensor-parallel 8
    python lessons/planner/dry_run.py 16384 --pipeline-parallel 8 --context-parallel 4 --tensor-parallel 8

You will see every collective of a training step, and what one rank holds in memory. The first command
runs lesson 13's own sharding code on PyTorch's "fake" backend, whose collectives move nothing, and on
fake tensors, which have a shape but no content. The second command runs lesson 17's code, with pipeline
stages and with rings that pass keys and values on. `--experts 64 --expert-parallel 8` adds experts.
dry_run_mesh.py holds what stages and experts need. A dry run says nothing about seconds, congestion and
failures.
"""

import argparse
import gc
import importlib
import json
import math
import sys
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd.graph import saved_tensors_hooks
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import MixedPrecisionPolicy
from torch.distributed.tensor import DTensor, debug
from torch.distributed.tensor.parallel import loss_parallel
from torch.nn.functional import cross_entropy
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import workload
from planner import dry_run_mesh

gpt = importlib.import_module("13_gpt")
MODEL = {"vocabulary": 50_304, "length": 2048, "hidden": 4096, "heads": 32, "layers": 32}
POLICIES = {
    "fp32": MixedPrecisionPolicy(),
    "bf16": MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32),
}
# PyTorch's operations that communicate, FSDP's names and DTensor's. An operation that is not listed
# ends the dry run with an error, because the output would be incomplete without it.
KINDS = {
    "_allgather_base_": "all-gather",
    "all_gather_into_tensor": "all-gather",
    "_reduce_scatter_base_": "reduce-scatter",
    "reduce_scatter_tensor": "reduce-scatter",
    "allreduce_": "all-reduce",
    "all_reduce": "all-reduce",
    "allgather_": "all-gather",
    "alltoall_base_": "all-to-all",
    "send": "send",
    "recv_": "receive",
    "wait_tensor": None,  # sends nothing
    "_wrap_tensor_autograd": None,
}


class Collective(NamedTuple):
    when: str  # forward, backward, gradients, optimizer or loss
    kind: str  # of collective, or send or receive
    dimension: str  # of the mesh
    ranks: int  # in this dimension
    dtype: str
    bytes: int  # the larger of one rank's input and output
    sent: int  # bytes that one rank of a ring sends


class Recorder(TorchDispatchMode):
    """Counts the collectives that this rank enters: FSDP's, DTensor's and your own."""

    def __init__(self, mesh: DeviceMesh, kinds: dict[str, str | None] = KINDS):
        super().__init__()
        self.kinds = kinds
        self.dimensions = {mesh.get_group(name).group_name: name for name in mesh.mesh_dim_names}
        self.sizes = {name: mesh[name].size() for name in mesh.mesh_dim_names}
        self.when = ""
        self.counts: Counter[Collective] = Counter()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if DTensor in types:
            return NotImplemented  # it turns into operations on plain tensors, which come here again
        result = function(*args, **(kwargs or {}))
        if "c10d" in function.namespace:
            kind = self.kinds[function._schema.name.split("::")[1]]
            if kind:
                self.note(kind, function, args, result)
        return result

    def note(self, kind, function, args, result):
        names = [argument.name for argument in function._schema.arguments]
        named = dict(zip(names, args, strict=False))
        if "group_name" in named:
            group = named["group_name"]
        else:
            group = dist.ProcessGroup.unbox(named["process_group"]).group_name
        dimension = self.dimensions[group]
        ranks = self.sizes[dimension]
        size = max(nbytes(tensors) for tensors in (*args, result))
        if kind in ("send", "receive"):
            sent = size if kind == "send" else 0
        else:
            times = 2 if kind == "all-reduce" else 1  # round the ring: once to add up, once to distribute
            sent = times * size * (ranks - 1) // ranks
        dtype = str(leaves(args)[0].dtype).removeprefix("torch.")
        self.counts[Collective(self.when, kind, dimension, ranks, dtype, size, sent)] += 1


def leaves(tensors: Any) -> list[torch.Tensor]:
    """All tensors in a nested structure; for a DTensor, this rank's shard."""
    found = [leaf for leaf in tree_leaves(tensors) if isinstance(leaf, torch.Tensor)]
    return [leaf._local_tensor if isinstance(leaf, DTensor) else leaf for leaf in found]


def nbytes(tensors: Any) -> int:
    return sum(leaf.nbytes for leaf in leaves(tensors))


def keep(storages, tensor):
    storage = leaves(tensor)[0].untyped_storage()  # views of one storage count once
    storages[storage._cdata] = storage
    return tensor


def measure(
    mesh: DeviceMesh,
    tensors: Any,
    model: dict[str, int] = MODEL,
    batch: int = 1,
    precision: str = "fp32",
    experts: int = 0,
    microbatches: int = 1,
) -> dict[str, Any]:
    """Build the model, shard it, take a step, and return what this rank sent and held.

    `tensors` is a context that makes tensors fake. Real processes pass a context that does nothing.
    """
    debug._clear_sharding_prop_cache()  # it still holds the groups of an earlier mesh of this shape
    if "pipeline" in mesh.mesh_dim_names:
        network, count = dry_run_mesh.build(mesh, model, experts)
        step, at_once = dry_run_mesh.step, dry_run_mesh.held_at_once(mesh, microbatches)
    else:
        network = build(mesh, model, precision)
        count = sum(weight.numel() for weight in network.parameters())
        step, at_once = take_step, 1
    recorder = Recorder(mesh)
    saved = {}
    with tensors, recorder:
        network.to_empty(device="cpu")
        optimizer = torch.optim.AdamW(network.parameters())
        with saved_tensors_hooks(partial(keep, saved), lambda tensor: tensor):
            step(network, recorder, mesh, model, batch)
        recorder.when = "optimizer"
        optimizer.step()
    parameters = list(network.parameters())
    for weight in parameters:  # autograd saves these too. FSDP has freed what it gathered
        saved.pop(leaves(weight)[0].untyped_storage()._cdata, None)
    gathers = [
        collective.bytes
        for collective in recorder.counts
        if collective.kind == "all-gather" and collective.dimension == "data"
    ]
    memory = {
        "parameters": nbytes(parameters),
        "gradients": nbytes([weight.grad for weight in parameters]),
        "optimizer": nbytes(list(optimizer.state.values())),
        "gathered group": max(gathers, default=0),  # by FSDP
        "activations": at_once * sum(storage.nbytes() for storage in saved.values()),
    }
    if "pipeline" in mesh.mesh_dim_names:
        del memory["gathered group"]
    rows = []
    for collective, times in recorder.counts.items():
        # All micro-batches are alike, so the step took only one.
        if collective.when in ("forward", "backward"):
            times *= microbatches
        rows.append(collective._asdict() | {"times": times})
    return {"rank": dist.get_rank(), "parameters": count, "collectives": rows, "memory": memory}


def take_step(network, recorder, mesh, model, batch):
    text = torch.zeros(batch, model["length"], dtype=torch.int64)
    with loss_parallel():  # as in lesson 13
        recorder.when = "forward"
        loss = cross_entropy(network(text).flatten(0, 1), text.flatten())
        recorder.when = "backward"
        loss.backward()


def build(mesh: DeviceMesh, model: dict[str, int], precision: str) -> torch.nn.Module:
    """Build the model on the device "meta" and shard it with lesson 13's code."""
    with torch.device("meta"):
        network = gpt.build_model(
            characters=model["vocabulary"],
            length=model["length"],
            hidden=model["hidden"],
            heads=model["heads"],
            layers=model["layers"],
        )
    # With two dimensions before "tensor", FSDP replicates over the first ("replicate") and shards over
    # the second. Lesson 13's code then gets both as its "data".
    dimensions = {"data": mesh[mesh.mesh_dim_names[:-1]], "tensor": mesh["tensor"]}
    gpt.shard(network, dimensions, mp_policy=POLICIES[precision])
    return network


def report(
    world_size: int,
    mesh: dict[str, int],
    stage: int = 0,
    model: dict[str, int] = MODEL,
    **options: Any,
) -> dict[str, Any]:
    """Return what `measure` finds on the first rank of a stage, on the fake backend.

    `mesh` has the size of each dimension. Neighbouring ranks differ in the last dimension. All blocks are
    alike, so two steps are enough, with one block in each stage and with two. `grow` computes the rest.
    """
    if math.prod(mesh.values()) != world_size:
        workload.refuse(f"a mesh of {mesh} has {math.prod(mesh.values())} ranks, not {world_size}")
    stages = mesh.get("pipeline", 1)
    rank = stage * (world_size // stages // mesh["data"]) if stage else 0
    dist.init_process_group("fake", rank=rank, world_size=world_size)
    made = dist.init_device_mesh("cpu", tuple(mesh.values()), mesh_dim_names=tuple(mesh))
    found = []
    try:
        for layers in (stages, 2 * stages):
            fake = FakeTensorMode(allow_non_fake_inputs=True)
            with mock.patch(CHUNKS, only_the_first_chunk):
                found.append(measure(made, fake, model=model | {"layers": layers}, **options))
    finally:
        dist.destroy_process_group()
    return {"mesh": mesh} | grow(*found, model["layers"] // stages)


def grow(one: dict[str, Any], two: dict[str, Any], blocks: int) -> dict[str, Any]:
    """Return what a step with this many blocks needs. Each further block adds what the second one added."""

    def more(small: int, large: int) -> int:
        return small + (blocks - 1) * (large - small)

    rows = [
        row | {"times": more(row["times"], other["times"])}
        for row, other in zip(one["collectives"], two["collectives"], strict=True)
    ]
    memory = {name: more(size, two["memory"][name]) for name, size in one["memory"].items()}
    count = more(one["parameters"], two["parameters"])
    return one | {"parameters": count, "collectives": rows, "memory": memory}


# FSDP splits each matrix into the chunks of all ranks, which takes minutes for 16,384 ranks. It uses only
# two of them: the first, which is the longest, and its own. For rank 0 the two are the same. This holds for
# torch 2.13 (FSDPParam._init_sharded_param). For another version of torch, check whether it still cuts all
# chunks. The tests compare what the dry run sends with real ranks.
CHUNKS = "torch.distributed.fsdp._fully_shard._fsdp_param._chunk_with_empty"


def only_the_first_chunk(tensor, num_chunks, dim):
    length = math.ceil(tensor.size(dim) / num_chunks)
    return [tensor.narrow(dim, 0, length)]


def show(found: dict[str, Any]) -> None:
    mesh = " x ".join(f"{name} {size:,}" for name, size in found["mesh"].items())
    rank = f"rank {found['rank']:,}"
    print(f"{found['parameters']:,} parameters on {mesh} ranks.\nA step of {rank}:\n")
    print("when      collective     over      ranks  dtype    times  bytes each     bytes sent")
    line = "{when:9} {kind:14} {dimension:9}{ranks:6,}  {dtype:8}{times:6,}{bytes:12,}{all:15,}"
    for row in found["collectives"]:
        print(line.format(all=row["times"] * row["sent"], **row))
    print("\nBytes each: the larger of one rank's input and output. Bytes sent: all times together.")
    print("In a ring of n, a rank sends (n-1)/n of each, and twice that in an all-reduce.")
    groups = " (the gathered group is FSDP's largest)" if "gathered group" in found["memory"] else ""
    print(f"\nBytes that {rank} holds{groups}:")
    for name, size in found["memory"].items():
        print(f"    {name:16}{size:18,}")


def read(words: list[str] | None) -> argparse.Namespace:
    """Parse the command line, or refuse it with one line that says what is wrong."""
    parser = workload.Parser(description=__doc__.splitlines()[0])
    option = partial(parser.add_argument, type=int)
    option("ranks", help="number of ranks in total")
    option("--pipeline-parallel", default=1, help="stages (%(default)s)")
    option("--context-parallel", default=1, help="ranks that share a text (%(default)s)")
    option("--expert-parallel", default=1, help="ranks that share the experts of a block (%(default)s)")
    option("--tensor-parallel", default=1, help="ranks that share a matrix (%(default)s)")
    option("--replicate", default=1, help="copies of what FSDP shards (%(default)s)")
    option("--batch", default=1, help="texts per micro-batch, for each rank of data and expert (%(default)s)")
    option("--microbatches", help="micro-batches per step (as many as stages)")
    option("--experts", default=0, help="experts per block, in place of a feed-forward layer (none)")
    option("--stage", default=0, help="the stage whose first rank is shown (%(default)s)")
    for name, size in MODEL.items():
        option(f"--{name}", default=size, help="of the model (%(default)s)")
    parser.add_argument("--precision", choices=POLICIES, default="fp32", help="of FSDP's gathers (fp32)")
    parser.add_argument("--json", action="store_true", help="print JSON for a program to read")
    given = parser.parse_args(words)
    if given.microbatches is None:
        given.microbatches = given.pipeline_parallel
    for name, size in vars(given).items():
        least = 0 if name in ("experts", "stage") else 1
        if type(size) is int and size < least:
            workload.refuse(f"{name} must be at least {least}, not {size}")
    check(given)
    return given


def mesh_of(given: argparse.Namespace) -> dict[str, int]:
    """Return the size of each dimension: "data" and "tensor" for lesson 13's sharding with FSDP. If the
    command line asks for another dimension, the mesh has all dimensions of lesson 17.
    """
    names = ["pipeline", "context", "expert", "tensor"]
    if is_lesson_13(given):
        names = ["tensor"]
    elif not given.experts:
        names.remove("expert")
    mesh = {name: getattr(given, f"{name}_parallel") for name in names}
    replicate = {"replicate": given.replicate} if given.replicate > 1 else {}
    copy = given.replicate * math.prod(mesh.values())
    refuse_remainder(f"{given.ranks} ranks do", given.ranks, copy)
    return replicate | {"data": given.ranks // copy} | mesh


def is_lesson_13(given: argparse.Namespace) -> bool:
    return given.pipeline_parallel == given.context_parallel == 1 and not given.experts


def check(given: argparse.Namespace) -> None:
    """Refuse sizes that the mesh cannot shard evenly."""
    mesh_of(given)
    stages = given.pipeline_parallel
    refuse_divisor("--tensor-parallel", given.tensor_parallel, given.heads, "heads")
    refuse_remainder(f"--hidden {given.hidden} does", given.hidden, given.heads)
    if given.stage >= stages:
        workload.refuse(f"--stage {given.stage} is not one of {stages}, the first of which is 0")
    if is_lesson_13(given):
        if given.microbatches > 1 or given.expert_parallel > 1:
            workload.refuse("--expert-parallel needs --experts, and --microbatches stages: leave it out")
        return
    if given.expert_parallel > 1 and not given.experts:
        workload.refuse("--expert-parallel needs --experts: leave it out")
    if given.replicate > 1 or given.precision != "fp32":
        workload.refuse("--replicate and --precision are FSDP's, for data and tensor alone: leave them out")
    refuse_divisor("--pipeline-parallel", stages, given.layers, "layers")
    if given.microbatches < stages:
        workload.refuse(f"{stages} stages need {stages} micro-batches or more, not {given.microbatches}")
    # Each rank of a ring has two chunks of a text.
    refuse_remainder(f"--length {given.length} does", given.length, 2 * given.context_parallel)
    if given.experts:
        refuse_divisor("--expert-parallel", given.expert_parallel, given.experts, "experts")
        # All experts get the same number of tokens.
        tokens = given.batch * given.length // given.context_parallel
        refuse_divisor("--experts", given.experts, tokens, "tokens of a rank")


def refuse_remainder(what: str, size: int, part: int) -> None:
    if size % part:
        fits = math.ceil(size / part) * part
        workload.refuse(f"{what} not divide by {part}: take {fits}, for instance")


def refuse_divisor(option: str, size: int, count: int, what: str) -> None:
    if count % size:
        fits = max(number for number in range(1, size) if count % number == 0)
        workload.refuse(f"{option} {size} does not divide {count} {what}: take {fits}, for instance")


def main(words: list[str] | None = None) -> None:
    given = read(words)
    found = report(
        given.ranks,
        mesh_of(given),
        given.stage,
        model={name: getattr(given, name) for name in MODEL},
        batch=given.batch,
        precision=given.precision,
        experts=given.experts,
        microbatches=given.microbatches,
    )
    if given.json:
        print(json.dumps(found))
    else:
        show(found)


if __name__ == "__main__":
    main()
    if "triton" not in sys.modules:  # triton would report frozen objects as leaked
        gc.freeze()  # otherwise Python scans all of torch's objects once more at exit, which takes 0.4 s
