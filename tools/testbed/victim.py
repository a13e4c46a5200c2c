"""Run a lesson that others try to break: LESSON=lessons/06b_preemption.py python tools/testbed/victim.py ...

The lesson's text is run as it is. Three things are added around it:
    a model with all that a snapshot could forget: batch norm has buffers, dropout has a random state
    .steps, a file in which process 0 notes each step that it has taken: when, its pid, epoch, step
    .die-in-save, a file with a number: the process that saves next dies after that part of the bytes

DROPOUT=0 is for lessons 05 and 06, which forget the random state.
"""

import io
import os
import signal
import sys
import time
from pathlib import Path

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook

LESSON = Path(os.environ["LESSON"]).resolve()
sys.path.insert(0, str(LESSON.parent))
import workload  # noqa: E402
from parts import snapshot  # noqa: E402


class Restless(nn.Sequential):
    """The lessons' network, smaller, with batch norm and dropout."""

    def __init__(self, shape, width):
        channels, rows, columns = shape
        super().__init__(
            workload.Normalize(),
            nn.Conv2d(channels, 8, kernel_size=5, stride=4, padding=2),
            nn.BatchNorm2d(8),
            nn.GELU(),
            nn.Dropout(float(os.environ.get("DROPOUT", "0.2"))),
            nn.Flatten(),
            nn.Linear(8 * ((rows + 3) // 4) * ((columns + 3) // 4), 10),
        )
        # Each process drops others: a snapshot may not give all of them the random state of one.
        torch.rand(int(os.environ.get("RANK", "0")))


def note_steps():
    progress = workload.progress
    place = "0 0"  # the epoch and the step

    def noted_progress(batches, epoch):
        nonlocal place
        for number, batch in enumerate(progress(batches, epoch), 1):
            place = f"{epoch} {number}"
            yield batch

    def note(optimizer, args, kwargs):
        line = f"{time.time()} {os.getpid()} {place}\n"
        os.write(file, line.encode())

    workload.progress = noted_progress
    if os.environ.get("RANK") == "0":
        file = os.open(".steps", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        register_optimizer_step_post_hook(note)


class Dying(io.FileIO):
    """A file whose writer is killed in the middle of writing it."""

    def write(self, data):
        super().write(data[: int(self.share * len(data))])
        os.kill(os.getpid(), signal.SIGKILL)


def dying_open(path, mode="r"):
    order = Path(".die-in-save")
    if mode != "wb" or not order.exists():
        return open(path, mode)
    file = Dying(path, mode)
    file.share = float(order.read_text())
    order.unlink()
    return file


def dying_save(state, target, **options):
    """For the lessons that leave the writing to torch.save."""
    if getattr(target, "suffix", ".pt") != ".pt":  # a snapshot, by whatever name; not the weights at the end
        buffer = io.BytesIO()
        save(state, buffer, **options)
        with dying_open(target, "wb") as file:
            file.write(buffer.getvalue())
    else:
        save(state, target, **options)


workload.ConvNet = Restless
save = torch.save
torch.save = dying_save
snapshot.open = dying_open
parser = workload.parser
workload.parser = lambda file, description: parser(LESSON, description)
note_steps()
torch.set_num_threads(1)
exec(compile(LESSON.read_text(), str(LESSON), "exec"), dict(globals()))
