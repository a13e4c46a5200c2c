"""The model of lessons 11 and 12: a small transformer, whose layers have names to shard by.

Attention works with the heads that it finds, all of them or one process's share.
"""

import torch
from torch import nn
from torch.nn.functional import gelu, scaled_dot_product_attention


class Attention(nn.Module):
    def __init__(self, hidden, head_size, causal):
        super().__init__()
        self.head_size, self.causal = head_size, causal
        self.query, self.key, self.value = (nn.Linear(hidden, hidden) for _ in range(3))
        self.project = nn.Linear(hidden, hidden)

    def forward(self, x):
        query, key, value = (
            part(x).unflatten(-1, (-1, self.head_size)).transpose(1, 2)  # -1: only the heads that are here
            for part in (self.query, self.key, self.value)
        )
        mixed = scaled_dot_product_attention(query, key, value, is_causal=self.causal)
        return self.project(mixed.transpose(1, 2).flatten(-2))


class FeedForward(nn.Module):
    def __init__(self, hidden):
        super().__init__()
        self.up, self.down = nn.Linear(hidden, 4 * hidden), nn.Linear(4 * hidden, hidden)

    def forward(self, x):
        return self.down(gelu(self.up(x)))


class Block(nn.Module):
    def __init__(self, hidden, head_size, causal):
        super().__init__()
        self.attention_norm, self.attention = nn.LayerNorm(hidden), Attention(hidden, head_size, causal)
        self.feed_forward_norm, self.feed_forward = nn.LayerNorm(hidden), FeedForward(hidden)

    def forward(self, x):
        x = x + self.attention(self.attention_norm(x))
        return x + self.feed_forward(self.feed_forward_norm(x))


class Transformer(nn.Module):
    """What comes in goes through `embedding`; what goes out is the last state of each place, normed.

    The head that turns it into answers is the lesson's: one label for an image, or one character for each
    place of a text.
    """

    def __init__(self, embedding, head, length, hidden=64, heads=4, layers=2, causal=False):
        super().__init__()
        self.embedding, self.head = embedding, head
        self.position = nn.Embedding(length, hidden)
        self.blocks = nn.ModuleList(Block(hidden, hidden // heads, causal) for _ in range(layers))
        self.norm = nn.LayerNorm(hidden)

    def forward(self, x):
        x = self.embedding(x)
        x = x + self.position(torch.arange(x.shape[1], device=x.device))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))
