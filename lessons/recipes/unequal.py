r"""GPUs of different speeds: faster GPUs get more images, and every image counts equally.

    torchrun --standalone --nproc-per-node 2 lessons/recipes/unequal.py --speeds 3 1

The losses equal one process's losses. With --split equal, all processes get the same
number of images, so all wait for the slow one. --mean-of-means is the mistake: each
process uses the mean loss of its own images, so images of a slow process count more.
The speeds are simulated.
"""

import os
import sys
import time
from itertools import accumulate
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy

sys.path.append(str(Path(__file__).resolve().parent.parent))
import workload


def shares(speeds, batch_size):
    """Return each process's number of images; the numbers add up to the batch."""
    ends = [round(batch_size * end / sum(speeds)) for end in accumulate(speeds)]
    return [end - start for start, end in zip([0, *ends], ends, strict=False)]


def train(rank, world_size, device, arguments):
    workload.set_seed(arguments.seed)
    train_set, test_set = workload.load_images(arguments, device)
    model = workload.ConvNet(train_set.images.shape[1:], arguments.width).to(device)
    model = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=arguments.lr, momentum=0.9)
    speeds = arguments.speeds if arguments.split == "speed" else [1] * world_size
    sizes = shares(speeds, arguments.batch_size)
    if rank == 0:
        print(f"images of each process in a step: {sizes}", flush=True)

    steps = len(train_set) // arguments.batch_size
    for epoch in range(1, arguments.epochs + 1):
        start = time.perf_counter()
        order = torch.randperm(len(train_set), generator=torch.Generator().manual_seed(epoch)).to(device)
        loss_sum = torch.zeros((), device=device)
        for batch in order.split(arguments.batch_size)[:steps]:
            images, labels = train_set[batch.split(sizes)[rank]]
            time.sleep(len(images) * 0.001 / arguments.speeds[rank])  # this simulates a GPU of this speed
            if arguments.mean_of_means:
                loss = cross_entropy(model(images), labels)
            else:
                # DDP divides summed gradients by world_size, so multiply the loss by it.
                loss = cross_entropy(model(images), labels, reduction="sum")
                loss = loss * world_size / arguments.batch_size
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            loss_sum += loss.detach()
        dist.all_reduce(loss_sum)
        speed = steps * arguments.batch_size / (time.perf_counter() - start)
        with torch.no_grad():
            right = (model.module(test_set.images).argmax(dim=1) == test_set.labels).float().mean().item()
        if rank == 0:
            workload.report(arguments, epoch, loss_sum.item() / steps / world_size, right, speed)


if __name__ == "__main__":
    parser = workload.parser(__file__, __doc__)
    parser.set_defaults(epochs=3, train_size=2400)
    option = parser.add_argument
    option("--speeds", type=float, nargs="+", help="relative speeds of the processes (all 1)")
    option("--split", choices=["speed", "equal"], default="speed", help="more images for fast GPUs, or equal")
    option("--mean-of-means", action="store_true", help="use the mean loss of each process")
    arguments = parser.parse_args()
    workload.require_torchrun(__file__)
    workload.check(arguments, replicas=1)
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    arguments.speeds = arguments.speeds or [1.0] * world_size
    if len(arguments.speeds) != world_size or min(arguments.speeds) <= 0:
        workload.refuse(f"--speeds needs {world_size} numbers above 0, one for each process")
    # RANK counts the processes of all machines, LOCAL_RANK those of this machine.
    device = workload.pick_device(int(os.environ["LOCAL_RANK"]))
    backend = dist.get_default_backend_for_device(device)  # GPUs use NCCL, CPUs use gloo
    dist.init_process_group(backend)
    train(rank, world_size, device, arguments)
    dist.destroy_process_group()
