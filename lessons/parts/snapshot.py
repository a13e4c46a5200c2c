"""The other half of lesson 05: what makes its snapshots hold when something else breaks as well.

The lesson saves aside, renames and resumes. Here is what it takes if
    start                 somebody starts a second run in the same folder
    seal, find_newest     a file is torn, damaged or hostile, or of a run with other settings
    survive_a_full_disk   there is no room: this snapshot is lost, and nothing else
    agree_to_stop         the machine is wanted back (SIGTERM), and all must stop after the same step
"""

import contextlib
import fcntl
import io
import os
import socket
import time
import warnings
import weakref
import zlib
from datetime import timedelta

import torch
import torch.distributed as dist

import workload

PREEMPTED = 75  # the status of a run that was told to stop, and has saved: start it again
status, control, lock, settings, question = 0, None, None, None, None


def start(arguments, model, images):
    """Keep other runs out of this folder, and listen for SIGTERM. All processes call it together."""
    global control, lock, settings
    # On the CPU, so that what is said here does not queue behind the gradients of a GPU. A weak reference:
    # a group that outlives destroy_process_group can abort the process at exit.
    control = weakref.ref(dist.new_group(backend="gloo", timeout=timedelta(seconds=arguments.time_limit)))
    run = gather(f"process {os.getpid()} of {socket.gethostname()}, since {time.strftime('%X')}")[0]
    holder, deadline = run, time.monotonic() + 5  # a run that was killed just now is still going down
    if dist.get_node_local_rank() == 0:
        lock = open(arguments.out / f"{arguments.lesson}.lock", "a+")  # noqa: SIM115
        while (holder := take_lock(run)) != run and time.monotonic() < deadline:
            time.sleep(0.1)
        for aside in arguments.out.glob(f"{arguments.lesson}.epoch*.aside") if holder == run else ():
            aside.unlink(missing_ok=True)  # of a process that was killed while it saved
    refuse_if(holder != run and f"{arguments.out} is in use by {holder}: end it, or name another --out")
    settings = workload.settings(arguments, model.module)
    settle(model, images)
    workload.listen_for_the_end()


def take_lock(run):
    """Who holds the lock now. It may be another machine of this run, with the same disk."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # ends with the process, however that ends
    except BlockingIOError:
        return os.pread(lock.fileno(), 999, 0).decode()
    with contextlib.suppress(OSError):  # a full disk: a second run is refused, but not told by whom
        lock.truncate(0)
        os.write(lock.fileno(), run.encode())
    return run


def gather(value):
    values = [None] * dist.get_world_size()
    dist.all_gather_object(values, value, group=control())
    return values


def refuse_if(problem):
    """All processes end if one has a problem: rank 0 says it, whose ever it is."""
    for words in filter(None, gather(problem)):
        workload.refuse(words)


def path_of(arguments, epoch, step):
    """Names that sort by age. Under one fixed name, a new snapshot would replace the one before."""
    return arguments.out / f"{arguments.lesson}.epoch{epoch:04}-step{step:06}.snapshot"


def seal(state):
    """The bytes of a snapshot. torch.load notices when a file was cut, but not when a bit was flipped."""
    buffer = io.BytesIO()
    torch.save(state, buffer)
    return buffer.getvalue() + zlib.crc32(buffer.getbuffer()).to_bytes(4)


def find_newest(arguments):
    state, refused = None, []
    for path in sorted(arguments.out.glob(f"{arguments.lesson}.epoch*.snapshot"), reverse=True):
        data = path.read_bytes()
        if zlib.crc32(data[:-4]).to_bytes(4) == data[-4:]:
            with contextlib.suppress(Exception):  # weights_only: any other pickle may run code when loaded
                found = torch.load(io.BytesIO(data[:-4]), map_location="cpu", weights_only=True)
                if found.keys() >= {"settings", "epoch", "step", "processes"}:
                    state = found
                    break
        refused.append(path)
    theirs = state["settings"] if state else settings
    other = [f"{key} {theirs.get(key)}, not {own}" for key, own in settings.items() if theirs.get(key) != own]
    refuse_if(other and f"{path} has {'; '.join(other)}: remove it, or name another --out")
    for path in refused if dist.get_node_local_rank() == 0 else ():
        workload.say(f"refused {path}: damaged, or not from this lesson; taking the one before")
        with contextlib.suppress(OSError):
            path.rename(f"{path}.refused")  # else it would count among the two that are kept
    return state


@contextlib.contextmanager
def survive_a_full_disk(path, aside):
    try:
        yield
        for old in sorted(path.parent.glob(f"{path.name.split('.')[0]}.epoch*.snapshot"))[:-2]:
            old.unlink(missing_ok=True)
    except OSError as error:
        workload.say(f"{path} is not saved ({error.strerror}); going on without it")
        with contextlib.suppress(OSError):
            aside.unlink()


def what_else(loss_sum):
    """What a snapshot holds beside the parts and the place. All processes call it together."""
    if question:  # after the last snapshot the processes end, and nothing must be under way then
        question[1].wait()
    device = torch.get_device_module(loss_sum.device)
    random = [torch.get_rng_state()] + ([device.get_rng_state()] if loss_sum.device.type != "cpu" else [])
    processes = gather({"random": random, "loss_sum": loss_sum.item()})
    return {"settings": settings, "world_size": len(processes), "processes": processes}


def restore(state, device):
    """Give this process the random state it had. Returns its sum of the epoch's losses so far."""
    processes, rank, world_size = state["processes"], dist.get_rank(), dist.get_world_size()
    random, loss_sum = (processes[rank % len(processes)][name] for name in ("random", "loss_sum"))
    if world_size != len(processes):  # no process is who it was: the first takes the loss of all
        loss_sum = 0.0 if rank else sum(one["loss_sum"] for one in processes) / len(processes) * world_size
    if rank == 0:
        print(f"resumed in epoch {state['epoch']} after step {state['step']}", flush=True)
    warnings.filterwarnings("ignore", "Detected call of `lr_")  # its optimizer stepped, but in the run before
    torch.set_rng_state(random[0])
    if device.type != "cpu" and len(random) > 1:
        torch.get_device_module(device).set_rng_state(random[1])
    return torch.tensor(loss_sum, device=device)


def settle(model, images):
    """After its first backward pass DDP adds up in another order: have that pass now, come to nothing."""
    model.eval()  # leaves batch norm and the random state as they are
    model(images).sum().backward()
    model.train()
    model.zero_grad()


def agree_to_stop():
    """The same answer in all processes. It is to the question of the step before: so nobody waits for it."""
    global question, status
    answer, told = question, torch.tensor(float(workload.told_to_stop.is_set()))
    question = told, dist.all_reduce(told, group=control(), async_op=True)
    if answer:
        answer[1].wait()
        status = PREEMPTED if answer[0].item() else 0
    return status == PREEMPTED
