"""Lesson 10, grown from lesson 04: the model is split into stages, one per process.

    torchrun --standalone --nproc-per-node 2 lessons/10_pipeline.py

You will see lesson 01's losses again. A stage is a group of consecutive layers. Each
stage sends its output to the next process and receives the gradient of this output.
Each batch is split into micro-batches, so that all stages can work at the same time.
The option --schedule chooses one of four orders of the work.
    naive        one whole batch at a time: while one process works, all others wait
    gpipe        all micro-batches forward, then all backward
    1f1b         each backward as soon as possible: waits as in gpipe, but holds fewer micro-batches
    interleaved  two stages per process: shorter waits than in 1f1b, but more messages
With --timeline, out/10_pipeline.timeline.json records when each process worked in the last
step, and the last line says how long the processes waited.
"""

import os
import time
from collections import OrderedDict
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
)
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, DistributedSampler

import workload
from parts import timeline
from parts.stages import BEGINNINGS, check  # the other half of this lesson


def train(rank, world_size, device, arguments):
    workload.set_seed(arguments.seed)
    train_set, test_set = workload.load_images(arguments, device)
    # All processes load the same batch: otherwise the last stage would get the labels of different images.
    sampler = DistributedSampler(train_set, num_replicas=1, rank=0, seed=arguments.seed, drop_last=True)
    size = arguments.batch_size
    train_loader = DataLoader(train_set, size, sampler=sampler, drop_last=True, collate_fn=workload.collate)

    model = workload.ConvNet(train_set.images.shape[1:], arguments.width)  # equal seeds give equal weights
    stages = build_stages(model, rank, device, arguments)
    schedule = make_schedule(stages, arguments)
    parameters = [parameter for stage in stages for parameter in stage.submod.parameters()]
    optimizer = torch.optim.SGD(parameters, lr=arguments.lr, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, arguments.epochs)
    events = timeline.watch(stages, arguments) if arguments.timeline else []

    for epoch in range(1, arguments.epochs + 1):
        start = time.perf_counter()
        sampler.set_epoch(epoch)  # without set_epoch, every epoch uses the same order
        loss_sum = torch.zeros((), device=device)
        for images, labels in workload.progress(train_loader, epoch):
            images, labels = images.to(device), labels.to(device)
            losses = []  # only the last stage adds losses, one per micro-batch
            optimizer.zero_grad()
            # Only the first stage uses the images, and only the last stage uses the labels.
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

    own = {}
    for stage in stages:
        own |= stage.submod.cpu().state_dict()
    everyone = [None] * world_size if rank == 0 else None
    dist.gather_object(own, everyone)
    if rank == 0:
        weights = {}
        for part in everyone:
            weights |= part
        model.load_state_dict(weights)
        torch.save(model.cpu().state_dict(), arguments.out / f"{arguments.lesson}.pt")
    if arguments.timeline:
        timeline.write(events, arguments)


def build_stages(model, rank, device, arguments):
    """Build this process's stages, and move only their layers to its device."""
    layers = list(model.named_children())
    borders = [*BEGINNINGS[arguments.stages], len(layers)]
    stages = []
    for index in range(rank, arguments.stages, arguments.world_size):
        own = layers[borders[index] : borders[index + 1]]
        module = nn.Sequential(OrderedDict(own)).to(device)  # a plain list would restart layer names at 0
        stages.append(PipelineStage(module, index, arguments.stages, device))
    return stages


def make_schedule(stages, arguments):
    # Every schedule averages the gradients over the micro-batches.
    if arguments.schedule == "interleaved":
        return ScheduleInterleaved1F1B(stages, arguments.microbatches, cross_entropy)
    kind = Schedule1F1B if arguments.schedule == "1f1b" else ScheduleGPipe
    return kind(stages[0], arguments.microbatches, cross_entropy)


@torch.no_grad()
def count_correct(schedule, test_set, device, arguments):
    count = len(test_set)
    # All micro-batches must have the same size. Copies of the first images fill up the last micro-batch.
    missing = -count % arguments.microbatches
    rows = torch.arange(count + missing) % count
    images, labels = test_set.images[rows].to(device), test_set.labels[rows].to(device)
    output = schedule.eval(images, target=labels)
    if output is None:  # only the process of the last stage gets the output
        return torch.zeros((), dtype=torch.int64, device=device)
    return (output.argmax(dim=1) == labels)[:count].sum()


if __name__ == "__main__":
    parser = workload.parser(__file__, __doc__)
    kinds = ("naive", "gpipe", "1f1b", "interleaved")
    option = parser.add_argument
    option("--schedule", choices=kinds, default="1f1b", help="the order of the work (1f1b)")
    option("--microbatches", type=int, default=8, help="parts of a batch (8; naive: always 1)")
    option("--timeline", action="store_true", help="record who works when in the last step")
    option("--pretend-milliseconds", type=float, default=0, help=timeline.PRETEND)
    arguments = parser.parse_args()
    workload.require_torchrun(__file__, torch="2.13")  # before 2.13, a schedule accepts only one batch size
    workload.check(arguments, replicas=1)  # the batch is not divided among processes
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    check(arguments)
    # RANK counts the processes of all machines, LOCAL_RANK those of this machine.
    device = workload.pick_device(int(os.environ["LOCAL_RANK"]))
    backend = dist.get_default_backend_for_device(device)  # GPUs use NCCL, CPUs use gloo
    device_id = None if device.type == "cpu" else device  # given a device_id, NCCL starts immediately
    dist.init_process_group(backend, device_id=device_id, timeout=timedelta(minutes=2))
    train(rank, world_size, device, arguments)
    dist.destroy_process_group()
