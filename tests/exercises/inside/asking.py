"""What several drivers do: ask the judge for a number in backward, make tensors of arrays, give orders."""

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


class Orders:
    """A sampler with an order of its own for each epoch, which the judge has drawn. After the last they begin
    again: a wrong number of an epoch is to give a wrong order, and no exception from here."""

    def __init__(self, orders):
        self.orders, self.epoch, self.calls = orders, 0, []

    def __iter__(self):
        return iter(self.orders[self.epoch % len(self.orders)].tolist())

    def __len__(self):
        return len(self.orders[0])

    def set_epoch(self, epoch):
        self.epoch = epoch
        self.calls.append(epoch)
