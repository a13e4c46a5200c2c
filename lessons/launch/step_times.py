"""Measures where the time of a training step goes, on every rank. Try it first on a model of its own:

    torchrun --standalone --nproc-per-node 2 lessons/launch/step_times.py

You will see a line for each rank: how long a step waits for the loader, computes, and takes as a whole.
Below are the things to look at. `--cause loader`, `straggler`, `large` or `small` makes the run slow for
this reason. The script needs only PyTorch: copy this one file beside yours, and call after DDP wraps the
model (no weights change):

    from step_times import measure
    measure(ddp_model, loader, compute_loss)  # compute_loss(batch) gives a loss from ddp_model
"""

import argparse
import contextlib
import os
import socket
import statistics
import time
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.distributed.nn  # before init_process_group, or gloo may abort the process at exit
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

# From these shares of a step on, something is worth looking at.
LOADING, COMMUNICATING = 0.1, 0.2
UNEQUAL = 1.2  # how many times as long as the fastest rank the slowest rank computes
SMALL = 2**20  # bytes of gradients: below, the number of messages counts, and not their size


def measure(ddp_model, loader, compute_loss, steps=20, warm_up=5):
    """Time some steps without communication, then some with it. Rank 0 prints the medians in milliseconds."""
    loading, computing, _ = time_steps(ddp_model, loader, compute_loss, steps, warm_up, is_alone=True)
    _, together, examples = time_steps(ddp_model, loader, compute_loss, steps, warm_up, is_alone=False)

    row = {"host": socket.gethostname(), "loading": loading, "computing": computing, "together": together}
    row["examples"] = examples
    rows = [None] * dist.get_world_size()
    dist.all_gather_object(rows, row)
    if dist.get_rank() == 0:
        size = 0  # bytes of gradients
        for parameter in ddp_model.parameters():
            if parameter.requires_grad:
                size += parameter.numel() * parameter.element_size()
        print("\n".join(report(rows, size)), flush=True)


def time_steps(ddp_model, loader, compute_loss, steps, warm_up, is_alone):
    """The median times of loading and of computing, and the examples of a step of this rank."""
    loading, computing = [], []
    batches = repeat(loader)
    for step in range(warm_up + steps):
        begin = time.perf_counter()
        batch = next(batches)
        loaded = time.perf_counter()

        ddp_model.zero_grad()
        with ddp_model.no_sync() if is_alone else contextlib.nullcontext():
            compute_loss(batch).backward()
        if torch.accelerator.is_available():
            torch.accelerator.synchronize()  # else only the launch of the kernels would be timed
        computed = time.perf_counter()

        if step >= warm_up:
            loading.append(1000 * (loaded - begin))
            computing.append(1000 * (computed - loaded))
    return statistics.median(loading), statistics.median(computing), count_examples(batch)


def repeat(loader):
    while True:
        yield from loader


def count_examples(batch):
    """The length of the first tensor in the batch."""
    while not isinstance(batch, torch.Tensor):
        batch = next(iter(batch.values() if isinstance(batch, dict) else batch))
    return len(batch)


def report(rows, size):
    lines = [f"{'rank':>4}  {'host':<16} {'loading':>9} {'computing':>10} {'a step':>9}   (milliseconds)"]
    step = 0.0  # of the slowest rank
    examples = 0  # of all ranks
    for rank, row in enumerate(rows):
        own = row["loading"] + row["together"]
        times = f"{row['loading']:9.2f} {row['computing']:10.2f} {own:9.2f}"
        lines.append(f"{rank:>4}  {row['host'][:16]:<16} {times}")
        step = max(step, own)
        examples += row["examples"]

    lines.append(
        f"{examples} examples in a step, {1000 * examples / step:,.0f} examples/s, without the optimizer"
    )

    # The slowest rank waits for no other rank, so what it waits for is the communication.
    communicating = max(0, min(row["together"] - row["computing"] for row in rows))
    if len(rows) == 1:
        communicating = 0  # what is measured here is only how much two measurements differ
    share = f"{communicating / step:.0%} of a step"
    hidden = f"{communicating:.2f} ms, {share}, for {size / 1e6:.2f} MB of gradients"
    lines.append(f"communication that the backward pass does not hide: {hidden}")
    return lines + look_at(rows, size, step, communicating)


def look_at(rows, size, step, communicating):
    found = []
    loading = max(row["loading"] for row in rows)
    if loading > LOADING * step:
        found.append(
            f"look at the loader: a step waits {loading:.2f} ms for it, {loading / step:.0%} of its time"
        )
    computing = [row["computing"] for row in rows]
    if max(computing) > UNEQUAL * min(computing):
        slowest = computing.index(max(computing))
        times = max(computing) / min(computing)
        found.append(f"look at rank {slowest}: it computes {times:.1f} times as long as the fastest rank")
    if communicating > COMMUNICATING * step:
        what = "the number of messages" if size < SMALL else "the size of the gradients, and the links"
        found.append(f"look at the communication: {what}")
    return found or ["nothing stands out"]


# ---- a model of its own, slow for the reason that --cause names ----


class Batches(Dataset):
    def __init__(self, batch_size, seconds):
        self.batch_size = batch_size
        self.seconds = seconds

    def __len__(self):
        return 100

    def __getitem__(self, index):
        time.sleep(self.seconds)
        return torch.ones(self.batch_size, 256)


def main(arguments):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    device = torch.device("cpu")
    if torch.accelerator.is_available():
        device = torch.accelerator.current_accelerator()
    batch_size = 8 if arguments.cause in ("large", "small") else 512
    width = {"large": 2048, "small": 8}.get(arguments.cause, 256)
    data = Batches(batch_size, seconds=0.05 if arguments.cause == "loader" else 0)
    loader = DataLoader(data, batch_size=None, sampler=DistributedSampler(data))
    model = nn.Sequential(nn.Linear(256, width), nn.GELU(), nn.Linear(width, width), nn.GELU())
    ddp_model = DistributedDataParallel(model.to(device))
    is_straggler = arguments.cause == "straggler" and rank == world_size - 1

    def compute_loss(inputs):
        inputs = inputs.to(device)
        for _ in range(4 if is_straggler else 0):
            model(inputs).sum().item()
        return ddp_model(inputs).mean()

    measure(ddp_model, loader, compute_loss, steps=10, warm_up=2)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--cause", choices=["loader", "straggler", "large", "small"], help="of a slow run")
    arguments = parser.parse_args()
    backend = "gloo"
    if torch.accelerator.is_available():
        torch.accelerator.set_device_index(int(os.environ["LOCAL_RANK"]))
        backend = dist.get_default_backend_for_device(torch.accelerator.current_accelerator())
    dist.init_process_group(backend, timeout=timedelta(seconds=60))
    main(arguments)
    dist.destroy_process_group()
