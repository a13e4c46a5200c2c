"""Other solutions of exercise 15."""

import torch
import torch.distributed as dist


def overlapped():
    """Keys and values travel backward while others are computed with, in one tensor, and the gradients
    travel one step behind. Backward of each block is left to autograd."""

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

    def ring_backward(query, key, value, output, log_sum_exp, gradient):
        rank, world_size = dist.get_rank(), dist.get_world_size()
        length, found, travelling = query.shape[2] * world_size, torch.zeros_like(query), None
        of_queries = [one.chunk(2, 2) for one in (query, log_sum_exp, gradient, output, found)]
        held = torch.cat([key.contiguous(), value.contiguous()], dim=-1)
        for step in range(world_size):
            ahead = begin(held) if step < world_size - 1 else None
            part, owner = torch.zeros_like(held), (rank - step) % world_size
            mine, theirs = (positions(length, one, world_size).chunk(2) for one in (rank, owner))
            for own, its in meetings(rank, owner):
                own_query, own_sum, above, own_output, own_found = (one[own] for one in of_queries)
                leaves = [own_query, *held.chunk(2, 2)[its].chunk(2, -1)]
                leaves = [leaf.detach().requires_grad_() for leaf in leaves]
                with torch.enable_grad():
                    mean, total = attend(*leaves, mine[own], theirs[its])
                    # Of the whole output, this block has a share; another score changes that share, too.
                    share = (total - own_sum).exp()
                    (share * (above * (mean - own_output)).sum(-1, True)).sum().backward()
                own_found += leaves[0].grad
                part.chunk(2, 2)[its].add_(torch.cat([leaves[1].grad, leaves[2].grad], -1))
                leaves = mean = total = share = None
            held = None
            if ahead:
                held = end(ahead)
            if travelling:
                part += end(travelling)
            travelling = begin(part) if world_size > 1 else None
        gradients = end(travelling) if travelling else part
        return found, *gradients.chunk(2, -1)


def running_maximum():
    """The largest score and the sum of exps so far, as FlashAttention has them; keys and values
    travel apart, with plain calls: even ranks send first, odd ranks receive first."""

    def to_the_right(tensor):
        rank, world_size = dist.get_rank(), dist.get_world_size()
        right, left = (rank + 1) % world_size, (rank - 1 + world_size) % world_size
        incoming = torch.zeros_like(tensor, memory_format=torch.contiguous_format)
        if rank % 2:
            dist.recv(incoming, left)
            dist.send(tensor.contiguous(), right)
        else:
            dist.send(tensor.contiguous(), right)
            dist.recv(incoming, left)
        return incoming

    def ring_forward(query, key, value):
        rank, world_size = dist.get_rank(), dist.get_world_size()
        length, group = query.size(-2) * world_size, query.size(1) // key.size(1)
        mine = positions(length, rank, world_size).chunk(2)
        queries = (query * query.size(-1) ** -0.5).chunk(2, -2)
        # For each half the largest score, the sum of exps, and the mean times that, without exp(largest).
        largest = [torch.full_like(one[..., :1], -1e30) for one in queries]
        sums, outputs = ([torch.zeros_like(one) for one in some] for some in (largest, queries))
        for owner in [*range(rank, -1, -1), *range(world_size - 1, rank, -1)]:
            if owner != rank:
                key, value = to_the_right(key), to_the_right(value)
            theirs = positions(length, owner, world_size).chunk(2)
            for a, b in meetings(rank, owner):
                its_key, its_value = (one.chunk(2, -2)[b].repeat_interleave(group, 1) for one in (key, value))
                scores = torch.einsum("...qd,...kd->...qk", queries[a], its_key)
                scores = torch.where(mine[a][:, None] >= theirs[b], scores, float("-inf"))
                most = torch.maximum(largest[a], scores.amax(-1, keepdim=True))
                old, exps, largest[a] = (largest[a] - most).exp(), (scores - most).exp(), most
                sums[a] = sums[a] * old + exps.sum(-1, keepdim=True)
                outputs[a] = outputs[a] * old + exps @ its_value
        both = zip(sums, outputs, largest, strict=True)
        found = [(output / total, most + total.log()) for total, output, most in both]
        return tuple(torch.cat(halves, -2) for halves in zip(*found, strict=True))
