"""Another solution of exercise 02."""

import io
import math
from concurrent.futures import ThreadPoolExecutor

import torch


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
