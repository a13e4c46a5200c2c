"""Exercise 08: an optimizer whose state is sharded over the processes. 14 points, about 150 minutes.

Adam keeps two numbers for every weight. With data parallelism, every process keeps all of these numbers,
although they are the same on every process. ZeRO stage 1 removes these copies: every parameter belongs to one
rank, its owner. Only the owner keeps the parameter's optimizer state and updates the parameter. Then the
owner sends the new weights to the other ranks. With N processes, each process keeps about 1/N of the state,
and all processes end up with the weights that a single optimizer would have computed.

Your class takes any optimizer class of torch.optim as an argument. Your class builds one optimizer of the
given class for the parameters that its own rank owns. Parameters may have any memory format, such as
channels_last, and different dtypes. The process group already exists, all ranks start with the same weights,
and the gradients are averaged before `step()` is called. Only the owner's gradient of a parameter counts;
send no gradients.

The base class. `torch.optim.Optimizer.__init__(parameters, defaults)` takes tensors, or groups: dicts with
"params" and some options. The constructor turns them into `param_groups`, a list of dicts: tensors without
groups become one group, "params" becomes a list, and `defaults` provides the options that a group lacks. The
base class adds no other options. To find the other options of `optimizer_class`, make an instance of this
class and look into its `param_groups`. `parameters` may be a generator, like `model.parameters()`, so you can
go through it only once.

A class of torch.optim accepts a group whose "params" is an empty list. If there is no group at all, a class
of torch.optim raises "optimizer got an empty parameter list".

`optimizer.state` has an entry for each parameter that has had a gradient in some step. The key is the
parameter tensor itself. In `state_dict()`, the keys are numbers instead. The parameters are numbered from 0
through all groups, in order. With the groups [a, b] and [c], c is number 2 in the whole optimizer, but number
0 in the optimizer of a rank that owns only c.

You need not support two things: calling `add_param_group` after the optimizer is made, and keys that
`optimizer_class` adds to its groups only later, during a step.

    08.1 (1 point)   assign the parameters to the ranks
    08.2 (1 point)   the optimizer of this rank's shard
    08.3 (10 points) a step: update this rank's shard, then get the other parameters
    08.4 (2 points)  save the whole state for a checkpoint, and load it again
"""

import copy

import torch
import torch.distributed as dist


def deal(sizes, world_size):
    """Return which rank owns which parameter: a list with one rank for each size.

    `sizes` says how many numbers each parameter has. A parameter is never split. No rank gets more numbers
    than the average over all ranks plus the largest size. One way is to give each parameter to the rank that
    has the fewest numbers so far. All ranks must get the same result.
    """
    raise NotImplementedError("08.1: assign the parameters to the ranks")


def copy_options(source, target):
    """Copy all options, but not the parameters, from each source group to its target group. Ready to use."""
    for one, other in zip(source, target, strict=True):
        for name, value in one.items():
            if name != "params":
                other[name] = value


class ShardedOptimizer(torch.optim.Optimizer):
    """Like `optimizer_class(parameters, **defaults)`, but each rank keeps only its shard of the state.

    `parameters` are tensors or groups, as for every class of torch.optim. On every rank, `param_groups`
    contains all parameters, in the groups that the caller passed. Each group has all options that the groups
    of `optimizer_class` have (lr, betas, ..., including the defaults of the class), so that a learning-rate
    scheduler can find and change them there. `zero_grad()` clears the gradients of all parameters; the base
    class already does this. Note that some classes (Adagrad) create their state in the constructor, and
    that a rank may own no parameter at all.
    """

    def __init__(self, parameters, optimizer_class, **defaults):
        raise NotImplementedError("08.2: the optimizer of this rank's shard")

    def step(self):
        """Update this rank's shard, then exchange parameters with the other ranks, in place.

        All ranks call this. Whatever has changed in `param_groups` since the last step takes effect. A
        parameter stays as it is if its `grad` is None (a `grad` that is None on one rank is None on all
        ranks). A frozen parameter has no `grad`, unless it was frozen after a backward pass. In that case,
        update the parameter, as every class of torch.optim does. After the step, a process must keep nothing
        for parameters that it does not own, except the parameters themselves and their gradients. Send only
        what the other ranks are missing: if all parameters together have P bytes, the N processes send about
        (N - 1) * P bytes in total. Sending one and a half times as many bytes is too much.
        """
        raise NotImplementedError("08.3: a step: update this rank's shard, then get the other parameters")

    def state_dict(self):
        """Return the state of the whole optimizer on rank 0, and None elsewhere. All ranks call this.

        On rank 0, return what `state_dict()` of one optimizer for all parameters would return: {"state":
        {number: state of a parameter}, "param_groups": [...]}. Parameters are numbered through all groups, in
        order; "params" of a group is the list of the numbers of its parameters.
        """
        raise NotImplementedError("08.4: the whole state, for a checkpoint")

    def load_state_dict(self, whole):
        """Load options and state from `whole`, which every rank is given. Each rank keeps only its shard.

        `whole` may come from a run with any number of processes, or from one optimizer for all parameters. Do
        not change `whole`, and do not let later steps change its tensors.
        """
        raise NotImplementedError("08.4: load this rank's shard of the whole state")
