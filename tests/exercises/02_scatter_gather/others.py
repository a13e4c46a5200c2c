"""Other solutions of exercise 02."""

import io
import math
from concurrent.futures import ThreadPoolExecutor

import torch
import torch.nn.functional as F


def threads():
    """A thread for each copy, copies made from bytes, and outputs written into one tensor."""

    def scatter(batch, count):
        return torch.split(batch, math.ceil(batch.shape[0] / count))

    def replicate(model, count):
        file = io.BytesIO()
        torch.save(model, file)
        return [torch.load(io.BytesIO(file.getvalue()), weights_only=False) for _ in range(count)]

    def compute_and_gather(copies, parts):
        with ThreadPoolExecutor(len(parts)) as pool:
            outputs = list(pool.map(lambda pair: pair[0](pair[1]), zip(copies, parts, strict=False)))
        whole = outputs[0].new_empty(sum(len(part) for part in parts), *outputs[0].shape[1:])
        place = 0
        for output in outputs:
            whole[place : place + len(output)] = output
            place += len(output)
        return whole


def the_model_is_the_first_copy():
    """The model itself is the first copy in a step, and new gradients replace those of the model."""

    def reduce(model, copies):
        for same in zip(*(one.parameters() for one in (model, *copies)), strict=True):
            there = [one.grad for one in same if one.grad is not None]
            same[0].grad = torch.stack(there).sum(0) if there else None
        kept = dict(copies[0].named_buffers())
        for name, buffer in model.named_buffers():
            buffer[...] = kept[name]

    def train_step(model, optimizer, images, labels, count):
        optimizer.zero_grad()
        copies = [model, *replicate(model, count)[1:]]
        loss = F.cross_entropy(compute_and_gather(copies, scatter(images, count)), labels)
        loss.backward()
        if len(copies) > 1:
            buffers = [buffer.clone() for buffer in model.buffers()]
            reduce(model, copies[1:])
            for buffer, value in zip(model.buffers(), buffers, strict=True):
                buffer.copy_(value)
        optimizer.step()
        return loss.item()
