"""The dry run's GPT on a mesh of data, pipeline, context, expert and tensor: one rank's part of it.

Stages as in lesson 10, heads and neurons sharded as in lesson 12, positions as in lesson 15,
experts as in lesson 16. All else is replicated, and its gradients are added up.
"""

import importlib
from functools import partial
from types import SimpleNamespace

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import parallelize_module
from torch.nn.functional import cross_entropy, gelu

from parts import experts
from parts.ring_attention import positions_of, ring_attention

lesson_12 = importlib.import_module("12_mesh")
lesson_15 = importlib.import_module("15_context_parallel")
NAMES = ("data", "pipeline", "context", "expert", "tensor")  # in this order: the last are neighbours


class EvenExperts(experts.Experts):
    """Lesson 16's layer, as if its router gave all experts as many tokens.

    Where a token goes depends on its content, and in a dry run it has none.
    """

    def __init__(self, hidden, count):
        super().__init__(
            SimpleNamespace(width=hidden, experts=count, experts_per_token=1, capacity=None, balance=0)
        )

    def shard(self, mesh):
        """Each rank of "expert" keeps some experts; of their neurons, each rank of "tensor" some."""
        self.group, self.tensor = mesh.get_group("expert"), mesh["tensor"]
        mesh = mesh["expert", "tensor"]
        self.up = nn.Parameter(distribute_tensor(self.up.detach(), mesh, [Shard(0), Shard(2)]))
        self.down = nn.Parameter(distribute_tensor(self.down.detach(), mesh, [Shard(0), Shard(1)]))

    def forward(self, x):
        tokens = x.flatten(0, 1)
        weights = self.router(tokens).softmax(dim=1).amax(dim=1)
        chosen = torch.arange(len(tokens)) % self.count  # in turns
        order = chosen.argsort(stable=True)
        self.tell_counts(len(tokens))
        rows = tokens[order]
        # Each rank of "tensor" has some neurons of an expert: what it answers is a part of the sum.
        rows = DTensor.from_local(rows, self.tensor, [Replicate()]).to_local(grad_placements=[Partial()])
        answers = DTensor.from_local(self.exchange(rows), self.tensor, [Partial()])
        answers = answers.redistribute(placements=[Replicate()]).to_local()
        rows = answers.new_zeros(tokens.shape).index_copy(0, order, answers)
        return (rows * weights[:, None]).view_as(x)

    def tell_counts(self, tokens):
        """To all, how many tokens this rank has for each expert."""
        own = torch.full((self.count,), tokens // self.count)
        dist.all_gather([torch.empty_like(own) for _ in range(self.group.size())], own, group=self.group)

    def exchange(self, rows):
        """Each row goes to the rank of its expert, through the expert, and comes back."""
        arrived = AllToAll.apply(rows, self.group)
        up, down = self.up.to_local(), self.down.to_local()
        answers = []
        for number, part in enumerate(arrived.split(len(rows) // self.count)):
            expert = number % len(up)
            answers.append(gelu(part @ up[expert]) @ down[expert])
        return AllToAll.apply(torch.cat(answers), self.group)


class AllToAll(torch.autograd.Function):
    """Lesson 16's, in a dimension of the mesh: as many rows for each rank."""

    @staticmethod
    def forward(context, rows, group):
        context.group = group
        arrived = torch.empty_like(rows)
        dist.all_to_all_single(arrived, rows.contiguous(), group=group)
        return arrived

    @staticmethod
    def backward(context, gradients):
        return AllToAll.apply(gradients, context.group), None


def build(mesh, model, count):
    """One rank's part of the model on the device "meta", and how many parameters all have."""
    with torch.device("meta"):
        network = lesson_15.build_model(
            characters=model["vocabulary"],
            length=model["length"],
            hidden=model["hidden"],
            heads=model["heads"],
            layers=model["layers"],
        )
        for block in network.blocks if count else []:
            block.feed_forward = EvenExperts(model["hidden"], count)
    parameters = sum(weight.numel() for weight in network.parameters())
    keep_stage(network, mesh)
    shard(network, mesh)
    return network, parameters


def keep_stage(network, mesh):
    """Drop what other stages have."""
    stage, stages = mesh["pipeline"].get_local_rank(), mesh["pipeline"].size()
    each = len(network.blocks) // stages
    network.blocks = network.blocks[stage * each : (stage + 1) * each]
    if stage > 0:
        network.embedding = network.position = None
    if stage < stages - 1:
        network.norm = network.head = nn.Identity()


def shard(network, mesh):
    plan = lesson_12.make_plan()
    has_experts = "expert" in mesh.mesh_dim_names
    if has_experts:
        plan = {name: style for name, style in plan.items() if "feed_forward" not in name}
    parallelize_module(network, mesh["tensor"], plan)
    for block in network.blocks:
        group = mesh.get_group("context")
        block.attention.attend = partial(ring_attention, group=group, order="zigzag")
        if has_experts:
            block.feed_forward.shard(mesh)


def step(network, recorder, mesh, model, batch):
    """One micro-batch there and back, and what follows the last."""
    recorder.when = "forward"
    arrived, result = forward(network, mesh, model, batch)
    recorder.when = "backward"
    backward(arrived, result, mesh)
    recorder.when = "gradients"
    add_up_gradients(network, mesh)
    recorder.when = "loss"
    for name in ("data", "pipeline", "context", "expert"):
        all_reduce(torch.zeros(()), mesh, name)


def held_at_once(mesh, microbatches):
    """Of how many micro-batches a stage of 1F1B has the activations, at most."""
    return min(mesh["pipeline"].size() - mesh["pipeline"].get_local_rank(), microbatches)


def forward(network, mesh, model, batch):
    """One micro-batch through this rank's stage: what comes in, what goes out, and the loss of the last."""
    size, rank = mesh["context"].size(), mesh["context"].get_local_rank()
    positions = positions_of(rank, size, "zigzag", model["length"])
    text = torch.zeros(batch, len(positions), dtype=torch.int64)
    stage, stages = mesh["pipeline"].get_local_rank(), mesh["pipeline"].size()
    if stage == 0:
        arrived = None
        x = network.embedding(text) + network.position(positions)
    else:
        arrived = torch.empty(batch, len(positions), model["hidden"])
        x = receive(arrived, mesh, stage - 1).requires_grad_()
    for block in network.blocks:
        x = block(x)
    scores = network.head(network.norm(x))
    if stage < stages - 1:
        send(scores, mesh, stage + 1)
        return arrived, scores
    return arrived, cross_entropy(scores.flatten(0, 1), text.flatten())


def backward(arrived, result, mesh):
    stage, stages = mesh["pipeline"].get_local_rank(), mesh["pipeline"].size()
    if stage < stages - 1:
        result.backward(receive(torch.empty_like(result), mesh, stage + 1))
    else:
        result.backward()
    if stage > 0:
        send(arrived.grad, mesh, stage - 1)


def send(tensor, mesh, stage):
    dist.send(tensor.detach(), group=mesh.get_group("pipeline"), group_dst=stage)


def receive(tensor, mesh, stage):
    dist.recv(tensor, group=mesh.get_group("pipeline"), group_src=stage)
    return tensor


def add_up_gradients(network, mesh):
    """Over all that have the same weights, and other texts or other positions of them."""
    for module in network.modules():
        names = ("data", "context") if isinstance(module, EvenExperts) else ("data", "context", "expert")
        for parameter in module.parameters(recurse=False):
            gradient = parameter.grad.to_local() if isinstance(parameter, DTensor) else parameter.grad
            for name in names:
                all_reduce(gradient, mesh, name)


def all_reduce(tensor, mesh, name):
    if name in mesh.mesh_dim_names and mesh[name].size() > 1:
        dist.all_reduce(tensor, group=mesh.get_group(name))
