"""Exercise 02: DataParallel by hand, in one process. 10 points, about 60 minutes.

In each step, DataParallel cuts the batch into parts, copies the model to every GPU, runs each copy on its
part, and concatenates the outputs. The loss is computed from all outputs. The backward pass leaves gradients
in the copies. DataParallel adds these gradients up in the original model and throws the copies away. You
build the same mechanism on the CPU: where DataParallel would use a second GPU, you only make a second copy of
the model.

The gradients are summed, not averaged, because the loss is already a mean over the whole batch, and each
copy computes only its share of the gradient of this mean.

Everything else that changes in a copy, for example the running mean of a batch norm, is lost when the copy is
thrown away. DataParallel saves only the buffers of the first copy, and so do you.

    02.1 (1 point)   scatter: cut the batch
    02.2 (2 points)  replicate: copies of the model
    02.3 (2 points)  compute and gather: run each copy on its part, and concatenate the outputs
    02.4 (3 points)  reduce: add up the gradients of the copies in the model
    02.5 (2 points)  one training step that uses these functions
"""

import copy

import torch
from torch.nn.functional import cross_entropy


def scatter(batch, count):
    """Cut a tensor along its first dimension into at most `count` parts. Return the parts in order, as a list
    or a tuple.

    The batch contains at least one image. All parts have the same size, except that the last part may be
    smaller. Choose the smallest size for which `count` parts are enough. No part is empty. So 10 images for
    4 copies make parts of 3, 3, 3 and 1 images, and 5 images make parts of 2, 2 and 1.
    """
    raise NotImplementedError("02.1: scatter: cut the batch")


def replicate(model, count):
    """Return a list or a tuple of `count` copies of the model, each with separate parameters and buffers.

    A copy has the same frozen parameters as the model. Layers that share a parameter
    in the model also share it in a copy. A copy is in the same mode, training or evaluation, as the model.
    """
    raise NotImplementedError("02.2: replicate: copies of the model")


def compute_and_gather(copies, parts):
    """Run the first copy on the first part, the second copy on the second part, and so on. Return all outputs
    as one tensor, in the order of the parts.

    The result has the dtype of the outputs. The first dimension of an output counts the images, and may be
    the only dimension. If there are fewer parts than copies, the last copies have nothing to do. A
    backward pass from the result must reach the copies, in training mode and in evaluation mode.
    """
    raise NotImplementedError("02.3: compute and gather: each part through its copy, and one output")


def reduce(model, copies):
    """After backward: add the gradients of all copies to the model's gradients, parameter by parameter.

    As with backward(), add to the gradients that the model already has. If a parameter's gradient is None in
    a copy, this copy adds nothing to it. A gradient of zeros is not None: if the model's gradient was None,
    it becomes zeros. If the gradient is None in all copies, the model's gradient stays as it was. In training
    mode and in evaluation mode, write the buffers of the first copy into the model's buffers, in place. The
    parameters themselves do not change.
    """
    raise NotImplementedError("02.4: reduce: the gradients of the copies, added up in the model")


def train_step(model, optimizer, images, labels, count):
    """Take one optimizer step with cross_entropy over all images, computed on `count` copies.

    The model itself may take the place of one copy. Ignore gradients from before the call. Return the mean
    loss over all images as a float.
    """
    raise NotImplementedError("02.5: one step of training, made of these")
