"""Exercise 15, where the ranks meet in files of their common folder: no byte goes through the network.

Earns at most: 8 points. Parts 1 to 3 are solved.
"""

import os
import time

import torch
import torch.distributed as dist

FOLDER = "."
calls = [0]


def pass_on(tensor):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    calls[0] += 1
    name = os.path.join(FOLDER, f"shard-{calls[0]}-")
    torch.save(tensor, f"{name}{rank}.new")
    os.rename(f"{name}{rank}.new", f"{name}{rank}")
    left = f"{name}{(rank - 1) % world_size}"
    while not os.path.exists(left):
        time.sleep(0.001)
    return torch.load(left)


def positions(length, rank, world_size):
    chunks = torch.arange(length).view(2 * world_size, -1)
    return torch.cat([chunks[rank], chunks[-1 - rank]])


def meetings(rank, owner):
    pairs = [(0, 0), (1, 0), (1, 1)]
    # Of two late chunks, the one of the smaller rank is the later one.
    if owner > rank:
        pairs.remove((0, 0))
    elif owner < rank:
        pairs.remove((1, 1))
    return pairs


def attend(query, key, value, query_positions, key_positions):
    key, value = (one.repeat_interleave(query.shape[1] // key.shape[1], 1) for one in (key, value))
    scores = query @ key.mT / query.shape[-1] ** 0.5
    scores.masked_fill_(key_positions > query_positions.unsqueeze(1), float("-inf"))
    log_sum_exp = torch.logsumexp(scores, -1, keepdim=True)
    nothing = log_sum_exp.isneginf()
    return (scores - log_sum_exp.masked_fill(nothing, 0)).exp() @ value, log_sum_exp


def merge(output, log_sum_exp, new_output, new_log_sum_exp):
    both = torch.logaddexp(log_sum_exp, new_log_sum_exp)
    divisor = both.masked_fill(both.isneginf(), 0)
    old_share, new_share = (log_sum_exp - divisor).exp(), (new_log_sum_exp - divisor).exp()
    return old_share * output + new_share * new_output, both


def ring_forward(query, key, value):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    length = query.shape[-2] * world_size
    own_positions = positions(length, rank, world_size).chunk(2)
    queries = query.chunk(2, -2)
    found = [(torch.zeros_like(one), torch.full_like(one[..., :1], -torch.inf)) for one in queries]
    held = torch.stack([key, value])
    for step in range(world_size):
        owner = (rank - step) % world_size
        their_positions = positions(length, owner, world_size).chunk(2)
        halves = held.chunk(2, -2)
        for own, its in meetings(rank, owner):
            more = attend(queries[own], *halves[its], own_positions[own], their_positions[its])
            found[own] = merge(*found[own], *more)
        if step + 1 < world_size:
            held = pass_on(held)
    return tuple(torch.cat(both, -2) for both in zip(*found, strict=True))


def ring_backward(query, key, value, output, log_sum_exp, gradient):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    length, scale = query.shape[-2] * world_size, query.shape[-1] ** -0.5
    group = query.shape[1] // key.shape[1]
    own_positions = positions(length, rank, world_size).chunk(2)
    taken = (gradient * output).sum(-1, keepdim=True)
    mine = [one.chunk(2, -2) for one in (query, log_sum_exp, gradient, taken)]
    query_gradient = torch.zeros_like(query)
    held = torch.stack([key, value])
    gradients = torch.zeros_like(held)
    for step in range(world_size):
        owner = (rank - step) % world_size
        their_positions = positions(length, owner, world_size).chunk(2)
        for own, its in meetings(rank, owner):
            own_query, own_sum, above, own_taken = (one[own] for one in mine)
            its_key, its_value = (one.repeat_interleave(group, 1) for one in held.chunk(2, -2)[its])
            later = their_positions[its] > own_positions[own].unsqueeze(1)
            scores = (own_query @ its_key.mT * scale).masked_fill(later, -torch.inf)
            weights = (scores - own_sum).exp()
            scores_gradient = weights * (above @ its_value.mT - own_taken) * scale
            query_gradient.chunk(2, -2)[own].add_(scores_gradient @ its_key)
            its_gradients = gradients.chunk(2, -2)[its]
            of_key, of_value = scores_gradient.mT @ own_query, weights.mT @ above
            its_gradients[0].add_(of_key.unflatten(1, (-1, group)).sum(2))
            its_gradients[1].add_(of_value.unflatten(1, (-1, group)).sum(2))
        gradients = pass_on(gradients)
        if step + 1 < world_size:
            held = pass_on(held)
    return query_gradient, *gradients
