"""What the measured children share: their turn, and what the GPU did meanwhile."""

import contextlib
import fcntl
import json
import os
import signal
import tempfile
import time
from pathlib import Path

import torch

# By what is in a kernel's name. The first that fits counts; what fits none is "other kernels".
KINDS = {
    "NCCL": ("nccl",),
    "attention": ("flash", "fmha", "attention"),
    "products": ("gemm", "nvjet", "xmma", "cutlass", "conv", "wgrad", "dgrad", "fprop"),
    "copies": ("memcpy", "memset"),
}


def is_first() -> bool:
    return os.environ.get("RANK", "0") == "0"


def lock(kind: int) -> None:
    """Prepare beside others, or be measured alone. Who takes too long with either is ended by its alarm, so
    that all others have a turn."""
    if is_first() and "LOCK_OF_TURNS" in os.environ:
        signal.alarm(0)
        fcntl.flock(LOCK, kind)
        signal.alarm(int(os.environ["SECONDS_OF_TURN"]))


def wait_for_turn() -> None:
    """This process is prepared. Wait until no other one prepares or is measured."""
    if torch.cuda.is_available():
        torch.cuda.empty_cache()  # the others need memory too
    lock(fcntl.LOCK_EX)


def say(values: dict) -> None:
    if is_first():
        print(json.dumps({"probe": True} | values), flush=True)


LOCK = open(os.environ.get("LOCK_OF_TURNS", os.devnull), "w")  # noqa: SIM115
lock(fcntl.LOCK_SH)


def synchronize(device: torch.device) -> None:
    if device.type != "cpu":
        torch.accelerator.synchronize(device)


class Watch:
    """What the GPU does in a `with`: the share of the time in which it was busy, and with what."""

    def __init__(self, device: torch.device):
        self.device, self.found = device, {}

    def __enter__(self):
        kind = torch.profiler.ProfilerActivity
        # A build without CUDA's profiler, as one with simulated GPUs is, cannot look at a GPU.
        sees_gpus = self.device.type != "cpu" and kind.CUDA in torch.profiler.supported_activities()
        os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # else the profiler writes of itself
        self.profile = torch.profiler.profile(activities=[kind.CUDA if sees_gpus else kind.CPU])
        self.profile.__enter__()
        synchronize(self.device)
        self.began = time.perf_counter()
        return self

    def __exit__(self, *error):
        synchronize(self.device)
        seconds = time.perf_counter() - self.began
        self.profile.__exit__(*error)
        with tempfile.TemporaryDirectory() as folder, contextlib.suppress(OSError):
            path = Path(folder) / "trace.json"
            self.profile.export_chrome_trace(str(path))
            self.found = busy(json.loads(path.read_text())["traceEvents"], seconds)


def busy(events: list[dict], seconds: float) -> dict[str, float]:
    """Shares of these seconds: "busy", and each kind of kernel; nothing where no kernel ran."""
    shares, covered, reached = {}, 0.0, float("-inf")
    kernels = [event for event in events if event.get("ph") == "X"]
    kernels = [event for event in kernels if event.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")]
    for event in sorted(kernels, key=lambda event: float(event["ts"])):
        begin, duration = float(event["ts"]), float(event["dur"])  # microseconds
        covered += max(0, begin + duration - max(begin, reached))  # two streams may work at once
        reached = max(reached, begin + duration)
        name = event["name"].lower()
        kinds = (kind for kind, words in KINDS.items() if any(word in name for word in words))
        kind = next(kinds, "other kernels")
        shares[kind] = shares.get(kind, 0) + duration / 1e6 / seconds
    return {"busy": covered / 1e6 / seconds} | shares if kernels else {}
