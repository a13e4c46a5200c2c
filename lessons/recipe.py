"""The other half of lesson 08: the parts of its pipeline.

options, check      the lesson's own words on the command line
Sampler, Augmented  random images that depend on the seed, the epoch and the image, and on nothing else
loading             workers and pinned memory
ResNet18            torchvision's, for small images
SyncBatchNorm       batch norm over the batch of all processes, on the CPU
rate                the learning rate at each step
Best                the best epoch so far, and whether there is hope for a better one
Board               TensorBoard, and a trace of the profiler
count_flops         with share_of_peak: how well the hardware is used
"""

import math
import signal
import zlib

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import Dataset, DistributedSampler
from torch.utils.flop_counter import FlopCounterMode

import workload

torchvision = workload.import_torchvision()


def options(parser):
    option = parser.add_argument
    option("--width", type=int, help="channels of the first layer (16 for digits, else 64: ResNet-18)")
    option("--warm-up", type=float, default=0.5, help="epochs in which the learning rate rises (0.5)")
    option("--patience", type=int, default=3, help="epochs without a better one before the run stops (3)")
    option("--workers", type=int, default=0, help="processes that prepare images for each that trains (0)")
    option("--peak-tflops", type=float, help="what one GPU can do, or one process on the CPU")
    option("--profile", action="store_true", help="write a trace of five steps, for ui.perfetto.dev")


def check(arguments):
    digits = arguments.data == "digits"
    arguments.width = arguments.width if arguments.width is not None else 16 if digits else 64
    if digits and arguments.train_size is None:
        arguments.train_size = 2400  # a ResNet is a lot of work for a CPU
    for name, least in (("width", 1), ("patience", 1), ("workers", 0)):
        if getattr(arguments, name) < least:
            workload.refuse(f"--{name} must be at least {least}, not {getattr(arguments, name)}")
    if not 0 <= arguments.warm_up <= arguments.epochs:
        workload.refuse(f"--warm-up must be from 0 to the {arguments.epochs} epochs, not {arguments.warm_up}")
    if arguments.peak_tflops is not None and not 0 < arguments.peak_tflops < math.inf:
        workload.refuse(f"--peak-tflops must be a number above 0, not {arguments.peak_tflops}")
    workload.check(arguments)


# ---- images -----------------------------------------------------------------------------------


class Sampler(DistributedSampler):
    """Sends the epoch along with each index: workers outlive an epoch, and would not hear of the next."""

    def __iter__(self):
        return ((self.epoch, index) for index in super().__iter__())


class Augmented(Dataset):
    """The same image looks the same in the same epoch, whichever process and worker prepares it."""

    def __init__(self, images, arguments):
        self.images, self.seed = images, arguments.seed
        transforms, size = torchvision.transforms.v2, images.images.shape[-1]
        turn = transforms.RandomRotation(8, transforms.InterpolationMode.BILINEAR)
        flip = transforms.RandomHorizontalFlip()  # a flipped cat is a cat; a flipped 3 is no digit
        other = flip if arguments.data == "cifar10" else turn
        self.transform = transforms.Compose([transforms.RandomCrop(size, padding=size // 8), other])

    def __len__(self):
        return len(self.images)

    def __getitems__(self, pairs):
        random = torch.get_rng_state()  # without workers, it is that of the training
        images, labels = self.images.__getitems__([index for _, index in pairs])
        for place, (epoch, index) in enumerate(pairs):
            torch.default_generator.manual_seed(zlib.crc32(f"{self.seed} {epoch} {index}".encode()))
            images[place] = self.transform(images[place])
        torch.set_rng_state(random)
        return images, labels


def loading(arguments, device):
    """What the loader is told besides. Workers come from a server of their own: a fork of this process
    would copy the locks of gloo's and NCCL's threads, some of them locked, and nobody to unlock them."""
    options = {"pin_memory": device.type != "cpu"}
    if arguments.workers:
        options |= {"num_workers": arguments.workers, "persistent_workers": True}
        options |= {"multiprocessing_context": "forkserver", "worker_init_fn": start_worker}
    return options


def start_worker(number):
    workload.end_with_parent()
    for name in (signal.SIGTERM, signal.SIGINT):  # the trainer finishes its step, and needs its images
        signal.signal(name, signal.SIG_IGN)


# ---- the model --------------------------------------------------------------------------------


class ResNet18(nn.Sequential):
    """torchvision's blocks behind a first layer for small images: 3x3, no stride, no max pooling."""

    def __init__(self, shape, width, norm):
        first = nn.Conv2d(shape[0], width, kernel_size=3, padding=1, bias=False)
        super().__init__(workload.Normalize(), first, norm(width), nn.ReLU(inplace=True))
        block, before = torchvision.models.resnet.BasicBlock, width
        for stage, channels in enumerate((width, 2 * width, 4 * width, 8 * width)):
            shortcut = None
            if stage > 0:
                shortcut = nn.Sequential(nn.Conv2d(before, channels, 1, 2, bias=False), norm(channels))
            self.append(block(before, channels, 1 + (stage > 0), shortcut, norm_layer=norm))
            self.append(block(channels, channels, norm_layer=norm))
            before = channels
        self.extend([nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, 10)])
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")


class SumOfAll(torch.autograd.Function):
    """What each process has, summed. A value that went to all has gradients from all, summed as well."""

    @staticmethod
    def forward(context, values):
        total = values.clone()
        dist.all_reduce(total)
        return total

    backward = staticmethod(lambda context, gradients: SumOfAll.forward(context, gradients))


class SyncBatchNorm(nn.BatchNorm2d):
    """What nn.SyncBatchNorm does on a GPU, for the CPU, which that one refuses. All shares are equal here."""

    def forward(self, values):
        world_size = dist.get_world_size() if dist.is_initialized() else 1
        if not self.training or world_size == 1:
            return super().forward(values)
        mean = SumOfAll.apply(values.mean(dim=(0, 2, 3), keepdim=True)) / world_size
        centred = values - mean  # not the mean of the squares less the square of the mean: that cancels
        variance = SumOfAll.apply(centred.square().mean(dim=(0, 2, 3), keepdim=True)) / world_size
        count = values.numel() / values.shape[1] * world_size
        with torch.no_grad():
            self.num_batches_tracked += 1
            self.running_mean.lerp_(mean.flatten(), self.momentum)
            self.running_var.lerp_(variance.flatten() * count / (count - 1), self.momentum)
        scale = self.weight.view_as(mean[0]) * (variance + self.eps).rsqrt()
        return centred * scale + self.bias.view_as(mean[0])


# ---- how the run goes -------------------------------------------------------------------------


def rate(arguments, steps):
    """The share of the full learning rate at each step: it rises in a line, then falls in half a cosine."""
    rise, end = arguments.warm_up * steps, arguments.epochs * steps

    def share(step):
        if step < rise:
            return min(1, (step + 1) / rise)
        return (1 + math.cos(math.pi * (step - rise) / max(1, end - rise))) / 2

    return share


class Best:
    """All processes give it the same count, of all test images, and so they agree without a word."""

    def __init__(self, patience):
        self.patience, self.epoch, self.correct = patience, 0, -1

    def is_beaten(self, epoch, correct):
        if correct <= self.correct:
            return False
        self.epoch, self.correct = epoch, correct
        return True

    def is_final(self, epoch):
        """Is it hopeless to begin this epoch?"""
        return epoch - self.epoch > self.patience

    def state_dict(self):
        return {"epoch": self.epoch, "correct": self.correct}

    def load_state_dict(self, state):
        self.epoch, self.correct = state["epoch"], state["correct"]


class Board:
    """What rank 0 writes for TensorBoard, and for whoever asks where the time goes."""

    def __init__(self, arguments, rank, first):
        self.writer = self.profile = None
        if rank == 0:
            from torch.utils.tensorboard import SummaryWriter

            # What a run that crashed had written of this epoch and of later ones is hidden.
            self.writer = SummaryWriter(arguments.out / f"{arguments.lesson}.tensorboard", purge_step=first)
        if rank == 0 and arguments.profile:
            trace = str(arguments.out / f"{arguments.lesson}.trace.json.gz")
            self.profile = torch.profiler.profile(
                schedule=torch.profiler.schedule(wait=1, warmup=1, active=5, repeat=1),
                on_trace_ready=lambda profile: profile.export_chrome_trace(trace),
            )
            self.profile.start()

    def step(self):
        if self.profile:
            self.profile.step()

    def show(self, epoch, values):
        for name, value in values.items():
            if self.writer and value is not None:
                self.writer.add_scalar(name, value, epoch)
        if self.writer:
            self.writer.flush()  # now: what waits in memory dies with the process


def count_flops(model, images):
    """Multiplications and additions of one image, forward and backward. Call it before DDP has the model."""
    model.eval()  # leaves batch norm as it is
    with FlopCounterMode(display=False) as counter:
        model(images[:1]).sum().backward()
    model.train()
    model.zero_grad()
    return counter.get_total_flops()


# What a GPU can do in a second, in 10**12: NVIDIA's data sheets, FP32 without tensor cores. So the lessons
# train: see set_seed.
PEAKS = {"H200": 67, "H100 80GB HBM3": 67, "H100 PCIe": 51, "A100": 19.5, "L40S": 91.6, "T4": 8.1}


def share_of_peak(speed, flops, arguments, device):
    """The share of what the hardware could do that went into the model (MFU); None if that is not known."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
    known = [peak for part, peak in PEAKS.items() if part in name]
    peak = arguments.peak_tflops or (known[0] if known else None)
    return peak and speed * flops / (peak * 1e12 * arguments.world_size)
