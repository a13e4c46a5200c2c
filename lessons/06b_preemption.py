r"""Lesson 06b: preempted runs and damaged snapshots.

    TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 torchrun --standalone --nproc-per-node 2 \
        --max-restarts 3 lessons/06b_preemption.py --snapshot-every 30 --crash-at 3

You will see lesson 06a's output again. Start another run and press Ctrl-C: all processes save after the same
step and exit with status 75. parts/snapshot.py also handles damaged files, full disks and concurrent runs.
"""

import os
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, DistributedSampler

import workload
from parts.snapshot import Snapshots


@workload.print_first_error
def train(rank, world_size, device, arguments):
    if not arguments.own_disks:
        workload.check_shared(arguments.out, rank, device)
    workload.set_seed(arguments.seed)
    train_set, test_set = workload.load_images(arguments, device)
    sampler = DistributedSampler(train_set, seed=arguments.seed, drop_last=True)
    size = arguments.batch_size // world_size
    train_loader = DataLoader(train_set, size, sampler=sampler, drop_last=True, collate_fn=workload.collate)
    # A DistributedSampler may repeat some test images.
    indices = range(rank, len(test_set), world_size)
    test_loader = DataLoader(test_set, 500, sampler=indices, collate_fn=workload.collate)

    model = workload.ConvNet(train_set.images.shape[1:], arguments.width).to(device)
    model = nn.parallel.DistributedDataParallel(model)
    workload.settle(model, train_set.images[:1].to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=arguments.lr, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, arguments.epochs)
    parts = {"model": model.module, "optimizer": optimizer, "scheduler": scheduler}
    settings = workload.settings(arguments, model.module)
    snapshots = Snapshots(
        arguments.out,
        arguments.lesson,
        settings,
        arguments.time_limit,
        workload.told_to_stop,
        shared=not arguments.own_disks,
    )
    first, done, loss_sum = 1, 0, torch.zeros((), dtype=torch.float64, device=device)
    every = min(arguments.snapshot_every or len(train_loader), len(train_loader))
    state = snapshots.find_newest()
    if state is not None:
        for name, part in parts.items():
            part.load_state_dict(state[name])
        first, done, processes = state["epoch"], state["step"], state["processes"]
        loss_sum += sum(process["loss_sum"] for process in processes) / len(processes)
        if rank == 0:
            print(f"resumed in epoch {first} after step {done}", flush=True)
            if (first, done) == (arguments.epochs, len(train_loader)):
                workload.say_nothing_left(arguments.out, arguments.lesson)

    for epoch in range(first, arguments.epochs + 1):
        start = time.perf_counter()
        sampler.set_epoch(epoch)  # without set_epoch, every epoch uses the same order
        # Ranks must draw different numbers.
        torch.manual_seed(arguments.seed * 10**7 + epoch * 10**4 + rank)
        for step, (images, labels) in enumerate(workload.progress(train_loader, epoch), 1):
            if step <= done:  # loading a skipped batch may change the random state
                workload.set_random_state(processes[rank % len(processes)]["random"], device)
                continue
            images, labels = images.to(device), labels.to(device)
            loss = cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            loss_sum += loss.detach()
            stop = snapshots.agree_to_stop()
            if stop or step % every == 0:
                mine = {"random": workload.random_state(device), "loss_sum": loss_sum.item()}
                processes = snapshots.gather(mine)
                state = {name: part.state_dict() for name, part in parts.items()}
                state |= {"epoch": epoch, "step": step, "processes": processes}
                snapshots.save(state)
            if stop:
                snapshots.close()
                return True
        workload.crash_once(epoch == arguments.crash_at)
        scheduler.step()
        dist.all_reduce(loss_sum)
        mean_loss = loss_sum.item() / len(train_loader) / world_size
        seconds = time.perf_counter() - start

        # DDP's forward may wait for other ranks, so evaluate the model inside.
        correct = workload.count_correct(model.module, test_loader, device)
        dist.all_reduce(correct)
        speed = (len(train_loader) - done) * arguments.batch_size / seconds
        if rank == 0:
            workload.report(arguments, epoch, mean_loss, correct.item() / len(test_set), speed)
        done, loss_sum = 0, torch.zeros_like(loss_sum)

    if rank == 0:  # all ranks hold the same weights, so only rank 0 saves them
        torch.save(model.module.cpu().state_dict(), arguments.out / f"{arguments.lesson}.pt")
    snapshots.close()
    return False


if __name__ == "__main__":
    workload.end_with_parent()
    parser = workload.parser(__file__, __doc__)
    parser.add_argument("--crash-at", type=int, help="epoch in which a process is killed")
    parser.add_argument("--snapshot-every", type=int, help="steps between snapshots (an epoch)")
    parser.add_argument("--own-disks", action="store_true", help="snapshots on each machine")
    parser.add_argument("--time-limit", type=float, default=60, help="seconds to wait for a process (60)")
    arguments = parser.parse_args()
    workload.require_torchrun(__file__)
    workload.check(arguments)
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    # RANK counts the processes of all machines, LOCAL_RANK those of this machine.
    device = workload.pick_device(int(os.environ["LOCAL_RANK"]))
    backend = dist.get_default_backend_for_device(device)  # GPUs use NCCL, CPUs use gloo
    timeout = timedelta(seconds=arguments.time_limit)  # PyTorch waits 30 minutes by default (NCCL: 10)
    dist.init_process_group(backend, timeout=timeout)
    stopped = train(rank, world_size, device, arguments)
    dist.destroy_process_group()
    workload.exit_with_status(stopped)
