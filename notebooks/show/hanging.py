"""To start ranks that will hang, to look at them, to shorten what they say, and to draw why they wait."""

import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

from show.pictures import INK, RANKS, RED, arrow, box, canvas
from show.processes import Running, folded, plain


def begin(script, world_size, **environment):
    """Start the ranks of a script as show.ranks does, but do not wait for them."""
    store, running = script.with_name(f"{script.stem}-{time.time_ns()}.store").resolve(), []
    for rank in range(world_size):
        names = {"RANK": rank, "WORLD_SIZE": world_size, "STORE": store, "OMP_NUM_THREADS": 1} | environment
        names = {name: str(value) for name, value in names.items()}
        running.append(Running([sys.executable, str(script)], names, f"rank {rank} | "))
    return running


def shorten(error):
    """An error without its line in the C++ source, advice, and what is the same for all tensors here."""
    error = re.sub(r"\[/\S+\] ?|, TensorDeviceTypes=TensorOptions\(.*?\(nullopt\)\)", "", error)
    return re.sub(r"(?= but Rank|Collectives differ)", "\n    ", error.split(". This is typically")[0])


def tell(running, script):
    """What each rank printed; and if it failed, in which line of the script, and why."""
    source, line_of_script = Path(script).read_text().splitlines(), r"(?:\.py\"|file\)),? line (\d+), in"
    for one in running:
        printed, _, trace = one.text.partition("Traceback (most recent call last):\n")
        for line in printed.splitlines():
            if line not in trace and not line.startswith("[rank"):  # gloo's log says it before the error does
                print(folded(one.prefix + line))
        if trace:
            own = [line for line in trace.splitlines() if "torch/" not in line]
            number = int(re.findall(line_of_script, "\n".join(own))[-1])
            error = re.search(r"^\w+(?:\.\w+)*Error: (.*)", trace, re.M)[1]
            print(f"{one.prefix}stopped in line {number}: {source[number - 1].strip()}")
            print(folded("    " + shorten(error)))
        elif one.code and one.code < 0:
            print(f"{one.prefix}ended by signal {-one.code}, without an error message")


def mend(script, old, new):
    """Write a script again with one change, and show the change."""
    text = script.read_text()
    if text.count(old) != 1:
        raise ValueError(f"{script.name} has {text.count(old)} times, not once: {old}")
    mended = script.with_name(f"{script.stem}_mended.py")
    mended.write_text(text.replace(old, new))
    for sign, lines in (("-", old), ("+", new)):
        print("\n".join(f"{sign} {line}" for line in lines.splitlines()))
    return mended


def py_spy(process):
    """The frames of a running process, innermost first. None where the system does not permit it."""
    tool = shutil.which("py-spy", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    if tool is None:
        return None
    found = subprocess.run([tool, "dump", "--pid", str(process.pid)], capture_output=True, text=True)
    frames = [plain(line.strip()) for line in found.stdout.splitlines() if line.startswith("    ")]
    return None if found.returncode else [frame for frame in frames if "wrapper" not in frame]


def draw_calls(calls, words):
    """The calls of two ranks, in order; under each pair that meets, or does not, its words."""
    axes = canvas(4.7, 2.9, across=10, down=6.5)
    width = 10 / max(map(len, calls))
    for rank, names in enumerate(calls):
        bottom = 4.0 - 3.9 * rank
        axes.text(0.1, bottom + 1.65, f"rank {rank}", weight="bold", color=RANKS[rank])
        for number, name in enumerate(names):
            last = number == len(names) - 1
            left = number * width + 0.1
            box(axes, left, bottom, width - 0.3, 1.5, name, colour=RED if last else RANKS[rank])
    for number, word in enumerate(words):
        x, last = (number + 0.5) * width, number == len(words) - 1
        arrow(axes, (x, 3.95), (x, 1.65), colour=RED if last else INK, both=True)
        axes.text(x + 0.2, 2.8, word, size=9, va="center", color=RED if last else INK)
