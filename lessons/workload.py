"""What every lesson shares and no lesson is about: the images, the model, the lines a run leaves behind.

Nothing here changes along the ladder. How a lesson trains is in the lesson itself.
"""

import argparse
import contextlib
import fcntl
import functools
import gc
import json
import math
import os
import signal
import socket
import sys
import threading
import time
import traceback
import zlib
from importlib.util import find_spec
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.nn  # before there is a group: its functions keep the one that they find, for good
from torch import nn
from torch.distributed.elastic.multiprocessing.errors import record
from torch.nn.functional import affine_grid, grid_sample, interpolate
from torch.utils.data import Dataset
from tqdm import tqdm

# ---- the command line -------------------------------------------------------------------------


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


def refuse(message):
    """End this process, non-zero, with one line from rank 0."""
    if int(os.environ.get("RANK", 0)) != 0:
        # torchrun ends all processes as soon as one has ended: the others leave rank 0 the time to speak.
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        time.sleep(10)
        os._exit(2)
    if os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0":  # torchrun restarts even a hopeless run
        say(f"error: {' '.join(str(message).split())}")
    sys.exit(2)


def say(message):
    print(message, file=sys.stderr, flush=True)


# ---- processes that end together ----------------------------------------------------------------

told_to_stop = threading.Event()


def end_with_parent():
    """End this process when the one that started it is gone: nobody else would. (Lessons 05 and later.)"""
    parent = os.getppid()

    def watch():
        while os.getppid() == parent:
            time.sleep(0.5)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def listen_for_the_end():
    """From now on SIGTERM and Ctrl-C do not end this process. The lesson asks for them between two steps."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, frame: told_to_stop.set())


def leave(status):
    """End with a status that a scheduler can act on."""
    if status and os.environ["RANK"] == "0":
        say(f"told to stop: saved, and ending with status {status}. Started again, the run goes on from here")
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # from srun, as soon as another process has ended with 75
    sys.exit(status)


def release_group():
    """Drop what refers to the process group, so that destroy_process_group() ends gloo's threads.

    They end with the last reference. One that is left may free a tensor while Python ends; it waits for
    Python's lock, which nobody gets any more, and the process aborts after it has done everything.
    """
    for thing in gc.get_objects():
        if type(thing) is dist.DeviceMesh:  # caches of DTensor keep meshes, and those their groups
            getattr(thing, "_pg_registry", {}).clear()
    gc.collect()  # a DDP object refers to its group, and in a circle to itself


def crash_once(now):
    """Die as if the machine had failed: the last process of all, and only in torchrun's first attempt."""
    is_last = int(os.environ["RANK"]) == int(os.environ["WORLD_SIZE"]) - 1
    if now and is_last and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        os.kill(os.getpid(), signal.SIGKILL)


def let_the_first_speak(function):
    """Show the error of this process, and hand it to torchrun for its report. But if it fails only because
    another one is gone, leave the console to that one."""

    def wait_for_the_first(*arguments):
        try:
            return function(*arguments)
        except Exception as error:
            if isinstance(error, dist.DistError) or "gloo" in str(error):
                for number in (signal.SIGTERM, signal.SIGINT):
                    signal.signal(number, signal.SIG_DFL)
                if told_to_stop.is_set():
                    os.kill(os.getpid(), signal.SIGTERM)
                time.sleep(5)  # torchrun ends this process within that time, if it finds another one dead
            raise

    @functools.wraps(function)
    def speak(*arguments):
        try:
            return record(wait_for_the_first)(*arguments)
        except Exception:
            traceback.print_exc()
            os._exit(1)  # on the way out, the process group could abort with an error of its own

    return speak


# ---- the machine ------------------------------------------------------------------------------


def gpu_count():
    """GPUs that processes can train on together. A Mac's is none: gloo cannot reach its memory."""
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    if accelerator is None or dist.get_default_backend_for_device(accelerator) == "gloo":
        return 0
    return torch.accelerator.device_count()


def pick_device(number=0):
    """GPU `number` of this machine, or the CPU if it has none."""
    if gpu_count() == 0:
        return torch.device("cpu")
    torch.accelerator.set_device_index(number)
    return torch.device(torch.accelerator.current_accelerator().type, number)


def set_seed(seed):
    """Make this process repeatable: the same command gives the same bytes."""
    torch.manual_seed(seed)
    # cuDNN would take whichever kernel is fastest today, and compute with TF32's 10 bits where it can:
    # then no two runs agree to the byte, and two world sizes only to the third digit.
    torch.backends.cudnn.benchmark = False
    torch.backends.cudnn.deterministic = True
    torch.backends.fp32_precision = "ieee"


# ---- the images -------------------------------------------------------------------------------


class Images(Dataset):
    """Images as bytes, N x channels x height x width, with their labels."""

    def __init__(self, images, labels):
        self.images, self.labels = images, labels

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        return self.images[index], self.labels[index]

    def __getitems__(self, indices):
        # A DataLoader asks for a whole batch here, if it can. One by one costs more than training on them.
        indices = torch.tensor(indices, dtype=torch.int64)  # also where there are none
        return self.images[indices], self.labels[indices]


def collate(batch):
    """The collate function for Images: the batch is already whole."""
    return batch


def load_images(arguments):
    """The training set and the test set that the command line asks for."""
    return DATA[arguments.data](arguments)


def digits(arguments):
    """The default: needs no download and no network, and is made in a second."""
    train_size, test_size = arguments.train_size or 12_000, arguments.test_size or 2_000
    return draw_digits(train_size, seed=1), draw_digits(test_size, seed=2)


def draw_digits(count, seed):
    """`count` pictures of digits, 1x28x28, warped, shifted and noised. The same seed gives the same bytes."""
    fonts, ink = draw_fonts()
    images, labels = [], []
    for start in range(0, count, 1000):  # by the thousand: a million digits must not need 25 GB at once
        generator = torch.Generator().manual_seed(seed * 1_000_003 + start)

        def uniform(low, high, *shape):
            return torch.empty(1000, *shape).uniform_(low, high, generator=generator)  # noqa: B023

        label = torch.randint(10, (1000,), generator=generator)
        font = torch.randint(fonts, (1000,), generator=generator)
        turn, slant = uniform(-0.2, 0.2), uniform(-0.2, 0.2)
        width, height = uniform(0.95, 1.6), uniform(0.95, 1.5)
        across = width * turn.cos(), slant - width * turn.sin(), uniform(-0.2, 0.2)
        upright = height * turn.sin(), height * turn.cos(), uniform(-0.2, 0.2)
        warp = torch.stack(across + upright, dim=1).view(1000, 2, 3)
        grid = affine_grid(warp, (1000, 1, 28, 28), align_corners=False)
        ripple = 0.08 * torch.randn(1000, 2, 5, 5, generator=generator)
        ripple = interpolate(ripple, size=(28, 28), mode="bicubic", align_corners=True)
        drawn = grid_sample(ink[label * fonts + font], grid + ripple.permute(0, 2, 3, 1), align_corners=False)
        drawn = drawn * uniform(0.45, 1, 1, 1, 1) + 0.12 * torch.randn(1000, 1, 28, 28, generator=generator)
        images.append((drawn.clamp(0, 1) * 255).round().to(torch.uint8))
        labels.append(label)
    return Images(torch.cat(images)[:count], torch.cat(labels)[:count])


def draw_fonts():
    """Every digit in every DejaVu font that matplotlib ships, 40x40, with the number of fonts."""
    from PIL import Image, ImageDraw, ImageFont

    # find_spec, not an import: matplotlib takes half a second, and writes a cache into the reader's home.
    folder = Path(find_spec("matplotlib").submodule_search_locations[0]) / "mpl-data/fonts/ttf"
    # The two fonts named Display have no digits, only boxes.
    fonts = sorted(path for path in folder.glob("DejaVu*.ttf") if "Display" not in path.name)
    ink = []
    for digit in range(10):
        for path in fonts:
            picture = Image.new("L", (40, 40))
            font = ImageFont.truetype(str(path), 36, layout_engine=ImageFont.Layout.BASIC)
            ImageDraw.Draw(picture).text((20, 20), str(digit), fill=255, font=font, anchor="mm")
            ink.append(torch.tensor(list(picture.tobytes())).view(1, 40, 40) / 255)
    return len(fonts), torch.stack(ink)


def mnist(arguments):
    def load(root, train):
        dataset = import_torchvision().datasets.MNIST(root, train=train, download=True)
        return dataset.data.unsqueeze(1), dataset.targets

    return from_torchvision(arguments, load, files="MNIST/raw")


def cifar10(arguments):
    def load(root, train):
        dataset = import_torchvision().datasets.CIFAR10(root, train=train, download=True)
        return torch.from_numpy(dataset.data).permute(0, 3, 1, 2).contiguous(), torch.tensor(dataset.targets)

    return from_torchvision(arguments, load, files="cifar-10-batches-py")


def from_torchvision(arguments, load, files):
    root = arguments.out / "data"
    root.mkdir(parents=True, exist_ok=True)
    with open(root / ".lock", "w") as lock, contextlib.redirect_stdout(None):
        # One process downloads and the others wait: all at once they would write into each other's files.
        fcntl.flock(lock, fcntl.LOCK_EX)
        limit = socket.getdefaulttimeout()
        socket.setdefaulttimeout(10)  # a network that swallows packets would be waited for without end
        try:
            splits = load(root, train=True), load(root, train=False)
        except Exception:
            splits = None
        finally:
            socket.setdefaulttimeout(limit)
    if splits is None:
        refuse(f"cannot download {arguments.data}: use --data digits, or put the files at {root / files}")
    (train_images, train_labels), (test_images, test_labels) = splits
    train_size, test_size = arguments.train_size, arguments.test_size
    train_set = Images(train_images[:train_size], train_labels[:train_size])
    return train_set, Images(test_images[:test_size], test_labels[:test_size])


DATA = {"digits": digits, "mnist": mnist, "cifar10": cifar10}


def import_torchvision():
    """torchvision, also beside a torch that it was not built for.

    The ordinary wheel beside a CPU build of torch cannot load its compiled operators, and its import
    then fails: "operator torchvision::nms does not exist". We need none of them. Once it has failed,
    it is enough to declare the two that its Python code speaks of, and to import again.
    """
    try:
        import torchvision
    except RuntimeError:
        declared = torch.library.Library("torchvision", "DEF")
        for name in ("nms", "qnms"):
            declared.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        import_torchvision.declared = declared  # a Library takes its schemas with it when it is freed
        import torchvision
    return torchvision


# ---- the model --------------------------------------------------------------------------------


class ConvNet(nn.Sequential):
    """About 32,000 parameters for digits, and smooth all through: GELU and average pooling.

    N processes add the same gradients in another order than one does, which changes them by 1e-8.
    ReLU and max pooling have kinks that turn such a grain into another path; this network forgets it.
    """

    def __init__(self, shape):
        channels, height, width = shape
        super().__init__(
            Normalize(),
            nn.Conv2d(channels, 16, kernel_size=5, stride=2, padding=2),
            nn.GELU(),
            nn.Conv2d(16, 16, kernel_size=5, padding=2),
            nn.AvgPool2d(2),
            nn.GELU(),
            nn.Flatten(),
            nn.Linear(16 * (height // 4) * (width // 4), 32),
            nn.GELU(),
            nn.Linear(32, 10),
        )


class Normalize(nn.Module):
    """Bytes to numbers around 0. It is in the model so that bytes travel to the device: a quarter as many."""

    def forward(self, images):
        return (images.float() - 48) / 64


# ---- what a run shows and leaves behind -------------------------------------------------------


def progress(batches, epoch, quiet=False):
    """A progress bar around the batches of an epoch; none where the output is no terminal."""
    return tqdm(batches, f"epoch {epoch:2}", disable=quiet or None, leave=False, unit="step")


def report(arguments, epoch, loss, accuracy, images_per_second):
    """Print the epoch's line and append it, in full precision, to OUT/<lesson>.jsonl."""
    things = "texts" if arguments.data == "limericks" else "images"
    speed = f"{images_per_second:,.0f} {things}/s"
    print(f"epoch {epoch:2} | loss {loss:.4f} | accuracy {accuracy:5.1%} | {speed}", flush=True)
    values = {
        "epoch": epoch,
        "loss": loss,
        "accuracy": accuracy,
        "images_per_second": images_per_second,
        "world_size": arguments.world_size,
    }
    path = arguments.out / f"{arguments.lesson}.jsonl"
    earlier = path.read_text().splitlines() if path.exists() else []
    # A run that repeats an epoch after a crash, or starts anew, replaces what an earlier one said of it.
    kept = [text for text in earlier if json.loads(text)["epoch"] < epoch]
    aside = path.with_suffix(".jsonl.aside")
    try:
        aside.write_text("".join(f"{text}\n" for text in [*kept, json.dumps(values)]))
        aside.replace(path)
    except OSError as error:  # a full disk must not end a run that has trained for a week
        say(f"{path} lacks epoch {epoch} ({error.strerror}); going on without it")
        with contextlib.suppress(OSError):
            aside.unlink()
