"""The other half of lesson 08: options, images, the learning rate, the best epoch, what a run shows."""

import atexit
import math
import multiprocessing
import os
import signal
import threading
import zlib

import torch
import torch.distributed as dist
from torch.utils.data import Dataset, DistributedSampler

import workload
from parts import snapshot

workload.import_torchvision()
from torchvision.transforms import v2  # noqa: E402


def options(parser):
    group = parser.add_argument_group("of this lesson, or with another default", conflict_handler="resolve")
    option = group.add_argument
    option("--epochs", type=int, default=4, help="passes over the training images (4)")
    option("--batch-size", type=int, default=60, help="images a step, of all processes together (60)")
    option("--lr", type=float, default=0.1, help="highest learning rate, for a batch of 60 images (0.1)")
    option("--train-size", type=int, help="images to train on (2400 digits; all of the others)")
    option("--width", type=int, help="channels of the first layer (8 for digits, else 64: ResNet-18)")
    option("--warm-up", type=float, default=0.5, help="epochs in which the learning rate rises (0.5)")
    option("--patience", type=int, default=3, help="epochs without a better one before the run stops (3)")
    option("--workers", type=int, default=0, help="processes that prepare images for each that trains (0)")
    option("--double", action="store_true", help="compute in 64 bits")
    option("--profile", action="store_true", help="write a trace of five steps, for ui.perfetto.dev")
    option("--peak-tflops", type=float, help="what one GPU can do, or one process on the CPU")


def check(arguments):
    for name, small, whole in (("width", 8, 64), ("train_size", 2400, None)):
        if getattr(arguments, name) is None:
            setattr(arguments, name, small if arguments.data == "digits" else whole)
    for name, least in (("width", 1), ("patience", 1), ("workers", 0)):
        if getattr(arguments, name) < least:
            workload.refuse(f"--{name} must be at least {least}, not {getattr(arguments, name)}")
    if not 0 <= arguments.warm_up <= arguments.epochs:
        workload.refuse(f"--warm-up must be from 0 to the {arguments.epochs} epochs, not {arguments.warm_up}")
    if arguments.peak_tflops is not None and not 0 < arguments.peak_tflops < math.inf:
        workload.refuse(f"--peak-tflops must be a number above 0, not {arguments.peak_tflops}")
    workload.check(arguments)


class Sampler(DistributedSampler):
    """Sends the epoch along with each index: workers outlive an epoch, and would not hear of the next."""

    def __iter__(self):
        return ((self.epoch, index) for index in super().__iter__())


class Augmented(Dataset):
    """The same image looks the same in the same epoch, whichever process and worker prepares it."""

    def __init__(self, images, arguments):
        self.images, self.seed = images, arguments.seed
        move = v2.RandomCrop(images.images.shape[-1], padding=2)
        turn, flip = v2.RandomRotation(8, v2.InterpolationMode.BILINEAR), v2.RandomHorizontalFlip()
        is_mirrored = arguments.data == "cifar10"  # a cat in a mirror is a cat; a 3 in a mirror is no digit
        self.transform = v2.Compose([move, flip if is_mirrored else turn])

    def __getitems__(self, pairs):
        images, labels = self.images.__getitems__([index for _, index in pairs])
        random = torch.get_rng_state()  # without workers, it is that of the training
        for place, (epoch, index) in enumerate(pairs):
            torch.default_generator.manual_seed(zlib.crc32(f"{self.seed} {epoch} {index}".encode()))
            images[place] = self.transform(images[place])
        torch.set_rng_state(random)
        return images, labels


def loading(arguments, device):
    """Workers come from a server of their own: a fork of this process would copy the locks of its threads
    (gloo's, NCCL's), some of them locked, with nobody to unlock them."""
    options = {"collate_fn": workload.collate, "pin_memory": device.type != "cpu"}
    if arguments.workers:
        options |= {"num_workers": arguments.workers, "persistent_workers": True}
        options |= {"multiprocessing_context": "forkserver", "worker_init_fn": start_worker}
    return options


def start_worker(number):
    def end_with_trainer():  # torch asks the system for the parent; that is the server, which ends after us
        multiprocessing.parent_process().join()
        os._exit(1)

    threading.Thread(target=end_with_trainer, daemon=True).start()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the trainer finishes its step, and needs its images
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def rate(arguments, steps):
    """The share of the highest learning rate at each step: it rises in a line, and falls in half a cosine."""
    rise, end = arguments.warm_up * steps, arguments.epochs * steps

    def share(step):
        if step < rise:
            return min(1, (step + 1) / rise)
        return (1 + math.cos(math.pi * (step - rise) / max(1, end - rise))) / 2

    return share


class Best:
    """All processes see the same count, that of all test images, and so they agree without a word."""

    def __init__(self):
        self.epoch, self.correct = 0, -1

    def see(self, arguments, epoch, correct, model):
        if correct <= self.correct:
            return
        self.epoch, self.correct = epoch, correct
        path, aside = (arguments.out / f"{arguments.lesson}.best.{end}" for end in ("pt", "aside"))
        if dist.get_rank() == 0:
            with snapshot.survive_a_full_disk(path, aside):
                torch.save({name: value.cpu() for name, value in model.state_dict().items()}, aside)
                aside.replace(path)

    def state_dict(self):
        return vars(self)

    def load_state_dict(self, state):
        vars(self).update(state)


class Board:
    """What rank 0 writes for TensorBoard, and for whoever asks where the time goes."""

    def __init__(self, arguments, rank, first):
        self.writer = self.profile = None
        if rank == 0:
            from torch.utils.tensorboard import SummaryWriter

            # purge_step hides what a run that crashed had written of this epoch and of later ones.
            self.writer = SummaryWriter(arguments.out / f"{arguments.lesson}.tensorboard", purge_step=first)
        if rank == 0 and arguments.profile:
            os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # else the profiler writes of itself
            trace = str(arguments.out / f"{arguments.lesson}.trace.json.gz")
            plan = torch.profiler.schedule(wait=1, warmup=1, active=5, repeat=1)
            save = lambda profile: profile.export_chrome_trace(trace)  # noqa: E731
            self.profile = torch.profiler.profile(schedule=plan, on_trace_ready=save)
            self.profile.start()
            atexit.register(self.profile.stop)  # a process that ends while it records dies of signal 11
        self.step = self.profile.step if self.profile else lambda: None

    def show(self, epoch, **values):
        for name, value in values.items() if self.writer else ():
            if value is not None:
                self.writer.add_scalar(name, value, epoch)
                self.writer.flush()  # what waits in memory dies with the process
        if self.writer and values["mfu"]:
            print(f"         | {values['mfu']:.1%} of the hardware's peak", flush=True)
