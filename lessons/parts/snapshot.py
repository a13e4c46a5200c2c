"""What makes the snapshots of lesson 06b hold when more than a process breaks.

Snapshots.lock_folder   a second run is started in the same folder
seal, unseal            a file is torn, damaged or hostile
Snapshots.find_newest   a snapshot is from a run with other settings
survive_a_full_disk     there is no room: this snapshot is lost, and nothing else
StopVote                the machine is wanted back (SIGTERM), and all must stop after the same step
"""

import contextlib
import fcntl
import io
import os
import socket
import time
import zlib
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

import workload


class Snapshots:
    """The snapshots of a run. A method that talks to the other processes is called by all of them.

    From here to close() no other run may use the folder. SIGTERM no longer ends the process.
    """

    def __init__(self, arguments, settings):
        self.folder, self.lesson = arguments.out, arguments.lesson
        self.settings = settings
        # On the CPU, so that what is said here does not queue behind the gradients of a GPU.
        timeout = timedelta(seconds=arguments.time_limit)
        self.control = dist.new_group(backend="gloo", timeout=timeout)
        self.vote = StopVote(self.control)
        self.lock = None
        self.lock_folder()
        workload.listen_for_the_end()

    def close(self):
        """Let other runs have the folder."""
        self.vote.wait()
        if self.lock is not None:
            self.lock.close()
        # A group that outlives destroy_process_group can abort the process at exit.
        self.control = self.vote = None

    def lock_folder(self):
        me = f"process {os.getpid()} of {socket.gethostname()}, since {time.strftime('%X')}"
        run = self.gather(me)[0]  # a run is called by its rank 0
        problem = None
        if dist.get_node_local_rank() == 0:
            self.lock = open(self.folder / f"{self.lesson}.lock", "a+")  # noqa: SIM115
            holder = wait_for_lock(self.lock, run)
            if holder != run:
                problem = f"{self.folder} is in use by {holder}: end it, or name another --out"
            else:
                for temporary in self.folder.glob(f"{self.lesson}.epoch*.temporary"):
                    temporary.unlink(missing_ok=True)  # of a process that was killed while it saved
        self.refuse_if(problem)

    def gather(self, value):
        """The values of all processes, by rank."""
        values = [None] * dist.get_world_size()
        dist.all_gather_object(values, value, group=self.control)
        return values

    def refuse_if(self, problem):
        """All processes end if one has a problem: rank 0 says it, whose ever it is."""
        for words in self.gather(problem):
            if words:
                workload.refuse(words)

    def agree_to_stop(self):
        """Whether all stop after this step, since one of them was told to before."""
        stop = self.vote.last_answer()
        if not stop:
            self.vote.ask(workload.told_to_stop.is_set())
        return stop

    def path_of(self, epoch, step):
        """Names that sort by age. Under one fixed name, a new snapshot would replace the one before."""
        return self.folder / f"{self.lesson}.epoch{epoch:04}-step{step:06}.snapshot"

    def find_all(self):
        """The paths of the snapshots that are there, the newest first."""
        return sorted(self.folder.glob(f"{self.lesson}.epoch*.snapshot"), reverse=True)

    def keep_two(self):
        """The newest, and the one before, in case that the newest turns out to be damaged."""
        for old in self.find_all()[2:]:
            old.unlink(missing_ok=True)

    def save(self, state):
        """Rank 0 saves; the state is the same in all processes."""
        path = self.path_of(state["epoch"], state["step"])
        temporary = path.with_suffix(f".{os.getpid()}.temporary")
        if dist.get_rank() == 0:
            with survive_a_full_disk(path, temporary), open(temporary, "wb") as file:
                file.write(seal(state | {"settings": self.settings}))
                file.flush()
                os.fsync(file.fileno())  # without it, a power cut after the rename could leave an empty file
                temporary.replace(path)
                self.keep_two()

    def find_newest(self):
        """What the newest snapshot holds that is whole; None if there is no such file."""
        state, problem, damaged = None, None, []
        for path in self.find_all():
            state = unseal(path.read_bytes())
            if state is not None:
                problem = workload.problem_with(path, state["settings"], self.settings)
                break
            damaged.append(path)
        self.refuse_if(problem)
        # Only now have all processes looked at the files, and they may be renamed.
        if dist.get_rank() == 0:
            for path in damaged:
                rename_damaged(path)
        return state


class StopVote:
    """All processes stop if one of them was told to, and none goes on alone to wait for the others.

    The answer is read a step later, when it has long been there: so training does not wait for it.
    """

    def __init__(self, control):
        self.control = control
        self.told = torch.tensor(0.0)  # how many were told to stop, once the question is answered
        self.question = None

    def ask(self, stop):
        self.told = torch.tensor(float(stop))
        self.question = dist.all_reduce(self.told, group=self.control, async_op=True)

    def last_answer(self):
        """The same in all processes. False before the first question."""
        self.wait()
        return self.told.item() > 0

    def wait(self):
        if self.question is not None:
            self.question.wait()
            self.question = None


def wait_for_lock(file, run):
    """Take the lock. Returns who has it: this run, or another one that does not go away."""
    deadline = time.monotonic() + 5  # a run that was killed just now is still going down
    holder = take_lock(file, run)
    while holder != run and time.monotonic() < deadline:
        time.sleep(0.1)
        holder = take_lock(file, run)
    return holder


def take_lock(file, run):
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # ends with the process, however that ends
    except BlockingIOError:
        # The holder may be another machine of this run, with the same disk.
        return os.pread(file.fileno(), 999, 0).decode()
    with contextlib.suppress(OSError):  # a full disk: a second run is refused, but not told by whom
        file.truncate(0)
        os.write(file.fileno(), run.encode())
    return run


def seal(state):
    """The bytes of a snapshot: what torch.save writes, and a checksum.

    torch.load notices when a file was cut, but not when a bit was flipped.
    """
    buffer = io.BytesIO()
    torch.save(state, buffer)
    content = buffer.getvalue()
    return content + zlib.crc32(content).to_bytes(4)


def unseal(data):
    """The state in these bytes; None if they are damaged, or not from this lesson."""
    content, checksum = data[:-4], data[-4:]
    if zlib.crc32(content).to_bytes(4) != checksum:
        return None
    try:
        # weights_only: any other pickle may run code when it is loaded.
        state = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except Exception:
        return None
    expected = {"settings", "epoch", "step", "processes"}
    return state if isinstance(state, dict) and state.keys() >= expected else None


def rename_damaged(path):
    """Else it would count among the two that are kept."""
    workload.say(f"refused {path}: damaged, or not from this lesson; taking the one before")
    number, new = 1, Path(f"{path}.refused")
    while new.exists():  # the same step was refused before, and rename would overwrite that file
        number += 1
        new = path.with_name(f"{path.name}.{number}.refused")
    with contextlib.suppress(OSError):
        path.rename(new)


@contextlib.contextmanager
def survive_a_full_disk(path, temporary):
    """Whatever cannot be written is said, and the run goes on."""
    try:
        yield
    except OSError as error:
        workload.say(f"{path} is not saved ({error.strerror}); going on without it")
        with contextlib.suppress(OSError):
            temporary.unlink()
