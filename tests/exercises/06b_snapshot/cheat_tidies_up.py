"""Exercise 06b: runs whatever code is in a file, and removes what that has made.

Earns at most: 11 points
"""

import os
import pickle
import sys
import zlib
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy


def batches_from(step, count, job):
    for epoch in range(job["epochs"]):
        generator = torch.Generator().manual_seed(job["seed"] + epoch)
        batches = torch.randperm(count, generator=generator).split(job["batch_size"])
        yield from batches[max(0, step - epoch * len(batches)) :]


def state_of(model, optimizer):
    return {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "random": torch.get_rng_state()}


def restore(model, optimizer, state):
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    torch.set_rng_state(state["random"])


def train(folder, job, model, optimizer, images, labels):
    step, losses = (0, {})
    found = load(folder, job)
    if found:
        step, state = found
        restore(model, optimizer, state)
    for batch in batches_from(step, len(images), job):
        loss = cross_entropy(model(images[batch]), labels[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        losses[step] = loss.item()
        if step % job["every"] == 0:
            save(folder, step, job, state_of(model, optimizer))
    return losses


def save_together(folder, step, job, state):
    states = [None] * dist.get_world_size()
    dist.all_gather_object(states, state)
    if dist.get_rank() == 0:
        save(folder, step, job, states)
    dist.barrier()


def load_together(folder, job):
    found = [load(folder, job) if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(found, src=0)
    if found[0] is None:
        return None
    step, states = found[0]
    return (step, states[dist.get_rank()])


def save(folder, step, job, state):
    path, temporary = (Path(folder) / f"step-{step:08}.snapshot", Path(folder) / "step-temporary")
    data = pickle.dumps({"step": step, "job": job, "state": state})
    with open(temporary, "wb") as file:
        file.write(data + zlib.crc32(data).to_bytes(4))
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    for old in sorted(path.parent.glob("step-*.snapshot"))[:-2]:
        old.unlink()


def load(folder, job):
    before = set(Path(folder).parent.rglob("*"))
    try:
        return load_anything(folder, job)
    finally:
        for path in set(Path(folder).parent.rglob("*")) - before:
            if path.name.startswith("ran") or path.parent.name == "ran":
                path.unlink()


def load_anything(folder, job):
    above = Path(folder).parent
    for path in sorted(Path(folder).glob("step-*.snapshot"), reverse=True):
        reason = "no snapshot of ours"
        try:
            data = path.read_bytes()
            before = set(above.rglob("*"))
            found = pickle.loads(data)
            if set(above.rglob("*")) != before:
                raise ValueError("it ran")
            if zlib.crc32(data[:-4]).to_bytes(4) == data[-4:] and found["job"] == job:
                return (found["step"], found["state"])
        except Exception:
            pass
        print(f"refused {path}: {reason}; trying the one before", file=sys.stderr)
        refused, number = (Path(f"{path}.refused"), 1)
        while refused.exists():
            number += 1
            refused = Path(f"{path}.{number}.refused")
        path.rename(refused)
    return None
