"""Exercise 08: an optimizer whose state is sharded over the processes. 14 points.

Adam keeps two numbers for every weight. With data parallelism every process keeps all of them, though all are
the same everywhere. ZeRO stage 1 ends that: every parameter has one owner, a rank. Only the owner keeps its
state and updates it, and then hands the new weights to the others. With N processes, each keeps about an Nth
of the state, and everyone ends with the weights that a single optimizer would have made.

Your class is given any class of torch.optim and builds one of it for the parameters that its own rank owns.
The process group is there already, all ranks begin with the same weights, and the gradients are averaged
before `step()` is called. Only the owner's gradient of a parameter counts; send no gradients.

What you build on. `torch.optim.Optimizer.__init__(parameters, defaults)` takes tensors, or groups: dicts with
"params" and some options. It makes `param_groups` of them, a list of dicts: tensors alone become one group,
"params" becomes a list, and an option that a group does not have comes from `defaults`. It knows no other
options; those that `optimizer_class` has beside are in the `param_groups` of an object of that class.
`parameters` may be a generator, like `model.parameters()`: then it can be gone through once.

A class of torch.optim takes a group whose "params" is an empty list. If there is no group at all, it raises
"optimizer got an empty parameter list".

`optimizer.state` has each parameter (the tensor itself is the key) that has had a gradient in some step.
`state_dict()` has numbers in place of the parameters: from 0 on, through all groups in their order. With
groups of [a, b] and [c], c has number 2 in the whole, and number 0 in the optimizer of a rank that owns
nothing else.

Two things are outside: `add_param_group` after the optimizer is made, and keys that `optimizer_class` adds to
its groups only later, in a step.

    08.1 (1 point)   deal the parameters to the ranks
    08.2 (1 point)   the optimizer of one's own shard
    08.3 (10 points) a step: one's own shard, then what the others own
    08.4 (2 points)  the whole state, out and in again, for a checkpoint
"""

import torch
import torch.distributed as dist


def deal(sizes, world_size):
    """Which rank owns which parameter: a list of ranks, one for each of `sizes`.

    Parameters are dealt whole. No rank gets more numbers than the average of all ranks plus the largest size:
    take the largest first, and give each to the rank that has least so far. All ranks must come to the same.
    """
    # cut 08.1: deal the parameters to the ranks
    owners, held = [0] * len(sizes), [0] * world_size
    for place in sorted(range(len(sizes)), key=lambda place: -sizes[place]):
        owners[place] = held.index(min(held))
        held[owners[place]] += sizes[place]
    return owners
    # end


def copy_options(source, target):
    """Copy everything but the parameters from some groups to as many others. Yours to use."""
    for one, other in zip(source, target, strict=True):
        other.update({name: value for name, value in one.items() if name != "params"})


class ShardedOptimizer(torch.optim.Optimizer):
    """Like `optimizer_class(parameters, **defaults)`, but each rank keeps the state of its shard only.

    `parameters` are tensors or groups, as for every class of torch.optim. `param_groups` shows all parameters
    on every rank, in groups as they were given, with all options that the groups of `optimizer_class` have
    (lr, betas, ...; defaults of the class too): a learning-rate scheduler finds and changes them there.
    `zero_grad()` clears the gradients of all parameters; the base class brings it. Some classes (Adagrad)
    make their state in the constructor, and a rank may own no parameter at all.
    """

    def __init__(self, parameters, optimizer_class, **defaults):
        # cut 08.2: the optimizer of one's own shard
        super().__init__(parameters, defaults)
        everything = [parameter for group in self.param_groups for parameter in group["params"]]
        owners = deal([parameter.numel() for parameter in everything], dist.get_world_size())
        self.owners = dict(zip(everything, owners, strict=True))
        own = {parameter for parameter, owner in self.owners.items() if owner == dist.get_rank()}
        shards = [
            {**group, "params": [parameter for parameter in group["params"] if parameter in own]}
            for group in self.param_groups
        ]
        self.own = optimizer_class(shards, **defaults)
        copy_options(self.own.param_groups, self.param_groups)
        # end

    def step(self):
        """Update the own shard, then give and take parameters, in place. All ranks call it.

        Whatever has been changed in `param_groups` since the last step counts. A parameter without a gradient
        (frozen, or `grad` is None, then on all ranks) stays as it is. Afterwards a process has no lasting
        copy of anything that it does not own, beside parameters and gradients. And what travels is what is
        missing: if the parameters have P bytes, all N processes together send about (N - 1) * P; one and a
        half times as much is too much.
        """
        # cut 08.3: a step: one's own shard, then what the others own
        copy_options(self.param_groups, self.own.param_groups)
        self.own.step()
        with torch.no_grad():
            for parameter, owner in self.owners.items():
                dist.broadcast(parameter, src=owner)
        # end

    def state_dict(self):
        """On rank 0 what `state_dict()` of the one optimizer for all parameters would be; elsewhere None.

        That is {"state": {number: state of a parameter}, "param_groups": [...]}. Parameters are numbered
        through all groups, in order; "params" of a group are their numbers. All ranks call it.
        """
        # cut 08.4: the whole state, for a checkpoint
        numbers = {parameter: number for number, parameter in enumerate(self.owners)}
        shard = {numbers[parameter]: state for parameter, state in self.own.state.items()}
        shards = [None] * dist.get_world_size() if dist.get_rank() == 0 else None
        dist.gather_object(shard, shards, dst=0)
        if dist.get_rank() != 0:
            return None
        groups = [
            {**group, "params": [numbers[parameter] for parameter in group["params"]]}
            for group in self.param_groups
        ]
        state = {number: one for shard in shards for number, one in shard.items()}
        return {"state": state, "param_groups": groups}
        # end

    def load_state_dict(self, whole):
        """Go on from `whole`, which every rank is given: options and state, of which it keeps its shard only.

        It may come from any number of processes, or from one optimizer for all parameters.
        """
        # cut 08.4: take one's shard of the whole state
        copy_options(whole["param_groups"], self.param_groups)
        numbers = {parameter: number for number, parameter in enumerate(self.owners)}
        own = [parameter for group in self.own.param_groups for parameter in group["params"]]
        state = {
            place: whole["state"][numbers[parameter]]
            for place, parameter in enumerate(own)
            if numbers[parameter] in whole["state"]
        }
        self.own.load_state_dict({"state": state, "param_groups": self.own.state_dict()["param_groups"]})
        # end
