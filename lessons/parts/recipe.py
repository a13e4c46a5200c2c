"""The other half of lesson 08: options, images, learning rate, best epoch, board."""

import atexit
import json
import math
import multiprocessing
import os
import platform
import signal
import sys
import threading
import zlib

import torch
from torch.utils.data import Dataset, DistributedSampler

import workload
from parts.snapshot import survive_a_full_disk

workload.import_torchvision()
from torchvision.transforms import v2  # noqa: E402


def options(parser):
    title = "of this lesson, or with another default"
    group = parser.add_argument_group(title, conflict_handler="resolve")
    option = group.add_argument
    option("--epochs", type=int, default=4, help="passes over the training images (4)")
    option("--batch-size", type=int, default=60, help="images a step, of all processes (60)")
    option("--lr", type=float, default=0.1, help="highest learning rate, for a batch of 60 (0.1)")
    option("--train-size", type=int, help="images to train and validate on (3000 digits; others: all)")
    option("--validation-size", type=int, help="those of them that choose the best epoch (a tenth)")
    option("--width", type=int, help="channels of the first layer (8 for digits, else 64)")
    option("--warm-up", type=float, default=0.5, help="epochs of a rising learning rate (0.5)")
    option("--patience", type=int, default=3, help="epochs to wait for a better one (3)")
    option("--workers", type=int, default=0, help="processes that prepare images, for each (0)")
    option("--compile", action="store_true", help="compile the model: minutes at first (needs gcc)")
    option("--double", action="store_true", help="compute in 64 bits")
    option("--profile", action="store_true", help="write a trace of five steps, for ui.perfetto.dev")
    option("--peak-tflops", type=float, help="what one GPU can do, or one process on the CPU")


def check(arguments):
    if arguments.width is None:
        arguments.width = 8 if arguments.data == "digits" else 64
    if arguments.train_size is None and arguments.data == "digits":
        arguments.train_size = 3000
    if arguments.patience < 1:
        workload.refuse(f"--patience must be at least 1, not {arguments.patience}")
    if arguments.workers < 0:
        workload.refuse(f"--workers must be at least 0, not {arguments.workers}")
    epochs, warm_up, peak = arguments.epochs, arguments.warm_up, arguments.peak_tflops
    if not 0 <= warm_up <= epochs:
        workload.refuse(f"--warm-up must be from 0 to the {epochs} epochs, not {warm_up}")
    if peak is not None and not 0 < peak < math.inf:
        workload.refuse(f"--peak-tflops must be a number above 0, not {peak}")
    workload.check(arguments)
    images = arguments.train_size
    if arguments.data != "digits":
        images = len(workload.load_images(arguments)[0])
    if arguments.validation_size is None:
        arguments.validation_size = max(1, images // 10)
    size, batch_size = arguments.validation_size, arguments.batch_size
    if size < 1:
        workload.refuse(f"--validation-size must be at least 1, not {size}")
    if images - size < batch_size:
        left = f"{images} images without the {size} of --validation-size"
        workload.refuse(f"{left} do not fill one --batch-size of {batch_size}")


def settings(arguments):
    """Those of these options that a snapshot and the run that resumes must have in common."""
    return {
        "warm_up": arguments.warm_up,
        "patience": arguments.patience,
        "double": arguments.double,
        "validation_size": arguments.validation_size,  # the best epoch is a count of these images
    }


class Sampler(DistributedSampler):
    """Sends the epoch along with each index: workers outlive an epoch, and would not hear of the next."""

    def __iter__(self):
        return ((self.epoch, index) for index in super().__iter__())


class Augmented(Dataset):
    """The same image looks the same in the same epoch, whichever process and worker prepares it."""

    def __init__(self, images, arguments):
        self.images, self.seed = images, arguments.seed
        move = v2.RandomCrop(images.images.shape[-1], padding=2)
        if arguments.data == "cifar10":  # a cat in a mirror is a cat; a 3 in a mirror is no digit
            turn = v2.RandomHorizontalFlip()
        else:
            turn = v2.RandomRotation(8, v2.InterpolationMode.BILINEAR)
        self.transform = v2.Compose([move, turn])

    def __getitems__(self, pairs):
        images, labels = self.images.__getitems__([index for _, index in pairs])
        random = torch.get_rng_state()  # without workers, it is that of the training
        for position, (epoch, index) in enumerate(pairs):
            seed = zlib.crc32(f"{self.seed} {epoch} {index}".encode())
            torch.default_generator.manual_seed(seed)
            images[position] = self.transform(images[position])
        torch.set_rng_state(random)
        return images, labels


def loading(arguments, device):
    """Workers come from a server of their own: a fork of this process would copy the locks of
    its threads (gloo's, NCCL's), some of them locked, with nobody to unlock them."""
    options = {"collate_fn": workload.collate, "pin_memory": device.type != "cpu"}
    if arguments.workers:
        options |= {"num_workers": arguments.workers, "persistent_workers": True}
        options |= {"multiprocessing_context": "forkserver", "worker_init_fn": start_worker}
    return options


def start_worker(number):
    def end_with_trainer():
        # torch asks the system for the parent; that is the server, which ends after us.
        multiprocessing.parent_process().join()
        os._exit(1)

    threading.Thread(target=end_with_trainer, daemon=True).start()
    # The trainer, told to stop as well, finishes its step, and needs its images.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def finish_compiling(model, images):
    """Have the compiler work now: in the first step, the first epoch would be timed with its minutes."""
    before = {name: value.clone() for name, value in model.state_dict().items()}  # batch norm moves its own
    model(images).sum().backward()
    model.load_state_dict(before)
    model.zero_grad()


def rate(arguments, steps):
    """The share of the highest learning rate at each step: rising in a line, then in half a cosine."""
    rise = arguments.warm_up * steps
    fall = max(1, arguments.epochs * steps - rise)

    def share(step):
        if step < rise:
            return min(1, (step + 1) / rise)
        return (1 + math.cos(math.pi * (step - rise) / fall)) / 2

    return share


class Best:
    """The best epoch so far, and its weights. All processes see the same count, that of all validation
    images, and agree. The snapshots hold it, so that no crash can lose it."""

    def __init__(self):
        self.epoch, self.correct, self.weights = 0, -1, {}

    def see(self, epoch, correct, model):
        if correct <= self.correct:
            return
        self.epoch, self.correct = epoch, correct
        # Copies: the next step would change the model's own.
        weights = model.state_dict().items()
        self.weights = {name: value.to("cpu", copy=True) for name, value in weights}

    def state_dict(self):
        return {"epoch": self.epoch, "correct": self.correct, "weights": self.weights}

    def load_state_dict(self, state):
        self.epoch, self.correct, self.weights = state["epoch"], state["correct"], state["weights"]


def record(arguments, device, **results):
    """What one must know to repeat this run, beside its curve: OUT/<lesson>.run.json."""
    gpu = None if device.type == "cpu" else torch.cuda.get_device_name(device)
    values = {
        "command": sys.argv,
        "settings": vars(arguments),
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "cuda": torch.version.cuda,
        },
        "machine": {"host": platform.node(), "system": platform.platform(), "gpu": gpu},
        "results": results,
    }
    path = arguments.out / f"{arguments.lesson}.run.json"
    temporary = path.with_suffix(".temporary")
    with survive_a_full_disk(path, temporary):
        temporary.write_text(json.dumps(values, indent=1, default=str) + "\n")
        temporary.replace(path)


class Board:
    """What rank 0 writes for TensorBoard, and for whoever asks where the time goes."""

    def __init__(self, arguments, rank, first):
        self.writer = self.profile = None
        if rank == 0:
            from torch.utils.tensorboard import SummaryWriter

            folder = arguments.out / f"{arguments.lesson}.tensorboard"
            # purge_step hides what a run that crashed had written of this epoch and of later ones.
            self.writer = SummaryWriter(folder, purge_step=first)
        if rank == 0 and arguments.profile:
            self.start_profile(arguments.out / f"{arguments.lesson}.trace.json.gz")

    def start_profile(self, path):
        def save(profile):
            profile.export_chrome_trace(str(path))

        os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # else the profiler writes of itself
        plan = torch.profiler.schedule(wait=1, warmup=1, active=5, repeat=1)
        self.profile = torch.profiler.profile(schedule=plan, on_trace_ready=save)
        self.profile.start()
        atexit.register(self.profile.stop)  # a process that ends while it records dies of signal 11

    def step(self):
        if self.profile is not None:
            self.profile.step()

    def show(self, epoch, values):
        if self.writer is None:
            return
        for name, value in values.items():
            if value is not None:
                self.writer.add_scalar(name, value, epoch)
        self.writer.flush()  # what waits in memory dies with the process
        if values["mfu"] is not None:
            print(f"         | {values['mfu']:.1%} of the hardware's peak", flush=True)
