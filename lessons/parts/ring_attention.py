"""The other half of lesson 15: attention, in which keys and values travel around a ring.

Each process holds two chunks of the positions of every text. A query attends only to keys
up to its own position, so chunks of later keys are not multiplied at all.
"""

import torch
import torch.distributed as dist

ORDERS = ("contiguous", "zigzag")


def chunks_of(rank, size, order):
    """The numbers of the two chunks that a process holds, from 0 to 2 * size - 1."""
    if order == "zigzag":
        return rank, 2 * size - 1 - rank  # pairing an early chunk with a late one balances the work
    return 2 * rank, 2 * rank + 1


def positions_of(rank, size, order, length):
    """The positions of a text that a process holds."""
    chunks = torch.arange(length).chunk(2 * size)
    return torch.cat([chunks[number] for number in chunks_of(rank, size, order)])


def ring_attention(query, key, value, group, order):
    """Attention of this process's queries over all keys, with only a few shards in memory."""
    return RingAttention.apply(query, key, value, group, order)


class RingAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, query, key, value, group, order):
        result = torch.zeros_like(query)
        log_sum = torch.full_like(query[..., :1], -torch.inf)  # log of the sum of exp(score) so far
        for owner, held in around_the_ring(torch.stack([key, value]), group):
            for mine, theirs, masked in blocks(query, owner, group, order):
                scores = score(query[..., mine, :], held[0, ..., theirs, :], masked)
                more_log_sum = scores.logsumexp(dim=-1, keepdim=True)
                more = (scores - more_log_sum).exp() @ held[1, ..., theirs, :]
                merge(result[..., mine, :], log_sum[..., mine, :], more, more_log_sum)
        ctx.save_for_backward(query, key, value, result, log_sum)
        ctx.group, ctx.order = group, order
        return result

    @staticmethod
    def backward(ctx, result_grad):
        query, key, value, result, log_sum = ctx.saved_tensors
        own = torch.stack([key, value])
        query_grad, grads = torch.zeros_like(query), torch.zeros_like(own)
        # The weights of a softmax add up to 1, so a larger score raises its own weight and
        # lowers all others. To account for this, the backward pass below subtracts `taken`:
        # the mean of the gradients of all weights, weighted by the weights themselves.
        taken = (result_grad * result).sum(dim=-1, keepdim=True)
        for owner, held in around_the_ring(own, ctx.group):
            for mine, theirs, masked in blocks(query, owner, ctx.group, ctx.order):
                own_query, own_grad = query[..., mine, :], result_grad[..., mine, :]
                their_key, their_value = held[0, ..., theirs, :], held[1, ..., theirs, :]
                # Recompute the weights: storing them would take memory quadratic in the length.
                weights = (score(own_query, their_key, masked) - log_sum[..., mine, :]).exp()
                scores_grad = weights * (own_grad @ their_value.mT - taken[..., mine, :])
                scores_grad = scores_grad / query.shape[-1] ** 0.5
                query_grad[..., mine, :] += scores_grad @ their_key
                grads[0, ..., theirs, :] += scores_grad.mT @ own_query
                grads[1, ..., theirs, :] += weights.mT @ own_grad
            # Gradients travel with their keys and values, and the last step returns them to their owner.
            grads = receive(*pass_on(grads, ctx.group))
        return query_grad, grads[0], grads[1], None, None


def around_the_ring(held, group):
    """Yield each rank with its keys and values, beginning with this rank."""
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    for step in range(size):
        if step == size - 1:
            yield (rank - step) % size, held
            return
        arriving, requests = pass_on(held, group)
        yield (rank - step) % size, held  # the caller computes while the next keys and values travel
        held = receive(arriving, requests)


def pass_on(tensor, group):
    """Start sending to the next process and receiving from the previous process."""
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    if size == 1:
        return tensor, []
    arriving = torch.empty_like(tensor)
    send = dist.P2POp(dist.isend, tensor, group=group, group_peer=(rank + 1) % size)
    receive = dist.P2POp(dist.irecv, arriving, group=group, group_peer=(rank - 1) % size)
    return arriving, dist.batch_isend_irecv([send, receive])


def receive(arriving, requests):
    for request in requests:
        request.wait()
    return arriving


def blocks(query, owner, group, order):
    """Yield a tuple for each block that has to be computed: the slice of the queries, the
    slice of the owner's keys, and whether the two slices cover the same positions.

    If both cover the same positions, some keys are later than some queries and must be
    masked. A block whose keys are all later than its queries is left out.
    """
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    half = query.shape[-2] // 2
    halves = slice(0, half), slice(half, 2 * half)
    for number, mine in zip(chunks_of(rank, size, order), halves, strict=True):
        for other, theirs in zip(chunks_of(owner, size, order), halves, strict=True):
            if other <= number:
                yield mine, theirs, other == number


def score(query, key, masked):
    scores = (query / query.shape[-1] ** 0.5) @ key.mT
    if masked:
        later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
        scores = scores.masked_fill(later, -torch.inf)
    return scores


def merge(result, log_sum, more, more_log_sum):
    """Merge in the result for more keys, weighting both results by their softmax denominators."""
    total = torch.logaddexp(log_sum, more_log_sum)
    result.mul_((log_sum - total).exp()).add_(more * (more_log_sum - total).exp())
    log_sum.copy_(total)
