"""Report what the bench found: tables and text for its page, pictures, and a comparison with the page's machine."""

import json
import re
import statistics
import zlib
from pathlib import Path

from tools import ink
from tools.bench import scaling

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
PAGE = HERE / "README.md"
PICTURES = ROOT / "lessons" / "pictures"
MIB = 2**20
RANK_SCRIPTS = "inside the machine, 64 images"
ALT = "Where the time of a step goes, how much communication backward hides, an all-reduce by size, and the start"


def middle(values, scale=1, digits=0):
    return f"{scale * statistics.median(values):,.{digits}f}"


def reach(values, scale=1, digits=0):
    """The range. A star marks one that a single repeat stretched to more than twice the median."""
    star = " *" if max(values) > 2 * statistics.median(values) else ""
    return f"{scale * min(values):,.{digits}f} to {scale * max(values):,.{digits}f}{star}"


def each(combine, *lists):
    """What combine() makes of the values of each repeat."""
    return [combine(*values) for values in zip(*lists, strict=True)]


def added(found):
    """The sums of the parts of each repeat."""
    return each(lambda *parts: sum(parts), *found.values())


def ratio(above, below):
    """Of the medians, which the page shows: a reader can compute it again."""
    return statistics.median(above) / statistics.median(below)


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


def size_of(size):
    return f"{int(size) // MIB} MiB" if int(size) >= MIB else f"{int(size) // 1024} KiB"


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
    text = f"""## One process

Lesson 01 and the usual tutorial loop, which converts PIL images to tensors one at a time, train the same model with the same batches and optimizer. The last five columns split the mean time of a step, in milliseconds.

{table(["", "images/s", "range", *parts], lines)}

Lesson 01 is {plain:.2f} times as fast {verdict(plain, 1.5)}, because it slices each batch out of the data set in a single operation: see the column "batch". """
    if result["machine"]["bf16"]:
        more = ratio(speed["a large one in bf16"], speed["a large one, 1"])
        text += f"""Lesson 07 in bf16 is {low:.2f} times as fast as the usual loop {verdict(low, 2)}, and {ratio(speed["lesson 07 in bf16"], speed["lesson 01"]):.2f} times as fast as lesson 01. A model with 30 times as many multiplications per image gains more from bf16: {middle(speed["a large one in bf16"])} images/s ({reach(speed["a large one in bf16"])}) instead of {middle(speed["a large one, 1"])} ({reach(speed["a large one, 1"])}), {more:.2f} times as fast."""
    return text.strip()


def several(result):
    speed, step = result["rows"]["speed"], result["rows"]["step"]
    names = {
        "its own model": "lesson 04's model (32,000 parameters)",
        "a large one": "large model (270,000 parameters, 30 times the multiplications)",
    }
    lines, missed = [], []
    for name, words in names.items():
        values = [speed[f"{name}, {kind}"] for kind in ("1", "2", "apart")]
        share = ratio(values[1], values[2])
        lines += [[words, *map(middle, values), f"{ratio(values[1], values[0]):.2f}", f"{share:.2f}"]]
        lines += [["range", *map(reach, values), "", ""]]
        missed += [words.partition(" (")[0]] * (share < 0.8)
    head = ["images/s", "1 process", "2 with DDP", "2 independent", "speedup", "of independent"]
    found = "missed with " + " and ".join(missed) if missed else "met"
    return f"""## Two processes (strong scaling)

The batch of 120 images is split: each of two processes computes on 60. Two independent processes, which also have batches of 60 but never communicate, show how much the machine can do.

{table(head, lines)}

The aim is that two DDP processes reach 0.8 of the throughput of two independent ones: {found}. With lesson 04's model, a step of DDP takes {middle(added(step["lesson 04, 2"]), 1000, 1)} ms (the mean of steps 51 to 200; images/s is that of the second epoch)."""


def waiting(result):
    found = result["rows"]["waiting"]
    kinds = {
        "alone": "forward, backward and optimizer, nothing sent",
        "wait": "+ an all-reduce of one number",
        "after": "+ an all-reduce of all gradients, instead of one number",
        "sent": "only the all-reduce of all gradients",
        "overlap": "DDP, which sends during backward",
        "views": "DDP with `gradient_as_bucket_view`",
    }
    lines = []
    for kind, words in kinds.items():
        values = [found[place][f"{kind}, seconds"] for place in ("anywhere", "bound")]
        lines.append([words])
        for times in values:
            lines[-1] += [middle(times, 1000, 2), reach(times, 1000, 2)]
    times = {kind: statistics.median(found["anywhere"][f"{kind}, seconds"]) * 1000 for kind in kinds}
    share = times["alone"] / times["overlap"]
    bound = ratio(found["bound"]["alone, seconds"], found["bound"]["overlap, seconds"])
    return f"""**Where the rest goes.** Two processes train lesson 04's model on 60 images each, with several kinds of steps in turn. A barrier before each step makes both processes begin together; the clock starts after it. On the right, each process is bound to its own core.

{table(["milliseconds of a step", "any core", "range", "own core", "range"], lines)}

A step without communication takes {times["alone"]:.2f} ms, which is {share:.0%} of a DDP step ({bound:.0%} with a core for each process). These steps are not those of the table above, so compare only the differences. An all-reduce of one number, which also waits for the other process, adds {times["wait"] - times["alone"]:.2f} ms. Sending {round(found["anywhere"]["bytes"][0] / 1000)} KB instead of one number adds {times["after"] - times["wait"]:.2f} ms more. All gradients fit into one bucket, so DDP can send only when backward is almost over, and there is nothing to overlap."""


def overlap(result):
    lines, worth = [], {}
    for link, found in result["rows"]["overlap"].items():
        times = [found[f"{name}, seconds"] for name in ("alone", "after", "overlap")]
        alone, after, hiding = map(statistics.median, times)
        worth[link] = after / hiding
        share = (after - hiding) / (after - alone)
        lines.append(
            [link, *(middle(values, 1000) for values in times), f"{share:.0%}", f"{worth[link]:.2f}"]
        )
        lines.append(["range", *(reach(values, 1000) for values in times), "", ""])
    inside = result["rows"]["overlap"][RANK_SCRIPTS]
    used = [middle(inside[f"{name}, CPU seconds"], 1000) for name in ("alone", "overlap")]
    aims = " and ".join(
        f"{'met' if value >= 1.2 else 'missed'} {'inside the machine' if link == RANK_SCRIPTS else 'on the link'}"
        for link, value in worth.items()
    )
    head = ["milliseconds of a step", "nothing sent", "sent after backward", "as DDP does it"]
    text = f"""## How much communication backward hides

A model with 8 million parameters trains on two processes; a step sends 31 MB. The kinds of steps take turns. "Hidden" is the fraction of the communication time (second column minus first) that DDP saves; the speedup is the second column divided by the third.

{table([*head, "hidden", "speedup"], lines)}

The aim is a speedup of 1.2: {aims}. Inside one machine, sending means copying memory, and the cores that copy are the cores that compute: a step uses {used[0]} ms of CPU time per process without communication, and {used[1]} ms with DDP. """
    if len(worth) > 1:
        text += "The link connects two network namespaces, and the kernel limits its rate. While bytes are on this link, the cores are free. "
    sending = [
        middle(link["sent, seconds"], 1000)
        for link in result["rows"]["overlap"].values()
        if "sent, seconds" in link
    ]
    if sending:
        text += f"Sending alone takes {' and '.join(sending)} ms: the numbers of images are chosen so that computing takes about as long. DDP cannot hide all of it, because the first gradients are ready only after forward and a part of backward."
    return text.strip()


WAYS = {
    "ring": "ring of 03a",
    "memory kept": "+ memory kept",
    "two connections": "+ two connections",
    "in pieces": "+ in pieces",
    "server": "a server",
    "copy": "a copy",
}


def reduce(result):
    text = """## What makes a ring as fast as gloo's

In a ring, each process sends only to its neighbour. In the picture below, each column is a process, and each chunk has a different colour. After each process has sent six small messages, all processes hold the sum (Σ).

<img src="../../lessons/pictures/ring.svg" width="440" alt="The six steps of a ring all-reduce on four processes">

All ways take turns in the same processes. The columns after gloo's time and its range are gloo's time divided by theirs: above 1 is faster than gloo. The ring of exercise 03a is the solution, which allocates a receive buffer for each message. Each column after it changes one thing more: receive buffers that are kept (this ring also receives before it sends), a connection for each direction, and pieces of 2 MiB, so that one piece is added while the next is sent ([notebook 03a](../../notebooks/03a_how_gradients_travel.ipynb) explains them). In a server, rank 0 receives all tensors, adds them and sends the sum back. Up to 4 MiB, a chunk of two processes is a single piece, so the last two rings send the same messages. A copy is a copy in memory on all processes at once, without any communication. All times are those of rank 0."""
    for count, found in result["rows"]["all-reduce"].items():
        seconds, lines = found["seconds"], []
        for size in seconds["gloo"]:
            gloo = seconds["gloo"][size]
            shares = [f"{ratio(gloo, seconds[way][size]):.2f}" for way in WAYS]
            lines.append([size_of(size), middle(gloo, 1000, 2), reach(gloo, 1000, 2), *shares])
        least = {
            way: min(
                ratio(seconds["gloo"][size], seconds[way][size])
                for size in seconds["gloo"]
                if int(size) >= MIB
            )
            for way in ("ring", "in pieces")
        }
        words = {"2": "Two", "4": "Four"}[count]
        cores = result["machine"]["cores"]
        text += f"""

**{words} processes.** From 1 MiB up, the ring of 03a reaches at least {least["ring"]:.2f} of gloo's speed {verdict(least["ring"], 0.8)}, and the ring in pieces at least {least["in pieces"]:.2f} {verdict(least["in pieces"], 1)}."""
        if int(count) > cores:
            text += f" Besides its own thread, each process has one of gloo's, and all of them share {cores} cores, so every step waits for the thread that gets a core last."
        text += f"\n\n{table(['size', 'gloo, ms', 'range', *WAYS.values()], lines)}"
    if len(result["rows"]["all-reduce"]) == 2:
        text += f"\n\n{prediction(result)}"
    return text


def prediction(result):
    """Whether CPU time predicts gloo's all-reduce on four processes from the one on two."""
    two, four = (result["rows"]["all-reduce"][count] for count in ("2", "4"))
    cores, lines, near = result["machine"]["cores"], [], []
    for size, measured in four["seconds"]["gloo"].items():
        times = [1.5 * used * 4 / cores for used in two["cpu_seconds"]["gloo"][size]]
        off = ratio(times, measured) - 1
        shown = [middle(times, 1000, 2), middle(measured, 1000, 2), reach(measured, 1000, 2), f"{off:+.0%}"]
        lines.append([size_of(size), *shown])
        near += [size_of(size)] * (abs(off) <= 0.2)
    return f"""**Does CPU time explain four processes?** If it did, gloo's all-reduce on four processes would take its CPU time on one of two processes, times 1.5 (a process sends 1.5 times the bytes), times 4 processes, divided by the {cores} cores. This is our second formula, after a first one that was often wrong; it was written down on 2026-11-23, and these measurements are newer.

{table(["gloo, ms", "formula", "measured", "range", "error"], lines)}

Within 20% (the aim): {", ".join(near) or "none"}; the other sizes miss it. For large tensors, sending bytes takes most of the time. For small ones, the messages do: in each of six steps the operating system has to give a core to one of at least eight threads, and this delay is not CPU time."""


def safety(result):
    saving, recovery = (result["rows"][name] for name in ("saving", "recovery"))
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
    text = f"""## What snapshots cost

The table shows how long a snapshot stops training on two processes. Lesson 06b waits until the file is written. Lesson 09 only waits until the tensors are copied; it writes the file while training continues.

{table(["", "bytes", "stops training", "range"], lines)}

With one snapshot per epoch, lesson 06b spends {share:.1%} of its run on snapshots {verdict(100 * share, 2, at_most=True, unit="%")}. After a process dies, the next step comes {again:.1f} seconds later (range {reach(recovery, 1, 1)}) {verdict(again, 10, at_most=True, unit=" s")}; for most of it, the new processes import torch and create what they need, as in the section on the first step."""
    step, speed = result["rows"].get("step", {}), result["rows"].get("speed", {})
    if "lesson 04, 2" in step:
        beside = ratio(speed["lesson 06b"], speed["its own model, 2"])
        steps = {name: step[name] for name in ("lesson 04, 2", "lesson 06b")}
        parts = list(steps["lesson 06b"])
        rows = [
            [
                name,
                *(middle(found[part], 1000, 2) for part in parts),
                middle(added(found), 1000, 2),
                reach(added(found), 1000, 2),
            ]
            for name, found in steps.items()
        ]
        longer = {
            part: statistics.median(steps["lesson 06b"][part])
            - statistics.median(steps["lesson 04, 2"][part])
            for part in parts
        }
        most = max(longer, key=longer.get)
        text += f"""

Lesson 06b processes {middle(speed["lesson 06b"])} images/s ({reach(speed["lesson 06b"])}), {beside:.2f} times as many as lesson 04 on two processes. Apart from the snapshots, the difference lies in its steps:

{table(["milliseconds of a step", *parts, "sum", "range"], rows)}

The largest difference is in "{most}" ({1000 * longer[most]:+.2f} ms). After each step, the processes of 06b ask each other whether one of them was told to stop, with an asynchronous all-reduce of one number, and the answer arrives during the next step."""
    return text


def startup(result):
    found = result["rows"]["start"]
    names = {
        "lesson 01": "01",
        "lesson 03": "03, mp.spawn",
        "lesson 04": "04, torchrun",
        "lesson 06": "06, torchrun on two nodes",
    }
    names = {name: words for name, words in names.items() if name in found}
    columns = [found[name] for name in names]
    lines = [[stage, *(middle(column[stage], 1, 2) for column in columns)] for stage in columns[0]]
    whole = list(map(added, columns))
    lines.append(["total", *(middle(values, 1, 1) for values in whole)])
    lines.append(["range", *(reach(values, 1, 1) for values in whole)])
    return f"""## From the command to the end of the first step

Lesson 01 runs on one process, the other lessons on two. The two nodes of lesson 06 are two torchrun launchers on this machine.

{table(["seconds", *names.values()], lines)}

The launcher imports torch before its processes do. Creating the first optimizer or DDP model imports further parts of torch."""


def scaled(result):
    found, text = result["rows"]["scaling"], ""
    for is_weak, words in (
        (
            False,
            f"**Strong scaling: one batch of {scaling.BATCH} for all processes** (the same job in less time):",
        ),
        (
            True,
            f"**Weak scaling: a batch of {scaling.BATCH} for each process** (a larger job in the same time):",
        ),
    ):
        lines = []
        for model, count, together, apart, alone in scaling.lines(found, is_weak):
            shares = [
                f"{statistics.median(together) / alone:.2f}",
                f"{ratio(together, apart):.0%}" if apart else "",
            ]
            lines.append(
                [model, count, middle(together), reach(together), middle(apart) if apart else "", *shares]
            )
        head = ["model", "processes", "images/s", "range", "independent", "speedup", "of independent"]
        text += f"\n\n{words}\n\n{table(head, lines)}"
    return f"""## Does it pay to have more processes?

That depends on how much computation a step needs. The lessons' model is small, so that everything runs on a laptop. With the option `--width`, you can make the model as wide as you like (here 96); [notebook 03](../../notebooks/03_ddp_spawn.ipynb) compares a small and a wide model. "Speedup" is relative to one process, "of independent" relative to as many independent processes.{text}

<img src="../../lessons/pictures/scaling.svg" width="480" alt="Images per second on 1, 2 and 4 processes, with the lessons' model and with a wide one, and the same for as many independent processes">"""


PEERS = {
    "lesson 01, 1": "lesson 01",
    "ddp-tutorial-series, 1": "[ddp-tutorial-series](https://github.com/pytorch/examples/tree/main/distributed/ddp-tutorial-series), `single_gpu.py`",
    "distributed-training-guide, 1": "[distributed-training-guide](https://github.com/LambdaLabsML/distributed-training-guide), chapter 1",
    "lesson 04, 2": "lesson 04",
    "lesson 06b, 2": "lesson 06b, a snapshot every 20 steps",
    "ddp-tutorial-series, 2": "ddp-tutorial-series, `multigpu_torchrun.py`",
    "distributed-training-guide, 2": "distributed-training-guide, chapter 2",
    "Accelerate, 2": "[lesson 04 with Accelerate](../../lessons/frameworks/accelerate_ddp.py)",
    "Lightning Fabric, 2": "[lesson 04 with Lightning Fabric](../../lessons/frameworks/fabric_ddp.py)",
}


def others(result):
    found, lines = result["rows"]["peers"], []
    for name, words in PEERS.items():
        if row := found.get(name):
            speed, first = row["images a second"], row["first step"]
            again = row.get("after a kill")
            times = [middle(first, 1, 1), reach(first, 1, 1)]
            times += [middle(again, 1, 1), reach(again, 1, 1)] if again else ["", ""]
            lines.append([words, name[-1], middle(speed), reach(speed), *times])
    head = ["", "processes", "images/s", "range", "first step, s", "range", "after a kill, s", "range"]
    return f"""## Other people's loops on the same work

Their scripts run as they are, on lesson 04's model, images and batches (a file of the bench, [their_script.py](their_script.py), replaces CUDA, NCCL, model, data and optimizer around them, bf16 by fp32, and compiles nothing). Images/s is 120 divided by the mean time of a step, after the first 50 steps. "After a kill" is the time from the SIGKILL of process 1 in the second epoch until the restarted job has taken its first step; an empty cell means that this was not measured. The guide saves every 20 steps, as 06b does here, the series once per epoch, lessons 01 and 04 only at the end. All first steps include what their_script.py imports.

{table(head, lines)}

{slower(found)}"""


def slower(found):
    """Where others are faster than we are, by more than the ranges allow."""
    pairs = {"1": "lesson 01, 1", "2": "lesson 04, 2"}
    said = []
    for name, row in found.items():
        ours = found[pairs[name[-1]]]
        if not name.startswith("lesson") and min(row["images a second"]) > max(ours["images a second"]):
            said.append(
                f"{PEERS[name].partition('](')[0].strip('[')} trains faster than {PEERS[pairs[name[-1]]]}"
            )
        if not name.startswith("lesson") and max(row["first step"]) < min(ours["first step"]):
            said.append(
                f"{PEERS[name].partition('](')[0].strip('[')} takes its first step sooner than {PEERS[pairs[name[-1]]]}"
            )
        again, mine = row.get("after a kill"), found.get("lesson 06b, 2", {}).get("after a kill")
        if again and mine and not name.startswith("lesson") and max(again) < min(mine):
            said.append(
                f"{PEERS[name].partition('](')[0].strip('[')} trains again sooner after a kill than lesson 06b"
            )
    return f"Where all repeats of others are better than all of ours: {'; '.join(said) or 'nowhere in this table'}."


# ---- together -----------------------------------------------------------------------------------


def where(result):
    what, used = result["machine"], result["versions"]
    kind = "a virtual machine" if what["virtual"] else "a machine"
    gpu = f"{len(what['gpus'])} x {what['gpus'][0]}" if what["gpus"] else "no GPU"
    return f"{kind} with {what['cores']} cores of an {what['cpu']}, {what['memory_gib']} GiB and {gpu}, Python {used['python']}, torch {used['torch'].split('+')[0]}"


def section(result, path):
    rows = result["rows"]
    said = [
        f"""The programs of commit {result["commit"]} measured this page on {result["date"]} in {result["minutes"]:.0f} minutes, on {where(result)}. [The file](results/{path.name}) holds all repeats. Each process computes with one thread. The load before the run was {result["load_before"]}, and the host gave {result["stolen"]:.1%} of the processor time to other machines. Every number is the median of {result["repeats"]} repeats, the range goes from the smallest to the largest repeat, and ratios are computed from the medians. In each repeat every measurement runs once, so the same job in two sections is measured minutes apart: compare the numbers of one table only."""
    ]
    parts = {
        one_process: "usual loop" in rows.get("speed", {}),
        several: "its own model, apart" in rows.get("speed", {}),
        waiting: "waiting" in rows,
        overlap: "overlap" in rows,
        reduce: "all-reduce" in rows,
        safety: "recovery" in rows,
        startup: "lesson 03" in rows.get("start", {}),
        scaled: "scaling" in rows,
        others: "peers" in rows,
    }
    if all(parts.values()):
        said.append(f"""<img src="../../lessons/pictures/bench.svg" width="550" alt="{ALT}">""")
    said += [part(result) for part, is_measured in parts.items() if is_measured]
    text = "\n\n".join(said)
    if " * " in text:
        text += "\n\n\\* One repeat of this row took more than twice the median. Nothing was dropped, and the file has the value. Columns without a range have such repeats, too."
    return text


def plain(text):
    """For a terminal: without Markdown's marks and pictures."""
    text = re.sub(r"<img [^>]*>\n*", "", text)
    return re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", text).replace("**", "").replace("\\*", "*")


def named_file():
    """The file whose numbers the page shows."""
    return HERE / "results" / marks().search(PAGE.read_text()).group(1)


def marks():
    """What finds the generated part of the page: its file, and its text."""
    return re.compile(r"(?s)<!-- bench (\S+) -->\n(.*?)\n<!-- end -->")


def write_page(path):
    """Replace what stands between the marks of the page, and draw its pictures."""
    result = json.loads(path.read_text())
    new = f"<!-- bench {path.name} -->\n{section(result, path)}\n<!-- end -->"
    PAGE.write_text(marks().sub(lambda match: new, PAGE.read_text(), count=1))
    draw(result, PICTURES)


def mark(result):
    """A picture carries this, so that a test can tell which numbers it shows."""
    return f"{zlib.crc32(json.dumps(result).encode()):08x}"


# ---- your machine beside ours -------------------------------------------------------------------


def measured(result):
    """The numbers to compare, by name: their repeats, and whether more is better."""
    rows = result["rows"]
    speed, start = rows.get("speed", {}), rows.get("start", {})
    found = {
        "lesson 01, images/s": (speed.get("lesson 01"), True),
        "lesson 04 on two processes, images/s": (speed.get("its own model, 2"), True),
        "large model on two processes, images/s": (speed.get("a large one, 2"), True),
        "command to first step of lesson 04, s": (
            start.get("lesson 04") and added(start["lesson 04"]),
            False,
        ),
        "snapshot of 64 MB, s": (rows.get("saving", {}).get("lesson 06b, wide", {}).get("seconds"), False),
        "training again after a kill, s": (rows.get("recovery"), False),
    }
    if two := rows.get("all-reduce", {}).get("2"):
        found["all-reduce of 64 MiB, s"] = (two["seconds"]["gloo"][str(64 * MIB)], False)
        found["copy of 64 MiB, s"] = (two["seconds"]["copy"][str(64 * MIB)], False)
    return {name: values for name, values in found.items() if values[0]}


def beside_ours(result):
    """A table of your machine and the page's, and what may explain the difference."""
    ours = json.loads(named_file().read_text())
    mine, theirs = measured(result), measured(ours)
    lines, factors = [], {}
    for name in (name for name in mine if name in theirs):
        (values, more), (known, _) = mine[name], theirs[name]
        digits = 0 if more else 3 if statistics.median(values) < 0.5 else 1
        factors[name] = ratio(values, known) if more else ratio(known, values)
        shown = [middle(values, 1, digits), middle(known, 1, digits), reach(known, 1, digits)]
        lines.append([name, *shown, f"{factors[name]:.2f}"])
    if not lines:
        return "Nothing that was measured is on the page."
    head = ["your machine beside ours", "yours", "ours", "our range", "times as fast"]
    return f"{table(head, lines)}\n\n{why(result, ours, factors)}"


def why(mine, ours, factors):
    """Sentences about what differs, from what both files say of their machines."""
    slowest, fastest = min(factors, key=factors.get), max(factors, key=factors.get)
    said = [
        f"Yours is {factors[slowest]:.2f} ({slowest.partition(',')[0]}) to {factors[fastest]:.2f} times "
        f"({fastest.partition(',')[0]}) as fast as ours, {where(ours)}."
    ]
    cores = mine["machine"]["cores"]
    if mine["load_before"] > 0.25 * cores:
        said.append(
            f"Other programs were busy when you began (load {mine['load_before']}): measure again without them."
        )
    if mine["stolen"] > 0.02:
        said.append(
            f"The host of your virtual machine gave {mine['stolen']:.0%} of your processor time to others."
        )
    if cores > ours["machine"]["cores"]:
        said.append("You have more cores, so the threads of two processes wait less for each other.")
    if mine["versions"]["torch"] != ours["versions"]["torch"]:
        said.append(f"Your torch is {mine['versions']['torch']}, ours {ours['versions']['torch']}.")
    if max(factors.values()) < 1.25 * min(factors.values()):
        said.append(
            "All rows differ by about the same factor, as they do when the cores are faster or slower."
        )
    elif factors.get("copy of 64 MiB, s", 1) * 1.25 < factors.get("lesson 01, images/s", 1):
        said.append("Your memory is slower in relation to your cores, which counts most where much is sent.")
    return " ".join(said)


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
LINES = {
    "copy": ("a copy in memory", "#999999", "--"),
    "gloo": ("gloo's all_reduce", "#0072B2", "o-"),
    "ring": ("the ring of 03a", "#009E73", "s-"),
    "in pieces": ("the ring in pieces", "#E69F00", "v-"),
    "server": ("a server", "#D55E00", "^-"),
}


def draw(result, folder):
    """Draw the pictures whose rows were measured."""
    rows = result["rows"]
    if all(name in rows for name in ("overlap", "all-reduce")) and "lesson 03" in rows.get("start", {}):
        figure, (first, second, third, fourth) = ink.pyplot().subplots(4, 1, figsize=(ink.WIDTH, 13))
        stack(first, STEPS, rows["step"], 1000)
        first.set(title="where the time of a step goes", ylabel="milliseconds, 120 images")
        draw_overlap(second, rows["overlap"])
        draw_reduce(third, rows["all-reduce"]["2"]["seconds"])
        stack(fourth, STARTS, rows["start"], 1)
        fourth.set(title="from the command to the end of the first step", ylabel="seconds")
        ink.save(figure, folder / "bench.svg", Source=mark(result))
    if "scaling" in rows:
        draw_scaling(result, folder / "scaling.svg")


def draw_scaling(result, path):
    figure, both = ink.pyplot().subplots(2, 1, figsize=(ink.WIDTH, 6.5))
    kinds = (("one batch for all", False, "#0072B2"), ("a batch for each", True, "#D55E00"))
    for label, is_weak, colour in kinds:
        lines = list(scaling.lines(result["rows"]["scaling"], is_weak))
        for axes, name in zip(both, scaling.NAMES.values(), strict=True):
            chosen = [line for line in lines if line[0] == name]
            counts = [count for _, count, *_ in chosen]
            speeds = [statistics.median(together) for *_, together, _, _ in chosen]
            apart = [statistics.median(apart or together) for *_, together, apart, _ in chosen]
            axes.plot(counts, speeds, "o-", color=colour, label=label)
            axes.plot(counts, apart, ":", color=colour, label=f"{label}, independent")
            axes.set(title=name, xlabel="processes", ylabel="images per second", xticks=scaling.COUNTS)
            axes.set_ylim(bottom=0)
    both[1].legend(loc="upper center", bbox_to_anchor=(0.5, -0.22), ncols=2, fontsize=9)
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
    for way, (label, colour, style) in LINES.items():
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
