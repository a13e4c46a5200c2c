"""Exercise 04a, bug 9 of 10. 3 points. Read first: notebook 04.

A user reports: "On one machine with two GPUs, everything is fine. On two such machines, each with its own
`torchrun`, the second machine fails at once: no such device. On machines with spare GPUs it runs, but the
second machine leaves its first two GPUs empty."

What is wanted: the processes on a machine use the machine's devices from the first one on, each process its
own device. The number of processes and the number of devices may differ from machine to machine. Nothing
else changes, for example which process trains with which images.

    04a.9 (3 points)  fix the bug (2 points), and set KIND to its kind (1 point): see KINDS.md
"""

import os

import torch
from torch import nn
from torch.nn.functional import cross_entropy

# cut 04a.9: the kind of the bug
KIND = "device"
# instead: KIND = ""
# end


def train(model, images, labels, batch_size, lr, devices):
    """Every process has all images. `devices` contains the devices of this machine.

    The grader has no GPUs and only simulates them: `device.put(x)` stands for `x.to(device)`. The
    environment is the one that torchrun sets. Train the model in place.
    """
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    # cut 04a.9: the number of this process among those of its machine
    device = devices[int(os.environ["LOCAL_RANK"])]
    # instead: device = devices[rank]
    # end
    model = nn.parallel.DistributedDataParallel(device.put(model))
    optimizer = torch.optim.SGD(model.parameters(), lr)
    share = len(images) // world_size
    mine = slice(rank * share, (rank + 1) * share)
    for batch, targets in zip(images[mine].split(batch_size), labels[mine].split(batch_size), strict=True):
        loss = cross_entropy(model(device.put(batch)), device.put(targets))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
