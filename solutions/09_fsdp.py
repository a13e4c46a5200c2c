"""Exercise 09: FSDP by hand: each process holds a shard of every weight. 16 points.

With DDP every process holds all weights, all gradients and all that the optimizer keeps. Fully sharded data
parallelism (ZeRO stage 3, `fully_shard` in PyTorch) holds an Nth of each on N processes. The model is cut
into units, a few layers each. Just before a unit computes, its weights are gathered from all processes; just
after, they are let go. Backward gathers them once more. Then the gradients are averaged and scattered, so
that each process has the gradient of its shard, and the optimizer steps shards only. You write such a unit:

    units = [Unit(module) for module in modules]
    optimizer = torch.optim.Adam([unit.shard for unit in units])
    for images, targets in batches:                 # every rank has its own
        optimizer.zero_grad()
        for unit in units:
            images = unit(images)
        loss(images, targets).backward()            # gives each unit.shard its gradient
        optimizer.step()

Shards. All parameters of a unit, as `module.named_parameters()` gives them, are put one after another into
one flat tensor. Zeros at its end make its length divisible by the number of processes (the fewest that do).
Rank 0 has the first shard, rank 1 the second. A slice of a tensor keeps the whole tensor alive: a shard
needs memory of its own.

Gather. `dist.all_gather_single(whole, shard)` puts the shards of all ranks one after another into `whole`
(older releases call it all_gather_into_tensor). Both have one dtype. Parameters are views of parts of
`whole`, in the order of named_parameters. A shard requires a gradient, and a gather is nothing for autograd
to record: give it `shard.detach()`.

Passes. A module whose weights come and go needs two things of PyTorch. `torch.func.functional_call(module,
weights, images)` calls a module with other weights than its own: `weights` is a dict of tensors by name. And
a `torch.autograd.Function` says itself what forward and backward do. Autograd records nothing inside its
`forward`, so no weight is kept for backward. Its `backward` gathers once more and computes the module a
second time, from the images that `ctx.save_for_backward` has kept, now under `torch.enable_grad()`. From
that, `torch.autograd.grad(output, [...], slope)` gives the gradients of tensors that require one. The images
of the first unit do not, as they come, and neither do weights that were gathered. The images are the
caller's, and what was saved may be the same tensor: let a `detach()` of it require a gradient. `backward`
returns a gradient for each argument of `forward`, None for one that needs none. You may also do without a
second computation, if you know how.

Scatter. `dist.reduce_scatter_single(shard, whole)` adds up the `whole` of all ranks, and each gets its part
of the sum (older releases: reduce_scatter_tensor). The gradient of a shard is the mean: the sum over all
ranks by their number. A parameter that a rank's pass has not used has the gradient zero there. As always,
gradients add up in `shard.grad` until somebody clears them. An all-reduce of them all would give every rank
the whole, of which it needs an Nth: do without (an all-to-all, and a sum, would do as well).

What travels. For weights of P bytes, each of N processes sends (N - 1) / N * P bytes in forward and as much
again in backward, and the gradients once. gloo makes a reduce-scatter of an all-reduce and so sends them
twice; NCCL does not. The system counts what your process sends and holds.

Mixed precision. With `Unit(module, torch.bfloat16)`, weights travel and the module computes in bfloat16,
half the bytes. bfloat16 has 8 binary digits: 1 + 0.001 is 1 again, 256 + 1 is 256. So a shard stays in
float32, or small steps of the optimizer would be lost, and gradients are added up in float32. What goes into
a unit and what comes out is float32, too; only the module inside sees images in bfloat16.

The process group is there already, and the modules are equal on all ranks at the start. A module takes one
tensor and gives one. All of its parameters are float32 and trained, no two are the same, and it has neither
buffers nor dropout. All ranks call the same units in the same order.

    09.1 (1 point)   one flat tensor, and the shard of a rank
    09.2 (4 points)  keep the shard, let the module's weights go, gather them
    09.3 (6 points)  forward and backward
    09.4 (3 points)  mixed precision (in the same places as 09.2 and 09.3)
    09.5 (2 points)  the whole weights, for a checkpoint
"""

import torch
import torch.distributed as dist
from torch.func import functional_call


def flatten(tensors, world_size):
    """All numbers one after another in one new tensor of float32, and zeros until world_size divides it.

    The tensors may be of another dtype.
    """
    # cut 09.1: one flat tensor with zeros at its end
    flat = torch.cat([tensor.detach().flatten().float() for tensor in tensors])
    return torch.nn.functional.pad(flat, (0, -len(flat) % world_size))
    # end


def split(tensors, rank, world_size):
    """The shard of one rank: its part of the flat tensor, in memory of its own. No communication."""
    # cut 09.1: the shard of one rank
    return flatten(tensors, world_size).chunk(world_size)[rank].clone()
    # end


class Unit:
    """A module of which each rank holds a shard. `unit(images)` gives what the module would give.

    `shard` is its own: a flat float32 tensor that requires a gradient and is a leaf, that is, autograd has
    recorded nothing of how it was made. The module belongs to the unit from now on, and its own weights go:
    `module.to("meta")` leaves it their shapes and no numbers.
    """

    def __init__(self, module, dtype=torch.float32):
        self.module, self.dtype = module, dtype
        # cut 09.2: keep the shard, and what it takes to make weights of it again
        parameters = dict(module.named_parameters())
        self.shapes = {name: parameter.shape for name, parameter in parameters.items()}
        self.shard = split(parameters.values(), dist.get_rank(), dist.get_world_size()).requires_grad_()
        module.to("meta")
        # end

    def gather(self, dtype):
        """The whole weights in `dtype`, as a dict by name. What travels is in `dtype`. All ranks call it."""
        # cut 09.2: gather the shards, and cut the weights out of them
        shard = self.shard.detach().to(dtype)
        whole = shard.new_empty(dist.get_world_size() * len(shard))
        dist.all_gather_single(whole, shard)
        sizes = [shape.numel() for shape in self.shapes.values()]
        parts = whole[: sum(sizes)].split(sizes)
        return {
            name: part.view(shape) for (name, shape), part in zip(self.shapes.items(), parts, strict=True)
        }
        # end

    def __call__(self, images):
        return Pass.apply(self.shard, images, self)

    def full_state(self):
        """On rank 0 the whole weights by name, in float32 and in shape; elsewhere None. All call it."""
        # cut 09.5: the whole weights on rank 0
        weights = self.gather(torch.float32)
        return weights if dist.get_rank() == 0 else None
        # end


class Pass(torch.autograd.Function):
    """One pass through a unit. Between forward and backward, none of its whole weights is held."""

    @staticmethod
    def forward(ctx, shard, images, unit):
        # cut 09.3: gather, compute, and keep what backward needs
        ctx.unit = unit
        ctx.save_for_backward(images)
        return functional_call(unit.module, unit.gather(unit.dtype), images.to(unit.dtype)).float()
        # end

    @staticmethod
    def backward(ctx, slope):
        """`slope` is the gradient of what forward gave. Returns those of the shard and the images."""
        # cut 09.3: gather again, compute again, and scatter the gradients
        unit, world_size = ctx.unit, dist.get_world_size()
        images = ctx.saved_tensors[0].detach().requires_grad_()
        weights = {name: weight.requires_grad_() for name, weight in unit.gather(unit.dtype).items()}
        with torch.enable_grad():
            output = functional_call(unit.module, weights, images.to(unit.dtype)).float()
        tensors = [images, *weights.values()]
        of_images, *gradients = torch.autograd.grad(output, tensors, slope, materialize_grads=True)
        shard = torch.empty_like(unit.shard)
        dist.reduce_scatter_single(shard, flatten(gradients, world_size))
        return shard / world_size, of_images, None
        # end
