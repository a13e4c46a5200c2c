"""Three tiers of tests, and rooms.

A mark says when a test runs: `quick` in `make test`, `long` in CI too, `night` only in `make test-all`. A
test without one is quick. A mark may name cases of a parametrized test; one without names takes the rest:

    @pytest.mark.quick("2")
    @pytest.mark.long("4")
    @pytest.mark.night

rooms.toml says which files belong together. With --since, a run also has the night's tests of the rooms that
a change has touched, and executes the notebooks that are stale, as far as its core seconds last.
"""

from collections import Counter

import pytest

import rooms
from rooms import TIERS

SECONDS = rooms.TABLE["since"]["core_seconds"]
NEW = 60  # core seconds that a test which is long, or the night's, is taken to cost until it is measured
AFRESH = "tests/notebooks/test_notebooks.py::test_it_runs_afresh_and_shows_what_is_stored"


def tier_of(item):
    """The tier of a test, or of its case."""
    case = item.callspec.id if hasattr(item, "callspec") else None
    marks = [mark for mark in item.iter_markers() if mark.name in TIERS]
    named = {mark.name for mark in marks if case in mark.args}
    rest = {mark.name for mark in marks if not mark.args}
    for tiers in (named, rest):
        if len(tiers) > 1:
            raise pytest.UsageError(f"{item.nodeid} is marked {' and '.join(sorted(tiers))}")
    if not named and not rest and "quick" in {mark.name for mark in marks}:
        raise pytest.UsageError(f"{item.nodeid}: when do the cases run that `quick` does not name?")
    return next(iter(named or rest or ["quick"]))


def check_names(items):
    """A name that fits no case would leave out more than is meant."""
    there, named = {}, {}
    for item in items:
        names = {name for mark in item.iter_markers() if mark.name in TIERS for name in mark.args}
        named.setdefault(item.nodeid.partition("[")[0], set()).update(names)
        case = item.callspec.id if hasattr(item, "callspec") else None
        there.setdefault(item.nodeid.partition("[")[0], set()).add(case)
    for test, names in named.items():
        # (Who asks for one case gets that one.)
        if names - there[test] and (len(there[test]) > 1 or None in there[test]):
            raise pytest.UsageError(f"{test} has no case {', '.join(sorted(names - there[test]))}")


def mark_tiers(items):
    """Leave each test one mark without names, so that `-m long`, for one, chooses what it should."""
    check_names(items)
    for item in items:
        tier = tier_of(item)
        item.own_markers[:] = [mark for mark in item.own_markers if mark.name not in TIERS]
        item.add_marker(tier)


def tier_marked(item):
    return next(mark.name for mark in item.iter_markers() if mark.name in TIERS)


def affordable(names, known, seconds):
    """Which of these tests fit into so many core seconds: those of the cheapest room first, and of a room the
    cheapest first."""
    price = {name: known[name][0] if name in known else NEW for name in names}
    room = {name: rooms.of_test(name) for name in names}
    of_room = Counter()
    for name in names:
        of_room[room[name]] += price[name]
    chosen = []
    for name in sorted(names, key=lambda name: (of_room[room[name]], room[name], price[name], name)):
        if price[name] <= seconds:
            seconds -= price[name]
            chosen.append(name)
    return chosen, seconds


class Selection:
    """Leaves out what the options do not ask for, and says so when the run ends."""

    def __init__(self, config):
        self.tier, self.rooms = config.getoption("--tier"), config.getoption("--room")
        for name in self.rooms:
            if name not in rooms.ROOMS:
                raise pytest.UsageError(f"there is no room {name!r}: there are {', '.join(rooms.ROOMS)}")
        self.counts = {"left out": {}, "added": {}, "no time": {}}  # tests of each room
        self.changed, self.stale = [], []
        # All test processes must choose the same: the first one looks, and tells the others.
        if hasattr(config, "workerinput"):
            self.changed, self.stale = config.workerinput["since"]
        elif base := config.getoption("--since"):
            import digests
            import notebooks  # what it imports takes a second

            self.changed = rooms.changed(base)
            old = [path.stem for path in notebooks.NOTEBOOKS if digests.stale(notebooks.read(path))]
            self.stale = [f"{AFRESH}[{stem}]" for stem in old]

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node):
        node.workerinput["since"] = self.changed, self.stale

    @pytest.hookimpl(trylast=True)  # after -k and -m: what they leave out was not asked for
    def pytest_collection_modifyitems(self, config, items):
        within = [item for item in items if not self.rooms or rooms.of_test(item.nodeid) in self.rooms]
        later = TIERS[TIERS.index(self.tier) + 1 :]
        kept = {item.nodeid for item in within if tier_marked(item) not in later}
        others = [item.nodeid for item in within if item.nodeid not in kept]
        added, no_time = self.added(others)
        kept |= set(added)
        left_out = set(others) - kept
        for name, some in (("left out", left_out), ("added", added), ("no time", no_time)):
            self.counts[name] = dict(Counter(map(rooms.of_test, some)))
        if gone := [item for item in items if item.nodeid not in kept]:
            items[:] = [item for item in items if item.nodeid in kept]
            config.hook.pytest_deselected(items=gone)

    def added(self, names):
        """Which tests of later tiers are run too, and which would be if there were time."""
        known = rooms.costs() if self.changed or self.stale else {}
        chosen, seconds = affordable([name for name in names if name in self.stale], known, SECONDS)
        of_rooms = [name for name in names if rooms.of_test(name) in self.changed and name not in self.stale]
        of_rooms = [name for name in of_rooms if not name.startswith(AFRESH)]  # theirs is to be stale
        chosen += affordable(of_rooms, known, seconds)[0]
        return chosen, [name for name in names if name in [*self.stale, *of_rooms] and name not in chosen]

    def pytest_sessionfinish(self, session):
        if hasattr(session.config, "workeroutput"):
            session.config.workeroutput["counts"] = self.counts

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node):
        """All workers leave out the same tests: what one of them says holds for the run."""
        self.counts = getattr(node, "workeroutput", {}).get("counts", self.counts)

    def lines(self):
        """What is to be said at the end."""
        said = {
            "left out": "left out",
            "added": "run too, because of what has changed",
            "no time": "not run for want of time, though their files have changed",
        }
        for name, words in said.items():
            if counts := self.counts[name]:
                yield f"{words}: {listed(counts)}"
                if name == "left out":
                    yield "make test-all runs all tests, make test-room ROOM=judge those of a room"


def listed(counts):
    """412 tests (judge 210, site 202)."""
    names = ", ".join(f"{room or 'no room'} {count}" for room, count in sorted(counts.items()))
    return f"{sum(counts.values())} tests ({names})"
