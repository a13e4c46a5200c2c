"""Exercise 06: twelve faults that we found in widely read tutorials. 12 points, about 75 minutes.

Read notebooks 03 to 06 first.

This script was put together from pieces found on the web. Each function below has one or more faults. Most
faults raise no error: the script runs, but it trains something other than intended, or reports wrong numbers.
Fix the faults. One or two lines are enough to fix each fault. The docstrings say what each function should
do.

    06.1 (1 point)   each step uses the mean gradient over the batches of all processes
    06.2 (1 point)   the learning rate falls once per epoch
    06.3 (1 point)   the losses are means over all processes
    06.4 (1 point)   each epoch has a different order of the images
    06.5 (1 point)   `batch_size` is the number of images of all processes together
    06.6 (1 point)   no two processes train on the same image in an epoch
    06.7 (1 point)   one process writes the snapshot
    06.8 (1 point)   the weights in the snapshot have the names that they have in the plain model
    06.9 (1 point)   `load` restores everything that `save` wrote, or raises an error
    06.10 (1 point)  every test image counts once
    06.11 (1 point)  each process uses its own device
    06.12 (1 point)  one process downloads, and the other processes wait for it

The grader calls each function on several processes, which are already in a process group. The grader
generates new weights, images and files, and looks at the results: the weights, the losses and the files.
"""

import os

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler


def pick_device():
    """Return the index of the device that this process should use. Assume that torchrun started the
    process. Each machine runs as many processes as it has devices, and some machines may have more
    devices than others.
    """
    return int(os.environ["RANK"])


def prepare(path, download):
    """Return the bytes of the data, from the file at `path`. download(path) writes the file, which takes a
    while: call it in one process only. (All processes are on one machine. At first there is no file.)
    """
    if not os.path.exists(path):
        download(path)
    with open(path, "rb") as file:
        return file.read()


def make_loader(train_set, batch_size, seed):
    """Return the batches for this process, in a random order that depends on `seed`. Each step uses
    `batch_size` images in total, an equal share on each process: the number of processes always divides
    `batch_size`. Drop the images left over at the end of an epoch: in each epoch, different images are left
    over.
    """
    sampler = DistributedSampler(train_set, seed=seed + dist.get_rank(), drop_last=True)
    return DataLoader(train_set, batch_size, sampler=sampler, drop_last=True)


def train(model, loader, epochs, lr):
    """Train the model in place. The learning rate is `lr` in the first epoch and falls along a cosine, once
    per epoch. Return the model as wrapped by DDP, and for each epoch the mean loss of the batches of all
    processes. Every process returns the same numbers. The first epoch is number 0.
    """
    model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs)
    losses = []
    for epoch in range(epochs):
        total = torch.zeros(())
        for images, labels in loader:
            loss = cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward(retain_graph=True)
            loss.backward()
            optimizer.step()
            scheduler.step()
            total += loss.detach()
        losses.append(total.item() / len(loader))
        if dist.get_rank() == 0:
            print(f"epoch {epoch}: the loss is {losses[-1]:.4f}")
    return model, losses


def save(model, epoch, path):
    """Save the weights and buffers of process 0 and the number of the epoch in a file that `load` can read.
    All processes call this at the same time, with the model that `train` returned.
    """
    state = model.state_dict()
    torch.save({"model_state": state, "last_epoch": epoch}, path)


def load(model, path):
    """Load what `save` wrote into a plain model, in one process. Return the epoch. Raise an error if a weight
    is missing from the file, or if the file contains a weight that the model does not have.
    """
    snapshot = torch.load(path)
    model.load_state_dict(snapshot.get("state_dict", {}), strict=False)
    return snapshot.get("epoch", 0)


@torch.no_grad()
def accuracy(model, test_set):
    """Return the share of all test images that the model classifies correctly: the same number on each
    process. Each process has the whole test set, and evaluates a part of it. Every image counts once,
    however many images there are.
    """
    sampler = DistributedSampler(test_set, shuffle=False)
    right_and_seen = torch.zeros(2, dtype=torch.int64)
    for images, labels in DataLoader(test_set, 8, sampler=sampler):
        right_and_seen[0] += (model(images).argmax(1) == labels).sum()
        right_and_seen[1] += len(labels)
    dist.all_reduce(right_and_seen)
    return right_and_seen[0].item() / right_and_seen[1].item()
