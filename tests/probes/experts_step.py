"""The layer of lesson 16, forward and backward, beside one that sends all tokens to all experts; RANK.json.

That one knows of no process: each token passes every expert, and what it was not sent to is times 0.
"""

import importlib
import json
import math
from pathlib import Path
from types import SimpleNamespace

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.functional import gelu

from parts import experts

CASES = {
    "one each": {},
    "two each": {"experts_per_token": 2},
    "limited": {"experts_per_token": 2, "capacity": 0.75},
    "all to the last": {"alike": True},
}
lesson = importlib.import_module("16_experts")
dist.init_process_group("gloo")
rank, world_size = dist.get_rank(), dist.get_world_size()
mesh = init_device_mesh("cpu", (world_size,))
all_to_all_single, sent = dist.all_to_all_single, []


def counted(arrived, rows, received, to):
    """Bytes that leave this process."""
    sent.append((sum(to) - to[rank]) * rows[0:1].nbytes if len(rows) else 0)
    return all_to_all_single(arrived, rows, received, to)


dist.all_to_all_single = counted


def choices(chances, settings):
    """1 where a token (down) is sent to an expert (across), else 0."""
    chosen = chances.topk(settings.experts_per_token).indices
    mask = torch.zeros_like(chances).scatter(1, chosen, 1)
    load = mask.sum(dim=0) / mask.sum()
    if settings.capacity:
        own = len(chances) // world_size
        limit = math.ceil(settings.capacity * own * settings.experts_per_token / settings.experts)
        for first in range(0, len(chances), own):  # a process
            taken = [0] * settings.experts
            for choice in range(settings.experts_per_token):
                for token in range(first, first + own):
                    expert = chosen[token, choice].item()
                    taken[expert] += 1
                    if taken[expert] > limit:
                        mask[token, expert] = 0
    return mask, load


def step(alike=False, **changed):
    settings = {"width": 8, "experts": 4, "experts_per_token": 1, "capacity": None, "balance": 0.5}
    settings = SimpleNamespace(**settings | changed)
    torch.manual_seed(3)
    layer = experts.Experts(settings)
    x, wanted = torch.randn(4, 6, 8), torch.randn(4, 6, 8)
    if alike:
        x = x.abs()
        layer.router.weight.data[3] = 9
    weights = {name: value.detach().clone().requires_grad_() for name, value in layer.named_parameters()}

    tokens = x.flatten(0, 1).requires_grad_()
    chances = (tokens @ weights["router.weight"].T).softmax(dim=1)
    mask, load = choices(chances, settings)
    every = torch.stack([gelu(tokens @ weights["up"][e]) @ weights["down"][e] for e in range(4)])
    answers = torch.einsum("te,eth->th", chances * mask, every)
    balance = 0.5 * 4 * (load * chances.mean(dim=0)).sum()
    ((answers * wanted.flatten(0, 1)).mean() + balance).backward()

    layer.shard(mesh)
    batch = slice(rank * 4 // world_size, (rank + 1) * 4 // world_size)
    own = slice(rank * 24 // world_size, (rank + 1) * 24 // world_size)
    part = batch  # of the experts: there are as many as texts
    mine = x[batch].clone().requires_grad_()
    sent.clear()
    result = layer(mine)
    (((result * wanted[batch]).mean() + layer.balance) / world_size).backward()
    lesson.add_up_gradients(layer)
    pairs = {
        "answers": (result.flatten(0, 1), answers[own]),
        "x": (mine.grad.flatten(0, 1), tokens.grad[own]),
        "router": (layer.router.weight.grad, weights["router.weight"].grad),
        "up": (layer.up.grad.to_local(), weights["up"].grad[part]),
        "down": (layer.down.grad.to_local(), weights["down"].grad[part]),
        "load": (layer.load, load),
    }
    leave = mask[own].sum() - mask[own, part].sum()
    come = mask[:, part].sum() - mask[own, part].sum()
    return {
        "off": {name: (a - b).abs().max().item() for name, (a, b) in pairs.items()},
        "sizes": {name: b.abs().max().item() for name, (_, b) in pairs.items()},
        "sent": list(sent),
        "expected": [int(count) * 8 * 4 for count in (leave, come, leave, come)],
        "held": len(layer.up.to_local()),
        "dropped": int(24 * settings.experts_per_token - mask.sum()),
        "load": layer.load.tolist(),
    }


Path(f"{rank}.json").write_text(json.dumps({name: step(**case) for name, case in CASES.items()}))
dist.destroy_process_group()
