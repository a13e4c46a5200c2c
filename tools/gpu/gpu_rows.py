"""A pytest plugin: a line of JSON for each test that has ended, in the file ROWS, for a row of `make gpu`."""

import json
import os
from pathlib import Path


def pytest_runtest_logreport(report):
    is_here = "PYTEST_XDIST_WORKER" not in os.environ  # the others send theirs to this process
    if is_here and not report.skipped and (report.when == "call" or report.failed):
        name = report.nodeid.partition("::test_")[2].replace("_", " ")
        seen = [f"{what} {value}" for what, value in report.user_properties if what != "cost"]
        said = report.longreprtext.splitlines() or ["it failed"]
        value, verdict = (said[-1], "failed") if report.failed else (", ".join(seen) or "as it says", "ok")
        with Path(os.environ["ROWS"]).open("a") as rows:
            rows.write(json.dumps([name, value, "", verdict]) + "\n")
