"""What exercise 10 is held against. Runs in the judge."""

from itertools import pairwise

import numpy
import torch
from judge import HEADER, Verdict, call, check, several, so_many


def listed(value, count, what):
    """What a driver hands back may be forged, and be anything."""
    if not isinstance(value, list) or len(value) != count:
        raise Verdict("failed", f"{what} is not a list of {count}", f"a list of {count}")
    return value


def number(value):
    return value if isinstance(value, float | int | numpy.ndarray) else None


# ---- schedules --------------------------------------------------------------------------------


def gpipe(stage, stages, microbatches):
    return [[action, number] for action in ("forward", "backward") for number in range(microbatches)]


def one_forward_one_backward(stage, stages, microbatches):
    """Whenever as many are held as there are stages from here to the end, a backward is due."""
    schedule, forwards, backwards = [], 0, 0
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


def is_action(action):
    pair = isinstance(action, list) and [type(one) for one in action] == [str, int]
    return pair and action[0] in ("forward", "backward")


def compare_schedules(trial, function, cases):
    told = ", ".join(f"{stages} and {microbatches}" for stages, microbatches in cases)
    trial.tried(f"every stage, for these numbers of stages and micro-batches: {told}")
    (came,) = trial.run("schedules", [{"function": function.__name__, "cases": cases}], group=False)
    for (stages, microbatches), found in zip(cases, listed(came, len(cases), "what came"), strict=True):
        for stage, schedule in enumerate(listed(found, stages, "what came")):
            what = f"{function.__name__}({stage}, {stages}, {microbatches})"
            good = isinstance(schedule, list) and all(is_action(action) for action in schedule)
            trial.require(good, f"{what} is {schedule!r:.150}", 'a list of pairs like ("forward", 0)')
            expected = function(stage, stages, microbatches)
            for place, wanted in enumerate(expected):
                got = tuple(schedule[place]) if place < len(schedule) else "missing"
                came = f"{what}: action number {place + 1} is {got}, in {words(schedule) or 'an empty list'}"
                trial.require(got == tuple(wanted), came, f"{tuple(wanted)}, in {words(expected)}")
            came = f"{what} has {so_many(len(schedule), 'action')}: {words(schedule)}"
            trial.require(len(schedule) == len(expected), came, f"{len(expected)}: {words(expected)}")


def drawn_cases(trial, fewer):
    ranges = {stages: (1, stages) if fewer else (stages, stages + 6) for stages in (2, 3, 4, 5)}
    return [(stages, int(trial.integers(*some))) for stages, some in ranges.items()]


@check("10.1a")
def all_forward(trial):
    compare_schedules(trial, gpipe, [(1, 1), *drawn_cases(trial, False), *drawn_cases(trial, True)])


@check("10.2a")
def alternate(trial):
    compare_schedules(trial, one_forward_one_backward, [(1, 1), (1, 3), (2, 2), *drawn_cases(trial, False)])


@check("10.2b")
def fewer(trial):
    compare_schedules(trial, one_forward_one_backward, [(2, 1), (6, 3), *drawn_cases(trial, True)])


# ---- timelines --------------------------------------------------------------------------------


def timeline(schedules, forward_times, backward_times):
    """Begin and end of each action, worked out as the longest way to it; None if there is a circle."""
    ends, lines, left = {}, [[None] * len(schedule) for schedule in schedules], None
    todo = [(stage, place) for stage, line in enumerate(lines) for place in range(len(line))]
    while todo and len(todo) != left:
        left = len(todo)
        for stage, place in todo:
            action, number = schedules[stage][place]
            before = needs(schedules, stage, action, number)
            before += [(stage, *schedules[stage][place - 1])] if place else []
            if all(one in ends for one in before):
                begin = max((ends[one] for one in before), default=0.0)
                times = forward_times if action == "forward" else backward_times
                lines[stage][place] = begin, begin + times[stage]
                ends[stage, action, number] = begin + times[stage]
        todo = [(stage, place) for stage, place in todo if lines[stage][place] is None]
    return None if todo else lines


def needs(schedules, stage, action, number):
    """What an action waits for, beside the action before it: (stage, action, number) of each."""
    if action == "forward":
        return [(stage - 1, action, number)] if stage else []
    own, after = (stage, "forward", number), (stage + 1, action, number)
    return [own, after] if stage + 1 < len(schedules) else [own]


def why_never(schedules):
    """Why some action of these can never begin, in words. One at least must be such."""
    done, heads = set(), [0] * len(schedules)

    def waits_for(stage):
        head = schedules[stage][heads[stage]]
        return [need for need in needs(schedules, stage, *head) if need not in done]

    going = True
    while going:
        going = False
        for stage, schedule in enumerate(schedules):
            while heads[stage] < len(schedule) and not waits_for(stage):
                done.add((stage, *schedule[heads[stage]]))
                heads[stage] += 1
                going = True

    # From the first stage that stands still to what it waits for, and on, until it is plain or comes round.
    stage = next(stage for stage, head in enumerate(heads) if head < len(schedules[stage]))
    lines, seen = [], set()
    while stage not in seen:
        seen.add(stage)
        first = words(schedules[stage][heads[stage] :][:1])
        other, *need = waits_for(stage)[0]
        name = words([need])
        if need not in schedules[other]:
            return f"stage {stage}'s {first} waits for stage {other}'s {name}, which never comes"
        if other == stage:
            return f"stage {stage}'s {first} comes before its own {name}, which it has to wait for"
        blocked = words(schedules[other][heads[other] :][:1])
        behind = "" if blocked == name else f", which comes after {blocked}"
        lines.append(f"stage {stage}'s {first} waits for stage {other}'s {name}{behind}")
        stage = other
    return ", and ".join(lines)


def compare_lines(trial, cases, kept=False):
    """`timeline` of (words, schedules, times of a forward, times of a backward). `kept`: it must leave the
    schedules as they are."""
    (came,) = trial.run("timeline", [{"cases": [list(case[1:]) for case in cases]}], group=False)
    for (title, *case), found in zip(cases, listed(came, len(cases), "what came"), strict=True):
        expected, found = timeline(*case), found if isinstance(found, dict) else {}
        drawn = [f"stage {stage}: {words(some) or 'no action'}" for stage, some in enumerate(case[0])]
        drawn = "; ".join(drawn)
        if expected is None:
            came = f"a timeline, but {why_never(case[0])} ({drawn})"
            trial.require(found.get("refused") is True, came, "a ValueError")
            continue
        trial.require(found.get("refused") is False, f"{title} raises ValueError ({drawn})", "a timeline")
        came = f"timeline has changed the schedules that it was given ({drawn})"
        trial.require(found.get("changed") is False or not kept, came, "unchanged schedules")
        lines = listed(found.get("lines"), len(expected), f"the timeline of {title}")
        for stage, line in enumerate(expected):
            got = listed(lines[stage], len(line), f"the line of stage {stage}, {title},")
            for place, pair in enumerate(line):
                action = words(case[0][stage][place : place + 1])
                mine = listed(got[place], 2, f"{action} of stage {stage}, {title},")
                for name, value, wanted in zip(("begin", "end"), mine, pair, strict=True):
                    what = f"the {name} of {action} on stage {stage}, {title} ({drawn})"
                    trial.close(what, number(value), wanted)


def drawn_times(trial, stages):
    return [round(float(trial.random.uniform(0.5, 3)), 2) for _ in range(stages)]


@check("10.3a")
def timelines(trial):
    trial.tried("gpipe and 1F1B on 1 to 4 stages; a forward takes 1 s and a backward 2 s")
    cases = []
    for function in (gpipe, one_forward_one_backward):
        for stages, microbatches in ((1, 2), (2, 3), (3, 5), (4, 2)):
            title = f"{function.__name__}, {microbatches} micro-batches"
            cases.append((title, all_stages(function, stages, microbatches), [1.0] * stages, [2.0] * stages))
    compare_lines(trial, cases)


def odd_schedules(trial, stages, microbatches):
    """Schedules that nobody would call by a name: another order, and as far ahead as chance will have it."""
    forwards = trial.random.permutation(microbatches).tolist()
    backwards = trial.random.permutation(microbatches).tolist()
    schedules = [[] for _ in range(stages)]
    while any(len(schedule) < 2 * microbatches for schedule in schedules):
        stage = int(trial.random.integers(stages))
        done = [tuple(action) for action in schedules[stage]]
        count = sum(action == "forward" for action, _ in done)
        forward = forwards[count] if count < microbatches else None
        if len(done) == 2 * microbatches:
            continue
        backward = backwards[len(done) - count]
        above = stage == stages - 1 or ["backward", backward] in schedules[stage + 1]
        below = stage == 0 or ["forward", forward] in schedules[stage - 1]
        if ("forward", backward) in done and above and (forward is None or trial.random.random() < 0.6):
            schedules[stage].append(["backward", backward])
        elif forward is not None and below:
            schedules[stage].append(["forward", forward])
    return schedules


@check("10.3b")
def any_schedule(trial):
    trial.tried("random schedules and times, with different times on each stage")
    cases = []
    for stages, microbatches in ((3, 4), (4, 5), (2, 6)):
        times = drawn_times(trial, stages), drawn_times(trial, stages)
        times[0][0] = 0.0  # an action may end at 0, and so others begin there
        cases.append(("gpipe", all_stages(gpipe, stages, microbatches), *times))
        cases.append(("1F1B", all_stages(one_forward_one_backward, stages, microbatches), *times))
        cases.append(("random", odd_schedules(trial, stages, microbatches), *times))
    compare_lines(trial, cases, kept=True)


def parsed(*lines):
    names = {"F": "forward", "B": "backward"}
    return [[[names[word[0]], int(word[1:])] for word in line.split()] for line in lines]


@check("10.3c")
def circles(trial):
    trial.tried("some schedules in which an action can never begin, and some in which all actions can")
    works, cannot = "a schedule that works", "a schedule that cannot continue"
    lines = (
        (works, "F0 F1 B1 B0", "F0 F1 B1 B0"),
        (works, "F1 B1 F0 B0", "F1 B1 F0 B0"),
        (works, "F0 F1 B0 B1", "F1 F0 B0 B1", "F0 F1 B0 B1"),
        (works, "F1 F0", "F1"),
        (works, "F0 F1", ""),
        (cannot, "B0 F0"),
        (cannot, "F0 B0 F1 B1", "F0 F1 B0 B1"),
        (cannot, "F0 F1 B0 B1", "F0 B0"),
        (cannot, "F0 F1 B0 B1", "F0 B0 B1 F1"),
        (cannot, "F0 B0", "F0 F1 B0 B1"),
        (cannot, "F0 B0", ""),
        (cannot, "", "F0"),
    )
    cases = [(title, parsed(*one), [1.0] * len(one), [1.0] * len(one)) for title, *one in lines]
    compare_lines(trial, [cases[place] for place in trial.random.permutation(len(cases)).tolist()])


# ---- what a schedule costs --------------------------------------------------------------------


@check("10.4a")
def idle(trial):
    trial.tried("timelines of gpipe, 1F1B and other schedules, with equal and unequal times")
    cases = [(1, gpipe, [1.0], [1.0], 1)]
    for stages in (2, 3, 4):
        count = int(trial.integers(2, 9))
        for function in (gpipe, one_forward_one_backward):
            cases.append((count, function, [1.0] * stages, [1.0] * stages, stages))
            cases.append((count, function, drawn_times(trial, stages), drawn_times(trial, stages), stages))
    lines = [timeline(all_stages(function, p, m), *times) for m, function, *times, p in cases]
    forwards = [[(0.0, 1.0), (1.0, 2.0)], [(1.0, 2.0), (2.0, 3.0)]]
    no_action = [[(0.0, 1.0), (1.0, 2.0)], []]
    (came,) = trial.run("idle_share", [{"cases": [*lines, forwards, no_action]}], group=False)
    *came, two, one = listed(came, len(cases) + 2, "what came")
    trial.close(f"the idle share of {forwards} (two forwards on two stages)", number(two), 1 / 3)
    trial.close(f"the idle share of {no_action} (a stage without an action)", number(one), 1 / 2)
    for (m, function, forward, backward, p), line, got in zip(cases, lines, came, strict=True):
        end = max(end for one in line for _, end in one)
        busy = sum(m * (one + other) for one, other in zip(forward, backward, strict=True))
        what = f"the idle share of {function.__name__} on {p} stages, {m} micro-batches"
        what += f", seconds per forward {forward}, per backward {backward}"
        trial.close(what, number(got), 1 - busy / (p * end))


@check("10.4b")
def held(trial):
    trial.tried("the schedules of gpipe, 1F1B and other schedules")
    cases = []
    for stages, microbatches in ((1, 1), *drawn_cases(trial, False), *drawn_cases(trial, True)):
        cases += all_stages(gpipe, stages, microbatches)[:1]
        cases += all_stages(one_forward_one_backward, stages, microbatches)
    cases += odd_schedules(trial, 3, 6)
    # One after the other, then more at a time; and a stage that runs forwards only.
    cases += parsed("F0 B0 F1 F2 B2 B1", "F0 F1 F2", "")
    (came,) = trial.run("activations_held", [{"cases": cases}], group=False)
    for schedule, got in zip(cases, listed(came, len(cases), "what came"), strict=True):
        trial.same(
            f"activations_held of {words(schedule) or 'a stage without an action'}", got, most_held(schedule)
        )


def most_held(schedule):
    # The site's pipeline asks too, and has actions that are neither.
    steps = [(one == "forward") - (one == "backward") for one, _ in schedule]
    return max((sum(steps[:place]) + (step > 0) for place, step in enumerate(steps)), default=0)


# ---- run --------------------------------------------------------------------------------------


class Batch:
    """A batch and a model of as many stages as there are schedules, each with a size of its own."""

    def __init__(self, trial, schedules, rows=6, old=True):
        self.schedules, self.rows = schedules, rows
        stages, self.count = len(schedules), len(schedules[0]) // 2
        self.sizes = trial.integers(40, 80, stages + 1).tolist()
        self.weights = [trial.floats(one, other) / one**0.5 for one, other in pairwise(self.sizes)]
        # No larger than those that come, or rounding would be.
        self.gradients = [trial.floats(*weight.shape) * 0.01 * old for weight in self.weights]
        self.images = trial.floats(self.count, rows, self.sizes[0])
        self.targets = trial.floats(self.count, rows, self.sizes[-1])
        # What the stages multiply by, forward and backward. Each learns a number when it comes to need it.
        self.numbers = [
            {f"{action} {number}": trial.secret() for action, number in schedule} for schedule in schedules
        ]

    def inputs(self):
        each = zip(self.schedules, self.weights, self.gradients, strict=True)
        found = [
            {"schedule": one, "weight": weight, "images": None, "targets": None}
            | {"shape": [self.rows, self.sizes[stage]]}
            | ({"gradient": gradient} if gradient.any() else {})
            for stage, (one, weight, gradient) in enumerate(each)
        ]
        found[0] |= {"images": list(self.images), "shape": None}
        found[-1]["targets"] = list(self.targets)
        return found

    def named(self, stage):
        """The schedule of a stage as it asks: a stage numbers its forwards as they come."""
        forwards = [number for action, number in self.schedules[stage] if action == "forward"]
        return [f"{action} {forwards.index(number)}" for action, number in self.schedules[stage]]

    def gates(self, demands=None):
        """`demands`: what a stage must have sent or let go, by stage and name."""
        gates = [
            {name: {"value": numbers[name]} for name in self.named(stage)}
            for stage, numbers in enumerate(self.numbers)
        ]
        for (stage, name), demand in (demands or {}).items():
            gates[stage][name] |= demand
        return gates

    def expected(self):
        """The loss, the gradients of all stages, and with what each is called: in float64."""
        weights, loss, shown = [weight.double().requires_grad_() for weight in self.weights], 0, {}
        for number in range(self.count):
            value = self.images[number].double()
            for stage, weight in enumerate(weights):
                place = self.named(stage)[self.schedules[stage].index(["forward", number])].split()[1]
                forth, back = f"forward {place}", f"backward {place}"
                shown[stage, forth] = value.detach()[:6]
                value = torch.tanh(value @ weight) * self.numbers[stage][forth]

                def hook(gradient, key=(stage, back), times=self.numbers[stage][back]):
                    shown[key] = gradient[:6]
                    return gradient * times

                value.register_hook(hook)
            loss = loss + torch.nn.functional.mse_loss(value, self.targets[number].double()) / self.count
        loss.backward()
        return loss.item(), [weight.grad for weight in weights], shown


def run_batch(trial, batch, demands=None, **more):
    """Let the stages work; gradients, loss and what travelled must be right."""
    why = "a message is larger than the tensor that receives it"
    inputs = [one | more for one in batch.inputs()]
    ranks = several.run(trial, "run", inputs, why, gates=batch.gates(demands))
    loss, gradients, shown = batch.expected()
    ranks = list(map(several.as_dict, ranks))
    for rank, (came, gradient, old) in enumerate(zip(ranks, gradients, batch.gradients, strict=True)):
        got = came.get("gradient")
        if isinstance(got, numpy.ndarray) and got.shape == old.shape:
            got = got.astype("float64") - old.double().numpy()
            lost = numpy.allclose(got + old.double().numpy(), gradient, rtol=0, atol=1e-6)
            gone = "contains only this batch: what was in .grad is gone"
            wanted = "the sum of the old and the new gradient"
            trial.require(not lost or not old.any(), f"the gradient of stage {rank}'s weight {gone}", wanted)
        same = numpy.array_equal(came.get("weight"), batch.weights[rank].numpy())
        trial.require(same, f"run has changed stage {rank}'s weight", "gradients only: no optimizer step")
        what = f"the gradient of stage {rank}'s weight, minus what was there before"
        trial.close(what, got, gradient, scale=0.05)
        got = came.get("loss")
        if rank < len(ranks) - 1:
            trial.require(got is None, f"run returns {got!r:.80} on rank {rank}", "None: not the last stage")
        else:
            kind = "a tensor" if isinstance(got, numpy.ndarray) else f"{got!r:.80}"
            words = f"what run returns on the last stage is {kind}"
            trial.require(isinstance(got, float), words, "the loss, a float")
            trial.close("the loss that run returns on the last stage", got, loss)
    travelled(trial, batch)
    for rank, came in enumerate(ranks if more.get("kept") else ()):
        same = came.get("schedule") == batch.schedules[rank]
        trial.require(same, f"run has changed the schedule of rank {rank}", "an unchanged schedule")
    return shown


def travelled(trial, batch):
    """One message for each micro-batch to each neighbour, and nothing else, as the kernel counts it."""
    for rank, other in several.pairs_of(len(batch.weights)):
        sent = trial.sent(rank, other)
        if sent is None:
            return
        came = f"rank {rank} sent {sent} bytes to rank {other}"
        if abs(other - rank) > 1:
            trial.require(sent == 0, came, "messages to neighbours only")
            continue
        what = "outputs" if other > rank else "gradients"
        one = 4 * batch.rows * batch.sizes[max(rank, other)]
        data = one * batch.count
        right = data <= sent <= data + 20 * HEADER * batch.count
        wanted = f"{batch.count} {what} of {one} bytes, plus a little that the network adds"
        trial.require(right, f"{came}, {sent / data:.2f} times what it should", wanted)
        # Beside the data: two headers for each message sent, and one for each received.
        messages = round((sent - data) / HEADER / 3)
        trial.same(f"the number of messages from rank {rank} to rank {other}", messages, batch.count)


@check("10.5a")
def gradients(trial):
    # With two processes each has but one neighbour: whatever is sent goes the right way.
    for stages, microbatches in ((1, 3), (2, 3), (3, 3)):
        old = stages > 1
        kept = (
            f"gpipe with {microbatches} micro-batches, {'old gradients in' if old else 'None in each'} .grad"
        )
        trial.tried(f"{so_many(stages, 'process')}, {kept}; the kernel counts what is sent")
        if stages == 3:
            trial.words.append("and each output is a transposed view")
        batch = Batch(trial, all_stages(gpipe, stages, microbatches), old=old)
        run_batch(trial, batch, transposes=stages == 3)


@check("10.5b")
def no_deadlock(trial):
    for stages, microbatches in ((2, 4), (4, 6), (3, 1)):
        count = so_many(microbatches, "micro-batch", "micro-batches")
        trial.tried(f"{stages} processes, 1F1B with {count}; is each send waited for?")
        run_batch(trial, Batch(trial, all_stages(one_forward_one_backward, stages, microbatches)))
        all_waited_for(trial, stages)


def all_waited_for(trial, stages):
    """wait() of what each isend returned. Nothing else does it: with gloo, is_completed() stays False."""
    for rank in range(stages):
        begun, waited = {}, set()
        for event in trial.events(rank):
            if event.get("phase") == "begin" and isinstance(event.get("sends"), list):
                begun |= {(event.get("number"), str(part)): event for part in event["sends"]}
            if event.get("phase") == "waited":
                waited.add((event.get("number"), str(event.get("part"))))
        left = [event for key, event in begun.items() if key not in waited]
        trial.require(
            not left,
            f"rank {rank} started {so_many(len(begun), 'send')} and returned without wait() for "
            f"{len(left)} of them; the first is {left and call(left[0])}",
            "a wait() for each handle that isend returned",
        )


def made_to_do(trial, batch, shown):
    """The order in which the stages have asked for their numbers, and that each showed what belongs to it:
    what comes from another stage depends on the numbers of all stages before."""
    for rank, schedule in enumerate(batch.schedules):
        # Forwards are counted by the stage; which micro-batch it was given, what it showed proves.
        forwards = [number for action, number in schedule if action == "forward"]
        names = [name.split() for name in trial.answer["ranks"][rank]["asked"]]
        came = [[action, forwards[int(place)]] for action, place in names]
        ran = f"the stage of rank {rank} ran {words(came) or 'nothing'}"
        trial.require(came == schedule, ran, words(schedule))
        for (action, number), name in zip(schedule, batch.named(rank), strict=True):
            what = f"what the stage of rank {rank} was given in {words([[action, number]])}"
            trial.close(what, trial.asked(rank, name)["with"], shown[rank, name], scale=0.01)


def step_by_step(trial, function):
    """Two stages. At each forward a stage goes on when what it has to send until then has left it."""
    count = 4
    batch = Batch(trial, all_stages(function, 2, count))
    one, demands = 4 * batch.rows * batch.sizes[1], {}
    for place in range(count):
        actions = [tuple(action) for action in batch.schedules[1]]
        back = sum(action == "backward" for action, _ in actions[: actions.index(("forward", place))])
        for rank, name, due in ((0, "outputs", place), (1, "gradients", back)):
            demands[rank, f"forward {place}"] = {
                "sent": due * one if trial.counted else 0,
                "words": f"when rank {rank} came to F{place}",
                "expected": f"{due} {name} of {one} bytes, each sent before anything else is done",
            }
    made_to_do(trial, batch, run_batch(trial, batch, demands))


@check("10.5c")
def in_order(trial):
    schedules = odd_schedules(trial, 3, 5)
    drawn = "; ".join(f"rank {stage}: {words(schedule)}" for stage, schedule in enumerate(schedules))
    trial.tried(f"3 processes, random schedules: {drawn}")
    batch = Batch(trial, schedules)
    made_to_do(trial, batch, run_batch(trial, batch, kept=True))
    trial.tried("3 processes, F0 B0 F1 B1 F2 B2 on each: a send that starts late blocks all of them")
    run_batch(trial, Batch(trial, parsed(*["F0 B0 F1 B1 F2 B2"] * 3)))
    for function in (one_forward_one_backward, gpipe):
        name = function.__name__
        trial.tried(f"2 processes, {name} with 4 micro-batches; at each forward, everything due is sent")
        step_by_step(trial, function)


WARM = 1 << 20  # bytes that a process may have grown beside what it is looked at for


@check("10.5d")
def memory(trial):
    count, rows = 10, 2048
    batch = Batch(trial, all_stages(one_forward_one_backward, 3, count), rows)
    trial.tried(
        f"3 processes, 1F1B with {count} micro-batches of {rows} images; memory as measured by the kernel"
        " at the fourth forward and at the last"
    )
    demands = {}
    for rank in range(3 if trial.counted else 0):
        # From the fourth on, each forward comes after a backward: no more is held than at that one, but for
        # the gradients that were sent back, which may be waited for at the end.
        one, sent_back = (4 * rows * size for size in (min(batch.sizes[rank : rank + 2]), batch.sizes[rank]))
        most = int(2.5 * one) + (count - 4) * sent_back * (rank > 0)
        # What is held there to be let go of later would seem to be saved. Up to 4.5 MB were seen on rank 0.
        room = 4 * rows * (batch.sizes[rank] * (rank > 0) + 2 * batch.sizes[rank + 1])
        first = (5 - rank) * room + WARM  # one micro-batch more may still be there
        demands[rank, "forward 3"] = {
            "memory": first,
            "words": f"when rank {rank} came to F3",
            "expected": f"at most {first / 1e6:.1f} MB, enough for {5 - rank} micro-batches",
        }
        demands[rank, f"forward {count - 1}"] = {
            "memory": most,
            "memory since": "forward 3",
            "words": f"when rank {rank} came to F{count - 1}",
            "expected": f"at most {most / 1e6:.1f} MB more than at F3: each backward releases the input"
            f" and the output of its micro-batch, {one / 1e6:.1f} MB or more each",
        }
    made_to_do(trial, batch, run_batch(trial, batch, demands, settles=[3, count - 1]))
