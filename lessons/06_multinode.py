r"""Lesson 06: many machines.

    bash lessons/launch/two_terminals.sh

You will see lesson 01's losses again, from two torchrun agents that stand for two machines.
All resume from the newest snapshot that a machine has. On real machines, on each, with the
name of one as HOST:
    TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 torchrun --nnodes 1:2 --nproc-per-node 2 \
        --max-restarts 3 --rdzv-backend c10d --rdzv-endpoint HOST:29400 \
        --rdzv-id rungs lessons/06_multinode.py
"""

import os
import time
from datetime import timedelta
from itertools import islice

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, DistributedSampler

import workload
from parts.snapshot import Snapshots, seal, settle, survive_a_full_disk


@workload.let_the_first_speak
def train(rank, world_size, device, arguments):
    workload.set_seed(arguments.seed)
    train_set, test_set = workload.load_images(arguments, device)
    sampler = DistributedSampler(train_set, seed=arguments.seed, drop_last=True)
    size = arguments.batch_size // world_size
    train_loader = DataLoader(train_set, size, sampler=sampler, drop_last=True, collate_fn=workload.collate)
    indices = range(rank, len(test_set), world_size)  # a DistributedSampler would count some images twice
    test_loader = DataLoader(test_set, 500, sampler=indices, collate_fn=workload.collate)
    train_loader.generator = torch.Generator()  # or else starting it would use up a random number

    model = workload.ConvNet(train_set.images.shape[1:], arguments.width).to(device)
    model = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=arguments.lr, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, arguments.epochs)
    # DDP's first backward pass adds up in another order, and after a crash there is one more.
    settle(model, train_set.images[:1].to(device))
    parts = {"model": model.module, "optimizer": optimizer, "scheduler": scheduler}
    settings = workload.settings(arguments, model.module)
    snapshots = Snapshots(arguments, parts, settings)
    first, done, loss_sum = load_snapshot(snapshots, device)

    for epoch in range(first, arguments.epochs + 1):
        start = time.perf_counter()
        sampler.set_epoch(epoch)  # without it, every epoch has the order of the first
        batches = workload.progress(train_loader, epoch, quiet=rank > 0)
        batches = islice(batches, done, None)  # without those that are done already
        for step, (images, labels) in enumerate(batches, done + 1):
            images, labels = images.to(device), labels.to(device)
            loss = cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            loss_sum += loss.detach()
            stop = snapshots.agree_to_stop()
            is_due = arguments.snapshot_every and step % arguments.snapshot_every == 0
            if stop or is_due:
                save_snapshot(snapshots, epoch, step, loss_sum)
            if stop:
                snapshots.close()
                return True
        scheduler.step()
        dist.all_reduce(loss_sum)
        mean_loss = loss_sum.item() / len(train_loader) / world_size
        seconds = time.perf_counter() - start

        correct = count_correct(model.module, test_loader, device)  # DDP's forward may wait for others
        dist.all_reduce(correct)
        speed = (len(train_loader) - done) * arguments.batch_size / seconds
        if rank == 0:
            workload.report(arguments, epoch, mean_loss, correct.item() / len(test_set), speed)
        done = 0
        loss_sum = torch.zeros_like(loss_sum)
        save_snapshot(snapshots, epoch + 1, done, loss_sum)

    if rank == 0:  # they all hold the same weights, and would write them into each other's file
        torch.save(model.module.cpu().state_dict(), arguments.out / f"{arguments.lesson}.pt")
    snapshots.close()
    return False


def save_snapshot(snapshots, epoch, step, loss_sum):
    state = {name: part.state_dict() for name, part in snapshots.parts.items()}
    state |= {"epoch": epoch, "step": step}
    state |= snapshots.gather_rest(loss_sum)
    path = snapshots.path_of(epoch, step)
    temporary = path.with_suffix(f".{dist.get_rank()}-{os.getpid()}.temporary")
    if dist.get_node_local_rank() == 0:  # one on each machine: the next rank 0 may run on any of them
        with survive_a_full_disk(path, temporary), open(temporary, "wb") as file:
            file.write(seal(state))
            file.flush()
            os.fsync(file.fileno())
            temporary.replace(path)  # only now: at any moment there is a whole snapshot, or none
            snapshots.keep_two()


def load_snapshot(snapshots, device):
    state = snapshots.find_newest()
    position = (state["epoch"], state["step"]) if state else (0, 0)
    positions = snapshots.gather(position)
    furthest = positions.index(max(positions))  # the rank whose machine has the newest
    states = [state]
    dist.broadcast_object_list(states, src=furthest, group=snapshots.control)
    state = states[0]  # from different steps, machines would wait in vain
    if state is None:
        return 1, 0, torch.zeros((), device=device)
    for name, part in snapshots.parts.items():
        part.load_state_dict(state[name])
    loss_sum = snapshots.restore_process(state, device)
    return state["epoch"], state["step"], loss_sum


@torch.no_grad()
def count_correct(model, test_loader, device):
    correct = torch.zeros((), dtype=torch.int64, device=device)
    for images, labels in test_loader:
        correct += (model(images.to(device)).argmax(dim=1) == labels.to(device)).sum()
    return correct


if __name__ == "__main__":
    workload.end_with_parent()
    parser = workload.parser(__file__, __doc__)
    parser.add_argument("--snapshot-every", type=int, help="steps between snapshots (an epoch)")
    parser.add_argument("--time-limit", type=float, default=60, help="seconds to wait for a process (60)")
    arguments = parser.parse_args()
    workload.require_torchrun(__file__)
    rank, arguments.world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    workload.check(arguments)
    device = workload.pick_device(int(os.environ["LOCAL_RANK"]))  # rank counts over all machines
    dist.init_process_group(
        backend=dist.get_default_backend_for_device(device),
        device_id=None if device.type == "cpu" else device,
        timeout=timedelta(seconds=arguments.time_limit),  # by default 30 minutes (NCCL: 10)
    )
    stopped = train(rank, arguments.world_size, device, arguments)
    workload.release_group()  # a thread of it that is left may abort the process at exit
    dist.destroy_process_group()
    workload.leave(stopped)
