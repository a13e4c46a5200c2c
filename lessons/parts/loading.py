"""The images of lesson 08: every process and every worker augments an image in the same way."""

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
    """Sends the epoch along with each index: workers outlive an epoch and must learn which one it is."""

    def __iter__(self):
        return ((self.epoch, index) for index in super().__iter__())


class Augmented(Dataset):
    """In a given epoch an image looks the same, whichever process and worker prepares it."""

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
        random = torch.get_rng_state()  # without workers, training uses the same state
        for position, (epoch, index) in enumerate(pairs):
            seed = zlib.crc32(f"{self.seed} {epoch} {index}".encode())
            torch.default_generator.manual_seed(seed)
            images[position] = self.transform(images[position])
        torch.set_rng_state(random)
        return images, labels


def make_loader(images, size, sampler, workers, device):
    options = {"collate_fn": workload.collate, "pin_memory": device.type != "cpu"}
    if workers:
        # A server forks the workers. A fork of this process would copy the locks of its threads
        # (gloo's, NCCL's), and no thread would be left to release a lock that was held.
        options |= {"num_workers": workers, "persistent_workers": True}
        options |= {"multiprocessing_context": "forkserver", "worker_init_fn": start_worker}
    return DataLoader(images, size, sampler=sampler, drop_last=True, **options)


def start_worker(number):
    def end_with_trainer():
        # torch watches the worker's parent, but the parent is the server, which ends later.
        multiprocessing.parent_process().join()
        os._exit(1)

    threading.Thread(target=end_with_trainer, daemon=True).start()
    # The trainer gets the same signal, but it finishes its step and needs its images.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
