"""A step of lesson 11, 12, 13, 15, 16 or 17 as each process sees it, beside one that does it alone.

The words: the lesson's number, and what the function below takes. What it finds goes into RANK.json.
"""

import gc
import hashlib
import importlib
import json
import math
import sys
from pathlib import Path
from types import SimpleNamespace

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import parallelize_module
from torch.nn.functional import cross_entropy, gelu, scaled_dot_product_attention
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

import workload
from parts import experts, limericks, one_mesh, ring_attention
from parts.transformer import ImageTransformer
from planner import dry_run
from tests.helpers.probe_runs import ROOT, limerick_arguments

NUMBER, *WORDS = sys.argv[1:]
CPU = torch.device("cpu")
(path,) = (ROOT / "lessons").glob(f"{NUMBER}_*.py")
lesson = importlib.import_module(path.stem)


def seeded(build, *arguments):
    torch.manual_seed(0)
    return build(*arguments)


def local(tensor):
    return (tensor.to_local() if isinstance(tensor, DTensor) else tensor).detach()


def most(one, other):
    """The largest difference of two tensors."""
    one = one.full_tensor() if isinstance(one, DTensor) else one
    return (one - other).abs().max().item()


def off(model, whole):
    """How far its gradients are from those of one process: as a share of the largest, since a key's bias has
    no gradient at all, but for the rounding."""
    expected = {name: weight.grad for name, weight in whole.named_parameters()}
    largest = max(grad.abs().max().item() for grad in expected.values())
    furthest = max(most(weight.grad, expected[name]) for name, weight in model.named_parameters())
    return furthest / largest


def sizes(model):
    return {name: list(local(weight).shape) for name, weight in model.named_parameters()}


def rows(recorder):
    """What leaves this process."""
    found = []
    for one, times in recorder.counts.items():
        if one.ranks > 1 and one.kind != "receive":
            found.append(one._asdict() | {"times": times})
    return found


def step_of_11(*words):
    """Two steps: what this process holds then, and what a step sends."""
    digits = workload.draw_digits(24, seed=1)
    mesh = init_device_mesh("cpu", (world_size,), mesh_dim_names=("tensor",))
    model = seeded(ImageTransformer, (1, 28, 28))
    model = parallelize_module(model, mesh, lesson.make_plan("--sequence-parallel" in words))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    recorder = dry_run.Recorder(mesh)
    for _ in range(2):
        optimizer.zero_grad()
        with recorder:
            cross_entropy(model(digits.images), digits.labels).backward()
        optimizer.step()
    held = {}
    for name, value in model.named_parameters():
        data = hashlib.sha256(local(value).numpy().tobytes()).hexdigest()
        held[name] = list(local(value).shape), data
    return {"held": held, "sent": rows(recorder)}


def step_of_12(tensor_size):
    """On a mesh with so many processes in "tensor"."""
    shape = (world_size // int(tensor_size), int(tensor_size))
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=("data", "tensor"))
    digits = workload.draw_digits(24, seed=1)
    whole, model = (seeded(ImageTransformer, (1, 28, 28)) for _ in range(2))
    cross_entropy(whole(digits.images), digits.labels).backward()
    lesson.shard(model, mesh)
    held = sizes(model)
    images, labels = digits[mesh["data"].get_local_rank() :: shape[0]]
    with dry_run.Recorder(mesh) as recorder:
        recorder.when = "forward"
        loss = cross_entropy(model(images), labels)
        recorder.when = "backward"
        loss.backward()
        recorder.when = "optimizer"
        torch.optim.SGD(model.parameters(), lr=0).step()
    found = {"held": held, "sizes": sizes(whole), "sent": rows(recorder)}
    return found | {"off": off(model, whole)}


def step_of_13():
    """On 2 x 2; and what each process would write."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tensor"))
    arguments = limerick_arguments(28, 700)
    characters, train_set, _ = limericks.load(arguments)
    texts, following = train_set[100:104]
    whole, model = (seeded(lesson.build_model, len(characters)) for _ in range(2))
    cross_entropy(whole(texts).flatten(0, 1), following.flatten()).backward()
    lesson.shard(model, mesh)
    held, share = sizes(model), mesh["data"].get_local_rank()
    scores = model(texts[share::2]).full_tensor()
    cross_entropy(scores.flatten(0, 1), following[share::2].flatten()).backward()
    found = {"held": held, "sizes": sizes(whole), "off": off(model, whole), "seen": []}
    limericks.show = lambda when, texts, characters: found["seen"].append(texts.tolist())
    for seed, temperature in ((0, 1.0), (0, 1.0), (1, 1.0), (0, 1e-5)):
        arguments.seed, arguments.temperature = seed, temperature
        limericks.write("", 24, model, characters, CPU, arguments)
    return found


class Longest(TorchDispatchMode):
    """Remember the most positions in a tensor of keys, and the most scores for each head of a text."""

    positions, scores = 0, 0

    def __init__(self, size):
        super().__init__()
        self.size = size

    def __torch_dispatch__(self, operator, types, arguments=(), options=None):
        result = operator(*arguments, **(options or {}))
        for tensor in result if isinstance(result, tuple | list) else [result]:
            if isinstance(tensor, torch.Tensor) and tensor.dim() > 2:
                if tensor.shape[-1] == self.size:
                    self.positions = max(self.positions, tensor.shape[-2])
                else:
                    self.scores = max(self.scores, tensor.shape[-2] * tensor.shape[-1])
        return result


def step_of_15():
    """Ring attention against torch's own, in 64 bits."""
    shape, generator = (2, 3, 48, 5), torch.Generator().manual_seed(0)  # texts, heads, positions, numbers
    *inputs, weights = (torch.randn(shape, dtype=torch.float64, generator=generator) for _ in range(4))
    for tensor in inputs:
        tensor.requires_grad_()
    expected = scaled_dot_product_attention(*inputs, is_causal=True)
    (expected * weights).sum().backward()
    sent, start = [], dist.batch_isend_irecv

    def batch_isend_irecv(operations):
        sent.extend(each.tensor.nbytes for each in operations if each.op is dist.isend)
        return start(operations)

    dist.batch_isend_irecv = batch_isend_irecv
    found = {}
    for order in ring_attention.ORDERS:
        positions = ring_attention.positions_of(rank, world_size, order, 48)
        own = [tensor.detach()[:, :, positions].requires_grad_() for tensor in inputs]
        sent.clear()
        with Longest(shape[-1]) as longest, FlopCounterMode(display=False) as counter:
            result = ring_attention.ring_attention(*own, dist.group.WORLD, order)
            forward = len(sent), sum(sent)
            (result * weights[:, :, positions]).sum().backward()
        off = most(result, expected[:, :, positions])
        for mine, one in zip(own, inputs, strict=True):
            off = max(off, most(mine.grad, one.grad[:, :, positions]))
        found[order] = {
            "off": off,
            "positions": positions.tolist(),
            "forward": forward,
            "sent": (len(sent), sum(sent)),
            "longest": (longest.positions, longest.scores),
            "work": counter.get_total_flops() // 2,
        }
    return found


def chosen(chances, settings):
    """1 where a token (down) is sent to an expert (across), else 0; and the load of each expert."""
    choices = chances.topk(settings.experts_per_token).indices
    mask = torch.zeros_like(chances).scatter(1, choices, 1)
    load = mask.sum(dim=0) / mask.sum()
    own = len(chances) // world_size
    share = own * settings.experts_per_token / settings.experts
    limit = math.inf if settings.capacity is None else math.ceil(settings.capacity * share)
    for first in range(0, len(chances), own):  # a process
        taken = [0] * settings.experts
        for choice in range(settings.experts_per_token):
            for token in range(first, first + own):
                expert = choices[token, choice].item()
                taken[expert] += 1
                if taken[expert] > limit:
                    mask[token, expert] = 0
    return mask, load


def layer_of_16(alike=False, **changed):
    """Beside a layer that knows of no process: each token passes every expert, and what it was not sent to is
    times 0."""
    settings = {"width": 8, "experts": 4, "experts_per_token": 1, "capacity": None, "balance": 0.5}
    settings, sent, all_to_all_single = SimpleNamespace(**settings | changed), [], dist.all_to_all_single
    torch.manual_seed(3)
    layer = experts.Experts(settings)
    x, wanted = torch.randn(4, 6, 8), torch.randn(4, 6, 8)
    if alike:
        x = x.abs()
        layer.router.weight.data[3] = 9
    weights = {name: value.detach().clone().requires_grad_() for name, value in layer.named_parameters()}
    tokens = x.flatten(0, 1).requires_grad_()
    chances = (tokens @ weights["router.weight"].T).softmax(dim=1)
    mask, load = chosen(chances, settings)
    every = torch.stack([gelu(tokens @ weights["up"][e]) @ weights["down"][e] for e in range(4)])
    answers = torch.einsum("te,eth->th", chances * mask, every)
    balance = 0.5 * 4 * (load * chances.mean(dim=0)).sum()
    ((answers * wanted.flatten(0, 1)).mean() + balance).backward()

    def counted(arrived, rows, received, to):
        """Bytes that leave this process."""
        sent.append((sum(to) - to[rank]) * rows[0:1].nbytes if len(rows) else 0)
        return all_to_all_single(arrived, rows, received, to)

    layer.shard(init_device_mesh("cpu", (world_size,)))
    batch = slice(rank * 4 // world_size, (rank + 1) * 4 // world_size)  # of the texts
    own = slice(rank * 24 // world_size, (rank + 1) * 24 // world_size)  # of the tokens
    part = batch  # of the experts: there are as many as texts
    mine = x[batch].clone().requires_grad_()
    dist.all_to_all_single = counted
    result = layer(mine)
    (((result * wanted[batch]).mean() + layer.balance) / world_size).backward()
    dist.all_to_all_single = all_to_all_single
    lesson.add_up_gradients(layer)
    pairs = {
        "answers": (result.flatten(0, 1), answers[own]),
        "x": (mine.grad.flatten(0, 1), tokens.grad[own]),
        "router": (layer.router.weight.grad, weights["router.weight"].grad),
        "up": (layer.up.grad.to_local(), weights["up"].grad[part]),
        "down": (layer.down.grad.to_local(), weights["down"].grad[part]),
        "load": (layer.load, load),
    }
    stay = mask[own, part].sum()
    leave = int(mask[own].sum() - stay) * 8 * 4  # bytes
    come = int(mask[:, part].sum() - stay) * 8 * 4
    off = {}
    sizes_of = {}
    for name, (found, expected) in pairs.items():
        off[name] = most(found, expected)
        sizes_of[name] = expected.abs().max().item()
    return {
        "off": off,
        "sizes": sizes_of,
        "sent": sent,
        "expected": [leave, come, leave, come],
        "held": len(layer.up.to_local()),
        "dropped": int(24 * settings.experts_per_token - mask.sum()),
    }


def step_of_16():
    return {
        "one each": layer_of_16(),
        "two each": layer_of_16(experts_per_token=2),
        "limited": layer_of_16(experts_per_token=2, capacity=0.75),
        "all to the last": layer_of_16(alike=True),
    }


def step_of_17(shape):
    """On the mesh that is named, in 64 bits, with two micro-batches of 8 texts of 24 characters."""
    generator = torch.Generator().manual_seed(0)
    texts, following = torch.randint(11, (2, 8, 24), generator=generator)
    model = seeded(lesson.build_model, 11, 24, 8).double()
    counts = dict(zip(one_mesh.NAMES, map(int, shape.split("x")), strict=True))
    mesh = workload.make_mesh(CPU, **counts)
    where = dict(zip(one_mesh.NAMES, mesh.get_coordinate(), strict=True))
    positions = ring_attention.positions_of(where["context"], counts["context"], "zigzag", 24)
    lesson.shard(model, mesh)
    schedule = lesson.make_schedule(model, mesh, CPU, SimpleNamespace(microbatches=2))
    own, target = (tensor[where["data"] :: counts["data"]][:, positions] for tensor in (texts, following))
    for _ in range(2):  # in the first one, stages tell each other the shapes
        with dry_run.Recorder(mesh) as recorder:
            places = positions.expand_as(own)
            schedule.step(own, places, target=target, losses=[], return_outputs=False)
            lesson.average_gradients(model, mesh)
    return {
        "where": where,
        "held": sorted({name.split(".attention")[0].split(".feed")[0] for name in sizes(model)}),
        "tensors": len(list(model.parameters())),
        "bytes": sum(local(weight).nbytes for weight in model.parameters()),
        "sent": rows(recorder),
    }


dist.init_process_group("gloo")
rank, world_size = dist.get_rank(), dist.get_world_size()
Path(f"{rank}.json").write_text(json.dumps(globals()[f"step_of_{NUMBER}"](*WORDS)))
gc.collect()
dist.destroy_process_group()
