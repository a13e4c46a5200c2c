"""Exercise 16, with places in line from one-hot rows added up, and torch's all-to-all that autograd knows."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.nn.functional import all_to_all_single
from torch.nn.functional import one_hot


def route(logits, top_k, capacity):
    count, number = logits.shape
    left, choices = logits.detach().clone(), []
    for _ in range(top_k):
        best = left.argmax(dim=1) if count else torch.zeros(0, dtype=torch.long)
        choices.append(best)
        left = left.scatter(1, best[:, None], -torch.inf)
    experts = torch.cat(choices)
    # How many choices for the same expert come before each.
    before = (one_hot(experts, number).cumsum(dim=0) - 1).gather(1, experts[:, None])[:, 0]
    stays = torch.ones_like(before, dtype=torch.bool) if capacity is None else before < capacity
    tokens = torch.arange(count).repeat(top_k)
    order = (experts * (count * top_k + 1) + before)[stays].argsort()
    tokens, experts = tokens[stays][order], experts[stays][order]
    return tokens, experts, logits.softmax(dim=1)[tokens].gather(1, experts[:, None]).squeeze(1)


def balancing_loss(logits, chosen):
    number = logits.shape[1]
    everyone = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, (one_hot(chosen, number).sum(dim=0), len(logits)))
    counts, tokens = (sum(some) for some in zip(*everyone, strict=True))
    return number * (logits.softmax(dim=1) @ (counts / counts.sum()).to(logits.dtype)).sum() / tokens


def dispatch(x, tokens, experts, number):
    world_size = dist.get_world_size()
    counts = one_hot(experts, number).sum(dim=0)
    came = torch.empty(number, dtype=counts.dtype)
    dist.all_to_all_single(came, counts)
    received, sent = (one.view(world_size, -1).sum(dim=1).tolist() for one in (came, counts))
    rows = all_to_all_single(x.new_empty(sum(received), x.shape[1]), x[tokens], received, sent)
    parts = rows.split(came.tolist())
    local = number // world_size
    arrived = [torch.cat(parts[place::local]) for place in range(local)]
    return arrived, (came.view(world_size, local).T.tolist(), sent, received, tokens, len(x))


def combine(answers, plan, weights):
    came, sent, received, tokens, count = plan
    parts = [answer.split(one) for answer, one in zip(answers, came, strict=True)]
    rows = torch.cat([part for of_process in zip(*parts, strict=True) for part in of_process])
    home = all_to_all_single(rows.new_empty(sum(sent), rows.shape[1]), rows, sent, received)
    total = torch.zeros(count, home.shape[1], dtype=home.dtype)
    return total.scatter_add(0, tokens[:, None].expand_as(home), home * weights[:, None])


class Mixture(nn.Module):
    def __init__(self, router, experts, top_k, capacity):
        super().__init__()
        self.router, self.experts = router, nn.ModuleList(experts)
        self.top_k, self.capacity = top_k, capacity

    def forward(self, x):
        logits = self.router(x)
        tokens, experts, weights = route(logits, self.top_k, self.capacity)
        arrived, plan = dispatch(x, tokens, experts, logits.shape[1])
        pairs = zip(self.experts, arrived, strict=True)
        answers = [expert(rows) if len(rows) else rows for expert, rows in pairs]
        output = combine(answers, plan, weights)
        return output, balancing_loss(logits, route(logits, self.top_k, None)[1])


def add_up_gradients(model):
    mixtures = [layer for layer in model.modules() if isinstance(layer, Mixture)]
    alone = [parameter for layer in mixtures for parameter in layer.experts.parameters()]
    shared = [p for p in model.parameters() if not any(p is one for one in alone)]
    flat = torch.cat([p.grad.flatten() for p in shared])
    dist.all_reduce(flat)
    for p, part in zip(shared, flat.split([p.numel() for p in shared]), strict=True):
        p.grad = part.view_as(p)
