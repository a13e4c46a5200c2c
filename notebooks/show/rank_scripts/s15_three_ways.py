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
    """Fetch all keys and values, and attend with the queries of this process."""
    all_keys = join_positions(AllGather.apply(key))
    all_values = join_positions(AllGather.apply(value))
    return scaled_dot_product_attention(query, all_keys, all_values, attn_mask=mask)


def ulysses(query, key, value, mask):
    """Attend with some of the heads to all positions. No mask is needed but the causal one."""
    query = to_all_positions(query)
    key = to_all_positions(key)
    value = to_all_positions(value)
    result = scaled_dot_product_attention(query, key, value, is_causal=True)
    return to_all_heads(result)


def to_all_positions(shard):
    """From some positions of all heads to all positions of some heads."""
    by_head = torch.stack(shard.chunk(dist.get_world_size(), dim=1))  # part n is for process n
    return join_positions(AllToAll.apply(by_head))


def to_all_heads(result):
    """The way back: from all positions of some heads to some positions of all heads."""
    by_position = torch.stack(result.chunk(dist.get_world_size(), dim=2))
    received = AllToAll.apply(by_position)
    return torch.cat(received.unbind(), dim=1)


def join_positions(parts):
    """One text from the parts of all processes: part n has the positions of process n."""
    return torch.cat(parts.unbind(), dim=2)
