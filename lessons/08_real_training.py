"""Lesson 08, grown from lesson 05: a whole pipeline, as one would run it.

    TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 torchrun --standalone --nproc-per-node 2 --max-restarts 3 \\
        lessons/08_real_training.py

You will see a narrow ResNet-18 learn 2,400 digits in four epochs, with batch norm over all processes. With
that of torch.nn alone, each would normalize by its own few images, and every number of processes would train
another model. On GPUs: --data cifar10 --epochs 30 --batch-size 480 --workers 4. To watch: tensorboard
--logdir out. The curve is one for the first steps only: ReLU has a kink. With --double, it is one for longer.
"""

import os
import time
from datetime import timedelta
from itertools import islice

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

import workload
from parts import (
    recipe,  # the other half of this lesson: the parts that train() puts together
    resnet,
    snapshot,
)


@workload.let_the_first_speak
def train(rank, world_size, device, arguments):
    workload.set_seed(arguments.seed)
    train_set, test_set = workload.load_images(arguments)
    sampler = recipe.Sampler(train_set, seed=arguments.seed, drop_last=True)
    size = arguments.batch_size // world_size
    options = recipe.loading(arguments, device)
    train_loader = DataLoader(
        recipe.Augmented(train_set, arguments), size, sampler=sampler, drop_last=True, **options
    )
    share = range(rank, len(test_set), world_size)  # a DistributedSampler would count some images twice
    test_loader = DataLoader(test_set, 500, sampler=share, collate_fn=workload.collate)
    train_loader.generator = torch.Generator()  # or else starting it would use up a random number

    norm = nn.SyncBatchNorm if device.type != "cpu" else resnet.SyncBatchNorm  # torch's refuses a CPU
    model = resnet.ResNet18(train_set.images.shape[1:], arguments.width, norm)
    dtype = torch.float64 if arguments.double else torch.float32
    model = model.to(device, dtype, memory_format=torch.channels_last)
    flops = resnet.count_flops(model, train_set.images[:1].to(device))
    if device.type != "cpu":
        model.compile()  # in place: torch.compile(model) would put a prefix before the name of each weight
    model = nn.parallel.DistributedDataParallel(model)
    lr = arguments.lr * arguments.batch_size / 60  # twice the batch: half the steps, each twice as long
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9, weight_decay=5e-4, fused=True)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, recipe.rate(arguments, len(train_loader)))
    snapshot.start(arguments, model, train_set.images[:1].to(device))
    snapshot.settings |= {name: getattr(arguments, name) for name in ("warm_up", "patience", "double")}
    best = recipe.Best()
    parts = {"model": model.module, "optimizer": optimizer, "scheduler": scheduler, "best": best}
    first, done, loss_sum = load_snapshot(arguments, parts, device)
    board = recipe.Board(arguments, rank, first)

    for epoch in range(first, arguments.epochs + 1):
        if epoch - best.epoch > arguments.patience:
            break  # all do, or none: a process that went on alone would wait for the others
        start = time.perf_counter()
        sampler.set_epoch(epoch)  # without it, every epoch has the order of the first
        batches = islice(workload.progress(train_loader, epoch, quiet=rank > 0), done, None)
        for step, (images, labels) in enumerate(batches, done + 1):
            images, labels = images.to(device, non_blocking=True), labels.to(device, non_blocking=True)
            loss = cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            scheduler.step()  # at each step, since the warm-up is short
            board.step()
            loss_sum += loss.detach()
            stop = snapshot.agree_to_stop()
            if stop or (arguments.snapshot_every and step % arguments.snapshot_every == 0):
                save_snapshot(arguments, parts, epoch, step, loss_sum)
            if stop:
                return
            workload.crash_once((epoch, step) == (arguments.crash_at, len(train_loader) // 2))
        dist.all_reduce(loss_sum)
        mean_loss = loss_sum.item() / len(train_loader) / world_size
        seconds = time.perf_counter() - start

        correct = count_correct(model.module, test_loader, device)  # DDP's forward may wait for others
        dist.all_reduce(correct)
        speed = (len(train_loader) - done) * arguments.batch_size / seconds
        accuracy, mfu = correct.item() / len(test_set), resnet.share_of_peak(speed, flops, arguments, device)
        if rank == 0:
            workload.report(arguments, epoch, mean_loss, accuracy, speed)
        lr = scheduler.get_last_lr()[0]
        board.show(epoch, loss=mean_loss, accuracy=accuracy, lr=lr, images_per_second=speed, mfu=mfu)
        # Before the snapshot: after a crash between the two, the epoch's end comes again, and with it this.
        best.see(arguments, epoch, correct.item(), model.module)
        done, loss_sum = 0, torch.zeros_like(loss_sum)
        save_snapshot(arguments, parts, epoch + 1, done, loss_sum)

    if rank == 0:  # they all hold the same weights, and would write them into each other's file
        print(f"best: epoch {best.epoch}, accuracy {best.correct / len(test_set):.1%}")
        torch.save(model.module.cpu().state_dict(), arguments.out / f"{arguments.lesson}.pt")


def save_snapshot(arguments, parts, epoch, step, loss_sum):
    state = {name: part.state_dict() for name, part in parts.items()}
    state |= {"epoch": epoch, "step": step} | snapshot.what_else(loss_sum)
    path = snapshot.path_of(arguments, epoch, step)
    aside = path.with_suffix(f".{os.getpid()}.aside")
    if dist.get_rank() == 0:
        with snapshot.survive_a_full_disk(path, aside), open(aside, "wb") as file:
            file.write(snapshot.seal(state))
            file.flush()
            os.fsync(file.fileno())
            aside.replace(path)  # only now: a crash at any moment leaves a whole snapshot, or none


def load_snapshot(arguments, parts, device):
    state = snapshot.find_newest(arguments)
    if state is None:
        return 1, 0, torch.zeros((), device=device)
    for name, part in parts.items():
        part.load_state_dict(state[name])
    return state["epoch"], state["step"], snapshot.restore(state, device)


@torch.no_grad()
def count_correct(model, test_loader, device):
    model.eval()  # batch norm by its running statistics: no image's answer depends on its neighbours
    correct = torch.zeros((), dtype=torch.int64, device=device)
    for images, labels in test_loader:
        correct += (model(images.to(device)).argmax(dim=1) == labels.to(device)).sum()
    model.train()
    return correct


if __name__ == "__main__":
    workload.end_with_parent()
    parser = workload.parser(__file__, __doc__)
    parser.add_argument("--snapshot-every", type=int, help="steps between snapshots (those of an epoch)")
    parser.add_argument("--crash-at", type=int, help="the epoch in which a process dies, once")
    parser.add_argument("--time-limit", type=float, default=60, help="seconds to wait for a process (60)")
    recipe.options(parser)
    arguments = parser.parse_args()
    workload.require_torchrun(__file__)
    rank, arguments.world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    recipe.check(arguments)
    device = workload.pick_device(rank)
    dist.init_process_group(
        backend=dist.get_default_backend_for_device(device),
        device_id=None if device.type == "cpu" else device,
        timeout=timedelta(seconds=arguments.time_limit),  # by default 30 minutes (NCCL: 10)
    )
    train(rank, arguments.world_size, device, arguments)
    workload.release_group()  # what still refers to it keeps its threads, and they may abort the exit
    dist.destroy_process_group()
    workload.leave(snapshot.status)
