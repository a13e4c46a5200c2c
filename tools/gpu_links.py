"""Links between GPUs: what each carries, and what that means for an all-reduce. A table and a picture.

`make diffs` writes the table into lessons/launch/README.md, `make pictures` draws lessons/pictures/links.svg.
"""

from typing import NamedTuple

from parts.colours import BLUE
from planner import formulas

RANKS = 8
LATENCY = 5e-6
SMALL = 32_000 * 4  # bytes of lesson 04's gradients in fp32
LARGE = 7_000_000_000 * 2  # bytes of 7 billion gradients in bf16
MACHINE = (
    "https://raw.githubusercontent.com/mlcommons/inference_results_v4.1/main/closed/NVIDIA/systems/"
    "H200-SXM-141GBx8_TRT_MaxQ.json"
)


class Link(NamedTuple):
    name: str
    bandwidth: float  # bytes a second, one way
    source: str


LINKS = (
    Link("Ethernet, 1 Gbit/s", 1e9 / 8, "its name"),
    Link("Ethernet, 10 Gbit/s", 10e9 / 8, "its name"),
    Link("Ethernet, 100 Gbit/s", 100e9 / 8, "its name"),
    Link("InfiniBand NDR, 400 Gbit/s", 400e9 / 8, f"[a machine]({MACHINE}) with ten of them"),
    Link("PCIe 5.0 x16", 504e9 / 8, "the same: 504 GB/s for its 8 GPUs"),
    Link("NVLink 4 (H100, H200)", 900e9 / 2, "the same: 900 GB/s, both ways together"),
)


def seconds(size: float, link: Link) -> float:
    """An all-reduce of so many bytes in a ring of 8, all its links of this kind."""
    return formulas.all_reduce_seconds(size, RANKS, link.bandwidth, LATENCY, "ring")


def in_words(taken: float) -> str:
    if taken >= 1:
        return f"{taken:.1f} s"
    if taken >= 0.1:
        return f"{1000 * taken:.0f} ms"
    return f"{1000 * taken:.2g} ms"


def listed() -> str:
    lines = ["| link | GB/s, one way | 32,000 parameters | 7 billion | source |"]
    lines.append("| --- | ---: | ---: | ---: | --- |")
    for link in LINKS:
        small = in_words(seconds(SMALL, link))
        large = in_words(seconds(LARGE, link))
        lines.append(f"| {link.name} | {link.bandwidth / 1e9:g} | {small} | {large} | {link.source} |")
    return "\n".join(lines) + "\n"


def draw(path) -> None:
    from tools import ink

    plt = ink.pyplot()
    figure, axes = plt.subplots(figsize=(ink.WIDTH, 3.2))
    names = [link.name for link in LINKS]
    bars = axes.barh(names, [link.bandwidth / 1e9 for link in LINKS], color=BLUE)
    axes.bar_label(bars, fmt="%g", padding=3)
    axes.set(xscale="log", xlim=(0.05, 2000), xlabel="GB/s, one way", title="What a link carries")
    ink.plain(axes.xaxis)
    ink.save(figure, path)
