"""Exercise 15, where keys and values travel while others are computed with, as a generator. Backward of each
block is left to autograd. Which halves meet is found by their positions."""

import torch
import torch.distributed as dist
from torch.nn.functional import pad


def positions(length, rank, world_size):
    every = torch.arange(length).reshape(2, world_size, -1)
    return torch.stack([every[0, rank], every[1].flip(0)[rank]]).flatten()


def meetings(rank, owner):
    if rank == owner:
        return [(0, 0), (1, 0), (1, 1)]
    return [(0, 0), (1, 0)] if owner < rank else [(1, 0), (1, 1)]


def allowed(query_positions, key_positions):
    return query_positions.view(-1, 1) >= key_positions.view(1, -1)


def attend(query, key, value, query_positions, key_positions):
    key, value = (
        torch.stack([one] * (query.shape[1] // one.shape[1]), 2).flatten(1, 2) for one in (key, value)
    )
    mask = allowed(query_positions, key_positions)
    scores = (query * query.shape[-1] ** -0.5) @ key.transpose(2, 3)
    scores = scores.masked_fill(~mask, -torch.inf)
    weights = scores.softmax(dim=3).masked_fill(~mask.any(1, keepdim=True), 0)
    return weights @ value, scores.logsumexp(dim=3, keepdim=True)


def merge(output, log_sum_exp, new_output, new_log_sum_exp):
    sums = torch.stack([log_sum_exp, new_log_sum_exp])
    shares = sums.softmax(0).nan_to_num(0)
    return shares[0] * output + shares[1] * new_output, sums.logsumexp(0)


def begin(tensor):
    """Receive the same from the left while this is sent to the right."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    incoming = torch.empty_like(tensor)
    works = [dist.irecv(incoming, (rank - 1) % world_size), dist.isend(tensor, (rank + 1) % world_size)]
    return incoming, works, tensor


def end(travelling):
    incoming, works, _ = travelling
    for work in works:
        work.wait()
    return incoming


def around(key, value):
    held = torch.cat([key.contiguous(), value.contiguous()], dim=-1)
    rank, world_size = dist.get_rank(), dist.get_world_size()
    for step in range(world_size):
        last = step == world_size - 1
        travelling = None if last else begin(held)
        yield (rank - step) % world_size, *held.split([key.shape[-1], value.shape[-1]], dim=-1)
        held = None
        if travelling:
            held = end(travelling)


def stretches(query, owner, before=None):
    """Slices of queries and of the owner's keys that meet, and their positions."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    size = query.shape[2] // 2
    mine = positions(size * 2 * world_size, rank, world_size)
    theirs = positions(size * 2 * world_size, owner, world_size)
    for own in (slice(0, size), slice(size, None)):
        for its in (slice(0, size), slice(size, None)):
            if theirs[its].min() <= mine[own].max():
                yield own, its, mine[own], theirs[its]


def ring_forward(query, key, value):
    output, log_sum_exp = query * 0, pad(query[..., :0], (0, 1), value=-torch.inf)
    for owner, its_key, its_value in around(key, value):
        for own, its, own_positions, its_positions in stretches(query, owner):
            more = attend(
                query[:, :, own], its_key[:, :, its], its_value[:, :, its], own_positions, its_positions
            )
            merged = merge(output[:, :, own], log_sum_exp[:, :, own], *more)
            output[:, :, own], log_sum_exp[:, :, own] = merged
    return output, log_sum_exp


def ring_backward(query, key, value, output, log_sum_exp, gradient):
    world_size = dist.get_world_size()
    found = torch.zeros_like(query)
    size, travelling = key.shape[-1], None
    for owner, its_key, its_value in around(key, value):
        part = torch.zeros(*key.shape[:-1], size + value.shape[-1], dtype=key.dtype)
        for own, its, own_positions, its_positions in stretches(query, owner):
            leaves = [query[:, :, own], its_key[:, :, its], its_value[:, :, its]]
            leaves = [leaf.detach().requires_grad_() for leaf in leaves]
            with torch.enable_grad():
                mine, total = attend(*leaves, own_positions, its_positions)
                # Of the whole output, this block has a share; another score changes that share, too.
                share = (total - log_sum_exp[:, :, own]).exp()
                above = gradient[:, :, own]
                gain = (above * (mine * share)).sum() - (
                    share * (above * output[:, :, own]).sum(-1, True)
                ).sum()
                gain.backward()
            found[:, :, own] += leaves[0].grad
            part[:, :, its, :size] += leaves[1].grad
            part[:, :, its, size:] += leaves[2].grad
            leaves = mine = total = share = above = gain = None
        its_key = its_value = None
        if travelling:
            part += end(travelling)
        travelling = begin(part) if world_size > 1 else None
    gradients = end(travelling) if travelling else part
    return found, gradients[..., :size], gradients[..., size:]
