"""check.py names what is wrong with a port, accuses no right one, and leaves nothing behind."""

import os
import re
import shutil
import subprocess
import sys
import tomllib

import pytest

from tools.lessons import ROOT

PORT = ROOT / "lessons/port"
WRONG = tomllib.loads((ROOT / "tests/lessons/wrong_ports.toml").read_text())
OPTIONS = {
    "after.py": ["--epochs", "2", "--batch-size", "320", "--workers", "0", "--resume"],
    "after_iterations.py": ["--iterations", "8", "--resume"],
}


@pytest.fixture
def check(tmp_path):
    """Check a script in which `new` stands for `old`: the status, the verdicts, and all that was printed."""

    def check(script, options, old="", new="", **environment):
        mine, temporary = tmp_path / "mine", tmp_path / "temporary"
        for folder in (mine, temporary):
            folder.mkdir()
        text = re.sub(r"% \d+ == 0", "% 4 == 0", (PORT / script).read_text())  # it saves more often
        assert old in text, "the script has changed"
        (mine / "my.py").write_text(text.replace(old, new) if old else text)
        shutil.copy(PORT / "batch_norm.py", mine)
        before = {path.name: path.read_bytes() for path in mine.iterdir()}
        command = [sys.executable, PORT / "check.py", *options, "--", "my.py", *OPTIONS[script]]
        ours = {"TMPDIR": str(temporary), "PYTHONDONTWRITEBYTECODE": "1"}
        environment = os.environ | ours | {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache")} | environment
        done = subprocess.run(command, cwd=mine, env=environment, capture_output=True, text=True, timeout=900)
        assert {path.name: path.read_bytes() for path in mine.iterdir()} == before
        assert not list(temporary.iterdir())
        verdicts = [line[:8].strip() for line in done.stdout.splitlines()[::2]]
        return done.returncode, verdicts, done.stdout + done.stderr

    return check


@pytest.mark.quick("all ranks print", "no DDP")
@pytest.mark.long("sum of losses", "a barrier for one rank", "no optimizer in the checkpoint")
@pytest.mark.night
@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_port_is_named(check, name):
    case = WRONG[name]
    promise, script = case["promise"], case.get("script", "after.py")
    options = ["--only", promise, *(["--exact"] if promise == "gradients" else [])]
    code, verdicts, text = check(script, options, case["old"], case["new"])
    assert verdicts == ["wrong"] and code == 1, text
    assert case.get("says", "") in text


@pytest.mark.long
@pytest.mark.parametrize("script", OPTIONS)
def test_a_right_port_keeps_all_promises(check, tmp_path, script):
    """And a sitecustomize that was there before is still imported."""
    other = tmp_path / "other"
    other.mkdir()
    (other / "sitecustomize.py").write_text("import os\nos.environ['THERE'] = 'yes'\n")
    new = "assert os.environ['THERE'] == 'yes'\nrank, local_rank"
    code, verdicts, text = check(script, ["--exact"], "rank, local_rank", new, PYTHONPATH=str(other))
    assert code == 0 and verdicts == ["ok"] * 6, text


def test_it_names_rows_that_the_page_has():
    rows = set(
        re.findall(r'"([a-z]+(?:-[a-z]+)+|reducelronplateau|evaluation)"', (PORT / "check.py").read_text())
    )
    headings = re.findall(r"^##+ (.*)", (ROOT / "lessons/pages/port.md").read_text(), re.M)
    there = {re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in headings}
    assert len(rows) > 10 and rows <= there
