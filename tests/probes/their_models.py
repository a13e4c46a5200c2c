"""Models and scripts as other people write them, in which the lines to copy from our pages are tried.

A page's comment `<!-- try: ... -->` is such a script, and begins as if with `from their_models import *`.
tests/test_page_lines.py runs it.
"""
# ruff: noqa: F401 (the lines of the pages use the imports)

import argparse
import copy
import gc
import os
import random
import signal
import sys
import tempfile
import threading
import time
import types
from contextlib import nullcontext
from datetime import timedelta
from itertools import islice
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.nn  # before init_process_group, or gloo may abort the process at exit
import torch.multiprocessing as mp
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    loss_parallel,
    parallelize_module,
)
from torch.nn.functional import cross_entropy, scaled_dot_product_attention
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import clip_grad_norm_
from torch.optim.lr_scheduler import CosineAnnealingLR, OneCycleLR, ReduceLROnPlateau
from torch.utils.data import (
    DataLoader,
    DistributedSampler,
    IterableDataset,
    TensorDataset,
    WeightedRandomSampler,
    get_worker_info,
)
from tqdm import tqdm

# ---- what a script has before it becomes one for several processes

rank, world_size = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
local_rank = int(os.environ.get("LOCAL_RANK", 0))
if torch.cuda.is_available():
    torch.cuda.set_device(local_rank)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
seed, epochs, batch_size = 0, 5, 8
size = batch_size // world_size

torch.manual_seed(seed)
inputs = torch.randn(48, 3)
labels = (inputs.sum(dim=1) > 0).long()
train_set = TensorDataset(inputs, labels)
characters = torch.randint(8, (4, 9)).to(device)
texts, following = characters[:, :-1].clone(), characters[:, 1:].clone()


def connect():
    backend = dist.get_default_backend_for_device(device)
    device_id = torch.device("cuda", local_rank) if device.type == "cuda" else None
    dist.init_process_group(backend, device_id=device_id, timeout=timedelta(seconds=60))


def gather(value):
    """The values of all processes, ordered by rank."""
    values = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values


def whole(tensor):
    """A parameter or a gradient as one process would have it, on the CPU."""
    if isinstance(tensor, DTensor):
        tensor = tensor.full_tensor()
    return tensor.detach().cpu()


def same_weights(model, other):
    """Fail unless two models have the same weights, up to rounding. Every process must call this."""
    for (name, one), two in zip(model.named_parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(
            whole(one), whole(two), rtol=1e-4, atol=1e-5, msg=lambda text, name=name: f"{name}: {text}"
        )


def same_on_all_ranks(model):
    """Fail unless the processes have the same weights and the same running statistics."""
    for name, tensor in model.state_dict().items():
        values = gather(tensor.cpu())
        assert all(torch.equal(value, values[0]) for value in values), f"{name} differs between ranks"


# ---- models


def mlp():
    """Layers in a row."""
    return nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 2))


def with_batch_norm():
    return nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))


class FineTuned(nn.Module):
    """A frozen backbone with a new head, as in transfer learning."""

    def __init__(self):
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(3, 8), nn.Tanh())
        self.backbone.requires_grad_(False)
        self.head = nn.Linear(8, 2)

    def forward(self, images):
        return self.head(self.backbone(images))


class WithUnused(nn.Module):
    """A branch that this training does not use."""

    def __init__(self):
        super().__init__()
        self.body, self.auxiliary = mlp(), nn.Linear(8, 2)

    def forward(self, images):
        return self.body(images)


class Scale(nn.Module):
    """A parameter of its own, and no reset_parameters."""

    def __init__(self, width):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(width))

    def forward(self, hidden):
        return hidden * self.scale


class Normalized(nn.Module):
    """Buffers, and no parameter."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.full((3,), 0.1))
        self.register_buffer("deviation", torch.full((3,), 1.1))

    def forward(self, images):
        return (images - self.mean) / self.deviation


class Tied(nn.Module):
    """An autoencoder whose second layer is the first one, transposed."""

    def __init__(self):
        super().__init__()
        self.encode, self.decode = nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False)
        self.decode.weight = self.encode.weight
        self.head = nn.Linear(3, 2)

    def forward(self, images):
        return self.head(self.decode(torch.tanh(self.encode(images))))


class Attention(nn.Module):
    """Attention as most people write it, in three ways to say how many heads there are."""

    def __init__(self, width, heads, view):
        super().__init__()
        self.query, self.key = nn.Linear(width, width, bias=False), nn.Linear(width, width, bias=False)
        self.value, self.project = nn.Linear(width, width, bias=False), nn.Linear(width, width, bias=False)
        self.heads, self.head_width, self.view = heads, width // heads, view

    def split(self, hidden):
        batch, length, _ = hidden.shape
        if self.view == "heads, width":
            hidden = hidden.view(batch, length, self.heads, self.head_width)
        if self.view == "heads, -1":
            hidden = hidden.view(batch, length, self.heads, -1)
        if self.view == "-1, width":
            hidden = hidden.view(batch, length, -1, self.head_width)
        return hidden.transpose(1, 2)

    def forward(self, hidden):
        query, key, value = (
            self.split(self.query(hidden)),
            self.split(self.key(hidden)),
            self.split(self.value(hidden)),
        )
        attended = self.attend(query, key, value)
        return self.project(attended.transpose(1, 2).flatten(2))

    def attend(self, query, key, value):
        return scaled_dot_product_attention(query, key, value, is_causal=True)


class FeedForward(nn.Module):
    def __init__(self, width, bias=True):
        super().__init__()
        self.up, self.down = nn.Linear(width, 4 * width, bias), nn.Linear(4 * width, width, bias)

    def forward(self, hidden):
        return self.down(nn.functional.gelu(self.up(hidden)))


class Block(nn.Module):
    def __init__(self, width, heads, view, dropout):
        super().__init__()
        self.attention_norm, self.feed_forward_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention, self.feed_forward = Attention(width, heads, view), FeedForward(width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, hidden):
        hidden = hidden + self.dropout(self.attention(self.attention_norm(hidden)))
        return hidden + self.dropout(self.feed_forward(self.feed_forward_norm(hidden)))


class GPT(nn.Module):
    """A small language model: in the style of nanoGPT if its embedding and its head are tied."""

    def __init__(self, view="-1, width", characters=8, width=16, heads=4, dropout=0.0, tied=False, blocks=2):
        super().__init__()
        self.embedding, self.place = nn.Embedding(characters, width), nn.Embedding(8, width)
        self.blocks = nn.ModuleList([Block(width, heads, view, dropout) for _ in range(blocks)])
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, characters, bias=False)
        if tied:
            self.head.weight = self.embedding.weight

    def forward(self, texts, positions=None):
        if positions is None:
            positions = torch.arange(texts.shape[1], device=texts.device)
        hidden = self.embedding(texts) + self.place(positions)
        for block in self.blocks:
            hidden = block(hidden)
        return self.head(self.norm(hidden))


class Mixture(nn.Module):
    """A router, four experts and, as in DeepSeek's models, an expert that every token visits."""

    def __init__(self, width=8, experts=4):
        super().__init__()
        self.router = nn.Linear(width, experts, bias=False)
        self.experts = nn.Parameter(torch.randn(experts, width, width) * 0.3)
        self.shared_experts = FeedForward(width)
        self.mesh = None

    def shard(self, mesh):
        self.experts = nn.Parameter(distribute_tensor(self.experts.detach(), mesh, [Shard(0)]))
        self.mesh = mesh

    def forward(self, tokens):
        self.scores = self.router(tokens)
        weights, chosen = self.scores.softmax(dim=1).max(dim=1)
        visit = self.visit if self.mesh is None else self.visit_everywhere
        return tokens + self.shared_experts(tokens) + weights[:, None] * visit(tokens, chosen)

    def visit(self, tokens, chosen):
        return torch.bmm(tokens[:, None], self.experts[chosen])[:, 0]

    def visit_everywhere(self, tokens, chosen):
        """All processes see all tokens, and each adds what its experts make of their tokens."""
        own, mesh = self.experts.to_local(), self.mesh
        all_tokens = DTensor.from_local(tokens, mesh, [Shard(0)]).full_tensor(grad_placements=[Partial()])
        all_chosen = DTensor.from_local(chosen, mesh, [Shard(0)]).full_tensor()
        number = all_chosen - mesh.get_local_rank() * len(own)
        is_own = (number >= 0) & (number < len(own))
        answers = torch.bmm(all_tokens[:, None], own[number.clamp(0, len(own) - 1)])[:, 0] * is_own[:, None]
        return DTensor.from_local(answers, mesh, [Partial()]).redistribute(mesh, [Shard(0)]).to_local()


class WithExperts(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.mixture, self.head = nn.Linear(3, 8), Mixture(), nn.Linear(8, 2)

    def forward(self, images):
        return self.head(self.mixture(self.body(images)))


# ---- scripts


class Trainer:
    """The class around which PyTorch's own series on DDP builds its script."""

    def __init__(self, model, train_data, optimizer):
        self.gpu_id = device
        self.model = model.to(self.gpu_id)
        self.train_data, self.optimizer = train_data, optimizer
        self.losses = []

    def _run_batch(self, source, targets):
        self.optimizer.zero_grad()
        loss = cross_entropy(self.model(source), targets)
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    def _run_epoch(self, epoch):
        for source, targets in self.train_data:
            self.losses.append(self._run_batch(source.to(self.gpu_id), targets.to(self.gpu_id)))

    def _save_checkpoint(self, path):
        torch.save(self.model.state_dict(), path)

    def train(self, max_epochs):
        for epoch in range(max_epochs):
            self._run_epoch(epoch)


def train_alone(model, optimizer, batches):
    """What one process makes of these batches."""
    for source, targets in batches:
        loss = cross_entropy(model(source.to(device)), targets.to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def batches_of(epoch, rank=0, world_size=1):
    """The batches of an epoch that a process loads, or all of them: those that one process would load."""
    sampler = DistributedSampler(train_set, world_size, rank, seed=seed, drop_last=True)
    sampler.set_epoch(epoch)
    return list(DataLoader(train_set, batch_size // world_size, sampler=sampler, drop_last=True))


def batches_of_all_epochs():
    return [batch for epoch in range(1, epochs + 1) for batch in batches_of(epoch)]


def loss_of(model):
    model.eval()
    with torch.no_grad():
        loss = cross_entropy(model(inputs.to(device)), labels.to(device)).item()
    model.train()
    return loss
