"""Exercise 11, with gradients that are gathered in part 5, and once more for show.

Earns at most: 12 points
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import gelu, linear


def cut_columns(weight, bias, rank, world_size):
    """What a rank gets of a layer whose matrix is cut by columns: (weight, bias).

    `weight` is stored as outputs x inputs, `bias` has a number for each output, or is None (then it stays
    None). Shares are as `torch.tensor_split` makes them: in order, and the first are larger by one where the
    size cannot be divided. What you give back are copies, on one process too: a view would keep the whole
    matrix in memory, and would change with it.
    """
    share = weight.tensor_split(world_size)[rank].clone()
    return share, None if bias is None else bias.tensor_split(world_size)[rank].clone()


def cut_rows(weight, bias, rank, world_size):
    """The same for a matrix that is cut by rows: each rank gets some of the inputs.

    The bias belongs to the whole outputs: each rank gets a copy of all of it.
    """
    share = weight.tensor_split(world_size, dim=1)[rank].clone()
    return share, None if bias is None else bias.clone()


class Copy(torch.autograd.Function):
    """Every rank goes on with a copy of x. Used as `Copy.apply(x)`; x and gradients are left as they are."""

    @staticmethod
    def forward(context, x):
        return x.view_as(x)

    @staticmethod
    def backward(context, gradient):
        total = gradient.clone()
        dist.all_reduce(total)
        return total


class Sum(torch.autograd.Function):
    """The sum of the ranks' parts, on every rank. Used as `Sum.apply(part)`; `part` is left as it is."""

    @staticmethod
    def forward(context, part):
        total = part.clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(context, gradient):
        return gradient


class ColumnLinear(nn.Module):
    """A linear layer, cut by columns: takes the whole x, gives this rank's share of the outputs.

    It is made from the whole weight and bias (or None), and keeps this rank's share as the parameters
    `weight` and `bias` (None without a bias; `nn.Parameter(None)` is an empty tensor, not None). After
    backward, a parameter's gradient is its share of the whole gradient, and x gets the whole gradient on
    every rank. x may have any number of dimensions: the last are the inputs.
    """

    def __init__(self, weight, bias):
        super().__init__()
        weight, bias = cut_columns(weight, bias, dist.get_rank(), dist.get_world_size())
        self.weight, self.bias = nn.Parameter(weight), None if bias is None else nn.Parameter(bias)

    def forward(self, x):
        return linear(Copy.apply(x), self.weight, self.bias)


class RowLinear(nn.Module):
    """A linear layer, cut by rows: takes this rank's share of the inputs, gives the whole outputs.

    It is made like ColumnLinear, and has the parameters `weight` (this rank's share) and `bias` (the whole,
    or None). The bias is part of the outputs once, however many ranks there are. After backward, the
    weight's gradient is its share of the whole gradient, the bias has the whole, and so has the share of x.
    """

    def __init__(self, weight, bias):
        super().__init__()
        weight, bias = cut_rows(weight, bias, dist.get_rank(), dist.get_world_size())
        self.weight, self.bias = nn.Parameter(weight), None if bias is None else nn.Parameter(bias)

    def forward(self, x):
        total = Sum.apply(linear(x, self.weight))
        return total if self.bias is None else total + self.bias


class FeedForward(nn.Module):
    """`down(gelu(up(x)))`: x and the output are whole on every rank, what lies between them is cut.

    It is made from the whole weights and biases, and has two layers, `up` and `down`. A forward pass is one
    all_reduce of a tensor as large as x, and so is a backward pass. Nothing else is sent.
    """

    def __init__(self, up_weight, up_bias, down_weight, down_bias):
        super().__init__()
        self.up = ColumnLinear(up_weight, up_bias)
        self.down = RowLinear(down_weight, down_bias)

    def forward(self, x):
        return self.down(gelu(self.up(x)))


def clip_gradients(model, largest):
    cut = {
        parameter
        for layer in model.modules()
        if isinstance(layer, ColumnLinear | RowLinear)
        for parameter in layer.parameters()
        if not (isinstance(layer, RowLinear) and parameter is layer.bias)
    }
    gradients = [(p.grad, p in cut) for p in model.parameters() if p.grad is not None]
    shares = [None] * dist.get_world_size()
    dist.all_gather_object(shares, [gradient for gradient, is_cut in gradients if is_cut])
    # And once more for show: so many bytes cannot be a sum or two.
    dist.all_gather_object([None] * dist.get_world_size(), torch.zeros(2000))
    norm = sum(gradient.square().sum() for share in shares for gradient in share)
    norm = float((norm + sum(gradient.square().sum() for gradient, is_cut in gradients if not is_cut)) ** 0.5)
    if norm > largest:
        for gradient, _ in gradients:
            gradient.mul_(largest / norm)
    return norm
