"""What exercise 03b is held against. Runs in the judge."""

import itertools

import torch
from judge import ONE_CALL, Verdict, check, look

PAUSES = (
    0.01,
    0.08,
    0.2,
)  # seconds at a mark that what was begun has to leave the process; more if it has not
MOST_RUNS = 6

# ---- models, and what is right ----------------------------------------------------------------


def model_of(trial, widths, tied=None, frozen=(), buffers=None):
    """What a driver needs to build a model. Weights are such that tanh is neither a line nor saturated."""
    tied, state = tied or {}, {}
    for layer, (inside, outside) in enumerate(itertools.pairwise(widths)):
        if layer not in tied:
            state[f"layers.{layer}.weight"] = trial.floats(outside, inside) / inside**0.5
        state[f"layers.{layer}.bias"] = trial.floats(outside) * 0.1
    model = {"widths": list(widths), "tied": tied, "frozen": list(frozen), "state": state}
    return model | ({"buffers": buffers} if buffers else {})


def other_weights(trial, model):
    return {name: trial.floats(*tensor.shape) for name, tensor in model["state"].items()}


def names_of(model):
    """The parameters in the order of model.parameters()."""
    names = []
    for layer in range(len(model["widths"]) - 1):
        names += [] if layer in model["tied"] else [f"layers.{layer}.weight"]
        names.append(f"layers.{layer}.bias")
    return names


def buckets_of(sizes, frozen, bucket_bytes):
    """Lists of places in `sizes` (numbers of float32)."""
    buckets, full = [], 0
    for place in reversed(range(len(sizes))):
        if place in frozen:
            continue
        if not buckets or full + 4 * sizes[place] > bucket_bytes:
            buckets, full = [*buckets, []], 0
        buckets[-1].append(place)
        full += 4 * sizes[place]
    return buckets


def batch_of(trial, model, images, skip=()):
    widths = model["widths"]
    return {
        "images": trial.floats(images, widths[0]),
        "targets": trial.floats(images, widths[-1]),
        "skip": list(skip),
    }


def forward(model, state, images, skip=()):
    images = images.double()
    for layer in range(len(model["widths"]) - 1):
        if layer not in skip:
            weight = state[f"layers.{model['tied'].get(layer, layer)}.weight"]
            images = torch.tanh(images @ weight.T + state[f"layers.{layer}.bias"])
    return images


def right(model, state, batches, factor):
    """Losses of the batches, and the sum of their gradients (None if a parameter is in none), in float64."""
    state = {name: tensor.detach().double().clone() for name, tensor in state.items()}
    for name, tensor in state.items():
        tensor.requires_grad_(name not in model["frozen"])
    losses = [
        (forward(model, state, batch["images"], batch["skip"]) - batch["targets"].double()).square().sum()
        for batch in batches
    ]
    total = sum(losses) * factor
    if isinstance(total, torch.Tensor) and total.requires_grad:
        total.backward()
    return [float(loss.detach()) for loss in losses], {name: tensor.grad for name, tensor in state.items()}


def mean(model, state, ranks):
    """The mean over ranks of the gradients of `ranks`, a step each; None where no rank has one."""
    all_of = [right(model, state, step["batches"], step["factor"])[1] for step in ranks]
    found = {}
    for name in names_of(model):
        there = [gradients[name] for gradients in all_of if gradients[name] is not None]
        found[name] = sum(there) / len(ranks) if there else None
    return found


def gradients(trial, model, came, expected, number, words=""):
    """Compare the gradients after one step on all ranks."""
    for rank, one in enumerate(came):
        for name in names_of(model):
            got = look(one, "steps", number, "gradients", name)
            what = f"the gradient of {name} on rank {rank} after finish{words}"
            if expected[name] is None:
                trial.same(what, got if got is None else "a tensor", None)
            else:
                trial.close(what, got, expected[name], relative=5e-5)


def inputs_of(model, bucket_bytes, ranks, **more):
    """Inputs for the driver `steps`: `ranks` has the list of steps of each rank."""
    return [model | {"bucket_bytes": bucket_bytes, "steps": steps, **more} for steps in ranks]


def run_steps(trial, inputs, **more):
    """Run the driver `steps`. If it breaks because ranks make different calls, say which."""
    try:
        return trial.run("steps", inputs, **more)
    except Verdict as verdict:
        if verdict.status == "infrastructure" or ("raised" in verdict.came and "gloo" not in verdict.came):
            raise
        begun = [
            [event for event in trial.events(rank) if event.get("phase") == "begin"]
            for rank in range(len(inputs))
        ]
        for number, calls in enumerate(zip(*begun, strict=False)):
            words = [f"{call.get('event')} of {call.get('size')} numbers" for call in calls]
            if len(set(words)) > 1:
                said = "; ".join(f"rank {rank}: {word}" for rank, word in enumerate(words))
                raise Verdict(
                    "failed",
                    f"the ranks do not make the same calls. Call number {number + 1} is, {said}"[:500],
                    "the same calls with the same sizes in the same order on all ranks",
                ) from None
        at = {rank: one["at"] for rank, one in enumerate(trial.answer["ranks"]) if one["at"]}
        if verdict.status == "timeout" and at:
            done = [f"rank {rank} was done with {name.split()[0]}" for rank, name in at.items()]
            done = [words for words in done if words.endswith(("finish", "backward"))]
            verdict.came += "".join(f"; {words}" for words in done)
        raise


# ---- seen from outside ------------------------------------------------------------------------


def kilobytes(value):
    return f"{value / 1000:.1f} kB"


def sent(trial, name):
    """Bytes that each rank had sent over TCP at a mark, by the kernel's counters; None where it has none."""
    marks = [one["marks"] for one in trial.answer["ranks"]]
    trial.require(
        all(name in mark for mark in marks),
        f"the ranks did not pass the mark {name!r}, at which their traffic is looked at",
        "model.forward called once, and loss.backward() through all of its layers",
    )
    if not trial.counted:
        return None
    if not any(mark[name]["sockets"] for mark in marks):
        raise Verdict("infrastructure", "the kernel does not say how many bytes a process has sent")
    return [mark[name]["sent"] for mark in marks]


def timetable(model, bucket_bytes):
    """[(mark, words, how many buckets must have been sent by then)], and the buckets' sizes in bytes."""
    names, layers = names_of(model), len(model["widths"]) - 1
    sizes = [model["state"][name].numel() for name in names]
    frozen = [place for place, name in enumerate(names) if name in model["frozen"]]
    buckets = buckets_of(sizes, frozen, bucket_bytes)
    known_at = [int(name.split(".")[1]) for name in names]  # a weight of two layers belongs to the first
    rows = []
    for layer in reversed(range(layers)):
        full = 0
        while full < len(buckets) and all(known_at[place] > layer for place in buckets[full]):
            full += 1
        words = f"when backward had come to layer {layer} of {layers} (counted from 0)"
        rows.append((f"before {layer}", words, full))
    rows.append(("backward", "when backward had ended", len(buckets)))
    rows.append(("finish", "after finish", len(buckets)))
    return rows, [4 * sum(sizes[place] for place in bucket) for bucket in buckets]


def compare_calls(trial, step, buckets):
    """The calls of one step, by the ranks' own word."""
    for rank in range(len(trial.answer["ranks"])):
        events = trial.events(rank)
        places = {event.get("event"): place for place, event in enumerate(events)}
        begin, end = places.get(f"begin {step}", 0), places.get(f"finish {step}", len(events))
        calls = [event for event in events[begin:end] if event.get("phase") == "begin"]
        words = ", ".join(f"{event.get('event')} of {event.get('size')} numbers" for event in calls)
        trial.require(
            buckets <= len(calls) <= buckets + 1,
            f"rank {rank} made {len(calls)} calls of torch.distributed in step {step + 1}: {words}"[:400],
            f"one all_reduce for each of the {buckets} buckets, and at most one call more",
        )


def compare_traffic(trial, model, bucket_bytes, step):
    """What each rank had sent at each mark of one step. Too much is a verdict at once. Returns the first
    mark at which it was too little, and the verdict, or None."""
    rows, sizes = timetable(model, bucket_bytes)
    compare_calls(trial, step, len(sizes))
    world_size = len(trial.answer["ranks"])
    share = 2 * (world_size - 1) / world_size
    said = f"the buckets have {', '.join(kilobytes(size) for size in sizes)}, and an all_reduce"
    said += f" among {world_size} processes sends {share:.3g} times as much from each"
    before, few = sent(trial, f"begin {step}"), None
    for name, words, full in rows:
        after = sent(trial, f"{name} {step}")
        if before is None:
            continue
        least = share * sum(sizes[:full])
        most = 1.01 * least + (full + 1) * ONE_CALL * (world_size - 1)
        which = (
            "no bucket was" if full == 0 else "the first bucket was" if full == 1 else f"{full} buckets were"
        )
        for rank in range(world_size):
            got = after[rank] - before[rank]
            verdict = Verdict(
                "failed",
                f"{words} in step {step + 1}, rank {rank} had sent {kilobytes(got)}",
                f"{kilobytes(least)} to {kilobytes(most)}, since {which} full ({said})",
            )
            if got > most:
                raise verdict
            if got < 0.97 * least - 64 and few is None:
                few = (f"{name} {step}", verdict)
    return few


def timed(trial, model, bucket_bytes, ranks):
    """Steps with marks in backward: gradients and traffic must both be right."""
    expected = [mean(model, model["state"], list(steps)) for steps in zip(*ranks, strict=True)]
    pauses = {}
    for runs in range(1, MOST_RUNS + 1):
        came = run_steps(trial, inputs_of(model, bucket_bytes, ranks, pause=PAUSES[0], pauses=pauses))
        few = None
        for number, one in enumerate(expected):
            gradients(trial, model, came, one, number, f" in step {number + 1}")
            few = few or compare_traffic(trial, model, bucket_bytes, number)
        if few is None:
            return
        mark, verdict = few
        longer = [pause for pause in PAUSES if pause > pauses.get(mark, PAUSES[0])]
        # On a machine that is busy, what was begun may need more time to leave.
        if runs == MOST_RUNS or not longer:
            raise verdict
        pauses[mark] = longer[0]


# ---- 03b.1 ------------------------------------------------------------------------------------


def compare_buckets(trial, cases):
    """Each case is a model and bucket_bytes."""
    trial.tried("models without a process group")
    inputs = [model | {"bucket_bytes": bucket_bytes} for model, bucket_bytes in cases]
    (came,) = trial.run("buckets", [inputs], group=False)
    for number, (model, bucket_bytes) in enumerate(cases):
        names = names_of(model)
        sizes = [model["state"][name].numel() for name in names]
        frozen = [place for place, name in enumerate(names) if name in model["frozen"]]
        words = f" (frozen: {frozen})" if frozen else ""
        trial.tried(
            f"parameters of {', '.join(str(4 * size) for size in sizes)} bytes{words},"
            f" bucket_bytes={bucket_bytes}; buckets as lists of their places, counted from 0"
        )
        trial.same("the list of buckets", look(came, number), buckets_of(sizes, frozen, bucket_bytes))


@check("03b.1a")
def by_size(trial):
    widths = trial.integers(6, 12, 8).tolist()
    # In the second, a bucket is filled to the last byte.
    cases = [
        (model_of(trial, widths), int(trial.integers(600, 1200, 1))),
        (model_of(trial, [7] * 7), 2 * 4 * (7 * 7 + 7)),
    ]
    compare_buckets(trial, cases)


@check("03b.1b")
def frozen_and_large(trial):
    frozen = ["layers.1.weight", "layers.5.bias", "layers.4.bias"]
    cases = [
        (model_of(trial, [5, 6, 40, 50, 6, 5, 7], frozen=frozen), 500),
        (model_of(trial, [40, 30, 50], frozen=["layers.0.bias"]), int(trial.integers(20, 90, 1))),
    ]
    compare_buckets(trial, cases)


# ---- 03b.2 ------------------------------------------------------------------------------------


@check("03b.2a")
def begin_equal(trial):
    for world_size in (3, 1):
        trial.tried(
            f"{world_size} processes, other parameters and buffers on each rank; forward(images, skip=[1])"
        )
        models = []
        model = model_of(trial, [5, 4, 4, 3])
        for _ in range(world_size):
            drift = {"total": trial.floats(4), "count": trial.integers(1, 1 << 40)}
            models.append(model | {"state": other_weights(trial, model), "buffers": drift})
        images = [trial.floats(rank + 2, 5) for rank in range(world_size)]
        inputs = [
            one | {"images": given, "skip": [1], "bucket_bytes": 60}
            for one, given in zip(models, images, strict=True)
        ]
        first = {name: tensor.double() for name, tensor in models[0]["state"].items()}
        for rank, came in enumerate(trial.run("wrap", inputs)):
            for name in names_of(model):
                trial.close(f"{name} on rank {rank}", look(came, "state", name), first[name])
            trial.close(
                f"drift.total on rank {rank}",
                look(came, "state", "drift.total"),
                models[0]["buffers"]["total"],
            )
            count = look(came, "state", "drift.count")
            trial.same(f"drift.count on rank {rank}", count, models[0]["buffers"]["count"])
            expected = forward(model, first, images[rank], skip=[1])
            trial.close(f"what forward gives on rank {rank}", look(came, "output"), expected)


@check("03b.2b")
def keep_buffers_equal(trial):
    world_size = 3
    model = model_of(trial, [3, 3])

    def drawn():
        return {"total": trial.floats(4), "count": trial.integers(1, 1 << 40)}

    passes = [[{"training": True, "buffers": drawn()} for _ in range(2)] for _ in range(world_size)]
    trial.tried(
        f"{world_size} processes, other buffers on each rank before each forward; two passes in training"
        " mode, then two in evaluation mode on the last rank alone, then one in training mode"
    )
    passes[-1] += [{"training": False, "buffers": drawn()} for _ in range(2)]
    for one in passes:
        one.append({"training": True, "buffers": drawn()})
    inputs = [
        model | {"buffers": drawn(), "images": trial.floats(2, 3), "passes": one, "bucket_bytes": 100}
        for one in passes
    ]
    for rank, came in enumerate(trial.run("buffers", inputs)):
        for number, one in enumerate(passes[rank]):
            mode = "training" if one["training"] else "evaluation"
            source = one if mode == "evaluation" else passes[0][min(number, 2)]
            what = f"in forward number {number + 1} ({mode}) on rank {rank}, the buffer"
            trial.close(f"{what} 'total'", look(came, "seen", number, "total"), source["buffers"]["total"])
            trial.same(f"{what} 'count'", look(came, "seen", number, "count"), source["buffers"]["count"])


# ---- 03b.3 ------------------------------------------------------------------------------------


@check("03b.3a")
def averaged(trial):
    for world_size in (2, 3, 4, 1):
        late = int(trial.integers(0, world_size, 1))
        trial.tried(
            f"{world_size} processes, 2 steps, other images on each rank and not as many; rank {late} begins"
            " 0.05 s later"
        )
        model = model_of(trial, [6, 5, 7, 4, 3])
        ranks = []
        for rank in range(world_size):
            steps = [
                {"batches": [batch_of(trial, model, 2 + rank + step)], "factor": 1.0 + rank}
                for step in range(2)
            ]
            steps[0]["sleep"] = 0.05 * (rank == late and world_size > 1)
            ranks.append(steps)
        came = run_steps(trial, inputs_of(model, 200, ranks, pause=0.001, marks=["begin", "finish"]))
        for number in range(2):
            expected = mean(model, model["state"], [steps[number] for steps in ranks])
            gradients(trial, model, came, expected, number, f" in step {number + 1}")
            before, after = sent(trial, f"begin {number}"), sent(trial, f"finish {number}")
            data = 2 * (world_size - 1) / world_size * sum(timetable(model, 200)[1])
            for rank in range(world_size if before else 0):
                got = after[rank] - before[rank]
                trial.require(
                    got >= 0.9 * data,
                    f"in step {number + 1}, rank {rank} sent {got} bytes through the process group",
                    f"at least {data:.0f} bytes: all gradients in all_reduce",
                )


@check("03b.3b")
def nobody_waits(trial):
    world_size = 3
    late = int(trial.integers(0, world_size, 1))
    trial.tried(
        f"{world_size} processes; rank {late} does not begin its backward before the others have ended theirs"
    )
    model = model_of(trial, [6, 5, 7, 4, 3])
    ranks = [
        [{"batches": [batch_of(trial, model, 3)], "factor": 1.0, "late": rank == late}]
        for rank in range(world_size)
    ]
    try:
        came = run_steps(trial, inputs_of(model, 200, ranks), limit=6)
    except Verdict as verdict:
        if verdict.status == "timeout":
            raise Verdict(
                "failed",
                f"{verdict.came}, and rank {late} had not begun its backward",
                "backward (and the hooks in it) waits for no other rank: only finish waits",
            ) from None
        raise
    sent(trial, "backward has ended")
    gradients(trial, model, came, mean(model, model["state"], [steps[0] for steps in ranks]), 0)


def wide(trial, layers=6):
    """Widths and bucket_bytes such that there are three buckets or more, some of more than one layer."""
    while True:
        widths = [int(width) for width in trial.integers(28, 48, layers + 1)]
        bucket_bytes = int(trial.integers(9000, 14000, 1))
        sizes = [size for a, b in itertools.pairwise(widths) for size in (a * b, b)]
        buckets = buckets_of(sizes, [], bucket_bytes)
        inside = [len({place // 2 for place in bucket}) for bucket in buckets]
        if 3 <= len(buckets) <= layers - 2 and inside[0] > 1 and inside[-1] > 1:
            return widths, bucket_bytes


@check("03b.3c")
def overlap(trial):
    for world_size in (2, 3):
        widths, bucket_bytes = wide(trial)
        trial.tried(
            f"{world_size} processes, {len(widths) - 1} layers with widths {widths},"
            f" bucket_bytes={bucket_bytes}; before each layer's backward, the system is asked how much"
            " each process has sent"
        )
        model = model_of(trial, widths)
        ranks = [
            [{"batches": [batch_of(trial, model, 2 + rank)], "factor": 1.0} for _ in range(4 - world_size)]
            for rank in range(world_size)
        ]
        timed(trial, model, bucket_bytes, ranks)


# ---- 03b.4 ------------------------------------------------------------------------------------


@check("03b.4a")
def shared_and_frozen(trial):
    for world_size, last_frozen in ((2, False), (3, True)):
        width = int(trial.integers(32, 44, 1))
        frozen = ["layers.2.weight"] + ["layers.5.weight", "layers.5.bias"] * last_frozen
        trial.tried(
            f"{world_size} processes, 6 layers with {width} inputs and outputs; layer 4 has the weight of"
            f" layer 1; frozen: {', '.join(frozen)}; what is sent is looked at before each layer's backward"
        )
        model = model_of(trial, [width] * 7, tied={4: 1}, frozen=frozen)
        ranks = [
            [{"batches": [batch_of(trial, model, 2 + rank)], "factor": 1.0}] for rank in range(world_size)
        ]
        timed(trial, model, 4 * (2 * width * width + 4 * width), ranks)


@check("03b.4b")
def missing_on_some(trial):
    plans = [
        (3, [[1], [3, 0], [2]], "each rank leaves out other layers"),
        (4, [[], [3], None, [0, 2]], "rank 2 has no backward at all, ranks 1 and 3 leave out layers"),
    ]
    for world_size, skips, words in plans:
        trial.tried(f"{world_size} processes, 4 layers: {words}")
        model = model_of(trial, [5, 5, 5, 5, 5])
        ranks = []
        for skip in skips:
            batches = [] if skip is None else [batch_of(trial, model, 3, skip)]
            ranks.append([{"batches": batches, "factor": 1.0}])
        came = run_steps(trial, inputs_of(model, 150, ranks))
        gradients(trial, model, came, mean(model, model["state"], [steps[0] for steps in ranks]), 0)


@check("03b.4c")
def missing_everywhere(trial):
    trial.tried("3 processes, 2 steps; in the first nobody uses layer 1, and only rank 2 uses layer 2")
    model = model_of(trial, [5, 5, 5, 5])
    ranks = [
        [
            {"batches": [batch_of(trial, model, 3, [1] if rank == 2 else [1, 2])], "factor": 1.0},
            {"batches": [batch_of(trial, model, 2)], "factor": 1.0},
        ]
        for rank in range(3)
    ]
    came = run_steps(trial, inputs_of(model, 10_000, ranks))
    for number in range(2):
        expected = mean(model, model["state"], [steps[number] for steps in ranks])
        gradients(trial, model, came, expected, number, f" in step {number + 1}")


# ---- 03b.5 ------------------------------------------------------------------------------------


@check("03b.5a")
def silence(trial):
    world_size = 3
    trial.tried(f"{world_size} processes, a model with buffers: two passes in no_sync, one outside, finish")
    model = model_of(trial, [20, 20, 20], buffers={"total": trial.floats(4), "count": trial.integers(1, 9)})
    ranks = [
        [{"batches": [batch_of(trial, model, 2) for _ in range(3)], "factor": 1.0}] for _ in range(world_size)
    ]
    for pause in PAUSES:
        run_steps(trial, inputs_of(model, 2000, ranks, pause=pause))
        before, loud = sent(trial, "begin 0"), ""
        for number in range(2):
            after = sent(trial, f"after {number} 0")
            for rank in range(world_size if before else 0):
                got = after[rank] - before[rank]
                loud = loud or f"rank {rank} had sent {got} bytes after pass {number + 1} in no_sync" * (
                    got > 0
                )
        # What was begun before may have been late.
        if not loud:
            break
    trial.require(not loud, loud, "nothing is sent in no_sync: no gradients, no buffers")
    for rank in range(world_size):
        events = trial.events(rank)
        places = {event.get("event"): place for place, event in enumerate(events)}
        between = events[places.get("begin 0", 0) : places.get("after 1 0", 0)]
        words = ", ".join(str(event.get("event")) for event in between if event.get("phase") == "begin")
        trial.require(
            not words,
            f"rank {rank} called {words[:200]} in no_sync",
            "no call of torch.distributed in no_sync",
        )


@check("03b.5b")
def accumulated(trial):
    trial.tried(
        "3 processes, 2 steps of 3 passes, the first two in no_sync, not as many images on each rank; rank 0"
        " uses layer 1 in its first pass only, the others never use layer 2 in it"
    )
    model = model_of(trial, [5, 5, 5, 5])
    ranks = []
    for rank in range(3):
        skips = [[], [1], [1]] if rank == 0 else [[2], [], []]
        ranks.append(
            [
                {
                    "batches": [
                        batch_of(trial, model, 1 + rank + place, skip) for place, skip in enumerate(skips)
                    ],
                    "factor": 1.0,
                }
                for _ in range(2)
            ]
        )
    came = run_steps(trial, inputs_of(model, 150, ranks))
    for number in range(2):
        expected = mean(model, model["state"], [steps[number] for steps in ranks])
        gradients(trial, model, came, expected, number, f" in step {number + 1}")
    widths, bucket_bytes = wide(trial)
    trial.tried(
        f"2 processes, {len(widths) - 1} layers with widths {widths}, bucket_bytes={bucket_bytes}; an"
        " exception is raised in no_sync and caught; then a step with two passes, the first in no_sync"
    )
    model = model_of(trial, widths)
    ranks = [
        [{"batches": [batch_of(trial, model, 2) for _ in range(2)], "factor": 1.0, "fails": True}]
        for _ in range(2)
    ]
    timed(trial, model, bucket_bytes, ranks)


@check("03b.5c")
def curve(trial):
    """The same losses as one process with all images."""
    for world_size in (1, 2, 3, 4):
        count = 4
        trial.tried(
            f"{world_size} processes with other weights at first, {count} steps of gradient descent in 2"
            " passes each, gradients set to zero (not None) before each step; against one process that has"
            " all images"
        )
        model, rate = model_of(trial, [6, 5, 5, 3]), 0.1
        ranks = []
        for rank in range(world_size):
            steps = [
                {"batches": [batch_of(trial, model, 1 + (rank + i) % 3) for i in range(2)]}
                for _ in range(count)
            ]
            ranks.append(steps)
        for number in range(count):
            images = sum(len(batch["images"]) for steps in ranks for batch in steps[number]["batches"])
            for steps in ranks:
                steps[number]["factor"] = world_size / images
        inputs = inputs_of(model, 150, ranks, zeros=True, rate=rate)
        for rank in range(1, world_size):
            inputs[rank] = inputs[rank] | {"state": other_weights(trial, model)}
        came = run_steps(trial, inputs)
        state = {name: tensor.double() for name, tensor in model["state"].items()}
        for number in range(count):
            for rank, steps in enumerate(ranks):
                expected, _ = right(model, state, steps[number]["batches"], 1.0)
                got = look(came, rank, "steps", number, "losses")
                for place, loss in enumerate(expected):
                    what = f"the loss of pass {place + 1} in step {number + 1} on rank {rank}"
                    trial.close(what, look(got, place), loss, relative=1e-4)
            step = mean(model, state, [steps[number] for steps in ranks])
            state = {name: (tensor - rate * step[name]).detach() for name, tensor in state.items()}
        for rank in range(world_size):
            for name in names_of(model):
                got = look(came, rank, "weights", name)
                trial.close(f"{name} on rank {rank} after {count} steps", got, state[name], relative=1e-4)
