"""Exercise 03, with all calls started before the first is waited for, and the mean taken before the sum."""

import torch
import torch.distributed as dist


def broadcast_model(model):
    tensors = [tensor.data for tensor in model.parameters()] + list(model.buffers())
    for work in [dist.broadcast(tensor, 0, async_op=True) for tensor in tensors]:
        work.wait()


def average_gradients(model):
    todo = [p for p in model.parameters() if p.requires_grad]
    there = [torch.tensor(0 if p.grad is None else 1) for p in todo]
    for work in [dist.all_reduce(one, op=dist.ReduceOp.MAX, async_op=True) for one in there]:
        work.wait()
    works = []
    for parameter, one in zip(todo, there, strict=True):
        if one:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            parameter.grad.div_(dist.get_world_size())
            works.append(dist.all_reduce(parameter.grad, async_op=True))
    for work in works:
        work.wait()
