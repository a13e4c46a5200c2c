"""Exercise 10: a pipeline, with its schedule as data. 18 points.

A model is cut into stages: some layers each, one stage for each process. A batch is cut into micro-batches,
so that the stages can work on different ones at the same time. For each micro-batch a stage has two things
to do: a forward, whose output goes on to the next stage, and later a backward, whose gradient goes back to
the stage before. The order in which a stage does them is its schedule. Lesson 10 shows the best known ones
at work; here you write them, work out what they cost, and then run them.

A schedule is a list of pairs, the actions of one stage in their order:

    [("forward", 0), ("forward", 1), ("backward", 0), ("backward", 1)]

The number is that of the micro-batch. Stages and micro-batches are numbered from 0. For three stages and
four micro-batches, in short (F2 is ("forward", 2)):

    gpipe, every stage    F0 F1 F2 F3 B0 B1 B2 B3
    1f1b, stage 0         F0 F1 F2 B0 F3 B1 B2 B3
    1f1b, stage 1         F0 F1 B0 F2 B1 F3 B2 B3
    1f1b, stage 2         F0 B0 F1 B1 F2 B2 F3 B3

Part 5 needs no other part: it is given its schedules. Do all of it without torch.distributed.pipelining.

    10.1 (1 point)   GPipe: all forward, then all backward
    10.2 (3 points)  1F1B: each backward as soon as possible
    10.3 (4 points)  the timeline: when each action begins and ends
    10.4 (2 points)  what a schedule costs: idle time and memory
    10.5 (8 points)  one stage at work, in a process of its own
"""

import torch
import torch.distributed as dist


def gpipe(stage, stages, microbatches):
    """The schedule of one stage: all forwards in order, then all backwards, from micro-batch 0 on."""
    # cut 10.1: GPipe: all forward, then all backward
    numbers = range(microbatches)
    return [("forward", number) for number in numbers] + [("backward", number) for number in numbers]
    # end


def one_forward_one_backward(stage, stages, microbatches):
    """The schedule of one stage under 1F1B: it never runs ahead further than it must.

    First come as many forwards as there are stages after this one. Then one forward and one backward take
    turns until there is no forward left, and then come the backwards that remain. Both are in order, from
    micro-batch 0 on. There may be fewer micro-batches than that: all forwards come first then.
    """
    # cut 10.2: 1F1B: each backward as soon as possible
    ahead = min(stages - 1 - stage, microbatches)
    schedule = [("forward", number) for number in range(ahead)]
    for number in range(microbatches - ahead):
        schedule += [("forward", ahead + number), ("backward", number)]
    return schedule + [("backward", number) for number in range(microbatches - ahead, microbatches)]
    # end


def timeline(schedules, forward_times, backward_times):
    """When does each action begin and end, if each begins as soon as it can?

    `schedules` has the schedule of each stage, `forward_times` the seconds that one forward takes on each
    stage, and `backward_times` those of one backward. The clock starts at 0, and messages take no time.

        A stage does one thing at a time, in the order of its schedule.
        A forward begins after the stage before has ended its forward of the same micro-batch.
        A backward begins after the stage itself has ended its forward of the same micro-batch, and the next
        stage its backward of it.

    Returns a list for each stage: a pair (begin, end) for each of its actions, in the order of its schedule.
    The schedules may be any, not only those above. If an action can never begin, because what it waits for
    never comes or waits for it in turn, raise ValueError.
    """
    # cut 10.3: the timeline: when each action begins and ends
    times = {"forward": forward_times, "backward": backward_times}
    ends, lines = {}, [[] for _ in schedules]

    def needed(stage, action, number):
        if action == "forward":
            return [("forward", number, stage - 1)] if stage > 0 else []
        own, after = ("forward", number, stage), ("backward", number, stage + 1)
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
    # end


def idle_share(lines):
    """The share of all stages' time in which they do nothing, from 0 to 1, given what `timeline` returns.

    The time of every stage runs from 0 until the last action of all stages ends.
    """
    # cut 10.4: idle time
    busy = sum(end - begin for line in lines for begin, end in line)
    return 1 - busy / (len(lines) * max(end for line in lines for _, end in line))
    # end


def activations_held(schedule):
    """The most micro-batches whose activations one stage holds at once.

    It holds those of a micro-batch from the begin of its forward to the end of its backward.
    """
    # cut 10.4: memory
    held = most = 0
    for action, _ in schedule:
        held += 1 if action == "forward" else -1
        most = max(most, held)
    return most
    # end


def run(schedule, module, inputs, targets, loss_function, shape):
    """Do what the schedule says, in its order, for the stage of this process. One batch, no optimizer step.

    The process group is there: the stage's number is the rank, and there are as many stages as processes,
    perhaps only one. All is float32, and all micro-batches are of one size. Each process is given:

        schedule       its list of actions: any order in which no stage waits for ever. All stages have their
                       forwards in one order, and their backwards in one order
        module         the layers of this stage. Call it once for each forward
        inputs         on the first stage a list with the images of each micro-batch, elsewhere None
        targets        on the last stage a list with the targets of each micro-batch, elsewhere None
        loss_function  loss_function(output, target) is the mean loss of one micro-batch
        shape          elsewhere than on the first stage, the shape of what comes from the stage before, for
                       one micro-batch

    Afterwards the parameters' gradients are those of the mean loss of the whole batch, added to what was in
    `.grad` before. Returns this mean loss as a float on the last stage, and None elsewhere.

    Two neighbours exchange one message for each micro-batch and direction: on the way forward the output, on
    the way back its gradient, each begun before the next action receives or computes anything. Nothing else
    is sent, and nothing to others. The judge counts it from outside, at the end and on the way.

    `dist.send` waits until the other side receives. Under 1F1B there are moments when one sends an output and
    the other, at the same time, a gradient, and both would wait for ever. So start a send with `dist.isend`,
    go on, and call `wait()` later on what it returned: for an output when its gradient is there, for the rest
    before you return. Do it once for each. With gloo, `is_completed()` is False until then, and a second
    `wait()` never ends.

    Let go of a micro-batch's input, output and loss with its backward: otherwise 1F1B saves no memory. Those
    of one micro-batch more than the schedule says may still be there, because a name points to them. What
    `dist.isend` returns keeps the tensor that it sends for as long as you keep it, and with an output all
    that led to it: send `output.detach()`, and let go of what was returned with the output.
    """
    # cut 10.5: one stage at work, in a process of its own
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    microbatches = len(schedule) // 2
    total, held, outputs_sent, gradients_sent = 0.0, {}, {}, []
    for action, number in schedule:
        if action == "forward":
            if rank == 0:
                data = inputs[number]
            else:
                data = torch.empty(shape)
                dist.recv(data, rank - 1)
                data.requires_grad_()
            output = module(data)
            if rank == last:
                output = loss_function(output, targets[number]) / microbatches
                total += output.item()
            else:
                outputs_sent[number] = dist.isend(output.detach(), rank + 1)
            held[number] = data, output
        else:
            data, output = held.pop(number)
            gradient = None
            if rank < last:
                gradient = torch.empty_like(output)
                dist.recv(gradient, rank + 1)
                outputs_sent.pop(number).wait()
            output.backward(gradient)
            if rank > 0:
                gradients_sent.append(dist.isend(data.grad, rank - 1))
    for work in gradients_sent:
        work.wait()
    return total if rank == last else None
    # end
