"""Exercise 16: experts on several processes, and tokens that travel to them. 14 points, about 180 minutes.

In lesson 16, each process has its own tokens and its own experts. A router scores all experts for each
token, and the token goes to the experts with the highest scores, whichever processes have them. You build
the whole path: you find which token goes to which expert and which choices are dropped, send the tokens to
the experts, and send the answers back. In the backward pass, gradients travel the same path in reverse.

There are `number` experts in total, equally many on each process: with 6 experts on 3 processes, experts 0
and 1 are on process 0, 2 and 3 on process 1, 4 and 5 on process 2. `x` has a row for each token of this
process: 7 tokens of 5 numbers make a 7 x 5 tensor. A process may have no tokens, an expert may get no tokens,
and all tokens may go to one expert. Tensors are float32 or float64: the tensors that you make must have the
dtype of the tensors that you are given.

Each assignment of a token to an expert is called a choice. With top_k = 2, each token makes a first choice
and a second choice.

    first the counts     each process tells the others how many rows it will send for each expert
    then the rows        an all-to-all: each process gets the rows whose tokens have chosen its experts
    the experts          each expert computes an answer for each row that it got
    the way back         an all-to-all in the other direction: each process gets the answers for its tokens
    then the sum         each token gets the weighted sum of its experts' answers

A row travels only to the process that has its expert. Rows for a process's own experts stay where they are,
and so do the weights of all experts. The grader counts the bytes sent between each pair of processes. In
addition to the rows, it allows 1,500 bytes for the counts in each direction, to the experts and back.

`AllToAll` is complete: it comes from lesson 16. In the backward pass, all processes must run it, even a
process that has sent or received nothing, because the other processes would otherwise wait forever. So on
every process, even on one without rows, the graph must lead from the output of combine through `AllToAll`
back to x.

The process group already exists. All processes call everything in the same order.

    16.1 (3 points)  which token goes to which expert, and which choices are dropped
    16.2 (2 points)  the balancing loss
    16.3 (6 points)  send the tokens to the experts, and the answers back
    16.4 (3 points)  the layer, and which gradients are added up
"""

import torch
import torch.distributed as dist
from torch import nn


def route(logits, top_k, capacity):
    """Return which tokens go to which experts: (tokens, experts, weights), with one entry for each choice.

    `logits` has a row for each token of this process, and a column for each expert. A token chooses the
    `top_k` experts with the highest logits. If logits are equal, the expert with the smallest number comes
    first. The weight of a choice is the softmax of the token's logits over all experts, taken at the chosen
    expert. The weights keep their autograd graph, so that the router gets gradients.

    The entries are in the order in which they travel: all entries for expert 0, then all for expert 1, and so
    on. Among the entries for one expert, tokens whose first choice is this expert come first, then tokens
    whose second choice it is, and so on. Within each of these groups, tokens are in the order of their
    numbers. With a `capacity` (an integer, 0 or larger), an expert gets at most this many of this process's
    choices, the first in the order above. All later choices for this expert are dropped and have no entry. If
    `capacity` is None, nothing is dropped.
    """
    # cut 16.1: which token goes to which expert, and which choices are dropped
    chosen = logits.sort(dim=1, descending=True, stable=True).indices[:, :top_k]
    experts = chosen.T.flatten()  # all first choices, then all second choices
    tokens = torch.arange(len(logits)).repeat(top_k)
    order = experts.argsort(stable=True)
    if capacity is not None:
        counts = experts.bincount(minlength=logits.shape[1])
        kept = []
        for choices_of_one_expert in order.split(counts.tolist()):
            kept.append(choices_of_one_expert[:capacity])
        order = torch.cat(kept)
    tokens, experts = tokens[order], experts[order]
    weights = logits.softmax(dim=1)[tokens, experts]
    return tokens, experts, weights
    # end


def balancing_loss(logits, chosen):
    """Return this process's part of the balancing loss. The parts of all processes add up to the loss.

    The loss is what one process with all tokens would compute: multiply the load of each expert by its mean
    score, add up these products over all experts, and multiply the sum by the number of experts. The load is
    the fraction of all choices, over all processes, that fall on this expert. The mean score is the mean of
    the softmax at this expert over all tokens of all processes. There is at least one token in total. For a
    process's part, use only the scores of its own tokens, but still divide by the number of all tokens.
    `chosen` contains the numbers of the experts that this process's tokens have chosen, whether the choice
    was dropped or not: a 1-D tensor, with top_k numbers for each token, in any order. The load has no
    gradient, but the scores do. Note that dividing integer tensors gives float32, which has too few digits if
    `logits` is float64. Send only counts. However many tokens there are, send the same number of counts.
    """
    # cut 16.2: the balancing loss
    number = logits.shape[1]
    counts = torch.cat([chosen.bincount(minlength=number), torch.tensor([len(logits)])])
    dist.all_reduce(counts)
    choices, tokens = counts[:number], counts[number]

    load = choices.to(logits.dtype) / choices.sum()
    scores = logits.softmax(dim=1).sum(dim=0)
    return number * (load * scores).sum() / tokens
    # end


class AllToAll(torch.autograd.Function):
    """Lesson 16's all-to-all, which passes gradients back. Call `AllToAll.apply(rows, sent, received)`.

    `sent` and `received` are lists with a number for each process: the first `sent[0]` rows go to process
    0, the next `sent[1]` rows to process 1, and so on. The result has `received[0]` rows from process 0,
    then `received[1]` rows from process 1, and so on. In backward, the gradient of each row travels to the
    process that the row came from.
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
    """Send tokens to their experts. Return (arrived, plan).

    `tokens` and `experts` are results of route: row `tokens[i]` of `x` goes to expert `experts[i]` of
    `number` experts. `arrived` is a list with a tensor for each expert of this process, in order. The
    tensor contains the rows that have arrived for the expert: first the rows from process 0, then the rows
    from process 1, and so on. The rows from one process are in the order in which it sent them. An expert
    that got nothing has a tensor of 0 rows. An expert may begin with nn.ReLU(inplace=True), and PyTorch
    refuses to change a result of `split` in place. `plan` is whatever combine needs to know later.
    """
    # cut 16.3: to the experts
    processes = dist.get_world_size()
    here = experts.bincount(minlength=number)
    there = torch.empty_like(here)
    dist.all_to_all_single(there, here)  # row r: how many rows process r sends to each expert here
    sent = here.view(processes, -1).sum(dim=1).tolist()
    counts = there.view(processes, -1)
    received = counts.sum(dim=1).tolist()
    rows = AllToAll.apply(x[tokens], sent, received)

    # The rows arrive sorted by process, and must be sorted by expert. A stable sort keeps the process order.
    own = torch.arange(counts.shape[1]).repeat(processes).repeat_interleave(there)
    order = own.argsort(stable=True)
    arrived = []
    for rows_of_one_expert in rows[order].split(counts.sum(dim=0).tolist()):
        arrived.append(rows_of_one_expert.clone())

    back = order.argsort()  # from the order of experts to the order in which the rows came
    return arrived, (back, sent, received, tokens, len(x))
    # end


def combine(answers, plan, weights):
    """Send the answers back. Return a tensor with a row for each token of this process, ordered as in `x`.

    `answers` is a list like `arrived`, with an answer for each row. All answers have the same width, which
    may differ from the width of `x`. A token's row is the sum of the answers to its choices, each multiplied
    by the weight of the choice. `weights[i]` belongs to the choice `tokens[i]`, `experts[i]` of dispatch. A
    token whose choices were all dropped gets zeros. Gradients must flow back to `answers`, to `weights`, and
    to the `x` that was passed to dispatch.
    """
    # cut 16.3: and back
    back, sent, received, tokens, count = plan
    # Where a process received rows, it now sends answers.
    rows = AllToAll.apply(torch.cat(answers)[back], received, sent)
    rows = rows * weights[:, None]
    return rows.new_zeros(count, rows.shape[1]).index_add(0, tokens, rows)
    # end


class Mixture(nn.Module):
    """The layer: `router` is an nn.Linear, equal on all processes; `experts` are this process's experts."""

    def __init__(self, router, experts, top_k, capacity):
        super().__init__()
        self.router, self.experts = router, nn.ModuleList(experts)
        self.top_k, self.capacity = top_k, capacity

    def forward(self, x):
        """Send `x` through the router and the experts. Return (output, part of the balancing loss).

        The router returns the logits of each row. The balancing loss counts the choices before any of them is
        dropped. The answers of the experts, and so the output, may be wider or narrower than `x`. The weights
        of the experts stay where they are.
        """
        # cut 16.4: the layer
        logits = self.router(x)
        _, chosen, _ = route(logits, self.top_k, None)
        tokens, experts, weights = route(logits, self.top_k, self.capacity)
        arrived, plan = dispatch(x, tokens, experts, logits.shape[1])
        answers = []
        for expert, rows in zip(self.experts, arrived, strict=True):
            answers.append(expert(rows))
        return combine(answers, plan, weights), balancing_loss(logits, chosen)
        # end


def add_up_gradients(model):
    """Make every gradient equal to the gradient that one process with all tokens would have. Called after
    backward.

    `model` has Mixture layers somewhere inside, under any name, and ordinary layers. The losses of the
    processes are parts that add up to the loss that one process would have. For parameters that all
    processes share, including those of the routers, each process has only a part of the whole gradient.
    Each expert of a Mixture is on one process only, and an expert that got no token may have no gradient.
    All other parameters have a gradient.
    """
    # cut 16.4: which gradients are added up
    own = set()
    for layer in model.modules():
        if isinstance(layer, Mixture):
            own.update(layer.experts.parameters())
    for parameter in model.parameters():
        if parameter not in own:
            dist.all_reduce(parameter.grad)
    # end
