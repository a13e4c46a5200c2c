"""Another solution of exercise 03."""

import torch
import torch.distributed as dist


def gathered():
    """Uses all_gather and objects instead of all_reduce."""

    def broadcast_model(model):
        tensors = [*model.parameters(), *model.buffers()]
        box = [[tensor.detach() for tensor in tensors]]
        dist.broadcast_object_list(box, src=0)
        for tensor, given in zip(tensors, box[0], strict=True):
            tensor.detach().copy_(given)

    def average_gradients(model):
        world_size = dist.get_world_size()
        mine = {}
        for name, parameter in model.named_parameters():
            if parameter.requires_grad and parameter.grad is not None:
                mine[name] = parameter.grad
        everybody = [None] * world_size
        dist.all_gather_object(everybody, mine)
        for name, parameter in model.named_parameters():
            there = [given[name] for given in everybody if name in given]
            if there and parameter.requires_grad:
                parameter.grad = torch.stack(there).sum(0) / world_size
