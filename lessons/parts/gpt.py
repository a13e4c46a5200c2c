"""Lesson 18's model: a GPT as language models are built today.

Compared with GPT-2, RMSNorm replaces LayerNorm, queries and keys are rotated by their positions (RoPE)
instead of adding an embedding of the position, a gated layer (SwiGLU) replaces GELU, and no layer has a
bias. The embedding of the tokens also computes the scores at the end.
"""

import torch
from torch import nn
from torch.nn.functional import linear, scaled_dot_product_attention, silu


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(width, width, bias=False)
        self.key = nn.Linear(width, width, bias=False)
        self.value = nn.Linear(width, width, bias=False)
        self.project = nn.Linear(width, width, bias=False)

    def forward(self, x, cosine, sine):
        query = rotate(self.by_head(self.query(x)), cosine, sine)
        key = rotate(self.by_head(self.key(x)), cosine, sine)
        value = self.by_head(self.value(x))
        mixed = scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.project(mixed.transpose(1, 2).flatten(2))

    def by_head(self, x):
        return x.unflatten(2, (self.heads, -1)).transpose(1, 2)


def angles(length, size, device):
    """RoPE's angles. Pair number i of a head turns by 10000^(-i / pairs) from one position to the next."""
    pairs = size // 2
    speeds = 10_000 ** -(torch.arange(pairs, dtype=torch.float64, device=device) / pairs)
    positions = torch.arange(length, dtype=torch.float64, device=device)
    return torch.outer(positions, speeds)


def rotate(x, cosine, sine):
    """Rotate pairs of numbers, so that query times key depends on the distance between their positions."""
    first, second = x.chunk(2, dim=-1)
    rotated = [first * cosine - second * sine, first * sine + second * cosine]
    return torch.cat(rotated, dim=-1).type_as(x)


class SwiGLU(nn.Module):
    def __init__(self, width):
        super().__init__()
        # Three matrices of 8/3 have as many weights as the usual two of 4. A multiple of 64 suits GPUs.
        inner = (width * 8 // 3 + 63) // 64 * 64
        self.gate = nn.Linear(width, inner, bias=False)
        self.up = nn.Linear(width, inner, bias=False)
        self.down = nn.Linear(inner, width, bias=False)

    def forward(self, x):
        return self.down(silu(self.gate(x)) * self.up(x))


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.attention_norm = nn.RMSNorm(width)
        self.attention = Attention(width, heads)
        self.feed_forward_norm = nn.RMSNorm(width)
        self.feed_forward = SwiGLU(width)

    def forward(self, x, cosine, sine):
        x = x + self.attention(self.attention_norm(x), cosine, sine)
        return x + self.feed_forward(self.feed_forward_norm(x))


class GPT(nn.Module):
    def __init__(self, vocabulary, width, heads, layers):
        super().__init__()
        self.head_size = width // heads
        self.embedding = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.RMSNorm(width)
        for name, weight in self.named_parameters():
            if weight.dim() == 2:
                nn.init.normal_(weight, std=0.02)
            if name.endswith(("project.weight", "down.weight")):
                # Each block adds two of these outputs to x. Without this, x would grow with the depth.
                nn.init.normal_(weight, std=0.02 / (2 * layers) ** 0.5)

    def forward(self, tokens):
        """The scores of all tokens that may come next, at each position."""
        # As buffers, these tables would be broadcast by DDP in every forward pass.
        table = angles(tokens.shape[1], self.head_size, tokens.device)
        cosine, sine = (part.to(self.embedding.weight.dtype) for part in (table.cos(), table.sin()))
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x, cosine, sine)
        return linear(self.norm(x), self.embedding.weight)


def flops_per_token(model, length):
    """Of forward and backward: 6 per weight, and the products of attention (PaLM's paper, appendix B)."""
    weights = sum(weight.numel() for weight in model.parameters())
    return 6 * weights + 12 * len(model.blocks) * model.embedding.embedding_dim * length
