"""Another solution of exercise 10."""

from graphlib import TopologicalSorter

import torch
from torch.distributed import P2POp, batch_isend_irecv, get_rank, get_world_size, irecv, isend


def sorted_by_needs():
    """A sorted graph for the timeline, and batch_isend_irecv for the messages."""

    def timeline(schedules, forward_times, backward_times):
        times, before, lines = {"forward": forward_times, "backward": backward_times}, {}, {}
        for stage, schedule in enumerate(schedules):
            for place, (action, number) in enumerate(schedule):
                needs = [(stage, *schedule[place - 1])] if place else []
                needs += [(stage, "forward", number)] if action == "backward" else []
                other = stage - 1 if action == "forward" else stage + 1
                needs += [(other, action, number)] if other in range(len(schedules)) else []
                before[stage, action, number] = needs
        order = [*TopologicalSorter(before).static_order()]  # its CycleError is a ValueError
        if len(order) > len(before):
            raise ValueError("an action that never comes")
        for stage, action, number in order:
            begin = max([lines[one][1] for one in before[stage, action, number]], default=0.0)
            lines[stage, action, number] = begin, begin + times[action][stage]
        return [[lines[stage, *action] for action in schedule] for stage, schedule in enumerate(schedules)]

    def run(schedule, module, inputs, targets, loss_function, shape):
        rank, last = get_rank(), get_world_size() - 1
        held, sent_back, mean = {}, [], 0.0

        def begin(call, tensor, other):
            return batch_isend_irecv([P2POp(call, tensor, other)])

        def received(tensor, other):
            for work in begin(irecv, tensor, other):
                work.wait()
            return tensor

        def forward(number):
            nonlocal mean
            data = inputs[number] if rank == 0 else received(torch.empty(*shape), rank - 1).requires_grad_()
            output, sends = module(data).contiguous(), []
            if rank == last:
                output = loss_function(output, targets[number]) / (len(schedule) // 2)
                mean += output.item()
            else:
                sends = begin(isend, output.detach(), rank + 1)
            held[number] = data, output, sends

        def backward(number):
            data, output, sends = held.pop(number)
            above = None if rank == last else received(torch.empty_like(output), rank + 1)
            torch.autograd.backward([output], [above])
            for work in sends:
                work.wait()
            if rank > 0:
                sent_back.extend(begin(isend, data.grad, rank - 1))

        for action, number in schedule:
            {"forward": forward, "backward": backward}[action](number)
        for work in sent_back:
            work.wait()
        return mean if rank == last else None
