"""One style for all pictures, and what several of them are made of."""

import io

import matplotlib.pyplot as plt
from IPython.display import Image, display
from matplotlib.colors import to_rgb
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch
from matplotlib.text import Text

from parts.colours import BLUE, DARK, GREEN, GREY, INK, LINES, ORANGE, PINK, RANKS, RED, SKY, YELLOW

PAPER = "none"  # pages are light or dark, and pictures have no ground of their own
DPI, PHONE = 110, 380  # dots an inch; the dots that a phone has for a picture
SMALLEST = 9  # dots: letters that are less high cannot be read

STYLE = {
    "figure.facecolor": PAPER,
    "axes.facecolor": PAPER,
    "savefig.facecolor": PAPER,
    "figure.dpi": DPI,
    "figure.figsize": (5, 3.4),
    "figure.constrained_layout.use": True,
    "axes.prop_cycle": plt.cycler(color=LINES),
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 11,
    "axes.titlelocation": "left",
    "axes.titleweight": "bold",
    "axes.edgecolor": GREY,
    "axes.labelcolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "text.color": INK,
    "font.size": 10,
    "legend.frameon": False,
    "hatch.linewidth": 0.6,
}


def picture(alt, figure=None):
    """Show what has been drawn. `alt` is for those who cannot see it: what it shows, and what that says."""
    figure = figure or plt.gcf()
    require_large_letters(figure)
    page = io.BytesIO()
    figure.savefig(page, format="png", dpi=2 * DPI)
    require_free_edges(page)
    plt.close(figure)
    display(Image(page.getvalue(), width=round(figure.get_figwidth() * DPI), alt=alt))


def require_large_letters(figure):
    shrunk = min(1, PHONE / (figure.get_figwidth() * DPI))
    figure.canvas.draw()  # or labels that matplotlib makes itself would not be there yet
    for text in figure.findobj(Text):
        height = text.get_size() * DPI / 72 * shrunk
        if text.get_visible() and text.get_text().strip() and height < SMALLEST:
            raise ValueError(
                f"on a phone, {text.get_text()!r} is {height:.1f} dots high, less than {SMALLEST}: "
                "make the letters larger or the picture narrower (4 inches, and rows in place of columns)"
            )


def require_free_edges(page):
    page.seek(0)
    opaque = plt.imread(page)[..., 3] > 0
    for edge in (opaque[0], opaque[-1], opaque[:, 0], opaque[:, -1]):
        if edge.any():
            raise ValueError("something is cut off at an edge: make the label shorter or the picture larger")


def tile(colour, strength):
    """A colour to fill with where letters must be read: opaque and pale, so DARK stands out on any page."""
    red, green, blue = to_rgb(colour)
    return 1 - strength * (1 - red), 1 - strength * (1 - green), 1 - strength * (1 - blue)


def canvas(width=5, height=3, across=16, down=6):
    """An empty page to draw boxes on, measured from its lower left corner."""
    axes = plt.figure(figsize=(width, height)).add_subplot()
    axes.set(xlim=(0, across), ylim=(0, down))
    axes.axis("off")
    return axes


def box(axes, x, y, width, height, title, text="", colour=BLUE, size=9):
    """A box with a title and some lines. Light inside: dark text must be readable on it."""
    style = "round,pad=0.02,rounding_size=0.15"
    patch = FancyBboxPatch(
        (x, y), width, height, boxstyle=style, facecolor=colour + "14", edgecolor=colour, lw=1.5
    )
    axes.add_patch(patch)
    middle, top = x + width / 2, y + height
    if not text:
        axes.text(middle, y + height / 2, title, ha="center", va="center", weight="bold", size=size)
        return
    inches = axes.figure.get_figheight() / (axes.get_ylim()[1] - axes.get_ylim()[0])
    line = 1.45 * size / 72 / inches
    axes.text(middle, top - 0.85 * line, title, ha="center", va="center", weight="bold", size=size)
    axes.text(middle, (y + top - 1.2 * line) / 2, text, ha="center", va="center", size=size, linespacing=1.35)


def arrow(axes, start, end, text="", colour=INK, bend=0.0, both=False, at=(0, 0.18), size=8.5):
    """An arrow between two points, with a word beside its middle."""
    style = "<|-|>" if both else "-|>"
    axes.add_patch(
        FancyArrowPatch(
            start,
            end,
            arrowstyle=style,
            mutation_scale=12,
            color=colour,
            lw=1.4,
            connectionstyle=f"arc3,rad={bend}",
            shrinkA=2,
            shrinkB=2,
        )
    )
    if text:
        x, y = (start[0] + end[0]) / 2 + at[0], (start[1] + end[1]) / 2 + at[1]
        axes.text(x, y, text, ha="center", va="bottom", size=size, color=colour)


HATCHES = {RED: "////", ORANGE: "////"}  # whoever sees no colours sees lines


def timeline(axes, rows, colours, unit="ms"):
    """A row for each name, top first; in it a bar for each (start, end, kind)."""
    used = set()
    for number, bars in enumerate(rows.values()):
        for begin, end, kind in bars:
            used.add(kind)
            colour = colours[kind]
            axes.barh(
                -number,
                end - begin,
                left=begin,
                height=0.62,
                color=colour,
                hatch=HATCHES.get(colour),
                edgecolor="white",
                linewidth=0.4,
            )
    axes.set_yticks(range(0, -len(rows), -1), list(rows))
    axes.set_ylim(-len(rows) + 0.4, 0.6)
    axes.set_xlabel(unit)
    axes.tick_params(axis="y", length=0)
    handles = []
    names = []
    for kind, colour in colours.items():
        if kind in used:
            hatch = HATCHES.get(colour)
            handles.append(plt.Rectangle((0, 0), 1, 1, facecolor=colour, hatch=hatch, edgecolor="white"))
            names.append(kind)
    axes.legend(
        handles, names, loc="lower left", bbox_to_anchor=(0, 1.0), ncols=len(names), borderaxespad=0.2
    )


def curves(axes, runs, key="loss"):
    """Curves on one another: each thinner than the one before, so that the lower ones can be seen."""
    for number, (label, rows) in enumerate(runs.items()):
        width = 2 + 3.0 * (len(runs) - 1 - number)
        colour = [SKY, ORANGE, INK, GREEN, PINK][number % 5]
        epochs = [row["epoch"] for row in rows]
        values = [row[key] for row in rows]
        axes.plot(epochs, values, label=label, color=colour, lw=width)
    axes.set(xlabel="epoch", ylabel=key)
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.legend()


def slider(draw, label, values, shown):
    """The pictures for the values in `shown`. Under them, where the notebook runs, a slider for all.

    draw(value) draws one, and returns its alt text.
    """
    for value in shown:
        picture(draw(value))
    import ipywidgets

    handle = ipywidgets.SelectionSlider(options=values, value=shown[-1], description=label)
    place = ipywidgets.Output()

    def redraw(change):
        with place:
            place.clear_output(wait=True)
            picture(draw(change["new"]))

    handle.observe(redraw, names="value")
    display(ipywidgets.VBox([handle, place]))
