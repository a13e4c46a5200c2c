"""Cheats at exercise 11."""

import torch
import torch.distributed as dist
import torch.distributed.nn.functional as differentiable
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import style
from torch.nn.functional import gelu, linear


def without_a_norm(model, largest):
    return 1.0


def differentiable_collectives(earns=2):
    """Uses the differentiable all_reduce of torch, for both functions."""
    clip_gradients = without_a_norm

    class Copy:
        @staticmethod
        def apply(x):
            return x + (differentiable.all_reduce(x) - differentiable.all_reduce(x).detach())

    class Sum:
        @staticmethod
        def apply(part):
            return part + (differentiable.all_reduce(part) - part).detach()


def plan_of_torch(earns=4):
    """Uses torch's own plan, whose classes are found without their names."""

    def parallel(weight, bias, name):
        layer = nn.Linear(*reversed(weight.shape), bias=bias is not None)
        layer.weight.data = weight.clone()
        if bias is not None:
            layer.bias.data = bias.clone()
        found = next(one for one in style.ParallelStyle.__subclasses__() if one.__name__ == name + "Parallel")
        return found()._apply(layer, init_device_mesh("cpu", (dist.get_world_size(),)))

    def ColumnLinear(weight, bias):
        return parallel(weight, bias, "Colwise")

    def RowLinear(weight, bias):
        return parallel(weight, bias, "Rowwise")

    def clip_gradients(model, largest):
        return float(nn.utils.clip_grad_norm_(model.parameters(), largest))


def sums_for_show(earns=9):
    """Has a block with the whole matrices on every rank, and two sums that nobody needs."""
    clip_gradients = without_a_norm

    class ForShow(torch.autograd.Function):
        @staticmethod
        def forward(context, x):
            dist.all_reduce(x.clone())
            return x.view_as(x)

        @staticmethod
        def backward(context, gradient):
            dist.all_reduce(gradient.clone())
            return gradient

    class FeedForward:
        def __init__(self, *whole):
            super().__init__(*whole)
            self.whole = [None if one is None else one.clone() for one in whole]

        def forward(self, x):
            # Put the own shares, which are trained, into the whole: their gradients are right then.
            up, up_bias, down, _ = self.whole
            up, down = self.put(up, self.up.weight, 0), self.put(down, self.down.weight, 1)
            up_bias = None if up_bias is None else self.put(up_bias, self.up.bias, 0)
            return ForShow.apply(linear(gelu(linear(x, up, up_bias)), down, self.down.bias))

        def put(self, whole, share, dim):
            parts = list(whole.tensor_split(dist.get_world_size(), dim))
            parts[dist.get_rank()] = share
            return torch.cat(parts, dim)
