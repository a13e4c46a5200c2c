"""The images of lesson 08: augmented the same way whichever process prepares them, by workers if wanted."""

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
    """Sends the epoch along with each index: workers outlive an epoch, and would not hear of the next."""

    def __iter__(self):
        return ((self.epoch, index) for index in super().__iter__())


class Augmented(Dataset):
    """An image looks the same in the same epoch, whichever process and worker prepares it."""

    def __init__(self, images, seed, data):
        self.images, self.seed = images, seed
        move = v2.RandomCrop(images.images.shape[-1], padding=2)
        if data == "cifar10":  # a cat in a mirror is a cat; a 3 in a mirror is no digit
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


def make_loader(images, size, sampler, workers, device):
    options = {"collate_fn": workload.collate, "pin_memory": device.type != "cpu"}
    if workers:
        # From a server: a fork of this process would copy the locks of its threads (gloo's,
        # NCCL's), and no thread would be left to release those that were locked.
        options |= {"num_workers": workers, "persistent_workers": True}
        options |= {"multiprocessing_context": "forkserver", "worker_init_fn": start_worker}
    return DataLoader(images, size, sampler=sampler, drop_last=True, **options)


def start_worker(number):
    def end_with_trainer():
        # torch asks the system for the parent; that is the server, which ends after us.
        multiprocessing.parent_process().join()
        os._exit(1)

    threading.Thread(target=end_with_trainer, daemon=True).start()
    # The trainer, told to stop as well, finishes its step, and needs its images.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
