"""Exercise 02, with memories for deepcopy, gradients from torch.autograd.grad, and stacked sums."""

import copy

import torch
from torch import nn


def scatter(batch, count):
    size = (len(batch) + count - 1) // count
    return [batch[start : start + size] for start in range(0, len(batch), size)]


def replicate(model, count):
    copies = []
    while len(copies) < count:
        memory = {}
        for tensor in model.parameters():
            memory[id(tensor)] = nn.Parameter(tensor.detach().clone(), tensor.requires_grad)
        copies.append(copy.deepcopy(model, memory))
    return copies


def compute_and_gather(copies, parts):
    outputs = copies[0](parts[0])
    for place in range(1, len(parts)):
        outputs = torch.vstack((outputs, copies[place](parts[place])))
    return outputs


def reduce(model, copies):
    named = [dict(one.named_parameters()) for one in copies]
    for name, parameter in model.named_parameters():
        there = [one[name].grad for one in named if one[name].grad is not None]
        if parameter.grad is not None:
            there.append(parameter.grad)
        if there:
            parameter.grad = torch.stack(there).sum(0)
    with torch.no_grad():
        for name, buffer in model.named_buffers():
            buffer.data[...] = copies[0].get_buffer(name)


def train_step(model, optimizer, images, labels, count):
    parts = scatter(images, count)
    copies = replicate(model, len(parts))
    outputs = compute_and_gather(copies, parts)
    loss = nn.CrossEntropyLoss()(outputs, labels)
    parameters = [parameter for one in copies for parameter in one.parameters()]
    for parameter, gradient in zip(parameters, torch.autograd.grad(loss, parameters), strict=True):
        parameter.grad = gradient
    model.zero_grad()
    reduce(model, copies)
    optimizer.step()
    return float(loss)
