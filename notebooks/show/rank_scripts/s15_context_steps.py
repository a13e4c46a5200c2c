"""Three steps of lesson 15's model, and texts for it."""

import importlib

import torch
import torch.distributed as dist
from group import world_size
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.functional import cross_entropy

import workload

lesson = importlib.import_module("15_context_parallel")
mesh = init_device_mesh("cpu", (1, world_size), mesh_dim_names=("data", "context"))
numbers = torch.randint(61, (4, 97), generator=torch.Generator().manual_seed(0))
texts, following = numbers[:, :-1], numbers[:, 1:]


def three_losses(texts, following, positions, order="zigzag", attend=None):
    """The losses of three steps, averaged over all processes. Without an order, nothing is sharded."""
    workload.set_seed(0)
    model = lesson.build_model(61, 96)
    if order:
        lesson.shard(model, mesh, mesh["context"].get_group(), order)
    if attend:
        for block in model.blocks:
            block.attention.attend = attend
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    losses = []
    for _ in range(3):
        loss = cross_entropy(model(texts, positions).flatten(0, 1), following.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        mean = loss.detach() / world_size
        dist.all_reduce(mean)
        losses.append(mean.item())
    return losses
