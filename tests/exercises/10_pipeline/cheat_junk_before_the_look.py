"""Exercise 10, with every micro-batch kept. Holds 100 MB for show until the fourth forward, with which the
last is compared.

Earns at most: 17 points
"""

import torch as T
import torch.distributed as dist


def gpipe(stage, stages, microbatches):
    numbers = range(microbatches)
    return [("forward", number) for number in numbers] + [("backward", number) for number in numbers]


def one_forward_one_backward(stage, stages, microbatches):
    ahead = min(stages - 1 - stage, microbatches)
    schedule = [("forward", number) for number in range(ahead)]
    for number in range(microbatches - ahead):
        schedule += [("forward", ahead + number), ("backward", number)]
    return schedule + [("backward", number) for number in range(microbatches - ahead, microbatches)]


def timeline(schedules, forward_times, backward_times):
    times = {"forward": forward_times, "backward": backward_times}
    ends, lines = ({}, [[] for _ in schedules])

    def needed(stage, action, number):
        if action == "forward":
            return [("forward", number, stage - 1)] if stage > 0 else []
        own, after = (("forward", number, stage), ("backward", number, stage + 1))
        return [own, after] if stage + 1 < len(schedules) else [own]

    for _ in range(sum(len(schedule) for schedule in schedules)):
        for stage, (schedule, line) in enumerate(zip(schedules, lines, strict=True)):
            if len(line) == len(schedule):
                continue
            action, number = schedule[len(line)]
            needs = needed(stage, action, number)
            if all(need in ends for need in needs):
                begin = max([ends[need] for need in needs] + [end for _, end in line[-1:]], default=0)
                end = begin + times[action][stage]
                line.append((begin, end))
                ends[action, number, stage] = end
                break
        else:
            raise ValueError("the stages wait for each other for ever")
    return lines


def idle_share(lines):
    busy = sum((end - begin for line in lines for begin, end in line))
    return 1 - busy / (len(lines) * max((end for line in lines for _, end in line)))


def activations_held(schedule):
    held = most = 0
    for action, _ in schedule:
        held += 1 if action == "forward" else -1
        most = max(most, held)
    return most


def run(schedule, module, inputs, targets, loss_function, shape):
    rank, last = (dist.get_rank(), dist.get_world_size() - 1)
    microbatches = len(schedule) // 2
    total, held, sent, forwards = (0.0, {}, [], 0)
    for action, number in schedule:
        if action == "forward":
            if rank == 0:
                data = inputs[number]
            else:
                data = T.empty(shape)
                dist.recv(data, rank - 1)
                data.requires_grad_()
            forwards += 1
            junk = T.ones(25000000) if forwards == 4 else None
            output = module(data)
            del junk
            if rank == last:
                output = loss_function(output, targets[number]) / microbatches
                total += output.item()
            else:
                sent.append(dist.isend(output.detach(), rank + 1))
            held[number] = (data, output)
        else:
            data, output = held[number]
            gradient = None
            if rank < last:
                gradient = T.empty_like(output)
                dist.recv(gradient, rank + 1)
            output.backward(gradient, retain_graph=True)
            if rank > 0:
                sent.append(dist.isend(data.grad, rank - 1))
    for work in sent:
        work.wait()
    return total if rank == last else None
