"""The machine, the flags after set_seed, and a convolution and a product in fp32 against float64."""

import shutil
import subprocess

import torch
import turns
from torch.nn.functional import conv2d

import workload


def driver() -> str:
    if not shutil.which("nvidia-smi"):
        return "none"
    words = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    return subprocess.run(words, capture_output=True, text=True).stdout.splitlines()[0].strip()


def error(compute, *tensors) -> float:
    """How far fp32 is from float64, relative, over all elements together."""
    exact = compute(*(tensor.double() for tensor in tensors))
    return ((compute(*tensors).double() - exact).norm() / exact.norm()).item()


device = workload.pick_device()
workload.set_seed(0)
backends = torch.backends
images, kernels = torch.randn(32, 64, 32, 32, device=device), torch.randn(64, 64, 3, 3, device=device)
left, right = torch.randn(1024, 1024, device=device), torch.randn(1024, 1024, device=device)
turns.say(
    {
        "versions": {
            "torch": torch.__version__,
            "CUDA": torch.version.cuda,
            "cuDNN": backends.cudnn.version(),
            "NCCL": ".".join(map(str, torch.cuda.nccl.version())) if device.type == "cuda" else None,
            "driver": driver(),
        },
        "gpus": [
            torch.get_device_module(device).get_device_name(number) for number in range(workload.gpu_count())
        ],
        "flags": {
            "cudnn.benchmark": backends.cudnn.benchmark,
            "cudnn.deterministic": backends.cudnn.deterministic,
            "convolutions": backends.cudnn.conv.fp32_precision,
            "products": backends.cuda.matmul.fp32_precision,
            "old flag of TF32": torch._C._get_cudnn_allow_tf32(),
        },
        "convolution": error(lambda x, w: conv2d(x, w, padding=1), images, kernels),
        "product": error(torch.matmul, left, right),
    }
)
