"""Two ranks, fp16's scaler, and a gradient that is inf in the shard of rank 1 alone: who skips the step?"""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler

import workload  # noqa: F401 - at exit it ends the threads of the group

CASES = {
    "FSDP1 with GradScaler": (False, torch.amp.GradScaler),
    "FSDP1 with ShardedGradScaler": (False, ShardedGradScaler),
    "fully_shard with GradScaler": (True, torch.amp.GradScaler),
}


def skips(is_new, kind):
    model = nn.Linear(4, 4)
    if is_new:
        fully_shard(model, mesh=dist.init_device_mesh("cpu", (2,)))
    else:
        model = FullyShardedDataParallel(model, device_id=torch.device("cpu"))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    scaler = kind("cpu", init_scale=8.0)
    scaler.scale(model(torch.ones(2, 4)).sum()).backward()
    weight = next(model.parameters())
    shard, gradient = (tensor.to_local() if is_new else tensor for tensor in (weight, weight.grad))
    if dist.get_rank() == 1:
        gradient.view(-1)[0] = float("inf")
    before = shard.clone()
    scaler.step(optimizer)
    return torch.equal(before, shard)


dist.init_process_group("gloo")
for name, case in CASES.items():
    both = [None, None]
    dist.all_gather_object(both, skips(*case))
    if dist.get_rank() == 0:
        print(f"{name}: ranks that skip {[rank for rank in (0, 1) if both[rank]]}")
sys.stdout.flush()
dist.destroy_process_group()
