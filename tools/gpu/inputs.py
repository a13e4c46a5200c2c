"""What it costs to bring lesson 01's images to the GPU: inputs.py pageable|pinned|resident --batch-size 1200

pageable  a batch of the CPU's ordinary memory: .to(device) waits until it has been copied
pinned    of memory that the GPU reads by itself, a batch ahead, with non_blocking=True
resident  all images are on the GPU from the start
"""

import argparse
import statistics
import time

import torch
import turns
from torch.nn.functional import cross_entropy

import workload


def batches(kind, images, labels, size, device):
    if kind == "resident":
        images, labels = images.to(device), labels.to(device)

    def take():
        chosen = torch.randint(len(images), (size,), device=images.device)
        batch = images[chosen], labels[chosen]
        if kind == "pinned":
            return [part.pin_memory().to(device, non_blocking=True) for part in batch]
        return [part.to(device) for part in batch]

    following = take()
    while True:
        current, following = following, take()  # one ahead: a pinned copy runs beside the step
        yield current


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("kind", choices=("pageable", "pinned", "resident"))
    parser.add_argument("--batch-size", type=int, default=1200)
    parser.add_argument("--steps", type=int, default=200, help="of a round")
    arguments = parser.parse_args()
    device = workload.pick_device()
    if device.type == "cpu":
        arguments.kind = "pageable" if arguments.kind == "pinned" else arguments.kind
    workload.set_seed(0)
    images = torch.randint(256, (12_000, 1, 28, 28), dtype=torch.uint8)
    labels = torch.randint(10, (len(images),))
    model = workload.ConvNet(images.shape[1:]).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    source = batches(arguments.kind, images, labels, arguments.batch_size, device)

    def train(source, steps):
        """Seconds for so many steps."""
        turns.synchronize(device)
        begin = time.perf_counter()
        for _ in range(steps):
            batch, targets = next(source)
            loss = cross_entropy(model(batch), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        turns.synchronize(device)
        return time.perf_counter() - begin

    def the_same(batch):
        while True:
            yield batch

    train(source, 3)
    turns.wait_for_turn()
    train(source, arguments.steps)
    seconds = statistics.median(train(source, arguments.steps) for _ in range(3))
    fixed = statistics.median(train(the_same(next(source)), arguments.steps) for _ in range(3))
    speed = arguments.steps * arguments.batch_size / seconds
    turns.say({"images/s": speed, "input": max(0.0, 1 - fixed / seconds)})


if __name__ == "__main__":
    main()
