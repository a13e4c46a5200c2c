"""Lesson 06b's snapshots. This file needs only PyTorch and Linux or macOS, so you can copy it:

    snapshots = Snapshots("out", "my_run", {"lr": 0.1})  # after init_process_group
    state = snapshots.find_newest()                      # None if there is no snapshot yet
    stop = snapshots.agree_to_stop()                     # after each step
    snapshots.save({"epoch": epoch, "step": step, "model": model.module.state_dict()})
    snapshots.close()                                    # before destroy_process_group

Which part of this module handles which problem:

    Snapshots.lock_folder   somebody starts a second run in the same folder
    seal, unseal            a file is truncated, damaged or hostile
    Snapshots.find_newest   a snapshot is from a run with different settings
    survive_a_full_disk     the disk is full: the run loses this snapshot and nothing else
    listen_for_the_end      a scheduler sends SIGTERM, or somebody presses Ctrl-C
    StopVote                all processes stop after the same step
"""

import contextlib
import fcntl
import io
import os
import signal
import socket
import sys
import threading
import time
import zlib
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist


class Snapshots:
    """The snapshots of a run. Every process must call every method.

    `folder` is on a disk that all machines share, unless `shared` is False.
    The names of the files begin with `name`.
    `settings` is a dict: a run with different settings cannot resume from these snapshots.
    `time_limit` is how many seconds a process waits for the other processes.
    `shared` is False if each machine has a disk of its own. Then each machine saves every
    snapshot, and a restarted run sends the newest one to all machines.
    `told_to_stop` is an event. To stop the run for a reason of your own, set this event in any process.

    Until close(), no other run can use the folder. SIGTERM and Ctrl-C no longer end the process:
    they set `told_to_stop`. Let the workers of a DataLoader ignore both signals, too, as
    start_worker in parts/loading.py does: a scheduler may send SIGTERM to all processes
    of the job, and a trainer whose workers have died fails instead of saving.
    """

    def __init__(self, folder, name, settings, time_limit=1800, told_to_stop=None, shared=True):
        self.folder, self.name = Path(folder), name
        self.settings = settings
        self.told_to_stop = told_to_stop or threading.Event()
        # Use the CPU, so that these messages do not wait behind a GPU's gradients.
        self.control = dist.new_group(backend="gloo", timeout=timedelta(seconds=time_limit))
        # A slow disk may take longer than `time_limit` to write a snapshot.
        self.writing = dist.new_group(backend="gloo", timeout=timedelta(minutes=30))
        self.vote = StopVote(self.control)
        self.has_saved = False
        self.shared = shared
        self.is_writer = (dist.get_rank() if shared else local_rank()) == 0
        self.lock = None
        self.lock_folder()
        listen_for_the_end(self.told_to_stop)

    def close(self):
        """Release the folder, so that other runs can use it."""
        self.vote.wait()
        if self.lock is not None:
            self.lock.close()
        # A group that outlives destroy_process_group can abort the process at exit.
        self.control = self.writing = self.vote = None

    def lock_folder(self):
        me = f"process {os.getpid()} of {socket.gethostname()}, since {time.strftime('%X')}"
        run = self.gather(me)[0]  # the name of rank 0's process is the name of the run
        problem = None
        if local_rank() == 0:
            self.folder.mkdir(parents=True, exist_ok=True)
            self.lock = open(self.folder / f"{self.name}.lock", "a+")  # noqa: SIM115
            holder = wait_for_lock(self.lock, run)
            if holder != run:
                problem = f"{self.folder} is in use by {holder}: end it, or name another folder"
            else:
                for temporary in self.folder.glob(f"{self.name}.epoch*.temporary"):
                    temporary.unlink(missing_ok=True)  # a process that was killed while saving left this file
        self.refuse_if(problem)

    def gather(self, value):
        """Return the values of all processes, ordered by rank."""
        values = [None] * dist.get_world_size()
        dist.all_gather_object(values, value, group=self.control)
        return values

    def refuse_if(self, problem):
        """If any process has a problem, all processes end, and one on each machine prints the problem."""
        for words in self.gather(problem):
            if words:
                refuse(words)

    def agree_to_stop(self):
        """Return whether all processes stop after this step, because one of them was told to stop earlier."""
        stop = self.vote.last_answer()
        if not stop:
            self.vote.ask(self.told_to_stop.is_set())
        return stop

    def path_of(self, epoch, step):
        """A name that sorts by age. With one fixed name, a new snapshot would replace the previous one."""
        return self.folder / f"{self.name}.epoch{epoch:04}-step{step:09}.snapshot"

    def find_all(self):
        """The paths of all snapshots, newest first."""
        return sorted(self.folder.glob(f"{self.name}.epoch*.snapshot"), reverse=True)

    def keep_two(self):
        """Keep the newest snapshot and the previous one, in case the newest one is damaged."""
        for old in self.find_all()[2:]:
            old.unlink(missing_ok=True)

    def save(self, state):
        """Save on rank 0, or once on each machine if these share no disk.

        The state is the same in all processes, and contains an epoch and a step. If you
        count only steps, the epoch is 0. Collect what differs between processes with gather().
        """
        path = self.path_of(state["epoch"], state["step"])
        temporary = path.with_suffix(f".{os.getpid()}.temporary")
        if self.is_writer:
            data = seal(state | {"settings": self.settings})
            if not self.has_saved and unseal(data) is None:
                raise TypeError("a snapshot can hold tensors, numbers, strings, and dicts and lists of them")
            self.has_saved = True
            with survive_a_full_disk(path, temporary), open(temporary, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())  # without fsync, a power cut after the rename may leave an empty file
                temporary.replace(path)
                self.keep_two()
        # Wait here: an all-reduce would fail if writing took longer than `time_limit`.
        dist.barrier(group=self.writing)

    def find_newest(self):
        """The state in the newest intact snapshot, or None if there is none."""
        state, problem, damaged = None, None, []
        for path in self.find_all():
            state = unseal(path.read_bytes())
            if state is not None:
                problem = self.problem_with(path, state["settings"])
                break
            damaged.append(path)
        self.refuse_if(problem)
        # All processes have read the files by now, so damaged files can be renamed.
        if self.is_writer:
            for path in damaged:
                rename_damaged(path)
        return state if self.shared else self.newest_of_all(state)

    def newest_of_all(self, state):
        """Return the newest state that any machine has found on its disk."""
        age = (-1, -1) if state is None else (state["epoch"], state["step"])
        ages, newest = self.gather(age), [state]
        dist.broadcast_object_list(newest, src=ages.index(max(ages)), group=self.control)
        return newest[0]

    def problem_with(self, path, theirs):
        """An error message if a snapshot's settings differ from this run's settings, else None."""
        differences = []
        for name, value in self.settings.items():
            if theirs.get(name) != value:
                differences.append(f"{name} {theirs.get(name)}, not {value}")
        if not differences:
            return None
        return f"{path} has {'; '.join(differences)}: remove it, or name another folder"


class StopVote:
    """If one process is told to stop, all processes stop after the same step.

    All processes read the result of the vote one step later, so training does not wait for it.
    """

    def __init__(self, control):
        self.control = control
        self.told = torch.tensor(0.0)  # the all-reduce makes this the number of processes told to stop
        self.question = None

    def ask(self, stop):
        self.told = torch.tensor(float(stop))
        self.question = dist.all_reduce(self.told, group=self.control, async_op=True)

    def last_answer(self):
        """Return the last vote's result, equal in all processes, or False before any vote."""
        self.wait()
        return self.told.item() > 0

    def wait(self):
        if self.question is not None:
            self.question.wait()
            self.question = None


def listen_for_the_end(told_to_stop, limit=15):
    """From now on, SIGTERM and Ctrl-C set told_to_stop instead of ending the process.

    Python calls `remember` only between two of its own instructions. A process that waits in torch for a
    process that is gone never reaches the next instruction, and torchrun would kill it after 30 seconds.
    So a thread also listens for the signal and gives a long step `limit` seconds to finish.
    """

    def remember(number, frame):
        told_to_stop.set()

    def watch():
        while os.read(heard, 1)[0] not in (signal.SIGTERM, signal.SIGINT):
            pass  # a DataLoader's workers send SIGCHLD when they end
        if not told_to_stop.wait(limit):
            say(f"told to stop, but the step did not end within {limit} seconds: exiting without saving")
            os._exit(1)

    heard, signals = os.pipe()
    os.set_blocking(signals, False)
    signal.set_wakeup_fd(signals)
    threading.Thread(target=watch, daemon=True).start()
    signal.signal(signal.SIGTERM, remember)
    signal.signal(signal.SIGINT, remember)


def wait_for_lock(file, run):
    """Try for a few seconds to take the lock, and return its holder: this run or another run."""
    deadline = time.monotonic() + 5  # a run that was just killed may still be shutting down
    holder = take_lock(file, run)
    while holder != run and time.monotonic() < deadline:
        time.sleep(0.1)
        holder = take_lock(file, run)
    return holder


def take_lock(file, run):
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # the lock is released when the process ends
    except BlockingIOError:
        # The holder may be a process of the same run on another machine, because the
        # machines of a run share the disk.
        return os.pread(file.fileno(), 999, 0).decode()
    with contextlib.suppress(OSError):  # on a full disk, a second run does not learn who holds the lock
        file.truncate(0)
        os.write(file.fileno(), run.encode())
    return run


def seal(state):
    """The bytes of a snapshot: the output of torch.save, followed by a checksum.

    torch.load notices a truncated file, but not a flipped bit.
    """
    buffer = io.BytesIO()
    torch.save(state, buffer)
    content = buffer.getvalue()
    return content + zlib.crc32(content).to_bytes(4, "big")


def unseal(data):
    """Return the state in these bytes, or None if they are damaged or are not a snapshot."""
    content, checksum = data[:-4], data[-4:]
    if zlib.crc32(content).to_bytes(4, "big") != checksum:
        return None
    try:
        # Without weights_only, loading a file could run code from it.
        state = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except Exception:
        return None
    expected = {"settings", "epoch", "step"}
    return state if isinstance(state, dict) and state.keys() >= expected else None


def rename_damaged(path):
    """Rename a damaged file, so that it does not count as one of the two snapshots to keep."""
    say(f"refused {path}: damaged, or not a snapshot of this kind; taking the one before")
    number, new = 1, Path(f"{path}.refused")
    while new.exists():  # do not overwrite an earlier refused file of the same step
        number += 1
        new = path.with_name(f"{path.name}.{number}.refused")
    with contextlib.suppress(OSError):
        path.rename(new)


@contextlib.contextmanager
def survive_a_full_disk(path, temporary):
    """If the snapshot cannot be written, report it and continue the run."""
    try:
        yield
    except OSError as error:
        say(f"{path} is not saved ({error.strerror}); going on without it")
        with contextlib.suppress(OSError):
            temporary.unlink()


def refuse(problem):
    """End this process with status 2, and print the problem in one process of each machine."""
    if local_rank() != 0:
        # torchrun ends all processes as soon as one ends, so let local rank 0 print first.
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        time.sleep(10)
    elif os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0":
        # torchrun also restarts a run that cannot work, so print the problem only once.
        say(f"error: {problem}")
    sys.stdout.flush()
    # Skip Python's shutdown: if another machine failed during it, torchrun would restart this process
    # without counting the restart here, and the problem would be printed again.
    os._exit(2)


def say(message):
    print(message, file=sys.stderr, flush=True)


def local_rank():
    return dist.get_node_local_rank(fallback_rank=dist.get_rank())  # mp.spawn does not set LOCAL_RANK
