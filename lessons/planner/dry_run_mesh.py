"""The dry run on lesson 17's mesh: what one rank does in a step, for one micro-batch.

The model, the sharding, the loss and the averaging are lesson 17's code. Lesson 17's schedule takes all
micro-batches through the stages; here a stage passes on only one. Experts are as in lesson 16.
"""

import importlib
from types import SimpleNamespace

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.nn.functional import gelu

from parts import experts
from parts.ring_attention import positions_of

lesson = importlib.import_module("17_one_mesh")


class EvenExperts(experts.Experts):
    """Lesson 16's layer with a router that gives all experts the same number of tokens.

    A real router looks at the content of a token, and in a dry run tokens have no content.
    """

    def __init__(self, hidden, count):
        super().__init__(
            SimpleNamespace(width=hidden, experts=count, experts_per_token=1, capacity=None, balance=0)
        )

    def shard(self, mesh):
        """Shard the experts over "expert", and the neurons of each expert over "tensor"."""
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
        # Each rank of "tensor" has some neurons of an expert, so its answer is one term of a sum.
        rows = DTensor.from_local(rows, self.tensor, [Replicate()]).to_local(grad_placements=[Partial()])
        answers = DTensor.from_local(self.exchange(rows), self.tensor, [Partial()])
        answers = answers.redistribute(placements=[Replicate()]).to_local()
        rows = answers.new_zeros(tokens.shape).index_copy(0, order, answers)
        return (rows * weights[:, None]).view_as(x)

    def tell_counts(self, tokens):
        """Tell all ranks how many tokens this rank has for each expert."""
        own = torch.full((self.count,), tokens // self.count)
        dist.all_gather([torch.empty_like(own) for _ in range(self.group.size())], own, group=self.group)

    def exchange(self, rows):
        """Send each row to the rank of its expert, apply the expert, and send the result back."""
        arrived = AllToAll.apply(rows, self.group)
        up, down = self.up.to_local(), self.down.to_local()
        answers = []
        for number, part in enumerate(arrived.split(len(rows) // self.count)):
            expert = number % len(up)
            answers.append(gelu(part @ up[expert]) @ down[expert])
        return AllToAll.apply(torch.cat(answers), self.group)


class AllToAll(torch.autograd.Function):
    """Lesson 16's all-to-all over one dimension of the mesh, with equally many rows for each rank."""

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
    """Return one rank's part of the model on the device "meta", and the number of all parameters."""
    with torch.device("meta"):
        network = lesson.build_model(
            characters=model["vocabulary"],
            length=model["length"],
            hidden=model["hidden"],
            heads=model["heads"],
            layers=model["layers"],
        )
        layers = [EvenExperts(model["hidden"], count) for _ in network.blocks] if count else []
    parameters = count_parameters(network)
    for block, layer in zip(network.blocks, layers, strict=False):  # empty without experts
        parameters += count_parameters(layer) - count_parameters(block.feed_forward)
    lesson.shard(network, mesh)
    for block, layer in zip(network.blocks, layers, strict=False):
        if not isinstance(block, nn.Identity):  # an Identity belongs to another stage
            layer.shard(mesh)
            block.feed_forward = layer
    return network, parameters


def count_parameters(network):
    return sum(weight.numel() for weight in network.parameters())


def step(network, recorder, mesh, model, batch):
    """One micro-batch forward and backward, and then what a step does once, after its last micro-batch."""
    recorder.when = "forward"
    arrived, result = forward(network, mesh, model, batch)
    recorder.when = "backward"
    backward(arrived, result, mesh)
    recorder.when = "gradients"
    lesson.average_gradients(network, mesh)
    average_over_experts(network, mesh)
    recorder.when = "loss"
    for name in mesh.mesh_dim_names[:-1]:  # all but "tensor"
        dist.all_reduce(torch.zeros(()), group=mesh.get_group(name))


def held_at_once(mesh, microbatches):
    """Return how many micro-batches' activations a stage of 1F1B holds at most."""
    return min(mesh["pipeline"].size() - mesh["pipeline"].get_local_rank(), microbatches)


def forward(network, mesh, model, batch):
    """Take one micro-batch through this rank's stage. Return its input, and its output or the loss."""
    size, rank = mesh["context"].size(), mesh["context"].get_local_rank()
    positions = positions_of(rank, size, "zigzag", model["length"])
    texts = torch.zeros(batch, len(positions), dtype=torch.int64)
    stage, stages = mesh["pipeline"].get_local_rank(), mesh["pipeline"].size()
    if stage == 0:
        arrived = None
        result = network(texts, positions.expand_as(texts))
    else:
        arrived = torch.empty(batch, len(positions), model["hidden"])
        arrived = receive(arrived, mesh, stage - 1).requires_grad_()
        result = network(arrived)
    if stage < stages - 1:
        send(result, mesh, stage + 1)
        return arrived, result
    return arrived, lesson.loss_of(result, texts)


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


def average_over_experts(network, mesh):
    """Ranks of "expert" read different texts, and share all weights except the experts."""
    if "expert" not in mesh.mesh_dim_names:
        return
    for module in network.modules():
        for parameter in module.parameters(recurse=False):
            gradient = parameter.grad.to_local() if isinstance(parameter, DTensor) else parameter.grad
            if not isinstance(module, EvenExperts):  # an expert has seen all texts, its router has not
                dist.all_reduce(gradient, group=mesh.get_group("expert"))
            gradient /= mesh["expert"].size()
