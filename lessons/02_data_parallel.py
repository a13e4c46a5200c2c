"""Lesson 02: one process, all GPUs of the machine, with nn.DataParallel.

    python lessons/02_data_parallel.py

You will see lesson 01's losses again. In every step, one process with one thread per GPU does six things.
    scatter    GPU 0 splits the batch into one chunk per GPU
    replicate  GPU 0 copies the whole model to all other GPUs, in every step
    forward    each thread runs one copy, but Python's lock (the GIL) lets only one run Python code at a time
    gather     the outputs go back to GPU 0, which computes the loss
    backward   the gradients of all copies are added up on GPU 0, the copies discarded
    step       only GPU 0 updates its model
GPU 0 does the most work and needs the most memory, and DataParallel cannot use a second machine.
PyTorch's documentation recommends DDP, the next lesson, even on a single machine.
"""

import time

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, RandomSampler

import workload


def train(arguments):
    workload.set_seed(arguments.seed)
    device = workload.pick_device()
    train_set, test_set = workload.load_images(arguments, device)
    order = torch.Generator()
    sampler = RandomSampler(train_set, generator=order)
    size = arguments.batch_size
    train_loader = DataLoader(train_set, size, sampler=sampler, drop_last=True, collate_fn=workload.collate)
    indices = range(len(test_set))
    test_loader = DataLoader(test_set, 500, sampler=indices, collate_fn=workload.collate)

    model = workload.ConvNet(train_set.images.shape[1:], arguments.width).to(device)
    if workload.gpu_count() < 2:
        print(f"GPUs here: {workload.gpu_count()}. With fewer than two, DataParallel only calls the model.")
    model = nn.DataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=arguments.lr, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, arguments.epochs)

    for epoch in range(1, arguments.epochs + 1):
        start = time.perf_counter()
        order.manual_seed(arguments.seed + epoch)  # otherwise --seed would not change the image order
        loss_sum = torch.zeros((), device=device)
        for images, labels in workload.progress(train_loader, epoch):
            images, labels = images.to(device), labels.to(device)
            loss = cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            loss_sum += loss.detach()
        scheduler.step()
        mean_loss = loss_sum.item() / len(train_loader)
        seconds = time.perf_counter() - start

        correct = workload.count_correct(model, test_loader, device)
        speed = len(train_loader) * arguments.batch_size / seconds
        workload.report(arguments, epoch, mean_loss, correct.item() / len(test_set), speed)

    # Move the model to the CPU first: a machine without a GPU can load GPU tensors only with map_location.
    torch.save(model.module.cpu().state_dict(), arguments.out / f"{arguments.lesson}.pt")


if __name__ == "__main__":
    parser = workload.parser(__file__, __doc__)
    arguments = parser.parse_args()
    workload.check(arguments)
    train(arguments)
