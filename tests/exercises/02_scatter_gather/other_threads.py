"""Exercise 02, with a thread for each copy, copies made from bytes, and outputs written into one tensor."""

import io
import math
from concurrent.futures import ThreadPoolExecutor

import torch
from torch.nn.functional import cross_entropy


def scatter(batch, count):
    return torch.split(batch, math.ceil(batch.shape[0] / count))


def replicate(model, count):
    file = io.BytesIO()
    torch.save(model, file)
    copies = []
    for _ in range(count):
        file.seek(0)
        copies.append(torch.load(file, weights_only=False))
    return copies


def compute_and_gather(copies, parts):
    with ThreadPoolExecutor(len(parts)) as pool:
        outputs = list(pool.map(lambda pair: pair[0](pair[1]), zip(copies, parts, strict=False)))
    whole = torch.empty(sum(len(part) for part in parts), *outputs[0].shape[1:])
    place = 0
    for output in outputs:
        whole[place : place + len(output)] = output
        place += len(output)
    return whole


@torch.no_grad()
def reduce(model, copies):
    for same in zip(model.parameters(), *(one.parameters() for one in copies), strict=True):
        mine, *others = same
        for other in others:
            if other.grad is not None:
                mine.grad = other.grad.clone() if mine.grad is None else mine.grad + other.grad
    buffers = dict(copies[0].named_buffers())
    for name, buffer in model.named_buffers():
        buffer.zero_().add_(buffers[name])


def train_step(model, optimizer, images, labels, count):
    for parameter in model.parameters():
        parameter.grad = None
    copies = replicate(model, count)
    loss = cross_entropy(compute_and_gather(copies, scatter(images, count)), labels)
    loss.backward()
    reduce(model, copies)
    optimizer.step()
    return loss.item()
