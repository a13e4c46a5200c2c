"""Exercise 04a, bug 6: no DDP; what has accumulated goes through one all_reduce, as one tensor."""

import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.utils import parameters_to_vector, vector_to_parameters

KIND = "exchange"


def train(model, images, labels, batch_size, accumulate, lr):
    vector = parameters_to_vector(model.parameters()).detach()
    dist.broadcast(vector, src=0)
    vector_to_parameters(vector, model.parameters())
    many = batch_size * accumulate
    for large, answers in zip(images.split(many), labels.split(many), strict=True):
        model.zero_grad()
        for batch, targets in zip(large.split(batch_size), answers.split(batch_size), strict=True):
            cross_entropy(model(batch), targets).backward()
        flat = parameters_to_vector([parameter.grad for parameter in model.parameters()])
        dist.all_reduce(flat)
        vector = vector - lr * flat / accumulate / dist.get_world_size()
        vector_to_parameters(vector, model.parameters())
