r"""Lesson 08, grown from lesson 06b: a real training pipeline on several processes.

    TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 torchrun --standalone --nproc-per-node 2 \
        --max-restarts 3 lessons/08_real_training.py

You will see a ResNet-18 learn 2,700 digits. The processes share batch norm statistics,
augment images alike and agree on the best epoch. Run tensorboard --logdir out to see
the curves. On GPUs, use --data cifar10 --epochs 30 --batch-size 480 --workers 4.
"""

import os
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

import workload
from parts import loading, options, rate, resnet
from parts.best import Best
from parts.board import Board
from parts.snapshot import Snapshots


@workload.print_first_error
def train(rank, world_size, device, arguments):
    if not arguments.own_disks:
        workload.check_shared(arguments.out, rank, device)
    workload.set_seed(arguments.seed)
    train_set, test_set = workload.load_images(arguments)
    train_set, validation_set = workload.split(train_set, arguments.validation_size)
    sampler = loading.Sampler(train_set, seed=arguments.seed, drop_last=True)
    size = arguments.batch_size // world_size
    augmented = loading.Augmented(train_set, arguments.seed, arguments.data)
    train_loader = loading.make_loader(augmented, size, sampler, arguments.workers, device)
    # A DistributedSampler may repeat some test images.
    indices = range(rank, len(test_set), world_size)
    test_loader = DataLoader(test_set, 500, sampler=indices, collate_fn=workload.collate)
    indices = range(rank, len(validation_set), world_size)
    validation_loader = DataLoader(validation_set, 500, sampler=indices, collate_fn=workload.collate)

    norm = resnet.SyncBatchNorm if device.type == "cpu" else nn.SyncBatchNorm
    model = resnet.ResNet18(train_set.images.shape[1:], arguments.width, norm)
    layout = resnet.layout_for(arguments.width)
    model = model.to(device, arguments.dtype, memory_format=layout)
    model = nn.parallel.DistributedDataParallel(model)
    model.forward_sync_buffers = False  # synchronized batch norm keeps the buffers equal
    workload.settle(model, train_set.images[:1].to(device))
    if arguments.compile:
        resnet.compile_now(model, train_set.images[:size].to(device))
    lr = arguments.lr * arguments.batch_size / 60  # twice the batch means half the steps, so double the rate
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9, weight_decay=5e-4, fused=True)
    share = rate.warm_up_and_cosine(arguments.warm_up, arguments.epochs, len(train_loader))
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, share)
    best = Best()
    parts = {"model": model.module, "optimizer": optimizer, "scheduler": scheduler, "best": best}
    settings = workload.settings(arguments, model.module) | options.settings(arguments)
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
    board = Board(arguments, rank, first, model.module, optimizer, train_set.images[:1])

    for epoch in range(first, arguments.epochs + 1):
        if epoch - best.epoch > arguments.patience:
            break  # all processes break in the same epoch, so none waits forever
        start = time.perf_counter()
        sampler.set_epoch(epoch)  # without set_epoch, every epoch uses the same order
        # Ranks must draw different numbers.
        torch.manual_seed(arguments.seed * 10**7 + epoch * 10**4 + rank)
        for step, (images, labels) in enumerate(workload.progress(train_loader, epoch), 1):
            if step <= done:  # loading a skipped batch may change the random state
                workload.set_random_state(processes[rank % len(processes)]["random"], device)
                continue
            images, labels = images.to(device, non_blocking=True), labels.to(device, non_blocking=True)
            loss = cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            scheduler.step()  # the rate changes per step, since the warm-up is short
            board.step()
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
        dist.all_reduce(loss_sum)
        mean_loss = loss_sum.item() / len(train_loader) / world_size
        seconds = time.perf_counter() - start

        # DDP's forward may wait for other ranks, so evaluate the model inside.
        correct = workload.count_correct(model.module, validation_loader, device)
        dist.all_reduce(correct)
        speed = (len(train_loader) - done) * arguments.batch_size / seconds
        board.show(epoch, mean_loss, correct.item() / len(validation_set), speed)
        best.see(epoch, correct.item(), model.module)
        done, loss_sum = 0, torch.zeros_like(loss_sum)

    model.module.load_state_dict(best.weights)
    correct = workload.count_correct(model.module, test_loader, device)  # once, at the end
    dist.all_reduce(correct)
    board.finish(best.epoch, best.correct / len(validation_set), correct.item() / len(test_set))
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
    options.add(parser)
    arguments = parser.parse_args()
    workload.require_torchrun(__file__)
    options.check(arguments)
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    # RANK counts the processes of all machines, LOCAL_RANK those of this machine.
    device = workload.pick_device(int(os.environ["LOCAL_RANK"]))
    backend = dist.get_default_backend_for_device(device)  # GPUs use NCCL, CPUs use gloo
    timeout = timedelta(seconds=arguments.time_limit)  # PyTorch waits 30 minutes by default (NCCL: 10)
    dist.init_process_group(backend, timeout=timeout)
    stopped = train(rank, world_size, device, arguments)
    dist.destroy_process_group()
    workload.exit_with_status(stopped)
