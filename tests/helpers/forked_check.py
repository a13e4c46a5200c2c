"""check.py, whose runs are forks of this process, which has imported torch: a second instead of fifteen.

    python -m tests.helpers.forked_check [options] -- my.py --its --options

torchrun's agent, the processes, their kills and restarts are real. Only `import torch` is left out. Tests
with true launches are in test_port_check.py, too.
"""

import functools
import os
import sys
import tempfile
import traceback

import psutil
import torch
import torch._dynamo
import torch.distributed.nn
import torch.distributed.run
import torch.multiprocessing.spawn

from tools.testbed import forks

PORT = forks.ROOT / "lessons/port"
sys.path.insert(0, str(PORT))
import check  # noqa: E402
import runs  # noqa: E402


class Fork(psutil.Process):
    """A fork that can be asked for its status, as psutil.Popen can."""

    returncode = None

    def poll(self):
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def wait(self, timeout=None):
        while self.poll() is None:
            pass
        return self.returncode


def start(this, command, variables, folder):
    """In place of runs.start."""
    pid = os.fork()
    if pid == 0:
        become(this, command, variables, folder)
    this.processes.append(Fork(pid))


def become(this, command, variables, folder):
    os.chdir(this.work)
    os.environ.clear()
    os.environ.update(variables)
    tempfile.tempdir = None
    for name, number in (("stdout.log", 1), ("stderr.log", 2)):
        os.dup2(os.open(folder / name, os.O_WRONLY | os.O_CREAT), number)
    code = 0
    try:
        if this.launchers == 0:
            script(command[1], command[2:])
        else:
            forks.script = script
            torch.multiprocessing.start_processes = functools.partial(
                forks.start_all_at_once, torch.multiprocessing.start_processes
            )
            forks.torchrun(command[3:])
    except SystemExit as ended:
        code = int(bool(ended.code))
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def script(path, words, original=forks.script):
    """Begin to watch, as the sitecustomize does after `import torch`, and become the script."""
    sys.path[:] = [entry for entry in sys.path if entry != str(PORT)]
    for name in ("check", "runs", "promises"):
        sys.modules.pop(name, None)
    code = 0
    import port_record_process

    watch = port_record_process.begin()
    try:
        original(path, words)
    except SystemExit as ended:
        if isinstance(ended.code, str):
            print(ended.code, file=sys.stderr)
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:
        # As torch prints it after init_process_group.
        lines = traceback.format_exc().splitlines()
        print("\n".join(f"[rank{os.environ.get('RANK', 0)}]: {line}" for line in lines), file=sys.stderr)
        code = 1
    watch.look_at_end()
    sys.stdout.flush()
    sys.stderr.flush()
    if code:
        os._exit(code)


def load_recorder():
    """The module is here before the forks, so that they need not compile it."""
    import importlib.util

    spec = importlib.util.spec_from_file_location("port_record_process", PORT / "record_process.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["port_record_process"] = module
    spec.loader.exec_module(module)


if __name__ == "__main__":
    torch.set_num_threads(1)
    load_recorder()
    runs.start = start
    check.main()
