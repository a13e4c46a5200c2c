r"""Muon on weights that FSDP2 has sharded: gather each matrix, then orthogonalize it.

    torchrun --standalone --nproc-per-node 2 lessons/recipes/muon.py

The losses of 1, 2 and 4 processes agree. With --how shards, each process orthogonalizes
its own rows: this raises no error, but is a different optimizer. With --how torch,
torch.optim.Muon gets the sharded parameters. The last line counts Muon's collectives.
"""

import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import distribute_tensor
from torch.distributed.tensor.debug import CommDebugMode
from torch.nn.functional import cross_entropy

sys.path.append(str(Path(__file__).resolve().parent.parent))
import workload


def orthogonalize(matrix):
    """Return Muon's update direction, scaled by Muon's factor for the matrix's shape."""
    moved = nn.Parameter(torch.zeros_like(matrix))
    moved.grad = matrix
    torch.optim.Muon([moved], lr=1, momentum=0, nesterov=False, weight_decay=0).step()
    return -moved.detach()


class ShardedMuon(torch.optim.Optimizer):
    """Momentum and weights stay sharded. One matrix at a time is gathered and then freed."""

    def __init__(self, matrices, lr, momentum=0.95, weight_decay=0.1, gather=True):
        super().__init__(matrices, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})
        self.gather = gather

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for weight in group["params"]:
                state = self.state[weight]
                if not state:
                    state["momentum"] = torch.zeros_like(weight)
                average = state["momentum"].lerp_(weight.grad, 1 - group["momentum"])
                update = weight.grad.lerp(average, group["momentum"])  # Nesterov
                weight.mul_(1 - group["lr"] * group["weight_decay"])
                if self.gather:
                    direction = orthogonalize(update.full_tensor())
                    # All processes have computed the same matrix, and each keeps its rows.
                    layout = {"device_mesh": weight.device_mesh, "placements": weight.placements}
                    direction = distribute_tensor(direction, **layout, src_data_rank=None)
                    weight.add_(direction, alpha=-group["lr"])
                else:
                    weight.to_local().add_(orthogonalize(update.to_local()), alpha=-group["lr"])


def train(rank, world_size, device, arguments):
    workload.set_seed(arguments.seed)
    train_set, test_set = workload.load_images(arguments, device)
    width = 4 * arguments.width
    model = nn.Sequential(
        workload.model.Normalize(),
        nn.Flatten(),
        nn.Linear(train_set.images[0].numel(), width),
        nn.GELU(),
        nn.Linear(width, 2 * width, bias=False),
        nn.GELU(),
        nn.Linear(2 * width, width, bias=False),
        nn.GELU(),
        nn.Linear(width, 10),
    ).to(device)
    fully_shard(model, mesh=dist.init_device_mesh(device.type, (world_size,)))
    # Muon is for hidden matrices. AdamW updates the first and the last layer, and all vectors.
    matrices = [model[4].weight, model[6].weight]
    others = [*model[2].parameters(), *model[8].parameters()]
    if arguments.how == "torch":
        muon = torch.optim.Muon(matrices, lr=arguments.lr)
    else:
        muon = ShardedMuon(matrices, arguments.lr, gather=arguments.how == "gather")
    optimizers = [muon, torch.optim.AdamW(others, lr=0.003)]

    steps = len(train_set) // arguments.batch_size
    for epoch in range(1, arguments.epochs + 1):
        start = time.perf_counter()
        order = torch.randperm(len(train_set), generator=torch.Generator().manual_seed(epoch)).to(device)
        loss_sum = torch.zeros((), device=device)
        for batch in order.split(arguments.batch_size)[:steps]:
            images, labels = train_set[batch[rank::world_size]]
            loss = cross_entropy(model(images), labels)
            for optimizer in optimizers:
                optimizer.zero_grad()
            loss.backward()
            for optimizer in optimizers:
                optimizer.step()
            loss_sum += loss.detach()
        dist.all_reduce(loss_sum)
        speed = steps * arguments.batch_size / (time.perf_counter() - start)
        with torch.no_grad():  # forward gathers weights, so all processes must run it
            right = (model(test_set.images).argmax(dim=1) == test_set.labels).float().mean().item()
        if rank == 0:
            workload.report(arguments, epoch, loss_sum.item() / steps / world_size, right, speed)
    with CommDebugMode() as counted:
        muon.step()
    if rank == 0:
        print(f"collectives in a step of Muon, for 2 matrices: {counted.get_total_counts()}", flush=True)


if __name__ == "__main__":
    parser = workload.parser(__file__, __doc__)
    parser.set_defaults(lr=0.02, epochs=4, train_size=6000)
    ways = ("gather", "shards", "torch")
    parser.add_argument("--how", choices=ways, default="gather", help="what Muon orthogonalizes (gather)")
    arguments = parser.parse_args()
    workload.require_torchrun(__file__)
    workload.check(arguments)
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    # RANK counts the processes of all machines, LOCAL_RANK those of this machine.
    device = workload.pick_device(int(os.environ["LOCAL_RANK"]))
    backend = dist.get_default_backend_for_device(device)  # GPUs use NCCL, CPUs use gloo
    device_id = None if device.type == "cpu" else device  # given a device_id, NCCL starts immediately
    dist.init_process_group(backend, device_id=device_id)
    train(rank, world_size, device, arguments)
    dist.destroy_process_group()
