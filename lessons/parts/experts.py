"""The feed-forward layer of lesson 16: a router that sends each token to one or two experts.

A token is a position of a text. Each token travels to the process that holds its expert,
and the expert's output travels back.
"""

import math

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import Shard, distribute_tensor
from torch.nn.functional import gelu

import workload


def options(parser):
    option = parser.add_argument
    option("--experts", type=int, default=4, help="experts in each block (%(default)s)")
    option("--experts-per-token", type=int, default=1, help="1 or 2 (%(default)s)")
    option("--balance", type=float, default=0.01, help="weight of the balancing loss (%(default)s)")
    option("--double", action="store_true", help="compute in 64 bits, so that no two experts tie")
    option("--capacity", type=float, help="most tokens of an expert, in even loads (unlimited)")


def check(arguments):
    experts, world_size = arguments.experts, arguments.world_size
    if experts < 1 or experts % world_size:
        fits = math.ceil(max(experts, 1) / world_size) * world_size
        workload.refuse(
            f"--experts {experts} is not a multiple of {world_size} processes: take {fits}, for example"
        )
    if not 1 <= arguments.experts_per_token <= min(2, experts):
        each = arguments.experts_per_token
        workload.refuse(f"--experts-per-token must be 1 or 2, and at most --experts, not {each}")
    if not 0 <= arguments.balance < math.inf:
        workload.refuse(f"--balance must be 0 or more, not {arguments.balance}")
    if arguments.capacity is not None and not 0 < arguments.capacity < math.inf:
        workload.refuse(f"--capacity must be a number above 0, not {arguments.capacity}")


class Experts(nn.Module):
    def __init__(self, arguments):
        super().__init__()
        hidden, self.count = arguments.width, arguments.experts
        self.per_token = arguments.experts_per_token
        self.capacity = arguments.capacity
        self.weight = arguments.balance
        self.load = torch.zeros(self.count)  # a resumed run may print the load before its first step
        self.router = nn.Linear(hidden, self.count, bias=False)
        # Each expert is a feed-forward layer without biases: two matrices.
        self.up = nn.Parameter(torch.empty(self.count, hidden, 4 * hidden))
        self.down = nn.Parameter(torch.empty(self.count, 4 * hidden, hidden))
        for matrices in (self.up, self.down):
            bound = matrices.shape[1] ** -0.5  # as in nn.Linear
            nn.init.uniform_(matrices, -bound, bound)

    def extra_repr(self):
        # A snapshot identifies a model by this text, so that runs with other settings do not resume from it.
        choices = f"{self.per_token} a token, capacity {self.capacity}"
        return f"{choices}, balance {self.weight}, {self.up.dtype}"

    def shard(self, mesh):
        """Keep only this process's experts: with 4 experts on 2 processes, the first two or the last two."""
        self.up = nn.Parameter(distribute_tensor(self.up.detach(), mesh, [Shard(0)]))
        self.down = nn.Parameter(distribute_tensor(self.down.detach(), mesh, [Shard(0)]))

    def forward(self, x):
        tokens = x.flatten(0, 1)
        chances = self.router(tokens).softmax(dim=1)
        # Don't normalize the weights: a single weight would always be 1, and the router would learn nothing.
        weights, chosen = chances.topk(self.per_token)
        weights, chosen = weights.T.flatten(), chosen.T.flatten()  # first choices first
        order = chosen.argsort(stable=True)  # tokens for expert 0 come first, then those for expert 1
        # Don't use bincount: the size of its result depends on the tokens, so the CPU would wait
        # for the GPU.
        experts = torch.arange(self.count, device=chosen.device)
        counts = gather((chosen[:, None] == experts).sum(dim=0))
        self.weigh(counts, chances)
        counts = counts.cpu()  # the CPU must wait for the sizes of the messages
        if self.capacity:
            order, counts = self.drop(order, counts)
        answers = self.exchange(tokens[order % len(tokens)], counts)
        # A dropped token reaches no expert, so the layer's output for it is 0.
        rows = answers.new_zeros(len(chosen), tokens.shape[1]).index_copy(0, order, answers)
        rows = rows * weights[:, None]
        return rows.unflatten(0, (self.per_token, -1)).sum(dim=0).view_as(x)

    def weigh(self, counts, chances):
        """Compute each expert's load, and a loss that is 1 if all loads are equal.

        The loss is larger than 1 if the experts with the highest loads also have the highest mean chances.
        """
        # Add up over all processes: total loads may be even where local loads are not.
        self.load = counts.sum(dim=0).to(chances.dtype) / counts.sum()
        balance = self.count * (self.load * chances.mean(dim=0)).sum()
        self.balance = self.weight * balance

    def drop(self, order, counts):
        """Each process may send an expert only a limited number of tokens, and drops all others."""
        limit = math.ceil(self.capacity * len(order) / self.count)
        own = counts[dist.get_rank()].tolist()
        order = torch.cat([rows[:limit] for rows in order.split(own)])
        return order, counts.clamp(max=limit)

    def exchange(self, rows, counts):
        """Send each row to its expert's process, apply the expert, return the result."""
        rank, world_size = dist.get_rank(), dist.get_world_size()
        # The dimensions are the sender, the receiver and the receiver's experts.
        counts = counts.unflatten(1, (world_size, -1))
        sent = counts[rank].sum(dim=1).tolist()
        received = counts[:, rank].sum(dim=1).tolist()
        arrived = AllToAll.apply(rows, sent, received)
        up, down = self.up.to_local(), self.down.to_local()
        answers = []
        # Rows are ordered by process, and within each process by expert.
        for number, part in enumerate(arrived.split(counts[:, rank].flatten().tolist())):
            expert = number % len(up)
            answers.append(gelu(part @ up[expert]) @ down[expert])
        return AllToAll.apply(torch.cat(answers), received, sent)


def gather(own):
    """Return how many tokens each process has for each expert: row r belongs to process r."""
    counts = [torch.empty_like(own) for _ in range(dist.get_world_size())]
    dist.all_gather(counts, own)
    return torch.stack(counts)


class AllToAll(torch.autograd.Function):
    """The first `sent[0]` rows go to process 0, the next `sent[1]` to process 1, and so on.

    In the backward pass, the gradients travel back to where the rows came from.
    """

    @staticmethod
    def forward(context, rows, sent, received):
        context.sent, context.received = sent, received
        return all_to_all(rows, sent, received)

    @staticmethod
    def backward(context, gradients):
        return all_to_all(gradients, context.received, context.sent), None, None


def all_to_all(rows, sent, received):
    arrived = rows.new_empty(sum(received), rows.shape[1])
    dist.all_to_all_single(arrived, rows.contiguous(), received, sent)
    return arrived
