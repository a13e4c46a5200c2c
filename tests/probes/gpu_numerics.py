"""The flags that set_seed leaves, and how far a GPU's convolution and product in fp32 are from float64."""

import functools
import json

import torch
from torch.nn.functional import conv2d

import workload


def error(compute, *tensors):
    """Relative, over all elements together."""
    exact = compute(*[tensor.double() for tensor in tensors])
    return ((compute(*tensors).double() - exact).norm() / exact.norm()).item()


device = workload.pick_device()
workload.set_seed(0)
with device:
    images = torch.randn(32, 64, 32, 32)
    kernels = torch.randn(64, 64, 3, 3)
    left = torch.randn(1024, 1024)
    right = torch.randn(1024, 1024)
found = {
    "device": device.type,
    "deterministic": torch.backends.cudnn.deterministic,
    "benchmark": torch.backends.cudnn.benchmark,
    "convolutions": torch.backends.cudnn.conv.fp32_precision,
    "products": torch.backends.cuda.matmul.fp32_precision,
    "convolution": error(functools.partial(conv2d, padding=1), images, kernels),
    "product": error(torch.matmul, left, right),
}
print(json.dumps(found))
