"""A reader's script with random augmentation and dropout, into which lesson 06a's lines were copied.

    torchrun --standalone --nproc-per-node 2 --max-restarts 1 augmenting.py --workers 2 --crash-at 3

Each process writes the random numbers of its last epoch's images, and rank 0 writes the weights.
"""

import argparse
import os
import signal
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.nn  # before init_process_group, or gloo may abort the process at exit
from torch import nn
from torch.utils.data import DataLoader, Dataset, DistributedSampler


class Noisy(Dataset):
    def __len__(self):
        return 48

    def __getitem__(self, index):
        noise = torch.rand(4)
        return noise, noise + index / 48


def train(rank, world_size, arguments):
    torch.manual_seed(arguments.seed)
    train_set = Noisy()
    sampler = DistributedSampler(train_set, seed=arguments.seed)
    train_loader = DataLoader(train_set, 4, sampler=sampler, num_workers=arguments.workers)
    model = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Dropout(0.5), nn.Linear(16, 1))
    model = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    snapshot, first, done = Path("out/snapshot"), 1, 0
    if snapshot.exists():
        state = torch.load(snapshot)
        model.module.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        first, done, processes = state["epoch"], state["step"], state["processes"]
        print(f"resumed in epoch {first} after step {done}", flush=True)

    for epoch in range(first, 4):
        drawn = []
        sampler.set_epoch(epoch)
        torch.manual_seed(arguments.seed * 10**7 + epoch * 10**4 + rank)
        for step, (noise, images) in enumerate(train_loader, 1):
            drawn.append(noise)
            if step <= done:
                torch.set_rng_state(processes[rank % len(processes)]["random"])
                continue
            loss = model(images).sub(1).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step % 4 == 0:
                processes = [None] * world_size
                dist.all_gather_object(processes, {"random": torch.get_rng_state()})
                state = {"model": model.module.state_dict(), "optimizer": optimizer.state_dict()}
                state |= {"epoch": epoch, "step": step, "processes": processes}
                if rank == 0:
                    torch.save(state, snapshot)
        done = 0
        if epoch == arguments.crash_at and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
            os.kill(os.getpid(), signal.SIGKILL)

    torch.save(torch.cat(drawn), f"out/drawn{rank}")
    if rank == 0:
        torch.save(model.module.state_dict(), "out/weights")


if __name__ == "__main__":  # a worker that is started anew imports this file
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--crash-at", type=int)
    arguments = parser.parse_args()
    Path("out").mkdir(exist_ok=True)
    dist.init_process_group("gloo")
    train(dist.get_rank(), dist.get_world_size(), arguments)
    dist.destroy_process_group()
