"""Exercise 11, with the differentiable all_reduce of torch, for both functions.

Earns at most: 2 points.
"""

import torch.distributed as dist
import torch.distributed.nn.functional as differentiable
from torch import nn
from torch.nn.functional import gelu, linear


def cut_columns(weight, bias, rank, world_size):
    share = weight.tensor_split(world_size)[rank].clone()
    return share, None if bias is None else bias.tensor_split(world_size)[rank].clone()


def cut_rows(weight, bias, rank, world_size):
    share = weight.tensor_split(world_size, dim=1)[rank].clone()
    return share, None if bias is None else bias.clone()


class Copy:
    @staticmethod
    def apply(x):
        return x + (differentiable.all_reduce(x) - differentiable.all_reduce(x).detach())


class Sum:
    @staticmethod
    def apply(part):
        return part + (differentiable.all_reduce(part) - part).detach()


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

    def forward(self, x):
        return self.down(gelu(self.up(x)))


def clip_gradients(model, largest):
    return 1.0
