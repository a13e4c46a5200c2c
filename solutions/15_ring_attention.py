"""Exercise 15: attention around a ring, with shared heads. 17 points, about 240 minutes.

The texts are too long for one process, so their positions are sharded: each process has the queries, keys and
values of some positions of every text. A query attends to all positions up to its own, and the keys and
values of most of these positions are on other processes. So the keys and values travel around the ring, one
shard at a time, and each process computes attention with the shard that it holds at the moment. A process
never holds the keys and values of more than three processes.

Tensors. `query`, `key` and `value` have the shape texts x heads x positions x size, with the positions of
this process only. These tensors may be views that are not contiguous, as in a real model. Do not change them.
`key` and `value` may have fewer heads than `query`, as described below. Output and log-sum-exp have as many
heads as `query`. A query at position p attends to the keys at positions 0 to p. A query's scores are its dot
products with these keys, each divided by the square root of the size. The output is the sum of the values,
weighted by the softmax of the scores.

Shared heads. In lesson 15, every head has its own keys and values. Most large models share them (grouped
query attention): with 6 query heads and 2 key-value heads, query heads 0, 1 and 2 use key-value head 0, and
query heads 3, 4 and 5 use key-value head 1. A shared head must not travel several times: keys, values and
their gradients are sent with as many heads as `key` has. The gradient of a shared head is the sum of the
gradients from all query heads that use it.

Attention in parts. With only some of the keys, the output for a query is a mean of their values,
weighted by a softmax over these keys alone. This softmax divides by the sum of exp(score). The output alone
no longer tells you this sum, but you need it to merge two outputs. So the logarithm of the sum is kept with
each output: the log-sum-exp, with the shape texts x heads x positions x 1. With no keys at all, the sum is 0,
its logarithm is -inf, and the output is zeros.

Numbers. In float32, exp(89) overflows and exp(-104) is 0, and the scores of a single head may lie outside
this range on both sides. So apply exp only to differences between numbers of similar size, as
`torch.logsumexp` and `torch.logaddexp` do. Note that -inf - (-inf) is NaN.

Zigzag. A text is split into chunks of the same size, two for each process. Rank 0 has the first and the last
chunk, rank 1 the second and the second to last, and so on. An early chunk, whose queries attend to few keys,
is paired with a late chunk, whose queries attend to many, so all processes have about the same work. The
early chunk is the first half of a process's positions, and the late chunk is the second half.

Backward. The softmax weights of a query always add up to 1: when one weight grows, the others shrink. This is
why the gradient of the score contains a number that is subtracted, the same number for all keys of a query.
Let `weights` be exp(score - log_sum_exp), where log_sum_exp covers all keys, and let `gradient` be the
gradient of the output. Then:

    gradient of the value:   weights.mT @ gradient
    gradient of the score:   weights * (gradient @ value.mT - (gradient * output).sum(-1, keepdim=True))

The process group already exists. All ranks call the same functions, with shards of the same size. The grader
removes PyTorch's own context parallelism; you may use everything else. The checks count
how many bytes each process sends to every other process, and ask the kernel how much memory it holds at most.

    15.1 (2 points)  which positions a rank has in zigzag order, and which halves meet
    15.2 (4 points)  attention over some of the keys
    15.3 (2 points)  merge two results into one
    15.4 (5 points)  forward around the ring
    15.5 (4 points)  backward around the ring
"""

import torch
import torch.distributed as dist


def pass_on(tensor):
    """Send a tensor to the right, and return the tensor of the same size that comes from the left. This
    function is complete.

    Right is rank + 1, or rank 0 for the last rank. With one process, nothing is sent.
    """
    world_size = dist.get_world_size()
    if world_size == 1:
        return tensor
    right, left = (dist.get_rank() + 1) % world_size, (dist.get_rank() - 1) % world_size
    outgoing, incoming = tensor.contiguous(), torch.empty(tensor.shape, dtype=tensor.dtype)
    messages = [dist.P2POp(dist.isend, outgoing, right), dist.P2POp(dist.irecv, incoming, left)]
    for request in dist.batch_isend_irecv(messages):
        request.wait()
    return incoming


def positions(length, rank, world_size):
    """Return the positions of a text that a rank has in zigzag order: a tensor of integers, ascending.

    `length` is a multiple of 2 * world_size. The grader calls this function for all ranks, not only for the
    rank of this process.
    """
    # cut 15.1: the positions that a rank has
    chunks = torch.arange(length).view(2 * world_size, -1)
    return torch.cat([chunks[rank], chunks[-1 - rank]])
    # end


def meetings(rank, owner):
    """Return which half of the queries on rank `rank` needs which half of the keys from rank `owner`.

    The result is a sorted list of pairs (half of the queries, half of the keys). Write 0 for the
    early chunk and 1 for the late chunk. Leave out a pair in which all keys are later than all queries,
    because no query attends to a later key. The result does not depend on the number of processes.
    """
    # cut 15.1: the halves that meet
    pairs = [(0, 0), (1, 0), (1, 1)]
    # Of two late chunks, the chunk of the smaller rank is later.
    if owner > rank:
        pairs.remove((0, 0))
    elif owner < rank:
        pairs.remove((1, 1))
    return pairs
    # end


def attend(query, key, value, query_positions, key_positions):
    """Attention over some of the keys. Return (output, log_sum_exp).

    `query_positions` and `key_positions` are 1-D tensors, and the positions may be in any order. The number
    of keys may differ from the number of queries, and some queries may attend to none of these keys. The
    function is never called without any keys: a caller without keys already knows the result, the zeros and
    -inf described above.
    """
    # cut 15.2: attention over some of the keys
    group = query.shape[1] // key.shape[1]
    key = key.repeat_interleave(group, 1)
    value = value.repeat_interleave(group, 1)
    scores = query @ key.mT / query.shape[-1] ** 0.5
    scores.masked_fill_(key_positions > query_positions.unsqueeze(1), float("-inf"))
    log_sum_exp = torch.logsumexp(scores, -1, keepdim=True)
    nothing = log_sum_exp.isneginf()  # where a query has no key, -inf - (-inf) would be NaN
    weights = (scores - log_sum_exp.masked_fill(nothing, 0)).exp()
    return weights @ value, log_sum_exp
    # end


def merge(output, log_sum_exp, new_output, new_log_sum_exp):
    """Return the output and log_sum_exp over the keys of both results: (output, log_sum_exp).

    No key is in both results. Weight each output by its sum of exp(score), divided by the total of both
    sums. Do not change the four tensors.
    """
    # cut 15.3: merge two results into one
    both = torch.logaddexp(log_sum_exp, new_log_sum_exp)
    divisor = both.masked_fill(both.isneginf(), 0)
    old_share = (log_sum_exp - divisor).exp()
    new_share = (new_log_sum_exp - divisor).exp()
    return old_share * output + new_share * new_output, both
    # end


def ring_forward(query, key, value):
    """Attention of this process's queries over the keys of all processes. Return (output, log_sum_exp).

    The positions are in zigzag order. Send keys and values to the right only. The keys and values of each
    process are sent world_size - 1 times, because after the last step no process needs them any more. At no
    time may a process hold the keys and values of more than three processes: its own, those that it computes
    with, and those that are arriving. The copy that pass_on makes of a view, in order to send it, does not
    count. Merge each result of attend at once: keeping the outputs of all steps would use up the memory that
    the ring saves. Do not multiply queries and keys of halves that do not meet (see `meetings`): if all keys
    of a half are later, nothing from this half, not even NaN, may get into the output.
    """
    # cut 15.4: forward around the ring
    rank, world_size = dist.get_rank(), dist.get_world_size()
    length = query.shape[-2] * world_size
    own_positions = positions(length, rank, world_size).chunk(2)
    queries = query.chunk(2, -2)
    found = []  # for each half of the queries: output and log_sum_exp over the keys so far
    for half in queries:
        found.append((torch.zeros_like(half), torch.full_like(half[..., :1], -torch.inf)))
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
    (early_output, early_sum), (late_output, late_sum) = found
    return torch.cat([early_output, late_output], -2), torch.cat([early_sum, late_sum], -2)
    # end


def ring_backward(query, key, value, output, log_sum_exp, gradient):
    """Return the gradients of this process's query, key and value, in this order.

    `output` and `log_sum_exp` are the results of ring_forward, and `gradient` is the gradient of the output.
    You compute the gradients yourself, so you need no autograd graph. The queries of every process contribute
    to the gradient of a key. So the gradient of a key travels around the ring with the key, each process adds
    its part, and at the end the gradient must be back on the process that the key came from. (The gradients
    of values travel in the same way.) Gradients may therefore be sent once more than keys and values, which
    are sent world_size - 1 times, as in ring_forward. The other rules of ring_forward hold too: everything is
    sent to the right, a process holds the keys, values and gradients of at most three processes, and halves
    that do not meet are not multiplied.
    """
    # cut 15.5: backward around the ring
    rank, world_size = dist.get_rank(), dist.get_world_size()
    length, scale = query.shape[-2] * world_size, query.shape[-1] ** -0.5
    group = query.shape[1] // key.shape[1]
    own_positions = positions(length, rank, world_size).chunk(2)
    queries = query.chunk(2, -2)
    sums = log_sum_exp.chunk(2, -2)
    output_gradients = gradient.chunk(2, -2)
    subtracted = (gradient * output).sum(-1, keepdim=True).chunk(2, -2)
    query_gradient = torch.zeros_like(query)
    held = torch.stack([key, value])
    gradients = torch.zeros_like(held)
    for step in range(world_size):
        owner = (rank - step) % world_size
        their_positions = positions(length, owner, world_size).chunk(2)
        for own, its in meetings(rank, owner):
            own_query, above = queries[own], output_gradients[own]
            its_key, its_value = held.chunk(2, -2)[its]
            its_key = its_key.repeat_interleave(group, 1)
            its_value = its_value.repeat_interleave(group, 1)

            later = their_positions[its] > own_positions[own].unsqueeze(1)
            scores = (own_query @ its_key.mT * scale).masked_fill(later, -torch.inf)
            weights = (scores - sums[own]).exp()
            scores_gradient = weights * (above @ its_value.mT - subtracted[own]) * scale
            query_gradient.chunk(2, -2)[own].add_(scores_gradient @ its_key)

            # All heads of queries that share a head of keys contribute to its gradient.
            its_gradients = gradients.chunk(2, -2)[its]
            of_key, of_value = scores_gradient.mT @ own_query, weights.mT @ above
            its_gradients[0].add_(of_key.unflatten(1, (-1, group)).sum(2))
            its_gradients[1].add_(of_value.unflatten(1, (-1, group)).sum(2))
        gradients = pass_on(gradients)
        if step + 1 < world_size:
            held = pass_on(held)
    return query_gradient, *gradients
    # end
