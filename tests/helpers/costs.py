"""What each test costs: `make costs` writes its core seconds, its seconds and its tier to tests/costs.json.

Each test process has a control group of its own (cgroup), in which the kernel counts all that the process
starts, however it ends. A test that starts a run is charged for all ranks of it.
"""

import json
import os
from collections import Counter
from pathlib import Path

import pytest

GROUPS = Path("/sys/fs/cgroup")


class Meter:
    """Charges each test that this process runs."""

    def __init__(self):
        folder = GROUPS / "cpuacct" if (GROUPS / "cpuacct").is_dir() else GROUPS
        self.folder = folder / f"rungs-{os.getpid()}"
        try:
            self.folder.mkdir()
            (self.folder / "cgroup.procs").write_text(str(os.getpid()))
        except OSError as error:
            raise pytest.UsageError(f"--costs needs a control group, as root on Linux: {error}") from None

    def seconds(self):
        if (file := self.folder / "cpuacct.usage").exists():
            return int(file.read_text()) / 1e9
        return int((self.folder / "cpu.stat").read_text().split()[1]) / 1e6

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_setup(self, item):
        self.before = self.seconds()
        return (yield)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_teardown(self, item):
        result = yield
        cost = round(self.seconds() - self.before, 2)
        item.user_properties.append(("cost", [cost, item.tier]))
        return result


class Book:
    """Keeps what the tests of all processes cost."""

    def __init__(self, path):
        self.path, self.costs, self.wall = path, {}, Counter()

    def pytest_runtest_logreport(self, report):
        self.wall[report.nodeid] += report.duration
        if cost := dict(report.user_properties).get("cost") if report.when == "teardown" else None:
            core_seconds, tier = cost
            self.costs[report.nodeid] = [core_seconds, round(self.wall[report.nodeid], 2), tier]

    def pytest_sessionfinish(self):
        lines = [f"{json.dumps(name)}: {json.dumps(cost)}" for name, cost in sorted(self.costs.items())]
        self.path.write_text("{\n" + ",\n".join(lines) + "\n}\n")
