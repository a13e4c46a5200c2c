"""Exercise 18: all ranks skip the same steps. 11 points, about 75 minutes.

A single bad batch can ruin a model: a NaN in it reaches all weights of all ranks, and a damaged text moves
them in a random direction. So lesson 18 skips a step if the norm of its gradient is not finite, or much
larger than usual. All ranks must skip the same steps. A rank that skips a step alone has other weights from
then on, and no error is raised.

A number that is equal on all ranks to the last bit needs no further message: all ranks compare it with the
same limit, and decide alike. The norm of the averaged gradient is such a number. The loss of a rank is not,
and neither is the norm of its own gradient.

In part 2, each rank has other gradients, as with FSDP: there, a norm has to be computed over all ranks.

The process group already exists. `average_gradients` is complete: it does what DDP does at the end of a
backward pass. The micro-batches of a step must be averaged together, with one call.

    18.1 (3 points)  judge a norm
    18.2 (2 points)  the norm of gradients that are spread over the ranks
    18.3 (6 points)  a step that all ranks take, or all ranks skip
"""

import math
from statistics import median

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy


class Guard:
    """Judges the norms of gradients. `norms` has the last accepted norms, the newest last: at most `count`.

    A snapshot saves `norms`, and a resumed run writes it back, so keep nothing else between two calls.
    """

    def __init__(self, times, count, fewest):
        self.times, self.count, self.fewest = times, count, fewest
        self.norms = []

    def accepts(self, norm):
        """Return True if a step with this norm is taken, and False if it is skipped. `norm` is a float.

        A norm that is not finite is never accepted. If `norms` has at least `fewest` entries, a norm is not
        accepted if it is larger than `times` times their median. Of an even number of entries, the median is
        the mean of the two in the middle. `fewest` is at least 1 and at most `count`.
        """
        raise NotImplementedError("18.1: judge a norm")


def total_norm(gradients):
    """Return the norm of all gradients of all ranks together, as a float: the same on all ranks, to the last
    bit.

    `gradients` is a list of tensors. Each rank has a different list, which may be empty. The norm is the root
    of the sum of the squares of all numbers. Compute it in float64: the square of a float32 may be too large
    for float32. If any number on any rank is NaN or infinite, the norm must not be finite on any rank.
    """
    raise NotImplementedError("18.2: the norm of gradients that are spread over the ranks")


def average_gradients(model):
    """Replace each gradient by its mean over all ranks, which is then equal on all ranks to the last bit."""
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    for gradient in gradients:
        dist.all_reduce(gradient)
        gradient /= dist.get_world_size()


def train_step(model, optimizer, scheduler, guard, micro_batches, max_norm):
    """Train for one step, or skip it on all ranks. Return whether the step was taken.

    `micro_batches` has this rank's pairs (inputs, labels), and all ranks have equally many. Run them in
    order. The loss of a micro-batch is `cross_entropy`, the mean over its examples. The loss of the step is
    the mean over the micro-batches of all ranks. Ignore gradients from before the call.

    Ask `guard.accepts(norm)` once per step, on each rank. `norm` is the norm of the averaged gradient before
    clipping, a float. If the guard accepts it, clip the gradient to `max_norm` and take a step with the
    optimizer. Otherwise the optimizer must not notice the step: its state and the weights stay as they are.
    The learning rate schedule goes on in both cases, with one `scheduler.step()` at the end.

    The ranks send nothing but what `average_gradients` sends, in one call per step.
    """
    raise NotImplementedError("18.3: a step that all ranks take, or all ranks skip")
