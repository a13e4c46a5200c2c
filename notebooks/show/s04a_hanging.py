"""Start ranks that will hang, look at them, shorten what they print, and draw why they wait."""

import os
import pickle
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import matplotlib.pyplot as plt

from show.pictures import GREEN, INK, RANKS, RED, SKY, arrow, box, canvas, picture, timeline
from show.processes import Running, folded, launch, plain


def begin(script, world_size, **environment):
    """Start the ranks of a script as show.ranks does, but do not wait for them."""
    store = script.with_name(f"{script.stem}-{time.time_ns()}.store").resolve()
    running = []
    for rank in range(world_size):
        variables = {"RANK": rank, "WORLD_SIZE": world_size, "STORE": store, "OMP_NUM_THREADS": 1}
        variables.update(environment)
        as_text = {name: str(value) for name, value in variables.items()}
        running.append(Running([sys.executable, str(script)], as_text, f"rank {rank} | "))
    return running


def shorten(error):
    """An error without its line in the C++ source, advice, and what is the same for all tensors here."""
    error = re.sub(r"\[/\S+\] ?|, TensorDeviceTypes=TensorOptions\(.*?\(nullopt\)\)", "", error)
    return re.sub(r"(?= but Rank|Collectives differ)", "\n    ", error.split(". This is typically")[0])


def tell(running, script):
    """What each rank printed; and if it failed, in which line of the script, and why."""
    source = Path(script).read_text().splitlines()
    line_of_script = r"(?:\.py\"|file\)),? line (\d+), in"
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
        for line in lines.splitlines():
            print(f"{sign} {line}")
    return mended


COLOURED = ("FORCE_COLOR", "CLICOLOR_FORCE")  # Jupyter sets them, and py-spy would print in colours


def py_spy(process):
    """The frames of a running process, innermost first. None where the system does not permit it."""
    environment = {name: value for name, value in os.environ.items() if name not in COLOURED}
    tool = shutil.which("py-spy", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    if tool is None:
        return None
    command = [tool, "dump", "--pid", str(process.pid)]
    found = subprocess.run(command, capture_output=True, text=True, env=environment)
    if found.returncode:
        return None
    frames = []
    for line in found.stdout.splitlines():
        if line.startswith("    ") and "wrapper" not in line:
            frames.append(plain(line.strip()))
    return frames


def dump(running, waits_in, limit=10):
    """Print the stack of each rank, as py-spy sees it, once its innermost call is the named one."""
    deadline = time.monotonic() + limit
    for one, name in zip(running, waits_in, strict=True):
        frames = py_spy(one.process)
        while frames and not frames[0].startswith(f"{name} (") and time.monotonic() < deadline:
            time.sleep(0.2)
            frames = py_spy(one.process)
        if frames is None:
            print(f"{one.prefix}py-spy is missing or not permitted. It would show {name} (...) on top.")
            print("Linux: sudo, or kernel.yama.ptrace_scope=0. Docker: --cap-add SYS_PTRACE. macOS: sudo.")
            continue
        for frame in frames:
            print(one.prefix + frame)
        print()
        if not frames[0].startswith(f"{name} ("):
            raise RuntimeError(f"{one.prefix}not in {name} after {limit} seconds, but in {frames[0]}")


def print_stack(one, limit=10):
    """Wait for the stack that faulthandler writes, and print its lines."""
    deadline = time.monotonic() + limit
    while "<module>" not in one.text and time.monotonic() < deadline:
        time.sleep(0.1)
    for line in one.text.splitlines():
        if " in " in line and "wrapper" not in line:
            print(one.prefix + line.strip())
    print()


def compare_dumps(folder):
    """Run torchfrtrace on the dumps of gloo, and print what it finds."""
    for path in folder.iterdir():
        dump = pickle.loads(path.read_bytes())
        groups = dump["pg_config"]
        groups.setdefault("0", groups.get(""))  # without this, torch 2.13's tool stops with a KeyError
        path.write_bytes(pickle.dumps(dump))
    found = launch(f"torchfrtrace --prefix rank_ {folder}")
    found.reader.join(30)
    telling = ("Collective sequence", "collective: ", "input sizes", "expected ranks", "error msg")
    for line in found.text.splitlines():
        if line.startswith(telling):
            print(folded(line))
    return found.text


def exit_codes(running):
    """Wait for torchrun, and read the exit code of each rank in its report."""
    running.reader.join(60)
    running.end()
    pairs = re.findall(r"rank +: (\d+).*\n +exitcode +: (-?\d+)", running.text)
    return {int(rank): int(code) for rank, code in pairs}


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
        x = (number + 0.5) * width
        last = number == len(words) - 1
        arrow(axes, (x, 3.95), (x, 1.65), colour=RED if last else INK, both=True)
        axes.text(x + 0.2, 2.8, word, size=9, va="center", color=RED if last else INK)
    said = [f"Rank {rank} calls {', then '.join(names)}." for rank, names in enumerate(calls)]
    pairs = [f"pair {number}: {word}" for number, word in enumerate(words, 1)]
    alt = f"{' '.join(said)} The first calls form a pair, and so on: {'; '.join(pairs)}."
    picture(alt.replace("\n", " "))


def draw_waits(results):
    """For each rank its work, its collectives by number, and the one in which the timeout ended the wait."""
    first = min(result["start"] for result in results)
    colours = {"work on a batch": SKY, "collective": GREEN, "times out": RED}
    _, axes = plt.subplots(figsize=(4.8, 2.7))
    rows = {}
    said = []
    for rank, result in enumerate(results):
        row = []
        free = result["start"] - first
        for number, call in enumerate(result["calls"], 1):
            begin = call["begin"] - first
            end = call["end"] - first
            if call["done"]:
                kind = "collective"
                name = number
                side = "center"
            else:
                kind = "times out"
                name = f"   {number}: {call['name']}"
                side = "left"
                said.append(f"rank {rank} waits {end - begin:.1f} s in its call {number}, {call['name']}")
            row += [(free, begin, "work on a batch"), (begin, end, kind)]
            axes.vlines(begin, -rank - 0.31, -rank + 0.31, color=colours[kind], lw=2)  # some are very short
            axes.text(begin, -rank - 0.49, name, ha=side)
            free = end
        rows[f"rank {rank}"] = row
    timeline(axes, rows, colours, unit="seconds since the first rank began")
    axes.get_legend().set(bbox_to_anchor=(-0.15, 1.0))
    done = sum(call["done"] for call in results[0]["calls"])
    picture(
        f"Timelines of {len(results)} ranks. They work on batches and meet in {done} collectives. Then "
        f"{' and '.join(said)}, until the timeout."
    )
