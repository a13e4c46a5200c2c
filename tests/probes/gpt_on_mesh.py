"""Lesson 13 on 2 x 2: what each process holds, its gradients, and what each would write; RANK.json."""

import gc
import importlib
import json
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy

from meshes import limerick_arguments
from parts import limericks

gpt = importlib.import_module("13_gpt")
dist.init_process_group("gloo")
rank = dist.get_rank()
mesh = dist.init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tensor"))
arguments = limerick_arguments(28, 700)
characters, train_set, _ = limericks.load(arguments)
texts, following = train_set[100:104]


def loss_of(scores, following):
    return cross_entropy(scores.flatten(0, 1), following.flatten())


torch.manual_seed(0)
whole = gpt.build_model(len(characters))
loss_of(whole(texts), following).backward()
torch.manual_seed(0)
model = gpt.build_model(len(characters))
gpt.shard(model, mesh)
held = {name: list(value.to_local().shape) for name, value in model.named_parameters()}
share = mesh["data"].get_local_rank()
loss_of(model(texts[share::2]).full_tensor(), following[share::2]).backward()
largest = max(value.grad.abs().max().item() for value in whole.parameters())
off = max(  # of the largest: a key's bias has no gradient at all, but for the rounding
    (mine.grad.full_tensor() - value.grad).abs().max().item() / largest
    for value, mine in zip(whole.parameters(), model.parameters(), strict=True)
)

seen = []
limericks.show = lambda when, texts, characters: seen.append(texts.tolist())
for seed, temperature in ((0, 1.0), (0, 1.0), (1, 1.0), (0, 1e-5)):
    arguments.seed, arguments.temperature = seed, temperature
    limericks.write("", 24, model, characters, torch.device("cpu"), arguments)
sizes = {name: list(value.shape) for name, value in whole.named_parameters()}
Path(f"{rank}.json").write_text(json.dumps({"held": held, "sizes": sizes, "off": off, "seen": seen}))
gc.collect()
dist.destroy_process_group()
