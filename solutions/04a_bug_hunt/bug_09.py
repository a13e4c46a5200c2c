"""Exercise 04a, bug 9 of 10. 3 points. Read first: notebook 04.

A user reports: "On one machine with two GPUs all is well. On two such machines, each with its own
`torchrun`, the second one ends at once: there is no such device. On machines with GPUs to spare it runs,
but the second machine leaves its first two empty."

What is wanted: the processes of a machine take its devices from the first on, each its own. How many
processes and devices a machine has differs from machine to machine. Nothing else changes: who trains with
which images, for one.

    04a.9 (3 points)  mend it (2), and put its kind into KIND (1): KINDS.md lists them
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
    """Every process has all images. `devices`: what this machine has.

    The judge has no GPUs and pretends them: `device.put(x)` stands for `x.to(device)`. The environment is the
    one that torchrun makes. The model is trained in place.
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
