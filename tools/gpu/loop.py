"""Lesson 08's model on CIFAR-size images, from a plain loop to the fastest, a change at a time: loop.py STEP

Each step keeps what the steps before it have changed. Prints one line of JSON.
    plain          fp32, an image moved and mirrored at a time by four workers, loss.item() at each step
    input          the images stay on the GPU and are moved and mirrored there, a batch at a time
    bf16           by autocast
    channels_last  the layout in which tensor cores read images
    fused          a fused optimizer, and cuDNN takes whichever kernels are fastest
    compile        torch.compile
Or ddp, or fsdp, under torchrun: bf16, with the model in DistributedDataParallel, or sharded by
fully_shard, which takes no channels_last. The input comes first: as long as four workers are waited for,
nothing behind them can show.
"""

import argparse
import os
import statistics
import time
from collections.abc import Iterator

import torch
import torch.distributed as dist
import turns
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.functional import cross_entropy, pad
from torch.utils.data import DataLoader, Dataset

import workload
from parts import board, resnet

workload.import_torchvision()
from torchvision.transforms import v2

STEPS = ("plain", "input", "bf16", "channels_last", "fused", "compile")
ROOM = 2  # pixels that an image may be moved


class Pictures(Dataset):
    """As most tutorials have it: one image at a time."""

    def __init__(self, images, labels):
        to_picture = v2.ToPILImage()
        self.pictures, self.labels = [to_picture(image) for image in images], labels.tolist()
        move = [v2.RandomCrop(32, padding=ROOM), v2.RandomHorizontalFlip()]
        scale = [v2.ToImage(), v2.ToDtype(torch.float32, scale=True), v2.Normalize([48 / 255], [64 / 255])]
        self.transform = v2.Compose(move + scale)

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        return self.transform(self.pictures[index]), self.labels[index]


class Scaled(nn.Module):
    """The model without its scaling: here the images come scaled."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, images):
        return nn.Sequential.forward(self.model, images)


def from_loader(images, labels, size, device) -> Iterator:
    pinned, workers = device.type != "cpu", min(4, os.cpu_count())
    pictures = Pictures(images, labels)
    loader = DataLoader(pictures, size, shuffle=True, num_workers=workers, drop_last=True, pin_memory=pinned)
    while True:
        for batch, targets in loader:
            yield batch.to(device), targets.to(device)


def from_device(images, labels, size, device) -> Iterator:
    images, labels = pad(images, [ROOM] * 4).to(device), labels.to(device)
    across, channels = torch.arange(32, device=device), torch.arange(3, device=device)
    while True:
        chosen = torch.randint(len(images), (size,), device=device)
        down, right = (torch.randint(2 * ROOM + 1, (size, 1), device=device) + across for _ in range(2))
        mirrored = torch.rand(size, 1, device=device) < 0.5
        right = torch.where(mirrored, right.flip(1), right)
        batch = images[
            chosen.view(-1, 1, 1, 1), channels.view(1, -1, 1, 1), down[:, None, :, None], right[:, None, None]
        ]
        yield (batch.float() - 48) / 64, labels[chosen]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("step", choices=[*STEPS, "ddp", "fsdp"])
    parser.add_argument("--batch-size", type=int, default=1024)
    parser.add_argument("--images", type=int, default=50_000)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5, help="that are timed")
    parser.add_argument("--steps", type=int, default=24, help="of a round, or as many as fit into a second")
    arguments = parser.parse_args()
    size, is_parallel = arguments.batch_size, arguments.step in ("ddp", "fsdp")
    number = STEPS.index("bf16" if is_parallel else arguments.step)

    def has(step):
        return number >= STEPS.index(step)

    device = workload.pick_device(int(os.environ.get("LOCAL_RANK", 0)))
    if is_parallel:
        turns.join(device)
    workload.set_seed(0)  # so fp32 is fp32, and not TF32
    torch.backends.cudnn.benchmark = has("fused")
    torch.backends.cudnn.deterministic = not has("fused")

    images = torch.randint(256, (arguments.images, 3, 32, 32), dtype=torch.uint8)
    labels = torch.randint(10, (arguments.images,))
    model = resnet.ResNet18((3, 32, 32), arguments.width, nn.BatchNorm2d).to(device)
    flops = board.count_flops(model, images[:1])
    layout = torch.channels_last if has("channels_last") else torch.contiguous_format
    model = Scaled(model).to(memory_format=layout)
    if has("compile"):
        model.compile()
    if arguments.step == "ddp":
        model = nn.parallel.DistributedDataParallel(model)
    elif arguments.step == "fsdp":
        for part in model.model:
            if list(part.parameters()):
                fully_shard(part)
        fully_shard(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, fused=has("fused"))
    batches = (from_device if has("input") else from_loader)(images, labels, size, device)

    def train(batches, steps):
        """Seconds for so many steps."""
        turns.synchronize(device)
        begin = time.perf_counter()
        for _ in range(steps):
            batch, targets = next(batches)
            with torch.autocast(device.type, torch.bfloat16, enabled=has("bf16")):
                loss = cross_entropy(model(batch.to(memory_format=layout)), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if not has("input"):
                loss.item()  # the processor waits for the GPU, and the GPU then for the processor
        turns.synchronize(device)
        return time.perf_counter() - begin

    def the_same(batch):
        while True:
            yield batch

    begin = time.perf_counter()
    train(batches, 3)
    prepared = time.perf_counter() - begin
    turns.wait_for_turn()
    # On an H100, 24 steps in fp32 with repeatable kernels take 4 seconds. All ranks must take equally many.
    slowest = torch.tensor([train(batches, 3)], device=device)
    if dist.is_initialized():
        dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
    steps = max(2, min(arguments.steps, int(3 / slowest.item())))
    seconds = [train(batches, steps) for _ in range(arguments.rounds)]
    fixed = [train(the_same(next(batches)), steps) for _ in range(min(2, arguments.rounds))]
    with turns.Watch(device) as watch:
        train(batches, min(8, steps))
    world_size = dist.get_world_size() if dist.is_initialized() else 1
    turns.say(
        {
            "images/s": steps * size * world_size / statistics.median(seconds),
            "rounds": [steps * size * world_size / each for each in seconds],
            "input": max(0.0, 1 - statistics.median(fixed) / statistics.median(seconds)),
            "flops": flops,
            "bytes": torch.cuda.max_memory_allocated() if device.type == "cuda" else 0,
            "first steps": prepared,
            "busy": watch.found,
        }
    )
    if dist.is_initialized():
        del model, optimizer
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
