"""Start a script of the bug hunt by hand, on a few random images:

    python lessons/exercises/04a_bug_hunt/start.py bug_03
    python lessons/exercises/04a_bug_hunt/start.py bug_09 --processes 4 --machines 2

What a process prints has its number in front. At the end you see the sum of its parameters and what `train`
has returned. A forward pass takes 0.2 seconds, so that there is time for Ctrl-C. That ends all processes, and
says in which line of the script each of them was. Bug 8 leaves snapshot.pt in the folder you are in, and goes
on from it at the next start: remove it to begin anew.
"""

import argparse
import faulthandler
import functools
import importlib
import inspect
import multiprocessing
import os
import re
import signal
import sys
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

HERE = Path(__file__).parent


class Device:
    """A device that is not there: says what is put on it."""

    def __init__(self, number, say):
        self.number, self.say = number, say

    def put(self, thing):
        self.say(f"puts {type(thing).__name__} on device {self.number}")
        return thing


def small_model(batch_norm):
    """The same on every process, and slow."""
    torch.manual_seed(0)
    middle = nn.BatchNorm1d(5) if batch_norm else nn.Tanh()
    model = nn.Sequential(nn.Linear(6, 5), middle, nn.Linear(5, 3))
    model.register_forward_pre_hook(lambda *_: time.sleep(0.2))
    return model


def what_train_asks_for(train, rank, devices):
    """A value for each of its parameters."""
    model = small_model(batch_norm="batch norm" in (sys.modules[train.__module__].__doc__ or ""))
    everybody = "all images" in train.__doc__  # or each process has images of its own
    torch.manual_seed(1 if everybody else 1 + rank)
    values = {
        "model": model,
        "images": torch.randn(16, 6),
        "labels": torch.randint(3, (16,)),
        "test_labels": torch.randint(3, (5,)),
        "test_images": torch.randn(5, 6, generator=torch.Generator().manual_seed(0)),
        "scaler": torch.amp.GradScaler("cpu"),
        "devices": devices,
        "path": "snapshot.pt",
    }
    values |= {"epochs": 5, "batch_size": 4, "lr": 0.1, "momentum": 0.8, "weight_decay": 0.1}
    values |= {"seed": 1, "max_norm": 0.5, "accumulate": 4, "steps": 3}
    return {name: values[name] for name in inspect.signature(train).parameters}


def work(rank, script, environment, devices, folder, all_are_done):
    """One process. Its stack goes into a file at Ctrl-C, also while it waits inside a collective."""
    os.environ.update(environment)
    stack = open(Path(folder, str(rank)), "w")  # noqa: SIM115 (open until this process ends)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    # All threads: the signal may reach one of gloo's, which is in no line of Python.
    faulthandler.register(signal.SIGINT, file=stack, all_threads=True, chain=True)
    sys.path.insert(0, str(HERE))
    module = importlib.import_module(script)
    say = module.print = functools.partial(print, f"[rank {rank}]", flush=True)
    size = int(environment["WORLD_SIZE"])
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=size)
    values = what_train_asks_for(module.train, rank, [Device(number, say) for number in range(devices)])
    returned = module.train(**values)
    total = sum(parameter.double().sum().item() for parameter in values["model"].parameters())
    say(f"is done. The sum of its parameters is {total:.6f}, train returned {returned}")
    all_are_done.wait()  # a process that left would break the connections of those that go on
    stack.flush()
    os._exit(0)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("script", help="bug_01, or bug_02, ...")
    parser.add_argument("--processes", type=int, default=2, help="of all machines together")
    parser.add_argument("--machines", type=int, default=1, help="pretended ones: what torchrun would tell")
    arguments = parser.parse_args()
    script = Path(arguments.script).stem
    if not (HERE / f"{script}.py").exists() or not script.startswith("bug_"):
        parser.error(f"there is no {script}.py: name one of bug_01 to bug_10")
    on_each, rest = divmod(arguments.processes, arguments.machines)
    if rest or on_each < 1:
        parser.error("each machine has equally many processes: --processes 4 --machines 2, for one")
    context = multiprocessing.get_context("spawn")
    all_are_done = context.Barrier(arguments.processes)
    with tempfile.TemporaryDirectory() as folder:
        processes = []
        for rank in range(arguments.processes):
            words = {"RANK": rank, "LOCAL_RANK": rank % on_each, "WORLD_SIZE": arguments.processes}
            words |= {"LOCAL_WORLD_SIZE": on_each, "GROUP_RANK": rank // on_each, "OMP_NUM_THREADS": 1}
            words = {name: str(value) for name, value in words.items()}
            given = (rank, script, words, on_each, folder, all_are_done)
            processes.append(context.Process(target=work, args=given))
        try:
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # inherited: or imports would be told of Ctrl-C, too
            for process in processes:
                process.start()
            signal.signal(signal.SIGINT, signal.default_int_handler)
            while any(process.is_alive() for process in processes):
                if any(process.exitcode for process in processes):
                    break  # the others would wait for it for ever
                time.sleep(0.05)
        except KeyboardInterrupt:
            # In a terminal, the processes get Ctrl-C, too. A second one, while a process writes its stack,
            # would mix two stacks.
            time.sleep(1)
            for rank, process in enumerate(processes):
                stack = Path(folder, str(rank))
                has_heard = stack.exists() and stack.stat().st_size > 0
                if process.is_alive() and not has_heard:
                    os.kill(process.pid, signal.SIGINT)
            for rank, process in enumerate(processes):
                stack = Path(folder, str(rank))
                # A busy machine needs time to end a process. One that has no file yet ignores Ctrl-C.
                process.join(30 if stack.exists() else 0)
                print(f"[rank {rank}] was {where(stack, script)}")
        finally:
            for process in processes:
                if process.pid is not None:
                    process.kill()
                    process.join()


def where(stack, script):
    """In words, the innermost line of the script in a stack."""
    text = stack.read_text() if stack.exists() else ""
    found = re.search(rf"{script}.py\", line (\d+) in (\w+)", text)
    return (
        f"in line {found[1]} of {script}.py, in {found[2]}" if found else f"not, or not now, in {script}.py"
    )


if __name__ == "__main__":
    main()
