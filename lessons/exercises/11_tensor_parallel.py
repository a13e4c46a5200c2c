"""Exercise 11: one feed-forward block, shared by several processes. 15 points.

In data parallelism every process has the whole model and its own images. Here it is the other way round:
every process has a shard of every large matrix, and all work on the same batch. You build the block that
is in every transformer, `down(gelu(up(x)))`, so that no process ever has more than its shard of the two
matrices and of what lies between them, and only two tensors travel: one forward, one backward.

Two ways to cut. A linear layer computes `x @ W + b`. Cut W by columns, and each process computes some of the
outputs from the whole input. Cut W by rows, and each process takes some of the inputs and gets a part of
every output: the parts must be added up. Do one after the other, and the shards fit together without
anything sent in between. GELU looks at one number at a time, so it may stand between them.

PyTorch stores W transposed: `nn.Linear(4, 6).weight` has the shape 6 x 4, outputs x inputs, and
`torch.nn.functional.linear(x, weight, bias)` takes it so. A column of W is a row of what is stored.

What travels. Each process works on a copy of the same x. In backward each finds only its part of the gradient
of x, and the parts must be added up. At the end it is the other way round: parts are added up forward, and
each part gets the gradient of the sum as it is. In lesson 08 each rank had its own loss, so gradients were
added up too. Here all ranks compute the same loss: each already has the whole gradient of the sum.

These are two autograd functions, each the mirror of the other. `forward` computes the result. `backward` is
given the gradient of the result, and returns that of the input. `context` can keep things between the two;
here nothing needs it. Megatron-LM calls the two f and g, here they are `Copy` and `Sum`.

    x --Copy--> up (columns) --> gelu --> down (rows) --Sum--> + bias
       identity forward                              all_reduce forward
       all_reduce backward                           identity backward

`dist.all_reduce(tensor)` adds up in place. Autograd may still need the tensor that it gave you, or may have
given the same one to another function: add up in a copy. `tensor.contiguous()` is no copy if the tensor is
contiguous already.

The process group is there already: use `torch.distributed` (without its modules `tensor` and `nn`, which have
finished classes and functions for this). All ranks call everything in the same order, with the same x.

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
    """What a rank gets of a layer whose matrix is cut by columns: (weight, bias).

    `weight` is stored as outputs x inputs, `bias` has a number for each output, or is None (then it stays
    None). Shards are as `torch.tensor_split` makes them: in order, and the first are larger by one where the
    size cannot be divided. What you give back are copies, on one process too: a view would keep the whole
    matrix in memory, and would change with it.
    """
    raise NotImplementedError("11.1: cut a matrix by columns")


def cut_rows(weight, bias, rank, world_size):
    """The same for a matrix that is cut by rows: each rank gets some of the inputs.

    The bias belongs to the whole outputs: each rank gets a copy of all of it.
    """
    raise NotImplementedError("11.1: cut a matrix by rows")


class Copy(torch.autograd.Function):
    """Every rank goes on with a copy of x. Used as `Copy.apply(x)`; x and gradients are left as they are."""

    @staticmethod
    def forward(context, x):
        raise NotImplementedError("11.2: what Copy does forward")

    @staticmethod
    def backward(context, gradient):
        raise NotImplementedError("11.2: what Copy does backward")


class Sum(torch.autograd.Function):
    """The sum of the ranks' parts, on every rank. Used as `Sum.apply(part)`; `part` is left as it is."""

    @staticmethod
    def forward(context, part):
        raise NotImplementedError("11.2: what Sum does forward")

    @staticmethod
    def backward(context, gradient):
        raise NotImplementedError("11.2: what Sum does backward")


class ColumnLinear(nn.Module):
    """A linear layer, cut by columns: takes the whole x, gives this rank's shard of the outputs.

    It is made from the whole weight and bias (or None), and keeps this rank's shard as the parameters
    `weight` and `bias` (None without a bias; `nn.Parameter(None)` is an empty tensor, not None). After
    backward, a parameter's gradient is its shard of the whole gradient, and x gets the whole gradient on
    every rank. x may have any number of dimensions: the last are the inputs.
    """

    def __init__(self, weight, bias):
        super().__init__()
        raise NotImplementedError("11.3: keep this rank's shard as parameters")

    def forward(self, x):
        raise NotImplementedError("11.3: this rank's shard of the outputs")


class RowLinear(nn.Module):
    """A linear layer, cut by rows: takes this rank's shard of the inputs, gives the whole outputs.

    It is made like ColumnLinear, and has the parameters `weight` (this rank's shard) and `bias` (the whole,
    or None). The bias is part of the outputs once, however many ranks there are. After backward, the
    weight's gradient is its shard of the whole gradient, the bias has the whole, and so has the shard of x.
    """

    def __init__(self, weight, bias):
        super().__init__()
        raise NotImplementedError("11.3: keep this rank's shard of the weight, and the whole bias")

    def forward(self, x):
        raise NotImplementedError("11.3: the whole outputs, from the parts of all ranks")


class FeedForward(nn.Module):
    """`down(gelu(up(x)))`: x and the output are whole on every rank, what lies between them is cut.

    It is made from the whole weights and biases, and has two layers, `up` and `down`. A forward pass is one
    all_reduce of a tensor as large as x, and so is a backward pass. Nothing else is sent.
    """

    def __init__(self, up_weight, up_bias, down_weight, down_bias):
        super().__init__()
        raise NotImplementedError("11.4: the two layers")

    def forward(self, x):
        raise NotImplementedError("11.4: the block")


def clip_gradients(model, largest):
    """Scale the gradients so that their norm is at most `largest`, as one process would. Returns a float.

    The norm is the square root of the sum of the squares of all gradients of the model, and is what is
    returned, as it was before. If it is larger than `largest`, the `grad` of every parameter becomes
    `largest / norm` times what it was.

    `model` has ColumnLinear and RowLinear layers somewhere inside, under any name, and ordinary layers, which
    are the same on every rank, with the same gradients. Every number of the whole model counts once: those of
    a shard on the rank that has it, those that every rank has only once in all. All ranks come to the same
    norm, or parameters that are the same everywhere would drift apart. Parameters whose gradient is None do
    not count. No gradient travels, only a sum or two. Ranks without any shard (3 columns, 4 processes) call
    it, too.
    """
    raise NotImplementedError("11.5: the norm of all gradients, and clipping")
