"""A reader's script with a copy of lessons/parts/snapshot.py in its folder, and nothing else of ours."""

import gc
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.nn  # before init_process_group, or gloo may abort the process at exit
from snapshot import Snapshots
from torch import nn

SETTINGS = {"lr": 0.02, "steps": 400}


def train(rank):
    torch.manual_seed(rank)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Dropout(0.2), nn.Linear(16, 1))
    model = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), SETTINGS["lr"], momentum=0.9)
    snapshots = Snapshots("out/own", "run", SETTINGS)
    state, done = snapshots.find_newest(), 0
    if state is not None:
        model.module.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        torch.set_rng_state(state["random"][rank])
        done = state["step"]
        print(f"resumed after step {done}", flush=True)

    for step in range(done + 1, SETTINGS["steps"] + 1):
        images = torch.rand(4, 8)
        loss = (model(images) - images.sum(dim=1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        time.sleep(0.005)
        stop = snapshots.agree_to_stop()
        if stop or step % 20 == 0:
            random = snapshots.gather(torch.get_rng_state())
            state = {"model": model.module.state_dict(), "optimizer": optimizer.state_dict()}
            snapshots.save(state | {"epoch": 0, "step": step, "random": random})
        if stop:
            break
    if rank == 0 and not stop:
        torch.save(model.module.state_dict(), Path("out/weights"))
    snapshots.close()
    return stop


dist.init_process_group("gloo")
stopped = train(dist.get_rank())
gc.collect()  # the DDP model refers to itself: a gloo thread that outlives the group may abort the process
dist.destroy_process_group()
sys.exit(75 if stopped else 0)
