"""Exercise 10: a pipeline, with its schedule as data.

| axis | checked in |
| --- | --- |
| stages 1 to 4 | 1a to 4b; 5a, 5b |
| micro-batches | 2b: fewer than stages; 1a, 2a: one; 3b: 300 |
| frozen | 5a |
| schedules | 3b, 4b, 5c: any order; 3c, 4a, 4b: no action, forwards only, actions that can never begin |
| times | 3b, 4a: other ones on each stage, and 0 |
| memory layout | 5a: an output that is a transposed view |
| missing gradients | 5b: none from before; 5a, 5c, 5d: added to those from before |
| sizes | 5a: another width on each stage |
| arguments left alone | 1a to 4b; 5a: schedules, and a second call |
| dtypes, micro-batches of different sizes, tied parameters, a second batch | excluded by the docstring |
| modes, seeds | the functions know none |
"""

import random
from functools import partial
from itertools import pairwise

import pytest
import torch
from give_back import free_memory, own_pages
from grader.testing import close, floats, needs_memory, require, run, same, so_many, tried
from torch import nn

# ---- what runs in each rank: a body, and what it mentions of this file


def ask(student, me, given):
    """What a function gives for each of several cases; None for a ValueError. And what it changed."""
    function = getattr(student, given["function"])
    found = []
    changed = []
    for case in given["cases"]:
        arguments = pairs(case)
        try:
            found.append(function(*arguments))
        except ValueError:
            found.append(None)
        if arguments != pairs(case):
            changed.append(str(arguments))
    return {"found": found, "changed": changed}


def pairs(value):
    """JSON has no tuples, and an action or an interval is one."""
    if value and type(value[0]) in (str, float) and len(value) == 2 and type(value[1]) in (int, float):
        return tuple(value)
    found = []
    for one in value:
        found.append(pairs(one) if isinstance(one, list) else one)
    return found


class Stage(nn.Module):
    """A linear layer and tanh. Notes each forward and backward, and what came in."""

    def __init__(self, given, me):
        super().__init__()
        self.weight = nn.Parameter(given["weight"])
        self.weight.grad = given["gradient"]
        self.me = me
        self.calls = 0
        self.most = len(given["schedule"]) // 2
        self.settles = given["settles"]
        self.odd = given["odd"]
        if self.odd:
            self.frozen = nn.Parameter(torch.ones(()), requires_grad=False)

    def forward(self, data):
        place = self.calls
        self.calls += 1
        if place == self.most:
            raise RuntimeError(f"the stage is called once more, and the schedule has {place} forwards")

        def note(action, value, held=0):
            self.me.note(action, place=place, shown=value.detach()[:6].clone(), held=held)

        if place in self.settles:
            free_memory()
        note("forward", data, self.me.memory())
        output = torch.tanh(data @ self.weight)
        output.register_hook(lambda gradient: note("backward", gradient))
        if self.odd:
            output = output.T.contiguous().T  # by columns, the same numbers
        return output


def stage(student, me, given):
    """One batch through the pipeline."""
    own_pages()
    module = Stage(given, me)
    schedule = [tuple(action) for action in given["schedule"]]
    shape = given["shape"] and tuple(given["shape"])
    rest = given["images"], given["targets"], nn.functional.mse_loss, shape
    loss = student.run(schedule, module, *rest)
    found = {"loss": loss, "gradient": module.weight.grad, "weight": module.weight, "calls": [*me.calls]}
    found["schedule"] = list(schedule)
    if given["odd"]:  # a list that the first call has filled may let the second wait forever
        student.run(schedule, Stage(given | {"gradient": None}, me), *rest)
    return found


# ---- schedules


def answers(function, cases):
    """What a function of the student's returns for each list of arguments, which it must leave alone."""
    (came,) = run(ask, [{"function": function, "cases": cases}], group=False)
    changed = "".join(came["changed"][:1])
    words = f"{function} changes what it is given: after a call, its arguments are {changed:.150}"
    require(not changed, words, "lists that stay as they were")
    return came["found"]


def gpipe(stage, stages, microbatches):
    schedule = []
    for action in ("forward", "backward"):
        for number in range(microbatches):
            schedule.append([action, number])
    return schedule


def one_forward_one_backward(stage, stages, microbatches):
    """Whenever as many are held as there are stages from here to the end, a backward is due."""
    schedule = []
    forwards = 0
    backwards = 0
    while backwards < microbatches:
        if forwards < microbatches and forwards - backwards < stages - stage:
            schedule.append(["forward", forwards])
            forwards += 1
        else:
            schedule.append(["backward", backwards])
            backwards += 1
    return schedule


def all_stages(function, stages, microbatches):
    return [function(stage, stages, microbatches) for stage in range(stages)]


def words(schedule):
    return " ".join(f"{action[0].upper()}{number}" for action, number in schedule)


def parsed(*lines):
    """Schedules that are written as F0 F1 B0 B1."""
    names = {"F": "forward", "B": "backward"}
    schedules = []
    for line in lines:
        schedule = []
        for word in line.split():
            schedule.append([names[word[0]], int(word[1:])])
        schedules.append(schedule)
    return schedules


def is_schedule(value):
    """Whether this is a list of pairs of a word and a whole number."""
    if not isinstance(value, list):
        return False
    for action in value:
        if not isinstance(action, list) or list(map(type, action)) != [str, int]:
            return False
    return True


def check_schedules(function, sizes):
    told = ", ".join(f"{stages} and {microbatches}" for stages, microbatches in sizes)
    tried(f"every stage, for these numbers of stages and micro-batches: {told}")
    cases = []
    for stages, microbatches in sizes:
        for stage in range(stages):
            cases.append([stage, stages, microbatches])
    for case, schedule in zip(cases, answers(function.__name__, cases), strict=True):
        what = f"{function.__name__}{tuple(case)}"
        expected = function(*case)
        good = is_schedule(schedule)
        require(good, f"{what} is {schedule!r:.150}", 'a list of pairs like ("forward", 0)')
        require(schedule == expected, f"{what} is {words(schedule) or 'an empty list'}", words(expected))


def drawn_sizes(fewer):
    """Stages and micro-batches."""
    sizes = []
    for stages in (2, 3, 4, 5):
        least, most = stages, stages + 5
        if fewer:
            least, most = 1, stages - 1
        sizes.append((stages, random.randint(least, most)))
    return sizes


def test_1a_gpipe():
    check_schedules(gpipe, [(1, 1), *drawn_sizes(False), *drawn_sizes(True)])


def test_2a_one_forward_one_backward():
    check_schedules(one_forward_one_backward, [(1, 1), (1, 3), (2, 2), *drawn_sizes(False)])


def test_2b_fewer_microbatches_than_stages():
    check_schedules(one_forward_one_backward, [(2, 1), (6, 3), *drawn_sizes(True)])


# ---- timelines


def needs(schedules, stage, action, number):
    """What an action waits for, beside the action before it: (stage, action, number) of each."""
    found = []
    if action == "forward" and stage > 0:
        found.append((stage - 1, "forward", number))
    if action == "backward":
        found.append((stage, "forward", number))
    if action == "backward" and stage + 1 < len(schedules):
        found.append((stage + 1, "backward", number))
    return found


def missing(needed, ends):
    """What of this has not ended."""
    return [need for need in needed if need not in ends]


def timeline(schedules, forward_times, backward_times):
    """Begin and end of each action, and the first one that can never begin, in words."""
    times = {"forward": forward_times, "backward": backward_times}
    ends = {}  # of each (stage, action, number)
    lines = [[] for _ in schedules]
    going = True
    while going:
        going = False
        for stage, (schedule, line) in enumerate(zip(schedules, lines, strict=True)):
            while len(line) < len(schedule):
                action, number = schedule[len(line)]
                needed = needs(schedules, stage, action, number)
                if missing(needed, ends):
                    break
                begin = line[-1][1] if line else 0.0
                for need in needed:
                    begin = max(begin, ends[need])
                end = begin + times[action][stage]
                line.append([begin, end])
                ends[stage, action, number] = end
                going = True

    for stage, (schedule, line) in enumerate(zip(schedules, lines, strict=True)):
        if len(line) < len(schedule):
            head = schedule[len(line)]
            other, *need = missing(needs(schedules, stage, *head), ends)[0]
            waits = f"stage {stage}'s {words([head])} waits forever for stage {other}'s {words([need])}"
            if need not in schedules[other]:
                waits += ", which never comes"
            return None, waits
    return lines, ""


def in_words(schedules):
    lines = []
    for stage, schedule in enumerate(schedules):
        lines.append(f"stage {stage}: {words(schedule) or 'no action':.60}")
    return "; ".join(lines)


def check_timelines(cases):
    """`timeline` of (words, schedules, times of a forward, times of a backward)."""
    arguments = [case[1:] for case in cases]
    for case, found in zip(cases, answers("timeline", arguments), strict=True):
        about, schedules, forward_times, backward_times = case
        title = f"{about} ({in_words(schedules)})"
        expected, never = timeline(schedules, forward_times, backward_times)
        require(expected or found is None, f"a timeline of {title}", f"a ValueError, because {never}")
        if expected is None:
            continue

        require(found is not None, f"a ValueError for {title}", "a timeline")
        lengths = list(map(len, found))
        same(f"the list of numbers of pairs in the timeline of {title}", lengths, list(map(len, expected)))
        for stage, schedule in enumerate(schedules):
            for action, got, wanted in zip(schedule, found[stage], expected[stage], strict=True):
                begin, end = got
                close(f"the begin of {words([action])} on stage {stage}, {title}", begin, wanted[0])
                close(f"the end of {words([action])} on stage {stage}, {title}", end, wanted[1])


def drawn_times(stages):
    return [round(random.uniform(0.5, 3), 2) for _ in range(stages)]


def can_begin(schedules, stage, action, number):
    """Whether all that an action waits for is in the schedules."""
    before = needs(schedules, stage, action, number)
    return all(need in schedules[other] for other, *need in before)


def odd_schedules(stages, microbatches):
    """Schedules that nobody would call by a name: another order, and as far ahead as chance will have it."""
    orders = {}
    for action in ("forward", "backward"):
        orders[action] = random.sample(range(microbatches), microbatches)
    schedules = [[] for _ in range(stages)]
    while sum(map(len, schedules)) < stages * 2 * microbatches:
        stage = random.randrange(stages)
        action = random.choice(list(orders))
        left = [number for number in orders[action] if [action, number] not in schedules[stage]]
        if left and can_begin(schedules, stage, action, left[0]):
            schedules[stage].append([action, left[0]])
    return schedules


def test_3a_timelines():
    """gpipe and 1F1B on 1 to 4 stages; a forward takes 1 s and a backward 2 s"""
    cases = []
    for function in (gpipe, one_forward_one_backward):
        for stages, count in ((1, 2), (2, 3), (3, 5), (4, 2)):
            title = f"{function.__name__}, {count} micro-batches"
            cases.append((title, all_stages(function, stages, count), [1.0] * stages, [2.0] * stages))
    check_timelines(cases)


def test_3b_any_schedules():
    """Random schedules and times, with different times on each stage"""
    cases = []
    for stages, count in ((3, 4), (4, 5), (2, 300)):
        times = drawn_times(stages), drawn_times(stages)
        times[0][0] = 0.0  # an action may end at 0, and so others begin there
        cases.append((f"gpipe with {count} micro-batches", all_stages(gpipe, stages, count), *times))
        cases.append(("1F1B", all_stages(one_forward_one_backward, stages, 6), *times))
        cases.append(("random", odd_schedules(stages, 5), *times))
    check_timelines(cases)


def test_3c_an_action_that_can_never_begin():
    """Some schedules in which an action can never begin, and some in which all actions can"""
    lines = [
        ("F0 F1 B1 B0", "F0 F1 B1 B0"),
        ("F1 B1 F0 B0", "F1 B1 F0 B0"),
        ("F0 F1 B0 B1", "F1 F0 B0 B1", "F0 F1 B0 B1"),
        ("F1 F0", "F1"),
        ("F0 F1", ""),  # up to here all can begin
        ("B0 F0",),
        ("F0 B0 F1 B1", "F0 F1 B0 B1"),
        ("F0 F1 B0 B1", "F0 B0"),
        ("F0 F1 B0 B1", "F0 B0 B1 F1"),
        ("F0 B0", "F0 F1 B0 B1"),
        ("F0 B0", ""),
        ("", "F0"),
    ]
    random.shuffle(lines)
    cases = []
    for one in lines:
        times = [1.0] * len(one)
        cases.append(("a schedule", parsed(*one), times, times))
    check_timelines(cases)


# ---- what a schedule costs


def test_4a_the_idle_share():
    """Timelines of gpipe and 1F1B with different times on each stage, and two others"""
    cases = [
        ("two forwards on two stages", [[[0.0, 1.0], [1.0, 2.0]], [[1.0, 2.0], [2.0, 3.0]]]),
        ("a stage without an action", [[[0.0, 1.0], [1.0, 2.0]], []]),
    ]
    for stages in (1, 2, 3, 4):
        for function in (gpipe, one_forward_one_backward):
            count = random.randint(1, 8)
            forward_times = drawn_times(stages)
            backward_times = drawn_times(stages)
            about = f"{function.__name__} on {so_many(stages, 'stage')}, {so_many(count, 'micro-batch')}"
            about += f", seconds per forward {forward_times}, per backward {backward_times}"
            lines, _ = timeline(all_stages(function, stages, count), forward_times, backward_times)
            cases.append((about, lines))
    arguments = [[lines] for _, lines in cases]
    for (about, lines), got in zip(cases, answers("idle_share", arguments), strict=True):
        busy = 0.0
        last = 0.0
        for line in lines:
            for begin, end in line:
                busy += end - begin
                last = max(last, end)
        close(f"the idle share of {about}", got, 1 - busy / len(lines) / last)


def most_held(schedule):
    """How many micro-batches are between their forward and their backward at most."""
    held = 0
    most = 0
    for action, _ in schedule:
        if action == "forward":
            held += 1
        else:
            held -= 1
        most = max(most, held)
    return most


def test_4b_how_many_are_held():
    """The schedules of gpipe and 1F1B, and others"""
    cases = odd_schedules(3, 6)
    for size in drawn_sizes(False):
        cases += [gpipe(0, *size), *all_stages(one_forward_one_backward, *size)]
    # One after the other, then more at a time; and a stage that runs forwards only.
    cases += parsed("F0 B0 F1 F2 B2 B1", "F0 F1 F2", "")
    arguments = [[case] for case in cases]
    for schedule, got in zip(cases, answers("activations_held", arguments), strict=True):
        title = words(schedule) or "a stage without an action"
        same(f"activations_held of {title}", got, most_held(schedule))


# ---- run


class Batch:
    """A batch and a model of as many stages as there are schedules, each with a size of its own."""

    def __init__(self, schedules, rows, fresh):
        self.schedules = schedules
        self.rows = rows
        self.count = len(schedules[0]) // 2
        self.sizes = [random.randint(40, 79) for _ in range(len(schedules) + 1)]
        self.weights = [floats(one, other) / one**0.5 for one, other in pairwise(self.sizes)]
        self.gradients = [None] * len(self.weights)
        if not fresh:
            # No larger than those that come, or rounding would be.
            self.gradients = [floats(*weight.shape) * 0.01 for weight in self.weights]
        self.images = floats(self.count, rows, self.sizes[0])
        self.targets = floats(self.count, rows, self.sizes[-1])

    def inputs(self, **more):
        found = []
        for stage, schedule in enumerate(self.schedules):
            one = {"schedule": schedule, "weight": self.weights[stage], "gradient": self.gradients[stage]}
            one |= {"images": None, "targets": None, "shape": [self.rows, self.sizes[stage]]}
            found.append(one | more)
        found[0] |= {"images": list(self.images), "shape": None}
        found[-1]["targets"] = list(self.targets)
        return found

    def expected(self):
        """The loss, the gradients of all stages, and what comes into each action: in float64."""
        weights = [weight.double().requires_grad_() for weight in self.weights]
        loss = 0
        shown = {}

        def show(key, value):
            shown[key] = value.detach()[:6]

        for number in range(self.count):
            value = self.images[number].double()
            for stage, weight in enumerate(weights):
                show((stage, "forward", number), value)
                value = torch.tanh(value @ weight)
                value.register_hook(partial(show, (stage, "backward", number)))
            loss = loss + nn.functional.mse_loss(value, self.targets[number].double()) / self.count
        loss.backward()
        return loss.item(), [weight.grad for weight in weights], shown


def check_run(schedules, rows=6, in_order=True, fresh=False, odd=False, settles=()):
    """Let the stages work; gradients, loss, messages and the order of everything must be right. `fresh`: no
    gradients from before. `odd`: a frozen parameter, and an output that is a view."""
    batch = Batch(schedules, rows, fresh)
    ranks = run(stage, batch.inputs(odd=odd, settles=settles))
    loss, gradients, shown = batch.expected()
    for rank, came in enumerate(ranks):
        what, got = added_by_run(rank, came["gradient"], batch.gradients[rank], gradients[rank])
        is_same = torch.equal(came["weight"], batch.weights[rank])
        require(is_same, f"run has changed stage {rank}'s weight", "gradients only: no optimizer step")
        is_same = came["schedule"] == batch.schedules[rank]
        require(is_same, f"run has changed the schedule of rank {rank}", "a list that stays as it was")
        close(what, got, gradients[rank])
        words = f"run returns {came['loss']!r:.80} on rank {rank}"
        if rank < len(ranks) - 1:
            require(came["loss"] is None, words, "None: not the last stage")
        else:
            require(isinstance(came["loss"], float), words, "the loss, a float")
            close("the loss that run returns on the last stage", came["loss"], loss)
    for rank, came in enumerate(ranks):
        check_messages(batch, rank, came["calls"])
        if in_order:
            check_order(batch, rank, came["calls"], shown)
    return batch, ranks


def added_by_run(rank, got, old, expected):
    """What run has added to the gradient of a stage's weight, after words for it. Without an old gradient,
    this is the whole gradient."""
    what = f"the gradient of stage {rank}'s weight"
    if old is None or not isinstance(got, torch.Tensor) or got.shape != old.shape:
        return what, got
    is_lost = torch.allclose(got.double(), expected, rtol=0, atol=1e-6)
    words = f"{what} is that of this batch alone: what was in .grad is gone"
    require(not is_lost, words, "the old and the new gradient, added up")
    return f"{what}, minus what was there before", got.double() - old.double()


def operations_of(call):
    """The kind, the peer and the bytes of each message of a call. A batch has several."""
    return call["operations"] or [[call["event"], call.get("peer"), call.get("bytes")]]


def sends(call):
    """Of a call: the place, the peer and the bytes of each message that it sends."""
    if call.get("phase") != "begin":
        return []
    found = []
    for part, (kind, *to) in enumerate(operations_of(call)):
        if "send" in kind:
            found.append((part, *to))
    return found


def begun_receives(call):
    """Of a call: its number and the place of each message that it begins to receive."""
    if call.get("phase") != "begin":
        return []
    found = []
    for part, (kind, *_) in enumerate(operations_of(call)):
        if kind == "irecv":
            found.append((call["number"], part))
    return found


def check_messages(batch, rank, calls):
    """One message for each micro-batch to each neighbour, and nothing else."""
    talks = ("send", "recv", "isend", "irecv", "batch_isend_irecv", "forward", "backward")
    gone = []
    others = set()
    for call in calls:
        if call["event"] not in talks:
            others.add(call["event"])
        for _, peer, size in sends(call):
            gone.append((peer, size))

    for other in range(len(batch.weights)):
        sizes = []
        for peer, size in gone:
            if peer == other:
                sizes.append(size)
        one = 4 * batch.rows * batch.sizes[max(rank, other)]
        expected = [one] * batch.count if abs(other - rank) == 1 else []
        same(f"the list of bytes of the messages from rank {rank} to rank {other}", sizes, expected)
    require(not others, f"rank {rank} called {', '.join(sorted(others))}", "only sends and receives")


def check_order(batch, rank, calls, shown):
    """The stage has run its schedule, and each send was begun before anything else was received or done."""
    schedule = batch.schedules[rank]
    forwards = []
    for action, number in schedule:
        if action == "forward":
            forwards.append(number)
    notes = []  # of the stage, about what it was given
    ran = []
    done = 0  # sends that have begun
    due = 0  # sends that are to have begun
    receives = set()
    for call in calls:
        event, phase = call["event"], call.get("phase")
        done += len(sends(call))
        receives.update(begun_receives(call))
        is_action = event in ("forward", "backward")
        if "shown" in call:
            notes.append(call)
        if is_action:
            ran.append([event, forwards[call["place"]]])
        waited = phase == "wait" and (call["number"], call["part"]) in receives
        received = waited or (event == "recv" and phase == "begin")
        if is_action or received:
            what = f"received a message after {words(ran)}"
            if is_action:
                what = f"computed {words(ran[-1:])}"
            came = f"rank {rank} {what} when {so_many(due - done, 'send')} had not begun"
            wanted = "each send begins before the next action receives or computes anything"
            require(done >= due, came, wanted)
        if event == "forward" and rank < len(batch.weights) - 1:
            due += 1
        if event == "backward" and rank > 0:
            due += 1
    require(ran == schedule, f"the stage of rank {rank} ran {words(ran) or 'nothing'}", words(schedule))
    for (action, number), call in zip(schedule, notes, strict=True):
        what = f"what the stage of rank {rank} was given in {words([[action, number]])}"
        close(what, call["shown"], shown[rank, action, number], scale=0.01)


@pytest.mark.parametrize(("stages", "odd"), [(1, False), (2, False), (3, True)])
def test_5a_gradients_of_the_whole_batch(stages, odd):
    # With two processes each has but one neighbour: whatever is sent goes the right way.
    view = ""
    again = ""
    if odd:
        view = " each output is a transposed view, and a parameter of each stage is frozen;"
        again = "; then the same once more, with a new module"
    tried(
        f"{so_many(stages, 'process')}, gpipe with 3 micro-batches, old gradients in .grad;{view} "
        f"the messages are counted{again}"
    )
    check_run(all_stages(gpipe, stages, 3), in_order=False, odd=odd)


def sends_without_wait(calls):
    """The sends that a rank has begun, and of these the ones that it has not waited for: the call and the
    place of each."""
    begun = []
    waited = []
    for call in calls:
        if call["event"] == "send":  # it returns when it is done
            continue
        for part, *_ in sends(call):
            begun.append((call, part))
        if call.get("phase") == "waited":
            waited.append((call["number"], call["part"]))
    left = []
    for call, part in begun:
        if (call["number"], part) not in waited:
            left.append((call, part))
    return begun, left


@pytest.mark.parametrize(("stages", "microbatches"), [(2, 4), (4, 6), (3, 2)])
def test_5b_no_process_waits_for_ever(stages, microbatches):
    tried(
        f"{stages} processes, 1F1B with {microbatches} micro-batches, no gradients from before; is each send"
        " waited for?"
    )
    schedules = all_stages(one_forward_one_backward, stages, microbatches)
    _, ranks = check_run(schedules, in_order=False, fresh=True)
    for rank, came in enumerate(ranks):
        # Nothing but wait() does it: with gloo, is_completed() stays False.
        begun, left = sends_without_wait(came["calls"])
        started = so_many(len(begun), "send")
        words = f"rank {rank} started {started} and returned without wait() for {len(left)}"
        if left:
            first, _ = left[0]
            words += f"; the first is {first['event']} number {first['nth']} ({first['where']})"
        require(not left, words, "a wait() for each handle that isend returned")


def test_5c_random_schedules():
    schedules = odd_schedules(3, 5)
    drawn = []
    for stage, schedule in enumerate(schedules):
        drawn.append(f"rank {stage}: {words(schedule)}")
    tried(f"3 processes, random schedules: {'; '.join(drawn)}")
    check_run(schedules)


def test_5c_one_after_the_other():
    """3 processes, F0 B0 F1 B1 F2 B2 on each: a send that starts late blocks all of them"""
    check_run(parsed(*["F0 B0 F1 B1 F2 B2"] * 3))


def test_5d_released_with_its_backward():
    """3 processes, 1F1B with 10 micro-batches of 4096 images; memory at the fourth forward and at the last"""
    needs_memory()
    rows = 4096
    schedules = all_stages(one_forward_one_backward, 3, 10)
    batch, ranks = check_run(schedules, rows, in_order=False, settles=[3, 9])
    for rank, came in enumerate(ranks):
        # From the fourth on, each forward comes after a backward: no more is held than at that one, but for
        # the gradients that were sent back, which may be waited for at the end.
        one = 4 * rows * min(batch.sizes[rank : rank + 2])
        sent_back = 4 * rows * batch.sizes[rank]
        # What is not released are six of them; noise is half a megabyte.
        most = int(3.5 * one)
        if rank > 0:
            most += 6 * sent_back
        held = []
        for call in came["calls"]:
            if call["event"] == "forward":
                held.append(call["held"])
        grown = held[9] - held[3]
        words = f"when rank {rank} came to F9, it held {grown / 1e6:.2f} MB more than at F3"
        each = f"{one / 1e6:.2f} MB each"
        released = f"each backward releases the input and the output of its micro-batch, {each}"
        require(grown <= most, words, f"at most {most / 1e6:.2f} MB more: {released}")
