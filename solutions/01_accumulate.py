"""Exercise 01: a large batch made of several small ones. 10 points, about 60 minutes.

A batch of 120 images may not fit into your GPU's memory, but 50 images may. So you cut the batch into parts
of 50, 50 and 20 images. Each part goes through its own forward and backward pass, and then the optimizer
takes one step for all parts. This step must be the same as the step for the whole batch, whatever the sizes
of the parts.

`backward()` adds to the gradients that are already there, so the gradients of the parts add up by themselves.
But `cross_entropy` returns the mean over the images of one call, so the loss of a part of 20 images must
count less than the loss of a part of 50 images.

A forward pass keeps its activations in memory until its backward pass. If you run the forward passes of all
parts before the first backward pass, you save no memory. The checks count the parts whose activations are in
memory at the same time.

As in real training, the model may contain batch norm and dropout. The model is in training mode and must stay
in it. Batch norm normalizes each part by the part's own mean and variance, so the step differs from the step
for the whole batch. With batch norm, compute the loss of each image in the forward pass of its part, and use
the gradients of the mean of these losses over all images. Dropout must draw a new mask in each forward pass,
so do not set a random seed. Some parameters may be frozen, or not used by the model: they get no gradient,
and a step leaves them as they are. The optimizer may be any optimizer of `torch.optim` except LBFGS, whose
`step()` needs a function that computes the loss.

    01.1 (4 points)  add up the gradients of all parts
    01.2 (3 points)  one step of the optimizer for a large batch
    01.3 (3 points)  an epoch with several small batches per step, and perhaps fewer in the last step
"""

from itertools import islice

from torch.nn.functional import cross_entropy


def add_gradients(model, parts):
    """Add the gradients of the mean loss over the images of all parts to the existing gradients.

    `parts` is a list of pairs (images, labels), which may differ in size. Run the parts in order. For each
    part, run one forward pass with this part alone, and then the backward pass, before the forward pass of
    the next part begins. Return the mean loss over all images as a float.
    """
    # cut 01.1: add up the gradients of all parts
    size = sum(len(labels) for _, labels in parts)
    mean = 0.0
    for images, labels in parts:
        loss = cross_entropy(model(images), labels) * len(labels) / size
        loss.backward()
        mean += loss.item()
    return mean
    # end


def large_step(model, optimizer, images, labels, part_size):
    """Take one optimizer step for all images, with at most `part_size` images in the model at a time.

    Cut the images into parts in order. Every part has `part_size` images, except that the last part may have
    fewer. Ignore gradients from before the call. Return the mean loss over all images as a float.
    """
    # cut 01.2: one step of the optimizer for a large batch
    optimizer.zero_grad()
    mean = add_gradients(model, list(zip(images.split(part_size), labels.split(part_size), strict=True)))
    optimizer.step()
    return mean
    # end


def train_epoch(model, optimizer, batches, parts_per_step):
    """Take one step for every `parts_per_step` batches, and one step for the batches left at the end.

    `batches` is an iterable of pairs (images, labels), like a DataLoader; it may be empty. You can go through
    `batches` only once, and all batches together may be too large for memory: fetch the batches of a step
    only when the previous step is done, and do not keep them. Ignore gradients from before the call. Return a
    list of floats: the mean loss over the images of each step.
    """
    # cut 01.3: an epoch over small batches, with a last group that is not full
    losses = []
    batches = iter(batches)
    while parts := list(islice(batches, parts_per_step)):
        optimizer.zero_grad()
        losses.append(add_gradients(model, parts))
        optimizer.step()
    return losses
    # end
