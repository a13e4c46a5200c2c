"""A step of lesson 04 over a slow link, in PyTorch's profiler: the trace of slow.md, and its picture.

    python -m tools.makers.step_trace    record lessons/pictures/ddp_step.json anew, and draw ddp_step.svg

Two network namespaces are the hosts, and the kernel limits the rate of their link (tbf). The file has one
step of rank 0, which is the step of median length, with names and times, without arguments, and with our
numbers for the threads.
`make pictures` draws the stored file again.
"""

import datetime
import json
import sys
import tempfile
from pathlib import Path

from parts.colours import BLUE, GREEN, ORANGE
from tools import ink, lessons
from tools.makers import machine
from tools.makers.bench import rows
from tools.makers.mechanisms import Sheet
from tools.testbed import hosts

TRACE = lessons.ROOT / "lessons/pictures/ddp_step.json"
PICTURE = TRACE.with_suffix(".svg")
LESSON = "04_ddp_torchrun"
RATE = "30mbit"
BURST = "64kb"
OPTIONS = ("--width", 64, "--batch-size", 240, "--epochs", 1, "--train-size", 3840, "--test-size", 60)
GROUP = {"LOCAL_RANK": "0", "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29400"}
MAIN = 1  # our number for the main thread; those of gloo follow


# ---- recording ----------------------------------------------------------------------------------


def record(folder):
    """All events of rank 0, and the bytes of DDP's buckets in the order in which they are sent."""
    variant = {"VARIANT": "traced", "VARIANT_OF": str(lessons.get(LESSON).path)}
    words = (rows.HERE / "variant.py", *OPTIONS)
    output = rows.on_two_hosts(folder, RATE, BURST, *words, limit=120, **variant, **GROUP)
    sizes = list(map(int, rows.said(output, "buckets").split(",")))
    return json.loads((folder / "0.json").read_text())["traceEvents"], sizes


def median_step(events):
    """The bars of the step that has the median length, in microseconds from its begin."""
    bars = [event for event in events if event["ph"] == "X"]
    steps = [bar for bar in bars if bar["name"].startswith("ProfilerStep")]
    steps.sort(key=lambda bar: bar["dur"])
    step = steps[len(steps) // 2]
    inside = []
    for bar in bars:
        if step["ts"] <= bar["ts"] < step["ts"] + step["dur"]:
            inside.append(bar)
    threads = {step["tid"]: MAIN}
    found = []
    for bar in sorted(inside, key=lambda bar: (bar["ts"], -bar["dur"])):
        found.append(
            {
                "name": bar["name"],
                "ph": "X",
                "ts": round(bar["ts"] - step["ts"], 3),
                "dur": round(bar["dur"], 3),
                "pid": 0,
                "tid": threads.setdefault(bar["tid"], len(threads) + MAIN),
            }
        )
    return found


def name_of(thread):
    return "main thread" if thread == MAIN else f"gloo thread {thread - MAIN}"


def titles(bars):
    """What makes a viewer show names instead of numbers."""
    threads = {bar["tid"] for bar in bars}
    for thread in sorted(threads):
        arguments = {"name": name_of(thread)}
        yield {"name": "thread_name", "ph": "M", "pid": 0, "tid": thread, "args": arguments}
    yield {"name": "process_name", "ph": "M", "pid": 0, "tid": MAIN, "args": {"name": "rank 0"}}


def write(bars, sizes):
    about = {
        "date": datetime.date.today().isoformat(),
        "commit": machine.commit(),
        "machine": machine.machine(),
        "versions": machine.versions(),
        "job": f"lesson 04 on two hosts, {' '.join(map(str, OPTIONS))}, bucket_cap_mb=0.25",
        "link": RATE,
        "bytes of the buckets": sizes,
    }
    events = ",\n".join(map(json.dumps, [*titles(bars), *bars]))
    begin = f'{{"displayTimeUnit": "ms",\n"otherData": {json.dumps(about)},\n"traceEvents": [\n'
    TRACE.write_text(f"{begin}{events}\n]}}\n")


# ---- drawing ------------------------------------------------------------------------------------


def bars_named(beginning):
    """The begin and end, in milliseconds, and the thread of each bar of the stored file with such a name."""
    found = []
    for event in json.loads(TRACE.read_text())["traceEvents"]:
        if event["name"].startswith(beginning):
            found.append((event["ts"] / 1000, (event["ts"] + event["dur"]) / 1000, event["tid"]))
    return sorted(found)


def parts():
    """What the picture and the page say: the begin and end of each part of the step, in milliseconds."""
    ((begin, end, _),) = bars_named("ProfilerStep")
    ((forward, forwarded, _),) = bars_named("DistributedDataParallel.forward")
    ((update, updated, _),) = bars_named("Optimizer.step")
    backward = bars_named("autograd::engine::evaluate_function")
    computed = max(end for _, end, _ in backward)
    return {
        "step": (begin, end),
        "forward": (forward, forwarded),
        "backward": (backward[0][0], computed),
        "gap": (computed, update),
        "update": (update, updated),
        "handed over": [begin for begin, _, _ in bars_named("c10d::allreduce_")],
        "all-reduces": bars_named("gloo:all_reduce"),
    }


def draw(path):
    found = parts()
    sheet = Sheet(50, 24)
    left = 8.5
    right = 48.3
    top = 16  # of the first thread; each of the others is a floor lower
    floor = 5.6
    height = 3.6
    scale = (right - left) / found["step"][1]

    def bar(begin, end, row, colour, text, **line):
        x = left + scale * begin
        y = top - floor * row
        width = scale * (end - begin)
        sheet.box(x, y, width, height, colour, **line)
        if text:
            sheet.words(x + width / 2, y + height / 2, text)

    for row in range(3):
        sheet.words(0.3, top - floor * row + height / 2, name_of(row + MAIN).replace(" ", "\n", 1), ha="left")
    bar(*found["forward"], 0, GREEN, "forward")
    bar(*found["backward"], 0, BLUE, "backward")
    bar(*found["gap"], 0, ink.INK, "waits", linestyle=":")
    bar(*found["update"], 0, GREEN, "")
    sheet.words(right + 0.5, top + height + 1.4, "update", ha="right")
    pairs = zip(found["handed over"], found["all-reduces"], strict=True)
    for number, (handed, (begin, end, thread)) in enumerate(pairs, start=1):
        row = thread - MAIN
        is_wide = scale * (end - begin) > 5.5
        bar(begin, end, row, ORANGE, f"bucket {number}" if is_wide else str(number))
        sheet.arrow((left + scale * handed, top), (left + scale * begin, top - floor * row + height))
    for time in range(0, int(found["step"][1]) + 1, 100):
        sheet.words(left + scale * time, 2.4, str(time))
    sheet.words((left + right) / 2, 0.8, "milliseconds since the start of the step")
    sheet.save(path)


def main():
    if hosts.why_not():
        sys.exit(f"error: this needs network namespaces ({hosts.why_not().strip()}): run make tools")
    with tempfile.TemporaryDirectory() as folder:
        events, sizes = record(Path(folder))
    write(median_step(events), sizes)
    draw(PICTURE)
    print(f"Kept: {TRACE} and {PICTURE}")


if __name__ == "__main__":
    main()
