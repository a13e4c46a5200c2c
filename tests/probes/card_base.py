"""What a script has before the lines of a card are pasted into it. A test writes both into one file."""
# ruff: noqa: F401 (the cards use the imports)

import os
import signal
import sys
import threading
import time
from datetime import timedelta
from itertools import islice
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.nn
import torch.multiprocessing as mp
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.distributed.tensor import DTensor, Partial, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    loss_parallel,
    parallelize_module,
)
from torch.nn.functional import cross_entropy, scaled_dot_product_attention
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class Attention(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.query, self.key, self.value, self.project = (nn.Linear(width, width) for _ in range(4))

    def forward(self, hidden):
        parts = (layer(hidden) for layer in (self.query, self.key, self.value))
        heads = [part.unflatten(2, (-1, 4)).transpose(1, 2) for part in parts]
        attended = scaled_dot_product_attention(*heads, is_causal=True)
        return self.project(attended.transpose(1, 2).flatten(2))


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.attention = Attention(width)
        up, down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.feed_forward = nn.ModuleDict({"up": up, "down": down})

    def forward(self, hidden):
        hidden = hidden + self.attention(hidden)
        return hidden + self.feed_forward["down"](torch.tanh(self.feed_forward["up"](hidden)))


class Transformer(nn.Module):
    def __init__(self, width=16, characters=8):
        super().__init__()
        self.embedding, self.head = nn.Embedding(characters, width), nn.Linear(width, characters)
        self.blocks = nn.ModuleList([Block(width) for _ in range(2)])

    def forward(self, texts):
        hidden = self.embedding(texts)
        for block in self.blocks:
            hidden = block(hidden)
        return self.head(hidden).clone()  # FSDP warns about a view


def make_model():
    return nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 8), nn.Linear(8, 2))


rank, world_size = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
device, backend = torch.device("cpu"), "gloo"
torch.manual_seed(0)
inputs = torch.randn(48, 3)
labels = (inputs.sum(dim=1) > 0).long()
train_set = TensorDataset(inputs, labels)
images, seed, epochs, batch_size = inputs, 0, 5, 8
model = make_model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs)
train_loader = DataLoader(train_set, batch_size, shuffle=True)
whole_loss = cross_entropy(model(images), labels).item()  # before training


def loss_now():
    return cross_entropy(model(images), labels).item()
