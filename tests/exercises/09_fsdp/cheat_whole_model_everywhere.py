"""Exercise 09, with the whole module on every rank: DDP in disguise, which shows slices of what it has.

Earns at most: 2 points
"""

import torch
import torch.distributed as dist


def flatten(tensors, world_size):
    flat = torch.cat([tensor.detach().flatten().float() for tensor in tensors])
    return torch.nn.functional.pad(flat, (0, -len(flat) % world_size))


def split(tensors, rank, world_size):
    return flatten(tensors, world_size).chunk(world_size)[rank].clone()


class Unit:
    def __init__(self, module, dtype=torch.float32):
        self.module = module
        self.shard = split(list(module.parameters()), dist.get_rank(), dist.get_world_size()).requires_grad_()

    def gather(self, dtype):
        return {name: p.detach().to(dtype) for name, p in self.module.named_parameters()}

    def __call__(self, images):
        if not images.requires_grad:
            images = images + 0 * self.shard.sum()
        output = self.module(images)
        if output.requires_grad:
            output.register_hook(lambda slope: self.average())
        return output

    def average(self):
        def later():
            whole = flatten([p.grad for p in self.module.parameters()], dist.get_world_size())
            dist.all_reduce(whole)
            self.shard.grad = whole.chunk(dist.get_world_size())[dist.get_rank()] / dist.get_world_size()

        torch.autograd.Variable._execution_engine.queue_callback(later)

    def full_state(self):
        return self.gather(torch.float32) if dist.get_rank() == 0 else None
