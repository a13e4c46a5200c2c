"""The command line of a lesson, and what is looked at before a run begins."""

import argparse
import math
import os
import zlib
from pathlib import Path

from workload.endings import refuse
from workload.images import DATA, load_images
from workload.machine import gpu_count


class Parser(argparse.ArgumentParser):
    def error(self, message):
        refuse(message)


def parser(file, description):
    """The options that all lessons have. `file` gives the lesson's name to the files it writes."""
    parser = Parser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.set_defaults(lesson=Path(file).stem, world_size=1)
    option = parser.add_argument
    option("--epochs", type=int, default=8, help="passes over the training images (%(default)s)")
    option("--batch-size", type=int, default=120, help="images a step, of all processes together (120)")
    option("--lr", type=float, default=0.04, help="learning rate at the start (%(default)s)")
    option("--seed", type=int, default=0, help="of the first weights and of the order of the images (0)")
    option("--data", choices=DATA, default="digits", help="digits needs no download (digits)")
    option("--train-size", type=int, help="images to train on (12000 digits; all of the others)")
    option("--test-size", type=int, help="images to test on (2000 digits; all of the others)")
    option("--out", type=Path, default=Path("out"), help="folder for everything the run writes (out)")
    return parser


def check(arguments):
    """End with one line if this run cannot work; a traceback minutes later would say less."""
    world_size = arguments.world_size
    for option in ("epochs", "batch_size", "train_size", "test_size", "snapshot_every", "time_limit"):
        value = getattr(arguments, option, None)
        if value is not None and value < 1:
            refuse(f"--{option.replace('_', '-')} must be at least 1, not {value}")
    if world_size < 1:
        refuse(f"the number of processes must be at least 1, not {world_size}")
    if not (math.isfinite(arguments.lr) and arguments.lr > 0):
        refuse(f"--lr must be a number above 0, not {arguments.lr}")
    if not 0 <= arguments.seed < 2**31:
        refuse(f"--seed must be a number from 0 to {2**31 - 1}, not {arguments.seed}")
    if arguments.batch_size % world_size:
        refuse(
            f"--batch-size {arguments.batch_size} does not divide by {world_size} processes: "
            f"take {math.ceil(arguments.batch_size / world_size) * world_size}, for instance"
        )
    processes = int(os.environ.get("LOCAL_WORLD_SIZE", world_size))
    if 0 < gpu_count() < processes:
        refuse(
            f"{processes} processes on this machine, but {gpu_count()} GPUs: start at most one for each GPU, "
            'or put CUDA_VISIBLE_DEVICES="" in front of the command to use the CPU'
        )
    try:
        arguments.out.mkdir(parents=True, exist_ok=True)
        probe = arguments.out / f".writable-{os.getpid()}"
        probe.touch()
        probe.unlink(missing_ok=True)  # another machine's process may have the same number, and disk
    except OSError as error:
        refuse(f"cannot write to --out {arguments.out} ({error.strerror}): name a folder that you own")
    images = arguments.train_size or 12_000
    if arguments.data != "digits":
        images = len(load_images(arguments)[0])  # downloads them, before there are processes to fail in
    if images < arguments.batch_size:
        refuse(f"{images} training images do not fill one --batch-size of {arguments.batch_size}")


def settings(arguments, model):
    """What a snapshot must have in common with the run that resumes from it."""
    names = ("data", "train_size", "batch_size", "epochs", "lr", "seed")
    parameters = sum(parameter.numel() for parameter in model.parameters())
    kind = f"{type(model).__name__} of {parameters:,} parameters ({zlib.crc32(str(model).encode()):08x})"
    return {name: getattr(arguments, name) for name in names} | {"model": kind}


def require_torchrun(file):
    if "RANK" not in os.environ:
        command = f"torchrun --standalone --nproc-per-node 2 {os.path.relpath(file)}"
        refuse(f"this lesson is started by torchrun: {command}")
