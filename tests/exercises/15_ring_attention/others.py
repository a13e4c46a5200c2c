"""Other solutions of exercise 15."""

import math

import torch
import torch.distributed as dist
from torch.nn.functional import pad


def overlapped():
    """Keys and values travel while others are computed with, as a generator. Backward of each
    block is left to autograd. Which halves meet is found by their positions."""

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


def running_maximum():
    """The largest score and the sum of exps so far, as FlashAttention has them; keys and values
    travel apart, with plain calls: even ranks send first, odd ranks receive first."""

    NONE = float("-inf")

    def spread(tensor, like):
        """Each head as often as heads of queries share it."""
        texts, heads, *rest = tensor.shape
        wide = tensor[:, :, None].expand(texts, heads, like.size(1) // heads, *rest)
        return wide.reshape(texts, like.size(1), *rest)

    def collected(tensor, like):
        texts, heads, *rest = tensor.shape
        return tensor.view(texts, like.size(1), heads // like.size(1), *rest).sum(2)

    def scores_of(query, key, query_positions, key_positions):
        key = spread(key, query)
        scores = torch.einsum("...qd,...kd->...qk", query, key) / math.sqrt(query.size(-1))
        return torch.where(query_positions[:, None] >= key_positions[None, :], scores, NONE)

    class Running:
        """Sum of exps, and the mean times that, both without the factor exp(largest)."""

        def __init__(self, query):
            self.largest = torch.full_like(query[..., :1], -1e30)
            self.sum, self.weighted = torch.zeros_like(self.largest), torch.zeros_like(query)

        def add(self, scores, value):
            value = spread(value, scores)
            largest = torch.maximum(self.largest, scores.amax(-1, keepdim=True))
            old, exps = torch.exp(self.largest - largest), torch.exp(scores - largest)
            self.sum = self.sum * old + exps.sum(-1, keepdim=True)
            self.weighted = self.weighted * old + torch.einsum("...qk,...kd->...qd", exps, value)
            self.largest = largest

        def result(self):
            output = self.weighted / torch.where(self.sum == 0, 1, self.sum)
            return output, torch.where(self.sum == 0, NONE, self.largest + self.sum.log())

    def to_the_right(tensor):
        rank, world_size = dist.get_rank(), dist.get_world_size()
        if world_size == 1:
            return tensor
        right, left = (rank + 1) % world_size, (rank - 1 + world_size) % world_size
        incoming = torch.zeros_like(tensor, memory_format=torch.contiguous_format)
        if rank % 2:
            dist.recv(incoming, left)
            dist.send(tensor.contiguous(), right)
        else:
            dist.send(tensor.contiguous(), right)
            dist.recv(incoming, left)
        return incoming

    def halves(tensor):
        size = tensor.size(-2) // 2
        return tensor[..., :size, :], tensor[..., size:, :]

    def ring_forward(query, key, value):
        rank, world_size = dist.get_rank(), dist.get_world_size()
        length = query.size(-2) * world_size
        mine = positions(length, rank, world_size).chunk(2)
        running = [Running(half) for half in halves(query)]
        for owner in [*range(rank, -1, -1), *range(world_size - 1, rank, -1)]:
            if owner != rank:
                key, value = to_the_right(key), to_the_right(value)
            theirs = positions(length, owner, world_size).chunk(2)
            for a, b in meetings(rank, owner):
                scores = scores_of(halves(query)[a], halves(key)[b], mine[a], theirs[b])
                running[a].add(scores, halves(value)[b])
        outputs, sums = zip(*(one.result() for one in running), strict=True)
        return torch.cat(outputs, dim=-2), torch.cat(sums, dim=-2)

    def ring_backward(query, key, value, output, log_sum_exp, gradient):
        rank, world_size = dist.get_rank(), dist.get_world_size()
        length, root = query.size(-2) * world_size, math.sqrt(query.size(-1))
        mine = positions(length, rank, world_size).chunk(2)
        dot = torch.einsum("...d,...d->...", gradient, output).unsqueeze(-1)
        query_gradient = torch.zeros_like(query)
        key_gradient, value_gradient = torch.zeros_like(key), torch.zeros_like(value)
        for owner in [*range(rank, -1, -1), *range(world_size - 1, rank, -1)]:
            if owner != rank:
                key, value = to_the_right(key), to_the_right(value)
                key_gradient, value_gradient = to_the_right(key_gradient), to_the_right(value_gradient)
            theirs = positions(length, owner, world_size).chunk(2)
            for a, b in meetings(rank, owner):
                scores = scores_of(halves(query)[a], halves(key)[b], mine[a], theirs[b])
                weights = torch.exp(scores - halves(log_sum_exp)[a])
                its = halves(value_gradient)[b]
                its.add_(collected(weights.transpose(-1, -2) @ halves(gradient)[a], its))
                above = halves(gradient)[a] @ spread(halves(value)[b], query).transpose(-1, -2)
                above = weights * (above - halves(dot)[a]) / root
                halves(query_gradient)[a].add_(above @ spread(halves(key)[b], query))
                its = halves(key_gradient)[b]
                its.add_(collected(above.transpose(-1, -2) @ halves(query)[a], its))
        return query_gradient, to_the_right(key_gradient), to_the_right(value_gradient)
