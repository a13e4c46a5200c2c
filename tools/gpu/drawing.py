"""The picture of `make gpu`."""

from pathlib import Path

import ink


def draw(facts: dict, path: Path, title: str) -> None:
    """A panel for each kind of facts that there are: a stage without time left has none."""
    plt = ink.pyplot()
    panels = {"ladder": steps, "lessons": batches, "all-reduce": sizes, "memory": memory}
    shown = [name for name in panels if facts.get(name)]
    height = 1 + 3 * max(1, len(shown))
    figure, axes = plt.subplots(max(1, len(shown)), 1, figsize=(ink.WIDTH, height), squeeze=False)
    for name, panel in zip(shown, axes.flat, strict=False):
        panels[name](panel, facts[name])
    kinds = [
        *dict.fromkeys(facts.get("gpus", [])),
        f"torch {facts.get('versions', {}).get('torch', 'unknown')}",
    ]
    figure.suptitle(f"{title}\n{', '.join(kinds)}")  # in one line it would be wider than the picture
    figure.savefig(path)
    plt.close(figure)


def steps(panel, found: dict) -> None:
    panel.set_title("ResNet-18, CIFAR-size images: images a second")
    bars = panel.barh(list(found), [step["images/s"] for step in found.values()])
    panel.bar_label(bars, [f"{step['images/s']:,.0f}" for step in found.values()], padding=2)
    panel.invert_yaxis()
    panel.margins(x=0.2)


def batches(panel, lessons: dict) -> None:
    panel.set_title("lessons by their batch: images a second")
    for stem, by_size in lessons.items():
        found = {int(size): each["images/s"] for size, each in by_size.items()}
        panel.loglog(list(found), list(found.values()), marker="o", label=stem)
    panel.legend()


def sizes(panel, seconds: dict) -> None:
    panel.set_title("all-reduce on two ranks: microseconds by bytes")
    found = {int(size): 1e6 * each for size, each in seconds.items()}
    panel.loglog(list(found), list(found.values()), marker="o")


def memory(panel, kinds: dict) -> None:
    panel.set_title("peak memory of a rank, MiB, by ranks")
    for kind, by_ranks in kinds.items():
        found = {int(count): size / 2**20 for count, size in by_ranks.items()}
        panel.plot(list(found), list(found.values()), marker="o", label=kind)
    panel.set_ylim(bottom=0)
    panel.legend()
