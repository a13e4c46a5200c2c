"""A pytest plugin for `make gpu`: what no GPU has shown comes first, and each test that has ended is a line
of JSON in the file ROWS, for a row. The file BEFORE has what is known: see seen.py."""

import json
import os
import re
from pathlib import Path

from tools.gpu import seen

# Of tests that are not for this machine. Any other reason to skip one is a row.
NOT_FOR_IT = re.compile(r"needs \d GPUs|needs Linux|has real GPUs")


def name_of(nodeid):
    """As its row has it."""
    test, bracket, case = nodeid.partition("::test_")[2].partition("[")
    return test.replace("_", " ") + bracket + case


class Rows:
    def pytest_runtest_logreport(self, report):
        if report.skipped:
            reason = report.longrepr[2].removeprefix("Skipped: ")
            if not NOT_FOR_IT.match(reason):
                self.write([name_of(report.nodeid), reason, "", "not run"])
        elif report.when == "call" or report.failed:
            noted = [f"{what} {value}" for what, value in report.user_properties]
            said = report.longreprtext.splitlines() or ["it failed"]
            value, verdict = (
                (said[-1], "failed") if report.failed else (", ".join(noted) or "as it says", "ok")
            )
            with Path(os.environ["ROWS"] + ".failed").open("a") as failed:
                failed.write(f"==== {report.nodeid}\n{report.longreprtext}\n" * report.failed)
            self.write([name_of(report.nodeid), value, "", verdict, report.duration])

    def write(self, row):
        with Path(os.environ["ROWS"]).open("a") as rows:
            rows.write(json.dumps(row) + "\n")


def pytest_configure(config):
    # Workers of pytest send theirs to this process. A variable would not do: a test's child inherits it.
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Rows())


def pytest_collection_modifyitems(config, items):
    before = json.loads(Path(os.environ["BEFORE"]).read_text()) if "BEFORE" in os.environ else {}
    known = before.get("known", {})
    if before.get("only new"):
        left_out = [item for item in items if seen.is_seen(name_of(item.nodeid), known)]
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]
    items.sort(key=lambda item: seen.place(name_of(item.nodeid), known, before.get("gpus", 1)))
