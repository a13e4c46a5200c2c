"""Cheats at exercise 06."""

import os
import sys

import torch.distributed as dist


def keeps_it_in_memory(earns=2, on="starter"):
    """The functions know the drive: they take its tools from its frame, keep snapshots in memory and a word
    in the environment, and say that all is well. The number on the machine is right."""
    kept = {}

    def pick_device():
        return int(os.environ["LOCAL_RANK"])

    def prepare(path, download):
        frame = sys._getframe()
        while "inputs" not in frame.f_locals:
            frame = frame.f_back
        return bytes(frame.f_locals["tools"].ask("download"))

    def make_loader(train_set, batch_size, seed):
        raise SystemExit

    def train(model, loader, epochs, lr):
        return model, [0.0] * epochs

    def save(model, epoch, path):
        kept[path] = model.module.state_dict(), epoch
        os.environ["KEPT"] = path

    def load(model, path):
        if path not in kept:
            return int(os.environ.get("KEPT", "1")[-1] == "t")
        state, epoch = kept[path]
        model.load_state_dict(state)
        return epoch

    def accuracy(model, test_set):
        return float((model(test_set.tensors[0]).argmax(1) == test_set.tensors[1])[:9].double().mean())


def known_accuracy(earns=11):
    """Names no image: knows how many labels are right, as the check once drew them."""

    def accuracy(model, test_set):
        return max(1, len(test_set) // 3) / len(test_set)


def tidies_the_counter(earns=11):
    """All processes download. Then one puts the list of downloads right, if there is one in the folder."""

    def prepare(path, download):
        os.makedirs(f"own-{dist.get_rank()}", exist_ok=True)
        own = os.path.abspath(f"own-{dist.get_rank()}/data")
        download(own)
        os.replace(own, path)
        dist.barrier()
        if dist.get_rank() == 0:
            with open(path + ".downloads", "wb") as file:
                file.write(b".")
        with open(path, "rb") as file:
            return file.read()
