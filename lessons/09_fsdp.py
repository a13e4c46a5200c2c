"""Lesson 09, grown from lesson 04: each process holds a part of the model, not a copy (FSDP).

    torchrun --standalone --nproc-per-node 2 lessons/09_fsdp.py

You will see lesson 01's losses, and how many bytes each process holds. fully_shard gives each a part of
every weight, with its gradient and its momentum. A layer is put together just before it computes, and then
taken apart again. With DDP, a model that is too large for one GPU is too large for a hundred. Each epoch
leaves a checkpoint. End the run, start it on another number of processes, and it goes on from there.
"""

import math
import os
import time
from datetime import timedelta
from functools import partial

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard
from torch.nn.functional import cross_entropy
from torch.utils.checkpoint import checkpoint_sequential
from torch.utils.data import DataLoader, DistributedSampler

import workload


def train(rank, world_size, device, arguments):
    workload.set_seed(arguments.seed)
    train_set, test_set = workload.load_images(arguments)
    sampler = DistributedSampler(train_set, seed=arguments.seed, drop_last=True)
    size = arguments.batch_size // world_size
    train_loader = DataLoader(train_set, size, sampler=sampler, drop_last=True, collate_fn=workload.collate)
    share = range(rank, len(test_set), world_size)  # a DistributedSampler would count some images twice
    rounds = math.ceil(len(test_set) / world_size / 500)  # the same for all: a forward waits for the others
    batches = [share[number::rounds] for number in range(rounds)]
    test_loader = DataLoader(test_set, batch_sampler=batches, collate_fn=workload.collate)

    model = workload.ConvNet(train_set.images.shape[1:]).to(device)  # a large one: "meta", see dry_run.py
    settings = workload.settings(arguments, model) | {"precision": arguments.precision}
    shard(model, arguments, device)  # before the optimizer, which would step weights that are gone
    optimizer = torch.optim.SGD(model.parameters(), lr=arguments.lr, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, arguments.epochs)
    # A thread saves while another trains: in one group, the messages of the two would be mixed up.
    group, saving = dist.new_group(backend="gloo", timeout=timedelta(minutes=2)), None
    parts = {"model": model, "optimizer": optimizer, "scheduler": scheduler, "settings": settings}
    load_newest(arguments, parts, group)

    for epoch in range(scheduler.last_epoch + 1, arguments.epochs + 1):
        start = time.perf_counter()
        sampler.set_epoch(epoch)  # without it, every epoch has the order of the first
        loss_sum = torch.zeros((), device=device)
        for images, labels in workload.progress(train_loader, epoch, quiet=rank > 0):
            images, labels = images.to(device), labels.to(device)
            loss = cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            loss_sum += loss.detach()
        scheduler.step()
        dist.all_reduce(loss_sum)
        mean_loss = loss_sum.item() / len(train_loader) / world_size
        seconds = time.perf_counter() - start

        correct = count_correct(model, test_loader, device)
        dist.all_reduce(correct)
        speed = len(train_loader) * arguments.batch_size / seconds
        if rank == 0:
            workload.report(arguments, epoch, mean_loss, correct.item() / len(test_set), speed)
        if saving:
            saving.result()  # one at a time; and if it has failed, the error comes here
        folder = arguments.out / f"{arguments.lesson}.epoch{epoch:04}"
        saving = dcp.async_save(state_of(parts), checkpoint_id=folder, process_group=group)

    if saving:
        saving.result()  # or else the process group would end under it
        report_memory(rank, world_size, model, optimizer)
    whole = StateDictOptions(full_state_dict=True, cpu_offload=True)
    weights, _ = get_state_dict(model, (), options=whole)  # by rank 0 alone, it would wait for ever
    if rank == 0:
        torch.save(weights, arguments.out / f"{arguments.lesson}.pt")


def shard(model, arguments, device):
    if arguments.checkpoint_activations:  # of the first five layers, only what went in is kept for backward
        model.forward = partial(checkpoint_sequential, list(model), 2, use_reentrant=False)
    low = torch.bfloat16 if arguments.precision == "bf16" else torch.float32
    policy = {"mp_policy": MixedPrecisionPolicy(param_dtype=low, reduce_dtype=torch.float32)}
    if arguments.offload:
        policy["offload_policy"] = CPUOffloadPolicy(pin_memory=device.type != "cpu")
    mesh = dist.init_device_mesh(device.type, (dist.get_world_size(),))  # the default may be a Mac's GPU
    for layer in [part for part in model if list(part.parameters())]:
        fully_shard(layer, mesh=mesh, reshard_after_forward=not arguments.no_reshard, **policy)
    # Last the root, which sees where a step begins and ends. Alone, it would gather all layers at once.
    fully_shard(model, mesh=mesh, mp_policy=MixedPrecisionPolicy(output_dtype=torch.float32))


def report_memory(rank, world_size, model, optimizer):
    held = torch.zeros(3, dtype=torch.int64)
    for weight in model.parameters():
        parts = weight, weight.grad, optimizer.state[weight]["momentum_buffer"]
        held += torch.tensor([part.to_local().nbytes for part in parts])
    everyone = [None] * world_size
    dist.all_gather_object(everyone, held.tolist())
    for owner, held in enumerate(everyone if rank == 0 else ()):
        print("rank {} holds {:,} bytes of weights, {:,} of gradients, {:,} of momentum".format(owner, *held))


def state_of(parts):
    weights, momentum = get_state_dict(parts["model"], parts["optimizer"])
    return parts | {"model": weights, "optimizer": momentum}


def load_newest(arguments, parts, group):
    # DCP writes .metadata last, aside, and renames it: a folder without it is no checkpoint.
    newest = max(arguments.out.glob(f"{arguments.lesson}.epoch*/.metadata"), default=None)
    if newest is None:
        return
    model, optimizer, scheduler, settings = parts.values()
    theirs = dict(settings)
    dcp.load({"settings": theirs}, checkpoint_id=newest.parent, process_group=group)
    other = [f"{key} {theirs[key]}, not {own}" for key, own in settings.items() if theirs[key] != own]
    if other:
        workload.refuse(f"{newest.parent} has {'; '.join(other)}: remove it, or name another --out")
    state = state_of(parts)
    dcp.load(state, checkpoint_id=newest.parent, process_group=group)  # of each tensor, this process's part
    set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
    if dist.get_rank() == 0:
        print(f"resumed after epoch {scheduler.last_epoch}", flush=True)


@torch.no_grad()
def count_correct(model, test_loader, device):
    correct = torch.zeros((), dtype=torch.int64, device=device)
    for images, labels in test_loader:
        correct += (model(images.to(device)).argmax(dim=1) == labels.to(device)).sum()
    return correct


if __name__ == "__main__":
    parser = workload.parser(__file__, __doc__)
    parser.add_argument("--precision", choices=("fp32", "bf16"), default="fp32", help="to compute in (fp32)")
    parser.add_argument("--checkpoint-activations", action="store_true", help="compute the large ones twice")
    parser.add_argument("--offload", action="store_true", help="keep all parts in the CPU's memory")
    parser.add_argument("--no-reshard", action="store_true", help="keep layers whole until backward")
    arguments = parser.parse_args()
    workload.require_torchrun(__file__)
    rank, arguments.world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    workload.check(arguments)
    device = workload.pick_device(rank)
    dist.init_process_group(
        backend=dist.get_default_backend_for_device(device),
        device_id=None if device.type == "cpu" else device,
        timeout=timedelta(minutes=2),  # by default a process waits 30 minutes (NCCL: 10) for one that hangs
    )
    train(rank, arguments.world_size, device, arguments)
    workload.release_group()  # a thread of it that is left may abort the process at exit
    dist.destroy_process_group()
