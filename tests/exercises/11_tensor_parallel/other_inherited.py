"""Exercise 11, with layers that inherit from nn.Linear, a GELU by hand, and one sum for the whole norm."""

import torch
import torch.distributed as dist
from torch import nn


def cut(tensor, dim, rank, world_size):
    return torch.index_select(tensor, dim, torch.arange(tensor.shape[dim]).tensor_split(world_size)[rank])


def cut_columns(weight, bias, rank, world_size):
    return [one if one is None else cut(one, 0, rank, world_size) for one in (weight, bias)]


def cut_rows(weight, bias, rank, world_size):
    return [cut(weight, 1, rank, world_size), None if bias is None else torch.empty_like(bias).copy_(bias)]


class Copy(torch.autograd.Function):
    @staticmethod
    def forward(x):
        return x

    @staticmethod
    def setup_context(context, inputs, output):
        pass

    @staticmethod
    def backward(context, gradient):
        total = torch.empty(gradient.shape, dtype=gradient.dtype).copy_(gradient)
        dist.all_reduce(total)
        return total


class Sum(torch.autograd.Function):
    @staticmethod
    def forward(part):
        total = part * 1
        dist.all_reduce(total.view(-1))
        return total

    @staticmethod
    def setup_context(context, inputs, output):
        pass

    @staticmethod
    def backward(context, gradient):
        return gradient.clone()


class ColumnLinear(nn.Linear):
    def __init__(self, weight, bias):
        weight, bias = cut_columns(weight, bias, dist.get_rank(), dist.get_world_size())
        super().__init__(1, 1, bias is not None)
        self.in_features, self.out_features = weight.shape[1], weight.shape[0]
        self.weight.data = weight
        if bias is not None:
            self.bias.data = bias

    def forward(self, x):
        return super().forward(Copy.apply(x))


class RowLinear(nn.Module):
    def __init__(self, weight, bias):
        super().__init__()
        weight, bias = cut_rows(weight, bias, dist.get_rank(), dist.get_world_size())
        self.weight = nn.Parameter(weight)
        self.register_parameter("bias", None if bias is None else nn.Parameter(bias))

    def forward(self, x):
        outputs = Sum.apply(x @ self.weight.T)
        return outputs if self.bias is None else torch.add(outputs, self.bias)


class FeedForward(nn.Module):
    def __init__(self, *weights):
        super().__init__()
        self.up, self.down = ColumnLinear(*weights[:2]), RowLinear(*weights[2:])

    def forward(self, x):
        hidden = self.up(x)
        return self.down(hidden * 0.5 * (1 + torch.erf(hidden / 2**0.5)))


def clip_gradients(model, largest):
    shares = {
        f"{name}.{kind}"
        for name, layer in model.named_modules()
        for kind in ("weight", "bias")
        if isinstance(layer, ColumnLinear) or (isinstance(layer, RowLinear) and kind == "weight")
    }
    # What all ranks have counts on rank 0 alone: one sum for everything.
    square = torch.zeros(1, dtype=torch.float64)
    for name, parameter in model.named_parameters():
        if parameter.grad is not None and (name in shares or dist.get_rank() == 0):
            square += parameter.grad.double().pow(2).sum()
    dist.all_reduce(square)
    norm = square.item() ** 0.5
    factor = largest / norm if norm > largest else 1
    for parameter in model.parameters():
        if parameter.grad is not None:
            parameter.grad.copy_(parameter.grad * factor)
    return norm
