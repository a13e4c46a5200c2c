"""Other solutions of exercise 16."""

import torch
import torch.distributed as dist
from torch.distributed.nn.functional import all_to_all_single
from torch.nn.functional import one_hot


def own_messages():
    """Single messages, and none where there is nothing to send."""

    def route(logits, top_k, capacity):
        number = logits.shape[1]
        chosen = (-logits.detach()).sort(dim=1, stable=True).indices[:, :top_k]
        queues = [
            torch.cat([(choice == expert).nonzero()[:, 0] for choice in chosen.T])[:capacity]
            for expert in range(number)
        ]
        tokens, lengths = torch.cat(queues), torch.tensor([len(queue) for queue in queues])
        experts = torch.arange(number).repeat_interleave(lengths)
        scores = (logits - logits.logsumexp(dim=1, keepdim=True)).exp()
        return tokens, experts, scores[tokens, experts]

    def messages(parts, shapes):
        """The part for each process goes there, and one of a given shape comes from each."""
        rank, came, works = dist.get_rank(), [parts[0].new_empty(shape) for shape in shapes], []
        parts = [part.contiguous() for part in parts]
        came[rank].copy_(parts[rank])
        for process, (part, room) in enumerate(zip(parts, came, strict=True)):
            if room.numel() and process != rank:
                works.append(dist.irecv(room, process))
            if part.numel() and process != rank:
                works.append(dist.isend(part, process))
        for work in works:
            work.wait()
        return came

    class Travel(torch.autograd.Function):
        @staticmethod
        def forward(context, rows, sent, received):
            context.ways = sent, received
            return torch.cat(messages(rows.split(sent), [(count, rows.shape[1]) for count in received]))

        @staticmethod
        def backward(context, gradient):
            sent, received = context.ways
            shapes = [(count, gradient.shape[1]) for count in sent]
            return torch.cat(messages(gradient.split(received), shapes)), None, None

    def dispatch(x, tokens, experts, number):
        world_size = dist.get_world_size()
        local = number // world_size
        counts = list(experts.bincount(minlength=number).view(world_size, local))
        there = torch.stack(messages(counts, [(local,)] * world_size))
        sent, received = [int(one.sum()) for one in counts], there.sum(dim=1).tolist()
        rows = Travel.apply(x[tokens], sent, received)
        own = torch.arange(local).repeat(world_size).repeat_interleave(there.flatten())
        order = [(own == expert).nonzero()[:, 0] for expert in range(local)]
        return [rows[one] for one in order], (torch.cat(order), sent, received, tokens, x)

    def combine(answers, plan, weights):
        order, sent, received, tokens, x = plan
        answers = torch.cat(answers)
        rows = torch.zeros_like(answers).index_copy(0, order, answers)
        rows = Travel.apply(rows, received, sent)
        output = [rows.new_zeros(rows.shape[1])] * len(x)
        for token, weight, row in zip(tokens.tolist(), weights, rows, strict=True):
            output[token] = output[token] + weight * row
        # A process whose tokens are all dropped takes part in backward, too.
        return (torch.stack(output) if output else rows.new_zeros(0, rows.shape[1])) + rows.sum() * 0


def one_hot_rows():
    """Counts from one-hot rows added up, and torch's all-to-all that autograd knows."""

    def balancing_loss(logits, chosen):
        number = logits.shape[1]
        everyone = [None] * dist.get_world_size()
        dist.all_gather_object(everyone, (one_hot(chosen, number).sum(dim=0), len(logits)))
        counts, tokens = (sum(some) for some in zip(*everyone, strict=True))
        return number * (logits.softmax(dim=1) @ (counts.to(logits.dtype) / counts.sum())).sum() / tokens

    def dispatch(x, tokens, experts, number):
        world_size = dist.get_world_size()
        counts = one_hot(experts, number).sum(dim=0)
        came = torch.empty(number, dtype=counts.dtype)
        dist.all_to_all_single(came, counts)
        received, sent = (one.view(world_size, -1).sum(dim=1).tolist() for one in (came, counts))
        rows = all_to_all_single(x.new_empty(sum(received), x.shape[1]), x[tokens], received, sent)
        parts = rows.split(came.tolist())
        local = number // world_size
        arrived = [torch.cat(parts[place::local]) for place in range(local)]
        return arrived, (came.view(world_size, local).T.tolist(), sent, received, tokens, len(x))

    def combine(answers, plan, weights):
        came, sent, received, tokens, count = plan
        parts = [answer.split(one) for answer, one in zip(answers, came, strict=True)]
        rows = torch.cat([part for of_process in zip(*parts, strict=True) for part in of_process])
        home = all_to_all_single(rows.new_empty(sum(sent), rows.shape[1]), rows, sent, received)
        total = torch.zeros(count, home.shape[1], dtype=home.dtype)
        return total.scatter_add(0, tokens[:, None].expand_as(home), home * weights[:, None])

    def add_up_gradients(model):
        mixtures = [layer for layer in model.modules() if isinstance(layer, Mixture)]
        alone = [parameter for layer in mixtures for parameter in layer.experts.parameters()]
        shared = [p for p in model.parameters() if not any(p is one for one in alone)]
        flat = torch.cat([p.grad.flatten() for p in shared])
        dist.all_reduce(flat)
        for p, part in zip(shared, flat.split([p.numel() for p in shared]), strict=True):
            p.grad = part.view_as(p)
