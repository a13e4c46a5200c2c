"""Lesson 10, grown from lesson 04: the model is cut into stages, and each process has one.

    torchrun --standalone --nproc-per-node 2 lessons/10_pipeline.py

You will see lesson 01's losses again. A stage is some of the layers; what comes out of it goes on to the
next process, and the gradient comes back. While one works, the others would wait: so a batch is cut into
micro-batches, and each stage works on another one. --schedule says on which, and when:
    naive        one micro-batch: at any time all processes but one wait
    gpipe        all micro-batches forward, then all backward
    1f1b         each backward as soon as possible: as much waiting, but fewer micro-batches are held
    interleaved  two stages for each process, from two places of the model: less waiting, more messages
With --timeline, out/10_pipeline.timeline.json tells who worked when, and the last line who waited how long.
"""

import math
import os
import time
from collections import OrderedDict
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe, ScheduleInterleaved1F1B
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, DistributedSampler

import workload
from parts import timeline

PIECES = [0, 2, 3, 4, 5, 6, 8, 9, 10]  # where ConvNet's ten layers may be cut: eight pieces


def train(rank, world_size, device, arguments):
    workload.set_seed(arguments.seed)
    train_set, test_set = workload.load_images(arguments)
    # All have the same images, as if alone: with shares, the last stage would hold the labels of others.
    sampler = DistributedSampler(train_set, 1, 0, seed=arguments.seed, drop_last=True)
    size = arguments.batch_size
    train_loader = DataLoader(train_set, size, sampler=sampler, drop_last=True, collate_fn=workload.collate)

    model = workload.ConvNet(train_set.images.shape[1:])  # from one seed, the same first weights everywhere
    stages = cut(model, rank, device, arguments)
    schedule = make_schedule(stages, arguments)
    parameters = [parameter for stage in stages for parameter in stage.submod.parameters()]
    optimizer = torch.optim.SGD(parameters, lr=arguments.lr, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, arguments.epochs)
    events = timeline.watch(stages, arguments) if arguments.timeline else []

    for epoch in range(1, arguments.epochs + 1):
        start = time.perf_counter()
        sampler.set_epoch(epoch)  # without it, every epoch has the order of the first
        loss_sum = torch.zeros((), device=device)
        for images, labels in workload.progress(train_loader, epoch, quiet=rank > 0):
            images, labels = images.to(device), labels.to(device)
            losses = []  # of the micro-batches; stays empty where the last stage is not
            optimizer.zero_grad()
            # Only the first stage looks at the images, and only the last at the labels.
            schedule.step(images, target=labels, losses=losses, return_outputs=False)
            optimizer.step()
            loss_sum += sum(loss.detach() for loss in losses) / arguments.microbatches
        scheduler.step()
        dist.all_reduce(loss_sum)
        mean_loss = loss_sum.item() / len(train_loader)
        seconds = time.perf_counter() - start

        correct = count_correct(schedule, test_set, device, arguments)
        dist.all_reduce(correct)
        speed = len(train_loader) * arguments.batch_size / seconds
        if rank == 0:
            workload.report(arguments, epoch, mean_loss, correct.item() / len(test_set), speed)

    mine = {name: value.cpu() for stage in stages for name, value in stage.submod.state_dict().items()}
    parts = [None] * world_size if rank == 0 else None
    dist.gather_object(mine, parts)
    if rank == 0:
        model.load_state_dict({name: value for part in parts for name, value in part.items()})
        torch.save(model.cpu().state_dict(), arguments.out / f"{arguments.lesson}.pt")
    if arguments.timeline:
        timeline.write(events, arguments)


def cut(model, rank, device, arguments):
    """This process's stages. Only they go to its device. The layers keep the names they have in the model."""
    layers, stages = list(model.named_children()), []
    for index in range(rank, arguments.stages, arguments.world_size):
        first, end = (PIECES[number * 8 // arguments.stages] for number in (index, index + 1))
        module = nn.Sequential(OrderedDict(layers[first:end])).to(device)
        stages.append(PipelineStage(module, index, arguments.stages, device))
    return stages


def make_schedule(stages, arguments):
    # All of them add up the gradients of the micro-batches, and divide by how many there were.
    if arguments.schedule == "interleaved":
        return ScheduleInterleaved1F1B(stages, arguments.microbatches, cross_entropy)
    kind = Schedule1F1B if arguments.schedule == "1f1b" else ScheduleGPipe
    return kind(stages[0], arguments.microbatches, cross_entropy)


@torch.no_grad()
def count_correct(schedule, test_set, device, arguments):
    count = len(test_set)
    # Stages receive micro-batches of one size only: the first images come again to fill it, and do not count.
    rows = torch.arange(count + -count % arguments.microbatches) % count
    images, labels = test_set.images[rows].to(device), test_set.labels[rows].to(device)
    output = schedule.eval(images, target=labels)
    if output is None:  # the last stage is in another process
        return torch.zeros((), dtype=torch.int64, device=device)
    return (output.argmax(dim=1) == labels)[:count].sum()


def check(arguments):
    schedule, count, processes = arguments.schedule, arguments.microbatches, arguments.world_size
    if processes > 4:
        workload.refuse(f"the model has 4 layers with weights: {processes} processes are too many")
    if count < 1:
        workload.refuse(f"--microbatches must be at least 1, not {count}")
    if arguments.batch_size % count:
        size, fits = arguments.batch_size, math.ceil(arguments.batch_size / count) * count
        workload.refuse(f"--batch-size {size} does not divide by {count} micro-batches: take {fits}")
    if schedule == "1f1b" and count < processes:
        workload.refuse(f"1f1b on {processes} processes needs {processes} micro-batches or more, not {count}")
    if schedule == "interleaved" and count > processes and count % processes:
        workload.refuse(f"interleaved has rounds of {processes}: --microbatches {count} must be a multiple")
    if not 0 <= arguments.pretend_milliseconds <= 60_000:
        workload.refuse("--pretend-milliseconds must be from 0 to 60000")
    if arguments.pretend_milliseconds and not arguments.timeline:
        workload.refuse("--pretend-milliseconds needs --timeline")


if __name__ == "__main__":
    parser = workload.parser(__file__, __doc__)
    kinds = ("naive", "gpipe", "1f1b", "interleaved")
    parser.add_argument("--schedule", choices=kinds, default="1f1b", help="who works on what, when (1f1b)")
    parser.add_argument("--microbatches", type=int, default=8, help="parts of a batch (8; naive: always 1)")
    parser.add_argument("--timeline", action="store_true", help="write down who worked when in the last step")
    parser.add_argument("--pretend-milliseconds", type=float, default=0, help=timeline.PRETEND)
    arguments = parser.parse_args()
    workload.require_torchrun(__file__)
    workload.check(arguments)  # for one process: nobody has to divide a batch by their number
    rank, arguments.world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    arguments.microbatches = 1 if arguments.schedule == "naive" else arguments.microbatches
    # On one process the two stages would be neighbours, and torch 2.13 fails to evaluate those.
    chunks = 2 if arguments.schedule == "interleaved" and arguments.world_size > 1 else 1
    arguments.stages = chunks * arguments.world_size
    check(arguments)
    device = workload.pick_device(rank)
    dist.init_process_group(
        backend=dist.get_default_backend_for_device(device),
        device_id=None if device.type == "cpu" else device,
        timeout=timedelta(minutes=2),  # by default a process waits 30 minutes (NCCL: 10) for one that hangs
    )
    train(rank, arguments.world_size, device, arguments)
    workload.release_group()  # a thread of it that is left may abort the process at exit
    dist.destroy_process_group()
