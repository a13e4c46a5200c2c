"""What `make gpu` measures besides lessons: probes.py NAME [KIND] [OPTION=NUMBER ...], each a function below.

Each prints one line of JSON. sizes and memory run under torchrun, and loop can.
"""

import fcntl
import functools
import gc
import importlib
import itertools
import json
import os
import signal
import statistics
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.functional import conv2d, cross_entropy, pad
from torch.utils.data import DataLoader, Dataset

import workload
from launch import preflight

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
LOCK = open(os.environ.get("LOCK_OF_TURNS", os.devnull), "w")  # noqa: SIM115


# ---- turns, and what the GPU does ---------------------------------------------------------------


def is_first() -> bool:
    return os.environ.get("RANK", "0") == "0"


def lock(kind: int) -> None:
    """Prepare beside others, or be measured alone. An alarm ends whoever takes too long with either."""
    if is_first() and "LOCK_OF_TURNS" in os.environ:
        signal.alarm(0)
        fcntl.flock(LOCK, kind)
        signal.alarm(int(os.environ["SECONDS_OF_TURN"]))


def wait_for_turn() -> None:
    """Wait until no other process prepares or is measured."""
    if torch.cuda.is_available():
        torch.cuda.empty_cache()  # the others need memory too
    lock(fcntl.LOCK_EX)


def say(values: dict) -> None:
    if is_first():
        print(json.dumps({"probe": True} | values), flush=True)


def synchronize(device: torch.device) -> None:
    if device.type != "cpu":
        torch.accelerator.synchronize(device)


def covered(spans: list[tuple[float, float]]) -> float:
    """The time in which at least one of these was at work: two streams may be at once."""
    total, reached = 0.0, float("-inf")
    for begin, end in sorted(spans):
        total += max(0, end - max(begin, reached))
        reached = max(reached, end)
    return total


def busy(events: list[dict], seconds: float) -> dict[str, float]:
    """Shares of these seconds: "busy", each kind of kernel, and "hidden", NCCL beside other kernels."""
    spans = {}  # in microseconds, by kind
    for event in events:
        if event.get("ph") == "X" and event.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset"):
            begin, name = float(event["ts"]), event["name"].lower()
            kinds = (kind for kind, words in KINDS.items() if any(word in name for word in words))
            spans.setdefault(next(kinds, "other kernels"), []).append((begin, begin + float(event["dur"])))
    if not spans:
        return {}
    found = {kind: sum(end - begin for begin, end in each) for kind, each in spans.items()}
    found["busy"] = covered([span for each in spans.values() for span in each])
    if "NCCL" in spans:
        others = [span for kind, each in spans.items() if kind != "NCCL" for span in each]
        found["hidden"] = covered(spans["NCCL"]) + covered(others) - found["busy"]
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


# ---- the machine --------------------------------------------------------------------------------


def error(compute, *tensors):
    """How far fp32 is from float64, relative, over all elements together."""
    exact = compute(*(tensor.double() for tensor in tensors))
    return ((compute(*tensors).double() - exact).norm() / exact.norm()).item()


def numerics():
    """The machine, the flags after set_seed, and a convolution and a product in fp32 against float64."""
    device, backends = workload.pick_device(), torch.backends
    workload.set_seed(0)
    module = torch.get_device_module(device)
    with device:
        images, kernels = torch.randn(32, 64, 32, 32), torch.randn(64, 64, 3, 3)
        left, right = torch.randn(1024, 1024), torch.randn(1024, 1024)
    return {
        "versions": {
            "torch": torch.__version__,
            "CUDA": torch.version.cuda,
            "cuDNN": backends.cudnn.version(),
            "NCCL": ".".join(map(str, torch.cuda.nccl.version())) if device.type == "cuda" else None,
            "driver": preflight.driver(),
        },
        "gpus": [module.get_device_name(number) for number in range(workload.gpu_count())],
        "bf16": torch.cuda.is_bf16_supported(including_emulation=False) if device.type == "cuda" else None,
        "free": torch.cuda.mem_get_info()[0] if device.type == "cuda" else None,  # of GPU 0
        "flags": {
            "cudnn.benchmark": backends.cudnn.benchmark,
            "cudnn.deterministic": backends.cudnn.deterministic,
            "convolutions": backends.cudnn.conv.fp32_precision,
            "products": backends.cuda.matmul.fp32_precision,
            "old flag of TF32": torch._C._get_cudnn_allow_tf32(),
        },
        "convolution": error(functools.partial(conv2d, padding=1), images, kernels),
        "product": error(torch.matmul, left, right),
    }


def peers(power=28):
    """Whether GPU 0 reaches the others' memory directly (P2P), how fast a copy is, and whether its bytes come
    back as they were: on some machines, a P2P copy changes them silently."""
    sent = torch.randint(256, (2**power,), dtype=torch.uint8)
    found, source = {}, sent.to("cuda:0")

    def synchronize():
        torch.cuda.synchronize(0)
        torch.cuda.synchronize(number)

    for number in range(1, torch.cuda.device_count()):
        target, seconds = torch.empty_like(source, device=f"cuda:{number}"), []
        for _ in range(8):
            synchronize()
            begin = time.perf_counter()
            target.copy_(source)
            synchronize()
            seconds.append(time.perf_counter() - begin)
        is_direct = torch.cuda.can_device_access_peer(0, number)
        back = torch.zeros_like(source).copy_(target)
        is_same = torch.equal(target.cpu(), sent) and torch.equal(back.cpu(), sent)
        speed = source.numel() / statistics.median(seconds[2:])
        found[number] = {"P2P": is_direct, "bytes/s": speed, "same": is_same}
    return {"peers": found}


# ---- several ranks ------------------------------------------------------------------------------


def join():
    """Join the process group. Without device_id, dist.barrier() warns that it does not know the GPU."""
    device = workload.pick_device(int(os.environ["LOCAL_RANK"]))
    device_id = None if device.type == "cpu" else device
    dist.init_process_group(dist.get_default_backend_for_device(device), device_id=device_id)
    return device


def sizes(largest=26, times=20):
    """Seconds of an all-reduce by its size; the largest is a power of two, in bytes."""
    device, found = join(), {}
    for size in [2**power for power in range(10, largest + 1, 2)]:
        tensor, seconds = torch.zeros(size // 4, device=device), []
        for _ in range(times + 3):
            synchronize(device)
            dist.barrier()
            seconds.append(seconds_of(device, functools.partial(dist.all_reduce, tensor), 1))
        found[size] = statistics.median(seconds[3:])  # the first ones connect
    return {"seconds": found}


def memory(kind, width=4096, layers=16):
    """What a rank holds at most when a model is replicated (ddp) and when it is sharded (fsdp): linear layers
    that are wide for their batch, so that little of it is activations."""
    device = join()
    torch.manual_seed(0)
    with device:
        model = nn.Sequential(*(nn.Linear(width, width) for _ in range(layers)))
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
        self.project, self.by_head, self.attend = attention.project, attention.by_head, attention.attend

    def forward(self, x):
        mixed = self.attend(*(self.by_head(part) for part in self.one(x).chunk(3, -1)))
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
    wait_for_turn()
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


def from_loader(images, labels, size, device):
    pinned, workers = device.type != "cpu", min(4, os.cpu_count())
    pictures = Pictures(images, labels)
    loader = DataLoader(pictures, size, shuffle=True, num_workers=workers, drop_last=True, pin_memory=pinned)
    while True:
        for batch, targets in loader:
            yield batch.to(device), targets.to(device)


def from_device(images, labels, size, device):
    images, labels = pad(images, [ROOM] * 4).to(device), labels.to(device)
    across, channels = torch.arange(32, device=device), torch.arange(3, device=device)
    while True:
        chosen = torch.randint(len(images), (size,), device=device)
        down, right = (torch.randint(2 * ROOM + 1, (size, 1), device=device) + across for _ in range(2))
        mirrored = torch.rand(size, 1, device=device) < 0.5
        right = torch.where(mirrored, right.flip(1), right)
        where = chosen.view(-1, 1, 1, 1), channels.view(1, -1, 1, 1), down[:, None, :, None]
        yield (images[*where, right[:, None, None]].float() - 48) / 64, labels[chosen]


def loop(kind, size=1024, images=50_000, width=64, rounds=5, steps=24, bf16=1):
    """Lesson 08's model on CIFAR-size images, from a plain loop to the fastest, a change at a time: see STEPS
    in speed.py. The input comes before bf16: as long as four workers are waited for, nothing behind them can
    show. Or ddp, or fsdp, under torchrun: as bf16; with bf16=0, in fp32. A round has so many steps, or as
    many as fit into a second.
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
        for part in (*(part for part in model.model if list(part.parameters())), model):
            fully_shard(part)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, fused=has["fused"])
    batches = (from_device if has["input"] else from_loader)(images, labels, size, device)

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
    wait_for_turn()
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
    lock(fcntl.LOCK_SH)
    name, *words = sys.argv[1:]
    kinds = [word for word in words if "=" not in word]
    options = dict(word.split("=") for word in words if "=" in word)
    probe = {each.__name__: each for each in (numerics, peers, sizes, memory, gpt, loop)}[name]
    say(probe(*kinds, **{option: int(value) for option, value in options.items()}))
    if dist.is_initialized():
        gc.collect()  # a DDP object whose threads are left may abort the process at exit
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
