"""A container as Gradescope and others start them: some cores and some memory for all of its processes."""

import contextlib
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

import pytest

HERE = Path("/sys/fs/cgroup")
PERIOD = 100_000  # microseconds


@dataclass
class Container:
    memory: Path  # the folders of its two control groups
    cores: Path
    ended_for_memory: int = 0

    @property
    def enter(self):
        """What a shell runs to be in it, with all that it starts."""
        return f"echo $$ > {self.memory}/cgroup.procs; echo $$ > {self.cores}/cgroup.procs"

    def most_memory(self):
        return int((self.memory / "memory.max_usage_in_bytes").read_text())

    def count_ended(self):
        for line in (self.memory / "memory.oom_control").read_text().splitlines():
            name, _, count = line.partition(" ")
            if name == "oom_kill":
                self.ended_for_memory = int(count)


@contextlib.contextmanager
def container(cores, gigabytes):
    if not os.access(HERE / "memory/cgroup.procs", os.W_OK) or not os.access(HERE / "cpu", os.W_OK):
        pytest.skip("needs control groups of version 1, and root")
    made = Container(
        Path(tempfile.mkdtemp(prefix="rungs-", dir=HERE / "memory")),
        Path(tempfile.mkdtemp(prefix="rungs-", dir=HERE / "cpu")),
    )
    try:
        (made.memory / "memory.limit_in_bytes").write_text(str(gigabytes << 30))
        (made.cores / "cpu.cfs_period_us").write_text(str(PERIOD))
        (made.cores / "cpu.cfs_quota_us").write_text(str(cores * PERIOD))
        yield made
        made.count_ended()
    finally:
        made.memory.rmdir()
        made.cores.rmdir()
