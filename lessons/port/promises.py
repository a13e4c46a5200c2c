"""What check.py compares: a function for each promise, which returns a verdict, the reason, and the row of
the page that helps."""

import random
import re
from collections import Counter
from itertools import combinations

from runs import other_mode, reason

EARLY = 3  # steps to compare without --exact: after them, float32 has rounded too differently
COMPARED = 12  # steps to compare with --exact
LIMIT = 1e-9  # of what --exact compares, where rounding does not grow
TOO_FAR = 1e-3  # if rounding alone grows as far as this, nothing can be said


def ok(text, row=""):
    return "ok", text, row


def wrong(text, row=""):
    return "wrong", text, row


def unseen(text, row=""):
    return "not seen", text, row


def differing(mine, its):
    return next((name for name in mine if mine[name] != its.get(name)), None)


# ---- 1. the script that it came from


def like_the_original(runs):
    if not runs.arguments.original:
        return unseen('name the script for one process: --original "before.py --its --options"')
    if runs.original.failed:
        return unseen(f"the original does not run with --exact: {reason(runs.original)[0]}")
    if runs.one.failed or not runs.one.is_exact:
        return unseen(f"the port does not run on one process with --exact: {reason(runs.one)[0]}")
    before, after = runs.original.steps_of(0), runs.one.steps_of(0)
    if not before or not after:
        which = "the port" if before else "the original"
        return unseen(f"{which} took no step: is there a snapshot of an earlier run?")
    if difference := other_settings(before, after):
        return wrong(difference)
    mine = [forward["shape"] for forward in before[0]["forwards"]]
    its = [forward["shape"] for forward in after[0]["forwards"]]
    if mine != its:
        text = f"step 1 of the original gives its models batches of the shapes {mine}, of the port {its}"
        return wrong(text, "the-batch-size-used-later")
    if len(before) != len(after) and mismatch_of_steps(before, after):
        return wrong(f"the original takes {len(before)} steps, the port {len(after)}")
    if differing(*(run.rows(0, "weights")[0]["weights"] for run in (runs.original, runs.one))):
        text = "they start with different weights: set the same seed before the model is made"
        return unseen(text, "seeds-and-dropout")
    is_same = matching(runs.original, runs.one)
    if not is_same[0]:
        return other_order(runs, before, after)
    found = compare_steps(before, [after], is_same, COMPARED, lambda: rounding(runs))
    if found.is_wrong:
        if any(forward["draws"] for forward in found.mine["forwards"]):
            return unseen("the model of the original draws random numbers", "noise-in-the-model")
        return wrong(
            f"{found.what} differ by {found.off:.1e} in step {found.number} (allowed: {found.limit:.0e})"
        )
    numbers = compare_numbers(runs.original, runs.one, lambda: runs.nudged)
    if numbers.wrong:
        return wrong(f"the original prints {numbers.wrong}", numbers.row)
    if not any_gradient(before):
        return unseen("all gradients are zero in the first steps: there is nothing to compare")
    text = f"the first {found.compared} steps differ by {found.furthest:.0e} (allowed: {found.limit:.0e})"
    if not numbers.compared:
        return ok(f"{text}; the two print no line in the same words")
    return ok(f"{text}, and {numbers.compared} printed numbers agree")


def any_gradient(steps):
    """Whether a gradient of the compared steps is not zero."""
    for step in steps[:COMPARED]:
        if any(numbers[-1] > 0 for numbers in step.get("gradients", {}).values()):
            return True
    return False


def other_settings(before, after):
    """A learning rate, or another number of the optimizer, that is not the original's."""
    if mine := before[0].get("settings"):
        its = after[0].get("settings", {})
        if key := differing(mine, its):
            return f"{key} of the optimizer is {its.get(key)}, the original's {mine[key]}"
    is_as_long = len(before) == len(after)
    for mine, its in zip(before, after, strict=False):
        for one, other in zip(mine.get("rates", []), its.get("rates", []), strict=False):
            # A port that drops the last batch has a schedule for fewer steps.
            allowed = 1e-9 if is_as_long else 0.1
            if abs(one - other) > allowed * abs(one):
                return f"the learning rate of step {mine['step']} is {other:.4g}, the original's {one:.4g}"
    return ""


def mismatch_of_steps(before, after):
    """Whether the numbers of steps differ by more than an incomplete last batch in each epoch."""
    shapes = [tuple(forward["shape"]) for step in before for forward in step["forwards"][:1]]
    incomplete = sum(shape != shapes[0] for shape in shapes)
    return not 0 < len(before) - len(after) <= incomplete


def other_order(runs, before, after):
    """The verdict if step 1 of the port uses other examples than the original's."""
    shuffles = [trained_sampler(run) for run in (runs.original, runs.one)]
    if None not in shuffles and shuffles[0] != shuffles[1]:
        words = ["shuffles" if shuffles[0] else "does not shuffle", "does" if shuffles[1] else "does not"]
        return wrong(
            f"the original {words[0]} its examples, and the port {words[1]}", "a-shuffled-dataloader"
        )
    loss_before = sum(step["loss"] for step in before[:COMPARED])
    loss_after = sum(step["loss"] for step in after[:COMPARED])
    off = abs(loss_before - loss_after) / (abs(loss_before) or 1.0)
    text = "they draw other examples or noise; the settings of the optimizer, the learning rates, the shapes "
    text += f"and the number of steps agree, and the loss of the first steps within {off:.0%}"
    if off > 0.3:
        return wrong(f"they draw other examples, and the loss of the first steps differs by {off:.0%}")
    return unseen(text, "no-dataloader")


def trained_sampler(run):
    """Whether the sampler of the training examples shuffles."""
    is_shuffled = None
    for row in run.ranks.get(0, []):
        if row["kind"] == "sampler":
            is_shuffled = row["shuffle"]
        elif row["kind"] == "forward":
            return is_shuffled
    return None


# ---- 2. to the end


def to_the_end(runs):
    many = runs.many
    if not many.failed:
        return ok(f"{many.world_size} processes end without an error, after {many.seconds:.0f} s")
    text, row = reason(many)
    text = f"on {many.world_size} processes, {text}"
    if many.is_slow:
        return unseen(text)
    if runs.one.failed:
        text += f"; on one process, {reason(runs.one)[0]}"
    return wrong(text, row)


# ---- 3. the same weights


def same_weights(runs):
    many = runs.many
    ranks = {rank: many.rows(rank, "weights") + many.steps_of(rank) for rank in many.ranks}
    if not ranks.get(0) or not many.steps_of(0):
        return unseen("no step of an optimizer was seen, and no change of the weights by hand")
    for other in list(ranks)[1:]:
        for mine, its in zip(ranks[0], ranks[other], strict=False):
            if found := other_weights(mine, its, other):
                return found
        for mine, its in zip(many.rows(0, "closure"), many.rows(other, "closure"), strict=False):
            if str(mine["loss"]) != str(its["loss"]):
                values = f"{mine['loss']:.6g} on rank 0, {its['loss']:.6g} on rank {other}"
                return wrong(f"the closure of the optimizer returns {values}", "an-optimizer-with-a-closure")
        for mine, its in zip(many.rows(0, "plateau"), many.rows(other, "plateau"), strict=False):
            if str(mine["metric"]) != str(its["metric"]):  # as text, because nan is not equal to nan
                values = f"{mine['metric']:.4g} on rank 0, {its['metric']:.4g} on rank {other}"
                line = many.short(mine["line"])
                return wrong(f"ReduceLROnPlateau gets {values} in {line}", "reducelronplateau")
        if len(ranks[0]) != len(ranks[other]) and not many.failed:
            numbers = f"rank 0 took {len(many.steps_of(0))} steps, rank {other} {len(many.steps_of(other))}"
            return wrong(numbers, "early-stopping-and-the-best-model")
    counts = [len(row["weights"]) for row in ranks[0]]
    if max(counts) == 0:
        return unseen("no weights were seen at a step")
    text = f"{max(counts)} tensors at {len(many.steps_of(0))} steps"
    buffers = max(len(row.get("buffers", {})) for row in ranks[0])
    if buffers:
        text += f", and {buffers} buffers"
    if not any("rates" in row for row in ranks[0]):
        text += "; no optimizer was seen, and so no learning rate"
    return ok(text)


def other_weights(mine, its, other):
    """What differs between rank 0 and another rank after the same step, or nothing."""
    when = f"of rank {other} is not rank 0's"
    when += f" since step {mine['step']}" if mine["step"] else " at the start"
    if mine.get("rates") != its.get("rates"):
        return wrong(f"the learning rate {when}", "a-learning-rate-in-a-plain-variable")
    if name := differing(mine["weights"], its["weights"]):
        if mine.get("gradient") and mine["gradient"] == its.get("gradient"):
            text = f"{name} {when}, although the gradients are: the learning rate must be another one"
            return wrong(text, "a-learning-rate-in-a-plain-variable")
        forwards = mine.get("forwards", [])
        has_sent = all(forward["syncs"] for forward in forwards[-1:])
        return wrong(f"{name} {when}", "the-ten-lines" if has_sent else "gradient-accumulation")
    if name := differing(mine.get("buffers", {}), its.get("buffers", {})):
        return wrong(f"the buffer {name} {when}, before DDP sends it to all", "batch-norm")
    return None


# ---- 4. one writer


def one_writer(runs):
    many = runs.many
    files = files_of(many)
    for path, ranks in files.items():
        if len(ranks) > 1:
            return wrong(f"ranks {sorted(ranks)} write {path}", "saving-weights")
    lines = {}
    for rank in many.ranks:
        for line in lines_of(many, rank):
            lines.setdefault(line, {})[rank] = line
            is_named = re.search(r"\b(rank|process|worker|gpu|cuda|device|node|host|pid)", line, re.I)
            if not is_named:
                lines.setdefault(pattern_of(line), {})[rank] = line
    for found in lines.values():
        if len(found) > 1:
            line = found[min(found)][:90]
            return wrong(f"ranks {sorted(found)} print: {line}", "printing-and-progress-bars")
    names = sorted(path.rpartition("/")[2] for path in files)
    text = "no file is written"
    if names:
        more = f" and {len(names) - 3} more" if len(names) > 3 else ""
        text = f"one process writes {', '.join(names[:3])}{more}"
    prefixed = [many.short(row["path"]) for rank in many.ranks for row in with_prefix(many, rank)]
    if prefixed:
        return ok(f"{text}; the names in {prefixed[0]} begin with module.", "saving-weights")
    return ok(text)


def with_prefix(run, rank):
    return [row for row in run.rows(rank, "file") if row.get("has_prefix")]


def files_of(run):
    """The ranks that have written each file, without temporary files."""
    files = {}
    for rank in run.ranks:
        for row in run.rows(rank, "file"):
            path = re.sub(r"(events\.out\.tfevents).*", r"\1", run.short(row["path"]))
            is_temporary = path.startswith(str(run.folder))
            if not is_temporary and not re.search(r"^/(dev|proc|sys)/|__pycache__|\.lock$", path):
                files.setdefault(path, set()).add(rank)
    return files


def lines_of(run, rank):
    """The lines that a rank prints or logs; of progress bars, only that there is one."""
    lines = []
    for stream in ("stdout", "stderr"):
        for line in re.split(r"[\r\n]+", run.printed.get((rank, stream), "")):
            if "%|" in line or "it/s" in line:
                lines.append("a progress bar")
            elif stream == "stdout" and re.search(r"\w", line):
                lines.append(line.strip())
    for row in run.rows(rank, "log"):
        if row["path"].startswith(str(run.work)) and row["text"] not in lines:
            lines.append(row["text"])
    return lines


NUMBER = re.compile(r"(?<![\w.])[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?(?!\w*\d)|\bnan\b|\binf\b")


def pattern_of(line):
    return NUMBER.sub("#", line)


# ---- 5. own examples


def own_batches(runs):
    many = runs.many
    for first, second in combinations(many.ranks, 2):
        if found := same_examples(many, first, second) or same_random_numbers(many, first, second):
            return found
    orders, sampler = Counter(), None
    for row in many.ranks.get(0, []):
        if row["kind"] == "sampler":
            sampler = row
        elif row["kind"] == "forward" and sampler:  # so it is the sampler of the training examples
            if sampler["epoch"] is not None and sampler["shuffle"]:
                orders[sampler["epoch"]] += 1
            sampler = None
    if max(orders.values(), default=0) > 1:
        text = "two epochs have the same order: set_epoch was not called with another number"
        return wrong(text, "a-shuffled-dataloader")
    if not many.rows(0, "forward"):
        return unseen("no model was called with tensors")
    if many.failed:
        return unseen("the run did not end")
    return whole_epoch(runs)


def same_examples(many, first, second):
    """The loaders, or the models, of two ranks get the same batches."""
    loaded = [trained_batches(many, rank) for rank in (first, second)]
    equal = sum(a["examples"] == b["examples"] for a, b in zip(*loaded, strict=False))
    compared = min(map(len, loaded))
    if compared and 2 * equal >= compared:
        text = f"ranks {first} and {second} load the same batch in {equal} of {compared} steps"
        return wrong(text, "a-shuffled-dataloader")
    pairs = list(zip(many.rows(first, "forward"), many.rows(second, "forward"), strict=False))
    pairs = [pair for pair in pairs if pair[0]["model"] == pair[1]["model"] and not pair[0]["is_derived"]]
    for model in sorted({mine["model"] for mine, _ in pairs}):
        calls = [(mine, its) for mine, its in pairs if mine["model"] == model]
        equal = sum(mine["batch"] == its["batch"] for mine, its in calls)
        if 2 * equal >= len(calls):
            row = "noise-in-the-model" if many.rows(first, "batch") else "no-dataloader"
            row = "columns-of-one-long-text" if any(mine["carries"] for mine, _ in calls) else row
            name = model
            text = f"ranks {first} and {second} give {name} the same batch in {equal} of {len(calls)} passes"
            return wrong(text, row)
    return None


def trained_batches(run, rank):
    """The batches of loaders that went into a forward pass which a backward pass came back to."""
    batches, last = [], None
    for row in run.ranks.get(rank, []):
        if row["kind"] == "batch":
            last = row
        elif row["kind"] == "forward" and last:
            batches.append(last)
            last = None
    return batches


def same_random_numbers(many, first, second):
    """Two ranks draw the same numbers: in the model, or for the examples that they load."""
    drawn = []
    for mine, its in zip(many.rows(first, "forward"), many.rows(second, "forward"), strict=False):
        if mine["model"] == its["model"] and mine["draws"] and its["draws"]:
            drawn.append(mine["random"] == its["random"])
    if drawn and 2 * sum(drawn) >= len(drawn):
        text = f"ranks {first} and {second} draw the same random numbers, for example for dropout"
        return wrong(text, "seeds-and-dropout")

    states = []  # for each rank, the random states with which it has drawn, and for which examples
    for rank in (first, second):
        drawn = {}
        for row in many.drawn.get(rank, []):
            for state in row["drawn"]:
                drawn[state] = row["index"]
        states.append(drawn)
    for source in ("torch", "random", "numpy"):
        mine = {state: index for state, index in states[0].items() if state.startswith(source)}
        its = {state: index for state, index in states[1].items() if state.startswith(source)}
        equal = sum(state in its and its[state] != index for state, index in mine.items())
        if mine and its and 2 * equal >= min(len(mine), len(its)):
            text = f"ranks {first} and {second} draw the same numbers from {source} for different examples, "
            return wrong(f"{text}in {equal} of {len(mine)} batches", "random-augmentation-with-workers")
    return None


def whole_epoch(runs):
    one, many = runs.one, runs.same
    if one.failed or many.failed:
        return unseen(f"no two processes got the same batch; the run to compare with fails: {one.label}")
    is_same = matching(one, many)
    if not is_same:
        return unseen("several processes took no step")
    if all(is_same):
        return ok(f"the examples of each of {len(is_same)} steps are those of one process")
    if not trained_batches(one, 0):
        text = "no two processes got the same batch"
        return ok(text) if all_steps(one) else unseen(text, "no-dataloader")
    alone, together = first_epoch(one), first_epoch(many)
    batch = len(trained_batches(one, 0)[0]["examples"])
    return once(alone, together, many, batch)


def all_steps(run):
    return [run.steps_of(rank) for rank in run.ranks if run.steps_of(rank)]


def first_epoch(run):
    """How often each example was loaded in the first epoch of training, by all ranks."""
    counts = Counter()
    for rank in run.ranks:
        trained = trained_batches(run, rank)
        if trained:
            number = trained[0]["number"]
            for row in run.rows(rank, "batch"):
                if row["number"] == number:
                    counts.update(row["examples"])
    return counts


def once(alone, together, run, batch):
    """Compare an epoch's examples. A sampler may repeat some to fill the last batch, or drop some."""
    row = "a-shuffled-dataloader"
    more = together.total() - alone.total()
    again = sum(max(0, together[example] - max(alone[example], 1)) for example in together)
    new = sum(together[example] for example in together if example not in alone)
    missing = (alone - together).total()
    natural = alone.total() - len(
        alone
    )  # those that one process has used again: the data may hold them twice
    text = f"in an epoch, one process uses {alone.total()} examples, {run.world_size} use {together.total()}"
    if more >= batch or again > max(0, more) + natural:
        return wrong(f"{text}, {again} of them again" if again else text, row)
    if not new and missing >= batch:
        return wrong(f"{text}, {missing} are missing", row)
    if 2 * new > together.total():
        text = "the examples are not those of one process: augmentation?"
        return unseen(text if run.is_exact else f"{text} try --exact", row)
    return ok(text)


def matching(one, many):
    """For each step whether the processes together used the examples that one process used."""
    result = []
    for mine, *theirs in zip(one.steps_of(0), *map(many.steps_of, many.ranks), strict=False):
        counts = [examples_of([mine]), examples_of(theirs)]
        result.append(any(alone and alone == together for alone, together in zip(*counts, strict=True)))
    return result


def examples_of(steps):
    """The rows, and the columns, that went into the models, without what the models have made themselves."""
    counts = Counter(), Counter()
    for step in steps:
        for forward in step["forwards"]:
            if not forward["is_derived"]:
                for dim, examples in enumerate(forward["examples"]):
                    counts[dim].update(examples)
    return counts


# ---- 6. losses and gradients


def same_gradients(runs):
    one, many, exact = runs.one, runs.same, runs.is_exact
    if one.failed or many.failed:
        failed = one if one.failed else many
        return unseen(f"a run to compare with fails ({failed.label}): {reason(failed)[0]}")
    ranks = [many.steps_of(rank) for rank in many.ranks]
    is_same = matching(one, many)
    if not is_same:
        return unseen("one process, or several, took no step: is there a snapshot of an earlier run?")
    if text := undivided(one, many):
        carries = any(forward["carries"] for forward in one.rows(0, "forward"))
        row = "columns-of-one-long-text" if carries else "the-batch-size-used-later"
        return wrong(f'{text}; if you mean that, give the batch size of all with --one "OPTIONS"', row)
    if differing(*(run.rows(0, "weights")[0]["weights"] for run in (one, many))):
        return unseen("the weights at the start are others: no seed was set", "seeds-and-dropout")
    advice = "" if exact else "; try --exact"
    count = COMPARED if exact else EARLY
    for mine, *theirs in list(zip(one.steps_of(0), *ranks, strict=False))[:count]:
        if mine.get("rates") != theirs[0].get("rates"):
            rates = f"{theirs[0]['rates']}, one process's {mine['rates']}"
            return wrong(f"the learning rate of step {mine['step']} is {rates}", "a-learning-rate-schedule")
    found = compare_steps(one.steps_of(0), ranks, is_same, count, lambda: rounding(runs), exact)
    if found.is_wrong:
        return cause(found, many, exact, advice)
    if not found.compared:
        row = "a-shuffled-dataloader" if many.rows(0, "batch") else "no-dataloader"
        row = "noise-in-the-model" if exact else row
        return unseen(f"step 1 uses other examples, because of order, augmentation or noise{advice}", row)
    if not any_gradient(one.steps_of(0)):
        return unseen("all gradients are zero in the first steps: there is nothing to compare")
    text = f"the first {found.compared} steps, with the same examples, differ by {found.furthest:.0e}"
    return ok(f"{text} (allowed: {found.limit:.0e})")


def undivided(one, many):
    """Each of several processes uses batches as large as those of one process."""
    early = 1 if one.rows(0, "batch") else EARLY  # without a loader, the sizes of batches may be random
    for mine, *theirs in list(zip(one.steps_of(0), *map(many.steps_of, many.ranks), strict=False))[:early]:
        shapes = [forward["shape"] for forward in mine["forwards"]]
        if any([forward["shape"] for forward in step["forwards"]] != shapes for step in theirs):
            return ""
    if not shapes:
        return ""
    return f"each of {many.world_size} processes uses a batch of the shape {shapes[0]}, as one process does"


class Found:
    """How far two runs are apart."""

    def __init__(self):
        self.compared = 0  # steps
        self.furthest = 0.0
        self.limit = LIMIT
        self.is_wrong = False


def compare_steps(alone, ranks, is_same, count, rounding, exact=True):
    """Compare gradients and weights, step by step. What rounding does is measured only if it is needed."""
    found = Found()
    grown = None
    for number, (mine, *theirs) in enumerate(list(zip(alone, *ranks, strict=False))[:count], 1):
        if not is_same[number - 1]:
            break
        limit = LIMIT if exact else 1e-2
        off, what = max(distance(mine, theirs[0], "gradients"), distance(mine, theirs[0], "values"))
        if off > limit and exact:
            grown = rounding() if grown is None else grown
            limit = max([limit, *(100 * far for far in grown[:number])])
            if limit > TOO_FAR:
                break
        found.number, found.off, found.what, found.mine, found.theirs = number, off, what, mine, theirs
        found.limit = max(limit, found.limit)
        if off > limit:
            found.is_wrong = True
            return found
        found.furthest, found.compared = max(found.furthest, off), number
    return found


def rounding(runs):
    """How far a run on one process is, after each step, from one whose weights began with other last bits."""
    if runs.nudged.failed:
        return []
    pairs = zip(runs.one.steps_of(0), runs.nudged.steps_of(0), strict=False)
    found = []
    for mine, its in pairs:
        found.append(max(distance(mine, its, "gradients")[0], distance(mine, its, "values")[0]))
    return found


def distance(mine, its, what):
    """How far apart the tensors of two steps are, relative to the norm of all, and which is furthest."""
    mine, its = mine.get(what, {}), its.get(what, {})
    norm = sum(numbers[-1] ** 2 for numbers in mine.values()) ** 0.5 or 1.0
    found = []
    for name in mine:
        if name in its:
            furthest = max(abs(a - b) for a, b in zip(mine[name], its[name], strict=True))
            found.append((furthest / norm, f"{what} of {name}"))
    return max(found, default=(0.0, what))


def cause(found, many, exact, advice):
    """Why gradients differ, as far as it was seen."""
    forwards = list(found.mine["forwards"])
    for step in found.theirs:
        forwards += step["forwards"]
    has_norm = any(forward["has_norm"] for forward in forwards)
    draws = any(forward["draws"] for forward in forwards)
    alone = found.mine["loss"]
    loss = sum(step["loss"] for step in found.theirs) / len(found.theirs)
    losses = f"the mean loss of step {found.number} is {loss:.4g}, one process's {alone:.4g}"
    text = f"{found.what} differ by {found.off:.1e} in step {found.number} (allowed: {found.limit:.0e})"

    if abs(len(found.theirs) * loss - alone) < 0.05 * abs(alone):
        return wrong(losses, "a-loss-that-is-a-sum")
    if clipped := other_norms(many):
        return wrong(f"{text}; {clipped}", "gradient-clipping")
    sizes = set()
    for step in found.theirs:
        shapes = [forward["shape"] for forward in step["forwards"]]
        sizes.add(str(shapes))
    if len(sizes) > 1:
        return wrong(text, "an-incomplete-last-batch")
    if (draws or has_norm) and not exact:
        if abs(loss - alone) > 0.3 * abs(alone):
            return wrong(losses, "the-loss-that-is-printed")
        reason = "the model draws random numbers" if draws else "there is batch norm"
        row = "seeds-and-dropout" if draws else "batch-norm"
        return unseen(f"{reason}; the loss agrees within 30%{advice}", row)
    outside = {f["model"] for step in found.theirs for f in step["forwards"] if is_outside(f)}
    if outside:
        name = ", ".join(sorted(outside))
        return wrong(f"{text}; a pass of {name} does not go through DDP", "the-ten-lines")
    if has_norm:
        return wrong(f"{text}; there is batch norm that each process does for itself", "batch-norm")
    if draws:
        return unseen(f"{text}; the model draws random numbers", "noise-in-the-model")
    return wrong(text, "the-ten-lines")


def is_outside(forward):
    return forward["trains"] and not forward["is_ddp"]


def other_norms(many):
    """Gradients are clipped before they are averaged: the norm is not the same on all ranks."""
    for other in list(many.ranks)[1:]:
        for mine, its in zip(many.rows(0, "clip"), many.rows(other, "clip"), strict=False):
            if mine["norm"] != its["norm"]:
                norms = f"{mine['norm']:.4g} on rank 0, {its['norm']:.4g} on rank {other}"
                return f"{many.short(mine['line'])} clips gradients of the norm {norms}"
    return ""


# ---- 7. printed numbers


def same_numbers(runs):
    if not runs.is_exact:
        return unseen("printed numbers are compared with --exact")
    if runs.one.failed or runs.same.failed:
        return unseen("a run to compare with fails")
    found = compare_numbers(runs.one, runs.same, lambda: runs.nudged)
    if found.wrong:
        return wrong(f"one process prints {found.wrong}", found.row)
    if not found.compared:
        return unseen("rank 0 prints no number that one process prints too")
    return ok(f"{found.compared} numbers agree")


BEFORE = re.compile(
    r"\b(time|took|elapsed|eta|ms|sec|secs|seconds|speed|throughput|fps|mfu|memory)\W*$", re.I
)
BEHIND = re.compile(r"^\s?(s|sec|secs|seconds|ms|us|min|minutes|h|hours|[KMGT]i?B|[a-z]+/s(ec)?)\b", re.I)


def printed_numbers(run):
    """For each kind of line, the numbers in each of its lines, without what is known to be a time."""
    found = {}
    for line in lines_of(run, 0):
        is_named = re.search(r"\b(rank|process|worker|gpu|cuda|device|node|host|pid|world)", line, re.I)
        if is_named or line == "a progress bar":
            continue
        numbers = []
        for match in NUMBER.finditer(line):
            is_time = BEFORE.search(line[: match.start()]) or BEHIND.search(line[match.end() :])
            numbers.append("" if is_time else match[0])
        found.setdefault(pattern_of(line), []).append((line, numbers))
    return found


class Numbers:
    def __init__(self):
        self.compared = 0
        self.wrong = ""
        self.row = ""


def compare_numbers(one, other, again):
    """Compare what two runs print. `again` gives a run like `one`, but for rounding and times."""
    result = Numbers()
    alone, together = printed_numbers(one), printed_numbers(other)
    repeated = None
    for pattern in alone:
        for (line, mine), (its_line, its) in zip(alone[pattern], together.get(pattern, []), strict=False):
            for place, (a, b) in enumerate(zip(mine, its, strict=True)):
                if not a or not b:
                    continue
                result.compared += 1
                if is_near(a, b) or result.wrong:
                    continue
                repeated = printed_numbers(again()) if repeated is None else repeated
                if not is_near(a, b, variation(alone, repeated, pattern, place)):
                    result.wrong = f"{line!r}, {its_word(other)} {its_line!r}"
                    result.row = row_of_numbers(a, b, line, other.world_size)
                    result.wrong += ratio(a, b, other.world_size)
    return result


def its_word(run):
    return "the port" if run.world_size == 1 else f"rank 0 of {run.world_size}"


def is_near(a, b, variation=0.0):
    """Whether two printed numbers are equal, but for the rounding of the last digit."""
    if a == b:
        return True
    if not re.search(r"[.eE]", a + b) or not re.fullmatch(r"[-+\d.eE]+", a + b):
        return variation > 0  # counts, nan, inf
    mantissa, _, exponent = a.lower().partition("e")
    last_digit = 10.0 ** (int(exponent or 0) - len(mantissa))
    one, other = float(a), float(b)
    return abs(one - other) <= max(1.01 * last_digit, 1e-8 * abs(one), 100 * variation)


def variation(alone, repeated, pattern, place):
    """How far a number of this kind of line varies from run to run; infinity for times and the like."""
    furthest = 0.0
    for (_, mine), (_, its) in zip(alone[pattern], repeated.get(pattern, []), strict=False):
        if mine[place] != its[place]:
            one, other = float(mine[place]), float(its[place])
            furthest = max(furthest, abs(one - other))
            if not abs(one - other) < 1e-4 * abs(one):
                return float("inf")
    return furthest


def ratio(a, b, world_size):
    one, other = float(a), float(b)
    if one and abs(other / one - world_size) < 0.03 * world_size:
        return f": {world_size} times as much"
    if one and abs(other / one - 1 / world_size) < 0.03 / world_size:
        return f": 1/{world_size} of it"
    return ""


def row_of_numbers(a, b, line, world_size):
    is_count = not re.search(r"[.eE]", a + b)
    if re.search(r"\b(test|val|valid|validation|eval|acc|accuracy|top|correct|f1|ppl)", line, re.I):
        return "evaluation"
    if is_count and ratio(a, b, world_size):
        return "the-batch-size-used-later"
    return "the-loss-that-is-printed"


# ---- 8. after a kill


def same_after_kill(runs):
    many = runs.many
    total = len(many.steps_of(0))
    if many.failed or total < 2:
        return unseen("the run without a kill must end, and take at least two steps")
    earliest = max(total // 2, first_write(many) + 1)  # a kill before the first snapshot says little about it
    rank = random.randrange(many.world_size)
    step = random.randint(min(earliest, total - 1), total - 1)
    word, text, row = end_of_killed(runs, rank, step, launchers=2)
    if word != "ok":  # under one launcher, too, or because of the two?
        alone = end_of_killed(runs, rank, step, launchers=1)
        return alone if alone[0] != "ok" else (word, text, row)
    return word, text, row


def end_of_killed(runs, rank, step, launchers):
    many = runs.many
    total = len(many.steps_of(0))
    run = runs.killed(rank, step, launchers)
    text = f"rank {rank} was killed at step {step} of {total}"
    row = "snapshots-for-your-script"
    if launchers == 2:
        text += " under two launchers"
        row = "many-machines"
    if run.failed:
        return wrong(f"{text}, and then {reason(run)[0]}", row)
    # With --steps, a run that goes on from a snapshot ends later than the one without a kill.
    final = many.steps_of(0)[-1]
    steps = run.steps_of(0)
    name = "no weight"
    while steps and (name := other_end(final, steps[-1])) and runs.arguments.steps:
        steps.pop()
    if name:
        if runs.again.failed or other_end(final, runs.again.steps_of(0)[-1]):
            return unseen("two runs without a kill end with different weights", "seeds-and-dropout")
        return wrong(f"{text}, and {name} is another one at the end", row)
    if len(steps) < total:
        return ok(f"{text}, and the run went on at step {total - len(steps) + 1}")
    return ok(f"{text}, and the run began again at step 1", "snapshots-for-your-script")


def other_end(final, last):
    return differing(final["weights"], last["weights"]) or differing(final["buffers"], last["buffers"])


def first_write(many):
    """After how many steps a process has written its first file of the training, or 0 if none has."""
    counts = []
    for rank in many.ranks:
        kinds = [row["kind"] for row in many.ranks[rank]]
        begin = kinds.index("step") if "step" in kinds else len(kinds)
        if "file" in kinds[begin:]:
            counts.append(kinds[: kinds.index("file", begin)].count("step"))
    return min(counts, default=0)


# ---- 9. collectives


def same_collectives(runs):
    many = runs.many  # with --only collectives, no other promise has asked for a run yet
    for run in runs.several:
        for pair in combinations(run.ranks, 2):
            if found := other_collective(run, *pair):
                return found
        if mode := other_mode(run):
            return wrong(mode, "evaluation")
        if run.failed:
            return wrong(*reason(run)) if not run.is_slow else unseen(reason(run)[0])
    count = len(many.rows(0, "collective"))
    return ok(f"{count} calls by each process, besides those that DDP makes")


def other_collective(run, first, second):
    """The first collective that only one of two ranks calls, or that they call with other shapes."""
    mine = [row for row in run.rows(first, "collective") if is_of(row, first, second)]
    its = [row for row in run.rows(second, "collective") if is_of(row, first, second)]
    for call, its_call in zip(mine, its, strict=False):
        if call["what"] != its_call["what"]:
            places = [f"{row['what']} in {run.short(row['line'])}" for row in (call, its_call)]
            return wrong(f"rank {first} calls {places[0]}, rank {second} {places[1]}", "evaluation")
    if len(mine) != len(its) and not run.failed:
        rank, calls = (first, mine) if len(mine) > len(its) else (second, its)
        call = calls[min(len(mine), len(its))]
        return wrong(f"only rank {rank} calls {call['what']} in {run.short(call['line'])}", "evaluation")
    return None


def is_of(row, first, second):
    return first in row["ranks"] and second in row["ranks"]
