"""What several drivers do: a layer that asks the judge for a number in backward, tensors out of arrays."""

import torch


class Asking(torch.autograd.Function):
    """Multiplies by one number forward, and by another backward, for which it asks when backward comes."""

    @staticmethod
    def forward(context, value, number, ask):
        context.number, context.ask = number, ask
        return value * number

    @staticmethod
    def backward(context, gradient):
        return gradient * (context.number * context.ask(gradient)), None, None


def tensor(value):
    return None if value is None else torch.from_numpy(value).clone()


def leaf(value):
    return tensor(value).requires_grad_()
