"""Exercise 09, with the module's own parameters filled and emptied, and gradients by all-to-all."""

import torch
import torch.distributed as dist


def flatten(tensors, world_size):
    size = sum(tensor.numel() for tensor in tensors)
    flat, place = torch.zeros((size + world_size - 1) // world_size * world_size), 0
    for tensor in tensors:
        flat[place : place + tensor.numel()] = tensor.detach().flatten()
        place += tensor.numel()
    return flat


def split(tensors, rank, world_size):
    return flatten(list(tensors), world_size).view(world_size, -1)[rank].clone()


class Unit:
    def __init__(self, module, dtype=torch.float32):
        self.module, self.dtype = module, dtype
        self.parameters = list(module.parameters())
        self.shapes = [parameter.shape for parameter in self.parameters]
        self.names = [name for name, _ in module.named_parameters()]
        own = split(self.parameters, dist.get_rank(), dist.get_world_size())
        self.shard = torch.nn.Parameter(own)
        self.empty()

    def empty(self):
        for parameter in self.parameters:
            parameter.data, parameter.grad = torch.empty(0), None

    def gather(self, dtype):
        shard = self.shard.data.to(dtype)
        shards = [torch.empty_like(shard) for _ in range(dist.get_world_size())]
        dist.all_gather(shards, shard)
        return self.cut(shards)

    def cut(self, shards):
        whole, weights, place = torch.cat(shards), {}, 0
        for name, shape in zip(self.names, self.shapes, strict=True):
            weights[name] = whole[place : place + shape.numel()].reshape(shape)
            place += shape.numel()
        return weights

    def fill(self):
        for parameter, weight in zip(self.parameters, self.gather(self.dtype).values(), strict=True):
            parameter.data = weight

    def __call__(self, images):
        return Pass.apply(self.shard, images, self)

    def full_state(self):
        own, shards = self.shard.detach().clone(), None
        if dist.get_rank() == 0:
            shards = [torch.empty_like(own) for _ in range(dist.get_world_size())]
        dist.gather(own, shards, dst=0)
        return self.cut(shards) if dist.get_rank() == 0 else None


class Pass(torch.autograd.Function):
    @staticmethod
    def forward(ctx, shard, images, unit):
        ctx.unit, ctx.images = unit, images.detach().clone()
        unit.fill()
        output = unit.module(images.to(unit.dtype))
        unit.empty()
        return output.float()

    @staticmethod
    def backward(ctx, slope):
        unit, world_size = ctx.unit, dist.get_world_size()
        unit.fill()
        images = ctx.images.requires_grad_()
        with torch.enable_grad():
            unit.module(images.to(unit.dtype)).backward(slope.to(unit.dtype))
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in unit.parameters]
        mine = flatten(gradients, world_size)
        unit.empty()
        theirs = torch.empty_like(mine)
        dist.all_to_all_single(theirs, mine)
        return theirs.view(world_size, -1).mean(dim=0), images.grad, None
