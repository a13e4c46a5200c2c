"""A pytest plugin for `make gpu`: the longest tests come first, and each that has ended is a line of JSON in
the file ROWS, for a row."""

import json
import os
from pathlib import Path

# Those with the most processes, and those that start several runs: begun last, they would end alone.
LONGEST = (
    "[17-",
    "_twice_if_",
    "[12-",
    "[13-",
    "_recipe_",
    "_other_device",
    "[06a",
    "make_run",
    "[15-",
    "[16-",
)


class Rows:
    def pytest_runtest_logreport(self, report):
        if not report.skipped and (report.when == "call" or report.failed):
            test, bracket, case = report.nodeid.partition("::test_")[2].partition("[")
            name = test.replace("_", " ") + bracket + case
            seen = [f"{what} {value}" for what, value in report.user_properties if what != "cost"]
            said = report.longreprtext.splitlines() or ["it failed"]
            value, verdict = (
                (said[-1], "failed") if report.failed else (", ".join(seen) or "as it says", "ok")
            )
            value += f"; {report.duration:.0f} s"
            with Path(os.environ["ROWS"] + ".failed").open("a") as failed:
                failed.write(f"==== {report.nodeid}\n{report.longreprtext}\n" * report.failed)
            with Path(os.environ["ROWS"]).open("a") as rows:
                rows.write(json.dumps([name, value, "", verdict]) + "\n")


def pytest_configure(config):
    # Workers of pytest send theirs to this process. A variable would not do: a test's child inherits it.
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Rows())


def pytest_collection_modifyitems(items):
    def place(item):
        names = [n for n, name in enumerate(LONGEST) if name in item.nodeid]
        return names[0] if names else len(LONGEST)

    items.sort(key=place)
