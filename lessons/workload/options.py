"""The command-line options of the lessons, and the checks before a run begins."""

import argparse
import math
import os
import socket
import zlib
from importlib import metadata
from pathlib import Path

from workload.endings import refuse, say
from workload.images import DATA, load_images
from workload.machine import gpu_count, has_gpus_of_its_own, may_share, unseen_gpu

OLDEST_TORCH = "2.9"  # with older releases, lessons 09, 12 and 13 fail or produce other curves


class Parser(argparse.ArgumentParser):
    def error(self, message):
        refuse(message)


def parser(file, description):
    """The options of all lessons. Each lesson names its output files after `file`."""
    require_torch(OLDEST_TORCH)
    formatter = argparse.RawDescriptionHelpFormatter  # keeps the docstring's lines
    parser = Parser(description=description, formatter_class=formatter)
    world_size = int(os.environ.get("WORLD_SIZE", 1))  # torchrun sets it
    parser.set_defaults(lesson=Path(file).stem, world_size=world_size)
    parser.set_defaults(items="images")  # the unit of the speed in each epoch's line
    parser.set_defaults(snapshot_every=None, time_limit=None)  # from lesson 06a on
    option = parser.add_argument
    option("--epochs", type=int, default=8, help="passes over the images (%(default)s)")
    option("--batch-size", type=int, default=120, help="images per step, all ranks together (%(default)s)")
    option("--lr", type=float, default=0.04, help="initial learning rate (%(default)s)")
    option("--seed", type=int, default=0, help="seed of initial weights and image order (%(default)s)")
    option("--data", choices=DATA, default="digits", help="digits needs no download (%(default)s)")
    option("--width", type=int, default=16, help="width of the model (%(default)s)")
    option("--train-size", type=int, help="images to train on (12000 digits; others: all)")
    option("--test-size", type=int, help="images to test on (2000 digits; others: all)")
    option("--out", type=Path, default=Path("out"), help="folder for the files of the run (out)")
    return parser


def check(arguments, replicas=None, uses_gpus=True, can_share=True):
    """Refuse to start a run that cannot work. A later traceback would explain less.

    `replicas` is the number of copies of the model, each with its shard of the batch. By
    default, it is the number of processes. Frameworks that select the GPUs themselves cannot
    let processes share a GPU.
    """
    check_at_least_1("--epochs", arguments.epochs)
    check_at_least_1("--batch-size", arguments.batch_size)
    check_at_least_1("--width", arguments.width)
    check_at_least_1("--train-size", arguments.train_size)
    check_at_least_1("--test-size", arguments.test_size)
    check_at_least_1("--snapshot-every", arguments.snapshot_every)
    check_at_least_1("--time-limit", arguments.time_limit)
    world_size, batch_size = arguments.world_size, arguments.batch_size
    if world_size < 1:
        refuse(f"the number of processes must be at least 1, not {world_size}")
    if not (math.isfinite(arguments.lr) and arguments.lr > 0):
        refuse(f"--lr must be a number above 0, not {arguments.lr}")
    if not 0 <= arguments.seed < 2**31:
        refuse(f"--seed must be a number from 0 to {2**31 - 1}, not {arguments.seed}")
    replicas = replicas or world_size
    if batch_size % replicas:
        fits = math.ceil(batch_size / replicas) * replicas
        refuse(
            f"--batch-size {batch_size} does not divide by {replicas} processes: take {fits}, for instance",
            again=True,  # after a restart there may be fewer machines
        )
    processes = int(os.environ.get("LOCAL_WORLD_SIZE", world_size))
    gpus = gpu_count() if uses_gpus else 0
    if 0 < gpus < processes and not has_gpus_of_its_own() and not (can_share and may_share()):
        variable = "CUDA_VISIBLE_DEVICES=-1"  # AMD's runtime ignores an empty value
        if can_share:
            cure = f"put SHARE_GPU=1 in front of the command to let them share, or {variable}"
        else:
            variable += " (with DeepSpeed: DS_ACCELERATOR=cpu)"  # its launcher overrides CUDA_VISIBLE_DEVICES
            cure = f"start fewer processes, or put {variable} in front of the command"
        found = "1 GPU" if gpus == 1 else f"{gpus} GPUs"
        refuse(f"{processes} processes on this machine, but {found}: {cure} to use the CPU")
    if int(os.environ.get("RANK", 0)) == 0 and (reason := unseen_gpu()):
        say(f"note: this machine has a GPU, but the run uses the CPU: {reason}")
    try:
        arguments.out.mkdir(parents=True, exist_ok=True)
        probe = arguments.out / f".writable-{os.getpid()}"
        probe.touch()
        probe.unlink(missing_ok=True)  # another machine may have chosen the same name
    except OSError as error:
        reason = error.strerror
        refuse(f"cannot write to --out {arguments.out} ({reason}): choose a folder that you can write to")
    images = arguments.train_size or 12_000
    if arguments.data != "digits":
        train_set, _ = load_images(arguments)  # download now, before other processes wait
        images = len(train_set)
    if images < batch_size:
        refuse(f"{images} training images do not fill one --batch-size of {batch_size}")


def check_at_least_1(option, value):
    if value is not None and not 1 <= value < math.inf:
        refuse(f"{option} must be at least 1, not {value}")


def settings(arguments, model):
    """The settings that a snapshot must share with the run that resumes from it."""
    parameters = sum(parameter.numel() for parameter in model.parameters())
    layers = zlib.crc32(str(model).encode())
    return {
        "data": arguments.data,
        "train_size": arguments.train_size,
        "batch_size": arguments.batch_size,
        "epochs": arguments.epochs,
        "lr": arguments.lr,
        "seed": arguments.seed,
        "model": f"{type(model).__name__} of {parameters:,} parameters ({layers:08x})",
    }


def problem_with(path, theirs, own):
    """An error message if a snapshot's settings differ from this run's settings, else None."""
    differences = []
    for name, value in own.items():
        if theirs.get(name) != value:
            differences.append(f"{name} {theirs.get(name)}, not {value}")
    if not differences:
        return None
    return f"{path} has {'; '.join(differences)}: remove it, or name another --out"


def numbers(version):
    """[2, 14] for 2.14.0.dev20261101. The rest of a version may contain letters."""
    return [int(part) for part in version.split(".")[:2]]


def require_torch(oldest):
    """Refuse to start if torch is older than `oldest`."""
    here = metadata.version("torch").split("+")[0]
    if numbers(here) < numbers(oldest):
        refuse(f"this lesson needs torch {oldest}, and this is {here}: pip install torch=={oldest}.0")


def require_torchrun(file, torch=None):
    """Refuse to start without torchrun, or if the lesson needs a newer torch."""
    if torch:
        require_torch(torch)
    if "RANK" not in os.environ:
        command = f"torchrun --standalone --nproc-per-node 2 {os.path.relpath(file)}"
        refuse(f"this lesson is started by torchrun: {command}")
    require_address(os.environ.get("MASTER_ADDR", "localhost"))


def require_address(host):
    """Refuse to start if the host where the processes meet has no address: they would wait for minutes."""
    try:
        socket.getaddrinfo(host, None)
    except OSError:
        refuse(
            f"the host name {host} does not resolve: on one machine, put --local-addr 127.0.0.1 behind "
            "torchrun; on several, add it to /etc/hosts"
        )
