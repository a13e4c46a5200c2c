"""Your machine beside the machine of the page: a table, and what may explain the difference."""

import statistics

from tools.makers.bench import report
from tools.makers.bench.formatting import middle, ratio, spread, sums, table

LARGEST = str(64 * report.MIB)


def speeds(rows):
    """The numbers to compare of which more is better, by name: their repeats."""
    speed = rows.get("speed", {})
    names = {
        "lesson 01, images/s": "lesson 01",
        "lesson 04 on two processes, images/s": "its own model, 2",
        "large model on two processes, images/s": "a large one, 2",
    }
    found = {}
    for words, name in names.items():
        if name in speed:
            found[words] = speed[name]
    return found


def times(rows):
    """The numbers to compare of which less is better, in seconds."""
    found = {}
    if "lesson 04" in rows.get("start", {}):
        found["command to first step of lesson 04, s"] = sums(rows["start"]["lesson 04"])
    if "lesson 06b, wide" in rows.get("saving", {}):
        found["snapshot of 64 MB, s"] = rows["saving"]["lesson 06b, wide"]["seconds"]
    if "recovery" in rows:
        found["training again after a kill, s"] = rows["recovery"]
    if "2" in rows.get("all-reduce", {}):
        two = rows["all-reduce"]["2"]
        found["all-reduce of 64 MiB, s"] = two["gloo"][LARGEST]
        found["copy of 64 MiB, s"] = two["copy"][LARGEST]
    return found


def shared(mine, ours):
    """The numbers that both have: a name, my repeats, the page's."""
    return [(name, mine[name], ours[name]) for name in mine if name in ours]


def beside_ours(about, rows):
    """A table of your machine and the page's, and what may explain the difference."""
    our_run, our_rows = report.read(report.named_file())
    lines = []
    factors = {}
    for name, mine, ours in shared(speeds(rows), speeds(our_rows)):
        factors[name] = ratio(mine, ours)
        shown = [middle(mine), middle(ours), spread(ours)]
        lines.append([name, *shown, f"{factors[name]:.2f}"])
    for name, mine, ours in shared(times(rows), times(our_rows)):
        factors[name] = ratio(ours, mine)
        digits = 3 if statistics.median(mine) < 0.5 else 1
        shown = [middle(mine, 1, digits), middle(ours, 1, digits), spread(ours, 1, digits)]
        lines.append([name, *shown, f"{factors[name]:.2f}"])
    if not lines:
        return "Nothing that was measured is on the page."
    head = ["your machine beside ours", "yours", "ours", "our range", "times as fast"]
    return f"{table(head, lines)}\n\n{why(about, our_run, factors)}"


def why(mine, ours, factors):
    """What differs, from what both files say about their machines."""
    slowest = min(factors, key=factors.get)
    fastest = max(factors, key=factors.get)
    said = [
        f"Yours is {factors[slowest]:.2f} ({slowest.partition(',')[0]}) to {factors[fastest]:.2f} times "
        f"({fastest.partition(',')[0]}) as fast as ours, {report.where(ours)}."
    ]
    cores = mine["machine"]["cores"]
    load = mine["load_before"]
    if load > 0.25 * cores:
        said.append(f"Other programs were busy when you began (load {load}): measure again without them.")
    if mine["stolen"] > 0.02:
        share = f"{mine['stolen']:.0%}"
        said.append(f"The host of your virtual machine gave {share} of your processor time to others.")
    if cores > ours["machine"]["cores"]:
        said.append("You have more cores, so the threads of two processes wait less for each other.")
    yours = mine["versions"]["torch"]
    if yours != ours["versions"]["torch"]:
        said.append(f"Your torch is {yours}, ours {ours['versions']['torch']}.")

    memory = factors.get("copy of 64 MiB, s", 1)
    if factors[fastest] < 1.25 * factors[slowest]:
        said.append(
            "All rows differ by about the same factor, as they do when the cores are faster or slower."
        )
    elif memory * 1.25 < factors.get("lesson 01, images/s", 1):
        said.append("Your memory is slower in relation to your cores, which counts most where much is sent.")
    return " ".join(said)
