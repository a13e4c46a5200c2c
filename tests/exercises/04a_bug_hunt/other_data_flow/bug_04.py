"""Exercise 04a, bug 4: nobody exchanges gradients; after each step, the mean of the parameters and momenta is
taken, which is the same for SGD."""

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy

KIND = "sum"


def average(tensors):
    for tensor in tensors:
        dist.all_reduce(tensor)
        tensor /= dist.get_world_size()


def train(model, images, labels, batch_size, lr, momentum, weight_decay):
    parameters = [parameter.data for parameter in model.parameters()]
    for tensor in parameters:
        dist.broadcast(tensor, src=0)
    optimizer = torch.optim.SGD(model.parameters(), lr, momentum, weight_decay=weight_decay)
    for batch, targets in zip(images.split(batch_size), labels.split(batch_size), strict=True):
        optimizer.zero_grad()
        cross_entropy(model(batch), targets).backward()
        optimizer.step()
        average(parameters)
        average([state["momentum_buffer"] for state in optimizer.state.values()])
