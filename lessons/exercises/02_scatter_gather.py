"""Exercise 02: DataParallel by hand, in one process. 10 points.

At each step, DataParallel cuts the batch, copies the model to every device, runs the copies, and puts the
outputs together again. Autograd leads the gradients back along the same way, and adds them up in the one
model that stays. You build the same, on the CPU, where every "device" is only another copy.

A copy is made of tensors that still hang on the model: `torch.func.functional_call(model, tensors, images)`
runs the model with other parameters than its own, and `tensor * 1` is a new tensor through which gradients
go back to `tensor`.

    02.1 (3 points)  cut a batch into parts
    02.2 (3 points)  a copy of the parameters through which gradients flow back
    02.3 (4 points)  replicate, compute and gather
"""

import torch
from torch.func import functional_call


def scatter(images, copies):
    """Cut the batch along its first dimension into at most `copies` parts, in order.

    The first parts are as large as any, no part is empty, and sizes differ as `torch.chunk` lets them.
    """
    raise NotImplementedError("02.1: cut a batch into parts")


def replicate(model):
    """The model's parameters by name, as new tensors. backward() through them reaches the model's own."""
    raise NotImplementedError("02.2: a copy of the parameters through which gradients flow back")


def data_parallel(model, images, copies):
    """The model's output for the whole batch, computed part by part on copies, in the order of the images.

    Afterwards `output.sum().backward()` must leave the same gradients in the model as model(images) would.
    """
    raise NotImplementedError("02.3: replicate, compute and gather")
