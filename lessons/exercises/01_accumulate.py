"""Exercise 01: a large batch made of several small ones. 10 points.

A batch of 120 images may not fit into the memory of your GPU, and 50 may. So the batch is cut into parts of
50, 50 and 20, each part goes forward and backward by itself, and only then the optimizer takes its one step.
It must be the very step that the whole batch would have made, whatever the sizes.

What helps: `backward()` adds to the gradients that are there. What misleads: `cross_entropy` is a mean over
the images of its own call, so the mean of a part of 20 must not weigh as much as that of a part of 50.

What a forward pass computes stays in memory until its backward pass. If all parts go forward before the first
goes backward, nothing is saved. The checks look at the memory of your process.

Two things here are as in any real training. The model may have batch norm: then a part is normalised by its
own mean, and the parts are no longer the whole batch, but they are still to be those parts. And the optimizer
may be any one of `torch.optim` but LBFGS, whose `step()` wants a function that computes the loss again.

    01.1 (4 points)  add up the gradients of all parts
    01.2 (3 points)  one step of the optimizer for a large batch
    01.3 (3 points)  an epoch over small batches, with a last group that is not full
"""

from itertools import islice

from torch.nn.functional import cross_entropy


def add_gradients(model, parts):
    """Add the gradients of the mean loss over the images of all parts to the gradients that are there.

    `parts` is a list of pairs (images, labels), which may differ in size. Each goes through the model once,
    by itself and in order, and backward before the next goes forward. Returns the mean loss over all images,
    a float.
    """
    raise NotImplementedError("01.1: add up the gradients of all parts")


def large_step(model, optimizer, images, labels, part_size):
    """Take one step of the optimizer for all images, with at most `part_size` of them in the model at a time.

    The parts are taken in order, all of them of `part_size` images but the last, which has the rest.
    Gradients that were there before do not count. Returns the mean loss over all images, a float.
    """
    raise NotImplementedError("01.2: one step of the optimizer for a large batch")


def train_epoch(model, optimizer, batches, parts_per_step):
    """Take one step for every `parts_per_step` of the batches, and one for what is left over at the end.

    `batches` is an iterable of pairs (images, labels), as a DataLoader is, and can be gone through once. It
    may be too large for the memory: take the batches of a step from it only when the step before is done, and
    do not keep them. Gradients that were there before do not count. Returns a list of floats, the mean loss
    over the images of each step.
    """
    raise NotImplementedError("01.3: an epoch over small batches, with a last group that is not full")
