"""Exercise 02: DataParallel by hand, in one process. 10 points.

At each step, DataParallel cuts the batch, copies the model to every GPU, runs each copy on its part, and puts
the outputs together again. The loss is computed from all outputs. Its backward pass leaves gradients in the
copies, and they are added up in the one model that stays; the copies are thrown away. You build the same on
the CPU, where another GPU is only another copy.

Why a sum, and no mean: the loss is a mean over the whole batch already, and each copy has its part of it.

What a copy learns beside gradients is lost with it, the running mean of a batch norm for one. DataParallel
keeps the buffers of the first copy, and so do you.

    02.1 (1 point)   scatter: cut the batch
    02.2 (2 points)  replicate: copies of the model
    02.3 (2 points)  compute and gather: each part through its copy, and one output
    02.4 (3 points)  reduce: the gradients of the copies, added up in the model
    02.5 (2 points)  one step of training, made of these
"""

import copy

import torch
from torch.nn.functional import cross_entropy


def scatter(batch, count):
    """Cut a tensor along its first dimension into a list of at most `count` parts, in order.

    All parts have the same size, the smallest with which `count` parts are enough; only the last may be
    smaller. No part is empty. So 10 images for 4 copies make 3, 3, 3 and 1, and 5 images make 2, 2 and 1.
    """
    raise NotImplementedError("02.1: scatter: cut the batch")


def replicate(model, count):
    """A list of `count` copies of the model, modules too, with parameters and buffers of their own.

    What is frozen in the model is frozen in a copy; what two layers share in the model, they share in a copy;
    what is in evaluation mode is in it in a copy.
    """
    raise NotImplementedError("02.2: replicate: copies of the model")


def compute_and_gather(copies, parts):
    """Run the first copy on the first part, the second on the second, and so on; return all outputs as one
    tensor, in the order of the parts.

    There may be fewer parts than copies: the last copies have nothing to do then. backward() from the result
    must reach the copies.
    """
    raise NotImplementedError("02.3: compute and gather: each part through its copy, and one output")


def reduce(model, copies):
    """After backward: add the gradients of all copies to those of the model, parameter by parameter.

    As with backward(), what a gradient of the model was before counts too. A copy whose gradient is None adds
    nothing, and a parameter for which all are None keeps what it had. The buffers of the first copy are
    written into those of the model, in place. The parameters themselves do not change.
    """
    raise NotImplementedError("02.4: reduce: the gradients of the copies, added up in the model")


def train_step(model, optimizer, images, labels, count):
    """One step of the optimizer with cross_entropy over all images, computed on `count` copies.

    Gradients that were there before do not count. Returns the mean loss over all images, as a float.
    """
    raise NotImplementedError("02.5: one step of training, made of these")
