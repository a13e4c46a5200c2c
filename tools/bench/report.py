"""Report what the bench found: tables and text for its page, and a picture."""

import json
import re
import statistics
import sys
import zlib
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(HERE.parent))
import ink

PAGE = HERE / "README.md"
PICTURE = ROOT / "lessons" / "pictures" / "bench.svg"
MIB = 2**20
INSIDE = "inside the machine, 64 images"


def middle(values, scale=1, digits=0):
    return f"{scale * statistics.median(values):,.{digits}f}"


def reach(values, scale=1, digits=0):
    return f"{scale * min(values):,.{digits}f} to {scale * max(values):,.{digits}f}"


def ratio(above, below, factor=1):
    """The median of the repeats' ratios: the two were measured shortly after one another."""
    return statistics.median(one / other / factor for one, other in zip(above, below, strict=True))


def table(head, rows):
    """A Markdown table whose columns are aligned in the file."""
    rows = [head, *[[str(cell) for cell in row] for row in rows]]
    widths = [max(len(row[column]) for row in rows) for column in range(len(head))]
    lines = [
        "| " + " | ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]) + " |"
        for row in rows
    ]
    rule = ["-" * widths[0], *["-" * (width - 1) + ":" for width in widths[1:]]]
    return "\n".join([lines[0], "| " + " | ".join(rule) + " |", *lines[1:]])


def verdict(value, aim, at_most=False, unit=""):
    met = value <= aim if at_most else value >= aim
    return f"(aim: at {'most' if at_most else 'least'} {aim:g}{unit}; {'met' if met else 'missed'})"


# ---- the rows -----------------------------------------------------------------------------------


def one_process(rows, bf16):
    speed, step = rows["speed"], rows["step"]
    names = {
        "usual loop": "the usual loop",
        "lesson 01": "lesson 01",
        "lesson 07 in bf16": "lesson 07 in bf16",
    }
    parts = list(step["usual loop"])
    lines = [
        [
            words,
            middle(speed[name]),
            reach(speed[name]),
            *[middle(step[name][part], 1000, 1) for part in parts],
        ]
        for name, words in names.items()
    ]
    plain, low = (ratio(speed[name], speed["usual loop"]) for name in ("lesson 01", "lesson 07 in bf16"))
    passes = [
        middle(list(map(sum, zip(step[name]["forward"], step[name]["backward"], strict=True))), 1000, 1)
        for name in ("lesson 01", "lesson 07 in bf16")
    ]
    usual, ours = step["usual loop"], step["lesson 01"]
    saved = [sum(parts) for parts in zip(*usual.values(), strict=True)]
    saved = [one - sum(parts) for one, parts in zip(saved, zip(*ours.values(), strict=True), strict=True)]
    in_batch = [one - other for one, other in zip(usual["batch"], ours["batch"], strict=True)]
    shorter, batch = middle(saved, 1000, 1), middle(in_batch, 1000, 1)
    text = f"""**Lesson 01 and the usual tutorial loop**, which converts PIL images to tensors one at a time. Both train the same model on one process, with the same batches and optimizer. The last five columns split the step time, in milliseconds.

{table(["", "images/s", "range", *parts], lines)}

Lesson 01 is {plain:.2f} times as fast {verdict(plain, 1.5)}. A step is {shorter} ms shorter. Data loading accounts for {batch} ms of this, because lesson 01 slices each batch out of the data set in a single operation. """
    more = ratio(speed["a large one in bf16"], speed["a large one, 1"])
    if bf16:
        text += f"""Lesson 07 in bf16 is {low:.2f} times as fast as the usual loop {verdict(low, 2)}. Forward and backward take {passes[0]} ms in fp32 and {passes[1]} ms in bf16, because a model this small has too few multiplications to gain from bf16. The large model of the next table is {more:.2f} times as fast in bf16 as in fp32. """
    return text.strip()


def several(rows):
    speed, step = rows["speed"], rows["step"]
    lines, missed = [], []
    for name, words in (
        ("its own model", "lesson 04's model (32,000 parameters)"),
        ("a large one", "large model (270,000 parameters, 30 times the multiplications)"),
        ("a tiny one", "tiny model (one linear layer)"),
    ):
        one, two, apart = (speed.get(f"{name}, {kind}") for kind in ("1", "2", "apart"))
        share = ratio(two, apart) if apart else None
        lines.append(
            [
                words,
                middle(one),
                middle(two),
                middle(apart) if apart else "",
                f"{ratio(two, one, 2):.2f}",
                f"{share:.2f}" if apart else "",
            ]
        )
        if share and share < 0.8:
            missed.append(name)
    head = ["images/s", "1 process", "2 with DDP", "2 independent", "of ideal", "of independent"]
    names = {"its own model": "lesson 04's model", "a large one": "the large model"}
    found = "missed with " + " and ".join(names[name] for name in missed) if missed else "met"
    text = f"""**Two processes.** Two independent processes, which never communicate, show how much the machine itself can do. "Of ideal" divides the throughput of two DDP processes by twice the throughput of one process; "of independent" divides it by the throughput of two independent processes.

{table(head, lines)}

The aim is that two DDP processes reach 0.8 of the throughput of two independent ones: {found}. """
    waited = [
        two - one / 2
        for one, two in zip(step["lesson 04, 1"]["backward"], step["lesson 04, 2"]["backward"], strict=True)
    ]
    whole = [sum(parts) for parts in zip(*step["lesson 04, 2"].values(), strict=True)]
    tiny = statistics.median(120_000 / value for value in speed["a tiny one, 1"])
    text += f"""With lesson 04's model, a DDP step takes {middle(whole, 1000, 1)} ms. Its backward is {middle(waited, 1000, 1)} ms longer than half the backward of one process, because the two processes wait for each other's gradients."""
    if tiny < 1000 * statistics.median(waited):
        text += f" With the tiny model, a step takes {tiny:.1f} ms on one process. The wait is longer than this, so two processes are slower than one."
    return text


def hidden(found):
    """The fraction of the communication that DDP hides behind backward."""
    shares = [
        1 - (overlap - alone) / (after - alone)
        for overlap, after, alone in zip(
            *(found[f"{name}, seconds"] for name in ("overlap", "after", "alone")), strict=True
        )
    ]
    return statistics.median(shares)


def overlap(rows):
    lines, worth = [], {}
    for link, found in rows["overlap"].items():
        worth[link] = ratio(found["after, seconds"], found["overlap, seconds"])
        times = [middle(found[f"{name}, seconds"], 1000) for name in ("alone", "after", "overlap")]
        lines.append([link, *times, f"{hidden(found):.0%}", f"{worth[link]:.2f}"])
    head = [
        "milliseconds of a step",
        "nothing sent",
        "sent after backward",
        "as DDP does it",
        "hidden",
        "speedup",
    ]
    inside = rows["overlap"][INSIDE]
    used = [middle(inside[f"{name}, CPU seconds"], 1000) for name in ("alone", "overlap")]
    text = f"""**How much communication backward hides.** A model with 8 million parameters trains on two processes; a step sends 31 MB. "Hidden" is the fraction of the communication time that overlaps with backward. The speedup compares DDP with sending after backward.

{table(head, lines)}

The aim is a speedup of 1.2: {" and ".join(f"{'met' if value >= 1.2 else 'missed'} {'inside the machine' if link == INSIDE else 'on the link'}" for link, value in worth.items())}. """
    if worth[INSIDE] < 1.2:
        text += f"""Inside one machine, sending means copying memory, and the cores that copy are the cores that compute. A step uses {used[0]} ms of CPU time per process without communication, and {used[1]} ms with DDP. """
    if len(worth) > 1:
        text += "The link connects two network namespaces, and the kernel limits its rate. While bytes are on this link, the cores are free. "
    return text.strip()


def reduce(rows):
    found = rows["all-reduce"]
    sizes = [int(size) for size in found["gloo"]]

    def rate(way, size):
        return size / MIB / statistics.median(found[way][str(size)])

    shown = [size for size in sizes if size in (2**10, 2**16, 2**20, 2**22, 2**24, 2**26)]
    names = {"gloo": "gloo's", "ring": "our ring", "server": "a server", "copy": "a copy"}
    lines = [
        [f"{size // MIB} MiB" if size >= MIB else f"{size // 1024} KiB"]
        + [f"{rate(way, size):,.0f}" if rate(way, size) >= 10 else f"{rate(way, size):.1f}" for way in names]
        + [f"{ratio(found['gloo'][str(size)], found['ring'][str(size)]):.2f}"]
        for size in shown
    ]
    worst = min(ratio(found["gloo"][str(size)], found["ring"][str(size)]) for size in sizes if size >= MIB)
    text = f"""**An all-reduce** on two processes, in MiB/s: gloo's own, the ring of exercise 03a (written with `isend` and `recv`), a server (rank 0 receives the tensors, adds them and sends the sum back), and for comparison a plain memory copy on both processes at once.

{table(["size", *names.values(), "ring / gloo"], lines)}

From 1 MiB up, our ring reaches at least {worst:.2f} of gloo's speed {verdict(worst, 0.8)}."""
    if worst < 0.8:
        largest = str(sizes[-1])
        whole, beside, theirs = (
            middle(found[way][largest], 1000) for way in ("ring", "ring without sending", "gloo")
        )
        text += f" At {sizes[-1] // MIB} MiB our ring takes {whole} ms and gloo {theirs} ms. Our ring spends {beside} ms of this time on allocating receive buffers and adding, while nothing is sent. Gloo splits the tensor into pieces and adds one piece while the next is on its way."
    return text


def safety(rows):
    saving, speed = rows["saving"], rows["speed"]
    names = {
        "lesson 06b": "lesson 06b",
        "lesson 06b, wide": "lesson 06b, 8 million parameters",
        "lesson 09, wide": "lesson 09, 8 million parameters, asynchronous",
    }
    lines = [
        [
            words,
            f"{middle(saving[name]['bytes'], 1e-6, 1)} MB",
            f"{middle(saving[name]['seconds'], 1000)} ms",
            f"{reach(saving[name]['seconds'], 1000)} ms",
        ]
        for name, words in names.items()
    ]
    share, again = statistics.median(saving["lesson 06b"]["share"]), statistics.median(rows["recovery"])
    beside = ratio(speed["lesson 06b"], speed["its own model, 2"])
    return f"""**What snapshots cost.** The table shows how long a snapshot stops training on two processes. Lesson 06b waits until the file is written. Lesson 09 only waits until the tensors are copied; it writes the file while training continues.

{table(["", "bytes", "stops training", "range"], lines)}

With one snapshot per epoch, lesson 06b spends {share:.1%} of its run on snapshots {verdict(100 * share, 2, at_most=True, unit="%")}, and its throughput is {beside:.2f} times that of lesson 04. After a process dies, the next step comes {again:.1f} seconds later {verdict(again, 10, at_most=True, unit=" s")}; the repeats range from {reach(rows["recovery"], 1, 1)} seconds. Most of this time is spent importing torch again."""


def startup(rows):
    found = rows["start"]
    names = ["lesson 01", "lesson 03", "lesson 04", "lesson 06"]
    head = ["seconds", "01", "03, mp.spawn", "04, torchrun", "06, torchrun on two nodes"]
    lines = [[stage, *[middle(found[name][stage], 1, 2) for name in names]] for stage in found["lesson 01"]]
    whole = [list(map(sum, zip(*found[name].values(), strict=True))) for name in names]
    lines.append(["total", *[middle(values, 1, 1) for values in whole]])
    lines.append(["range", *[reach(values, 1, 1) for values in whole]])
    return f"""**From the command to the end of the first step.** Lesson 01 runs on one process, the other lessons on two. The two nodes of lesson 06 are two torchrun launchers on this machine.

{table(head, lines)}

The launcher imports torch before its processes do. Creating the first optimizer or DDP model imports further parts of torch."""


# ---- together -----------------------------------------------------------------------------------


def where(result):
    what, used = result["machine"], result["versions"]
    kind = "a virtual machine" if what["virtual"] else "a machine"
    gpu = f"{len(what['gpus'])} x {what['gpus'][0]}" if what["gpus"] else "no GPU"
    return (
        f"{kind} with {what['cores']} cores of an {what['cpu']}, {what['memory_gib']} GiB and {gpu}, "
        f"Python {used['python']}, torch {used['torch'].split('+')[0]}"
    )


def section(result, path):
    rows = result["rows"]
    opening = f"""`make bench` measures your machine in about {result["minutes"]:.0f} minutes. This section comes from [one of its files](results/{path.name}), measured on {where(result)}, with one thread per process, on {result["date"]}. Each number is the median of {result["repeats"]} runs, and the measurements take turns."""
    told = [opening]
    for part in (one_process, several, overlap, reduce, safety, startup):
        more = (result["machine"]["bf16"],) if part is one_process else ()
        try:
            told.append(part(rows, *more))
        except (KeyError, ValueError, StopIteration):  # a row that it needs has failed, in some repeat
            told.append(
                f"A measurement that the section on {part.__name__.replace('_', ' ')} needs is missing."
            )
    return "\n\n".join(told)


def plain(text):
    """For a terminal: without Markdown's marks."""
    return re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", text).replace("**", "")


MARKS = re.compile(r"(?s)<!-- bench (\S+) -->\n(.*?)\n<!-- end -->")


def write_page(path):
    """Replace what stands between the marks of the bench's page, and draw the picture."""
    result = json.loads(path.read_text())
    new = f"<!-- bench {path.name} -->\n{section(result, path)}\n<!-- end -->"
    PAGE.write_text(MARKS.sub(lambda match: new, PAGE.read_text(), count=1))
    draw(result, PICTURE)


def mark(result):
    """A picture carries this, so that a test can tell which numbers it shows."""
    return f"{zlib.crc32(json.dumps(result).encode()):08x}"


COLOURS = ("#56B4E9", "#0072B2", "#999999", "#009E73", "#E69F00", "#D55E00")


def draw(result, path):
    rows = result["rows"]
    figure, (first, second, third, fourth) = ink.pyplot().subplots(4, 1, figsize=(ink.WIDTH, 13))
    draw_steps(first, rows["step"])
    draw_overlap(second, rows["overlap"])
    draw_reduce(third, rows["all-reduce"])
    draw_start(fourth, rows["start"])
    ink.save(figure, path, Source=mark(result))


def stack(axes, columns, parts, scale=1):
    """One bar for each column: the run with the median time."""
    base, middles = [0.0] * len(columns), []
    for found in columns.values():
        totals = [sum(values) for values in zip(*(found[part] for part in parts), strict=True)]
        middles.append(totals.index(statistics.median_low(totals)))
    for part, colour in zip(parts, COLOURS, strict=False):
        heights = [scale * found[part][at] for found, at in zip(columns.values(), middles, strict=True)]
        axes.bar(list(columns), heights, bottom=base, color=colour, label=part, width=0.6)
        base = [below + height for below, height in zip(base, heights, strict=True)]
    axes.set_ylim(0, max(base) * 1.1)
    axes.legend(reverse=True, loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=2)


def draw_steps(axes, found):
    names = {
        "usual loop": "usual\nloop",
        "lesson 01": "01",
        "lesson 07 in bf16": "07,\nbf16",
        "lesson 04, 1": "04, one\nprocess",
        "lesson 04, 2": "04, two\nprocesses",
    }
    columns = {words: found[name] for name, words in names.items()}
    stack(axes, columns, list(found["usual loop"]), 1000)
    axes.set(title="where the time of a step goes", ylabel="milliseconds, 120 images")


def draw_overlap(axes, found):
    kinds = {"alone": "nothing sent", "after": "sent after backward", "overlap": "as DDP does it"}
    width = 0.25
    for place, (name, label) in enumerate(kinds.items()):
        values = [[1000 * value for value in link[f"{name}, seconds"]] for link in found.values()]
        heights = [statistics.median(times) for times in values]
        errors = [
            [height - min(times) for height, times in zip(heights, values, strict=True)],
            [max(times) - height for height, times in zip(heights, values, strict=True)],
        ]
        at = [number + width * (place - 1) for number in range(len(found))]
        colour = ("#999999", "#E69F00", "#0072B2")[place]
        axes.bar(at, heights, width, yerr=errors, color=colour, ecolor=ink.INK, label=label)
    axes.set_xticks(range(len(found)), [link.replace(", ", "\n") for link in found])
    axes.set(title="what backward hides, 8 million parameters", ylabel="milliseconds of a step")
    axes.legend()


def draw_reduce(axes, found):
    styles = {
        "copy": ("a copy in memory", "#999999", "--"),
        "gloo": ("gloo's all_reduce", "#0072B2", "o-"),
        "ring": ("our ring", "#009E73", "s-"),
        "server": ("a server", "#D55E00", "^-"),
    }
    for way, (label, colour, style) in styles.items():
        sizes = [int(size) for size in found[way]]
        rates = [[size / value / 1e6 for value in found[way][str(size)]] for size in sizes]
        axes.plot(sizes, [statistics.median(values) for values in rates], style, color=colour, label=label)
        axes.fill_between(
            sizes,
            [min(values) for values in rates],
            [max(values) for values in rates],
            color=colour,
            alpha=0.15,
        )
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    ink.plain(axes.yaxis)
    ticks = [2**10, 2**14, 2**18, 2**22, 2**26]
    axes.set_xticks(ticks, ["1 KiB", "16 KiB", "256 KiB", "4 MiB", "64 MiB"])
    axes.set(title="an all-reduce on two processes", xlabel="size", ylabel="MB a second")
    axes.legend()


def draw_start(axes, found):
    names = {
        "lesson 01": "01",
        "lesson 03": "03,\nmp.spawn",
        "lesson 04": "04,\ntorchrun",
        "lesson 06": "06,\ntwo nodes",
    }
    stack(axes, {words: found[name] for name, words in names.items()}, list(found["lesson 01"]))
    axes.set(title="from the command to the end of the first step", ylabel="seconds")
