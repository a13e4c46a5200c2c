"""How many loader workers should a process have? Lesson 08, from the cost of its images.

    python -m tools.bench.workers

Prints the CPU time of preparing an image and of training on it, which other programs do not affect, and what
follows from both.
"""

import math
import time
from types import SimpleNamespace

import torch

import workload
from parts import loading, resnet

BATCH = 120


def cost() -> tuple[float, float]:
    """CPU seconds to prepare an image of lesson 08, and to train on it: the lowest of five batches."""
    torch.set_num_threads(1)
    arguments = SimpleNamespace(seed=0, data="digits", train_size=10 * BATCH, test_size=60)
    images, _ = workload.load_images(arguments)
    augmented = loading.Augmented(images, arguments.seed, arguments.data)
    batch = [(1, index) for index in range(BATCH)]
    model = resnet.ResNet18(images.images.shape[1:], 8, torch.nn.BatchNorm2d)
    model = model.to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    found = []
    for _ in range(5):
        start = time.process_time()
        prepared, labels = augmented.__getitems__(batch)
        between = time.process_time()
        loss = torch.nn.functional.cross_entropy(model(prepared), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        found.append(((between - start) / BATCH, (time.process_time() - between) / BATCH))
    prepare, train = map(min, zip(*found, strict=True))
    return prepare, train


def advice(prepare: float, train: float, cores: int) -> tuple[int, float]:
    """How many workers a process can use on its cores, and the speedup that they bring.

    Without workers, preparing and training alternate. With workers, they run in parallel and the slower one
    sets the speed. On one core nothing runs in parallel.
    """
    if cores < 2:
        return 0, 1.0
    workers = min(math.ceil(prepare / train), cores - 1)
    return workers, (prepare + train) / max(train, prepare / workers)


if __name__ == "__main__":
    prepare, train = cost()
    print(f"CPU time per image: {1000 * prepare:.2f} ms to prepare it, {1000 * train:.2f} ms to train on it")
    for step, where in ((train, "as here"), (train / 20, "a GPU that trains 20 times as fast")):
        for cores in (1, 2, 4, 8):
            workers, faster = advice(prepare, step, cores)
            print(f"{where}, {cores} cores per process: {workers} workers make it {faster:.2f} times as fast")
