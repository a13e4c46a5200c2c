"""Exercise 09, by a gather that autograd knows; what it would save of the weights is fetched again."""

import torch
import torch.distributed as dist
from torch.autograd.graph import saved_tensors_hooks
from torch.func import functional_call


def flatten(tensors, world_size):
    flat = torch.nn.utils.parameters_to_vector([tensor.detach().float() for tensor in tensors])
    padded = torch.zeros((flat.numel() + world_size - 1) // world_size * world_size)
    padded[: flat.numel()] = flat
    return padded


def split(tensors, rank, world_size):
    return flatten(list(tensors), world_size).tensor_split(world_size)[rank].clone()


def gathered(shard, dtype):
    shard = shard.detach().to(dtype)
    whole = torch.empty(shard.numel() * dist.get_world_size(), dtype=dtype)
    dist.all_gather_single(whole, shard)
    return whole


class Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx, shard, dtype, kept):
        ctx.kept = kept
        return gathered(shard, dtype)

    @staticmethod
    def backward(ctx, slope):
        ctx.kept.clear()
        shard = torch.empty(slope.numel() // dist.get_world_size())
        dist.reduce_scatter_single(shard, slope.float())
        return shard / dist.get_world_size(), None, None


class Again(torch.autograd.Function):
    """Nothing in forward. In backward, before the module: the weights once more."""

    @staticmethod
    def forward(ctx, output, shard, dtype, kept):
        ctx.shard, ctx.dtype, ctx.kept = shard, dtype, kept
        return output.view_as(output)

    @staticmethod
    def backward(ctx, slope):
        ctx.kept["whole"] = gathered(ctx.shard, ctx.dtype)
        return slope, None, None, None


class Unit:
    def __init__(self, module, dtype=torch.float32):
        self.dtype = dtype
        self.shapes = {name: parameter.shape for name, parameter in module.named_parameters()}
        self.shard = split(module.parameters(), dist.get_rank(), dist.get_world_size())
        self.shard.requires_grad = True
        self.module = module.to("meta")

    def cut(self, whole):
        sizes = [shape.numel() for shape in self.shapes.values()]
        parts = whole.narrow(0, 0, sum(sizes)).split(sizes)
        return {name: part.view(self.shapes[name]) for name, part in zip(self.shapes, parts, strict=True)}

    def gather(self, dtype):
        return self.cut(gathered(self.shard, dtype))

    def __call__(self, images):
        kept = {}
        whole = Gather.apply(self.shard, self.dtype, kept)
        place = whole.untyped_storage().data_ptr()

        def pack(tensor):
            if tensor.untyped_storage().data_ptr() != place:
                return tensor
            return tensor.size(), tensor.stride(), tensor.storage_offset()

        def unpack(saved):
            return torch.as_strided(kept["whole"], *saved) if isinstance(saved, tuple) else saved

        with saved_tensors_hooks(pack, unpack):
            output = functional_call(self.module, self.cut(whole), images.to(self.dtype)).float()
        return Again.apply(output, self.shard, self.dtype, kept)

    def full_state(self):
        weights = self.gather(torch.float32)
        return weights if dist.get_rank() == 0 else None
