"""Lesson 12, grown from lesson 11: a small GPT that four processes hold a quarter of each.

    torchrun --standalone --nproc-per-node 4 lessons/12_gpt.py
"""

from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import transformer


def build_model(characters, length=128, hidden=64, heads=4, layers=2):
    """A transformer that answers, for each place of a text, which of the characters comes next."""
    embedding, head = nn.Embedding(characters, hidden), nn.Linear(hidden, characters)
    return transformer.Transformer(embedding, head, length, hidden, heads, layers, causal=True)


def shard(model, mesh):
    """Cut every matrix twice: over mesh["tensor"] by heads and neurons, and what is left over mesh["data"]."""
    plan = {
        "embedding": ColwiseParallel(output_layouts=Replicate()),
        "position": ColwiseParallel(output_layouts=Replicate()),
        "head": ColwiseParallel(use_local_output=False),
    }
    plan |= {f"blocks.*.attention.{name}": ColwiseParallel() for name in ("query", "key", "value")}
    plan |= {
        "blocks.*.attention.project": RowwiseParallel(),
        "blocks.*.feed_forward.up": ColwiseParallel(),
        "blocks.*.feed_forward.down": RowwiseParallel(),
    }
    parallelize_module(model, mesh["tensor"], plan)
    for block in model.blocks:
        fully_shard(block, mesh=mesh["data"])
    return fully_shard(model, mesh=mesh["data"])
