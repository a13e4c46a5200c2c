"""Exercise 06b in a format of its own: JSON with arrays in it, a digest in the first line."""

import base64
import hashlib
import itertools
import json
import os
import re
import sys

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy

NAME = re.compile(r"step-(\d{8})\.snapshot")


def plain(value):
    if isinstance(value, torch.Tensor):
        data = value.detach().contiguous().flatten().view(torch.uint8).numpy().tobytes()
        kind = str(value.dtype).removeprefix("torch.")
        return {"tensor": base64.b64encode(data).decode(), "shape": list(value.shape), "kind": kind}
    if isinstance(value, dict):
        return {"dict": [[key, plain(item)] for key, item in value.items()]}
    if isinstance(value, list):
        return {"list": [plain(item) for item in value]}
    return {"value": value}


def back(value):
    if "tensor" in value:
        data = torch.tensor(list(base64.b64decode(value["tensor"])), dtype=torch.uint8)
        return data.view(getattr(torch, value["kind"])).reshape(value["shape"])
    if "dict" in value:
        return {key: back(item) for key, item in value["dict"]}
    if "list" in value:
        return [back(item) for item in value["list"]]
    return value["value"]


def steps_in(folder):
    return sorted(int(found[1]) for name in os.listdir(folder) if (found := NAME.fullmatch(name)))


def save(folder, step, job, state):
    text = json.dumps({"step": step, "job": job, "state": plain(state)}).encode()
    aside = os.path.join(folder, "step-next.part")
    place = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    try:
        rest = memoryview(hashlib.sha256(text).hexdigest().encode() + b"\n" + text)
        while rest:
            rest = rest[os.write(place, rest) :]
        os.fdatasync(place) if hasattr(os, "fdatasync") else os.fsync(place)
    finally:
        os.close(place)
    os.rename(aside, os.path.join(folder, f"step-{step:08}.snapshot"))
    for old in steps_in(folder)[:-2]:
        os.remove(os.path.join(folder, f"step-{old:08}.snapshot"))


def load(folder, job):
    for step in reversed(steps_in(folder)):
        path = os.path.join(folder, f"step-{step:08}.snapshot")
        with open(path, "rb") as file:
            digest, _, text = file.read().partition(b"\n")
        if hashlib.sha256(text).hexdigest().encode() != digest:
            reason = "its digest is wrong"
        elif json.loads(text)["job"] != job:
            reason = "it is another job's"
        else:
            return step, back(json.loads(text)["state"])
        sys.stderr.write(f"{os.path.basename(path)} is refused: {reason}\n")
        names = (f"{path}.{count}.refused".replace(".1.refused", ".refused") for count in itertools.count(1))
        os.replace(path, next(name for name in names if not os.path.exists(name)))
    return None


def batches_from(step, count, job):
    size = job["batch_size"]
    in_epoch = (count + size - 1) // size
    found = []
    while step < job["epochs"] * in_epoch:
        epoch, place = divmod(step, in_epoch)
        generator = torch.Generator()
        generator.manual_seed(job["seed"] + epoch)
        found.append(torch.randperm(count, generator=generator)[place * size : (place + 1) * size])
        step += 1
    return found


def state_of(model, optimizer):
    tensors = [tensor.detach().clone() for tensor in [*model.parameters(), *model.buffers()]]
    memory = [optimizer.state[parameter].get("momentum_buffer") for parameter in model.parameters()]
    options = [group["lr"] for group in optimizer.param_groups]
    return {"tensors": tensors, "memory": memory, "lr": options, "random": torch.get_rng_state().tolist()}


@torch.no_grad()
def restore(model, optimizer, state):
    for tensor, saved in zip([*model.parameters(), *model.buffers()], state["tensors"], strict=True):
        tensor.copy_(saved)
    for parameter, memory in zip(model.parameters(), state["memory"], strict=True):
        optimizer.state[parameter]["momentum_buffer"] = memory
    for group, lr in zip(optimizer.param_groups, state["lr"], strict=True):
        group["lr"] = lr
    torch.set_rng_state(torch.tensor(state["random"], dtype=torch.uint8))


def train(folder, job, model, optimizer, images, labels):
    found = load(folder, job)
    done = 0
    if found is not None:
        done = found[0]
        restore(model, optimizer, found[1])
    losses = {}
    for step, batch in enumerate(batches_from(done, len(images), job), done + 1):
        optimizer.zero_grad()
        loss = cross_entropy(model(images[batch]), labels[batch])
        loss.backward()
        optimizer.step()
        losses[step] = loss.item()
        if not step % job["every"]:
            save(folder, step, job, state_of(model, optimizer))
    return losses


def save_together(folder, step, job, state):
    first = dist.get_rank() == 0
    states = [None] * dist.get_world_size() if first else None
    dist.gather_object(state, states, dst=0)
    if first:
        save(folder, step, job, {"of": states})
    dist.all_reduce(torch.zeros(1))


def load_together(folder, job):
    out = [None]
    if dist.get_rank() == 0:
        found = load(folder, job)
        parts = [None] * dist.get_world_size()
        if found:
            parts = [(found[0], state) for state in found[1]["of"]]
        dist.scatter_object_list(out, parts, src=0)
    else:
        dist.scatter_object_list(out, None, src=0)
    return out[0]
