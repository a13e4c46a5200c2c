"""`make check` leaves a process behind. All that a student sees is as without, and it goes when it should."""

import contextlib
import os
import pty
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import warm

from lessons import ROOT
from processes import living, wait_for

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere no process stays behind")
WARM = "tests/exercises/warm.py"
PYTEST = ["-m", "pytest", "tests/exercises", "-p", "no:cacheprovider"]
NOT_THEIRS = ("MFLAGS", "CI", "PYTEST_CURRENT_TEST", "PYTHONUNBUFFERED")
STANDARD = ("stdin", "stdout", "stderr")
HANGS = "import time\nprint('now', flush=True)\nwhile True:\n    time.sleep(0.1)\n"


class Student:
    """Somebody who checks exercises: in an environment and with a folder for temporary files of their own."""

    def __init__(self, temporary):
        self.temporary, self.clone = Path(temporary), ROOT
        names = [name for name in os.environ if "MAKE" not in name and name not in NOT_THEIRS]
        kept = {name: os.environ[name] for name in names}
        self.environment = kept | {"TMPDIR": str(temporary), "OMP_NUM_THREADS": "1"}

    def start(self, *words, warm=True, **more):
        out = ["--out", str(self.temporary / "out")]
        command = [sys.executable, *([WARM] if warm else []), *PYTEST, *words, *out]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | more
        return subprocess.Popen(command, cwd=self.clone, env=self.environment, text=True, **pipes)

    def check(self, *words, **more):
        with self.start(*words, **more) as run:
            out, err = run.communicate(timeout=120)
        return run.returncode, seconds_left_out(out), err

    def make(self, *words):
        command = ["make", "check", f"PYTHON={sys.executable}", f"OUT={self.temporary}/out", *words]
        run = subprocess.run(command, cwd=self.clone, env=self.environment, capture_output=True, text=True)
        return run.stdout + run.stderr

    def asks_for_none(self):
        """The cheapest command: it checks nothing. Returns the server behind it, if there is one."""
        assert "there is no exercise 99" in self.check("--only", "99")[2]
        return self.server() if self.servers() else None

    def servers(self):
        """The process behind each socket: only who may enter the folder can ask."""
        return [server for path in self.temporary.glob("rungs-check-*/socket") if (server := behind(path))]

    def server(self):
        (server,) = self.servers()
        return server


def behind(path):
    with socket.socket(socket.AF_UNIX) as connection:
        try:
            connection.connect(str(path))
        except OSError:
            return None
        return struct.unpack("<iII", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]


def seconds_left_out(text):
    """Without the time that pytest needed, and the line that it fills up. After a minute it says it twice."""
    return re.sub(r"(?m)=*(.*) in [0-9.]+s(?: \([0-9:]+\))?(.*?)=*$", r"\1\2", text)


def alive(pids):
    return {one.pid for one in living()} & set(pids)


def below(pid):
    there, found, more = list(living()), set(), {pid}
    while more := {one.pid for one in there if one.parent in more}:
        found |= more
    return found


def called(pids, word):
    """Those of these processes that have this word in their command. bwrap has the words of what it runs."""
    found = set()
    for pid in pids:
        with contextlib.suppress(OSError):
            command = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
            found |= {pid} if command[0] != "bwrap" and any(word in one for one in command) else set()
    return found


def hangs(server):
    """Whether its run has come so far that two ranks hang: nursery, its copy, and they."""
    return len(called(below(server), "nursery.py")) == 4


@pytest.fixture
def student(monkeypatch):
    """In a folder with a short name: that of a socket must not be longer than a hundred letters."""
    with tempfile.TemporaryDirectory(prefix="warm-", dir="/tmp", ignore_cleanup_errors=True) as folder:
        monkeypatch.setenv("TMPDIR", folder)
        student = Student(folder)
        yield student
        for server in student.servers():
            os.kill(server, signal.SIGTERM)
            wait_for(lambda server=server: not alive([server]))


@pytest.fixture
def clone(tmp_path):
    """What `make check` needs of the repository."""
    ignored = shutil.ignore_patterns("__pycache__", "results", "pictures")
    for name in ("tests", "tools", "lessons", "solutions"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=ignored)
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


def hanging(folder):
    """Of 03.1a, the first run is one of two ranks."""
    folder.mkdir()
    (folder / "03_average_gradients.py").write_text(HANGS)
    return "--only", "03.1a", "--submission", str(folder)


SAME = {
    "an exercise": (("--only", "03", "--submission", "solutions", "--seed", "7"), 0, "12 of 12 points"),
    "no exercise": (("--only", "99"), 4, "there is no exercise 99"),
}


@pytest.mark.quick("no exercise")
@pytest.mark.night
@pytest.mark.parametrize("name", SAME)
def test_the_same_bytes_and_the_same_status(name, student):
    """Of an exercise that is solved, and of words that mean nothing."""
    words, code, said = SAME[name]
    warm, cold = student.check(*words), student.check(*words, warm=False)
    assert warm == cold and warm[0] == code and said in warm[1] + warm[2]
    there = student.server()
    assert student.check(*words) == warm
    assert student.server() == there, "another server was needed"


@pytest.mark.night
def test_the_same_on_a_terminal(student):
    """Of a check that fails: colours, and lines as wide as it is. As make does, with -q: without it, pytest
    tells a terminal how many tests it has found so far, twice a second."""
    assert on_a_terminal(student, True) == on_a_terminal(student, False)
    assert student.server()


def on_a_terminal(student, warm):
    ours, theirs = pty.openpty()
    student.environment |= {"TERM": "xterm-256color", "COLUMNS": "70"}
    words = ("-q", "--only", "03.1a", "--hints")
    with student.start(*words, warm=warm, **dict.fromkeys(STANDARD, theirs)) as run:
        os.close(theirs)
        text = b""
        with contextlib.suppress(OSError):
            while more := os.read(ours, 10_000):
                text += more
        os.close(ours)
    assert b"\x1b[31m" in text
    return run.returncode, seconds_left_out(text.decode())


@pytest.mark.long
def test_make_leaves_it_behind_unless_it_is_told_not_to(student):
    plain = student.environment
    for words, more in (("WARM=no", {}), ("CI=yes", {"CI": "yes"})):
        student.environment = plain | more
        assert "there is no exercise 99" in student.make("EX=99", words)
        assert student.servers() == [] and list(student.temporary.iterdir()) == []
    student.environment = plain
    assert "there is no exercise 99" in student.make("EX=99")
    assert student.server()


@pytest.mark.night
def test_what_has_changed_ends_it(student, clone):
    """A file of the judge, or the environment; what a terminal is called does not."""
    student.clone = clone
    first = student.asks_for_none()
    student.environment |= {"TERM": "dumb", "WINDOWID": "7", "COLUMNS": "60"}
    assert student.asks_for_none() == first
    judge = clone / "tests/exercises/judge/exercises.py"
    judge.write_text(judge.read_text().replace("there is no exercise", "here there is no exercise"))
    _, _, err = student.check("--only", "99")
    second = student.server()
    assert "here there is no exercise 99" in err and second != first and not alive([first])
    student.environment["OMP_NUM_THREADS"] = "2"
    assert student.asks_for_none() != second and not alive([second])


@pytest.mark.long
def test_what_it_is_made_of(clone, monkeypatch):
    monkeypatch.setattr(warm, "HERE", clone / "tests/exercises")
    monkeypatch.setattr(warm, "ROOT", clone)
    seen = [warm.made_of()]
    of_exercises = ("judge/wording.py", "inside/wire.py", "03b_ddp/drive.py", "03b_ddp/exercise.toml")
    others = ("tests/conftest.py", "tests/helpers/lines.py", "tools/forks.py", "pyproject.toml")
    for name in (*(f"tests/exercises/{name}" for name in of_exercises), *others):
        before = (clone / name).stat()
        (clone / name).write_text((clone / name).read_text().swapcase())  # as long as it was, and as old
        os.utime(clone / name, ns=(before.st_atime_ns, before.st_mtime_ns))
        seen.append(warm.made_of())
    monkeypatch.setenv("TORCH_SHOW_CPP_STACKTRACES", "1")
    seen.append(warm.made_of())
    monkeypatch.setattr(warm, "PACKAGES", [])
    seen.append(warm.made_of())
    assert len(set(seen)) == len(seen)
    monkeypatch.setenv("SHLVL", "9")
    assert warm.made_of() == seen[-1]


@pytest.mark.night
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_command_that_is_ended_leaves_nothing(number, student, tmp_path):
    server = student.asks_for_none()
    with student.start(*hanging(tmp_path / "hangs")) as run:
        wait_for(lambda: hangs(server))
        during = below(server)
        run.send_signal(number)
        out = run.communicate(timeout=60)[0]
    assert run.returncode == (2 if number == signal.SIGINT else -9)
    assert ("KeyboardInterrupt" in out) == (number == signal.SIGINT)
    wait_for(lambda: not alive(during))
    wait_for(lambda: len(called(below(server), ".py")) == 1)  # a nursery for the next run, and no more
    assert student.check("--only", "03.1a", "--submission", "solutions")[0] == 0
    assert student.server() == server


@pytest.mark.night
def test_a_run_that_crashes_does_not_end_it(student, tmp_path):
    """And a second command meanwhile does by itself what it is to do."""
    server = student.asks_for_none()
    with student.start(*hanging(tmp_path / "hangs")) as run:
        wait_for(lambda: hangs(server))
        (copy,) = called(below(server), WARM)
        os.kill(copy, signal.SIGSTOP)
        student.asks_for_none()
        assert run.poll() is None
        os.kill(copy, signal.SIGKILL)
        run.communicate(timeout=60)
    assert run.returncode == -signal.SIGKILL
    assert student.check("--only", "03.1a", "--submission", "solutions")[0] == 0
    assert student.server() == server


@pytest.mark.night
def test_it_ends_when_it_is_idle(student):
    program = f"import sys; sys.path[0] = '{ROOT}/tests/exercises'; import warm; warm.IDLE = 10; warm.main()"
    words = [sys.executable, "-c", program, *PYTEST, "--only", "99"]
    run = subprocess.run(words, cwd=ROOT, env=student.environment, capture_output=True, text=True)
    assert "there is no exercise 99" in run.stderr
    server = student.server()
    all_of_it = {server} | below(server)
    wait_for(lambda: not alive(all_of_it))
    assert list(student.temporary.iterdir()) == []


@pytest.mark.long
def test_no_two_users_and_no_two_clones_share_one(student, clone, monkeypatch):
    ours = warm.folder()
    assert ours.stat().st_mode & 0o77 == 0
    with monkeypatch.context() as other:
        other.setattr(warm, "ROOT", clone)
        assert warm.folder() != ours
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    with pytest.raises(OSError):  # it has another name, and the one who has made it is somebody else
        warm.folder()
    assert len(list(student.temporary.iterdir())) == 3


def test_nobody_else_may_enter_its_folder(student):
    """Whoever made it, or opened it: what is to be found there is not asked."""
    place, elsewhere = warm.folder(), student.temporary / "elsewhere"
    place.chmod(0o755)
    assert student.asks_for_none() is None
    place.rmdir()
    elsewhere.mkdir(mode=0o700)
    place.symlink_to(elsewhere)
    assert student.asks_for_none() is None


def test_nothing_is_done_for_another_user_or_from_inside_of_a_run(monkeypatch):
    """A submission is a process below the server. At level 1 it is of the same user, and finds the socket."""

    def asked():
        ours, theirs = socket.socketpair()
        with ours, theirs:
            data = b'{"words": []}'
            socket.send_fds(theirs, [struct.pack("<I", len(data))], [0])
            theirs.sendall(data)
            request, files = warm.received(ours)
            for file in files:
                os.close(file)
            return request

    with monkeypatch.context() as outside:
        outside.setattr(warm, "above", lambda pid: set())
        assert asked() == {"words": []}
        user = os.getuid()
        outside.setattr(os, "getuid", lambda: user + 1)
        assert asked() is None
    assert asked() is None
    with subprocess.Popen(["sleep", "60"]) as child:
        assert os.getpid() in warm.above(child.pid)
        child.kill()
    assert os.getpid() in warm.above(child.pid)  # who has gone cannot say who it was
    assert os.getpid() not in warm.above(os.getppid())


def test_it_is_not_in_what_grades():
    for name in ("grade.py", "jobs.py", "selftest.py"):
        text = (ROOT / "tests/exercises" / name).read_text()
        assert "warm" not in re.findall(r"(?:import|from) (\w+)", text)
