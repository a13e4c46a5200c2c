"""Exercise 04a, bug 2 of 10. 3 points. Read first: notebook 03.

A user reports: "With 4 GPUs the accuracy is a little worse than with one. I counted: in one epoch over my
60000 images, all processes together see only 41000 different ones. In the next epoch they are others."

What is wanted: in each epoch, all images in a new random order that is dealt to the processes; with another
`seed`, another order. Each process has equally many, and no image is seen twice. (Fewer images than there
are processes may be left over.)

    04a.2 (3 points)  mend it (2), and put its kind into KIND (1): KINDS.md lists them
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy

# cut 04a.2: the kind of the bug
KIND = "seed"
# instead: KIND = ""
# end


def train(model, images, labels, epochs, batch_size, lr, seed):
    """Every process has all images. The model is trained in place."""
    share = len(images) // dist.get_world_size()
    start = dist.get_rank() * share
    model = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr)
    for epoch in range(epochs):
        # cut 04a.2: one order for all processes
        generator = torch.Generator().manual_seed(seed + epoch)
        # instead: generator = torch.Generator().manual_seed(seed + epoch + 1000 * dist.get_rank())
        # end
        order = torch.randperm(len(images), generator=generator)
        mine = order[start : start + share]
        for batch in mine.split(batch_size):
            loss = cross_entropy(model(images[batch]), labels[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
