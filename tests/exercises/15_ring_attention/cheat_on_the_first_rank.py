"""Exercise 15, with all of it computed on rank 0, and broadcast.

Earns at most: 12 points. The results are right.
"""

import torch
import torch.distributed as dist


def pass_on(tensor):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    if world_size == 1:
        return tensor
    outgoing, incoming = tensor.contiguous(), torch.empty(tensor.shape, dtype=tensor.dtype)
    send = dist.P2POp(dist.isend, outgoing, (rank + 1) % world_size)
    receive = dist.P2POp(dist.irecv, incoming, (rank - 1) % world_size)
    for request in dist.batch_isend_irecv([send, receive]):
        request.wait()
    return incoming


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


def on_the_first(tensors, compute):
    """Rank 0 gets all shards, computes, and everybody gets what comes of it."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    found = []
    for tensor in tensors:
        shards = [torch.empty(tensor.shape, dtype=tensor.dtype) for _ in range(world_size)]
        dist.gather(tensor.contiguous(), shards if rank == 0 else None)
        found.append(shards)
    length = tensors[0].shape[-2] * world_size
    order = torch.cat([positions(length, one, world_size) for one in range(world_size)])
    results = [[]]
    if rank == 0:
        results = [compute(*(torch.cat(shards, -2)[..., order.argsort(), :] for shards in found))]
    dist.broadcast_object_list(results, 0)
    return tuple(one[..., positions(length, rank, world_size), :] for one in results[0])


def forward(query, key, value):
    every = torch.arange(query.shape[-2])
    return list(attend(query, key, value, every, every))


def backward(query, key, value, output, log_sum_exp, gradient):
    leaves = [one.detach().requires_grad_() for one in (query, key, value)]
    every = torch.arange(query.shape[-2])
    with torch.enable_grad():
        attend(*leaves, every, every)[0].backward(gradient)
    return [one.grad for one in leaves]


def ring_forward(query, key, value):
    return on_the_first((query, key, value), forward)


def ring_backward(query, key, value, output, log_sum_exp, gradient):
    return on_the_first((query, key, value, output, log_sum_exp, gradient), backward)
