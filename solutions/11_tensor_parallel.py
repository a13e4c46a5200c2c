"""Exercise 11: one feed-forward block, shared by several processes. 15 points, about 150 minutes.

In data parallelism, every process has the whole model and its own images. In tensor parallelism it is the
other way round: every process has a shard of every large matrix, and all processes work on the same batch.
You build the block that is in every transformer, `down(gelu(up(x)))`. No process ever holds more than its
shard of the two matrices and of the activations between them, and only two tensors travel: one in forward,
one in backward.

Two ways to cut. A linear layer computes `x @ W + b`. If you cut W by columns, each process computes some of
the outputs from the whole input. If you cut W by rows, each process uses some of the inputs and gets only a
part of every output (a partial sum), and the parts of all processes must be added up. If the first layer is
cut by columns and the second by rows, the outputs that a process has are exactly the inputs that it needs
next, and nothing has to be sent between the layers. GELU is applied to each number separately, so it needs no
communication either.

PyTorch stores W transposed: `nn.Linear(4, 6).weight` has the shape 6 x 4 (outputs x inputs), and
`torch.nn.functional.linear(x, weight, bias)` expects the weight in this form. So a column of W is a row of
the stored weight.

What travels. Each process works on a copy of the same x. In backward, each process computes only its part of
the gradient of x, so the parts must be added up. At the output it is the other way round: the parts are added
up in forward, and in backward each part gets the gradient of the sum unchanged. In lesson 08, each rank had
its own loss, so the gradients of all ranks had to be added up. In tensor parallelism, all ranks compute the
same loss, so each rank already has the whole gradient of the sum.

You write the two operations, copying x and adding up the parts, as autograd functions that mirror each other.
`forward` computes the result. `backward` is given the gradient of the result, and returns the gradient of the
input. `context` can keep data from `forward` for `backward`, but you do not need it here. Megatron-LM calls
the two functions f and g; here they are `Copy` and `Sum`.

    x --Copy--> up (columns) --> gelu --> down (rows) --Sum--> + bias
       identity forward                              all_reduce forward
       all_reduce backward                           identity backward

`dist.all_reduce(tensor)` overwrites the tensor with the sum. Autograd may still need the tensor that it gave
you, or may have given the same tensor to another function, so call `all_reduce` on a copy.
`tensor.contiguous()` makes no copy if the tensor is already contiguous.

The process group already exists: use `torch.distributed`, but not its modules `tensor` and `nn`, which
contain ready-made classes and functions for this. All ranks call everything in the same order, with the
same x.

    11.1 (2 points)  cut a matrix by columns, and by rows
    11.2 (2 points)  Copy and Sum
    11.3 (4 points)  the two linear layers
    11.4 (4 points)  the feed-forward block
    11.5 (3 points)  the norm of all gradients, and clipping
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import gelu, linear


def cut_columns(weight, bias, rank, world_size):
    """Return a rank's shard (weight, bias) of a layer whose matrix is cut by columns.

    `weight` is stored as outputs x inputs. `bias` has a number for each output, or is None (then return
    None for it). Cut as `torch.tensor_split` does: in order, and if the size cannot be divided evenly, the
    first shards are larger by one. Return copies, even with one process: a view would keep the whole matrix
    in memory, and would change with it.
    """
    # cut 11.1: cut a matrix by columns
    share = weight.tensor_split(world_size)[rank].clone()
    return share, None if bias is None else bias.tensor_split(world_size)[rank].clone()
    # end


def cut_rows(weight, bias, rank, world_size):
    """Return a rank's shard (weight, bias) of a layer whose matrix is cut by rows.

    The shard has some of the inputs and all outputs. The bias belongs to the outputs, so each rank gets a
    copy of the whole bias.
    """
    # cut 11.1: cut a matrix by rows
    share = weight.tensor_split(world_size, dim=1)[rank].clone()
    return share, None if bias is None else bias.clone()
    # end


class Copy(torch.autograd.Function):
    """Gives every rank a copy of x. Used as `Copy.apply(x)`. Do not change x or the gradients."""

    @staticmethod
    def forward(context, x):
        # cut 11.2: what Copy does forward
        return x.view_as(x)
        # end

    @staticmethod
    def backward(context, gradient):
        # cut 11.2: what Copy does backward
        total = gradient.clone()
        dist.all_reduce(total)
        return total
        # end


class Sum(torch.autograd.Function):
    """The sum of all ranks' parts, on every rank. Used as `Sum.apply(part)`. Do not change `part`."""

    @staticmethod
    def forward(context, part):
        # cut 11.2: what Sum does forward
        total = part.clone()
        dist.all_reduce(total)
        return total
        # end

    @staticmethod
    def backward(context, gradient):
        # cut 11.2: what Sum does backward
        return gradient
        # end


class ColumnLinear(nn.Module):
    """A linear layer, cut by columns: takes the whole x, returns this rank's shard of the outputs.

    The layer is made from the whole weight and bias (or None), and keeps this rank's shard as the parameters
    `weight` and `bias`. If there is no bias, `bias` is None; `nn.Parameter(None)` would be an empty tensor.
    After backward, a parameter's gradient is this rank's shard of the whole gradient, and x gets its whole
    gradient on every rank. x may have any number of dimensions; the last dimension contains the inputs.
    """

    def __init__(self, weight, bias):
        super().__init__()
        # cut 11.3: keep this rank's shard as parameters
        weight, bias = cut_columns(weight, bias, dist.get_rank(), dist.get_world_size())
        self.weight = nn.Parameter(weight)
        self.bias = None if bias is None else nn.Parameter(bias)
        # end

    def forward(self, x):
        # cut 11.3: this rank's shard of the outputs
        return linear(Copy.apply(x), self.weight, self.bias)
        # end


class RowLinear(nn.Module):
    """A linear layer, cut by rows: takes this rank's shard of the inputs, returns the whole outputs.

    The layer is made like ColumnLinear, and has the parameters `weight` (this rank's shard) and `bias` (the
    whole bias, or None). The outputs contain the bias once, however many ranks there are. After backward, the
    gradient of `weight` is this rank's shard of the whole gradient. `bias` and this rank's shard of x get
    their whole gradients.
    """

    def __init__(self, weight, bias):
        super().__init__()
        # cut 11.3: keep this rank's shard of the weight, and the whole bias
        weight, bias = cut_rows(weight, bias, dist.get_rank(), dist.get_world_size())
        self.weight = nn.Parameter(weight)
        self.bias = None if bias is None else nn.Parameter(bias)
        # end

    def forward(self, x):
        # cut 11.3: the whole outputs, from the parts of all ranks
        total = Sum.apply(linear(x, self.weight))
        return total if self.bias is None else total + self.bias
        # end


class FeedForward(nn.Module):
    """`down(gelu(up(x)))`: x and the output are whole on every rank, and the activations between them are
    sharded.

    The block is made from the whole weights and biases, and has two layers, `up` and `down`. A forward pass
    calls all_reduce once, with a tensor as large as x, and so does a backward pass. Nothing else is sent.
    """

    def __init__(self, up_weight, up_bias, down_weight, down_bias):
        super().__init__()
        # cut 11.4: the two layers
        self.up = ColumnLinear(up_weight, up_bias)
        self.down = RowLinear(down_weight, down_bias)
        # end

    def forward(self, x):
        # cut 11.4: the block
        return self.down(gelu(self.up(x)))
        # end


def clip_gradients(model, largest):
    """Scale the gradients so that their norm is at most `largest`, as one process with the whole model would.
    Return the norm.

    The norm is the square root of the sum of the squares of all gradients of the model. Return the norm from
    before the scaling, as a float. If the norm is larger than `largest`, multiply the `grad` of every
    parameter by `largest / norm`. (`torch.nn.utils.clip_grad_norm_` adds 1e-6 to the norm, which is too much
    when all gradients are tiny.)

    `model` has ColumnLinear and RowLinear layers somewhere inside, under any name, and ordinary layers, which
    are the same on every rank, with the same gradients. Count every number of the whole model exactly once:
    each rank counts the numbers of its own shards, and a number that all ranks have counts once in total, not
    once per rank. All ranks must get the same norm, or parameters that are the same everywhere would drift
    apart. Parameters whose gradient is None do not count, but a frozen parameter that has a gradient does.
    Send no gradients, only a sum or two. Ranks whose shards are empty (as on one of 4 processes, if there are
    only 3 columns) call this function too.
    """
    # cut 11.5: the norm of all gradients, and clipping
    cut = set()
    for layer in model.modules():
        if isinstance(layer, ColumnLinear):
            cut.update(layer.parameters())
        elif isinstance(layer, RowLinear):
            cut.add(layer.weight)
    of_shards = torch.zeros(())  # sums of squares
    of_the_rest = torch.zeros(())
    clipped = []
    for parameter in model.parameters():
        if parameter.grad is None:
            continue
        clipped.append(parameter.grad)
        square = parameter.grad.square().sum()
        if parameter in cut:
            of_shards += square
        else:
            of_the_rest += square
    dist.all_reduce(of_shards)

    norm = (of_shards + of_the_rest).sqrt().item()
    if norm > largest:
        for gradient in clipped:
            gradient.mul_(largest / norm)
    return norm
    # end
