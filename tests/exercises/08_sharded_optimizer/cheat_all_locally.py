"""Exercise 08, with the whole optimizer on every rank and nothing sent: the gradients are the same.

Earns at most: 2 points
"""

import torch
import torch.distributed as dist


def deal(sizes, world_size):
    held, owners = [0] * world_size, []
    for size in sizes:
        owners.append(held.index(min(held)))
        held[owners[-1]] += size
    return owners


class ShardedOptimizer(torch.optim.Optimizer):
    def __init__(self, parameters, optimizer_class, **defaults):
        self.all = optimizer_class(parameters, **defaults)
        super().__init__(self.all.param_groups, self.all.defaults)
        self.param_groups = self.all.param_groups

    def step(self):
        self.all.step()

    def state_dict(self):
        return self.all.state_dict() if dist.get_rank() == 0 else None

    def load_state_dict(self, whole):
        self.all.load_state_dict(whole)
        self.param_groups = self.all.param_groups
