"""What exercise 10 is held against. Runs in the judge."""

import numpy
import torch
from judge import HEADER, Verdict, call, check


def listed(value, count, what):
    """What a driver hands back may be forged, and be anything."""
    if not isinstance(value, list) or len(value) != count:
        raise Verdict("failed", f"{what} is no list of {count}", f"a list of {count}")
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
    return (
        isinstance(action, list)
        and len(action) == 2
        and isinstance(action[0], str)
        and action[0] in ("forward", "backward")
        and type(action[1]) is int
    )


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
                trial.require(
                    got == tuple(wanted),
                    f"{what}: action number {place + 1} is {got}, in {words(schedule) or 'an empty list'}",
                    f"{tuple(wanted)}, in {words(expected)}",
                )
            trial.require(
                len(schedule) == len(expected),
                f"{what} has {len(schedule)} actions: {words(schedule)}",
                f"{len(expected)}: {words(expected)}",
            )


def drawn_cases(trial, fewer):
    cases = []
    for stages in (2, 3, 4, 5):
        low, high = (1, stages) if fewer else (stages, stages + 6)
        cases.append((stages, int(trial.integers(low, high))))
    return cases


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
    last, lines = len(schedules) - 1, [[None] * len(schedule) for schedule in schedules]
    places = {
        (stage, *action): place
        for stage, schedule in enumerate(schedules)
        for place, action in enumerate(map(tuple, schedule))
    }

    def before(stage, place):
        action, number = schedules[stage][place]
        if place:
            yield stage, place - 1
        if action == "forward" and stage > 0:
            yield stage - 1, places.get((stage - 1, "forward", number))
        if action == "backward":
            yield stage, places.get((stage, "forward", number))
            if stage < last:
                yield stage + 1, places.get((stage + 1, "backward", number))

    todo = [(stage, place) for stage, line in enumerate(lines) for place in range(len(line))]
    while todo:
        left = []
        for stage, place in todo:
            ends = [None if p is None else lines[s][p] and lines[s][p][1] for s, p in before(stage, place)]
            if None in ends:
                left.append((stage, place))
                continue
            times = forward_times if schedules[stage][place][0] == "forward" else backward_times
            begin = max(ends, default=0.0)
            lines[stage][place] = (begin, begin + times[stage])
        if len(left) == len(todo):
            return None
        todo = left
    return lines


def why_never(schedules):
    """Why some action of these can never begin, in words. One at least must be such."""
    done, heads = set(), [0] * len(schedules)

    def needs(stage, action, number):
        if action == "forward":
            return [(stage - 1, action, number)] if stage else []
        own, after = (stage, "forward", number), (stage + 1, action, number)
        return [own, after] if stage + 1 < len(schedules) else [own]

    def waits_for(stage):
        return [need for need in needs(stage, *schedules[stage][heads[stage]]) if need not in done]

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
            return f"stage {stage}'s {first} has to wait for stage {other}'s {name}, which never comes"
        if other == stage:
            return f"stage {stage}'s {first} comes before its own {name}, for which it has to wait"
        blocked = words(schedules[other][heads[other] :][:1])
        behind = "" if blocked == name else f", which comes after {blocked}"
        lines.append(f"stage {stage}'s {first} waits for stage {other}'s {name}{behind}")
        stage = other
    return ", and ".join(lines)


def compare_lines(trial, cases):
    """`timeline` of (words, schedules, times of a forward, times of a backward)."""
    (came,) = trial.run("timeline", [{"cases": [list(case[1:]) for case in cases]}], group=False)
    for (title, *case), found in zip(cases, listed(came, len(cases), "what came"), strict=True):
        expected, found = timeline(*case), found if isinstance(found, dict) else {}
        drawn = "; ".join(f"stage {stage}: {words(schedule)}" for stage, schedule in enumerate(case[0]))
        if expected is None:
            came = f"a timeline, but {why_never(case[0])} ({drawn})"
            trial.require(found.get("refused") is True, came, "a ValueError")
            continue
        trial.require(found.get("refused") is False, f"{title} raises ValueError ({drawn})", "a timeline")
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
    trial.tried("gpipe and 1F1B on 1 to 4 stages, a forward takes 1 s and a backward 2 s")
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
    trial.tried("schedules and times drawn at random, other times on each stage")
    cases = []
    for stages, microbatches in ((3, 4), (4, 5), (2, 6)):
        times = drawn_times(trial, stages), drawn_times(trial, stages)
        cases.append(("gpipe", all_stages(gpipe, stages, microbatches), *times))
        cases.append(("1F1B", all_stages(one_forward_one_backward, stages, microbatches), *times))
        cases.append(("drawn at random", odd_schedules(trial, stages, microbatches), *times))
    compare_lines(trial, cases)


def parsed(*lines):
    names = {"F": "forward", "B": "backward"}
    return [[[names[word[0]], int(word[1:])] for word in line.split()] for line in lines]


@check("10.3c")
def circles(trial):
    trial.tried("schedules in which an action can never begin, and some in which all can")
    good = [
        parsed("F0 F1 B1 B0", "F0 F1 B1 B0"),
        parsed("F1 B1 F0 B0", "F1 B1 F0 B0"),
        parsed("F0 F1 B0 B1", "F1 F0 B0 B1", "F0 F1 B0 B1"),
    ]
    bad = [
        parsed("B0 F0"),
        parsed("F0 B0 F1 B1", "F0 F1 B0 B1"),
        parsed("F0 F1 B0 B1", "F0 B0"),
        parsed("F0 F1 B0 B1", "F0 B0 B1 F1"),
        parsed("F0 B0", "F0 F1 B0 B1"),
    ]
    cases = [("a schedule that works", one, [1.0] * len(one), [1.0] * len(one)) for one in good]
    cases += [("a schedule that stands still", one, [1.0] * len(one), [1.0] * len(one)) for one in bad]
    order = trial.random.permutation(len(cases)).tolist()
    compare_lines(trial, [cases[place] for place in order])


# ---- what a schedule costs --------------------------------------------------------------------


@check("10.4a")
def idle(trial):
    trial.tried("timelines of gpipe, 1F1B and others, with equal and with unequal times")
    cases = [(1, gpipe, [1.0], [1.0], 1)]
    for stages in (2, 3, 4):
        count = int(trial.integers(2, 9))
        for function in (gpipe, one_forward_one_backward):
            cases.append((count, function, [1.0] * stages, [1.0] * stages, stages))
            cases.append((count, function, drawn_times(trial, stages), drawn_times(trial, stages), stages))
    lines = [timeline(all_stages(function, p, m), *times) for m, function, *times, p in cases]
    (came,) = trial.run("idle_share", [{"cases": lines}], group=False)
    for (m, function, forward, backward, p), line, got in zip(
        cases, lines, listed(came, len(cases), "what came"), strict=True
    ):
        end = max(end for one in line for _, end in one)
        busy = sum(m * (one + other) for one, other in zip(forward, backward, strict=True))
        what = f"the idle share of {function.__name__} on {p} stages, {m} micro-batches"
        what += f", seconds of a forward {forward}, of a backward {backward}"
        trial.close(what, number(got), 1 - busy / (p * end))


@check("10.4b")
def held(trial):
    trial.tried("the schedules of gpipe, 1F1B and others")
    cases = []
    for stages, microbatches in ((1, 1), *drawn_cases(trial, False), *drawn_cases(trial, True)):
        cases += all_stages(gpipe, stages, microbatches)[:1]
        cases += all_stages(one_forward_one_backward, stages, microbatches)
    cases += odd_schedules(trial, 3, 6)
    (came,) = trial.run("activations_held", [{"cases": cases}], group=False)
    for schedule, got in zip(cases, listed(came, len(cases), "what came"), strict=True):
        trial.same(f"activations_held of {words(schedule)}", got, most_held(schedule))


def most_held(schedule):
    return max(counts_held(schedule))


def counts_held(schedule):
    """How many a stage holds while it is at each of its actions."""
    counts = []
    for place in range(len(schedule)):
        begun = sum(one == "forward" for one, _ in schedule[: place + 1])
        counts.append(begun - sum(one == "backward" for one, _ in schedule[:place]))
    return counts


# ---- run --------------------------------------------------------------------------------------


class Batch:
    """A batch and a model of as many stages as there are schedules, each with a size of its own."""

    def __init__(self, trial, schedules, rows=6):
        self.schedules, self.rows = schedules, rows
        stages, self.count = len(schedules), len(schedules[0]) // 2
        self.sizes = trial.integers(40, 80, stages + 1).tolist()
        self.weights = [
            trial.floats(one, other) / one**0.5
            for one, other in zip(self.sizes[:-1], self.sizes[1:], strict=True)
        ]
        # No larger than those that come, or rounding would be.
        self.gradients = [trial.floats(*weight.shape) * 0.01 for weight in self.weights]
        self.images = trial.floats(self.count, rows, self.sizes[0])
        self.targets = trial.floats(self.count, rows, self.sizes[-1])

    def inputs(self):
        last = len(self.weights) - 1
        return [
            {
                "schedule": schedule,
                "weight": weight,
                "gradient": gradient,
                "images": list(self.images) if stage == 0 else None,
                "targets": list(self.targets) if stage == last else None,
                "shape": None if stage == 0 else [self.rows, self.sizes[stage]],
            }
            for stage, (schedule, weight, gradient) in enumerate(
                zip(self.schedules, self.weights, self.gradients, strict=True)
            )
        ]

    def expected(self):
        """The loss, and the gradients of all stages: the whole batch at once, in float64."""
        weights = [weight.double().requires_grad_() for weight in self.weights]
        value = self.images.double().flatten(0, 1)
        for weight in weights:
            value = torch.tanh(value @ weight)
        loss = torch.nn.functional.mse_loss(value, self.targets.double().flatten(0, 1))
        loss.backward()
        return loss.item(), [weight.grad for weight in weights]


def run_batch(trial, batch, more=None):
    """Let the stages work; gradients, loss and what travelled must be right."""
    given = batch.inputs()
    if more:
        given = [one | other for one, other in zip(given, more, strict=True)]
    try:
        ranks = trial.run("run", given)
    except Verdict as verdict:
        if "SIGABRT" not in verdict.came:
            raise
        why = "gloo does this when a message is larger than the tensor that it is received into"
        raise Verdict(verdict.status, f"{verdict.came}; {why}", verdict.expected) from None
    loss, gradients = batch.expected()
    ranks = [came if isinstance(came, dict) else {} for came in ranks]
    for rank, (came, gradient, old) in enumerate(zip(ranks, gradients, batch.gradients, strict=True)):
        got = came.get("gradient")
        if isinstance(got, numpy.ndarray) and got.shape == old.shape:
            got = got.astype("float64") - old.double().numpy()
            lost = numpy.allclose(got + old.double().numpy(), gradient, rtol=0, atol=1e-6)
            what = f"the gradient of stage {rank}'s weight is of this batch alone: what was in .grad is gone"
            trial.require(not lost, what, "the sum of both")
        what = f"the gradient of stage {rank}'s weight, less what was there before"
        trial.close(what, got, gradient, scale=0.05)
        got = came.get("loss")
        if rank < len(ranks) - 1:
            trial.require(got is None, f"run returns {got!r:.80} on rank {rank}", "None: not the last stage")
        else:
            trial.require(
                isinstance(got, float), f"run returns {got!r:.80} on the last stage", "the loss, a float"
            )
            trial.close("the loss that run returns on the last stage", got, loss)
    travelled(trial, batch)


def travelled(trial, batch):
    """One message for each micro-batch to each neighbour, and nothing else, as the kernel counts it."""
    last = len(batch.weights) - 1
    for rank in range(last + 1):
        try:
            before, after = trial.mark(rank, "before"), trial.mark(rank, "after")
        except KeyError:
            raise Verdict("failed", f"rank {rank} was not there when bytes were counted") from None
        if last and not after["sockets"]:
            trial.require(not trial.counted, f"rank {rank} had no connection left when bytes were counted")
            return
        trial.require(before["sent"] < 1000, f"rank {rank} has sent {before['sent']} bytes too early", "none")
        for other in set(range(last + 1)) - {rank}:
            sent = after["to"].get(other, 0) - before["to"].get(other, 0)
            if abs(other - rank) > 1:
                trial.require(sent == 0, f"rank {rank} sent {sent} bytes to rank {other}", "neighbours only")
                continue
            what = "outputs" if other > rank else "gradients"
            one = 4 * batch.rows * batch.sizes[max(rank, other)]
            data = one * batch.count
            trial.require(
                data <= sent <= data + 20 * HEADER * batch.count,
                f"rank {rank} sent {sent} bytes to rank {other}, {sent / data:.2f} times what it should",
                f"{batch.count} {what} of {one} bytes, and a little for what the network adds",
            )
            # Beside the data: two headers for each message sent, and one for each received.
            trial.same(
                f"the number of messages from rank {rank} to rank {other}",
                round((sent - data) / HEADER / 3),
                batch.count,
            )


@check("10.5a")
def gradients(trial):
    # With two processes each has but one neighbour: whatever is sent goes the right way.
    for stages, microbatches in ((1, 3), (2, 3), (3, 3)):
        trial.tried(
            f"{stages} processes, gpipe with {microbatches} micro-batches, gradients from before; the kernel "
            "counts what is sent"
        )
        run_batch(trial, Batch(trial, all_stages(gpipe, stages, microbatches)))


@check("10.5b")
def no_deadlock(trial):
    for stages, microbatches in ((2, 4), (4, 6), (3, 2)):
        trial.tried(
            f"{stages} processes, 1F1B with {microbatches} micro-batches; whether each send is waited for"
        )
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
            f"rank {rank} began {len(begun)} sends and returned without wait() for {len(left)} of them; the "
            f"first is {left and call(left[0])}",
            "a wait() for what each isend returned",
        )


def made_to_do(trial, schedules):
    """The stages' own word for the order of what they did, after a run."""
    for rank, schedule in enumerate(schedules):
        # The stage counts its forwards; which micro-batch it is given, the gradients prove.
        forwards = [number for action, number in schedule if action == "forward"]
        came = [[event.get("action"), event.get("place")] for event in trial.events(rank, "stage")]
        good = all(is_action(action) and 0 <= action[1] < len(forwards) for action in came)
        trial.require(good, f"the stage of rank {rank} was made to do {came!r:.100}", words(schedule))
        came = [[action, forwards[place]] for action, place in came]
        trial.require(
            came == schedule,
            f"the stage of rank {rank} was made to do {words(came) or 'nothing'}",
            words(schedule),
        )


def step_by_step(trial, function):
    """Two stages are stopped together, rank 0 at each forward but the first, rank 1 at the one before. What
    each has sent until then is seen from outside: no word of theirs can be put in its place."""
    count = 4
    batch = Batch(trial, all_stages(function, 2, count))
    more = [{"looks": list(range(1, count))}, {"looks": list(range(count - 1))}]
    try:
        run_batch(trial, batch, more)
    except Verdict as verdict:
        if verdict.status != "timeout":
            raise
        raise Verdict(
            "failed", f"the stages do not come to their forwards in this order ({verdict.came})", "they do"
        ) from None
    made_to_do(trial, batch.schedules)
    one = 4 * batch.rows * batch.sizes[1]
    for look in range(count - 1) if trial.counted else ():
        actions = [tuple(action) for action in batch.schedules[1]]
        back = sum(action == "backward" for action, _ in actions[: actions.index(("forward", look))])
        for rank, name, wanted in ((0, "outputs", look + 1), (1, "gradients", back)):
            try:
                sent = trial.mark(rank, f"look {look}")["to"].get(1 - rank, 0)
                sent -= trial.mark(rank, "before")["to"].get(1 - rank, 0)
            except KeyError:
                raise Verdict("failed", f"rank {rank} was not at forward {look + 1 - rank}") from None
            trial.require(
                wanted * one <= sent < wanted * one + one / 2 + 10 * HEADER,
                f"when rank 0 came to F{look + 1} and rank 1 to F{look}, rank {rank} had sent {sent} bytes",
                f"{wanted} {name} of {one} bytes",
            )


@check("10.5c")
def in_order(trial):
    schedules = odd_schedules(trial, 3, 5)
    drawn = "; ".join(f"rank {stage}: {words(schedule)}" for stage, schedule in enumerate(schedules))
    trial.tried(f"3 processes, schedules drawn at random: {drawn}")
    run_batch(trial, Batch(trial, schedules))
    made_to_do(trial, schedules)
    trial.tried("3 processes, F0 B0 F1 B1 F2 B2 on each: a message that is begun late holds up all")
    run_batch(trial, Batch(trial, parsed(*["F0 B0 F1 B1 F2 B2"] * 3)))
    for function in (one_forward_one_backward, gpipe):
        trial.tried(
            f"2 processes, {function.__name__} with 4 micro-batches, stopped and looked at from outside"
        )
        step_by_step(trial, function)


def looks(trial, function):
    """How memory grows from the third forward of one process to the eighth, seen from outside, in outputs."""
    batch = Batch(trial, [function(0, 1, 8)])
    run_batch(trial, batch, [{"large": True, "looks": list(range(8))}])
    try:
        seen = [trial.mark(0, f"look {number}")["memory"] for number in range(8)]
    except KeyError:
        raise Verdict("failed", "the stage's forward was not called for each micro-batch") from None
    return (seen[7] - seen[2]) / (4 << 20)


@check("10.5d")
def memory(trial):
    trial.tried("1 process, 8 micro-batches with an output of 4 MB each; memory as the kernel counts it")
    if trial.counted:
        grown = looks(trial, one_forward_one_backward)
        trial.require(
            grown < 1.5,
            f"under 1F1B, memory grows by {grown:.1f} outputs from the third forward to the eighth",
            "0: each backward comes before the next forward, and frees its micro-batch",
        )
        grown = looks(trial, gpipe)
        trial.require(
            grown > 3.5,
            f"under gpipe, memory grows by {grown:.1f} outputs from the third forward to the eighth",
            "5: all forwards come first",
        )
    schedules = all_stages(one_forward_one_backward, 3, 8)
    trial.tried("3 processes, 1F1B with 8 micro-batches; how many inputs and outputs a stage still holds")
    run_batch(trial, Batch(trial, schedules))
    for rank, schedule in enumerate(schedules):
        # The inputs of rank 0 are the caller's. For an output there is another name, that of its send.
        for name, what, more in (("alive", "inputs", "one"), ("kept", "outputs", "two"))[rank == 0 :]:
            counts = [event.get(name) for event in trial.events(rank, "stage")]
            good = len(counts) == len(schedule) and all(type(one) is int for one in counts)
            trial.require(good, f"rank {rank} was made to do {len(counts)} actions", str(len(schedule)))
            sent = " (what isend returned keeps what it sends)" if name == "kept" and rank < 2 else ""
            for place, (got, most) in enumerate(zip(counts, counts_held(schedule), strict=True)):
                trial.require(
                    got <= most + (1 if more == "one" else 2),
                    f"after {words(schedule[: place + 1])} rank {rank} holds the {what} of {got} "
                    f"micro-batches{sent}",
                    f"at most {most}, or {more} more",
                )
