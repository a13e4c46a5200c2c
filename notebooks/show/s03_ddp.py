"""Pictures of notebook 03: which rank gets which image, and a gradient before and after the average."""

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.colors import to_rgba

from show.pictures import BLUE, DARK, ORANGE, RANKS, picture, tile


def draw_owners(owners):
    """A panel for each {title: array}. The array has the rank that gets an image: [epoch, image]."""
    _, panels = plt.subplots(len(owners), 1, figsize=(4.4, 1.3 * len(owners)))
    words = []
    for axes, (title, owner) in zip(panels, owners.items(), strict=True):
        epochs, images = owner.shape
        for (epoch, image), rank in np.ndenumerate(owner):
            face = tile(RANKS[rank], 0.4)
            axes.add_patch(plt.Rectangle((image - 0.46, epoch - 0.44), 0.92, 0.88, facecolor=face, lw=0))
            axes.text(image, epoch, rank, ha="center", va="center", size=10, color=DARK)
        axes.set(xlim=(-0.5, images - 0.5), ylim=(epochs - 0.5, -0.5), title=title, xlabel="image")
        axes.set_xticks(range(0, images, 5))
        names = [f"epoch {epoch}" for epoch in range(epochs)]
        axes.set_yticks(range(epochs), names)
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
        counts = " and ".join(map(str, np.bincount(owner[0])))
        order = "the same" if (owner == owner[0]).all() else "a different"
        words.append(f"{title}: the ranks get {counts} images, with {order} assignment in each epoch")
    picture(f"Which rank gets which of {images} images, in {epochs} epochs. {'; '.join(words)}.")


def draw_gradients(gradients):
    """Gradients of the first layer side by side: {title: array of [filter, weight]}."""
    limit = np.abs(list(gradients.values())).max()
    _, grid = plt.subplots(3, 2, figsize=(3.8, 4.6))
    for axes, (title, gradient) in zip(grid.flat, gradients.items(), strict=False):
        colours = np.where(gradient[..., None] > 0, to_rgba(ORANGE), to_rgba(BLUE))
        colours[..., 3] = np.abs(gradient) / limit
        axes.imshow(colours, aspect="auto")
        axes.set_title(title, size=10, loc="center")
        axes.set(xticks=[], yticks=[])
        axes.spines[:].set_visible(True)
    words = "row: a filter of\nthe first layer\ncolumn: a weight of it\n\norange: positive\nblue: negative"
    grid[2, 1].text(0.5, 0.5, words, ha="center", va="center")
    grid[2, 1].axis("off")
    picture(
        "The first layer's gradient, five times. Before averaging, rank 0 and rank 1 have different "
        "gradients. After averaging, both have the same gradient as one process with the whole batch."
    )
