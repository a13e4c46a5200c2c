"""Exercise 15, by rows: each half of the queries once with all of the keys of a
rank that it meets. Keys and values travel as one flat tensor; keys and gradients in one message."""

import torch
import torch.distributed as dist


def positions(length, rank, world_size):
    number = torch.arange(length) // (length // (2 * world_size))
    return torch.nonzero((number == rank) | (number == 2 * world_size - 1 - rank)).flatten()


def meetings(rank, owner):
    found = [(1, 0)]
    if owner <= rank:
        found.append((0, 0))
    if owner >= rank:
        found.append((1, 1))
    return sorted(found)


def attend(query, key, value, query_positions, key_positions):
    group = query.shape[1] // key.shape[1]
    if group > 1:  # one head of keys after the other
        heads = zip(query.split(group, 1), key.split(1, 1), value.split(1, 1), strict=True)
        some = [
            attend(one, *(its.expand(-1, group, -1, -1) for its in both), query_positions, key_positions)
            for one, *both in heads
        ]
        return tuple(torch.cat(parts, 1) for parts in zip(*some, strict=True))
    hidden = key_positions.expand(len(query_positions), -1) > query_positions.expand(len(key_positions), -1).T
    scores = torch.matmul(query, key.transpose(-2, -1)).mul(query.shape[-1] ** -0.5)
    total = scores.masked_fill(hidden, -torch.inf).logsumexp(-1, keepdim=True)
    weights = torch.where(hidden, 0, scores.sub(total).clamp(max=0).exp())
    return weights.nan_to_num(0).matmul(value), total


def merge(output, log_sum_exp, new_output, new_log_sum_exp):
    # The part that is new, as a function of the difference: 1 / (1 + exp(old - new)).
    part = torch.sigmoid(new_log_sum_exp - log_sum_exp)
    part = torch.where(torch.isnan(part), 0, part)
    return torch.lerp(output, new_output, part), torch.logaddexp(log_sum_exp, new_log_sum_exp)


class Ring:
    def __init__(self, query):
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self.half = query.shape[-2] // 2
        self.length = 2 * self.half * self.size

    def owner(self, step):
        return (self.rank + self.size - step) % self.size

    def blocks(self, step):
        """Slices of queries and keys: each half of the queries with all keys of this owner that it meets."""
        pairs = meetings(self.rank, self.owner(step))
        for own in (0, 1):
            those = [its for mine, its in pairs if mine == own]
            if those:
                yield self.stretch(own, own), self.stretch(those[0], those[-1])

    def stretch(self, first, last):
        return slice(first * self.half, (last + 1) * self.half)

    def places(self, rank, stretch):
        return positions(self.length, rank, self.size)[stretch]

    def shift(self, tensor):
        if self.size == 1:
            return tensor
        arrived = tensor.new_empty(tensor.shape)
        waiting = dist.isend(tensor, (self.rank + 1) % self.size, tag=15)
        dist.recv(arrived, (self.rank + self.size - 1) % self.size, tag=15)
        waiting.wait()
        return arrived


def ring_forward(query, key, value):
    ring = Ring(query)
    output = torch.zeros(query.shape, dtype=query.dtype)
    total = torch.zeros(*query.shape[:-1], 1, dtype=query.dtype) - torch.inf
    flat = torch.cat([key.reshape(-1), value.reshape(-1)])
    for step in range(ring.size):
        if step:
            flat = ring.shift(flat)
        keys, values = (one.view(key.shape) for one in flat.tensor_split(2))
        for own, its in ring.blocks(step):
            where = ring.places(ring.rank, own), ring.places(ring.owner(step), its)
            more = attend(query[..., own, :], keys[..., its, :], values[..., its, :], *where)
            both = merge(output[..., own, :], total[..., own, :], *more)
            output[..., own, :] = both[0]
            total[..., own, :] = both[1]
    return output, total


def ring_backward(query, key, value, output, log_sum_exp, gradient):
    ring = Ring(query)
    # Texts x heads of keys x heads of queries that share one x positions x size.
    apart = (key.shape[1], query.shape[1] // key.shape[1])
    query, output, log_sum_exp, gradient = (
        one.unflatten(1, apart) for one in (query, output, log_sum_exp, gradient)
    )
    scaled = query / query.shape[-1] ** 0.5
    above = torch.zeros(query.shape, dtype=query.dtype)
    # Key, value, and the gradients of both.
    travelling = torch.stack([key, value, torch.zeros_like(key), torch.zeros_like(value)])
    for step in range(ring.size):
        if step:
            travelling = ring.shift(travelling)
        for own, its in ring.blocks(step):
            keys, values, key_gradient, value_gradient = travelling[..., its, :].unsqueeze(3)
            hidden = ring.places(ring.owner(step), its)[None] > ring.places(ring.rank, own)[:, None]
            scores = (scaled[..., own, :] @ keys.mT).masked_fill(hidden, -torch.inf)
            weights = (scores - log_sum_exp[..., own, :]).exp()
            back = gradient[..., own, :]
            value_gradient += (weights.mT @ back).sum(2, keepdim=True)
            change = weights * ((back @ values.mT) - (back * output[..., own, :]).sum(-1).unsqueeze(-1))
            key_gradient += (change.mT @ scaled[..., own, :]).sum(2, keepdim=True)
            above[..., own, :] += change @ keys
    home = ring.shift(travelling[2:].contiguous())
    return above.flatten(1, 2) / query.shape[-1] ** 0.5, home[0], home[1]
