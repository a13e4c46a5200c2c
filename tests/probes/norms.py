"""lessons/port/batch_norm.py on two processes against PyTorch's own on one: outputs, gradients, buffers."""

import copy
import itertools
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

sys.path.append(str(Path(__file__).resolve().parents[2] / "lessons/port"))
import batch_norm

dist.init_process_group("gloo")
rank, world_size = dist.get_rank(), dist.get_world_size()
KINDS = {  # the type of the inputs, and how far results may be from those on one process
    "float64": (torch.float64, 1e-12),
    "float32": (torch.float32, 1e-5),
    "autocast": (torch.float32, 1e-5),
    "bfloat16": (torch.bfloat16, 0.04),
    "module in bfloat16": (torch.bfloat16, 0.04),
}
for affine, momentum, track, kind in itertools.product((True, False), (0.1, None), (True, False), KINDS):
    torch.manual_seed(0)
    dtype, allowed = KINDS[kind]
    plain = nn.BatchNorm2d(3, affine=affine, momentum=momentum, track_running_stats=track)
    if affine:
        nn.init.uniform_(plain.weight)
        nn.init.uniform_(plain.bias)
    if kind in ("float64", "module in bfloat16"):
        plain.to(dtype)
    ours = batch_norm.convert(copy.deepcopy(plain), "cpu")
    pairs = []
    for training in (True, True, False):
        if not training and not track:
            continue  # without running statistics, each process uses those of its own batch, as SyncBatchNorm
        plain.train(training)
        ours.train(training)
        inputs, factors = (torch.randn(8, 3, 4, 4).to(dtype) for _ in range(2))
        whole, part = inputs.clone().requires_grad_(), inputs[rank::world_size].clone().requires_grad_()
        with torch.autocast("cpu", enabled=kind == "autocast"):
            outputs, own = plain(whole), ours(part)
        (outputs * factors).sum().backward()
        (own * factors[rank::world_size]).sum().backward()
        pairs += [(own, outputs[rank::world_size]), (part.grad, whole.grad[rank::world_size])]
    pairs += list(zip(ours.buffers(), plain.buffers(), strict=True))
    for mine, expected in pairs:
        torch.testing.assert_close(mine, expected, rtol=allowed, atol=allowed)
dist.destroy_process_group()
