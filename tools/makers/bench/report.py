"""The numbers of the bench's page. Its text is in page.md.jinja; README.md holds what is made of both.

Each section below returns what its part of the text names, or None if this was not measured.
"""

import re
import statistics
from pathlib import Path

import jinja2

from tools.makers import result_files
from tools.makers.bench import scaling
from tools.makers.bench.formatting import middle, ratio, spread, sums, table

HERE = Path(__file__).resolve().parent
PAGE = HERE / "README.md"
MARKS = re.compile(r"(?s)<!-- bench (\S+) -->\n(.*?)<!-- end -->")  # the file, and what was made of it
MIB = 2**20
INSIDE = "inside the machine, 64 images"
WAYS = {
    "ring": "ring of 03a",
    "memory kept": "+ memory kept",
    "two connections": "+ two connections",
    "in pieces": "+ in pieces",
    "server": "a server",
    "copy": "a copy",
}


def one_process(about, rows):
    speed = rows.get("speed", {})
    if "usual loop" not in speed:
        return None
    steps = rows["step"]
    names = {
        "usual loop": "the usual loop",
        "lesson 01": "lesson 01",
        "lesson 07 in bf16": "lesson 07 in bf16",
    }
    parts = list(steps["usual loop"])
    lines = []
    for name, words in names.items():
        line = [words, middle(speed[name]), spread(speed[name])]
        for part in parts:
            line.append(middle(steps[name][part], 1000, 1))
        lines.append(line)
    return {
        "table": table(["", "images/s", "range", *parts], lines),
        "faster": ratio(speed["lesson 01"], speed["usual loop"]),
        "has_bf16": about["machine"]["bf16"],
        "bf16_faster": ratio(speed["lesson 07 in bf16"], speed["usual loop"]),
        "bf16_than_01": ratio(speed["lesson 07 in bf16"], speed["lesson 01"]),
        "large": speed["a large one, 1"],
        "large_bf16": speed["a large one in bf16"],
        "large_faster": ratio(speed["a large one in bf16"], speed["a large one, 1"]),
    }


def two_processes(about, rows):
    speed = rows.get("speed", {})
    if "its own model, apart" not in speed:
        return None
    names = {
        "its own model": "lesson 04's model (32,000 parameters)",
        "a large one": "large model (270,000 parameters, 30 times the multiplications)",
    }
    lines = []
    shares = []
    for name, words in names.items():
        one, together, apart = (speed[f"{name}, {kind}"] for kind in ("1", "2", "apart"))
        shares.append(ratio(together, apart))
        speedup = ratio(together, one)
        medians = [middle(one), middle(together), middle(apart)]
        lines.append([words, *medians, f"{speedup:.2f}", f"{shares[-1]:.2f}"])
        lines.append(["range", spread(one), spread(together), spread(apart), "", ""])
    head = ["images/s", "1 process", "2 with DDP", "2 independent", "speedup", "of independent"]
    return {"table": table(head, lines), "shares": shares, "step": sums(rows["step"]["lesson 04, 2"])}


def waiting(about, rows):
    if "waiting" not in rows:
        return None
    anywhere = rows["waiting"]["anywhere"]
    bound = rows["waiting"]["bound"]
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
        line = [words]
        for place in (anywhere, bound):
            seconds = place[f"{kind}, seconds"]
            line += [middle(seconds, 1000, 2), spread(seconds, 1000, 2)]
        lines.append(line)
    medians = {kind: 1000 * statistics.median(anywhere[f"{kind}, seconds"]) for kind in kinds}
    return {
        "table": table(["milliseconds of a step", "any core", "range", "own core", "range"], lines),
        "alone": medians["alone"],
        "share": medians["alone"] / medians["overlap"],
        "share_bound": ratio(bound["alone, seconds"], bound["overlap, seconds"]),
        "waited": medians["wait"] - medians["alone"],
        "sent": medians["after"] - medians["wait"],
        "kilobytes": round(anywhere["bytes"][0] / 1000),
    }


def overlap(about, rows):
    if "overlap" not in rows:
        return None
    lines = []
    sending = []
    for link, found in rows["overlap"].items():
        alone = found["alone, seconds"]
        after = found["after, seconds"]
        hiding = found["overlap, seconds"]
        saved = statistics.median(after) - statistics.median(hiding)
        sent = statistics.median(after) - statistics.median(alone)
        medians = [middle(alone, 1000), middle(after, 1000), middle(hiding, 1000)]
        ranges = [spread(alone, 1000), spread(after, 1000), spread(hiding, 1000)]
        lines.append([link, *medians, f"{saved / sent:.0%}", f"{ratio(after, hiding):.2f}"])
        lines.append(["range", *ranges, "", ""])
        sending.append(middle(found["sent, seconds"], 1000))
    head = ["milliseconds of a step", "nothing sent", "sent after backward", "as DDP does it"]
    inside = rows["overlap"][INSIDE]
    return {
        "table": table([*head, "hidden", "speedup"], lines),
        "cpu_alone": inside["alone, CPU seconds"],
        "cpu_ddp": inside["overlap, CPU seconds"],
        "has_link": len(rows["overlap"]) > 1,
        "sending": " and ".join(sending),
    }


def size_of(size):
    return f"{int(size) // MIB} MiB" if int(size) >= MIB else f"{int(size) // 1024} KiB"


def all_reduce(about, rows):
    if "all-reduce" not in rows:
        return None
    parts = []
    for count, seconds in rows["all-reduce"].items():
        lines = []
        of_ring = []
        of_pieces = []
        for size, gloo in seconds["gloo"].items():
            shares = {way: ratio(gloo, seconds[way][size]) for way in WAYS}
            cells = [f"{share:.2f}" for share in shares.values()]
            lines.append([size_of(size), middle(gloo, 1000, 2), spread(gloo, 1000, 2), *cells])
            if int(size) >= MIB:
                of_ring.append(shares["ring"])
                of_pieces.append(shares["in pieces"])
        parts.append(
            {
                "count": {"2": "Two", "4": "Four"}[count],
                "table": table(["size", "gloo, ms", "range", *WAYS.values()], lines),
                "ring": min(of_ring),
                "pieces": min(of_pieces),
                "too_few_cores": int(count) > about["machine"]["cores"],
            }
        )
    return parts


def snapshots(about, rows):
    if "recovery" not in rows:
        return None
    saving = rows["saving"]
    names = {
        "lesson 06b": "lesson 06b",
        "lesson 06b, wide": "lesson 06b, 8 million parameters",
        "lesson 09, wide": "lesson 09, 8 million parameters, asynchronous",
    }
    lines = []
    for name, words in names.items():
        size = middle(saving[name]["bytes"], 1e-6, 1)
        seconds = saving[name]["seconds"]
        lines.append([words, f"{size} MB", f"{middle(seconds, 1000)} ms", f"{spread(seconds, 1000)} ms"])
    return {
        "table": table(["", "bytes", "stops training", "range"], lines),
        "share": statistics.median(saving["lesson 06b"]["share"]),
        "recovery": rows["recovery"],
    }


def steps_of_06b(about, rows):
    """Its steps beside lesson 04's."""
    steps = rows.get("step", {})
    speed = rows.get("speed", {})
    if not {"lesson 06b", "lesson 04, 2"} <= steps.keys():
        return None
    ours = steps["lesson 06b"]
    before = steps["lesson 04, 2"]
    lines = []
    for name, parts in (("lesson 04, 2", before), ("lesson 06b", ours)):
        cells = [middle(seconds, 1000, 2) for seconds in parts.values()]
        whole = sums(parts)
        lines.append([name, *cells, middle(whole, 1000, 2), spread(whole, 1000, 2)])
    longer = {}
    for part, seconds in ours.items():
        longer[part] = statistics.median(seconds) - statistics.median(before[part])
    most = max(longer, key=longer.get)
    return {
        "table": table(["milliseconds of a step", *ours, "sum", "range"], lines),
        "speed": speed["lesson 06b"],
        "share": ratio(speed["lesson 06b"], speed["its own model, 2"]),
        "most": most,
        "longer": 1000 * longer[most],
    }


def start(about, rows):
    found = rows.get("start", {})
    if "lesson 03" not in found:
        return None
    names = {
        "lesson 01": "01",
        "lesson 03": "03, mp.spawn",
        "lesson 04": "04, torchrun",
        "lesson 06": "06, torchrun on two nodes",
    }
    head = ["seconds"]
    columns = []
    for name, words in names.items():
        if name in found:
            head.append(words)
            columns.append(found[name])
    lines = [[stage] for stage in columns[0]]
    whole = ["total"]
    ranges = ["range"]
    for column in columns:
        for line in lines:
            line.append(middle(column[line[0]], 1, 2))
        whole.append(middle(sums(column), 1, 1))
        ranges.append(spread(sums(column), 1, 1))
    lines += [whole, ranges]
    return {"table": table(head, lines)}


def scaled(about, rows):
    if "scaling" not in rows:
        return None
    head = ["model", "processes", "images/s", "range", "independent", "speedup", "of independent"]
    found = {"batch": scaling.BATCH}
    for name, is_weak in (("strong", False), ("weak", True)):
        lines = []
        for model, count, together, apart, alone in scaling.lines(rows["scaling"], is_weak):
            speedup = f"{statistics.median(together) / alone:.2f}"
            independent = middle(apart) if apart else ""
            share = f"{ratio(together, apart):.0%}" if apart else ""
            lines.append([model, count, middle(together), spread(together), independent, speedup, share])
        found[name] = table(head, lines)
    return found


SECTIONS = {
    "one_process": one_process,
    "two_processes": two_processes,
    "waiting": waiting,
    "overlap": overlap,
    "all_reduce": all_reduce,
    "snapshots": snapshots,
    "steps_of_06b": steps_of_06b,
    "start": start,
    "scaled": scaled,
}


def read(path):
    about, rows = result_files.read(path)
    return about, result_files.nested(rows)


def where(about):
    """The machine, in words."""
    what = about["machine"]
    kind = "a virtual machine" if what["virtual"] else "a machine"
    gpus = f"{len(what['gpus'])} x {what['gpus'][0]}" if what["gpus"] else "no GPU"
    used = about["versions"]
    torch = used["torch"].partition("+")[0]
    size = f"{what['cores']} cores of an {what['cpu']}, {what['memory_gib']} GiB and {gpus}"
    return f"{kind} with {size}, Python {used['python']}, torch {torch}"


def text(about, rows, path):
    """The page from this run. What was not measured is left out."""
    sections = {name: section(about, rows) for name, section in SECTIONS.items()}
    template = jinja2.Environment(
        loader=jinja2.FileSystemLoader(HERE),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    ).get_template("page.md.jinja")
    said = template.render(
        **sections,
        about=about,
        machine=where(about),
        file=path.name,
        is_complete=None not in sections.values(),
        has_star=" * " in str(sections),
        middle=middle,
        spread=spread,
    )
    return re.sub(r"\n{3,}", "\n\n", said).strip()


def plain(said):
    """For a terminal: without Markdown's marks and pictures."""
    said = re.sub(r"<img [^>]*>\n*", "", said)
    said = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", said)
    return said.replace("**", "").replace("\\*", "*")


def named_file():
    """The file whose numbers the page shows."""
    return result_files.FOLDER / MARKS.search(PAGE.read_text())[1]


def write_page(path):
    """Replace what stands between the marks of the page."""
    new = f"<!-- bench {path.name} -->\n{text(*read(path), path)}\n<!-- end -->"
    PAGE.write_text(MARKS.sub(lambda match: new, PAGE.read_text(), count=1))
