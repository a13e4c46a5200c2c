"""Three tiers of tests, and rooms.

A mark says when a test runs: `quick` in `make test`, `long` in CI too, `night` only in `make test-all`. A
test without one is quick. A mark may name cases of a parametrized test; one without names takes the rest:

    @pytest.mark.quick("2")
    @pytest.mark.long("4")
    @pytest.mark.night

rooms.toml says which files belong together. With --since, a run also has the night's tests of the rooms that
a change has touched, and executes the notebooks that are stale, as far as its core seconds last.
"""

import pytest

import rooms
from rooms import TIERS

SECONDS = rooms.TABLE["since"]["core_seconds"]
NEW = 60  # core seconds that a test which is long, or the night's, is taken to cost until it is measured
PASSED = "rungs/passed"  # the name, in pytest's cache, of the tests that passed
AFRESH = "tests/notebooks/test_notebooks.py::test_it_runs_afresh_and_shows_what_is_stored"


def set_tiers(items):
    there, named = {}, {}
    for item in items:
        case = item.callspec.id if hasattr(item, "callspec") else None
        marks = [mark for mark in item.iter_markers() if mark.name in TIERS]
        named_here = [mark.name for mark in marks if case in mark.args]
        rest = [mark.name for mark in marks if not mark.args]
        item.tier = min(named_here or rest or ["quick"], key=TIERS.index)
        test = item.nodeid.partition("[")[0]
        there.setdefault(test, set()).add(case)
        named.setdefault(test, set()).update(name for mark in marks for name in mark.args)
    for test, names in named.items():
        # A name that fits no case would leave out more than is meant. (Who asks for one case gets that one.)
        if names - there[test] and (len(there[test]) > 1 or None in there[test]):
            raise pytest.UsageError(f"{test} has no case {', '.join(sorted(names - there[test]))}")


class Selection:
    """Leaves out what the options do not ask for."""

    def __init__(self, config):
        self.tier, self.rooms = config.getoption("--tier"), config.getoption("--room")
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
        kept = {item.nodeid for item in within if TIERS.index(item.tier) <= TIERS.index(self.tier)}
        kept |= set(self.added([item.nodeid for item in within if item.nodeid not in kept]))
        if config.getoption("--not-again"):
            kept -= set(config.cache.get(PASSED, []))
        gone = [item for item in items if item.nodeid not in kept]
        items[:] = [item for item in items if item.nodeid in kept]
        config.hook.pytest_deselected(items=gone)

    def added(self, later):
        """Which tests of later tiers are run too: stale notebooks, then the others, the cheapest first."""
        known, left, chosen = rooms.costs(), SECONDS, []
        price = {name: known.get(name, [NEW])[0] for name in later}
        of_rooms = {name for name in later if rooms.of_test(name) in self.changed}
        of_rooms -= {name for name in of_rooms if name.startswith(AFRESH)}  # theirs is to be stale
        wanted = [name for name in later if name in self.stale or name in of_rooms]
        for name in sorted(wanted, key=lambda name: (name not in self.stale, price[name], name)):
            if price[name] <= left:
                left -= price[name]
                chosen.append(name)
        return chosen
