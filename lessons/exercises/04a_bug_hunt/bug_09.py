"""Exercise 04a, bug 9 of 10. 3 points. Read first: notebook 04.

A user reports: "On one machine with two GPUs, everything is fine. When I start `torchrun` on two such
machines, the processes on the second machine fail at once: no such device. On machines with enough spare
GPUs, the job runs, but the first two GPUs of the second machine stay empty."

What is wanted: the first process on a machine uses the machine's first device, the second process uses the
second device, and so on. The number of processes and the number of devices may differ from machine to
machine. Do not change anything else, such as which process trains with which images.

    04a.9 (3 points)  fix the bug (2 points), and set KIND to its kind (1 point): see KINDS.md
"""

import os

import torch
from torch import nn
from torch.nn.functional import cross_entropy

KIND = ""


def train(model, images, labels, batch_size, lr, devices):
    """Every process has all images. `devices` contains the devices of this machine.

    The grader has no GPUs and only simulates them: `device.put(x)` stands for `x.to(device)`. The environment
    variables have the values that torchrun would set. Train the model in place.
    """
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    device = devices[rank]
    model = nn.parallel.DistributedDataParallel(device.put(model))
    optimizer = torch.optim.SGD(model.parameters(), lr)
    share = len(images) // world_size
    mine = slice(rank * share, (rank + 1) * share)
    for batch, targets in zip(images[mine].split(batch_size), labels[mine].split(batch_size), strict=True):
        loss = cross_entropy(model(device.put(batch)), device.put(targets))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
