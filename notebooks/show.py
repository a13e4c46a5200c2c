"""What the notebooks share: one style for all pictures, the diff of two lessons, and a way to start scripts.

Every notebook begins with show.start(); everything it writes goes into the folder that this names.
"""

import ast
import difflib
import html
import inspect
import json
import os
import queue
import re
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import matplotlib.pyplot as plt
import psutil
from IPython.display import display
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

ROOT = Path(__file__).resolve().parent.parent
LESSONS = ROOT / "lessons"
sys.path.insert(0, str(LESSONS))  # so that a notebook can import workload

# Okabe and Ito's colours: people who see no red or no green tell them apart.
BLUE, ORANGE, GREEN, PINK = "#0072B2", "#E69F00", "#009E73", "#CC79A7"
RED, SKY, YELLOW, GREY = "#D55E00", "#56B4E9", "#F0E442", "#767676"
RANKS = [BLUE, ORANGE, GREEN, PINK]  # the colour of rank 0, 1, 2, 3 in every picture
INK, PAPER = "#1f1f1f", "#ffffff"


def start(name):
    """Go to the repository's root, empty this notebook's own folder under out/, and name it."""
    os.chdir(ROOT)
    out = Path(os.environ.get("OUT", "out")) / "notebooks" / name
    shutil.rmtree(out, ignore_errors=True)  # a lesson would go on from the snapshot of the time before
    out.mkdir(parents=True)
    plt.rcParams.update(
        {
            "figure.facecolor": PAPER,  # not transparent: on a dark page, dark text would be lost
            "savefig.facecolor": PAPER,
            "figure.dpi": 110,
            "figure.figsize": (8, 3.4),
            "figure.constrained_layout.use": True,
            "axes.prop_cycle": plt.cycler(color=[BLUE, ORANGE, GREEN, PINK, RED, SKY]),
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.titlesize": 11,
            "axes.titlelocation": "left",
            "axes.titleweight": "bold",
            "axes.edgecolor": GREY,
            "axes.labelcolor": INK,
            "text.color": INK,
            "font.size": 10,
            "legend.frameon": False,
            "hatch.linewidth": 0.6,
        }
    )
    return out


# ---- starting scripts ---------------------------------------------------------------------------


class Running:
    """A command that runs in processes of its own, while the notebook goes on."""

    def __init__(self, words, environment=None, prefix="", where=None):
        self.began, self.seconds, self.prefix = time.monotonic(), None, prefix
        self.text, self.where, self.news = "", where, queue.Queue()
        # Jupyter asks for colours, and for pictures in the page: a script has neither.
        jupyters = ("MPLBACKEND", "FORCE_COLOR", "CLICOLOR", "CLICOLOR_FORCE", "PAGER", "GIT_PAGER")
        inherited = {name: value for name, value in os.environ.items() if name not in jupyters}
        self.process = subprocess.Popen(
            words,
            env=inherited | {"PYTHONUNBUFFERED": "1", "PYTHONPATH": str(LESSONS)} | (environment or {}),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        self.reader = threading.Thread(target=self.read, daemon=True)
        self.reader.start()

    def read(self):
        for line in self.process.stdout:
            line = plain(line)
            if line is not None:
                self.text += line
                self.news.put(line)
        self.process.stdout.close()
        self.process.wait()
        self.seconds = time.monotonic() - self.began
        self.news.put(None)

    @property
    def code(self):
        return self.process.poll()

    @property
    def result(self):
        """What the script left in the file that RESULT names; None if it left nothing."""
        return json.loads(self.where.read_text()) if self.where and self.where.exists() else None

    def tree(self):
        """The living processes of this command, itself first."""
        try:
            first = psutil.Process(self.process.pid)
            return [first, *first.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []

    def until(self, words, limit=180):
        """Print what it writes until a line holds these words."""
        deadline = time.monotonic() + limit
        while (line := self.next(deadline)) is not None:
            print(self.prefix + line, end="", flush=True)
            if words in line:
                return line
        raise RuntimeError(f"it ended, or {limit} seconds passed, before it wrote {words!r}")

    def next(self, deadline):
        try:
            return self.news.get(timeout=max(0, deadline - time.monotonic()))
        except queue.Empty:
            return None

    def follow(self, limit=180):
        """Print what it writes until it ends. After `limit` seconds, end it."""
        deadline = time.monotonic() + limit
        try:
            while (line := self.next(deadline)) is not None:
                print(self.prefix + line, end="", flush=True)
        except KeyboardInterrupt:
            self.end()
            raise
        if self.seconds is None:
            self.end()
            print(f"(still running after {limit} seconds: ended by the notebook)", flush=True)
        return self

    def end(self):
        for process in reversed(self.tree()):
            try:
                process.send_signal(signal.SIGKILL)
            except psutil.NoSuchProcess:
                continue
        self.reader.join(5)


def launch(command, environment=None):
    """Start a command as a reader would type it at the repository's root, and do not wait for it."""
    words, environment = shlex.split(command), dict(environment or {})
    print("$", command, flush=True)
    while "=" in words[0]:
        name, value = words.pop(0).split("=", 1)
        environment[name] = value
    beside = Path(sys.executable).parent  # the kernel's own python; PATH may lead to another one
    if (beside / words[0]).exists():
        words[0] = str(beside / words[0])
    environment["PATH"] = f"{beside}{os.pathsep}{os.environ.get('PATH', '')}"
    return Running(words, environment)


def run(command, limit=180, code=0, environment=None):
    """Start a command as a reader would type it, and show what it writes while it runs. `code` is the
    status that it must end with; None for any."""
    running = launch(command, environment).follow(limit)
    if code is not None and running.code != code:
        raise RuntimeError(f"it ended with status {running.code}, not {code}")
    return running


def ranks(script, world_size, limit=60, environment=None, quiet=False):
    """Start a script once for each rank, and show what they write. Each finds in its environment RANK,
    WORLD_SIZE, STORE (a new file to meet at) and RESULT (a file for what it has to say to the notebook)."""
    folder = Path(script).resolve().parent / f"{Path(script).stem}-{time.time_ns()}"
    folder.mkdir()
    running, deadline = [], time.monotonic() + limit
    for rank in range(world_size):
        names = {"RANK": rank, "WORLD_SIZE": world_size, "LOCAL_RANK": rank, "STORE": folder / "store"}
        names |= {"RESULT": folder / f"{rank}.json", "OMP_NUM_THREADS": 1} | (environment or {})
        names = {name: str(value) for name, value in names.items()}
        words = [sys.executable, str(script)]
        running.append(Running(words, names, f"rank {rank} | ", folder / f"{rank}.json"))
    try:
        while any(one.seconds is None for one in running) and time.monotonic() < deadline:
            time.sleep(0.02)
            for one in running:
                while not one.news.empty():
                    line = one.news.get()
                    if line is not None and not quiet:
                        print(one.prefix + line, end="", flush=True)
    finally:
        late = [str(rank) for rank, one in enumerate(running) if one.seconds is None]
        for one in running:
            one.end()
    if late:
        print(f"(rank {', '.join(late)}: still there after {limit} seconds, ended by the notebook)")
    for one in running:
        while not one.news.empty():
            line = one.news.get()
            if line is not None and not quiet:
                print(one.prefix + line, end="", flush=True)
    return running


def variant(stem, out, name, changes):
    """Write a copy of a lesson with some lines changed, and show what was changed."""
    text = (LESSONS / f"{stem}.py").read_text()
    for old, new in changes.items():
        if text.count(old) != 1:
            raise ValueError(f"{stem}.py has {text.count(old)} times, not once: {old}")
        text = text.replace(old, new)
    path = Path(out) / f"{name}.py"
    path.write_text(text)
    before = (LESSONS / f"{stem}.py").read_text().splitlines()
    for line in difflib.unified_diff(before, text.splitlines(), n=0, lineterm=""):
        if line[0] in "+-" and line[:3] not in ("+++", "---"):
            print(line)
    return path


def curve(out, stem):
    """What a lesson wrote about each epoch."""
    return [json.loads(line) for line in (Path(out) / f"{stem}.jsonl").read_text().splitlines()]


LOG = re.compile(
    r"^(?:\[rank\d+\]:)?\[?([IWEC])\d{4} [\d:.]+ +(?:\d+ )?(?:[\w/.-]*site-packages/)?([\w/.-]+):\d+\] ?"
)


def plain(line):
    """A line without what is true on this machine only: folders, process ids, times. None: nothing to say."""
    found = LOG.match(line)
    if found:
        if found[1] in "IW":  # torchrun tells of every signal it sends
            return None
        line = line[found.end() :]
    line = re.sub(r"^\[rank\d+\]: ", "", line)
    line = re.sub(r"[^\s\"'(]*/site-packages/", "", line)
    line = re.sub(r"[^\s\"'(]*/lib/python3\.\d+/", "", line)
    line = re.sub(rf"{re.escape(sys.prefix)}/bin/(python)[\d.]*", r"\1", line)
    line = line.replace(f"{ROOT}/", "").replace(str(Path.home()), "~")
    line = re.sub(r"/tmp/[^\s\"',)]*", "(a temporary file)", line)
    line = re.sub(r"(?i)\b(pid|process)([ :=]+)\d+", r"\1\2(its number)", line)
    return re.sub(r"\[(?:127\.0\.0\.1|::1|localhost|::ffff:[\d.]+)\]:\d+", "[this machine]:(a port)", line)


# ---- what changed -------------------------------------------------------------------------------

CELL = "width:50%;padding:0 6px;vertical-align:top;text-align:left;white-space:pre-wrap;word-break:break-word"
HANGING = "padding-left:2em;text-indent:-1.4em"  # where a long line is broken, the rest stands further in
REMOVED, ADDED = "background:rgba(213,94,0,.22)", "background:rgba(0,114,178,.22)"


class Diff:
    """Two files side by side, and a sentence on each place where they differ."""

    def __init__(self, before, after, sentences):
        names = [LESSONS / f"{stem}.py" for stem in (before, after)]
        self.names = [path.name for path in names]
        self.lines = [path.read_text().splitlines() for path in names]
        matcher = difflib.SequenceMatcher(None, *self.lines, autojunk=False)
        self.hunks = list(matcher.get_grouped_opcodes(1))
        if len(self.hunks) != len(sentences):
            raise ValueError(f"{len(self.hunks)} places differ, but there are {len(sentences)} sentences")
        self.sentences = list(sentences.values())
        for number, (hunk, anchor) in enumerate(zip(self.hunks, sentences, strict=True), 1):
            if anchor not in "\n".join(line for _, line in self.changed(hunk)):
                raise ValueError(f"place {number} does not change {anchor!r}")

    def changed(self, hunk):
        before, after = self.lines
        for kind, low, high, start, end in hunk:
            if kind != "equal":
                yield from (("-", line) for line in before[low:high])
                yield from (("+", line) for line in after[start:end])

    def __repr__(self):
        text = []
        for sentence, hunk in zip(self.sentences, self.hunks, strict=True):
            text += [f"# {sentence}", *(f"{sign} {line}" for sign, line in self.changed(hunk)), ""]
        return "\n".join(text)

    def _repr_html_(self):
        rows = []
        for sentence, hunk in zip(self.sentences, self.hunks, strict=True):
            rows.append(
                f'<tr><td colspan="2" style="{CELL};font-family:sans-serif;padding:14px 6px 4px">'
                f"<b>{code_in(sentence)}</b></td></tr>"
            )
            for kind, low, high, start, end in hunk:
                before, after = self.lines[0][low:high], self.lines[1][start:end]
                for number in range(max(len(before), len(after))):
                    old = before[number] if number < len(before) else None
                    new = after[number] if number < len(after) else None
                    rows.append(
                        "<tr>" + side(old, new, kind, "-", REMOVED) + side(new, old, kind, "+", ADDED)
                    )
        head = "".join(f'<th style="{CELL}">{name}</th>' for name in self.names)
        style = "width:100%;table-layout:fixed;border-collapse:collapse;font:12px/1.4 monospace"
        return f'<table style="{style}"><tr>{head}</tr>{"".join(rows)}</table>'


def side(line, other, kind, sign, colour):
    if line is None:
        return f'<td style="{CELL}"></td>'
    inside = html.escape(line) or "&nbsp;"
    if kind == "equal":
        return f'<td style="{CELL};{HANGING};opacity:.65">  {inside}</td>'
    if other is not None:  # the part that differs, darker than the line
        head = same(line, other)
        tail = same(line[head:][::-1], other[head:][::-1])
        middle = line[head : len(line) - tail]
        if middle and len(middle) < 0.7 * len(line.strip()):
            parts = [html.escape(part) for part in (line[:head], middle, line[len(line) - tail :])]
            inside = f'{parts[0]}<span style="{colour}">{parts[1]}</span>{parts[2]}'
    return f'<td style="{CELL};{HANGING};{colour}">{sign} {inside}</td>'


def same(line, other):
    """How many characters both begin with."""
    pairs = enumerate(zip(line, other, strict=False))
    return next((place for place, (a, b) in pairs if a != b), min(len(line), len(other)))


def code_in(text):
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", html.escape(text, quote=False))


def diff(before, after, sentences):
    """The changes from one lesson to the next, side by side. `sentences` has one for each place, under some
    words of the changed lines: when a lesson changes and the sentences do not, this is an error."""
    display(Diff(before, after, sentences), metadata={"rungs": "diff"})


class Source:
    def __init__(self, text):
        self.text = text

    def __repr__(self):
        return self.text

    def _repr_markdown_(self):
        return f"```python\n{self.text}\n```"


def source(what, name=None):
    """Show the code of a function, or of a function by its name in a lesson."""
    if name is None:
        text = inspect.getsource(what)
    else:
        whole = (LESSONS / f"{what}.py").read_text()
        found = next(node for node in ast.parse(whole).body if getattr(node, "name", None) == name)
        first = min([found.lineno, *(line.lineno for line in found.decorator_list)])
        text = "\n".join(whole.splitlines()[first - 1 : found.end_lineno])
    display(Source(text.rstrip()), metadata={"rungs": "source"})


class Table:
    def __init__(self, head, rows):
        self.rows = [[str(cell) for cell in row] for row in [head, *rows]]

    def __repr__(self):
        widths = [max(len(cell) for cell in column) for column in zip(*self.rows, strict=True)]
        lines = [
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in self.rows
        ]
        return "\n".join(line.rstrip() for line in lines)

    def _repr_html_(self):
        head, *rows = [[code_in(cell) for cell in row] for row in self.rows]
        style = 'style="text-align:left;padding:2px 14px 2px 0"'
        text = "<tr>" + "".join(f"<th {style}>{cell}</th>" for cell in head) + "</tr>"
        for row in rows:
            text += "<tr>" + "".join(f"<td {style}>{cell}</td>" for cell in row) + "</tr>"
        return f"<table>{text}</table>"


def table(head, rows):
    display(Table(head, rows))


# ---- pictures -----------------------------------------------------------------------------------


def canvas(width=8, height=3, across=16, down=6):
    """An empty page to draw boxes on, measured from its lower left corner."""
    axes = plt.figure(figsize=(width, height)).add_subplot()
    axes.set(xlim=(0, across), ylim=(0, down))
    axes.axis("off")
    return axes


def box(axes, x, y, width, height, title, text="", colour=BLUE, size=9):
    """A box with a title and some lines. Light inside: dark text must be readable on it."""
    style = "round,pad=0.02,rounding_size=0.15"
    patch = FancyBboxPatch(
        (x, y), width, height, boxstyle=style, facecolor=colour + "26", edgecolor=colour, lw=1.5
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
    for number, bars in enumerate(rows.values()):
        for begin, end, kind in bars:
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
    axes.set_yticks([-number for number in range(len(rows))], list(rows))
    axes.set_ylim(-len(rows) + 0.4, 0.6)
    axes.set_xlabel(unit)
    axes.tick_params(axis="y", length=0)
    used = {kind for bars in rows.values() for _, _, kind in bars}
    handles = [
        plt.Rectangle((0, 0), 1, 1, facecolor=colour, hatch=HATCHES.get(colour), edgecolor="white")
        for kind, colour in colours.items()
        if kind in used
    ]
    names = [kind for kind in colours if kind in used]
    axes.legend(
        handles, names, loc="lower left", bbox_to_anchor=(0, 1.0), ncols=len(names), borderaxespad=0.2
    )


def curves(axes, runs, key="loss"):
    """Curves on one another: each thinner than the one before, so that the lower ones can be seen."""
    for number, (label, rows) in enumerate(runs.items()):
        width = 2 + 3.0 * (len(runs) - 1 - number)
        colour = [SKY, ORANGE, INK, GREEN, PINK][number % 5]
        axes.plot(
            [row["epoch"] for row in rows], [row[key] for row in rows], label=label, color=colour, lw=width
        )
    axes.set(xlabel="epoch", ylabel=key)
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.legend()


def slider(draw, label, values, value):
    """Draw the picture for one value, and under it, where the notebook runs, a slider for the others."""
    draw(value)
    plt.show()
    import ipywidgets

    handle = ipywidgets.SelectionSlider(options=values, value=value, description=label)
    picture = ipywidgets.Output()

    def redraw(change):
        with picture:
            picture.clear_output(wait=True)
            draw(change["new"])
            plt.show()

    handle.observe(redraw, names="value")
    display(ipywidgets.VBox([handle, picture]))
