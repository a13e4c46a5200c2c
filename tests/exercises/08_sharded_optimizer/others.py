"""Other solutions of exercise 08."""

import copy

import torch
import torch.distributed as dist


def all_gathered():
    """One all_gather of shards that are filled up to one length; dealt without sorting."""

    def deal(sizes, world_size):
        held, owners = torch.zeros(world_size, dtype=torch.int64), []
        for size in sizes:
            owners.append(int(held.argmin()))
            held[owners[-1]] += size
        return owners

    class ShardedOptimizer(torch.optim.Optimizer):
        def __init__(self, parameters, optimizer_class, **defaults):
            # A meta optimizer knows the defaults of the class, and costs nothing.
            model = optimizer_class([torch.nn.Parameter(torch.empty(1, device="meta"))], **defaults)
            super().__init__(parameters, model.defaults)
            everything = [p for group in self.param_groups for p in group["params"]]
            world_size = dist.get_world_size()
            owners = deal([p.numel() for p in everything], world_size)
            self.number = {p: number for number, p in enumerate(everything)}
            self.shard = [
                [p for p, o in zip(everything, owners, strict=True) if o == r] for r in range(world_size)
            ]
            self.length = max(sum(p.numel() for p in shard) for shard in self.shard)
            own = set(self.shard[dist.get_rank()])
            groups = [
                {**group, "params": [p for p in group["params"] if p in own]} for group in self.param_groups
            ]
            self.own = optimizer_class(groups, **defaults)

        @torch.no_grad()
        def step(self):
            for group, own in zip(self.param_groups, self.own.param_groups, strict=True):
                for name in group:
                    if name != "params":
                        own[name] = group[name]
            self.own.step()
            mine = torch.zeros(self.length, dtype=next(iter(self.number)).dtype)
            shard = self.shard[dist.get_rank()]
            if shard:
                vector = torch.cat([parameter.flatten() for parameter in shard])
                mine[: len(vector)] = vector
            parts = [torch.empty_like(mine) for _ in self.shard]
            dist.all_gather(parts, mine)
            for shard, part in zip(self.shard, parts, strict=True):
                offset = 0
                for parameter in shard:
                    parameter.copy_(part[offset : offset + parameter.numel()].view_as(parameter))
                    offset += parameter.numel()

        def state_dict(self):
            """Parameter after parameter: the owner tells rank 0."""
            state = {}
            for owner, shard in enumerate(self.shard):
                for parameter in shard:
                    box = [self.own.state.get(parameter) if owner == dist.get_rank() else None]
                    dist.broadcast_object_list(box, src=owner)
                    if box[0]:
                        state[self.number[parameter]] = box[0]
            groups = [
                group | {"params": [self.number[p] for p in group["params"]]} for group in self.param_groups
            ]
            return {"state": state, "param_groups": groups} if dist.get_rank() == 0 else None

        def load_state_dict(self, whole):
            for group, saved in zip(self.param_groups, whole["param_groups"], strict=True):
                group.update({name: value for name, value in saved.items() if name != "params"})
            mine = [p for group in self.own.param_groups for p in group["params"]]
            old = self.own.state_dict()
            numbers = {place: self.number[p] for place, p in enumerate(mine)}
            old["state"] = {place: whole["state"][n] for place, n in numbers.items() if n in whole["state"]}
            self.own.load_state_dict(copy.deepcopy(old))


def hidden_gradients():
    """One optimizer for all parameters that sees its own gradients only and forgets."""

    class ShardedOptimizer(torch.optim.Optimizer):
        def __init__(self, parameters, optimizer_class, **defaults):
            self.inner = optimizer_class(parameters, **defaults)
            super().__init__(self.inner.param_groups, self.inner.defaults)
            self.param_groups = self.inner.param_groups
            self.everything = [p for group in self.param_groups for p in group["params"]]
            self.owners = deal([p.numel() for p in self.everything], dist.get_world_size())
            self.foreign = [
                p for p, o in zip(self.everything, self.owners, strict=True) if o != dist.get_rank()
            ]
            self.forget()

        def forget(self):
            for parameter in self.foreign:
                self.inner.state.pop(parameter, None)

        def step(self):
            hidden = [parameter.grad for parameter in self.foreign]
            for parameter in self.foreign:
                parameter.grad = None
            self.inner.step()
            for parameter, gradient in zip(self.foreign, hidden, strict=True):
                parameter.grad = gradient
            rank = dist.get_rank()
            works, arrived = [], []
            for parameter, owner in zip(self.everything, self.owners, strict=True):
                if owner == rank:
                    others = [other for other in range(dist.get_world_size()) if other != rank]
                    works += [dist.isend(parameter.detach().contiguous(), other) for other in others]
                else:
                    arrived.append((parameter.detach(), torch.empty(parameter.shape, dtype=parameter.dtype)))
                    works.append(dist.irecv(arrived[-1][1], owner))
            for work in works:
                work.wait()
            for parameter, value in arrived:
                parameter.copy_(value)

        def state_dict(self):
            own = self.inner.state_dict()
            shards = [None] * dist.get_world_size()
            dist.gather_object(own["state"], shards if dist.get_rank() == 0 else None)
            if dist.get_rank() == 0:
                own["state"] = {number: state for shard in shards for number, state in shard.items()}
                return own
            return None

        def load_state_dict(self, whole):
            self.inner.load_state_dict(copy.deepcopy(whole))
            self.param_groups = self.inner.param_groups
            self.forget()
