"""The autograder of an assignment in Classroom 50, which replaces GitHub Classroom (retired in August 2026).

Unpack `make gradescope`'s out/gradescope.zip into CLASSROOM/autograders/ASSIGNMENT of your repository
classroom50, and put this file beside its folder `grader`, as autograder.py. EXERCISES below are those of the
assignment. It runs in the student's own repository: it gives feedback, and whoever may push may forge it.
"""

import datetime
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

EXERCISES = os.environ.get("EXERCISES", "03")
GRADER = Path(__file__).resolve().parent / "grader"
INDEX = "https://download.pytorch.org/whl/cpu"


def graded(folder):
    """What Gradescope would read, as grade.py writes it into this folder. Ends if the machine has failed."""
    python = os.environ.get("PYTHON")
    if python is None:
        python = f"{folder}/venv/bin/python"
        subprocess.run([sys.executable, "-m", "venv", f"{folder}/venv"], check=True)
        install = [python, "-m", "pip", "install", "--quiet", "--extra-index-url", INDEX]
        subprocess.run([*install, "-r", str(GRADER / "requirements.txt")], check=True)
    words = [python, str(GRADER / "tests/exercises/grade.py"), "--one", ".", "--out", f"{folder}/out"]
    words += ["--course", str(GRADER / "course.toml"), "--only", EXERCISES]
    subprocess.run(words, check=True)
    return json.loads(Path(folder, "out", "results.json").read_text())


def main():
    with tempfile.TemporaryDirectory() as folder:
        found = graded(folder)
    # What is hidden until the deadline stays out: a release has no second date.
    seen = [test for test in found["tests"] if test["visibility"] == "visible"]
    tests = [
        {
            "test-name": f"{test['number']} {test['name']}",
            "passed": test["status"] == "passed",
            "score": test["score"],
            "max-score": test["max_score"],
            "output": test["output"],
        }
        for test in seen
    ]
    environment = os.environ
    result = {
        "schema": "classroom50/result/v1",
        "classroom": environment["CLASSROOM"],
        "assignment": environment["ASSIGNMENT"],
        "submission": environment["SUBMISSION_TAG"],
        "commit": environment["COMMIT_URL"],
        "release": environment["RELEASE_URL"],
        "review": environment.get("REVIEW_URL") or environment["COMMIT_URL"],
        "datetime": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "score": sum(test["score"] for test in tests),
        "max-score": sum(test["max-score"] for test in tests),
        "tests": tests,
    }
    Path("result.json").write_text(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
