"""Exercise 16, with lists and loops of Python: a dictionary of queues, a list of tensors for each process."""

import torch
import torch.distributed as dist
from torch import nn


def route(logits, top_k, capacity):
    token_count, expert_count = logits.shape
    ranked = [sorted(range(expert_count), key=lambda e: (-row[e], e)) for row in logits.tolist()]
    queues = {expert: [] for expert in range(expert_count)}
    for place in range(top_k):
        for token in range(token_count):
            queue = queues[ranked[token][place]]
            if capacity is None or len(queue) < capacity:
                queue.append(token)
    tokens = [token for queue in queues.values() for token in queue]
    experts = [expert for expert, queue in queues.items() for _ in queue]
    tokens, experts = torch.tensor(tokens, dtype=torch.long), torch.tensor(experts, dtype=torch.long)
    return tokens, experts, logits.softmax(dim=-1).flatten()[tokens * expert_count + experts]


def balancing_loss(logits, chosen):
    own = [int((chosen == expert).sum()) for expert in range(logits.shape[1])]
    everyone = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, (own, len(logits)))
    counts = [sum(one) for one in zip(*(counts for counts, _ in everyone), strict=True)]
    loss = logits.sum() * 0
    for expert, count in enumerate(counts):
        loss = loss + count / sum(counts) * logits.softmax(dim=1)[:, expert].sum()
    return loss * logits.shape[1] / sum(tokens for _, tokens in everyone)


class Parcels(torch.autograd.Function):
    """A list of tensors, one for each process, is sent; one of given lengths comes."""

    @staticmethod
    def forward(context, lengths, *parcels):
        context.lengths = [len(one) for one in parcels]
        return tuple(exchange(parcels, lengths))

    @staticmethod
    def backward(context, *gradients):
        return None, *exchange(gradients, context.lengths)


def exchange(parcels, lengths):
    came = parcels[0].new_zeros(sum(lengths), parcels[0].shape[1])
    dist.all_to_all_single(came, torch.cat(parcels), lengths, [len(one) for one in parcels])
    return came.split(lengths)


def dispatch(x, tokens, experts, number):
    world_size, rank = dist.get_world_size(), dist.get_rank()
    local = number // world_size
    own = torch.tensor([int((experts == expert).sum()) for expert in range(number)])
    table = [torch.empty_like(own) for _ in range(world_size)]
    dist.all_gather(table, own)
    mine = [one[rank * local : (rank + 1) * local].tolist() for one in table]
    parcels = [x[tokens[experts // local == process]] for process in range(world_size)]
    came = Parcels.apply([sum(counts) for counts in mine], *parcels)
    parts = [one.split(counts) for one, counts in zip(came, mine, strict=True)]
    arrived = [torch.cat([part[place] for part in parts]) for place in range(local)]
    return arrived, {"mine": mine, "tokens": tokens, "lengths": list(map(len, parcels)), "count": len(x)}


def combine(answers, plan, weights):
    by_process = [[] for _ in plan["mine"]]
    for place, answer in enumerate(answers):
        parts = answer.split([counts[place] for counts in plan["mine"]])
        for process, part in enumerate(parts):
            by_process[process].append(part)
    rows = torch.cat(Parcels.apply(plan["lengths"], *map(torch.cat, by_process)))
    rows = rows * weights.unsqueeze(1)
    # Row by row: whose is it?
    whose = (torch.arange(plan["count"])[:, None] == plan["tokens"]).to(rows.dtype)
    return whose @ rows


class Mixture(nn.Module):
    def __init__(self, router, experts, top_k, capacity):
        super().__init__()
        self.router, self.experts = router, nn.ModuleList(experts)
        self.top_k, self.capacity = top_k, capacity

    def forward(self, x):
        logits = self.router(x)
        balance = balancing_loss(logits, route(logits, self.top_k, None)[1])
        tokens, experts, weights = route(logits, self.top_k, self.capacity)
        arrived, plan = dispatch(x, tokens, experts, logits.shape[1])
        answers = []
        for expert, rows in zip(self.experts, arrived, strict=True):
            answers.append(expert(rows) if len(rows) else rows)
        return combine(answers, plan, weights), balance


def add_up_gradients(model):
    alone = set()
    for layer in model.modules():
        if isinstance(layer, Mixture):
            alone |= {id(parameter) for parameter in layer.experts.parameters()}
    works = [
        dist.all_reduce(parameter.grad, async_op=True)
        for parameter in model.parameters()
        if id(parameter) not in alone
    ]
    for work in works:
        work.wait()
