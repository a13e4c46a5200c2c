"""Exercise 11, with a block that has the whole matrices on every rank and sends nothing.

Earns at most: 9 points.
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import gelu, linear


def cut_columns(weight, bias, rank, world_size):
    share = weight.tensor_split(world_size)[rank].clone()
    return share, None if bias is None else bias.tensor_split(world_size)[rank].clone()


def cut_rows(weight, bias, rank, world_size):
    share = weight.tensor_split(world_size, dim=1)[rank].clone()
    return share, None if bias is None else bias.clone()


class Copy(torch.autograd.Function):
    @staticmethod
    def forward(context, x):
        return x.view_as(x)

    @staticmethod
    def backward(context, gradient):
        total = gradient.clone()
        dist.all_reduce(total)
        return total


class Sum(torch.autograd.Function):
    @staticmethod
    def forward(context, part):
        total = part.clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(context, gradient):
        return gradient


class ColumnLinear(nn.Module):
    def __init__(self, weight, bias):
        super().__init__()
        weight, bias = cut_columns(weight, bias, dist.get_rank(), dist.get_world_size())
        self.weight, self.bias = nn.Parameter(weight), None if bias is None else nn.Parameter(bias)

    def forward(self, x):
        return linear(Copy.apply(x), self.weight, self.bias)


class RowLinear(nn.Module):
    def __init__(self, weight, bias):
        super().__init__()
        weight, bias = cut_rows(weight, bias, dist.get_rank(), dist.get_world_size())
        self.weight, self.bias = nn.Parameter(weight), None if bias is None else nn.Parameter(bias)

    def forward(self, x):
        total = Sum.apply(linear(x, self.weight))
        return total if self.bias is None else total + self.bias


class FeedForward(nn.Module):
    def __init__(self, *whole):
        super().__init__()
        self.up, self.down = ColumnLinear(*whole[:2]), RowLinear(*whole[2:])
        self.whole = [None if one is None else one.clone() for one in whole]

    def forward(self, x):
        # Put the own shares, which are trained, into the whole: their gradients are right then.
        rank, world_size = dist.get_rank(), dist.get_world_size()
        up, up_bias, down, _ = self.whole

        def put(whole, share, dim):
            parts = list(whole.tensor_split(world_size, dim))
            parts[rank] = share
            return torch.cat(parts, dim)

        up, down = put(up, self.up.weight, 0), put(down, self.down.weight, 1)
        up_bias = None if up_bias is None else put(up_bias, self.up.bias, 0)
        return linear(gelu(linear(x, up, up_bias)), down, self.down.bias)


def clip_gradients(model, largest):
    return 1.0
