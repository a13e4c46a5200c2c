"""Another solution of exercise 11."""

import torch
import torch.distributed as dist
from torch import nn


def own_backward():
    """Each layer's backward written by hand, and an Nth of the rest counted on each rank."""

    def add_up(tensor):
        total = tensor.detach().clone().contiguous()
        dist.all_reduce(total)
        return total

    class Layer(torch.autograd.Function):
        """Of columns, the gradients of x are added up; of rows, the outputs."""

        @staticmethod
        def forward(context, x, weight, bias, columns):
            context.save_for_backward(x, weight)
            context.has_bias, context.columns = bias is not None, columns
            output = x @ weight.T if columns else add_up(x @ weight.T)
            return output if bias is None else output + bias

        @staticmethod
        def backward(context, above):
            x, weight = context.saved_tensors
            below = above @ weight
            flat = torch.atleast_2d(above).flatten(0, -2)
            flat_x = torch.atleast_2d(x).flatten(0, -2)
            bias = flat.sum(0) if context.has_bias else None
            return add_up(below) if context.columns else below, flat.T @ flat_x, bias, None

    class Cut(nn.Module):
        def __init__(self, weight, bias):
            super().__init__()
            weight, bias = self.cut(weight, bias, dist.get_rank(), dist.get_world_size())
            self.weight = nn.Parameter(weight)
            self.bias = None if bias is None else nn.Parameter(bias)

        def forward(self, x):
            return Layer.apply(x, self.weight, self.bias, self.columns)

    class ColumnLinear(Cut):
        cut, columns = staticmethod(cut_columns), True

    class RowLinear(Cut):
        cut, columns = staticmethod(cut_rows), False

    def clip_gradients(model, largest):
        # Each rank counts an Nth of what all have, and all of what it alone has.
        alone = set()
        for layer in model.modules():
            if isinstance(layer, Cut):
                alone.add(id(layer.weight))
                if layer.columns:
                    alone.add(id(layer.bias))
        total = torch.zeros(1)
        for parameter in model.parameters():
            if parameter.grad is not None:
                ranks = 1 if id(parameter) in alone else dist.get_world_size()
                total += parameter.grad.norm() ** 2 / ranks
        dist.all_reduce(total)
        norm = float(total.sqrt())
        for parameter in model.parameters():
            if parameter.grad is not None and norm > largest:
                parameter.grad = parameter.grad * (largest / norm)
        return norm
