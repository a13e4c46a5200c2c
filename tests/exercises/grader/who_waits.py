"""Who waits for whom, in words: what the ranks did when a run came to nothing."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

Ranks = dict[int, dict[str, Any]]  # what is seen of each rank, by its number
Event = dict[str, Any]

STACK = re.compile(r'^  File "(.+)", line (\d+) in ', re.M)  # as faulthandler writes it
POINT = ("send", "recv", "isend", "irecv")


def names(ranks: Iterable[int]) -> str:
    """`rank 1`, `ranks 0, 2 and 3`"""
    *others, last = map(str, ranks)
    return f"ranks {', '.join(others)} and {last}" if others else f"rank {last}"


def call(event: Event) -> str:
    """`all_reduce number 3 (line 31 of 04_sampler.py)`, `recv number 1 from rank 2 (line ...)`"""
    where = f" ({event['where']})" if event.get("where") else ""
    way = "to" if "send" in event["event"] else "from"
    peer = f" {way} rank {event['peer']}" if type(event.get("peer")) is int else ""
    return f"{event['event']} number {event.get('nth', event['number'])}{peer}{where}"


def begun(ranks: Ranks) -> Iterator[tuple[int, Event]]:
    for rank, one in ranks.items():
        for event in one["events"]:
            if event.get("phase") == "begin":
                yield rank, event


def not_received(ranks: Ranks) -> str:
    """Messages that were begun and not asked for yet, in words. Empty where it is not known
    who talks to whom."""
    counts = Counter()
    for rank, event in begun(ranks):
        name, peer = event["event"], event.get("peer")
        if name not in (*POINT, "batch_isend_irecv"):
            continue
        if type(peer) is not int:
            return ""
        if "send" in name:
            counts[rank, peer] += 1
        else:
            counts[peer, rank] -= 1
    lines = []
    for (source, target), count in sorted(counts.items()):
        if count > 0:
            lines.append(f"{count} from rank {source} to rank {target}")
    return f"; messages that were not received: {', '.join(lines)}" if lines else ""


def first_calls(ranks: Ranks) -> Ranks:
    """Of each rank that is in a call, the one that it is in."""
    found = {}
    for rank, one in ranks.items():
        if one["inside"]:
            found[rank] = one["inside"][0]
    return found


def waiting(ranks: Ranks, but: Iterable[int]) -> str:
    """Words about who waits for whom, beside the ranks that are the cause."""
    inside = first_calls(ranks)
    for rank in but:
        inside.pop(rank, None)
    if not inside:
        return ""
    first = next(iter(inside))
    verb = "was" if len(inside) == 1 else "were"
    return f"; {names(inside)} {verb} waiting for it in {call(inside[first])}"


def unequal(ranks: Ranks, number: int = 0) -> str:
    """The first collective from this number on in which the ranks did not do the same, or no words."""
    calls = {}
    for rank, event in begun(ranks):
        if event["event"] not in POINT and event["number"] >= number:
            calls.setdefault(event["number"], {})[rank] = event
    for number in sorted(calls):
        words = difference(calls[number])
        if words:
            return words
    return ""


def difference(of_ranks: dict[int, Event]) -> str:
    """Words for a call, or a tensor, that is another one on some of the ranks; no words if all are alike."""
    kinds, called = set(), []
    sizes, gave = set(), []
    for rank, event in of_ranks.items():
        kinds.add(event["event"])
        called.append(f"rank {rank} called {call(event)}")
        sizes.add(event["size"])
        gave.append(f"rank {rank} gives {event['size']} numbers")
    if len(kinds) > 1:
        return f"the ranks do not make the same calls: {', '.join(called)}"
    first = next(iter(of_ranks.values()))
    if len(sizes) > 1 and first["event"] in ("all_reduce", "broadcast", "reduce"):
        return f"the ranks give {call(first)} tensors of different size: {', '.join(gave)}"
    return ""


def standing(one: dict[str, Any], files: dict[str, str]) -> str:
    """The innermost line of the student's files in which a rank was when it was ended, after a space:
    ` at line 31 of 04_sampler.py: time.sleep(9)`. No words where that is not known."""
    for name, line in STACK.findall(one.get("stack", "")):
        if name in files:
            words = f" at line {line} of {name}"
            lines = files[name].splitlines()
            text = lines[int(line) - 1].strip() if 0 < int(line) <= len(lines) else ""
            if text:
                words += f": `{text}`"
            return words
    return ""


def stood(ranks: Ranks, files: dict[str, str]) -> str:
    places = []
    of_each = []
    for rank, one in ranks.items():
        place = standing(one, files)
        places.append(place)
        of_each.append(f"rank {rank} was{place or ' somewhere else'}")
    if len(set(places)) == 1:
        verb = "was" if len(places) == 1 else "were"
        return f"{names(ranks)} {verb}{places[0] or ' outside of torch.distributed'}"
    return ", ".join(of_each)


def different_roots(ranks: Ranks) -> str:
    """The first broadcast for which the ranks have named different sources, in words, or nothing. gloo may
    come through it, and then all keep what they have."""
    calls = {}
    for rank, event in begun(ranks):
        if type(event.get("root")) is int:
            calls.setdefault((event["number"], event["event"]), {})[rank] = event
    for key in sorted(calls):
        roots, lines = set(), []
        for rank, event in calls[key].items():
            roots.add(event["root"])
            lines.append(f"rank {rank} with src={event['root']}")
        if len(roots) > 1:
            first = next(iter(calls[key].values()))
            return f"the ranks call {call(first)} with different values of src: {', '.join(lines)}"
    return ""


def stuck(ranks: Ranks, missing: Ranks, files: dict[str, str]) -> str:
    """All that still run wait for others, and nothing moves."""
    wait = first_calls(missing)
    returned = [rank for rank in ranks if rank not in missing]
    if not wait:
        those = f"{names(returned)} returned, and " if returned else ""
        return f"the run was stuck: {those}{stood(missing, files)}"
    if returned:
        return some_returned(ranks, returned, wait)
    return none_returned(ranks, wait, files)


def earliest(wait: dict[int, Event]) -> int:
    """Which rank is in the earliest call."""
    return min(wait, key=lambda rank: (wait[rank]["number"], rank))


def some_returned(ranks: Ranks, returned: list[int], wait: dict[int, Event]) -> str:
    first = earliest(wait)
    verb = "was" if len(wait) == 1 else "were"
    it = "it" if len(returned) == 1 else "them"
    done = f"rank {first} was done with " if wait[first]["event"] in POINT else ""
    before = f"{names(returned)} returned before {done}{call(wait[first])}"
    return f"{before}; {names(wait)} {verb} waiting for {it}{not_received(ranks)}"


def none_returned(ranks: Ranks, wait: dict[int, Event], files: dict[str, str]) -> str:
    first = wait[earliest(wait)]
    # Somebody may be in a call that is none of torch.distributed, time.sleep for one.
    elsewhere = {rank: one for rank, one in ranks.items() if rank not in wait}
    if elsewhere:
        return f"{stood(elsewhere, files)}; {names(wait)} waited in {call(first)}"

    # At the earliest call of those that wait, they may not do the same.
    is_collective = False
    lines = []
    for rank, event in wait.items():
        lines.append(f"rank {rank} in {call(event)}")
        if event["number"] == first["number"] and event["event"] not in POINT:
            is_collective = True
    words = unequal(ranks, first["number"]) if is_collective else ""
    if words:
        return words
    return f"all ranks are waiting and none can go on: {'; '.join(lines)}{not_received(ranks)}"
