"""A pytest plugin: a line of JSON for each test that has ended, in the file ROWS, for a row of `make gpu`."""

import json
import os
from pathlib import Path


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
            with Path(os.environ["ROWS"]).open("a") as rows:
                rows.write(json.dumps([name, value, "", verdict]) + "\n")


def pytest_configure(config):
    # Workers of pytest send theirs to this process. A variable would not do: a test's child inherits it.
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Rows())
