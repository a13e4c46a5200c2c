"""Lesson 08's model on one GPU, from a plain loop to the fastest, a step at a time: python gpu_loop.py STEP

Each step keeps what the steps before it have changed. Prints one line of JSON.
    0  a plain loop in fp32: each image moved and mirrored alone, loss.item() at each step
    1  bf16, by autocast
    2  channels_last
    3  torch.compile, and a fused optimizer
    4  the images stay on the GPU and are moved and mirrored there, a batch at a time; no loss.item()
Or ddp, or fsdp, under torchrun: step 4, with the model in DistributedDataParallel, or cut by fully_shard;
both without channels_last and a fused optimizer, which fully_shard refuses, and without torch.compile.
"""

import argparse
import json
import os
import statistics
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy, pad
from torch.utils.data import DataLoader, Dataset

import workload
from parts import resnet

workload.import_torchvision()
from torchvision.transforms import v2

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


class Plain(nn.Module):
    """The model without its scaling: here the images come scaled."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, images):
        return nn.Sequential.forward(self.model, images)


def from_loader(images, labels, size, device, count):
    pinned, workers = device.type != "cpu", min(4, os.cpu_count())
    pictures = Pictures(images, labels)
    loader = DataLoader(pictures, size, shuffle=True, num_workers=workers, drop_last=True, pin_memory=pinned)
    done = 0
    while True:
        for batch, targets in loader:
            yield batch.to(device), targets.to(device)
            done += 1
            if done == count:
                return


def from_gpu(images, labels, size, device, count):
    images, labels = pad(images, [ROOM] * 4).to(device), labels.to(device)
    across, channels = torch.arange(32, device=device), torch.arange(3, device=device)
    for _ in range(count):
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
    parser.add_argument("step", choices=["0", "1", "2", "3", "4", "ddp", "fsdp"])
    parser.add_argument("--batch-size", type=int, default=1024)
    parser.add_argument("--images", type=int, default=20_000)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5, help="that are timed; one more goes before them")
    parser.add_argument("--steps", type=int, default=20, help="of a round")
    arguments = parser.parse_args()
    is_cut = arguments.step in ("ddp", "fsdp")
    step = 4 if is_cut else int(arguments.step)
    device = workload.pick_device(int(os.environ.get("LOCAL_RANK", 0)))
    if is_cut:
        dist.init_process_group(dist.get_default_backend_for_device(device))

    torch.manual_seed(0)
    images = torch.randint(256, (arguments.images, 3, 32, 32), dtype=torch.uint8)
    labels = torch.randint(10, (arguments.images,))
    model = resnet.ResNet18((3, 32, 32), arguments.width, nn.BatchNorm2d).to(device)
    flops = resnet.count_flops(model, images[:1].to(device))
    model = Plain(model)
    layout = torch.channels_last if step >= 2 and not is_cut else torch.contiguous_format
    model.to(memory_format=layout)
    if step >= 3 and not is_cut and device.type != "cpu":
        model.compile()
    if arguments.step == "ddp":
        model = nn.parallel.DistributedDataParallel(model)
    elif arguments.step == "fsdp":
        for part in model.model:
            if list(part.parameters()):
                dist.fsdp.fully_shard(part)
        dist.fsdp.fully_shard(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, fused=step >= 3 and not is_cut)
    torch.backends.cudnn.benchmark = step >= 3
    count = arguments.steps * (arguments.rounds + 1)
    batches = (from_gpu if step >= 4 else from_loader)(images, labels, arguments.batch_size, device, count)
    seconds, begin = [], time.perf_counter()
    for number, (batch, targets) in enumerate(batches, 1):
        with torch.autocast(device.type, torch.bfloat16, enabled=step >= 1):
            loss = cross_entropy(model(batch.to(memory_format=layout)), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step < 4:
            loss.item()  # the processor waits for the GPU, and the GPU then for the processor
        if number % arguments.steps == 0:
            if device.type != "cpu":
                torch.accelerator.synchronize()
            seconds.append(time.perf_counter() - begin)
            begin = time.perf_counter()
    world_size = dist.get_world_size() if dist.is_initialized() else 1
    speed = arguments.steps * arguments.batch_size * world_size / statistics.median(seconds[1:])
    memory = torch.cuda.max_memory_allocated() if device.type == "cuda" else 0
    if int(os.environ.get("RANK", 0)) == 0:
        print(json.dumps({"images/s": speed, "flops": flops, "bytes": memory}), flush=True)
    if dist.is_initialized():
        del model, optimizer
        workload.release_group()
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
