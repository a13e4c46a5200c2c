"""The small transformer of lessons 11, 12, 13, 15, 16 and 17.

Sharding plans refer to the transformer's layers by name. Attention works with any number
of heads: all of them, or only those that one process holds.
"""

import torch
from torch import nn
from torch.nn.functional import gelu, scaled_dot_product_attention

import workload


class Attention(nn.Module):
    def __init__(self, hidden, head_size, causal):
        super().__init__()
        self.head_size = head_size
        self.causal = causal
        self.query = nn.Linear(hidden, hidden)
        self.key = nn.Linear(hidden, hidden)
        self.value = nn.Linear(hidden, hidden)
        self.project = nn.Linear(hidden, hidden)

    def forward(self, x):
        query = self.by_head(self.query(x))
        key = self.by_head(self.key(x))
        value = self.by_head(self.value(x))
        mixed = self.attend(query, key, value)
        return self.project(mixed.transpose(1, 2).flatten(-2))

    def attend(self, query, key, value):  # lessons 15 and 17 replace this function
        return scaled_dot_product_attention(query, key, value, is_causal=self.causal)

    def by_head(self, x):
        return x.unflatten(-1, (-1, self.head_size)).transpose(1, 2)  # -1 is this process's number of heads


class FeedForward(nn.Module):
    def __init__(self, hidden):
        super().__init__()
        self.up = nn.Linear(hidden, 4 * hidden)
        self.down = nn.Linear(4 * hidden, hidden)

    def forward(self, x):
        return self.down(gelu(self.up(x)))


class Block(nn.Module):
    def __init__(self, hidden, head_size, causal):
        super().__init__()
        self.attention_norm = nn.LayerNorm(hidden)
        self.attention = Attention(hidden, head_size, causal)
        self.feed_forward_norm = nn.LayerNorm(hidden)
        self.feed_forward = FeedForward(hidden)

    def forward(self, x):
        x = x + self.attention(self.attention_norm(x))
        return x + self.feed_forward(self.feed_forward_norm(x))


class Transformer(nn.Module):
    """An embedding, blocks, a norm and a head. Each lesson passes its own embedding and head.

    The head predicts one label for an image, or one character for each position of a text.
    """

    def __init__(self, embedding, head, length, hidden=64, heads=4, layers=2, causal=False):
        super().__init__()
        if hidden % heads:
            workload.refuse(f"--width {hidden} does not divide by {heads} heads")
        self.embedding = embedding
        self.head = head
        self.position = nn.Embedding(length, hidden)
        self.blocks = nn.ModuleList(Block(hidden, hidden // heads, causal) for _ in range(layers))
        self.norm = nn.LayerNorm(hidden)

    def forward(self, x, positions=None):
        x = self.embed(x, positions)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))

    def embed(self, x, positions):  # in lesson 17, stages after the first skip this
        x = self.embedding(x)
        if positions is None:
            positions = torch.arange(x.shape[1], device=x.device)
        return x + self.position(positions)


class ImageTransformer(Transformer):
    """Reads an image row by row: each row of each channel is one position in the sequence."""

    def __init__(self, shape, hidden=32, heads=4):
        channels, height, width = shape
        embedding = nn.Sequential(workload.Normalize(), nn.Flatten(1, 2), nn.Linear(width, hidden))
        head = nn.Sequential(MeanOverPositions(), nn.Linear(hidden, 10))
        super().__init__(embedding, head, channels * height, hidden, heads)


class MeanOverPositions(nn.Module):
    def forward(self, x):
        return x.mean(dim=1)
