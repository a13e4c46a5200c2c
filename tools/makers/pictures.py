"""Draw the pictures of the READMEs anew, from real runs: `make pictures`. They land in lessons/pictures/."""

import ast
import subprocess
import sys
import tempfile
from pathlib import Path

import workload
from parts.colours import BLUE, RED
from show import s03a_rings as rings
from show.pictures import STYLE
from tools import gpu_links, ink, launcher, notebooks
from tools.makers import hero, house, mechanisms, splits, step_trace
from tools.makers.bench import rows
from tools.makers.gpu import h100_page

plt = ink.pyplot()
FOLDER = launcher.ROOT / "lessons" / "pictures"
STEM = "04_ddp_torchrun"


def digits():
    images = workload.draw_digits(96, seed=1).images
    tiled = images.view(6, 16, 28, 28).permute(0, 2, 1, 3).reshape(6 * 28, 16 * 28)
    figure = plt.figure(figsize=(16 * 28 / 60, 6 * 28 / 60))
    axes = figure.add_axes((0, 0, 1, 1))
    axes.imshow(tiled, cmap="gray")
    axes.axis("off")
    figure.savefig(FOLDER / "digits.png", dpi=120)


def ring(path):
    """The ring of four processes, by the steps of the notebook's own cell."""
    notebook = notebooks.read(notebooks.FOLDER / "03a_how_gradients_travel.ipynb")
    (cell,) = [cell for cell in notebook.cells if "def ring_steps" in cell.source]
    space = {"rings": rings}
    for node in ast.parse(cell.source).body:
        if isinstance(node, ast.FunctionDef):  # what else the cell has draws, and asserts
            exec(ast.unparse(node), space)
    with plt.rc_context(STYLE):
        rings.draw_ring(4, space["ring_steps"](4))
        ink.save(plt.gcf(), path)
    plt.close()


def curve(folder, processes, kinked):
    """Lesson 04's losses, on the model as it is or with kinks in it."""
    rows.finish(rows.lesson(STEM, processes, folder, variant="kinked" if kinked else ""))
    return [row["loss"] for row in launcher.read_curve(folder / "out", STEM)]


def kinks():
    figure, axes = plt.subplots(figsize=(ink.WIDTH, 4.4))
    labels = {True: (RED, "ReLU and max pooling"), False: (BLUE, "GELU and average pooling")}
    for kinked, (colour, label) in labels.items():
        losses = []
        for processes in (1, 2, 4):
            with tempfile.TemporaryDirectory() as folder:
                losses.append(curve(Path(folder), processes, kinked))
        epochs = range(1, len(losses[0]) + 1)
        for processes, marker, line, run in ((2, "o", "-", losses[1]), (4, "s", "--", losses[2])):
            shown = []
            print(label, processes, end="")
            for one, other in zip(losses[0], run, strict=True):
                off = abs(one - other) / one
                print(f" {off:.0e}", end="")
                shown.append(max(off, 1e-9))
            print(flush=True)
            style = {"color": colour, "marker": marker, "linestyle": line}
            axes.plot(epochs, shown, label=f"{processes} processes, {label}", **style)
    axes.set(
        title="How far the loss of several processes\nis from that of one",
        xlabel="epoch",
        ylabel="relative difference (none is drawn at 1e-9)",
        yscale="log",
    )
    ink.plain(axes.yaxis)
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.15))
    ink.save(figure, FOLDER / "kinks.svg")


def ladder():
    with tempfile.TemporaryDirectory() as folder:
        words = [sys.executable, "-m", "tools.run_lessons", "--out", folder]
        subprocess.run(words, cwd=launcher.ROOT, check=True)
        (FOLDER / "ladder.svg").write_bytes((Path(folder) / "ladder.svg").read_bytes())


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    digits()
    hero.draw(FOLDER / "hero.svg")
    ring(FOLDER / "ring.svg")
    gpu_links.draw(FOLDER / "links.svg")
    h100_page.draw(FOLDER / "gpt_step.svg")
    splits.draw(FOLDER / "splits.svg")
    mechanisms.draw_ranks(FOLDER / "ranks.svg")
    mechanisms.draw_rename(FOLDER / "rename.svg")
    house.draw(FOLDER / "house.svg")
    step_trace.draw(FOLDER / "ddp_step.svg")  # of the stored trace
    kinks()
    ladder()
