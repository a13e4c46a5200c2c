"""What a rank holds at most when a model is replicated (ddp) and when it is sharded (fsdp), under torchrun.

A stack of linear layers that are wide for their batch, so that weights, gradients and the optimizer's
two moments are most of it. On the CPU there is no such count: there it is what the process held at most.
"""

import argparse
import os
import resource

import torch
import torch.distributed as dist
import turns
from torch import nn
from torch.distributed.fsdp import fully_shard

import workload


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=("ddp", "fsdp"))
    parser.add_argument("--width", type=int, default=4096)
    parser.add_argument("--layers", type=int, default=16)
    arguments = parser.parse_args()
    device = workload.pick_device(int(os.environ["LOCAL_RANK"]))
    turns.join(device)
    torch.manual_seed(0)
    with device:
        layers = [nn.Linear(arguments.width, arguments.width) for _ in range(arguments.layers)]
        batch = torch.randn(16, arguments.width)
    model = nn.Sequential(*layers)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    if arguments.kind == "ddp":
        # Else gradients would lie in memory twice: in DDP's buckets as well.
        model = nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)
    else:
        mesh = dist.init_device_mesh(device.type, (dist.get_world_size(),))
        for layer in model:
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()  # FSDP shards a model that was whole for a moment
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    for _ in range(3):
        loss = model(batch).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    if device.type == "cuda":
        most = torch.cuda.max_memory_allocated()
    else:
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    most = torch.tensor([float(most)], device=device)
    dist.all_reduce(most, dist.ReduceOp.MAX)
    turns.say({"bytes": most.item(), "of weights": 4 * parameters})
    del model, layers, optimizer, loss
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
