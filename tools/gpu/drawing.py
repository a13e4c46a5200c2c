"""The picture of `make gpu`."""

from pathlib import Path

import ink


def draw(facts: dict, path: Path, title: str) -> None:
    plt = ink.pyplot()
    figure, (first, second, third, fourth) = plt.subplots(4, 1, figsize=(ink.WIDTH, 13))
    first.set_title("ResNet-18, CIFAR-size images: images a second")
    steps = facts.get("ladder", {})
    bars = first.barh(list(steps), [step["images/s"] for step in steps.values()])
    first.bar_label(bars, [f"{step['images/s']:,.0f}" for step in steps.values()], padding=2)
    first.invert_yaxis()
    first.margins(x=0.2)
    second.set_title("lessons by their batch: images a second")
    for stem, sizes in facts.get("lessons", {}).items():
        found = {int(size): each["images/s"] for size, each in sizes.items()}
        second.loglog(list(found), list(found.values()), marker="o", label=stem)
    third.set_title("all-reduce on two ranks: microseconds by bytes")
    found = {int(size): seconds for size, seconds in facts.get("all-reduce", {}).items()}
    third.loglog(list(found), [1e6 * seconds for seconds in found.values()], marker="o")
    fourth.set_title("peak memory of a rank, MiB, by ranks")
    for kind, ranks in facts.get("memory", {}).items():
        found = {int(count): size / 2**20 for count, size in ranks.items()}
        fourth.plot(list(found), list(found.values()), marker="o", label=kind)
    fourth.set_ylim(bottom=0)
    for part in (second, fourth):
        if part.get_legend_handles_labels()[0]:
            part.legend()
    kinds = [
        *dict.fromkeys(facts.get("gpus", [])),
        f"torch {facts.get('versions', {}).get('torch', 'unknown')}",
    ]
    figure.suptitle(f"{title}\n{', '.join(kinds)}")  # in one line it would be wider than the picture
    figure.savefig(path)
    plt.close(figure)
