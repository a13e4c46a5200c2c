"""Lesson 13's model on as many ranks as you like, in one process that computes nothing.

    python lessons/planner/dry_run.py 16384 --tensor-parallel 8

You will see every collective of a training step, and what one rank holds in memory. The
sharding is lesson 13's own code, on PyTorch's "fake" backend, whose collectives move nothing,
and on fake tensors, which have a shape and no content. What it cannot tell: seconds,
congestion, failures.
"""

import argparse
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
from torch.nn.functional import cross_entropy
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import workload

gpt = importlib.import_module("13_gpt")
MODEL = {"vocabulary": 50_304, "length": 2048, "hidden": 4096, "heads": 32, "layers": 32}
POLICIES = {
    "fp32": MixedPrecisionPolicy(),
    "bf16": MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32),
}
# PyTorch's operations that talk, first FSDP's name, then DTensor's. One that is not listed ends
# the dry run: it would be missing in what is shown.
KINDS = {
    "_allgather_base_": "all-gather",
    "all_gather_into_tensor": "all-gather",
    "_reduce_scatter_base_": "reduce-scatter",
    "reduce_scatter_tensor": "reduce-scatter",
    "allreduce_": "all-reduce",
    "all_reduce": "all-reduce",
    "wait_tensor": None,  # sends nothing
    "_wrap_tensor_autograd": None,
}


class Collective(NamedTuple):
    when: str  # forward, backward, optimizer or loss
    kind: str
    dimension: str  # of the mesh
    ranks: int  # in it
    dtype: str
    bytes: int  # of the input or the output of one rank, whichever is longer
    sent: int  # bytes, by one rank in a ring


class Recorder(TorchDispatchMode):
    """Counts the collectives that this rank enters, whoever asked for them."""

    def __init__(self, mesh: DeviceMesh, kinds: dict[str, str | None] = KINDS):
        super().__init__()
        self.kinds = kinds
        self.dimensions = {mesh.get_group(name).group_name: name for name in mesh.mesh_dim_names}
        self.sizes = {name: mesh[name].size() for name in mesh.mesh_dim_names}
        self.when = ""
        self.counts: Counter[Collective] = Counter()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if DTensor in types:
            return NotImplemented  # what a DTensor sends, it sends further down: there we look
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
        times = 2 if kind == "all-reduce" else 1  # round the ring: to add up, and to hand out
        sent = times * size * (ranks - 1) // ranks
        dtype = str(leaves(args)[0].dtype).removeprefix("torch.")
        self.counts[Collective(self.when, kind, dimension, ranks, dtype, size, sent)] += 1


def leaves(tensors: Any) -> list[torch.Tensor]:
    """All tensors in there; of a DTensor, this rank's part."""
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
) -> dict[str, Any]:
    """Build, shard, take a step, and say what this rank sent and held.

    `tensors` is a context that makes tensors fake, or one that does nothing: real processes can
    do this too.
    """
    debug._clear_sharding_prop_cache()  # it knows the groups of an earlier mesh of this shape
    network = build(mesh, model, precision)
    recorder = Recorder(mesh)
    saved = {}
    with tensors, recorder:
        network.to_empty(device="cpu")
        optimizer = torch.optim.AdamW(network.parameters())
        text = torch.zeros(batch, model["length"], dtype=torch.int64)
        recorder.when = "forward"
        with saved_tensors_hooks(partial(keep, saved), lambda tensor: tensor):
            scores = network(text).full_tensor()  # from here on, as in lesson 13
            loss = cross_entropy(scores.flatten(0, 1), text.flatten())
        recorder.when = "backward"
        loss.backward()
        recorder.when = "optimizer"
        optimizer.step()
        recorder.when = "loss"
        for name in mesh.mesh_dim_names[:-1]:  # all but "tensor"
            dist.all_reduce(loss.detach(), group=mesh.get_group(name))
    parameters = list(network.parameters())
    gathers = [
        collective.bytes
        for collective in recorder.counts
        if collective.kind == "all-gather" and collective.dimension == "data"
    ]
    memory = {
        "parameters": nbytes(parameters),
        "gradients": nbytes([weight.grad for weight in parameters]),
        "optimizer": nbytes(list(optimizer.state.values())),
        "gathered group": max(gathers, default=0),
        # Parameters were saved too, gathered ones. FSDP has emptied their storages by now.
        "activations": sum(storage.nbytes() for storage in saved.values()),
    }
    rows = [collective._asdict() | {"times": times} for collective, times in recorder.counts.items()]
    count = sum(weight.numel() for weight in parameters)
    return {"parameters": count, "collectives": rows, "memory": memory}


def build(mesh: DeviceMesh, model: dict[str, int], precision: str) -> torch.nn.Module:
    """The model on the device "meta", sharded by lesson 13."""
    with torch.device("meta"):
        network = gpt.build_model(
            characters=model["vocabulary"],
            length=model["length"],
            hidden=model["hidden"],
            heads=model["heads"],
            layers=model["layers"],
        )
    # If there are two dimensions before "tensor", FSDP copies over the first, "replicate", and
    # shards over the second: lesson 13 then gets both for its "data".
    dimensions = {"data": mesh[mesh.mesh_dim_names[:-1]], "tensor": mesh["tensor"]}
    gpt.shard(network, dimensions, mp_policy=POLICIES[precision])
    return network


def report(world_size: int, mesh: dict[str, int], **options: Any) -> dict[str, Any]:
    """What `measure` finds on rank 0 of a world that is not there.

    `mesh` has the size of each dimension. Those of the last are neighbours.
    """
    if math.prod(mesh.values()) != world_size:
        workload.refuse(f"a mesh of {mesh} has {math.prod(mesh.values())} ranks, not {world_size}")
    dist.init_process_group("fake", rank=0, world_size=world_size)
    made = dist.init_device_mesh("cpu", tuple(mesh.values()), mesh_dim_names=tuple(mesh))
    try:
        with mock.patch(CHUNKS, only_the_first_chunk):
            found = measure(made, FakeTensorMode(allow_non_fake_inputs=True), **options)
    finally:
        dist.destroy_process_group()
    return {"mesh": mesh} | found


# FSDP splits each matrix into the chunks of all ranks, and takes its own: for 16,384 of them, this
# lasts for minutes. It looks at two of them, the first (which is the longest) and its own, which
# are the same for rank 0. So it is in torch 2.13 (FSDPParam._init_sharded_param). With another
# torch, see whether it still cuts all of them; the tests compare what it sends with real ranks.
CHUNKS = "torch.distributed.fsdp._fully_shard._fsdp_param._chunk_with_empty"


def only_the_first_chunk(tensor, num_chunks, dim):
    length = math.ceil(tensor.size(dim) / num_chunks)
    return [tensor.narrow(dim, 0, length)]


def show(found: dict[str, Any]) -> None:
    mesh = " x ".join(f"{name} {size:,}" for name, size in found["mesh"].items())
    print(f"{found['parameters']:,} parameters on {mesh} ranks. A step of rank 0:\n")
    print("when      collective      over        ranks  dtype     times     bytes each    bytes sent in all")
    line = "{when:9} {kind:15} {dimension:10}{ranks:7,}  {dtype:9}{times:6,}{bytes:15,}{all:21,}"
    for row in found["collectives"]:
        print(line.format(all=row["times"] * row["sent"], **row))
    print("\nEach: the input or the output of one rank, the longer one. Sent: by one rank in a ring of n,")
    print("(n-1)/n of each, for an all-reduce twice that.")
    print("\nBytes that rank 0 holds (of FSDP's groups, one):")
    for name, size in found["memory"].items():
        print(f"    {name:16}{size:18,}")


def read(words: list[str] | None) -> argparse.Namespace:
    """The command line, or one line that says what is wrong with it."""
    parser = workload.Parser(description=__doc__.splitlines()[0])
    option = partial(parser.add_argument, type=int)
    option("ranks", help="in all")
    option("--tensor-parallel", default=1, help="ranks that share a matrix (%(default)s)")
    option("--replicate", default=1, help="copies of all that is sharded (%(default)s)")
    option("--batch", default=1, help="texts for each rank of data (%(default)s)")
    for name, size in MODEL.items():
        option(f"--{name}", default=size, help="of the model (%(default)s)")
    parser.add_argument("--precision", choices=POLICIES, default="fp32", help="of gathers (fp32)")
    parser.add_argument("--json", action="store_true", help="the same for a program")
    given = parser.parse_args(words)
    for name, size in vars(given).items():
        if type(size) is int and size < 1:
            workload.refuse(f"{name} must be at least 1, not {size}")
    refuse_remainder("ranks", given.ranks, given.tensor_parallel * given.replicate)
    refuse_remainder("heads", given.heads, given.tensor_parallel)
    refuse_remainder("hidden", given.hidden, given.heads)
    return given


def refuse_remainder(name, size, part):
    if size % part:
        workload.refuse(f"{size} {name} do not divide by {part}")


def main(words: list[str] | None = None) -> None:
    given = read(words)
    mesh = {"replicate": given.replicate} if given.replicate > 1 else {}
    mesh["data"] = given.ranks // (given.tensor_parallel * given.replicate)
    mesh["tensor"] = given.tensor_parallel
    model = {name: getattr(given, name) for name in MODEL}
    found = report(given.ranks, mesh, model=model, batch=given.batch, precision=given.precision)
    if given.json:
        print(json.dumps(found))
    else:
        show(found)


if __name__ == "__main__":
    main()
