r"""Lesson 08, grown from lesson 05: a whole pipeline, as one would run it.

    TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 torchrun --standalone --nproc-per-node 2 \
        --max-restarts 3 lessons/08_real_training.py

You will see a narrow ResNet-18 learn 2,700 digits in four epochs, with batch norm over all
processes. With nn.BatchNorm2d, each would normalize by its own few images, and the model would
depend on the number of processes. To watch: tensorboard --logdir out. On GPUs: --data cifar10
--epochs 30 --batch-size 480 --workers 4. One process and several have one curve for the first
steps only, because ReLU has a kink; with --double, for longer.
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
from parts import recipe, resnet  # the parts that train() puts together
from parts.snapshot import Snapshots, seal, settle, survive_a_full_disk


@workload.let_the_first_speak
def train(rank, world_size, device, arguments):
    workload.set_seed(arguments.seed)
    train_set, test_set = workload.load_images(arguments)
    train_set, validation_set = workload.split(train_set, arguments.validation_size)
    sampler = recipe.Sampler(train_set, seed=arguments.seed, drop_last=True)
    size = arguments.batch_size // world_size
    options = recipe.loading(arguments, device)
    augmented = recipe.Augmented(train_set, arguments)
    train_loader = DataLoader(augmented, size, sampler=sampler, drop_last=True, **options)
    indices = range(rank, len(test_set), world_size)  # a DistributedSampler would count some images twice
    test_loader = DataLoader(test_set, 500, sampler=indices, collate_fn=workload.collate)
    indices = range(rank, len(validation_set), world_size)
    validation_loader = DataLoader(validation_set, 500, sampler=indices, collate_fn=workload.collate)
    train_loader.generator = torch.Generator()  # or else starting it would use up a random number

    norm = resnet.SyncBatchNorm if device.type == "cpu" else nn.SyncBatchNorm
    model = resnet.ResNet18(train_set.images.shape[1:], arguments.width, norm)
    dtype = torch.float64 if arguments.double else torch.float32
    model = model.to(device, dtype, memory_format=torch.channels_last)
    flops = resnet.count_flops(model, train_set.images[:1].to(device))
    if arguments.compile:
        model.compile()  # torch.compile(model) would put a prefix before each name in the files
    model = nn.parallel.DistributedDataParallel(model)
    lr = arguments.lr * arguments.batch_size / 60  # twice the batch: half the steps, twice as long
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9, weight_decay=5e-4, fused=True)
    rate = recipe.rate(arguments, len(train_loader))
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, rate)
    # DDP's first backward pass adds up in another order, and after a crash there is one more.
    settle(model, train_set.images[:1].to(device))
    if arguments.compile:
        recipe.finish_compiling(model, train_set.images[:size].to(device))
    best = recipe.Best()
    parts = {"model": model.module, "optimizer": optimizer, "scheduler": scheduler}
    parts["best"] = best
    settings = workload.settings(arguments, model.module) | recipe.settings(arguments)
    snapshots = Snapshots(arguments, parts, settings)
    first, done, loss_sum = load_snapshot(snapshots, device)
    board = recipe.Board(arguments, rank, first)
    if rank == 0:
        recipe.record(arguments, device)

    for epoch in range(first, arguments.epochs + 1):
        if epoch - best.epoch > arguments.patience:
            break  # all do, or none: alone, a process would wait for the others
        start = time.perf_counter()
        sampler.set_epoch(epoch)  # without it, every epoch has the order of the first
        batches = workload.progress(train_loader, epoch, quiet=rank > 0)
        batches = islice(batches, done, None)  # without those that are done already
        for step, (images, labels) in enumerate(batches, done + 1):
            images = images.to(device, non_blocking=True)
            labels = labels.to(device, non_blocking=True)
            loss = cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            scheduler.step()  # at each step, since the warm-up is short
            board.step()
            loss_sum += loss.detach()
            stop = snapshots.agree_to_stop()
            is_due = arguments.snapshot_every and step % arguments.snapshot_every == 0
            if stop or is_due:
                save_snapshot(snapshots, epoch, step, loss_sum)
            if stop:
                snapshots.close()
                return True
            middle = len(train_loader) // 2
            workload.crash_once(epoch == arguments.crash_at and step == middle)
        dist.all_reduce(loss_sum)
        mean_loss = loss_sum.item() / len(train_loader) / world_size
        seconds = time.perf_counter() - start

        correct = count_correct(model.module, validation_loader, device)  # DDP's forward may wait for others
        dist.all_reduce(correct)
        speed = (len(train_loader) - done) * arguments.batch_size / seconds
        accuracy = correct.item() / len(validation_set)
        if rank == 0:
            workload.report(arguments, epoch, mean_loss, accuracy, speed)
        values = {"loss": mean_loss, "accuracy": accuracy, "images_per_second": speed}
        values["lr"] = scheduler.get_last_lr()[0]
        values["mfu"] = resnet.share_of_peak(speed, flops, arguments, device)
        board.show(epoch, values)
        best.see(epoch, correct.item(), model.module)
        done = 0
        loss_sum = torch.zeros_like(loss_sum)
        save_snapshot(snapshots, epoch + 1, done, loss_sum)

    model.module.load_state_dict(best.weights)
    # Only now, and once: images that had a say in the choice would praise it.
    correct = count_correct(model.module, test_loader, device)
    dist.all_reduce(correct)
    if rank == 0:  # they all hold the same weights, and would write them into each other's file
        accuracy, on_test_images = best.correct / len(validation_set), correct.item() / len(test_set)
        print(f"best: epoch {best.epoch}, accuracy {accuracy:.1%}; on the test images {on_test_images:.1%}")
        recipe.record(arguments, device, best_epoch=best.epoch, test_accuracy=on_test_images)
        torch.save(model.module.cpu().state_dict(), arguments.out / f"{arguments.lesson}.pt")
    snapshots.close()
    return False


def save_snapshot(snapshots, epoch, step, loss_sum):
    state = {name: part.state_dict() for name, part in snapshots.parts.items()}
    state |= {"epoch": epoch, "step": step}
    state |= snapshots.gather_rest(loss_sum)
    path = snapshots.path_of(epoch, step)
    temporary = path.with_suffix(f".{os.getpid()}.temporary")
    if dist.get_rank() == 0:
        with survive_a_full_disk(path, temporary), open(temporary, "wb") as file:
            file.write(seal(state))
            file.flush()
            os.fsync(file.fileno())
            temporary.replace(path)  # only now: at any moment there is a whole snapshot, or none
            snapshots.keep_two()


def load_snapshot(snapshots, device):
    state = snapshots.find_newest()
    if state is None:
        return 1, 0, torch.zeros((), device=device)
    for name, part in snapshots.parts.items():
        part.load_state_dict(state[name])
    loss_sum = snapshots.restore_process(state, device)
    return state["epoch"], state["step"], loss_sum


@torch.no_grad()
def count_correct(model, test_loader, device):
    model.eval()  # or else an image's answer would depend on those beside it
    correct = torch.zeros((), dtype=torch.int64, device=device)
    for images, labels in test_loader:
        correct += (model(images.to(device)).argmax(dim=1) == labels.to(device)).sum()
    model.train()
    return correct


if __name__ == "__main__":
    workload.end_with_parent()
    parser = workload.parser(__file__, __doc__)
    parser.add_argument("--snapshot-every", type=int, help="steps between snapshots (an epoch)")
    parser.add_argument("--crash-at", type=int, help="epoch in which a process dies")
    parser.add_argument("--time-limit", type=float, default=60, help="seconds to wait for a process (60)")
    recipe.options(parser)
    arguments = parser.parse_args()
    workload.require_torchrun(__file__)
    rank, arguments.world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    recipe.check(arguments)
    device = workload.pick_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group(
        backend=dist.get_default_backend_for_device(device),
        device_id=None if device.type == "cpu" else device,
        timeout=timedelta(seconds=arguments.time_limit),  # by default 30 minutes (NCCL: 10)
    )
    stopped = train(rank, arguments.world_size, device, arguments)
    workload.release_group()  # a thread of it that is left may abort the process at exit
    dist.destroy_process_group()
    workload.leave(stopped)
