"""check.py, whose processes are forks of this one: torch is imported once, as in tools/testbed/forks.py.

python -m tests.helpers.port_forks [options of check.py] -- SCRIPT ...
"""

import importlib.util
import os
import signal
import sys
import tempfile
import traceback
import warnings
from pathlib import Path

import torch
import torch._dynamo
import torch.distributed.nn
import torch.distributed.run

from port import check
from tools.testbed import forks
from tools.testbed.processes import living

leaders = {}  # a run's folder: the sessions of its launchers


class Fork:
    """What check.py needs of subprocess.Popen."""

    def __init__(self, pid):
        self.pid, self.returncode = pid, None

    def poll(self):
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self.returncode = os.waitstatus_to_exitcode(status) if pid else None
        return self.returncode

    def kill(self):
        if self.returncode is None:
            os.kill(self.pid, signal.SIGKILL)

    def wait(self):
        if self.returncode is None:
            self.returncode = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


def start(words, folder, environment, log):
    pid = os.fork()
    if pid:
        leaders.setdefault(str(folder.parent), []).append(pid)
        return Fork(pid)
    try:
        os.setsid()
        os.chdir(folder)
        os.environ.clear()
        os.environ.update(environment)
        tempfile.tempdir = None  # Python remembers this process's
        torch._dynamo.config.disable = True
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        warnings.simplefilter("default")
        forks.worker = worker
        launch = torch.multiprocessing.start_processes
        torch.multiprocessing.start_processes = lambda *a, **k: forks.start_all_at_once(launch, *a, **k)
        forks.torchrun(words[3:])
    except SystemExit as ended:
        os._exit(ended.code if isinstance(ended.code, int) else 1)
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def worker(path, words):
    forks.pass_the_gate()
    seen = Path(os.environ["PYTHONPATH"].split(os.pathsep)[0]).parent / "seen"
    spec = importlib.util.spec_from_file_location("port_watch", check.HERE / "watch.py")
    watch = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(watch)
    watch.begin(str(seen))
    try:
        forks.script(path, words)
    except Exception:
        traceback.print_exc()  # where torchrun puts the errors of a process, and not in the launcher's report
        sys.exit(1)


def processes_of(folder, mark=""):
    sessions = leaders.get(str(folder.parent), [])
    found = [process for process in living() if process.session in sessions]
    return {process.pid: process.ticks / 100 for process in found if not mark or process.pid not in sessions}


check.start, check.processes_of = start, processes_of
torch.set_num_threads(1)
os.register_at_fork(after_in_child=lambda: torch.set_num_threads(1))

if __name__ == "__main__":
    check.main()
