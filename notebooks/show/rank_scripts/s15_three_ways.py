"""Three ways to compute attention over sharded positions. The order is contiguous: rank 0 has the first."""

import torch
import torch.distributed as dist
from torch.nn.functional import scaled_dot_product_attention

from parts.ring_attention import ring_attention


class AllGather(torch.autograd.Function):
    """The shards of all processes, one after the other."""

    @staticmethod
    def forward(ctx, shard):
        whole = torch.empty(dist.get_world_size(), *shard.shape)
        dist.all_gather(list(whole), shard.contiguous())
        return whole

    @staticmethod
    def backward(ctx, whole_grad):
        # A reduce-scatter in two lines: gloo's own sends twice as many bytes as necessary.
        grads = torch.empty(whole_grad.shape)
        dist.all_to_all_single(grads, whole_grad.contiguous())
        return grads.sum(dim=0)


class AllToAll(torch.autograd.Function):
    """Send part n to process n. Part n of the result comes from process n."""

    @staticmethod
    def forward(ctx, parts):
        received = torch.empty(parts.shape)
        dist.all_to_all_single(received, parts.contiguous())
        return received

    @staticmethod
    def backward(ctx, received_grad):
        return AllToAll.forward(ctx, received_grad)  # the same way back


def ring(query, key, value, mask):
    return ring_attention(query, key, value, dist.group.WORLD, "contiguous")


def gather(query, key, value, mask):
    shards = (AllGather.apply(shard) for shard in (key, value))  # of all processes
    key, value = (each.movedim(0, 2).flatten(2, 3) for each in shards)
    return scaled_dot_product_attention(query, key, value, attn_mask=mask)


def ulysses(query, key, value, mask):
    def all_positions(shard):  # of some heads
        heads = shard.unflatten(1, (dist.get_world_size(), -1)).movedim(1, 0)
        return AllToAll.apply(heads).movedim(0, 2).flatten(2, 3)

    query, key, value = map(all_positions, (query, key, value))
    result = scaled_dot_product_attention(query, key, value, is_causal=True)
    chunks = result.unflatten(2, (dist.get_world_size(), -1)).movedim(2, 0)
    return AllToAll.apply(chunks).movedim(0, 1).flatten(1, 2)
