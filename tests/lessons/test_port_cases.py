"""check.py judges eleven right ports of the kinds that people have, and wrong versions of them.

Its runs are forks here (tests/helpers/forked_check.py). True launches are in test_port_check.py.
"""

import os
import re
import shutil
import subprocess
import sys
import tomllib

import pytest

from tools.lessons import ROOT

PORTS = ROOT / "tests/probes/ported_scripts"
WRONG = tomllib.loads((PORTS / "wrong.toml").read_text())
RIGHT = ["vae", "gan", "siamese", "sequence", "words", "line"]
RIGHT += ["text", "contrastive", "deep", "policy", "trainer"]


def judged(folder, script, *options, changes=()):
    """The verdicts on a script in which `changes` were made: for each promise, the word and the reason."""
    for path in [*PORTS.glob("*.py"), ROOT / "lessons/port/batch_norm.py"]:
        shutil.copy(path, folder)
    path = folder / f"{script}.py"
    text = path.read_text()
    for old, new in changes:
        assert text.count(old) >= 1, f"{script} has changed: {old}"
        text = text.replace(old, new)
    path.write_text(text)
    command = [sys.executable, "-m", "tests.helpers.forked_check", *options, "--", path.name]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "TMPDIR": "/tmp"}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=600)
    found = re.findall(r"^(ok|wrong|not seen) +(\d)\. .*\n +(.*)$", done.stdout, re.M)
    verdicts = {}
    is_wrong = False
    for word, number, reason in found:
        verdicts[int(number)] = word, reason
        is_wrong = is_wrong or word == "wrong"
    assert verdicts, done.stdout + done.stderr
    assert done.returncode == is_wrong
    return verdicts


@pytest.mark.quick("gan")
@pytest.mark.long("words")
@pytest.mark.night
@pytest.mark.parametrize("script", RIGHT)
def test_a_right_port_is_not_accused(tmp_path, script):
    verdicts = judged(tmp_path, script, "--exact")
    assert verdicts.pop(1)[0] == "not seen"  # no original was named
    assert {word for word, _ in verdicts.values()} == {"ok"} and len(verdicts) == 8, verdicts


@pytest.mark.long(
    "the same random numbers", "a lost shuffle", "all ranks log", "an exception", "the test loss of one rank"
)
@pytest.mark.night
@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_version_is_wrong_for_its_reason(tmp_path, name):
    case = WRONG[name]
    options = ["--only", case["promise"]]
    if case.get("exact", True):
        options.append("--exact")
    if "original" in case:
        options += ["--original", f"{case['original']}.py"]
    old, new = case["old"], case["new"]
    changes = zip(old, new, strict=True) if isinstance(old, list) else [(old, new)]
    ((word, reason),) = judged(tmp_path, case["script"], *options, changes=changes).values()
    assert word == "wrong", reason
    assert case.get("says", "") in reason
    assert reason.endswith(f"port.md#{case['row']})" if "row" in case else reason[-1:])
