"""The other half of lesson 17: the sizes of its mesh, and the layers that a stage keeps."""

import math

import torch.distributed as dist
from torch import nn

import workload

# Consecutive ranks differ in the last dimension and are usually on one machine. If NAMES
# had a different order, the messages that processes wait for most would cross machines.
NAMES = ("data", "pipeline", "context", "tensor")


def options(parser):
    option = parser.add_argument
    option("--length", type=int, default=96, help="characters of a text (96)")
    option("--microbatches", type=int, default=2, help="micro-batches per process and step (2)")
    option("--pipeline-parallel", type=int, help="stages (2 if that divides the remaining processes, else 1)")
    option("--context-parallel", type=int, help="processes that share a text (2 or 1)")
    option("--tensor-parallel", type=int, help="processes that share heads (2 or 1)")


def check(arguments, heads, layers):
    """Return the sizes of the mesh, and refuse sizes that do not fit."""
    sizes = sizes_of(arguments)
    stages, tensor_size = sizes["pipeline"], sizes["tensor"]
    if heads % tensor_size:
        workload.refuse(f"--tensor-parallel {tensor_size} does not divide {heads} heads: take 1")
    if layers % stages:
        workload.refuse(f"--pipeline-parallel {stages} does not divide {layers} blocks: take 1")
    parts = arguments.microbatches
    if parts < 1:
        workload.refuse(f"--microbatches must be at least 1, not {parts}")
    if parts < stages:
        workload.refuse(
            f"{stages} stages need at least {stages} micro-batches, not {parts}: take --microbatches {stages}"
        )
    split("--batch-size", arguments.batch_size, sizes["data"] * parts, "micro-batches of all")
    split("--test-size", arguments.test_size, parts, "micro-batches")
    split("--length", arguments.length, 2 * sizes["context"], "chunks, two for each process")
    return sizes


def split(option, value, count, what):
    if value < 1 or value % count:
        fits = max(1, math.ceil(value / count)) * count
        workload.refuse(f"{option} {value} does not divide into {count} {what}: take {fits}")


def sizes_of(arguments):
    """Return all sizes. A size that was not set is 2 if the number of remaining
    processes is even, else 1.
    """
    left = arguments.world_size
    sizes = {name: getattr(arguments, f"{name}_parallel") for name in NAMES[1:]}
    for name, size in sizes.items():
        if size is not None:
            if size < 1 or left % size:
                what = f"--{name}-parallel {size}"
                workload.refuse(f"{what} does not divide {left} processes: take 1")
            left //= size
    for name in ("tensor", "context", "pipeline"):
        if sizes[name] is None:
            sizes[name] = 1 if left % 2 else 2
            left //= sizes[name]
    return {"data": left} | sizes  # each replica of the model trains on different texts


def show(mesh):
    if dist.get_rank() == 0:
        sizes = zip(mesh.mesh_dim_names, mesh.shape, strict=True)
        said = ", ".join(f"{name} {size}" for name, size in sizes)
        print(f"mesh      | {said}", flush=True)


def keep_stage(model, mesh):
    """Drop the layers of other stages. The remaining layers keep their names."""
    stage, stages = mesh["pipeline"].get_local_rank(), mesh["pipeline"].size()
    layers = len(model.blocks)
    for number in range(layers):
        if number * stages // layers != stage:
            model.blocks[number] = nn.Identity()
    if stage > 0:
        model.embedding = model.position = nn.Identity()
        model.embed = lambda x, positions: x  # x is the output of the previous stage
    if stage < stages - 1:
        model.norm = model.head = nn.Identity()


def gather_stages(own, mesh):
    """Return the weights of all stages on the first stage, and none on the other stages."""
    stage, stages = mesh["pipeline"].get_local_rank(), mesh["pipeline"].size()
    everyone = [None] * stages if stage == 0 else None
    dist.gather_object(own, everyone, group=mesh.get_group("pipeline"), group_dst=0)
    weights = {}
    for part in everyone or []:
        weights |= part
    return weights
