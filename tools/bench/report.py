"""Report what the bench found: tables and text for its page, and a picture."""

import json
import re
import statistics
import zlib
from pathlib import Path

from tools import ink

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
PAGE = HERE / "README.md"
PICTURES = ROOT / "lessons" / "pictures"
MIB = 2**20
INSIDE = "inside the machine, 64 images"


def middle(values, scale=1, digits=0):
    return f"{scale * statistics.median(values):,.{digits}f}"


def reach(values, scale=1, digits=0):
    return f"{scale * min(values):,.{digits}f} to {scale * max(values):,.{digits}f}"


def each(combine, *lists):
    """What combine() makes of the values of each repeat."""
    return [combine(*values) for values in zip(*lists, strict=True)]


def added(found):
    """The sums of the parts of each repeat."""
    return each(lambda *parts: sum(parts), *found.values())


def ratio(above, below, factor=1):
    """The median of the repeats' ratios: the two were measured shortly after one another."""
    return statistics.median(each(lambda one, other: one / other / factor, above, below))


def table(head, rows):
    """A Markdown table whose columns are aligned in the file."""
    rows = [head, *[[str(cell) for cell in row] for row in rows]]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [[row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])] for row in rows]
    rule = ["-" * widths[0], *["-" * (width - 1) + ":" for width in widths[1:]]]
    return "\n".join(f"| {' | '.join(line)} |" for line in [lines[0], rule, *lines[1:]])


def verdict(value, aim, at_most=False, unit=""):
    met = value <= aim if at_most else value >= aim
    return f"(aim: at {'most' if at_most else 'least'} {aim:g}{unit}; {'met' if met else 'missed'})"


# ---- the rows -----------------------------------------------------------------------------------


def one_process(result):
    speed, step = result["rows"]["speed"], result["rows"]["step"]
    names = {"usual loop": "the usual loop"} | {name: name for name in ("lesson 01", "lesson 07 in bf16")}
    parts = list(step["usual loop"])
    lines = [
        [
            words,
            middle(speed[name]),
            reach(speed[name]),
            *(middle(step[name][part], 1000, 1) for part in parts),
        ]
        for name, words in names.items()
    ]
    plain, low = (ratio(speed[name], speed["usual loop"]) for name in ("lesson 01", "lesson 07 in bf16"))
    passes = [
        middle(each(lambda one, other: one + other, step[name]["forward"], step[name]["backward"]), 1000, 1)
        for name in ("lesson 01", "lesson 07 in bf16")
    ]
    usual, ours = step["usual loop"], step["lesson 01"]
    shorter, batch = (
        middle(each(lambda one, other: one - other, *both), 1000, 1)
        for both in ((added(usual), added(ours)), (usual["batch"], ours["batch"]))
    )
    text = f"""**Lesson 01 and the usual tutorial loop**, which converts PIL images to tensors one at a time. Both train the same model on one process, with the same batches and optimizer. The last five columns split the step time, in milliseconds.

{table(["", "images/s", "range", *parts], lines)}

Lesson 01 is {plain:.2f} times as fast {verdict(plain, 1.5)}. A step is {shorter} ms shorter. Data loading accounts for {batch} ms of this, because lesson 01 slices each batch out of the data set in a single operation. """
    more = ratio(speed["a large one in bf16"], speed["a large one, 1"])
    if result["machine"]["bf16"]:
        text += f"""Lesson 07 in bf16 is {low:.2f} times as fast as the usual loop {verdict(low, 2)}. Forward and backward take {passes[0]} ms in fp32 and {passes[1]} ms in bf16, because a model this small has too few multiplications to gain from bf16. The large model of the next table is {more:.2f} times as fast in bf16 as in fp32. """
    return text.strip()


def several(result):
    speed, step = result["rows"]["speed"], result["rows"]["step"]
    names = {
        "its own model": ("lesson 04's model", "(32,000 parameters)"),
        "a large one": ("large model", "(270,000 parameters, 30 times the multiplications)"),
        "a tiny one": ("tiny model", "(one linear layer)"),
    }
    lines, missed = [], []
    for name, words in names.items():
        one, two, apart = (speed.get(f"{name}, {kind}") for kind in ("1", "2", "apart"))
        share = ratio(two, apart) if apart else None
        lines.append([" ".join(words), middle(one), middle(two), middle(apart) if apart else ""])
        lines[-1] += [f"{ratio(two, one, 2):.2f}", f"{share:.2f}" if apart else ""]
        if share and share < 0.8:
            missed.append({"a large one": "the large model"}.get(name, words[0]))
    head = ["images/s", "1 process", "2 with DDP", "2 independent", "of ideal", "of independent"]
    found = "missed with " + " and ".join(missed) if missed else "met"
    waited = each(
        lambda one, two: two - one / 2, step["lesson 04, 1"]["backward"], step["lesson 04, 2"]["backward"]
    )
    tiny = statistics.median(120_000 / value for value in speed["a tiny one, 1"])
    text = f"""**Two processes.** Two independent processes, which never communicate, show how much the machine itself can do. "Of ideal" divides the throughput of two DDP processes by twice the throughput of one process; "of independent" divides it by the throughput of two independent processes.

{table(head, lines)}

The aim is that two DDP processes reach 0.8 of the throughput of two independent ones: {found}. With lesson 04's model, a DDP step takes {middle(added(step["lesson 04, 2"]), 1000, 1)} ms. Its backward is {middle(waited, 1000, 1)} ms longer than half the backward of one process, because the two processes wait for each other's gradients."""
    if tiny < 1000 * statistics.median(waited):
        text += f" With the tiny model, a step takes {tiny:.1f} ms on one process. The wait is longer than this, so two processes are slower than one."
    return text


def hidden(found):
    """The fraction of the communication that DDP hides behind backward."""
    kinds = [found[f"{name}, seconds"] for name in ("overlap", "after", "alone")]
    return statistics.median(
        each(lambda overlap, after, alone: 1 - (overlap - alone) / (after - alone), *kinds)
    )


def overlap(result):
    lines, worth = [], {}
    for link, found in result["rows"]["overlap"].items():
        worth[link] = ratio(found["after, seconds"], found["overlap, seconds"])
        times = [middle(found[f"{name}, seconds"], 1000) for name in ("alone", "after", "overlap")]
        lines.append([link, *times, f"{hidden(found):.0%}", f"{worth[link]:.2f}"])
    head = ["milliseconds of a step", "nothing sent", "sent after backward", "as DDP does it"]
    inside = result["rows"]["overlap"][INSIDE]
    used = [middle(inside[f"{name}, CPU seconds"], 1000) for name in ("alone", "overlap")]
    aims = " and ".join(
        f"{'met' if value >= 1.2 else 'missed'} {'inside the machine' if link == INSIDE else 'on the link'}"
        for link, value in worth.items()
    )
    text = f"""**How much communication backward hides.** A model with 8 million parameters trains on two processes; a step sends 31 MB. "Hidden" is the fraction of the communication time that overlaps with backward. The speedup compares DDP with sending after backward.

{table([*head, "hidden", "speedup"], lines)}

The aim is a speedup of 1.2: {aims}. """
    if worth[INSIDE] < 1.2:
        text += f"""Inside one machine, sending means copying memory, and the cores that copy are the cores that compute. A step uses {used[0]} ms of CPU time per process without communication, and {used[1]} ms with DDP. """
    if len(worth) > 1:
        text += "The link connects two network namespaces, and the kernel limits its rate. While bytes are on this link, the cores are free. "
    return text.strip()


def reduce(result):
    found = result["rows"]["all-reduce"]
    sizes = list(map(int, found["gloo"]))
    names = {"gloo": "gloo's", "ring": "our ring", "server": "a server", "copy": "a copy"}
    lines = []
    for size in (2**10, 2**16, 2**20, 2**22, 2**24, 2**26):
        rates = [size / MIB / statistics.median(found[way][str(size)]) for way in names]
        shown = [f"{rate:,.0f}" if rate >= 10 else f"{rate:.1f}" for rate in rates]
        share = ratio(found["gloo"][str(size)], found["ring"][str(size)])
        words = f"{size // MIB} MiB" if size >= MIB else f"{size // 1024} KiB"
        lines.append([words, *shown, f"{share:.2f}"])
    worst = min(ratio(found["gloo"][str(size)], found["ring"][str(size)]) for size in sizes if size >= MIB)
    text = f"""**An all-reduce** on two processes, in MiB/s: gloo's own, the ring of exercise 03a (written with `isend` and `recv`), a server (rank 0 receives the tensors, adds them and sends the sum back), and for comparison a plain memory copy on both processes at once.

{table(["size", *names.values(), "ring / gloo"], lines)}

From 1 MiB up, our ring reaches at least {worst:.2f} of gloo's speed {verdict(worst, 0.8)}."""
    if worst < 0.8:
        ways = ("ring", "ring without sending", "gloo")
        whole, beside, theirs = (middle(found[way][str(sizes[-1])], 1000) for way in ways)
        text += f" At {sizes[-1] // MIB} MiB our ring takes {whole} ms and gloo {theirs} ms. Our ring spends {beside} ms of this time on allocating receive buffers and adding, while nothing is sent. Gloo splits the tensor into pieces and adds one piece while the next is on its way."
    return text


def safety(result):
    saving, speed, recovery = (result["rows"][name] for name in ("saving", "speed", "recovery"))
    names = {
        "lesson 06b": "lesson 06b",
        "lesson 06b, wide": "lesson 06b, 8 million parameters",
        "lesson 09, wide": "lesson 09, 8 million parameters, asynchronous",
    }
    lines = []
    for name, words in names.items():
        size, times = middle(saving[name]["bytes"], 1e-6, 1), saving[name]["seconds"]
        lines.append([words, f"{size} MB", f"{middle(times, 1000)} ms", f"{reach(times, 1000)} ms"])
    share, again = statistics.median(saving["lesson 06b"]["share"]), statistics.median(recovery)
    beside = ratio(speed["lesson 06b"], speed["its own model, 2"])
    return f"""**What snapshots cost.** The table shows how long a snapshot stops training on two processes. Lesson 06b waits until the file is written. Lesson 09 only waits until the tensors are copied; it writes the file while training continues.

{table(["", "bytes", "stops training", "range"], lines)}

With one snapshot per epoch, lesson 06b spends {share:.1%} of its run on snapshots {verdict(100 * share, 2, at_most=True, unit="%")}, and its throughput is {beside:.2f} times that of lesson 04. After a process dies, the next step comes {again:.1f} seconds later {verdict(again, 10, at_most=True, unit=" s")}; the repeats range from {reach(recovery, 1, 1)} seconds. Most of this time is spent importing torch again."""


def startup(result):
    found = result["rows"]["start"]
    head = ["seconds", "01", "03, mp.spawn", "04, torchrun", "06, torchrun on two nodes"]
    columns = [found[name] for name in STARTS.values()]
    lines = [[stage, *(middle(column[stage], 1, 2) for column in columns)] for stage in columns[0]]
    whole = list(map(added, columns))
    lines.append(["total", *(middle(values, 1, 1) for values in whole)])
    lines.append(["range", *(reach(values, 1, 1) for values in whole)])
    return f"""**From the command to the end of the first step.** Lesson 01 runs on one process, the other lessons on two. The two nodes of lesson 06 are two torchrun launchers on this machine.

{table(head, lines)}

The launcher imports torch before its processes do. Creating the first optimizer or DDP model imports further parts of torch."""


# ---- together -----------------------------------------------------------------------------------


def section(result, path):
    what, used = result["machine"], result["versions"]
    kind = "a virtual machine" if what["virtual"] else "a machine"
    gpu = f"{len(what['gpus'])} x {what['gpus'][0]}" if what["gpus"] else "no GPU"
    where = f"{kind} with {what['cores']} cores of an {what['cpu']}, {what['memory_gib']} GiB and {gpu}"
    where += f", Python {used['python']}, torch {used['torch'].split('+')[0]}"
    told = [
        f"""`make bench` measures your machine in about {result["minutes"]:.0f} minutes. This section comes from [one of its files](results/{path.name}), measured on {where}, with one thread per process, on {result["date"]}. Each number is the median of {result["repeats"]} runs, and the measurements take turns."""
    ]
    for part in (one_process, several, overlap, reduce, safety, startup):
        try:
            told.append(part(result))
        except (KeyError, ValueError, StopIteration):  # a row that it needs has failed, in some repeat
            name = part.__name__.replace("_", " ")
            told.append(f"A measurement that the section on {name} needs is missing.")
    return "\n\n".join(told)


def plain(text):
    """For a terminal: without Markdown's marks."""
    return re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", text).replace("**", "")


def marks(name):
    """What finds a section of the page: its file, and its text."""
    return re.compile(rf"(?s)<!-- {name} (\S+) -->\n(.*?)\n<!-- end -->")


def write_page(name, path, section, draw):
    """Replace what stands between the marks of a section of the page, and draw its picture."""
    result = json.loads(path.read_text())
    new = f"<!-- {name} {path.name} -->\n{section(result, path)}\n<!-- end -->"
    PAGE.write_text(marks(name).sub(lambda match: new, PAGE.read_text(), count=1))
    draw(result, PICTURES / f"{name}.svg")


def mark(result):
    """A picture carries this, so that a test can tell which numbers it shows."""
    return f"{zlib.crc32(json.dumps(result).encode()):08x}"


# ---- the picture --------------------------------------------------------------------------------

COLOURS = ("#56B4E9", "#0072B2", "#999999", "#009E73", "#E69F00", "#D55E00")
STEPS = {
    "usual\nloop": "usual loop",
    "01": "lesson 01",
    "07,\nbf16": "lesson 07 in bf16",
    "04, one\nprocess": "lesson 04, 1",
    "04, two\nprocesses": "lesson 04, 2",
}
STARTS = {
    "01": "lesson 01",
    "03,\nmp.spawn": "lesson 03",
    "04,\ntorchrun": "lesson 04",
    "06,\ntwo nodes": "lesson 06",
}
KINDS = {
    "alone": ("nothing sent", "#999999"),
    "after": ("sent after backward", "#E69F00"),
    "overlap": ("as DDP does it", "#0072B2"),
}
WAYS = {
    "copy": ("a copy in memory", "#999999", "--"),
    "gloo": ("gloo's all_reduce", "#0072B2", "o-"),
    "ring": ("our ring", "#009E73", "s-"),
    "server": ("a server", "#D55E00", "^-"),
}


def draw(result, path):
    rows = result["rows"]
    figure, (first, second, third, fourth) = ink.pyplot().subplots(4, 1, figsize=(ink.WIDTH, 13))
    stack(first, STEPS, rows["step"], 1000)
    first.set(title="where the time of a step goes", ylabel="milliseconds, 120 images")
    draw_overlap(second, rows["overlap"])
    draw_reduce(third, rows["all-reduce"])
    stack(fourth, STARTS, rows["start"], 1)
    fourth.set(title="from the command to the end of the first step", ylabel="seconds")
    ink.save(figure, path, Source=mark(result))


def stack(axes, names, found, scale):
    """One bar for each name: the run with the median time, and the parts of its time."""
    columns = [found[name] for name in names.values()]
    base, middles = [0.0] * len(columns), []
    for column in columns:
        totals = added(column)
        middles.append(totals.index(statistics.median_low(totals)))
    for part, colour in zip(columns[0], COLOURS, strict=False):
        heights = each(lambda column, at, part=part: scale * column[part][at], columns, middles)
        axes.bar(list(names), heights, bottom=base, color=colour, label=part, width=0.6)
        base = each(lambda below, height: below + height, base, heights)
    axes.set_ylim(0, max(base) * 1.1)
    axes.legend(reverse=True, loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=2)


def draw_overlap(axes, found):
    width = 0.25
    for place, (name, (label, colour)) in enumerate(KINDS.items(), -1):
        values = [[1000 * value for value in link[f"{name}, seconds"]] for link in found.values()]
        heights = list(map(statistics.median, values))
        below = each(lambda height, times: height - min(times), heights, values)
        above = each(lambda height, times: max(times) - height, heights, values)
        at = [number + width * place for number in range(len(found))]
        axes.bar(at, heights, width, yerr=[below, above], color=colour, ecolor=ink.INK, label=label)
    axes.set_xticks(range(len(found)), [link.replace(", ", "\n") for link in found])
    axes.set(title="what backward hides, 8 million parameters", ylabel="milliseconds of a step")
    axes.legend()


def draw_reduce(axes, found):
    for way, (label, colour, style) in WAYS.items():
        sizes = [int(size) for size in found[way]]
        rates = [[size / value / 1e6 for value in found[way][str(size)]] for size in sizes]
        axes.plot(sizes, list(map(statistics.median, rates)), style, color=colour, label=label)
        axes.fill_between(sizes, list(map(min, rates)), list(map(max, rates)), color=colour, alpha=0.15)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    ink.plain(axes.yaxis)
    axes.set_xticks(
        [2**power for power in (10, 14, 18, 22, 26)], ["1 KiB", "16 KiB", "256 KiB", "4 MiB", "64 MiB"]
    )
    axes.set(title="an all-reduce on two processes", xlabel="size", ylabel="MB a second")
    axes.legend()
