"""What each way of attention over sharded positions sends and keeps, and how far it is from one process."""

import s15_three_ways as ways
import torch
import torch.distributed as dist
from group import rank, world_size
from s15_alive import count_kept
from sockets import count_bytes
from torch.nn.functional import scaled_dot_product_attention

TEXTS, HEADS, LENGTH, SIZE = 2, 4, 1536, 64


def measure(name):
    way = getattr(ways, name)
    generator = torch.Generator().manual_seed(0)
    whole = [torch.randn(TEXTS, HEADS, LENGTH, SIZE, generator=generator).requires_grad_() for _ in range(3)]
    expected = scaled_dot_product_attention(*whole, is_causal=True)
    (expected**2).sum().backward()
    own = torch.arange(LENGTH).chunk(world_size)[rank]
    mask = torch.zeros(len(own), LENGTH).masked_fill(own[:, None] < torch.arange(LENGTH), -torch.inf)
    shards = [tensor.detach()[:, :, own].contiguous().requires_grad_() for tensor in whole]
    dist.barrier()
    before = count_bytes()
    result = way(*shards, mask)
    (result**2).sum().backward()
    dist.barrier()  # everything that was sent has been counted
    after = count_bytes()
    off = [(result - expected[:, :, own]).abs().max().item()]
    for mine, tensor in zip(shards, whole, strict=True):
        off.append((mine.grad - tensor.grad[:, :, own]).abs().max().item())
    kept = count_kept(lambda: way(*shards, mask))
    kept.pop(mask.untyped_storage().data_ptr(), None)  # all layers share one mask
    sent = after[0] - before[0] if after else None
    return {"off": max(off), "sent": sent, "kept": sum(kept.values())}
