"""What a Mac lacks, taken away on Linux, and Rungs in it; and the language of its make and its bash.

The surroundings are tools/testbed/mac. What they cannot have is said there.
"""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys

import psutil
import pytest

from tools.lessons import ROOT
from tools.testbed import mac
from tools.testbed.command_environment import own_torchrun
from tools.testbed.processes import wait_for

SMALL = ("--epochs", 2, "--train-size", 240, "--batch-size", 24, "--test-size", 60)
# Its name does not resolve, as errors.md says of a Mac in a VPN.
TORCHRUN = own_torchrun("--standalone", "--local-addr", "127.0.0.1", "--nproc-per-node", 2)
in_the_surroundings = pytest.mark.skipif(bool(mac.why_not()), reason=mac.why_not())


def call(*command, environment=None, limit=240):
    return subprocess.run(
        mac.words(*command),
        cwd=ROOT,
        env=os.environ | (environment or {}),
        capture_output=True,
        text=True,
        timeout=limit,
    )


@in_the_surroundings
def test_the_surroundings_lack_what_a_mac_lacks():
    result = call(sys.executable, ROOT / "tests/probes/on_a_mac.py")
    assert json.loads(result.stdout) == {
        "platform": "darwin",
        "start method": "spawn",
        "of linux": [],
        "seqpacket": "EIDRM",  # 43, which is EPROTONOSUPPORT on macOS
        "stream": "",
        "name": True,
        "interfaces": ["lo0"],
        "proc": False,
        "temporary": 61,  # 57 on a Mac, whose sockets may have a path four shorter
        "programs": [None] * 5,
        "sed": True,
        "psutil": True,
    }, result.stderr


@in_the_surroundings
@pytest.mark.long("03,04")
@pytest.mark.night("all")
@pytest.mark.parametrize("chosen", ["03,04", "all"])
def test_make_run(tmp_path, chosen):
    """03 starts processes by itself, and torchrun starts 04's, on a host whose name does not resolve."""
    words = ["make", "run", f"PYTHON={sys.executable}", f"OUT={tmp_path}", f"LESSONS=01,{chosen}"]
    if chosen == "all":
        words[-1] = "LESSONS=all"
    small = " ".join(map(str, SMALL[:2] if chosen == "all" else SMALL))
    result = call(*words, f"ARGUMENTS={small}", limit=1800)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "Redirects are currently not supported" not in result.stdout
    assert "cannot be retrieved" not in result.stdout


@in_the_surroundings
@pytest.mark.long
def test_the_preflight():
    """By the page's own command, after errors.md's line for a name that does not resolve."""
    words = own_torchrun("--standalone", "--nproc-per-node", 2, ROOT / "lessons/launch/preflight.py")
    result = call(*words, environment={"PET_LOCAL_ADDR": "127.0.0.1"})
    assert result.returncode == 0, result.stdout + result.stderr
    assert "offers 127.0.0.1 (lo0); has lo0 127.0.0.1" in result.stdout
    assert re.search(r"^  memory     at least .* GB free", result.stdout, re.M)
    assert re.search(r"^  cores      \d+ for ranks 0 to 1", result.stdout, re.M)


@in_the_surroundings
@pytest.mark.long
def test_ctrl_c_ends_a_run_and_all_its_processes(tmp_path):
    script = ROOT / "lessons/04_ddp_torchrun.py"
    words = mac.words(*TORCHRUN, script, "--epochs", 3000, "--out", tmp_path)
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    run = subprocess.Popen(words, cwd=ROOT, start_new_session=True, **options)
    try:
        assert any("epoch  1" in line for line in run.stdout)
        os.killpg(run.pid, signal.SIGINT)  # as the terminal sends it: to all of them
        run.communicate(timeout=60)  # until nobody holds the pipe any more
        assert run.returncode != 0
    finally:
        if run.poll() is None:
            os.killpg(run.pid, signal.SIGKILL)


# What is interrupted, and a word of the processes that are then at work.
INTERRUPTED = {
    "check": ("check EX=03.2a SUBMISSION=solutions", "worker.py"),
    "test": ("test 'ARGUMENTS=-n1 tests/lessons/test_one_screen.py'", "torch.distributed.run"),
}


@in_the_surroundings
@pytest.mark.long
@pytest.mark.parametrize("name", INTERRUPTED)
def test_ctrl_c_leaves_no_process(tmp_path, name):
    """The namespace would end them all, so they are looked for before it ends."""
    target, at_work = INTERRUPTED[name]
    probe = f"{sys.executable} {ROOT / 'tests/probes/alive_here.py'}"
    script = f"trap : INT; make -s {target} PYTHON={sys.executable} OUT={tmp_path}; echo; {probe}"
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "PYTEST"))
    }
    words = mac.words("sh", "-c", script)
    run = subprocess.Popen(words, cwd=ROOT, env=environment, start_new_session=True, **options)
    try:
        wait_for(lambda: any(at_work in " ".join(words) for words in words_below(run.pid)), 300)
        os.killpg(run.pid, signal.SIGINT)
        said, _ = run.communicate(timeout=120)
        assert json.loads(said.splitlines()[-1]) == [], said
        assert "Traceback" not in said
    finally:
        if run.poll() is None:
            os.killpg(run.pid, signal.SIGKILL)


def words_below(pid):
    for process in psutil.Process(pid).children(recursive=True):
        with contextlib.suppress(psutil.Error):
            yield process.cmdline()


@in_the_surroundings
@pytest.mark.night
def test_chaos():
    """By true launches, since a process that has imported torch must not fork there."""
    result = call(sys.executable, "-m", "tools.makers.chaos", 2, limit=400)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "2 kills and resumes" in result.stdout


SCRIPTS = [
    "lessons/launch/two_terminals.sh",
    "tools/install_for_tests.sh",
    "tools/newest.sh",
    "tools/python.sh",
]
# What bash has since 4.0, and make since 3.82. macOS has 3.2 and 3.81.
OF_BASH_4 = r"declare -A|local -n|mapfile|readarray|coproc|wait -n|\|&|&>>|;;&|\[\[ -v|\$\{\w+[,^]|\$\{\w+@"
OF_MAKE_4 = r"^\.ONESHELL|^\.RECIPEPREFIX|!=|::=|\$\(file |\$\(guile |&:|^undefine|^private|\$\(shell .*<<<"
# GNU's options that BSD's programs do not have.
OF_GNU = (
    r"sed (-\w*[irz]\b|--)|grep -\w*P|date -d|stat -c|readarray|xargs -(d|a)\b|head -n -|sort -R|cp -\w*u\b"
)


@pytest.mark.parametrize("name", SCRIPTS)
def test_scripts_are_in_the_language_of_bash_3_and_of_bsd(name):
    text = (ROOT / name).read_text()
    assert not re.findall(OF_BASH_4, text) and not re.findall(OF_GNU, text)


def test_the_makefile_is_in_the_language_of_make_3_81():
    text = (ROOT / "Makefile").read_text()
    assert not re.findall(OF_MAKE_4, text, re.M) and not re.findall(OF_GNU, text)
