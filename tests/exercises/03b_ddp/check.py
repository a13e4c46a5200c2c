"""What exercise 03b is held against. Runs in the judge."""

import itertools

import torch
from judge import ONE_CALL, Verdict, check, look, so_many
from judge.several import calls_of, in_words


def model_of(trial, widths, tied=None, frozen=(), buffers=None):
    """What a driver needs to build a model. Weights are such that tanh is neither a line nor saturated."""
    tied, state = tied or {}, {}
    for layer, (inside, outside) in enumerate(itertools.pairwise(widths)):
        if layer not in tied:
            state[f"layers.{layer}.weight"] = trial.floats(outside, inside) / inside**0.5
        state[f"layers.{layer}.bias"] = trial.floats(outside) * 0.1
    model = {"widths": list(widths), "tied": tied, "frozen": list(frozen), "state": state}
    return model | ({"buffers": buffers} if buffers else {})


def double(model):
    """The same in float64, with numbers that float32 does not have."""
    return model | {"state": {name: tensor.double() / 3 for name, tensor in model["state"].items()}}


def names_of(model):
    """The parameters in the order of model.parameters()."""
    names = [
        f"layers.{layer}.{kind}" for layer in range(len(model["widths"]) - 1) for kind in ("weight", "bias")
    ]
    return [name for name in names if name in model["state"]]


def sizes_of(model):
    """How many numbers each parameter has, and the places of those that are frozen."""
    names = names_of(model)
    frozen = [place for place, name in enumerate(names) if name in model["frozen"]]
    return [model["state"][name].numel() for name in names], frozen


def buckets_of(sizes, frozen, bucket_bytes, each=4):
    """Lists of places in `sizes`, which are numbers of `each` bytes."""
    buckets, full = [], 0
    for place in reversed(range(len(sizes))):
        if place in frozen:
            continue
        if not buckets or full + each * sizes[place] > bucket_bytes:
            buckets, full = [*buckets, []], 0
        buckets[-1].append(place)
        full += each * sizes[place]
    return buckets


def step_of(trial, model, *images, skips=None, factor=1.0):
    """A step with a batch of so many images for each pass."""
    (inside, *_, outside), batches = model["widths"], []
    for count, skip in zip(images, skips or [()] * len(images), strict=True):
        batch = {"images": trial.floats(count, inside), "targets": trial.floats(count, outside)}
        batches.append(batch | {"skip": list(skip)})
    return {"batches": batches, "factor": factor}


def forward(model, state, images, skip=(), kept=None):
    """`kept`: what the gradient is multiplied by behind each layer, by the layer's number."""
    images = images.double()
    for layer in model.get("order", range(len(model["widths"]) - 1)):
        if layer not in skip:
            weight = state[f"layers.{model['tied'].get(layer, layer)}.weight"]
            images = torch.tanh(images @ weight.T + state[f"layers.{layer}.bias"])
            if kept and images.requires_grad:
                images.register_hook(lambda slope, number=kept[layer]: slope * number)
    return images


def right(model, state, batches, factor, kept=None, images=None):
    """Losses of the batches, and the sum of their gradients (None if a parameter is in none), in float64.

    `kept` has the numbers behind gates. The images of each batch are put into the list `images`, if there is
    one: as tensors, with their gradients.
    """
    kept = {"begin": 1.0, "after": {}, "before": None} | (kept or {})
    state = {name: tensor.detach().double().clone() for name, tensor in state.items()}
    for name, tensor in state.items():
        tensor.requires_grad_(name not in model["frozen"])
    losses, total, factor = [], 0, factor * kept["begin"]
    for number, batch in enumerate(batches):
        given = batch["images"].double().requires_grad_()
        last = number == len(batches) - 1
        output = forward(model, state, given, batch["skip"], kept["before"] if last else None)
        losses.append((output - batch["targets"].double()).square().sum())
        total = total + losses[-1] * factor
        factor *= kept["after"].get(number, 1.0)
        if images is not None:
            images.append(given)
    if isinstance(total, torch.Tensor) and total.requires_grad:
        total.backward()
    return [float(loss.detach()) for loss in losses], {name: tensor.grad for name, tensor in state.items()}


def mean(model, state, ranks):
    """The mean over ranks of the gradients of `ranks`, a step each; None where no rank has one."""
    model = model | {"frozen": [*model["frozen"], *ranks[0].get("freeze", [])]}
    all_of = [right(model, state, step["batches"], step["factor"], step.get("kept"))[1] for step in ranks]
    found = {}
    for name in names_of(model):
        there = [gradients[name] for gradients in all_of if gradients[name] is not None]
        found[name] = sum(there) / len(ranks) if there else None
    return found


def gradients(trial, model, came, ranks, words=" in step {}", relative=5e-5):
    """Compare the gradients after each step on all ranks with their mean, which is returned for each step."""
    means = [mean(model, model["state"], list(steps)) for steps in zip(*ranks, strict=True)]
    for number, expected in enumerate(means):
        for rank, name in itertools.product(range(len(ranks)), names_of(model)):
            got = look(came, rank, "steps", number, "gradients", name)
            what = f"the gradient of {name} on rank {rank} after finish{words.format(number + 1)}"
            if expected[name] is None:
                trial.same(what, got if got is None else "a tensor", None)
            else:
                zeros = " (a gradient of zeros is not None)" * (not expected[name].any())
                trial.require(got is not None, f"{what} is None", f"numbers{zeros}")
                trial.close(what, got, expected[name], relative=relative)
    return means


def inputs_of(trial, model, bucket_bytes, ranks, apart=False, **more):
    """Inputs for the driver `steps`: `ranks` has the list of steps of each rank. With `apart`, all but rank 0
    begin with weights of their own."""
    steps = [[{name: step[name] for name in step if name != "kept"} for step in one] for one in ranks]
    inputs = [model | {"bucket_bytes": bucket_bytes, "steps": one, **more} for one in steps]
    for one in inputs[1:] if apart else ():
        one["state"] = {name: trial.floats(*tensor.shape) for name, tensor in model["state"].items()}
    return inputs


def run_steps(trial, inputs, gates=None, **more):
    """Run the driver `steps`. If it breaks because ranks make different calls, say which."""
    if gates:
        inputs = [one | {"gates": list(names)} for one, names in zip(inputs, gates, strict=True)]
    try:
        return trial.run("steps", inputs, gates=gates, **more)
    except Verdict as verdict:
        of_its_own = "raised" in verdict.came and "gloo" not in verdict.came
        if of_its_own or verdict.status in ("infrastructure", "failed"):
            raise
        begun = [calls_of(trial, rank) for rank in range(len(inputs))]
        for number, calls in enumerate(zip(*begun, strict=False)):
            if len(set(map(in_words, calls))) > 1:
                said = "; ".join(f"rank {rank}: {in_words(call)}" for rank, call in enumerate(calls))
                came = f"the ranks do not make the same calls. Call number {number + 1}: {said}"[:500]
                wanted = "the same calls with the same sizes in the same order on all ranks"
                raise Verdict("failed", came, wanted) from None
        raise


def kilobytes(value):
    return f"{value / 1000:.1f} kB"


def timetable(model, bucket_bytes):
    """[(gate, words, how many buckets are full by then)], and the buckets' sizes in bytes."""
    names, (sizes, frozen) = names_of(model), sizes_of(model)
    buckets = buckets_of(sizes, frozen, bucket_bytes)
    known_at = [int(name.split(".")[1]) for name in names]  # a weight of two layers belongs to the first
    first_of = [min(known_at[place] for place in bucket) for bucket in buckets]
    rows = []
    for layer in reversed(range(len(model["widths"]) - 1)):
        full = len(list(itertools.takewhile(lambda first, layer=layer: first > layer, first_of)))
        rows.append((f"before {layer}", f"when backward had reached layers.{layer}", full))
    return rows, [4 * sum(sizes[place] for place in bucket) for bucket in buckets]


def keep_back(trial, model, bucket_bytes, ranks):
    """Give each step of each rank numbers behind gates. Returns the gates of each rank.

    Backward of a layer multiplies by a number which the rank gets only after the buckets that are full by
    then have left it. So the gradients of the first layers cannot be right, in whatever way they are worked
    out, unless those of the last were sent before.
    """
    rows, sizes = timetable(model, bucket_bytes)
    world_size = len(ranks)
    share = 2 * (world_size - 1) / world_size
    said = f"the buckets have {', '.join(kilobytes(size) for size in sizes)}, and an all_reduce"
    said += f" among {world_size} processes sends {share:.3g} times as much from each process"
    gates = [{} for _ in ranks]
    for rank, steps in enumerate(ranks):
        for number, step in enumerate(steps):
            step["kept"] = {"begin": trial.secret(), "before": {}}
            # What travelled before has come everywhere when all have asked, and counts for nothing here.
            every = [[other, f"begin {number}"] for other in range(world_size)]
            gates[rank][f"begin {number}"] = {"value": step["kept"]["begin"], "asked": every}
            end = (f"after {len(step['batches']) - 1}", "when backward had ended", len(sizes))
            for name, words, full in [*rows, end]:
                value, least = trial.secret(), share * sum(sizes[:full])
                which = "the first bucket is full" if full == 1 else f"{full} buckets are full"
                which += " while backward continues" if name.startswith("before") else ""
                gates[rank][f"{name} {number}"] = {
                    "value": value,
                    "sent": max(0, round(0.97 * least - 64)) if trial.counted else 0,
                    "sent since": f"begin {number}",
                    "words": f"{words} in step {number + 1}",
                    "expected": f"{kilobytes(least)}: {which} ({said})",
                }
                if name.startswith("before"):
                    step["kept"]["before"][int(name.split()[1])] = value
    return gates


def overlapped(trial, model, bucket_bytes, ranks):
    """Steps with gates in backward: gradients must be right, and no more be sent than it takes."""
    gates = keep_back(trial, model, bucket_bytes, ranks)
    inputs, steps = inputs_of(trial, model, bucket_bytes, ranks, apart=True), len(ranks[0])
    came = run_steps(trial, inputs, gates)
    means = gradients(trial, model, came, ranks)
    # Asked before all of this had come, a gate would count what belongs to the step before.
    for number, expected in enumerate([model["state"], *means[:-1]]):
        for rank, name in itertools.product(range(len(ranks)), names_of(model)):
            if expected[name] is not None:
                had = look(trial.asked(rank, f"begin {number}")["with"], name)
                kind = "the gradient" if number else "the number"
                what = f"{kind} of {name} on rank {rank} when step {number + 1} began"
                trial.close(what, had, expected[name], relative=5e-5)
    _, sizes = timetable(model, bucket_bytes)
    of_each = f"one all_reduce for each of the {len(sizes)} buckets"
    for rank in range(len(ranks)):  # bytes prove it, calls explain it
        calls = calls_of(trial, rank, "begin 0")
        words = ", ".join(map(in_words, calls))
        came = f"rank {rank} made {len(calls)} calls of torch.distributed in {steps} steps: {words}"[:400]
        wanted = f"in each step, {of_each} and at most one extra call"
        trial.require(len(calls) <= steps * (len(sizes) + 1), came, wanted)
    share = 2 * (len(ranks) - 1) / len(ranks) * sum(sizes) * steps
    most = 1.01 * share + steps * (len(sizes) + 1) * ONE_CALL * (len(ranks) - 1)
    for rank in range(len(ranks) if trial.counted else 0):
        got = trial.mark(rank, "@end")["sent"] - trial.asked(rank, "begin 0")["sent"]
        came = f"in {steps} steps, rank {rank} sent {kilobytes(got)}"
        wanted = f"{kilobytes(share)} to {kilobytes(most)}: {of_each}"
        trial.require(0.97 * share - 64 <= got <= most, came, wanted)


def in_any_order(buckets):
    good = isinstance(buckets, list) and all(isinstance(bucket, list) for bucket in buckets)
    return [sorted(bucket, key=str) for bucket in buckets] if good else None


def compare_buckets(trial, cases):
    """Each case is a model and bucket_bytes."""
    trial.tried("models without a process group")
    inputs = [model | {"bucket_bytes": bucket_bytes} for model, bucket_bytes in cases]
    (came,) = trial.run("buckets", [inputs], group=False)
    for number, (model, bucket_bytes) in enumerate(cases):
        (sizes, frozen), got = sizes_of(model), look(came, number)
        words = f" (number {' and '.join(str(place + 1) for place in frozen)} frozen)" if frozen else ""
        each = model["state"][names_of(model)[0]].element_size()
        trial.tried(
            f"parameters of {', '.join(str(each * size) for size in sizes)} bytes{words},"
            f" bucket_bytes={bucket_bytes}; each bucket is a list of parameter numbers, counted from 1"
        )
        right = [[place + 1 for place in bucket] for bucket in buckets_of(sizes, frozen, bucket_bytes, each)]
        try:
            trial.same("the list of buckets", got, right)
        except Verdict as verdict:
            if in_any_order(got) == in_any_order(right):
                verdict.came += ", which is right except for the order within each bucket"
            raise


@check("03b.1a")
def by_size(trial):
    widths = trial.integers(6, 12, 8).tolist()
    # In the second, a bucket is filled to the last byte.
    cases = [
        (model_of(trial, widths), int(trial.integers(600, 1200, 1))),
        (model_of(trial, [7] * 7), 2 * 4 * (7 * 7 + 7)),
        (double(model_of(trial, widths)), int(trial.integers(1200, 2400, 1))),
    ]
    compare_buckets(trial, cases)


@check("03b.1b")
def frozen_and_large(trial):
    frozen = ["layers.1.weight", "layers.5.bias", "layers.4.bias"]
    cases = [
        (model_of(trial, [5, 6, 40, 50, 6, 5, 7], frozen=frozen), 500),
        (model_of(trial, [40, 30, 50], frozen=["layers.0.bias"]), int(trial.integers(20, 90, 1))),
        (model_of(trial, [3, 4], frozen=["layers.0.weight", "layers.0.bias"]), 500),
    ]
    compare_buckets(trial, cases)


def drawn_buffers(trial):
    return {"total": trial.floats(4), "count": trial.integers(1, 1 << 20), "unsaved": trial.floats(3)}


@check("03b.2a")
def begin_equal(trial):
    for world_size in (3, 1):
        trial.tried(
            f"{so_many(world_size, 'process')}, different parameters (layers.0.weight is frozen)"
            " and buffers on each rank;"
            " forward(images, skip=[1]) and forward(images, [1])"
        )
        model = model_of(trial, [5, 4, 4, 3], frozen=["layers.0.weight"]) | {"skip": [1], "bucket_bytes": 60}
        shapes = {name: tensor.shape for name, tensor in model["state"].items()}
        states = [{name: trial.floats(*shape) for name, shape in shapes.items()} for _ in range(world_size)]
        models = [model | {"state": state, "buffers": drawn_buffers(trial)} for state in states]
        images = [trial.floats(rank + 2, 5) for rank in range(world_size)]
        inputs = [one | {"images": given} for one, given in zip(models, images, strict=True)]
        first = {name: tensor.double() for name, tensor in models[0]["state"].items()}
        for rank, came in enumerate(trial.run("wrap", inputs)):
            for name in names_of(model):
                trial.close(f"{name} on rank {rank}", look(came, "state", name), first[name])
            for name, value in models[0]["buffers"].items():
                trial.close(f"drift.{name} on rank {rank}", look(came, "state", f"drift.{name}"), value)
            replaced = look(came, "replaced")
            words = f"after __init__, the model on rank {rank} has new tensors: {replaced}"
            trial.require(replaced == [], words, "the same tensors with new values")
            expected = forward(model, first, images[rank], skip=[1])
            for place, call in enumerate(("forward(images, skip=[1])", "forward(images, [1])")):
                trial.close(f"what {call} returns on rank {rank}", look(came, "outputs", place), expected)


@check("03b.2b")
def keep_buffers_equal(trial):
    world_size = 3
    model = model_of(trial, [3, 3], frozen=["layers.0.weight", "layers.0.bias"])
    passes = [[("training", True)] * 2 for _ in range(world_size)]
    trial.tried(
        f"{world_size} processes, different buffers on each rank before each forward; two passes in training"
        " mode, then two in evaluation mode on the last rank alone, then one in training mode under"
        " no_grad(); all parameters are frozen"
    )
    passes[-1] += [("evaluation", True), ("evaluation", False)]
    # As when the statistics of batch norm are computed once more, without gradients.
    passes = [
        [
            {"training": mode == "training", "grad": grad, "buffers": drawn_buffers(trial)}
            for mode, grad in [*mine, ("training", False)]
        ]
        for mine in passes
    ]
    model |= {"buffers": drawn_buffers(trial), "images": trial.floats(2, 3), "bucket_bytes": 100}
    inputs = [model | {"passes": mine} for mine in passes]
    for rank, came in enumerate(trial.run("buffers", inputs)):
        for number, one in enumerate(passes[rank]):
            mode = "training" if one["training"] else "evaluation"
            source = passes[0][min(number, 2)] if one["training"] else one
            mode += "" if one["grad"] else ", under no_grad()"
            what = f"in forward number {number + 1} ({mode}) on rank {rank}, the buffer"
            for name, value in source["buffers"].items():
                trial.close(f"{what} {name!r}", look(came, "seen", number, name), value)


@check("03b.3a")
def averaged(trial):
    for world_size in (2, 3, 4, 1):
        late = int(trial.integers(0, world_size, 1))
        trial.tried(
            f"{so_many(world_size, 'process')}, 2 steps, different images (and numbers of images) on each"
            f" rank; rank {late} begins 0.05 s later"
        )
        model, relative = model_of(trial, [6, 5, 7, 4, 3]), 5e-5
        if world_size == 3:
            trial.words.append("(all numbers are float64)")
            model, relative = double(model), 1e-10
        ranks = [
            [step_of(trial, model, 2 + rank + step, factor=1.0 + rank) for step in range(2)]
            for rank in range(world_size)
        ]
        ranks[late][0]["sleep"] = 0.05 * (world_size > 1)
        came = run_steps(trial, inputs_of(trial, model, 200, ranks))
        gradients(trial, model, came, ranks, relative=relative)
        data = 2 * 2 * (world_size - 1) / world_size * sum(timetable(model, 200)[1])
        for rank in range(world_size):
            got = trial.sent(rank)
            came_by = f"in 2 steps, rank {rank} sent {got} bytes through the process group"
            wanted = f"at least {data:.0f} bytes: an all_reduce of all gradients"
            trial.require(got is None or got >= 0.9 * data, came_by, wanted)


@check("03b.3b")
def missing_on_some(trial):
    usual, hard = [0, 1, 2, 3], [3, 2, 1, 0]
    plans = [
        ([[], []], "forward runs the last layer first, so the first bucket becomes full last", hard),
        ([[1], [3, 0], [2]], "each rank skips different layers", usual),
        ([[], [3], None, [0, 2]], "rank 2 has no backward at all, and ranks 1 and 3 skip layers", usual),
    ]
    for skips, words, order in plans:
        trial.tried(f"{len(skips)} processes, 4 layers: {words}")
        model = model_of(trial, [5, 5, 5, 5, 5]) | {"order": order}
        ranks = [
            [step_of(trial, model) if skip is None else step_of(trial, model, 3, skips=[skip])]
            for skip in skips
        ]
        came = run_steps(trial, inputs_of(trial, model, 150, ranks))
        gradients(trial, model, came, ranks, f" ({words})")


@check("03b.3c")
def missing_everywhere(trial):
    trial.tried(
        "3 processes, 4 steps; in step 1, no rank uses layers.1 and only rank 2 uses layers.2; in step 3, all"
        " gradients are zero; in step 4, ranks 0 and 1 have opposite gradients, rank 2 has zeros, and"
        " layers.0.weight is now frozen"
    )
    model = model_of(trial, [5, 5, 5, 5])
    both = step_of(trial, model, 2)
    ranks = [
        [
            step_of(trial, model, 3, skips=[[1] if rank == 2 else [1, 2]]),
            step_of(trial, model, 2),
            step_of(trial, model, 2, factor=0.0),
            both | {"factor": (1.0, -1.0, 0.0)[rank], "freeze": ["layers.0.weight"]},
        ]
        for rank in range(3)
    ]
    came = run_steps(trial, inputs_of(trial, model, 10_000, ranks))
    gradients(trial, model, came, ranks)


@check("03b.4a")
def nobody_waits(trial):
    world_size = 3
    late = int(trial.integers(0, world_size, 1))
    trial.tried(
        f"{world_size} processes; rank {late} begins its backward only after the others have finished"
    )
    model = model_of(trial, [6, 5, 7, 4, 3])
    ranks = [[step_of(trial, model, 3)] for _ in range(world_size)]
    others = [rank for rank in range(world_size) if rank != late]
    gates = [{"after 0 0": {"value": 1.0}} for _ in range(world_size)]
    number = trial.secret()
    ranks[late][0]["kept"] = {"begin": number}
    gates[late]["begin 0"] = {
        "value": number,
        "asked": [[rank, "after 0 0"] for rank in others],
        "words": f"rank {late} had not begun its backward",
    }
    try:
        came = run_steps(trial, inputs_of(trial, model, 200, ranks), gates, limit=6)
    except Verdict as verdict:
        if verdict.status == "timeout":
            wanted = "backward and its hooks wait for no other rank: only finish waits"
            raise Verdict("failed", verdict.came, wanted) from None
        raise
    for rank in range(world_size):
        calls = {str(call.get("event")) for call in calls_of(trial, rank, "step")}
        calls = ", ".join(sorted(calls - {"all_reduce"}))
        came_by = f"in a step of a model without buffers, rank {rank} called {calls}"
        trial.require(not calls, came_by[:400], "only all_reduce")
    # The gradients of the images: nobody has them before backward has gone through all layers.
    for rank in others:
        images = []
        right(model, model["state"], ranks[rank][0]["batches"], 1.0, images=images)
        had = trial.asked(rank, "after 0 0")["with"]
        trial.close(f"the gradient of the images on rank {rank}", had, images[0].grad, relative=5e-5)
    gradients(trial, model, came, ranks, "")


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


@check("03b.4b")
def overlap(trial):
    for world_size in (2, 3):
        widths, bucket_bytes = wide(trial)
        trial.tried(
            f"{world_size} processes, {len(widths) - 1} layers with widths {widths},"
            f" bucket_bytes={bucket_bytes}; backward of a layer continues only after the full buckets"
            " have been sent, as seen from outside"
        )
        model = model_of(trial, widths)
        count = 4 - world_size
        ranks = [[step_of(trial, model, 2 + rank) for _ in range(count)] for rank in range(world_size)]
        overlapped(trial, model, bucket_bytes, ranks)


@check("03b.4c")
def shared_and_frozen(trial):
    for world_size, last_frozen in ((2, False), (3, True)):
        width = int(trial.integers(32, 44, 1))
        frozen = ["layers.2.weight"] + ["layers.5.weight", "layers.5.bias"] * last_frozen
        trial.tried(
            f"{world_size} processes, 6 layers with {width} inputs and outputs; layers.4 shares the weight of"
            f" layers.1; frozen: {', '.join(frozen)}; backward continues after full buckets are sent"
            f"{' (in evaluation mode)' * last_frozen}"
        )
        model = model_of(trial, [width] * 7, tied={4: 1}, frozen=frozen) | {"evaluation": last_frozen}
        ranks = [[step_of(trial, model, 2 + rank)] for rank in range(world_size)]
        overlapped(trial, model, 4 * (2 * width * width + 4 * width), ranks)


@check("03b.5a")
def silence(trial):
    world_size = 3
    trial.tried(
        f"{world_size} processes, a model with buffers: two passes in no_sync (a nested no_sync block comes"
        " before the second), one pass outside, then finish; the losses are multiplied by numbers that"
        " are drawn anew in every run, so the expected gradients differ from run to run"
    )
    # The buffers have 4 kB: they, too, are much more than what the network adds.
    buffers = {"total": trial.floats(1000), "count": trial.integers(1, 9)}
    model = model_of(trial, [20, 20, 20], buffers=buffers)
    ranks = [[step_of(trial, model, 2, 2, 2)] for _ in range(world_size)]
    gates, names = [{} for _ in range(world_size)], ("begin 0", "after 0 0", "after 1 0")
    for rank, (step,) in enumerate(ranks):
        begin, *after = (trial.secret() for _ in names)
        step["kept"] = {"begin": begin, "after": dict(enumerate(after))}
        for name, number in zip(names, (begin, *after), strict=True):
            every = [[other, name] for other in range(world_size)]
            gates[rank][name] = {"value": number, "asked": every}
    came = run_steps(trial, inputs_of(trial, model, 2000, ranks), gates)
    for rank, (step,) in enumerate(ranks):
        images = []
        right(model, model["state"], step["batches"], 1.0, step["kept"], images)
        for number in range(2):
            had = trial.asked(rank, f"after {number} 0")
            what = f"the gradient of the images on rank {rank} after pass {number + 1} in no_sync"
            trial.close(what, had["with"], images[number].grad, relative=5e-5)
            got = had["sent"] - trial.asked(rank, "begin 0")["sent"]
            came_by = f"rank {rank} had sent {got} bytes after pass {number + 1} in no_sync"
            trial.require(got < 500, came_by, "nothing is sent in no_sync: no gradients, no buffers")
    for rank in range(world_size):
        calls = calls_of(trial, rank, "begin 0", "after 1 0")
        words = f"rank {rank} called {', '.join(str(call.get('event')) for call in calls)[:200]} in no_sync"
        trial.require(not calls, words, "no call of torch.distributed in no_sync")
    gradients(trial, model, came, ranks, "")


@check("03b.5b")
def accumulated(trial):
    trial.tried(
        "3 processes, 2 steps of 3 passes, the first two in no_sync; the ranks have different numbers of"
        " images; rank 0 uses layers.1 only in its first pass, the other ranks skip layers.2 in theirs"
    )
    model = model_of(trial, [5, 5, 5, 5])
    ranks = []
    for rank in range(3):
        skips = [[], [1], [1]] if rank == 0 else [[2], [], []]
        ranks.append([step_of(trial, model, *range(1 + rank, 4 + rank), skips=skips) for _ in range(2)])
    came = run_steps(trial, inputs_of(trial, model, 150, ranks))
    gradients(trial, model, came, ranks)
    widths, bucket_bytes = wide(trial)
    trial.tried(
        f"2 processes, {len(widths) - 1} layers with widths {widths}, bucket_bytes={bucket_bytes}; an"
        " exception is raised in no_sync and caught; then a step with two passes, the first in no_sync"
    )
    model = model_of(trial, widths)
    ranks = [[step_of(trial, model, 2, 2) | {"fails": True}] for _ in range(2)]
    overlapped(trial, model, bucket_bytes, ranks)


@check("03b.5c")
def curve(trial):
    """The same losses as one process with all images."""
    for world_size in (1, 2, 3, 4):
        count, zeros, columns = 4, world_size % 2 == 1, world_size == 4
        cleared = "zero (not None)" if zeros else "None"
        trial.tried(
            f"{so_many(world_size, 'process')} with different weights at first, {count} steps of"
            f" gradient descent in 2 passes each, gradients set to {cleared} before each step;"
            f" compared with one process that has all images{'; weights stored by columns' * columns}"
        )
        model, rate = model_of(trial, [6, 5, 5, 3]) | {"columns": columns}, 0.1
        ranks = [
            [step_of(trial, model, 1 + rank % 3, 1 + (rank + 1) % 3) for _ in range(count)]
            for rank in range(world_size)
        ]
        for number in range(count):
            images = sum(len(batch["images"]) for steps in ranks for batch in steps[number]["batches"])
            for steps in ranks:
                steps[number]["factor"] = world_size / images
        came = run_steps(trial, inputs_of(trial, model, 150, ranks, apart=True, zeros=zeros, rate=rate))
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
            for number in range(count):
                changed = look(came, rank, "steps", number, "changed")
                words = f"the gradients that rank {rank} got in step {number + 1} had changed by the end"
                trial.require(changed == [], f"{words}: {changed}", "gradients in their own memory")
            for name in names_of(model):
                got = look(came, rank, "weights", name)
                trial.close(f"{name} on rank {rank} after {count} steps", got, state[name], relative=1e-4)
