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
    """The first name under which two dictionaries hold different values, or None."""
    for name in mine:
        if mine[name] != its.get(name):
            return name
    return None


def shapes_of(step):
    return [forward["shape"] for forward in step["forwards"]]


def weights_at_start(run):
    return run.rows(0, "weights")[0]["weights"]


# ---- 1. the script that it came from


def like_the_original(runs):
    if not runs.arguments.original:
        return unseen('name the script for one process: --original "before.py --its --options"')
    if runs.original.failed:
        return unseen(f"the original does not run with --exact: {reason(runs.original)[0]}")
    if runs.one.failed or not runs.one.is_exact:
        return unseen(f"the port does not run on one process with --exact: {reason(runs.one)[0]}")

    before = runs.original.steps_of(0)
    after = runs.one.steps_of(0)
    if not before or not after:
        which = "the port" if before else "the original"
        return unseen(f"{which} took no step: is there a snapshot of an earlier run?")
    return other_plan(runs, before, after) or other_training(runs, before, after)


def other_plan(runs, before, after):
    """What differs before anything is computed (settings, shapes, steps, first weights), or nothing."""
    if difference := other_settings(before, after):
        return wrong(difference)

    mine = shapes_of(before[0])
    its = shapes_of(after[0])
    if mine != its:
        text = f"step 1 of the original gives its models batches of the shapes {mine}, of the port {its}"
        return wrong(text, "the-batch-size-used-later")

    if len(before) != len(after) and mismatch_of_steps(before, after):
        return wrong(f"the original takes {len(before)} steps, the port {len(after)}")

    if differing(weights_at_start(runs.original), weights_at_start(runs.one)):
        text = "they start with different weights: set the same seed before the model is made"
        return unseen(text, "seeds-and-dropout")
    return None


def other_training(runs, before, after):
    """The verdict on the examples, the gradients, the weights and the printed numbers."""
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
    shapes = []
    for step in before:
        if step["forwards"]:
            shapes.append(step["forwards"][0]["shape"])
    incomplete = sum(shape != shapes[0] for shape in shapes)
    return not 0 < len(before) - len(after) <= incomplete


def other_order(runs, before, after):
    """The verdict if step 1 of the port uses other examples than the original's."""
    mine = trained_sampler(runs.original)
    its = trained_sampler(runs.one)
    if mine is not None and its is not None and mine != its:
        text = "the original does not shuffle its examples, and the port does"
        if mine:
            text = "the original shuffles its examples, and the port does not"
        return wrong(text, "a-shuffled-dataloader")

    loss_before = sum(step["loss"] for step in before[:COMPARED])
    loss_after = sum(step["loss"] for step in after[:COMPARED])
    off = abs(loss_before - loss_after) / (abs(loss_before) or 1.0)
    if off > 0.3:
        return wrong(f"they draw other examples, and the loss of the first steps differs by {off:.0%}")
    text = "they draw other examples or noise; the settings of the optimizer, the learning rates, the shapes "
    text += f"and the number of steps agree, and the loss of the first steps within {off:.0%}"
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
    rows = weights_of(many, 0)
    if not rows or not many.steps_of(0):
        return unseen("no step of an optimizer was seen, and no change of the weights by hand")

    for other in list(many.ranks)[1:]:
        if found := other_training_of(many, other):
            return found

    tensors = 0
    buffers = 0
    has_rates = False
    for row in rows:
        tensors = max(tensors, len(row["weights"]))
        buffers = max(buffers, len(row.get("buffers", {})))
        has_rates = has_rates or "rates" in row

    if tensors == 0:
        return unseen("no weights were seen at a step")
    text = f"{tensors} tensors at {len(many.steps_of(0))} steps"
    if buffers:
        text += f", and {buffers} buffers"
    if not has_rates:
        text += "; no optimizer was seen, and so no learning rate"
    return ok(text)


def weights_of(run, rank):
    """What a rank held at the start and after each step."""
    return run.rows(rank, "weights") + run.steps_of(rank)


def other_training_of(many, other):
    """What differs between the training of rank 0 and of another rank, or nothing."""
    for mine, its in zip(weights_of(many, 0), weights_of(many, other), strict=False):
        if found := other_weights(mine, its, other):
            return found
    return other_values(many, other) or other_number_of_steps(many, other)


def other_values(many, other):
    """What the optimizer or a scheduler gets on one rank and not on another, or nothing. Values are compared
    as text, because nan is not equal to nan."""
    for mine, its in zip(many.rows(0, "closure"), many.rows(other, "closure"), strict=False):
        if str(mine["loss"]) != str(its["loss"]):
            values = f"{mine['loss']:.6g} on rank 0, {its['loss']:.6g} on rank {other}"
            return wrong(f"the closure of the optimizer returns {values}", "an-optimizer-with-a-closure")
    for mine, its in zip(many.rows(0, "plateau"), many.rows(other, "plateau"), strict=False):
        if str(mine["metric"]) != str(its["metric"]):
            values = f"{mine['metric']:.4g} on rank 0, {its['metric']:.4g} on rank {other}"
            line = many.short(mine["line"])
            return wrong(f"ReduceLROnPlateau gets {values} in {line}", "reducelronplateau")
    return None


def other_number_of_steps(many, other):
    if len(weights_of(many, 0)) != len(weights_of(many, other)) and not many.failed:
        numbers = f"rank 0 took {len(many.steps_of(0))} steps, rank {other} {len(many.steps_of(other))}"
        return wrong(numbers, "early-stopping-and-the-best-model")
    return None


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
        has_sent = not forwards or forwards[-1]["syncs"]
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
        text = f"one process writes {', '.join(names[:3])}"
    if len(names) > 3:
        text += f" and {len(names) - 3} more"
    if path := first_with_prefix(many):
        return ok(f"{text}; the names in {many.short(path)} begin with module.", "saving-weights")
    return ok(text)


def first_with_prefix(run):
    """The first file whose names begin with "module.", because DDP's own names were saved."""
    for rank in run.ranks:
        for row in run.rows(rank, "file"):
            if row.get("has_prefix"):
                return row["path"]
    return ""


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
    if has_repeated_order(many):
        text = "two epochs have the same order: set_epoch was not called with another number"
        return wrong(text, "a-shuffled-dataloader")
    if not many.rows(0, "forward"):
        return unseen("no model was called with tensors")
    if many.failed:
        return unseen("the run did not end")
    return whole_epoch(runs)


def has_repeated_order(run):
    """Whether two epochs of training had the same number, and so the same order."""
    epochs = set()
    sampler = None
    for row in run.ranks.get(0, []):
        if row["kind"] == "sampler":
            sampler = row
        elif row["kind"] == "forward" and sampler:  # so it is the sampler of the training examples
            if sampler["epoch"] is not None and sampler["shuffle"]:
                if sampler["epoch"] in epochs:
                    return True
                epochs.add(sampler["epoch"])
            sampler = None
    return False


def same_examples(many, first, second):
    """The loaders, or the models, of two ranks get the same batches."""
    loaded = list(zip(trained_batches(many, first), trained_batches(many, second), strict=False))
    equal = 0
    for mine, its in loaded:
        equal += mine["examples"] == its["examples"]
    if loaded and 2 * equal >= len(loaded):
        text = f"ranks {first} and {second} load the same batch in {equal} of {len(loaded)} steps"
        return wrong(text, "a-shuffled-dataloader")

    calls = {}  # for each model, its calls on both ranks
    for mine, its in zip(many.rows(first, "forward"), many.rows(second, "forward"), strict=False):
        if mine["model"] == its["model"] and not mine["is_derived"]:
            calls.setdefault(mine["model"], []).append((mine, its))

    for model in sorted(calls):
        equal = 0
        carries = False
        for mine, its in calls[model]:
            equal += mine["batch"] == its["batch"]
            carries = carries or mine["carries"]
        if 2 * equal >= len(calls[model]):
            text = f"ranks {first} and {second} give {model} the same batch in {equal} of "
            text += f"{len(calls[model])} passes"
            row = "noise-in-the-model" if many.rows(first, "batch") else "no-dataloader"
            if carries:
                row = "columns-of-one-long-text"
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

    for source in ("torch", "random", "numpy"):
        mine = states_of(many, first, source)
        its = states_of(many, second, source)
        equal = 0
        for state, index in mine.items():
            equal += state in its and its[state] != index
        if mine and its and 2 * equal >= min(len(mine), len(its)):
            text = f"ranks {first} and {second} draw the same numbers from {source} for different examples, "
            return wrong(f"{text}in {equal} of {len(mine)} batches", "random-augmentation-with-workers")
    return None


def states_of(run, rank, source):
    """The random states of one source with which a rank has drawn, and for which examples."""
    states = {}
    for row in run.drawn.get(rank, []):
        for state in row["drawn"]:
            if state.startswith(source):
                states[state] = row["index"]
    return states


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
        return ok(text) if one.steps_of(0) else unseen(text, "no-dataloader")
    alone = first_epoch(one)
    together = first_epoch(many)
    batch = len(trained_batches(one, 0)[0]["examples"])
    return once(alone, together, many, batch)


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
    again = 0
    new = 0
    for example, times in together.items():
        again += max(0, times - max(alone[example], 1))
        if example not in alone:
            new += times
    more = together.total() - alone.total()
    missing = (alone - together).total()
    # Those that one process has used again: the data may hold them twice.
    natural = alone.total() - len(alone)
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
        is_same = False
        for alone, together in zip(examples_of([mine]), examples_of(theirs), strict=True):
            if alone and alone == together:
                is_same = True
        result.append(is_same)
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
    if differing(weights_at_start(one), weights_at_start(many)):
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
    steps = list(zip(one.steps_of(0), *map(many.steps_of, many.ranks), strict=False))
    for mine, *theirs in steps[:early]:
        shapes = shapes_of(mine)
        for step in theirs:
            if shapes_of(step) != shapes:
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
        found.number = number
        found.off = off
        found.what = what
        found.mine = mine
        found.theirs = theirs
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
    mine = mine.get(what, {})
    its = its.get(what, {})
    norm = sum(numbers[-1] ** 2 for numbers in mine.values()) ** 0.5 or 1.0
    found = []
    for name in mine:
        if name in its:
            furthest = max(abs(a - b) for a, b in zip(mine[name], its[name], strict=True))
            found.append((furthest / norm, f"{what} of {name}"))
    return max(found, default=(0.0, what))


def cause(found, many, exact, advice):
    """Why gradients differ, as far as it was seen."""
    has_norm = False
    draws = False
    outside = set()  # the models with a pass on several processes that does not go through DDP
    sizes = set()
    for step in [found.mine, *found.theirs]:
        for forward in step["forwards"]:
            has_norm = has_norm or forward["has_norm"]
            draws = draws or forward["draws"]
    for step in found.theirs:
        sizes.add(str(shapes_of(step)))
        for forward in step["forwards"]:
            if forward["trains"] and not forward["is_ddp"]:
                outside.add(forward["model"])
    alone = found.mine["loss"]
    loss = sum(step["loss"] for step in found.theirs) / len(found.theirs)
    losses = f"the mean loss of step {found.number} is {loss:.4g}, one process's {alone:.4g}"
    text = f"{found.what} differ by {found.off:.1e} in step {found.number} (allowed: {found.limit:.0e})"

    if abs(len(found.theirs) * loss - alone) < 0.05 * abs(alone):
        return wrong(losses, "a-loss-that-is-a-sum")
    if clipped := other_norms(many):
        return wrong(f"{text}; {clipped}", "gradient-clipping")
    if len(sizes) > 1:
        return wrong(text, "an-incomplete-last-batch")
    if (draws or has_norm) and not exact:
        if abs(loss - alone) > 0.3 * abs(alone):
            return wrong(losses, "the-loss-that-is-printed")
        reason = "the model draws random numbers" if draws else "there is batch norm"
        row = "seeds-and-dropout" if draws else "batch-norm"
        return unseen(f"{reason}; the loss agrees within 30%{advice}", row)
    if outside:
        name = ", ".join(sorted(outside))
        return wrong(f"{text}; a pass of {name} does not go through DDP", "the-ten-lines")
    if has_norm:
        return wrong(f"{text}; there is batch norm that each process does for itself", "batch-norm")
    if draws:
        return unseen(f"{text}; the model draws random numbers", "noise-in-the-model")
    return wrong(text, "the-ten-lines")


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
    alone = printed_numbers(one)
    together = printed_numbers(other)
    repeated = None
    for pattern in alone:
        pairs = zip(alone[pattern], together.get(pattern, []), strict=False)
        for (line, mine), (its_line, its) in pairs:
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
    decimals = mantissa.partition(".")[2]
    last_digit = 10.0 ** (int(exponent or 0) - len(decimals))
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
    mine = common_calls(run, first, second)
    its = common_calls(run, second, first)
    for call, its_call in zip(mine, its, strict=False):
        if call["what"] != its_call["what"]:
            text = f"rank {first} calls {place_of(run, call)}, rank {second} {place_of(run, its_call)}"
            return wrong(text, "evaluation")

    compared = min(len(mine), len(its))
    for rank, calls in ((first, mine), (second, its)):
        if len(calls) > compared and not run.failed:
            return wrong(f"only rank {rank} calls {place_of(run, calls[compared])}", "evaluation")
    return None


def common_calls(run, rank, other):
    """The collectives that a rank calls in groups which the other rank belongs to, too."""
    calls = []
    for row in run.rows(rank, "collective"):
        if rank in row["ranks"] and other in row["ranks"]:
            calls.append(row)
    return calls


def place_of(run, call):
    return f"{call['what']} in {run.short(call['line'])}"
