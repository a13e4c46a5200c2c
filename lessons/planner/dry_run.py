"""Lesson 12's model on as many ranks as you like, in one process that computes nothing.

    python lessons/planner/dry_run.py 16384 --tensor-parallel 8

You will see every collective of a training step, and what one rank holds in memory. The sharding is lesson
12's own code, on PyTorch's "fake" backend, whose collectives move nothing, and on fake tensors, which have
a shape and no content. What it cannot tell: seconds, congestion, failures.
"""

import importlib
import json
import math
import sys
from collections import Counter
from functools import partial
from pathlib import Path
from unittest import mock

import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd.graph import saved_tensors_hooks
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, debug
from torch.nn.functional import cross_entropy
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import workload

gpt = importlib.import_module("12_gpt")
MODEL = {"vocabulary": 50_304, "length": 2048, "hidden": 4096, "heads": 32, "layers": 32}
POLICIES = {"fp32": MixedPrecisionPolicy(), "bf16": MixedPrecisionPolicy(torch.bfloat16, torch.float32)}
KINDS = {"_allgather_base_": "all-gather", "all_gather_into_tensor": "all-gather"}
KINDS |= {"_reduce_scatter_base_": "reduce-scatter", "reduce_scatter_tensor": "reduce-scatter"}
KINDS |= {"allreduce_": "all-reduce", "all_reduce": "all-reduce"}  # FSDP's name for it, and DTensor's
KINDS |= {"wait_tensor": None, "_wrap_tensor_autograd": None}  # what is not listed at all ends the dry run
COLUMNS = ("when", "kind", "dimension", "ranks", "dtype", "bytes", "sent")


class Recorder(TorchDispatchMode):  # notes each collective that this rank enters, whoever asked for it
    def __init__(self, mesh):
        super().__init__()
        ways = mesh.mesh_dim_names
        self.names = {mesh.get_group(way).group_name: (way, mesh[way].size()) for way in ways}
        self.when, self.counts = "", Counter()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if DTensor in types:
            return NotImplemented  # what a DTensor sends, it sends further down, where we would not look
        result = function(*args, **(kwargs or {}))
        kind = "c10d" in function.namespace and KINDS[function._schema.name.split("::")[1]]
        if kind:
            named = {one.name: value for one, value in zip(function._schema.arguments, args, strict=False)}
            group = named.get("group_name") or dist.ProcessGroup.unbox(named["process_group"]).group_name
            way, ranks = self.names[group]
            whole = max(sum(leaf.nbytes for leaf in leaves(tensors)) for tensors in (*args, result))
            sent = (2 if kind == "all-reduce" else 1) * whole * (ranks - 1) // ranks  # in a ring
            self.counts[self.when, kind, way, ranks, str(leaves(args)[0].dtype)[6:], whole, sent] += 1
        return result


def leaves(tensors):
    found = [leaf for leaf in tree_leaves(tensors) if isinstance(leaf, torch.Tensor)]
    return [leaf._local_tensor if isinstance(leaf, DTensor) else leaf for leaf in found]  # this rank's part


def keep(storages, tensor):
    storage = leaves(tensor)[0].untyped_storage()  # views of one storage count once
    storages[storage._cdata] = storage
    return tensor


def measure(mesh, tensors, model=MODEL, batch=1, precision="fp32"):
    """Build, cut, take a step, and say what this rank sent and held. Real processes can do this too."""
    debug._clear_sharding_prop_cache()  # it knows the groups of an earlier mesh that was cut alike
    with torch.device("meta"):
        network = gpt.build_model(*model.values())
    ways = mesh.mesh_dim_names[:-1]  # if there are two, FSDP cuts over the second and copies over the first
    with mock.patch.object(gpt, "fully_shard", partial(fully_shard, mp_policy=POLICIES[precision])):
        gpt.shard(network, {"data": mesh[ways], "tensor": mesh["tensor"]})
    saved, recorder = {}, Recorder(mesh)
    with tensors, recorder:
        network.to_empty(device="cpu")
        optimizer = torch.optim.AdamW(network.parameters())
        text = torch.zeros(batch, model["length"], dtype=torch.int64)
        recorder.when = "forward"
        with saved_tensors_hooks(partial(keep, saved), lambda tensor: tensor):
            scores = network(text).full_tensor()  # from here on, as in lesson 12
            loss = cross_entropy(scores.flatten(0, 1), text.flatten())
        recorder.when = "backward"
        loss.backward()
        recorder.when = "optimizer"
        optimizer.step()
        recorder.when = "loss"
        for name in ways:
            dist.all_reduce(loss.detach(), group=mesh.get_group(name))
    held = {"parameters": [*network.parameters()], "gradients": [part.grad for part in network.parameters()]}
    held["optimizer"] = [*optimizer.state.values()]
    memory = {name: sum(leaf.nbytes for leaf in leaves(tensors)) for name, tensors in held.items()}
    gathers = [row[5] for row in recorder.counts if row[1:3] == ("all-gather", "data")]
    memory["gathered group"] = max(gathers, default=0)
    # Parameters were saved too, gathered ones. FSDP has emptied their storages by now.
    memory["activations"] = sum(storage.nbytes() for storage in saved.values())
    rows = [dict(zip(COLUMNS, row, strict=True), times=times) for row, times in recorder.counts.items()]
    return {"parameters": sum(map(torch.numel, held["parameters"])), "collectives": rows, "memory": memory}


def report(world_size, mesh, **options):
    """What `measure` finds on rank 0 of a world that is not there. `mesh` has the size of each dimension."""
    if math.prod(mesh.values()) != world_size:
        workload.refuse(f"a mesh of {mesh} has {math.prod(mesh.values())} ranks, not {world_size}")
    dist.init_process_group("fake", rank=0, world_size=world_size)
    made = dist.init_device_mesh("cpu", tuple(mesh.values()), mesh_dim_names=tuple(mesh))
    # FSDP cuts a list of 16,384 from each matrix, for minutes, and looks at rank 0's: the first, the longest.
    cut = "torch.distributed.fsdp._fully_shard._fsdp_param._chunk_with_empty"
    try:
        with mock.patch(cut, lambda matrix, n, dim: [matrix.narrow(dim, 0, math.ceil(matrix.size(dim) / n))]):
            return {"mesh": mesh} | measure(made, FakeTensorMode(allow_non_fake_inputs=True), **options)
    finally:
        dist.destroy_process_group()


def show(found):
    mesh = " x ".join(f"{name} {size:,}" for name, size in found["mesh"].items())
    print(f"{found['parameters']:,} parameters on {mesh} ranks. A step of rank 0:\n")
    print("when      collective      over        ranks  dtype     times     bytes each    bytes sent in all")
    line = "{when:9} {kind:15} {dimension:10}{ranks:7,}  {dtype:9}{times:6,}{bytes:15,}{:21,}"
    print(*(line.format(row["times"] * row["sent"], **row) for row in found["collectives"]), sep="\n")
    print("\nEach: the input or the output of one rank, the longer one. Sent: by one rank in a ring of n,")
    print(
        "(n-1)/n of each, for an all-reduce twice that.\n\nBytes that rank 0 holds (of FSDP's groups, one):"
    )
    print(*(f"    {name:16}{size:18,}" for name, size in found["memory"].items()), sep="\n")


def main(words=None):
    parser = workload.Parser(description=__doc__.splitlines()[0])
    parser.add_argument("ranks", type=int, help="in all")
    options = {"tensor-parallel": "ranks that share a matrix", "replicate": "copies of all that is cut"}
    options |= {"batch": "texts for each rank of data"} | dict.fromkeys(MODEL, "of the model")
    for name, text in options.items():
        parser.add_argument(f"--{name}", type=int, default=MODEL.get(name, 1), help=f"{text} (%(default)s)")
    parser.add_argument("--precision", choices=POLICIES, default="fp32", help="of what is gathered (fp32)")
    parser.add_argument("--json", action="store_true", help="the same for a program")
    given = parser.parse_args(words)
    for name, size in vars(given).items():
        if type(size) is int and size < 1:
            workload.refuse(f"{name} must be at least 1, not {size}")
    parts = {"ranks": given.tensor_parallel * given.replicate, "heads": given.tensor_parallel}
    for name, part in (parts | {"hidden": given.heads}).items():
        if vars(given)[name] % part:
            workload.refuse(f"{vars(given)[name]} {name} do not divide by {part}")
    mesh = {"replicate": given.replicate} if given.replicate > 1 else {}
    mesh |= {"data": given.ranks // parts["ranks"], "tensor": given.tensor_parallel}
    model = {name: vars(given)[name] for name in MODEL}
    found = report(given.ranks, mesh, model=model, batch=given.batch, precision=given.precision)
    print(json.dumps(found)) if given.json else show(found)


if __name__ == "__main__":
    main()
