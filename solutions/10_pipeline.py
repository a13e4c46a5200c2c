"""Exercise 10: a pipeline, with its schedule as data. 18 points, about 180 minutes.

A model is cut into stages of a few layers, one stage for each process. A batch is cut into micro-batches,
so that the stages can work on different micro-batches at the same time. For each micro-batch, a stage runs
two actions: a forward, whose output goes to the next stage, and later a backward, whose gradient goes back
to the previous stage. The order in which a stage runs its actions is its schedule. Lesson 10 shows the
best-known schedules at work. In this exercise you write these schedules, compute what they cost, and then run
them.

A schedule is a list of pairs, the actions of one stage in order:

    [("forward", 0), ("forward", 1), ("backward", 0), ("backward", 1)]

The number in a pair is the number of the micro-batch. Stages and micro-batches are numbered from 0. For three
stages and four micro-batches, the schedules are as follows, where F2 is short for ("forward", 2):

    gpipe, every stage    F0 F1 F2 F3 B0 B1 B2 B3
    1f1b, stage 0         F0 F1 F2 B0 F3 B1 B2 B3
    1f1b, stage 1         F0 F1 B0 F2 B1 F3 B2 B3
    1f1b, stage 2         F0 B0 F1 B1 F2 B2 F3 B3

Part 5 does not depend on the other parts, because the grader gives it the schedules. Do not change a schedule
or any other list that you are given, and do not use torch.distributed.pipelining in any part.

    10.1 (1 point)   GPipe: all forwards, then all backwards
    10.2 (3 points)  1F1B: each backward as soon as possible
    10.3 (4 points)  the timeline: when each action begins and ends
    10.4 (2 points)  what a schedule costs: idle time and memory
    10.5 (8 points)  one stage at work, in its own process
"""

import torch
import torch.distributed as dist


def gpipe(stage, stages, microbatches):
    """Return the schedule of one stage: all forwards, then all backwards, both in micro-batch order."""
    # cut 10.1: GPipe: all forwards, then all backwards
    schedule = []
    for number in range(microbatches):
        schedule.append(("forward", number))
    for number in range(microbatches):
        schedule.append(("backward", number))
    return schedule
    # end


def one_forward_one_backward(stage, stages, microbatches):
    """Return the schedule of one stage under 1F1B, which never runs further ahead than it must.

    The schedule begins with as many forwards as there are stages after this one. Then one forward and one
    backward alternate until no forward is left, and the remaining backwards follow. Forwards are in order
    from micro-batch 0 on, and so are backwards. If there are fewer micro-batches than stages after this
    one, all forwards come first.
    """
    # cut 10.2: 1F1B: each backward as soon as possible
    ahead = min(stages - 1 - stage, microbatches)
    schedule = []
    for number in range(ahead):
        schedule.append(("forward", number))
    for number in range(microbatches - ahead):
        schedule.append(("forward", ahead + number))
        schedule.append(("backward", number))
    for number in range(microbatches - ahead, microbatches):
        schedule.append(("backward", number))
    return schedule
    # end


def timeline(schedules, forward_times, backward_times):
    """Return when each action begins and ends, if each action begins as soon as it can.

    `schedules` contains the schedule of each stage. `forward_times` and `backward_times` contain the
    seconds that one forward and one backward take on each stage. The clock starts at 0, and messages take
    no time.

        A stage runs one action at a time, in the order of its schedule.
        A forward can begin only after the previous stage has finished the forward for the same micro-batch.
        A backward can begin only after this stage has finished the forward, and the next stage has finished
        the backward, for the same micro-batch.

    Return a list that contains one list for each stage, with a pair (begin, end) for each of the stage's
    actions in the order of its schedule. Any schedules may be given, not only GPipe and 1F1B, and a stage may
    have no action at all. If an action can never begin, because the action that it waits for never comes or
    is waiting for it in turn, raise ValueError.
    """
    # cut 10.3: the timeline: when each action begins and ends
    times = {"forward": forward_times, "backward": backward_times}
    ends = {}  # when each action ends, known once the action has its place on a line
    lines = [[] for _ in schedules]

    def actions_before(stage, action, number):
        """The actions that must have ended before this one begins."""
        before = []
        if action == "forward" and stage > 0:
            before.append(("forward", number, stage - 1))
        if action == "backward":
            before.append(("forward", number, stage))
        if action == "backward" and stage + 1 < len(schedules):
            before.append(("backward", number, stage + 1))
        return before

    # In each round, every stage whose next action can begin puts this action on its line.
    progress = True
    while progress:
        progress = False
        for stage, (schedule, line) in enumerate(zip(schedules, lines, strict=True)):
            if len(line) == len(schedule):
                continue
            action, number = schedule[len(line)]
            before = actions_before(stage, action, number)
            if all(other in ends for other in before):
                begin = line[-1][1] if line else 0
                for other in before:
                    begin = max(begin, ends[other])
                end = begin + times[action][stage]
                line.append((begin, end))
                ends[action, number, stage] = end
                progress = True

    for schedule, line in zip(schedules, lines, strict=True):
        if len(line) < len(schedule):
            raise ValueError("the stages wait for each other forever")
    return lines
    # end


def idle_share(lines):
    """Return the share of all stages' time that is idle, from 0 to 1. `lines` is the result of `timeline`.

    The time of every stage runs from 0 until the last action of any stage ends. A stage without an action is
    idle all the time.
    """
    # cut 10.4: idle time
    busy = 0
    last_end = 0
    for line in lines:
        for begin, end in line:
            busy += end - begin
            last_end = max(last_end, end)
    return 1 - busy / (len(lines) * last_end)
    # end


def activations_held(schedule):
    """Return the largest number of micro-batches whose activations one stage holds at the same time.

    A stage holds the activations of a micro-batch from the beginning of its forward to the end of its
    backward. A stage without an action holds none.
    """
    # cut 10.4: memory
    held = 0
    most = 0
    for action, _ in schedule:
        if action == "forward":
            held += 1
        else:
            held -= 1
        most = max(most, held)
    return most
    # end


def run(schedule, module, inputs, targets, loss_function, shape):
    """Run the actions of this process's stage in order, for one batch and without an optimizer step.

    The process group already exists. The number of the stage is the rank, and there are as many stages as
    processes, perhaps only one. All tensors are float32, and all micro-batches have the same size. Each
    process is given:

        schedule       its list of actions, in any order in which no stage waits forever. All stages run
                       their forwards in the same order, and their backwards in the same order
        module         the layers of this stage. Call it once for each forward. Its output may be a
                       transposed view, but gloo sends only contiguous tensors. Some of its parameters may be
                       frozen
        inputs         on the first stage a list with the images of each micro-batch, elsewhere None
        targets        on the last stage a list with the targets of each micro-batch, elsewhere None
        loss_function  loss_function(output, target) is the mean loss of one micro-batch
        shape          on all stages except the first: the shape of the input that comes from the previous
                       stage, for one micro-batch

    Afterwards, the parameters' gradients are the gradients of the mean loss of the whole batch, added to
    what was in `.grad` before. Return this mean loss as a float on the last stage, and None elsewhere.

    Two neighbors exchange one message for each micro-batch in each direction: the output travels forward,
    and its gradient backward. Start each send before the next action receives or computes anything. Send
    nothing else, and nothing to any other stage. The checks count the messages, during the run and at
    its end.

    `dist.send` waits until the other side receives. Under 1F1B, one stage sometimes sends an output while its
    neighbor sends a gradient, and with `dist.send` both would wait forever. So start a send with
    `dist.isend`, continue, and later call `wait()` on the handle that it returned. For an output, call
    `wait()` when the output's gradient has arrived; for all other sends, call it before you return. Call
    `wait()` exactly once for each handle. With gloo, `is_completed()` is False until you call `wait()`, and a
    second `wait()` never returns.

    Release the input, the output and the loss of a micro-batch during its backward: otherwise 1F1B saves no
    memory. You may hold one micro-batch more than the schedule requires, because a variable may still point
    to its tensors. The handle that `dist.isend` returns keeps the sent tensor alive for as long as you keep
    the handle, and an output keeps alive all activations from which it was computed. So send
    `output.detach()`, and release the handle together with the output.
    """
    # cut 10.5: one stage at work, in its own process
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    microbatches = len(schedule) // 2
    total = 0.0
    held = {}  # of each micro-batch between its forward and its backward: the input and the output
    outputs_sent = {}  # the handle of each output's send, until the output's gradient has arrived
    gradients_sent = []
    for action, number in schedule:
        if action == "forward":
            if rank == 0:
                data = inputs[number]
            else:
                data = torch.empty(shape)
                dist.recv(data, rank - 1)
                data.requires_grad_()
            output = module(data).contiguous()
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
