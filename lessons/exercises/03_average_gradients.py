"""Exercise 03: DDP in its simplest form. 12 points, about 60 minutes.

There are several processes, each with its own model and its own images. Two things turn these processes into
one training job. All processes start with the weights of rank 0. After every backward pass, before the
optimizer's step, all processes average their gradients. The process group already exists: use
`torch.distributed`.

Some models are harder than they look. A buffer, such as a running mean, is not a parameter, but it must
also be equal on all ranks at the start. A frozen parameter never gets a gradient on any rank. Two layers
may share a parameter. A parameter may get a gradient on some ranks and none (`grad is None`) on others. A
missing gradient counts as zero. All ranks must call the same collectives in the same order, or they wait
forever. Models may have any dtype and any memory format, such as channels_last.

    03.1 (4 points)  all ranks begin with the parameters and buffers of rank 0
    03.2 (8 points)  average the gradients over all processes
"""

import torch
import torch.distributed as dist


def broadcast_model(model):
    """Give every rank the parameters and buffers of rank 0, in place."""
    raise NotImplementedError("03.1: all ranks begin with what rank 0 has")


def average_gradients(model):
    """After backward: replace every gradient by its mean over all ranks, and change nothing else. All ranks
    get the same mean, to the last bit.

    If a parameter has no gradient on any rank, its gradient stays None. If a parameter has a gradient on at
    least one rank, it has a gradient on every rank afterwards. Leave frozen parameters (`requires_grad` is
    False) alone.
    """
    raise NotImplementedError("03.2: average the gradients over all processes")
