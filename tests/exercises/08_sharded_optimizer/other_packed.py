"""Exercise 08, with all that a rank owns packed into one tensor, and all broadcasts under way at once."""

import heapq

import torch
import torch.distributed as dist
from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors


def deal(sizes, world_size):
    heap = [(0, rank) for rank in range(world_size)]
    owners = {}
    for size, place in sorted(((size, place) for place, size in enumerate(sizes)), reverse=True):
        held, rank = heapq.heappop(heap)
        owners[place] = rank
        heapq.heappush(heap, (held + size, rank))
    return [owners[place] for place in range(len(sizes))]


class ShardedOptimizer(torch.optim.Optimizer):
    def __init__(self, parameters, optimizer_class, **defaults):
        super().__init__(parameters, defaults)
        self.all = [p for group in self.param_groups for p in group["params"]]
        self.rank, self.world_size = dist.get_rank(), dist.get_world_size()
        owners = deal([p.numel() for p in self.all], self.world_size)
        self.shards = [[] for _ in range(self.world_size)]
        for number, owner in enumerate(owners):
            self.shards[owner].append(number)
        mine = {id(self.all[number]) for number in self.shards[self.rank]}
        self.inner = optimizer_class(
            [
                {**group, "params": [p for p in group["params"] if id(p) in mine]}
                for group in self.param_groups
            ],
            **defaults,
        )
        for group, inner in zip(self.param_groups, self.inner.param_groups, strict=True):
            for name in inner.keys() - {"params"}:
                group[name] = inner[name]

    def hand_on_options(self):
        for group, inner in zip(self.param_groups, self.inner.param_groups, strict=True):
            inner.update({**group, "params": inner["params"]})

    @torch.no_grad()
    def step(self):
        self.hand_on_options()
        self.inner.step()
        works = []
        for owner, numbers in enumerate(self.shards):
            if numbers:
                flat = _flatten_dense_tensors([self.all[number] for number in numbers])
                works.append((dist.broadcast(flat, owner, async_op=True), flat, numbers))
        for work, flat, numbers in works:
            work.wait()
            tensors = [self.all[number] for number in numbers]
            for tensor, part in zip(tensors, _unflatten_dense_tensors(flat, tensors), strict=True):
                tensor.copy_(part)

    def state_dict(self):
        # The base class numbers as it must; only the state is elsewhere.
        groups = super().state_dict()["param_groups"]
        names = {p: number for number, p in enumerate(self.all)}
        mine = {names[p]: dict(state) for p, state in self.inner.state.items()}
        everybody = [None] * self.world_size
        dist.all_gather_object(everybody, mine)
        if self.rank:
            return None
        whole = {}
        for part in everybody:
            whole.update(part)
        return {"state": whole, "param_groups": groups}

    def load_state_dict(self, whole):
        for group, saved in zip(self.param_groups, whole["param_groups"], strict=True):
            group.update({**saved, "params": group["params"]})
        self.inner.state.clear()
        for number in self.shards[self.rank]:
            if number in whole["state"]:
                state = whole["state"][number].items()
                self.inner.state[self.all[number]] = {
                    name: value.clone() if torch.is_tensor(value) else value for name, value in state
                }
