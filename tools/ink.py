"""How the pictures of the tools look: readable on a light page, on a dark one, and on a phone."""

from parts.colours import INK

WIDTH = 5  # inches: at DPI, twice as many dots as a page gives it
DPI = 220
STYLE = {
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "savefig.facecolor": "none",
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
    "axes.titlesize": 11,
    "figure.constrained_layout.use": True,
    "font.size": 10,
    "savefig.dpi": DPI,
    "svg.fonttype": "none",  # letters stay letters, of the machine's own sans-serif
    "svg.hashsalt": "rungs",  # else each drawing of the same has other names in it
}


def pyplot():
    """matplotlib.pyplot for files, in this style."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    plt.rcParams.update(STYLE)
    return plt


def plain(axis):
    """Powers of ten as 0.01 and 100: what matplotlib writes has a font that not every machine has."""
    axis.set_major_formatter("{x:g}")


def save(figure, path, **metadata):
    """As SVG: the same data give the same file, on any day."""
    figure.savefig(path, format="svg", metadata={"Date": None, **metadata})
