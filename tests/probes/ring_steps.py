"""Ring attention against torch's own, in 64 bits: its results and gradients, what each process sends, and
the longest tensors that it ever makes. And what the lesson's model foresees, sharded or not; RANK.json."""

import importlib
import json
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.functional import scaled_dot_product_attention
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from parts import ring_attention

TEXTS, HEADS, LENGTH, SIZE = 2, 3, 48, 5


class Longest(TorchDispatchMode):
    """Remember the most positions in a tensor of keys, and the most scores for each head of a text."""

    positions, scores = 0, 0

    def __torch_dispatch__(self, operator, types, arguments=(), options=None):
        result = operator(*arguments, **(options or {}))
        for tensor in result if isinstance(result, tuple | list) else [result]:
            if isinstance(tensor, torch.Tensor) and tensor.dim() > 2:
                if tensor.shape[-1] == SIZE:
                    self.positions = max(self.positions, tensor.shape[-2])
                else:
                    self.scores = max(self.scores, tensor.shape[-2] * tensor.shape[-1])
        return result


dist.init_process_group("gloo")
rank, world_size = dist.get_rank(), dist.get_world_size()
generator = torch.Generator().manual_seed(0)
whole = [torch.randn(TEXTS, HEADS, LENGTH, SIZE, dtype=torch.float64, generator=generator) for _ in range(4)]
*inputs, weights = whole
for tensor in inputs:
    tensor.requires_grad_()
expected = scaled_dot_product_attention(*inputs, is_causal=True)
(expected * weights).sum().backward()

sent = []
start = dist.batch_isend_irecv


def batch_isend_irecv(operations):
    sent.extend(each.tensor.nbytes for each in operations if each.op is dist.isend)
    return start(operations)


dist.batch_isend_irecv = batch_isend_irecv
lesson = importlib.import_module("15_context_parallel")
mesh = init_device_mesh("cpu", (1, world_size), mesh_dim_names=("data", "context"))
cpu = torch.device("cpu")


def build_model():
    torch.manual_seed(0)
    model = lesson.build_model(61, LENGTH)
    torch.nn.init.normal_(model.position.weight)  # what it foresees depends on the position too
    return model


texts = torch.randint(61, (4, LENGTH), generator=generator)
with torch.no_grad():
    foreseen = build_model()(texts).argmax(dim=2)

found = {}
for order in ring_attention.ORDERS:
    positions = ring_attention.positions_of(rank, world_size, order, LENGTH)
    own = [tensor.detach()[:, :, positions].requires_grad_() for tensor in inputs]
    sent.clear()
    with Longest() as longest, FlopCounterMode(display=False) as counter:
        result = ring_attention.ring_attention(*own, dist.group.WORLD, order)
        forward = len(sent), sum(sent)
        (result * weights[:, :, positions]).sum().backward()
    off = [(result - expected[:, :, positions]).abs().max().item()]
    for tensor, mine in zip(inputs, own, strict=True):
        off.append((mine.grad - tensor.grad[:, :, positions]).abs().max().item())
    found[order] = {
        "off": max(off),
        "positions": positions.tolist(),
        "forward": forward,
        "sent": (len(sent), sum(sent)),
        "longest": (longest.positions, longest.scores),
        "work": counter.get_total_flops() // 2,
    }
    model = build_model()
    lesson.shard(model, mesh, order)
    correct = lesson.count_correct(model, [(texts, foreseen)], positions, cpu)
    found[order]["correct"] = correct.item()
del model
Path(f"{rank}.json").write_text(json.dumps(found))
dist.destroy_process_group()
