"""Exercise 09: FSDP by hand: each process holds a shard of every weight. 16 points, about 180 minutes.

With DDP, every process holds all weights, all gradients and the whole optimizer state. With fully sharded
data parallelism (ZeRO stage 3, `fully_shard` in PyTorch) on N processes, each process holds only 1/N of the
weights, of the gradients and of the optimizer state. The model is cut into units of a few layers. Just before
a unit computes, its weights are gathered from all processes; just afterwards they are freed. The backward
pass gathers the weights again. Then the gradients are averaged and scattered, so that each process has the
gradient of its own shard, and the optimizer updates only shards. You write such a unit:

    units = [Unit(module) for module in modules]
    optimizer = torch.optim.Adam([unit.shard for unit in units])
    for images, targets in batches:                 # every rank has different batches
        optimizer.zero_grad()
        for unit in units:
            images = unit(images)
        loss(images, targets).backward()            # gives each unit.shard its gradient
        optimizer.step()

Shards. Put all parameters of a unit one after another into one flat tensor, in the order of
`module.named_parameters()`. Append zeros until the number of processes divides its length (as few zeros as
possible). Rank 0 has the first shard, rank 1 the second, and so on. A slice of a tensor keeps the whole
tensor alive, so a shard needs its own memory.

Gather. `dist.all_gather_single(whole, shard)` puts the shards of all ranks one after another into `whole`
(older releases call it all_gather_into_tensor). Both tensors have the same dtype. The gathered parameters
are views of parts of `whole`, in the order of named_parameters. A shard requires a gradient, but autograd
must not record the gather: pass `shard.detach()`.

Passes. A module whose weights come and go needs two PyTorch features. `torch.func.functional_call(module,
weights, images)` calls a module with weights other than its own: `weights` is a dict of tensors by name. And
with a `torch.autograd.Function` you define yourself what forward and backward do. Autograd records nothing
inside its `forward`, so no weight is kept for the backward pass. Your `backward` gathers the weights again
and runs the module a second time under `torch.enable_grad()`, on the images that `ctx.save_for_backward` has
kept. Then `torch.autograd.grad(output, [...], slope)` returns the gradients of the tensors in the list. Each
of these tensors must require a gradient, but the gathered weights and the images of the first unit do not:
make them require a gradient before you run the module. The images belong to the caller, and the saved tensor
may be the same tensor as the caller's, so call `detach()` and let the result require a gradient. `backward`
returns a gradient for each argument of `forward`, and None for an argument that needs no gradient. You may
also avoid the second computation, if you know how.

Scatter. `dist.reduce_scatter_single(shard, whole)` adds up `whole` over all ranks, and each rank gets its
part of the sum (older releases call it reduce_scatter_tensor). The gradient of a shard is the mean: the sum
over all ranks, divided by the number of ranks. If a parameter was not used in the forward pass on some rank,
count its gradient on that rank as zero. As always, gradients add up in `shard.grad` until they are cleared.
Do not all-reduce the gradients: every rank would get the whole gradient, but needs only 1/N of it. (An
all-to-all followed by a sum also works.)

What travels. For weights of P bytes, each of the N processes sends (N - 1) / N * P bytes of weights in the
forward pass, and as many again in the backward pass. The backward pass also sends the gradients once. (gloo
implements reduce-scatter as an all-reduce, so it sends the gradients twice. NCCL does not.) The checks
count the bytes of your calls, and ask the kernel how much memory your process holds.

Mixed precision. With `Unit(module, torch.bfloat16)`, the weights travel in bfloat16 and the module computes
in bfloat16, which halves the bytes of the weights. bfloat16 has 8 binary digits: 1 + 0.001 is rounded to 1,
and 256 + 1 to 256. In bfloat16, small optimizer steps would be rounded away, so a shard stays in float32, and
gradients are added up in float32 too. A unit's input and output are float32; only the module inside it
computes in bfloat16.

The process group already exists, and the modules are equal on all ranks at the start. A module takes one
tensor and returns one tensor. All parameters of a module are float32 and trained, no parameter is shared, and
the module has neither buffers nor dropout. All ranks call the same units in the same order.

    09.1 (1 point)   one flat tensor, and the shard of a rank
    09.2 (4 points)  keep the shard, free the module's weights, and gather them
    09.3 (6 points)  forward and backward
    09.4 (3 points)  mixed precision (in the gaps of 09.2 and 09.3)
    09.5 (2 points)  the whole weights, for a checkpoint
"""

import torch
import torch.distributed as dist
from torch.func import functional_call


def flatten(tensors, world_size):
    """Return one new float32 tensor of all numbers in order, padded with zeros until world_size divides its
    length.

    The given tensors may have a dtype other than float32.
    """
    # cut 09.1: one flat tensor with zeros at its end
    flat = torch.cat([tensor.detach().flatten().float() for tensor in tensors])
    return torch.nn.functional.pad(flat, (0, -len(flat) % world_size))
    # end


def split(tensors, rank, world_size):
    """Return the shard of one rank: its part of the flat tensor, in separate memory. Send nothing."""
    # cut 09.1: the shard of one rank
    return flatten(tensors, world_size).chunk(world_size)[rank].clone()
    # end


class Unit:
    """A module of which each rank holds a shard. `unit(images)` returns what `module(images)` would return.

    `shard` is this rank's own shard: a flat float32 tensor that requires a gradient and is a leaf, which
    means that autograd has not recorded how it was made. From now on, the module belongs to the unit. Free
    the module's own weights: `module.to("meta")` keeps their shapes, but not their numbers.
    """

    def __init__(self, module, dtype=torch.float32):
        self.module, self.dtype = module, dtype
        # cut 09.2: keep the shard, and what you need to turn it into weights again
        parameters = dict(module.named_parameters())
        self.shapes = {name: parameter.shape for name, parameter in parameters.items()}
        self.shard = split(parameters.values(), dist.get_rank(), dist.get_world_size()).requires_grad_()
        module.to("meta")
        # end

    def gather(self, dtype):
        """Return a dict of the whole weights by name, sent and returned in `dtype`. All ranks call this."""
        # cut 09.2: gather the shards, and cut the weights out of them
        shard = self.shard.detach().to(dtype)
        whole = shard.new_empty(dist.get_world_size() * len(shard))
        dist.all_gather_single(whole, shard)
        weights = {}
        place = 0
        for name, shape in self.shapes.items():
            weights[name] = whole[place : place + shape.numel()].view(shape)
            place += shape.numel()
        return weights
        # end

    def __call__(self, images):
        return Pass.apply(self.shard, images, self)

    def full_state(self):
        """Return a dict of the whole weights by name on rank 0, and None elsewhere. All ranks call this.

        The weights are in float32 and have their original shapes.
        """
        # cut 09.5: the whole weights on rank 0
        weights = self.gather(torch.float32)
        return weights if dist.get_rank() == 0 else None
        # end


class Pass(torch.autograd.Function):
    """One pass through a unit. Between forward and backward, it holds none of the unit's whole weights."""

    @staticmethod
    def forward(ctx, shard, images, unit):
        # cut 09.3: gather, compute, and keep what backward needs
        ctx.unit = unit
        ctx.save_for_backward(images)
        weights = unit.gather(unit.dtype)
        return functional_call(unit.module, weights, images.to(unit.dtype)).float()
        # end

    @staticmethod
    def backward(ctx, slope):
        """`slope` is the gradient of forward's output. Return the gradients of shard and images."""
        # cut 09.3: gather again, compute again, and scatter the gradients
        unit, world_size = ctx.unit, dist.get_world_size()
        images = ctx.saved_tensors[0].detach().requires_grad_()
        weights = unit.gather(unit.dtype)
        for weight in weights.values():
            weight.requires_grad_()
        with torch.enable_grad():
            output = functional_call(unit.module, weights, images.to(unit.dtype)).float()

        # What the output does not depend on gets a gradient of zeros.
        tensors = [images, *weights.values()]
        of_images, *gradients = torch.autograd.grad(output, tensors, slope, materialize_grads=True)
        shard = torch.empty_like(unit.shard)
        dist.reduce_scatter_single(shard, flatten(gradients, world_size))
        return shard / world_size, of_images, None
        # end
