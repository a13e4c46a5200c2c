"""Exercise 16: experts on several processes, and the tokens that travel to them. 14 points.

In lesson 16 each process has its own tokens and its own experts. A router scores all experts for each
token, and the token goes to those with the highest scores, wherever they are. You build the whole way: who
goes where, who is dropped, the journey there, and the journey back. In backward, gradients travel it too.

There are `number` experts in all, the same number on each process: with 6 experts on 3 processes, experts 0
and 1 are on process 0, 2 and 3 on process 1, 4 and 5 on process 2. `x` has a row for each token of this
process: 7 tokens of 5 numbers are 7 x 5. A process may have no tokens, an expert may get none, and all may
go to one expert. Tensors are float32 or float64: what you make has the type of what you get.

A token that goes to an expert is a choice. With top_k = 2, each token makes a first choice and a second
one.

    first the counts     how many rows are there for each expert? No process knows what the others have
    then the rows        an all-to-all, with as many rows for a process as have chosen its experts
    the experts          each computes an answer for each row that came to it
    back                 an all-to-all the other way round
    then the sum         each token gets the answers of its experts, times the weights of its choices

A row travels only to the process that has its expert. Rows for a process's own experts stay where they are,
and so do all weights of experts. The judge counts the bytes between each two processes. Beside the rows,
it allows 1,500 bytes each time for the counts.

`AllToAll` is there already: it is the lesson's. In the backward pass all processes must go through it, those
that have sent or received nothing, too: the others would wait for them. So the graph must lead through it
on every process, from the output of combine back to x, also where these have no rows.

The process group is there, too. All processes call everything in the same order.

    16.1 (3 points)  who goes where, and who is dropped
    16.2 (2 points)  the balancing loss
    16.3 (6 points)  to the experts, and back
    16.4 (3 points)  the layer, and whose gradients are added up
"""

import torch
import torch.distributed as dist
from torch import nn


def route(logits, top_k, capacity):
    """Which tokens go to which experts: three tensors (tokens, experts, weights), an entry for each choice.

    `logits` has a row for each token of this process, and a column for each expert. A token chooses the
    `top_k` experts with the highest logits; of those with equal logits, the one with the smallest number
    comes first. The weight of a choice is the softmax of the token's logits over all experts, at this
    expert. Weights keep their graph, so that the router gets gradients.

    The entries are in the order in which they travel: all for expert 0, then all for expert 1, and so on.
    Those for one expert are in this order: tokens whose first choice it is, then tokens whose second choice
    it is, and so on, and among them as the tokens are numbered. With a `capacity`, a whole number from 0
    on, an expert gets so many of this process's choices at most: those that come later in this order are
    dropped, and have no entry. If `capacity` is None, nothing is dropped.
    """
    # cut 16.1: who goes where, and who is dropped
    chosen = logits.sort(dim=1, descending=True, stable=True).indices[:, :top_k]
    experts = chosen.T.flatten()  # all first choices, then all second ones
    tokens = torch.arange(len(logits)).repeat(top_k)
    order = experts.argsort(stable=True)
    if capacity is not None:
        counts = experts.bincount(minlength=logits.shape[1])
        order = torch.cat([some[:capacity] for some in order.split(counts.tolist())])
    tokens, experts = tokens[order], experts[order]
    return tokens, experts, logits.softmax(dim=1)[tokens, experts]
    # end


def balancing_loss(logits, chosen):
    """This process's part of the balancing loss. The parts of all processes add up to the loss.

    The loss is what one process would compute that has all tokens: the number of experts, times the sum over
    all experts of the expert's load times its mean score. The load is the fraction of all choices that
    are of this expert, of the tokens of all processes. The mean score is the mean of the softmax at this
    expert over all tokens of all processes, of which there is at least one. A process's part is the loss
    with the scores of its own tokens only; still divided by the number of all tokens. `chosen` are the
    numbers of the experts that this process's tokens have chosen, dropped or not: a tensor of one dimension,
    with top_k numbers for each token, in any order. The load has no gradient, the scores have. Only counts
    travel, the same number of them however many tokens there are.
    """
    # cut 16.2: the balancing loss
    number = logits.shape[1]
    counts = torch.cat([chosen.bincount(minlength=number), torch.tensor([len(logits)])])
    dist.all_reduce(counts)
    load = counts[:number] / counts[:number].sum()
    return number * (load * logits.softmax(dim=1).sum(dim=0)).sum() / counts[number]
    # end


class AllToAll(torch.autograd.Function):
    """Lesson 16's all-to-all, which gradients can pass. Used as `AllToAll.apply(rows, sent, received)`.

    `sent` and `received` are lists with a number for each process: the first `sent[0]` of the rows go to
    process 0, the next `sent[1]` to process 1, and so on. What is returned has `received[0]` rows from
    process 0, then `received[1]` from process 1, and so on. Backward, the gradient of each row travels to
    where the row came from.
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


def dispatch(x, tokens, experts, number):
    """Send tokens to their experts. Returns (arrived, plan).

    `tokens` and `experts` are as route has made them: row `tokens[i]` of `x` goes to expert `experts[i]` of
    `number`. `arrived` is a list with a tensor for each expert of this process, in order: the rows that
    came for it, from process 0 first, then from process 1, and so on, those of a process in the order in
    which they were sent. An expert to which nothing came has a tensor of 0 rows. `plan` is whatever combine
    needs to know later.
    """
    # cut 16.3: to the experts
    processes = dist.get_world_size()
    here = experts.bincount(minlength=number)
    there = torch.empty_like(here)
    dist.all_to_all_single(there, here)  # row r: what process r has for each of the experts here
    sent = here.view(processes, -1).sum(dim=1).tolist()
    counts = there.view(processes, -1)
    received = counts.sum(dim=1).tolist()
    rows = AllToAll.apply(x[tokens], sent, received)
    # The rows came by process; they are wanted by expert. No sort may change the order within the two.
    own = torch.arange(counts.shape[1]).repeat(processes).repeat_interleave(there)
    order = own.argsort(stable=True)
    arrived = list(rows[order].split(counts.sum(dim=0).tolist()))
    return arrived, (order.argsort(), received, sent, tokens, len(x))
    # end


def combine(answers, plan, weights):
    """Send the answers back. Returns a tensor with a row for each token of this process, in the order of `x`.

    `answers` is a list like `arrived`, with a row for each row that came, of any width, the same for all. A
    token's row is the sum of the answers to its choices, each times its weight. `weights[i]` belongs to the
    choice `tokens[i]`, `experts[i]` of dispatch. A token with no choice left has zeros. The answers and the
    weights both get their gradients, and so does the `x` of dispatch.
    """
    # cut 16.3: and back
    back, sent, received, tokens, count = plan
    rows = AllToAll.apply(torch.cat(answers)[back], sent, received)
    rows = rows * weights[:, None]
    return rows.new_zeros(count, rows.shape[1]).index_add(0, tokens, rows)
    # end


class Mixture(nn.Module):
    """The layer: `router` is an nn.Linear, the same on all processes; `experts` are those of this process."""

    def __init__(self, router, experts, top_k, capacity):
        super().__init__()
        self.router, self.experts = router, nn.ModuleList(experts)
        self.top_k, self.capacity = top_k, capacity

    def forward(self, x):
        """The rows of `x` through the router and their experts. Returns (output, part of the balancing loss).

        The router gives the logits of a row. The choices that count for the balancing loss are those before
        any was dropped. The weights of the experts stay where they are.
        """
        # cut 16.4: the layer
        logits = self.router(x)
        _, chosen, _ = route(logits, self.top_k, None)
        tokens, experts, weights = route(logits, self.top_k, self.capacity)
        arrived, plan = dispatch(x, tokens, experts, logits.shape[1])
        answers = [expert(rows) for expert, rows in zip(self.experts, arrived, strict=True)]
        return combine(answers, plan, weights), balancing_loss(logits, chosen)
        # end


def add_up_gradients(model):
    """Make every gradient what one process with all tokens would have. Called after backward.

    `model` has Mixture layers somewhere inside, under any name, and ordinary layers. The losses of the
    processes are parts, which add up to the loss of one process. What all processes have alike, the routers
    too, has a gradient on each process that is a part of the whole one. The experts of a Mixture are on one
    process only; one to which no token came may have no gradient. All other parameters have one.
    """
    # cut 16.4: whose gradients are added up
    layers = [layer for layer in model.modules() if isinstance(layer, Mixture)]
    own = {parameter for layer in layers for parameter in layer.experts.parameters()}
    for parameter in model.parameters():
        if parameter not in own:
            dist.all_reduce(parameter.grad)
    # end
