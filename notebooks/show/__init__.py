"""What the notebooks share: a way to start scripts, the diff of two lessons, and one style for all pictures.

Every notebook begins with show.start(); everything it writes goes into the folder that this names.
"""

import json
import os
import shutil
from pathlib import Path

import matplotlib.pyplot as plt
from IPython import get_ipython
from IPython.utils.io import capture_output

from show.paths import LESSONS, RANK_SCRIPTS, ROOT
from show.pictures import (
    BLUE,
    DARK,
    GREEN,
    GREY,
    HATCHES,
    INK,
    ORANGE,
    PAPER,
    PINK,
    RANKS,
    RED,
    SKY,
    STYLE,
    YELLOW,
    arrow,
    box,
    canvas,
    curves,
    picture,
    slider,
    tile,
    timeline,
)
from show.processes import Running, folded, launch, plain, ranks, run
from show.text import Diff, Table, diff, source, table, variant


def start(name):
    """Go to the repository's root, empty this notebook's own folder under out/, and name it."""
    os.chdir(ROOT)
    out = Path(os.environ.get("OUT", "out")) / "notebooks" / name
    shutil.rmtree(out, ignore_errors=True)  # a lesson would go on from the snapshot of the time before
    out.mkdir(parents=True)
    plt.rcParams.update(STYLE)
    if get_ipython():
        write_files_silently()
    return out


def write_files_silently():
    """%%writefile prints "Writing ..." below a cell whose first line already names the file."""
    write = get_ipython().find_cell_magic("writefile")

    def write_silently(line, cell):
        with capture_output():
            write(line, cell)

    get_ipython().register_magic_function(write_silently, "cell", "writefile")


def curve(out, stem):
    """What a lesson wrote about each epoch."""
    lines = (Path(out) / f"{stem}.jsonl").read_text().splitlines()
    return list(map(json.loads, lines))
