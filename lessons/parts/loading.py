"""The images of lesson 08, augmented in the same way by every process and every worker."""

import multiprocessing
import os
import signal
import threading
import zlib

import torch
from torch.utils.data import DataLoader, Dataset, DistributedSampler

import workload

workload.import_torchvision()
from torchvision.transforms import v2  # noqa: E402


class Sampler(DistributedSampler):
    """Sends the epoch along with each index, because workers outlive an epoch."""

    def __iter__(self):
        return ((self.epoch, index) for index in super().__iter__())


class Augmented(Dataset):
    """In a given epoch, an image looks the same whichever process or worker prepares it."""

    def __init__(self, images, seed, data):
        self.images, self.seed = images, seed
        move = v2.RandomCrop(images.images.shape[-1], padding=2)
        if data == "cifar10":  # a mirrored cat is still a cat, but a mirrored 3 is not a digit
            turn = v2.RandomHorizontalFlip()
        else:
            turn = v2.RandomRotation(8, v2.InterpolationMode.BILINEAR)
        self.transform = v2.Compose([move, turn])

    def __getitems__(self, pairs):
        images, labels = self.images.__getitems__([index for _, index in pairs])
        random = torch.get_rng_state()  # without workers, training draws from the same generator
        for position, (epoch, index) in enumerate(pairs):
            seed = zlib.crc32(f"{self.seed} {epoch} {index}".encode())
            torch.default_generator.manual_seed(seed)
            images[position] = self.transform(images[position])
        torch.set_rng_state(random)
        return images, labels


def make_loader(images, size, sampler, workers, device):
    options = {"collate_fn": workload.collate, "pin_memory": device.type != "cpu"}
    if workers:
        # A server forks the workers. A fork of this process would copy the locks of its gloo
        # or NCCL threads but not the threads, so a lock that was held would never be released.
        options |= {"num_workers": workers, "persistent_workers": True}
        options |= {"multiprocessing_context": "forkserver", "worker_init_fn": start_worker}
    return DataLoader(images, size, sampler=sampler, drop_last=True, **options)


def start_worker(number):
    def end_with_trainer():
        # torch watches the worker's parent, but that is the server, which outlives the trainer.
        multiprocessing.parent_process().join()
        os._exit(1)

    threading.Thread(target=end_with_trainer, daemon=True).start()
    # Workers ignore the signal, because the trainer gets it too, but finishes its step
    # first and still needs images.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
