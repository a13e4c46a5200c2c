"""The next grader, of plain pytest: see tests/exercises/grader/README.md."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

EXERCISES = Path(__file__).resolve().parent / "exercises"
ROOT = EXERCISES.parent.parent
NAME = "03_average_gradients.py"
SOLUTION, STARTER = (ROOT / folder / NAME for folder in ("solutions", "lessons/exercises"))
ALL = sorted(path.stem.removeprefix("test_") for path in EXERCISES.glob("*/test_*.py"))

# What is put in front of the starter, which gets no point, and words of what a student reads.
READS = f"""
import glob, os, socket
found = []
for top in ("/root", "/home", "/work", "{ROOT}", "{EXERCISES}"):
    found += [path for path in glob.glob(top + "/**/*.py", recursive=True) if "/lib/python" not in path]
for place in (("1.1.1.1", 80), ("127.0.0.1", 22)):
    try:
        socket.create_connection(place, 1)
        found.append(str(place))
    except OSError:
        pass
raise RuntimeError("found " + (" ".join(found)[:900] or "nothing"))
"""
HOSTILE = {
    "ends at import": ("import os\nos._exit(0)\n", "ended its process before your function returned"),
    "patches what compares": (
        "import builtins, sys, torch, types\n"
        "torch.equal = torch.allclose = lambda *words, **named: True\n"
        "builtins.AssertionError = type('Other', (Exception,), {})\n"
        "for name in ('pytest', 'grader', 'grader.ranks'):\n"
        "    sys.modules[name] = types.ModuleType(name)\n",
        "not written yet",
    ),
    "writes results": (
        "import json, os\n"
        "for descriptor in range(3, 256):\n"
        "    try:\n"
        "        os.write(descriptor, json.dumps({'value': {'state': {}}}).encode() + b'\\n')\n"
        "    except OSError:\n"
        "        pass\n"
        "for folder in ('.', '/tmp', '/tmp/run'):\n"
        "    try:\n"
        "        open(folder + '/results.json', 'w').write('{}')\n"
        "    except OSError:\n"
        "        pass\n",
        "",
    ),
    "kills what it can": (
        "import os, signal\n"
        "for pid in [os.getppid(), *range(1, 40_000), -1]:\n"
        "    if pid != os.getpid():\n"
        "        try:\n"
        "            os.kill(pid, signal.SIGKILL)\n"
        "        except OSError:\n"
        "            pass\n",
        "",
    ),
    "reads what it can": (READS, "RuntimeError: found nothing"),
    "takes memory, and forks": (
        "import os, torch\n"
        "for _ in range(3):\n"
        "    os.fork()\n"
        "kept = []\n"
        "while True:\n"
        "    kept.append(torch.ones(1 << 24))\n",
        "",
    ),
    "prints a report": (
        "print('\\x1b[2J03 DDP in its simplest form: 12 of 12 points\\n  ok   03.1a')\n"
        "raise RuntimeError('no\\n  ok   03.1a      2 of 2\\x1b[2J')\n",
        "rank 0 raised RuntimeError",
    ),
    "prints slowly": (
        "import time\nwhile True:\n    print('.', end='', flush=True)\n    time.sleep(0.2)\n",
        "had not returned after",
    ),
}


def grade(folder, *words):
    """The results by check, what was printed, and the status."""
    results = folder / "results.json"
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "grader.plugin",
        "--noconftest",
        "-p",
        "no:cacheprovider",
    ]
    command += ["-q", EXERCISES / "03_average_gradients/test_03.py", "--results", results, *words]
    environment = os.environ | {"PYTHONPATH": str(EXERCISES), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    found = json.loads(results.read_text())["03"] if results.exists() else []
    return {one["id"]: one for one in found}, done.stdout + done.stderr, done.returncode


@pytest.mark.long
def test_the_solution_gets_all_points_and_a_hang_is_named(tmp_path):
    found, text, status = grade(tmp_path, "--submission", SOLUTION.parent)
    assert status == 0 and "12 of 12 points" in text
    assert {one["status"] for one in found.values()} == {"passed"}
    line = "    has_one = torch.tensor("
    wrong = SOLUTION.read_text().replace(line, f"    if dist.get_rank() == 1:\n        return\n{line}")
    (tmp_path / NAME).write_text(wrong)
    found, text, status = grade(tmp_path, "--submission", tmp_path, "--only", "03.2a")
    assert status == 1 and "0 of 3 points" in text
    at = wrong.splitlines().index("    dist.all_reduce(has_one)") + 1
    words = f"rank 1 returned before all_reduce number 1 (line {at} of {NAME}); rank 0 was waiting for it"
    assert words in found["03.2a"]["came"]


@pytest.mark.long("reads what it can")
@pytest.mark.night
@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_submission_gets_nothing_and_harms_nothing(tmp_path, name):
    attack, words = HOSTILE[name]
    canary = tmp_path / "canary"
    canary.write_text("here")
    submission = tmp_path / "submission"
    submission.mkdir()
    (submission / NAME).write_text(attack + STARTER.read_text())
    began = time.monotonic()
    found, text, status = grade(tmp_path, "--submission", submission, "--only", "03.1a,03.2a")
    assert status == 1 and sum(one["score"] for one in found.values()) == 0, text
    assert words in found["03.1a"]["came"] and "\x1b" not in text, text
    assert "infrastructure" not in {one["status"] for one in found.values()}, text
    assert canary.read_text() == "here" and [path.name for path in submission.iterdir()] == [NAME]
    assert time.monotonic() - began < 120


@pytest.mark.night
@pytest.mark.alone
@pytest.mark.parametrize("exercise", ALL)
def test_each_mutant_falls_at_the_check_that_names_it(exercise):
    done = subprocess.run(
        [sys.executable, EXERCISES / "mutants.py", exercise], capture_output=True, text=True, cwd=EXERCISES
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]
