"""Another solution of exercise 09."""

import torch
import torch.distributed as dist


def storage():
    """Without a second computation: weights are views of one storage that is emptied and filled."""

    class Unit:
        def __init__(self, module, dtype=torch.float32):
            self.module, self.dtype = module, dtype
            self.parameters, place = list(module.parameters()), 0
            self.shapes = {name: parameter.shape for name, parameter in module.named_parameters()}
            self.shard = split(self.parameters, dist.get_rank(), dist.get_world_size()).requires_grad_(True)
            self.flat = torch.empty(len(self.shard) * dist.get_world_size(), dtype=dtype)
            self.bytes = self.flat.untyped_storage().nbytes()
            for parameter in self.parameters:
                parameter.data = self.flat[place : place + parameter.numel()].view(parameter.shape)
                place += parameter.numel()
            self.free()

        def free(self):
            self.flat.untyped_storage().resize_(0)

        def fill(self):
            self.flat.untyped_storage().resize_(self.bytes)
            # Not into self.flat: autograd would say that what it has saved was changed.
            dist.all_gather_single(self.flat.data, self.shard.detach().to(self.dtype))

        def __call__(self, images):
            images = Enter.apply(self.shard, images, self)
            output = self.module(images.to(self.dtype)).float()
            self.free()
            return Leave.apply(output, self)

    class Enter(torch.autograd.Function):
        """First in forward and last in backward."""

        @staticmethod
        def forward(ctx, shard, images, unit):
            ctx.unit = unit
            unit.fill()
            return images.view_as(images)

        @staticmethod
        def backward(ctx, slope):
            unit = ctx.unit
            unit.free()
            gradients = []
            for parameter in unit.parameters:
                zeros = torch.zeros(parameter.shape)
                gradients.append(zeros if parameter.grad is None else parameter.grad)
                parameter.grad = None
            shard = torch.empty_like(unit.shard)
            flat = flatten(gradients, dist.get_world_size()) / dist.get_world_size()
            dist.reduce_scatter(shard, list(flat.chunk(dist.get_world_size())))
            return shard, slope, None

    class Leave(torch.autograd.Function):
        """Last in forward and first in backward."""

        @staticmethod
        def forward(ctx, output, unit):
            ctx.unit = unit
            return output.view_as(output)

        @staticmethod
        def backward(ctx, slope):
            ctx.unit.fill()
            return slope, None
