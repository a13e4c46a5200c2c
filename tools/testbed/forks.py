"""Start a lesson in 0.1 seconds instead of 4: from a process that has imported torch already, and forks.

The fork runs the lesson's file, torchrun's agent and the process groups as they are. Whether a lesson starts
from nothing and ends without a trace is for tests with true launches. The server reads one JSON line for each
run from its standard input, and answers with one.
"""

import contextlib
import functools
import json
import multiprocessing.util
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import types
import uuid
import warnings
from pathlib import Path
from types import SimpleNamespace

from tools.testbed.command_environment import own_torchrun, python_path, short_folder
from tools.testbed.processes import alive, session

ROOT = Path(__file__).resolve().parents[2]
LESSONS = ROOT / "lessons"


class Commands:
    """What ends a command, and says whether anything of it is left."""

    def finish(self, words, folder, environment=None, limit=240):
        """Run a command, which may fail, to its end. Nothing of it may be alive then."""
        code, left = self.run(list(map(str, words)), folder, environment or {}, limit)
        stdout = Path(folder, ".out").read_text()
        stderr = Path(folder, ".err").read_text()
        assert not left, f"still alive after the run, or after {limit} seconds: {left}; it wrote:\n{stderr}"
        return SimpleNamespace(code=code, stdout=stdout, stderr=stderr, out=Path(folder, "out"))


class Launches(Commands):
    """The same commands, started from nothing, for a system where a process that has imported torch must not
    fork. On macOS, threads of Apple's libraries are then missing in the fork, and the system ends it."""

    def run(self, words, folder, environment, limit):
        Path(folder).mkdir(parents=True, exist_ok=True)
        if Path(words[0]).name == "torchrun":
            words = own_torchrun(*words[1:])
        else:
            words = [sys.executable, *words[1:]]
        mark = f"rungs-{uuid.uuid4().hex}"
        temporary = short_folder("launch-")
        ours = {
            "OMP_NUM_THREADS": "1",
            "RUNGS_MARK": mark,
            "TMPDIR": str(temporary),
            "CUDA_VISIBLE_DEVICES": "-1",
            # The fork server has both on its path, and with that the scripts in other folders.
            "PYTHONPATH": python_path(ROOT, LESSONS),
            "PYTHONWARNINGS": "error,ignore::ResourceWarning",
        }
        with open(Path(folder, ".out"), "w") as stdout, open(Path(folder, ".err"), "w") as stderr:
            process = subprocess.Popen(
                words,
                cwd=folder,
                env=os.environ | ours | environment,
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
                start_new_session=True,
            )
        Path(folder, ".pid").write_text(str(process.pid))
        try:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(limit)
            deadline = time.monotonic() + 20
            while process.returncode is not None and alive(mark) and time.monotonic() < deadline:
                time.sleep(0.05)
        finally:  # also after Ctrl-C, which does not reach a session of its own
            left = [pid for pid, _ in alive(mark)]
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        if process.returncode is None:
            process.wait()
            return None, left
        shutil.rmtree(temporary, ignore_errors=True)
        return process.returncode, left

    def close(self):
        pass


class Forks(Commands):
    """The server, seen from a test process. `more` is for its environment, by default without a GPU."""

    def __init__(self, more=None):
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tools.testbed.forks"],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ | {"OMP_NUM_THREADS": "1"} | (more or {"CUDA_VISIBLE_DEVICES": "-1"}),
            text=True,
        )

    def run(self, words, folder, environment, limit):
        """Run the words of a command in a folder. Answers with the status and the processes still alive."""
        Path(folder).mkdir(parents=True, exist_ok=True)
        # torchrun leaves a folder where temporary files go. It is a short path: some are of sockets.
        with tempfile.TemporaryDirectory(prefix="fork-", ignore_cleanup_errors=True) as temporary:
            environment = environment | {"TMPDIR": temporary}
            request = {"words": words, "folder": str(folder), "environment": environment, "limit": limit}
            self.process.stdin.write(json.dumps(request) + "\n")
            self.process.stdin.flush()
            answer = json.loads(self.process.stdout.readline())
        return answer["code"], answer["left"]

    def close(self):
        self.process.stdin.close()
        self.process.wait()
        self.process.stdout.close()


def start_server():
    """What runs commands quickly if this system can."""
    can_fork = os.environ.get("RUNGS_FORKS", "yes" if sys.platform == "linux" else "no") == "yes"
    return Forks() if can_fork else Launches()


def serve():
    import gc

    import torch
    import torch._dynamo
    import torch.distributed.checkpoint
    import torch.distributed.fsdp
    import torch.distributed.pipelining
    import torch.distributed.run
    import torch.distributed.tensor.parallel
    import torch.multiprocessing.spawn

    torch.set_num_threads(1)
    # A fork makes its pool of threads anew. If two threads of autograd, one for each GPU, did so
    # at once, torch would end the process.
    os.register_at_fork(after_in_child=functools.partial(torch.set_num_threads, 1))
    import workload

    workload.draw_fonts()
    workload.import_torchvision()  # lesson 08
    gc.collect()
    gc.freeze()
    for line in sys.stdin:
        request = json.loads(line)
        pid = os.fork()
        if pid == 0:
            become(request)
        code, left = end_of(pid, request["limit"])
        print(json.dumps({"code": code, "left": left}), flush=True)


def end_of(pid, limit):
    """The status of a fork, None if it takes longer than its limit; and which of its processes are alive 20
    seconds after its end. They are killed."""
    code = None
    deadline = time.monotonic() + limit
    while code is None and time.monotonic() < deadline:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            code = os.waitstatus_to_exitcode(status)
        else:
            time.sleep(0.01)

    deadline = time.monotonic() + 20
    while code is not None and session(pid) and time.monotonic() < deadline:
        time.sleep(0.01)
    left = session(pid)
    for other in left:
        os.kill(other, signal.SIGKILL)
    if code is None:
        os.waitpid(pid, 0)
    return code, left


def become(request):
    """Turn this fork into the command. Never returns."""
    import torch

    os.setsid()
    os.chdir(request["folder"])
    Path(".pid").write_text(str(os.getpid()))
    os.environ.update(request["environment"])
    tempfile.tempdir = None  # the server has asked for it already, and Python remembers
    for name, number in ((".out", 1), (".err", 2)):
        descriptor = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(descriptor, number)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    if os.environ.get("PYTHONWARNINGS") != "default":  # some frameworks call what torch has deprecated
        warnings.simplefilter("error")  # see conftest.py
        warnings.simplefilter("ignore", ResourceWarning)
    start = torch.multiprocessing.start_processes
    torch.multiprocessing.spawn = functools.partial(start, start_method="fork")
    torch.multiprocessing.start_processes = functools.partial(start_all_at_once, start)
    words = request["words"]
    code = 1
    try:
        if Path(words[0]).name == "torchrun":
            torchrun(words[1:])
        else:
            script(words[1], words[2:])
        code = 0
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:
        import traceback

        traceback.print_exc()
    # As at Python's own end. From 3.14 on, the lock of a progress bar is a semaphore that is taken down here.
    multiprocessing.util._run_finalizers()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


gate = None  # a pipe: read to its end, it says that all processes of this start are there


def start_all_at_once(start, *arguments, **options):
    """Start processes that begin when the last of them exists.

    torchrun's agent has threads by then, and one of them looks up the name of each process that calls the
    store. A process forked in that moment may inherit a lock that nobody ever releases (once, one hung).
    """
    global gate
    gate = os.pipe()
    context = start(*arguments, **options)
    for end in gate:
        os.close(end)
    return context


def torchrun(words):
    """torchrun's own command line, rendezvous, agent and restarts; its processes are forks too."""
    import torch.distributed.elastic.rendezvous.api as rendezvous
    import torch.distributed.run as run
    from torch.distributed.launcher.api import elastic_launch

    def launch(config, entrypoint):
        config.start_method = "fork"
        return lambda *words: elastic_launch(config, worker)(words[1], words[2:])  # words[0] is python's -u

    run.elastic_launch = launch
    rendezvous.get_free_port = reserved_port
    run.run(run.parse_args(words))


reserved = []  # sockets, which a closed file would give up


def reserved_port():
    """A free port, bound until this agent ends, so that nothing but rank 0's store gets it.

    Where the agent does not share its own store, torchrun looks for a free port, closes it again, and rank 0
    listens on it later. Of many tests at once, another may connect from that port in between.
    """
    held = socket.socket()
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # the store has this too, so it may listen
    held.bind(("", 0))
    reserved.append(held)
    return held.getsockname()[1]


def worker(path, words):
    # A fork inherits the agent's handlers, which raise an error when torchrun ends this process.
    # A Python of its own, as torchrun starts it, does not.
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.close(gate[1])
    os.read(gate[0], 1)
    os.close(gate[0])
    try:
        script(path, words)
    except Exception:
        # torchrun's report shows one process's error. A Python of its own prints that of each process.
        import traceback

        traceback.print_exc()
        raise


def script(path, words):
    sys.argv = [path, *words]
    module = types.ModuleType("__main__")
    module.__file__ = path
    sys.modules["__main__"] = module
    beside = Path(path).resolve().parent
    if beside != LESSONS:
        sys.path.insert(0, str(beside))  # as Python does
    if (beside / "workload").is_dir() and beside != LESSONS:  # a changed copy of all lessons
        for name in list(sys.modules):
            if name.partition(".")[0] == "workload":
                del sys.modules[name]
    try:
        exec(compile(Path(path).read_text(), path, "exec"), vars(module))
    finally:
        if "PRETEND_REPORT" in os.environ:
            import pretend  # on the path where torch was imported with pretended GPUs

            pretend.report()


if __name__ == "__main__":
    serve()
