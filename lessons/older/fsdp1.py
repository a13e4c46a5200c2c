"""Lesson 04 with the first FSDP, FullyShardedDataParallel of 2022.

    torchrun --standalone --nproc-per-node 2 lessons/older/fsdp1.py

You will see lesson 01's losses. Without a GPU, --offload ends in an error.
"""

import math
import os
import sys
import time
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.fsdp import (
    CPUOffload,
    FullStateDictConfig,
    FullyShardedDataParallel,
    MixedPrecision,
    StateDictType,
)
from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler
from torch.distributed.fsdp.wrap import size_based_auto_wrap_policy
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, DistributedSampler

sys.path.append(str(Path(__file__).resolve().parent.parent))
import workload

DTYPES = {"fp32": torch.float32, "fp16": torch.float16}


def train(rank, world_size, device, arguments):
    workload.set_seed(arguments.seed)
    train_set, test_set = workload.load_images(arguments, device)
    sampler = DistributedSampler(train_set, seed=arguments.seed, drop_last=True)
    size = arguments.batch_size // world_size
    train_loader = DataLoader(train_set, size, sampler=sampler, drop_last=True, collate_fn=workload.collate)
    # A DistributedSampler may repeat some test images.
    indices = range(rank, len(test_set), world_size)
    # Every process needs the same number of batches: forward waits for all processes.
    rounds = math.ceil(len(test_set) / world_size / 500)
    batches = [indices[number::rounds] for number in range(rounds)]
    test_loader = DataLoader(test_set, batch_sampler=batches, collate_fn=workload.collate)

    model = workload.ConvNet(train_set.images.shape[1:], arguments.width).to(device)
    dtype = DTYPES[arguments.precision]
    model = FullyShardedDataParallel(
        model,
        auto_wrap_policy=partial(size_based_auto_wrap_policy, min_num_params=100),
        cpu_offload=CPUOffload(offload_params=arguments.offload),
        mixed_precision=MixedPrecision(dtype, reduce_dtype=torch.float32, cast_forward_inputs=True),
        device_id=device,
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=arguments.lr, momentum=0.9)
    scaler = ShardedGradScaler(device.type, enabled=arguments.precision == "fp16")
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, arguments.epochs)

    for epoch in range(1, arguments.epochs + 1):
        start = time.perf_counter()
        sampler.set_epoch(epoch)  # without set_epoch, every epoch uses the same order
        loss_sum = torch.zeros((), device=device)
        for images, labels in workload.progress(train_loader, epoch):
            images, labels = images.to(device), labels.to(device)
            loss = cross_entropy(model(images), labels)
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            loss_sum += loss.detach()
        scheduler.step()
        dist.all_reduce(loss_sum)
        mean_loss = loss_sum.item() / len(train_loader) / world_size
        seconds = time.perf_counter() - start

        correct = workload.count_correct(model, test_loader, device)
        dist.all_reduce(correct)
        speed = len(train_loader) * arguments.batch_size / seconds
        if rank == 0:
            workload.report(arguments, epoch, mean_loss, correct.item() / len(test_set), speed)

    # On a CPU, offload_to_cpu would free the weights that it is about to return.
    whole = FullStateDictConfig(offload_to_cpu=device.type != "cpu", rank0_only=True)
    with FullyShardedDataParallel.state_dict_type(model, StateDictType.FULL_STATE_DICT, whole):
        weights = model.state_dict()  # gathering is a collective: outside the `if`
    if rank == 0:
        torch.save(weights, arguments.out / f"{arguments.lesson}.pt")


if __name__ == "__main__":
    parser = workload.parser(__file__, __doc__)
    parser.add_argument("--precision", choices=DTYPES, default="fp32", help="data type to compute in (fp32)")
    parser.add_argument("--offload", action="store_true", help="keep all shards in the CPU's memory")
    arguments = parser.parse_args()
    workload.require_torchrun(__file__)
    workload.check(arguments)
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    # RANK counts the processes of all machines, LOCAL_RANK those of this machine.
    device = workload.pick_device(int(os.environ["LOCAL_RANK"]))
    backend = dist.get_default_backend_for_device(device)  # GPUs use NCCL, CPUs use gloo
    dist.init_process_group(backend)
    train(rank, world_size, device, arguments)
    dist.destroy_process_group()
