"""For scripts that show.ranks starts: importing this joins the process group, finish() ends it."""

import json
import os
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy

import workload  # noqa: F401 - at exit it ends the threads of the group

rank = int(os.environ["RANK"])
world_size = int(os.environ["WORLD_SIZE"])
store = f"file://{os.environ['STORE']}"
dist.init_process_group("gloo", store, timedelta(seconds=60), rank=rank, world_size=world_size)


def finish(result=None):
    """Tell the notebook what was found, and end."""
    with open(os.environ["RESULT"], "w") as file:
        json.dump(result, file)
    dist.destroy_process_group()


def three_steps(model, images, labels):
    """The losses of three steps, or the first line of the error that there was."""
    losses = []
    try:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(3):
            loss = cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    except RuntimeError as error:
        return str(error).splitlines()[0]
    return losses
