"""What `make gpu-speed` measures: probes.py NAME [KIND] [OPTION=NUMBER ...], each a function below.

Each prints one line of JSON. sizes and memory run under torchrun, and loop can.
"""

import functools
import gc
import importlib
import itertools
import json
import os
import statistics
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.functional import cross_entropy, pad
from torch.utils.data import DataLoader, Dataset

import workload
from parts.spans import covered

STEPS = ("repeatable", "plain", "input", "bf16", "channels_last", "benchmark", "fused", "compile")
ROOM = 2  # pixels that an image may be moved
# By what is in a kernel's name. The first that fits counts; what fits none is "other kernels".
KINDS = {
    "NCCL": ("nccl",),
    "attention": ("flash", "fmha", "attention", "sdpa"),
    "optimizer": ("adam", "sgd", "multi_tensor"),
    "products": ("gemm", "nvjet", "xmma", "cutlass", "conv", "wgrad", "dgrad", "fprop"),
    "copies": ("memcpy", "memset"),
}


# ---- what the GPU does --------------------------------------------------------------------------


def say(values):
    if os.environ.get("RANK", "0") == "0":
        print(json.dumps({"probe": values}), flush=True)


def synchronize(device):
    if device.type != "cpu":
        torch.accelerator.synchronize(device)


def kind_of(kernel):
    name = kernel.lower()
    for kind, words in KINDS.items():
        if any(word in name for word in words):
            return kind
    return "other kernels"


def busy(events, seconds):
    """Shares of these seconds: "busy", each kind of kernel, and "hidden", NCCL beside other kernels."""
    spans = {}  # in microseconds, by kind
    for event in events:
        if event.get("ph") == "X" and event.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset"):
            begin = float(event["ts"])
            end = begin + float(event["dur"])
            spans.setdefault(kind_of(event["name"]), []).append((begin, end))
    if not spans:
        return {}
    found = {}
    everything = []
    beside_nccl = []
    for kind, of_kind in spans.items():
        found[kind] = sum(end - begin for begin, end in of_kind)
        everything += of_kind
        if kind != "NCCL":
            beside_nccl += of_kind
    found["busy"] = covered(everything)
    if "NCCL" in spans:
        found["hidden"] = covered(spans["NCCL"]) + covered(beside_nccl) - found["busy"]
    return {kind: taken / 1e6 / seconds for kind, taken in found.items()}


def optimize(optimizer, loss):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def seconds_of(device, step, count):
    """Seconds for so many steps."""
    synchronize(device)
    begin = time.perf_counter()
    for _ in range(count):
        step()
    synchronize(device)
    return time.perf_counter() - begin


def rounds_of(device, step, steps, rounds):
    """Seconds of a step, in each of so many rounds."""
    return [seconds_of(device, step, steps) / steps for _ in range(rounds)]


def watched(device, step, count):
    """What the GPU does in so many steps: the share of the time in which it is busy, and with what."""
    kind = torch.profiler.ProfilerActivity
    # A build without CUDA's profiler, as one with simulated GPUs is, cannot look at a GPU.
    sees_gpus = device.type != "cpu" and kind.CUDA in torch.profiler.supported_activities()
    os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # else the profiler writes of itself
    with torch.profiler.profile(activities=[kind.CUDA if sees_gpus else kind.CPU]) as profile:
        seconds = seconds_of(device, step, count)
    path = Path(f".trace{os.getpid()}.json")
    profile.export_chrome_trace(str(path))
    return busy(json.loads(path.read_text())["traceEvents"], seconds)


# ---- several GPUs, and several ranks ------------------------------------------------------------


def peers(power=28):
    """Whether GPU 0 reaches the others' memory directly (P2P), how fast a copy is, and whether its bytes come
    back as they were: on some machines, a P2P copy changes them silently."""
    sent = torch.randint(256, (2**power,), dtype=torch.uint8)
    source = sent.to("cuda:0")
    found = {}
    for number in range(1, torch.cuda.device_count()):
        target = torch.empty_like(source, device=f"cuda:{number}")
        seconds = []
        for _ in range(8):
            torch.cuda.synchronize(0)
            torch.cuda.synchronize(number)
            begin = time.perf_counter()
            target.copy_(source)
            torch.cuda.synchronize(0)
            torch.cuda.synchronize(number)
            seconds.append(time.perf_counter() - begin)
        back = torch.zeros_like(source).copy_(target)
        found[number] = {
            "P2P": torch.cuda.can_device_access_peer(0, number),
            "bytes/s": source.numel() / statistics.median(seconds[2:]),
            "same": torch.equal(target.cpu(), sent) and torch.equal(back.cpu(), sent),
        }
    return {"peers": found}


def join():
    """Join the process group. Without device_id, dist.barrier() warns that it does not know the GPU."""
    device = workload.pick_device(int(os.environ["LOCAL_RANK"]))
    device_id = None if device.type == "cpu" else device
    dist.init_process_group(dist.get_default_backend_for_device(device), device_id=device_id)
    return device


def sizes(largest=26, times=20):
    """Seconds of an all-reduce by its size; the largest is a power of two, in bytes."""
    device = join()
    found = {}
    for power in range(10, largest + 1, 2):
        size = 2**power
        tensor = torch.zeros(size // 4, device=device)
        seconds = []
        for _ in range(times + 3):
            synchronize(device)
            dist.barrier()
            seconds.append(seconds_of(device, functools.partial(dist.all_reduce, tensor), 1))
        found[size] = statistics.median(seconds[3:])  # the first ones connect
    return {"by size": found}


def memory(kind, width=4096, layers=16):
    """What a rank holds at most when a model is replicated (ddp) and when it is sharded (fsdp): linear layers
    that are wide for their batch, so that little of it is activations."""
    device = join()
    torch.manual_seed(0)
    with device:
        model = nn.Sequential(*[nn.Linear(width, width) for _ in range(layers)])
        batch = torch.randn(16, width)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    if kind == "ddp":
        # Else gradients would lie in memory twice: in DDP's buckets as well.
        model = nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)
    else:
        mesh = dist.init_device_mesh(device.type, (dist.get_world_size(),))
        for part in (*model, model):
            fully_shard(part, mesh=mesh)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()  # FSDP shards a model that was whole for a moment
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    for _ in range(3):
        optimize(optimizer, model(batch).square().mean())
    held = torch.cuda.max_memory_allocated() if device.type == "cuda" else 0
    most = torch.tensor([float(held)], device=device)
    dist.all_reduce(most, dist.ReduceOp.MAX)
    return {"bytes": most.item(), "of weights": 4 * parameters}


# ---- speed --------------------------------------------------------------------------------------


class OneProduct(nn.Module):
    """The attention of lesson 13 with one matrix for query, key and value, which lesson 11 keeps apart."""

    def __init__(self, attention):
        super().__init__()
        parts = (attention.query, attention.key, attention.value)
        hidden = attention.query.in_features
        self.one = nn.Linear(hidden, 3 * hidden, device=attention.query.weight.device)
        with torch.no_grad():
            self.one.weight.copy_(torch.cat([part.weight for part in parts]))
            self.one.bias.copy_(torch.cat([part.bias for part in parts]))
        self.project = attention.project
        self.by_head = attention.by_head
        self.attend = attention.attend

    def forward(self, x):
        query, key, value = self.one(x).chunk(3, -1)
        mixed = self.attend(self.by_head(query), self.by_head(key), self.by_head(value))
        return self.project(mixed.transpose(1, 2).flatten(-2))


def gpt(*kinds, hidden=2048, layers=12, heads=16, length=1024, characters=64, size=8, steps=10, rounds=5):
    """Lesson 13's model, made large, in bf16 on one GPU. Kinds: compiled; cudnn, whose attention is cuDNN's;
    fused, with one product for query, key and value. The texts are random and stay on the GPU. The number of
    operations is the planner's: products only, with attention counted as if to all positions, as papers do;
    "causal" counts only what a position sees.
    """
    from planner import formulas

    device = workload.pick_device()
    torch.manual_seed(0)
    with device:
        model = importlib.import_module("13_gpt").build_model(characters, length, hidden, heads, layers)
        texts = torch.randint(characters, (256, length + 1))
    if "cudnn" in kinds:
        torch.backends.cuda.enable_flash_sdp(False)
        torch.backends.cuda.enable_mem_efficient_sdp(False)
        torch.backends.cuda.enable_math_sdp(False)
    if "fused" in kinds:
        for block in model.blocks:
            block.attention = OneProduct(block.attention)
    if "compiled" in kinds:
        model.compile()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

    def step():
        batch = texts[torch.randint(len(texts), (size,), device=device)]
        with torch.autocast(device.type, torch.bfloat16):
            loss = cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())
        optimize(optimizer, loss)

    seconds_of(device, step, 3)
    seconds_of(device, step, steps)
    taken = rounds_of(device, step, steps, rounds)
    seconds = statistics.median(taken)
    attention = formulas.attention_flops(layers, hidden, length, size, "none")
    flops = formulas.step_flops(layers, hidden, characters, length, size, recompute="none")
    memory = torch.cuda.max_memory_allocated() if device.type == "cuda" else 0
    found = watched(device, step, min(5, steps))
    return {
        "seconds": seconds,
        "rounds": taken,
        "tokens/s": size * length / seconds,
        "flops": flops,
        "causal": flops - attention / 2,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "bytes": memory,
        "kinds": kinds,
        "size": size,
        "characters": characters,
        "busy": found,
    }


class Pictures(Dataset):
    """As most tutorials have it: one image at a time."""

    def __init__(self, images, labels):
        workload.import_torchvision()
        from torchvision.transforms import v2

        to_picture = v2.ToPILImage()
        self.pictures = [to_picture(image) for image in images]
        self.labels = labels.tolist()
        self.transform = v2.Compose(
            [
                v2.RandomCrop(32, padding=ROOM),
                v2.RandomHorizontalFlip(),
                v2.ToImage(),
                v2.ToDtype(torch.float32, scale=True),
                v2.Normalize([48 / 255], [64 / 255]),
            ]
        )

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


def from_loader(images, labels, size, device):
    workers = min(4, os.cpu_count())
    is_pinned = device.type != "cpu"
    options = {"num_workers": workers, "pin_memory": is_pinned}
    loader = DataLoader(Pictures(images, labels), size, shuffle=True, drop_last=True, **options)
    while True:
        for batch, targets in loader:
            yield batch.to(device), targets.to(device)


def from_device(images, labels, size, device):
    images = pad(images, [ROOM, ROOM, ROOM, ROOM]).to(device)
    labels = labels.to(device)
    across = torch.arange(32, device=device)
    channels = torch.arange(3, device=device)
    while True:
        chosen = torch.randint(len(images), (size,), device=device)
        down = torch.randint(2 * ROOM + 1, (size, 1), device=device) + across
        right = torch.randint(2 * ROOM + 1, (size, 1), device=device) + across
        mirrored = torch.rand(size, 1, device=device) < 0.5
        right = torch.where(mirrored, right.flip(1), right)
        where = chosen.view(-1, 1, 1, 1), channels.view(1, -1, 1, 1), down[:, None, :, None]
        yield (images[*where, right[:, None, None]].float() - 48) / 64, labels[chosen]


def loop(kind, size=1024, images=50_000, width=64, rounds=5, steps=24, bf16=1):
    """Lesson 08's model on CIFAR-size images, from a plain loop to the fastest, a change at a time: see LOOPS
    in measure.py. The input comes before bf16: while the GPU waits for four workers, no later change shows.
    ddp and fsdp run under torchrun and have the changes up to bf16; with bf16=0, they compute in fp32. A
    round has so many steps, or as many as fit into a second.
    """
    from parts import board, resnet

    number = STEPS.index(kind if kind in STEPS else "bf16")
    has = {step: number >= at for at, step in enumerate(STEPS)}
    device = workload.pick_device() if kind in STEPS else join()
    if kind == "repeatable":
        workload.set_seed(0)
    torch.manual_seed(0)
    torch.backends.cudnn.benchmark = has["benchmark"]

    labels = torch.randint(10, (images,))
    images = torch.randint(256, (images, 3, 32, 32), dtype=torch.uint8)
    model = resnet.ResNet18((3, 32, 32), width, nn.BatchNorm2d).to(device)
    flops = board.count_flops(model, images[:1])
    layout = torch.channels_last if has["channels_last"] else torch.contiguous_format
    model = Scaled(model).to(memory_format=layout)
    if has["compile"]:
        model.compile()
    if kind == "ddp":
        model = nn.parallel.DistributedDataParallel(model)
    elif kind == "fsdp":
        for part in model.model:
            if list(part.parameters()):
                fully_shard(part)
        fully_shard(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, fused=has["fused"])
    make_batches = from_device if has["input"] else from_loader
    batches = make_batches(images, labels, size, device)

    def step(batches):
        batch, targets = next(batches)
        with torch.autocast(device.type, torch.bfloat16, enabled=has["bf16"] and bool(bf16)):
            loss = cross_entropy(model(batch.to(memory_format=layout)), targets)
        optimize(optimizer, loss)
        if not has["input"]:
            loss.item()  # the processor waits for the GPU, and the GPU then for the processor

    def train(batches, count):
        return seconds_of(device, functools.partial(step, batches), count)

    train(batches, 3)
    # On an H100, 24 steps in fp32 with repeatable kernels take 4 seconds. All ranks must take equally many.
    slowest = torch.tensor([train(batches, 3)], device=device)
    if dist.is_initialized():
        dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
    steps = max(2, min(steps, int(3 / slowest.item())))
    taken = rounds_of(device, functools.partial(step, batches), steps, rounds)
    seconds = statistics.median(taken)
    repeated = itertools.repeat(next(batches))
    fixed = statistics.median(rounds_of(device, functools.partial(step, repeated), steps, min(2, rounds)))
    found = watched(device, functools.partial(step, batches), min(8, steps))
    whole = size * (dist.get_world_size() if dist.is_initialized() else 1)
    return {
        "images/s": whole / seconds,
        "rounds": [whole / each for each in taken],
        "input": max(0.0, 1 - fixed / seconds),
        "flops": flops,
        "busy": found,
    }


def main():
    name, *words = sys.argv[1:]
    kinds = []
    options = {}
    for word in words:
        option, is_option, value = word.partition("=")
        if is_option:
            options[option] = int(value)
        else:
            kinds.append(word)
    probe = {"peers": peers, "sizes": sizes, "memory": memory, "gpt": gpt, "loop": loop}[name]
    say(probe(*kinds, **options))
    if dist.is_initialized():
        gc.collect()  # a DDP object whose threads are left may abort the process at exit
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
