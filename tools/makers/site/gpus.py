"""The GPUs that the planner's pages offer: what each has, and who says so. A browser has this file, too."""

from typing import NamedTuple

from tools.makers.site.controls import choice, typed

TORCHTITAN = "https://github.com/pytorch/torchtitan/blob/main/torchtitan/tools/utils.py"
ADA = "https://images.nvidia.com/aem-dam/Solutions/geforce/ada/nvidia-ada-gpu-architecture.pdf"
A100 = "https://www.nvidia.com/en-us/data-center/a100/"
HGX_H100 = (
    "https://developer.nvidia.com/blog/"
    "introducing-nvidia-hgx-h100-an-accelerated-server-platform-for-ai-and-high-performance-computing/"
)
MLCOMMONS = "https://raw.githubusercontent.com/mlcommons"
H200 = f"{MLCOMMONS}/inference_results_v4.1/main/closed/NVIDIA/systems/H200-SXM-141GBx8_TRT_MaxQ.json"
B200 = f"{MLCOMMONS}/inference_results_v6.0/main/closed/Nebius/systems/nebius_b200_n1.json"
L40S = "https://resources.nvidia.com/en-us-l40s/l40s-datasheet-28413"
LINKS = "../lessons/launch/README.md#links"
RAW = "https://raw.githubusercontent.com"
RUNPOD_MARCH = ("RunPod, March 2026", "https://deploybase.ai/articles/rtx-4090-cloud")
RUNPOD_OCTOBER = (
    "RunPod, October 2026",
    f"{RAW}/api-evangelist/runpod/refs/heads/main/plans/runpod-plans-pricing.yml",
)
RUNPOD_NOVEMBER = (
    "RunPod, November 2026",
    f"{RAW}/datareceipts/data-receipts/main/109-gpu-pricing/vendors.json",
)
MODAL = (
    "Modal, May 2026",
    "https://techbytes.app/posts/serverless-gpu-pricing-matrix-modal-replicate-lambda-2026/",
)


class Gpu(NamedTuple):
    memory: float  # in GB
    peak: float  # in TFLOP/s, of dense products in bf16
    link: float  # to another GPU of the same machine, in GB/s, one way
    price: float  # in dollars per hour
    sources: tuple[tuple[str, str], ...]  # of each of these: words and address


PCIE = ("PCIe 4.0: half of 5.0", LINKS)
NVLINK = ("NVLink 4", LINKS)
LIST = ("torchtitan", TORCHTITAN)
ROWS = {
    "RTX 4090": (24, ("NVIDIA", ADA), 165.2, ("NVIDIA", ADA), 31.5, PCIE, 0.34, RUNPOD_MARCH),
    "L40S": (48, ("NVIDIA", L40S), 362, LIST, 31.5, PCIE, 1.95, MODAL),
    "A100": (80, ("NVIDIA", A100), 312, LIST, 300, ("NVLink 3", A100), 1.79, RUNPOD_NOVEMBER),
    "H100": (80, ("NVIDIA", HGX_H100), 989, LIST, 450, NVLINK, 3.99, RUNPOD_NOVEMBER),
    "H200": (141, ("MLCommons", H200), 989, LIST, 450, NVLINK, 4.59, RUNPOD_OCTOBER),
    "B200": (180, ("MLCommons", B200), 2250, LIST, 900, ("NVLink 5", B200), 6.79, RUNPOD_OCTOBER),
}
GPUS = {name: Gpu(*row[::2], sources=row[1::2]) for name, row in ROWS.items()}
CONTROL = choice(
    "gpu",
    "GPU",
    {
        name: f"{name}: {one.memory:g} GB, {one.peak:,.0f} TFLOP/s, ${one.price:g}/h"
        for name, one in GPUS.items()
    },
    "H100",
)
MEMORY = typed("memory", "or GB per GPU", (None, 40, 96, 192), None, empty="as the GPU")
PRICE = typed("price_per_hour", "or $ per GPU-hour", (None, 1, 2.5, 8), None, 1, "as the GPU")


def with_gpu(inputs):
    """What a reader chose, with the options of the planner's command for the GPU in place of its name. What
    the reader typed counts instead of what the GPU has."""
    if "gpu" not in inputs:
        return inputs
    given = dict(inputs)
    one = GPUS[given.pop("gpu")]
    has = {
        "memory": one.memory * 1e9,
        "peak": one.peak * 1e12,
        "bandwidth_node": one.link * 1e9,
        "price_per_hour": one.price,
    }
    for name, value in has.items():
        if given.get(name) is None:
            given[name] = value
    return given


def table() -> str:
    """The GPUs as a table in Markdown, each number with its source."""
    lines = [
        "| GPU | memory | peak, dense bf16 | link in a machine, one way | price per hour |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    for name, one in GPUS.items():
        numbers = (
            f"{one.memory:g} GB",
            f"{one.peak:,g} TFLOP/s",
            f"{one.link:g} GB/s",
            f"${one.price:.2f}",
        )
        cells = [name]
        for number, (words, address) in zip(numbers, one.sources, strict=True):
            cells.append(f"{number} ([{words}]({address}))")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)
