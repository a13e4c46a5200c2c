"""Notebook 18a: what a step of lesson 18's model keeps in memory, and what its time is spent on."""

import json
import statistics
import subprocess
import sys
from types import SimpleNamespace

import matplotlib.pyplot as plt
from matplotlib.patches import Patch
from matplotlib.ticker import MultipleLocator

from show import s03b_overlap as overlap
from show.paths import LESSONS, RANK_SCRIPTS
from show.pictures import (
    BLUE,
    DARK,
    GREEN,
    GREY,
    HATCHES,
    INK,
    ORANGE,
    PINK,
    RED,
    SKY,
    picture,
    tile,
    timeline,
)
from show.processes import ranks
from tools.testbed.command_environment import python_path

PHASES = {"forward": SKY, "backward": BLUE, "optimizer": GREEN}
LIMIT = 100  # seconds for the two ranks of a link
BURST = "64kb"  # so many bytes may pass at once, without waiting: far fewer than a bucket has


# ---- memory -------------------------------------------------------------------------------------


def draw_four(sizes):
    """A bar with the megabytes of each thing that fills the memory."""
    _, axes = plt.subplots(figsize=(4.8, 2.3))
    said = []
    for number, (name, size) in enumerate(sizes.items()):
        megabytes = size / 1e6
        colour = ORANGE if name == "activations" else BLUE
        looks = {"hatch": HATCHES.get(colour), "edgecolor": "white", "lw": 0.4}
        axes.barh(-number, megabytes, 0.6, color=colour, **looks)
        axes.text(megabytes, -number, f" {megabytes:.1f}", va="center")
        said.append(f"{name} {megabytes:.1f}")
    name_rows(axes, sizes)
    axes.set(xlabel="MB", xlim=(0, 1.15 * max(sizes.values()) / 1e6), title="What fills the memory")
    picture(f"Megabytes that a step needs: {', '.join(said)}.")


def draw_parts(plain, checkpointed):
    """The megabytes that each place of the model keeps for backward, in two bars for each place."""
    _, axes = plt.subplots(figsize=(4.8, 3.9))
    said = []
    for number, place in enumerate(plain):
        before = plain[place] / 1e6
        after = checkpointed.get(place, 0) / 1e6
        axes.barh(-number + 0.2, before, 0.36, color=BLUE)
        axes.barh(-number - 0.2, after, 0.36, color=ORANGE, hatch=HATCHES[ORANGE], edgecolor="white", lw=0.4)
        axes.text(before, -number + 0.2, f" {before:.1f}", va="center", size=9)
        axes.text(after, -number - 0.2, f" {after:.1f}", va="center", size=9)
        said.append(f"{place} {before:.1f} and {after:.1f}")
    name_rows(axes, plain)
    axes.set(xlabel="MB kept for backward", xlim=(0, 1.15 * max(plain.values()) / 1e6))
    axes.xaxis.set_major_locator(MultipleLocator(5))
    handles = [Patch(color=BLUE), Patch(facecolor=ORANGE, hatch=HATCHES[ORANGE], edgecolor="white")]
    axes.set_title("What each part keeps", pad=24)
    axes.legend(handles, ["as it is", "with checkpointing"], loc="lower left", bbox_to_anchor=(0, 1), ncols=2)
    picture(f"Megabytes kept for backward, as it is and with checkpointing: {', '.join(said)}.")


def name_rows(axes, names):
    """Rows 0, -1, -2 and so on, from top to bottom."""
    axes.set_yticks([-number for number in range(len(names))], list(names))
    axes.tick_params(axis="y", length=0)


def read_memory(path, fixed):
    """What a trace says: the allocated bytes over time, and the phases, both in ms. `fixed` bytes were
    allocated before the trace began."""
    events = json.loads(path.read_text())["traceEvents"]
    allocations = []
    for event in events:
        if event["name"] == "[memory]":
            about = event["args"]
            allocations.append((event["ts"], about["Total Allocated"], about["Bytes"]))
    allocations.sort()
    first, size, added = allocations[0]
    earlier = size - added  # an earlier trace of this process may have left something

    phases = []
    for event in events:
        if event["name"] in PHASES and event.get("cat") == "user_annotation":
            begin = (event["ts"] - first) / 1000
            end = (event["ts"] + event["dur"] - first) / 1000
            phases.append((begin, end, event["name"]))

    memory = [((time - first) / 1000, fixed + size - earlier) for time, size, _ in allocations]
    peak = max(size for _, size in memory)
    return {"fixed": fixed, "memory": memory, "phases": phases, "peak": peak}


def draw_memory(found, plateaus):
    """For each setting, the bytes that are allocated during a step; below, the phase of the step. `plateaus`
    are the bytes that the first setting should reach, by their names."""
    size_of_picture = (4.8, 1.1 + 1.95 * len(found))
    _, panels = plt.subplots(len(found), sharex=True, sharey=True, figsize=size_of_picture)
    top = max(one["peak"] for one in found.values()) / 1e6
    said = []
    for axes, (setting, one) in zip(panels, found.items(), strict=True):
        times, sizes = draw_step(axes, one, top)
        said.append(f"{setting}: {one['peak'] / 1e6:.0f} MB at the highest point")
        axes.set_title(setting, pad=24 if axes is panels[0] else 6)
        if axes is panels[0]:
            draw_plateaus(axes, plateaus, times, sizes)
    panels[-1].set_xlabel("share of the step (%)")
    handles = [Patch(color=colour) for colour in PHASES.values()]
    handles.append(plt.Line2D([], [], color=PINK, ls="--"))
    names = [*PHASES, "before the step"]
    panels[0].legend(handles, names, loc="lower left", bbox_to_anchor=(-0.14, 1), ncols=4, **overlap.TIGHT)
    marks = ", ".join(f"{name} at {size / 1e6:.1f} MB" for name, size in plateaus.items())
    picture(f"Memory during a step. {'; '.join(said)}. Dotted lines in the first panel: {marks}.")


def draw_step(axes, one, top):
    """The memory of one step and its phases. Returns the times, in % of the step, and the megabytes."""
    ends = [end for _, end, _ in one["phases"]]
    last, _ = one["memory"][-1]
    percent = 100 / max(last, *ends)
    times = []
    sizes = []
    for ms, size in one["memory"]:
        times.append(percent * ms)
        sizes.append(size / 1e6)
    axes.fill_between(times, sizes, step="post", color=GREY, alpha=0.35, lw=0)
    axes.plot(times, sizes, drawstyle="steps-post", color=INK, lw=1)
    axes.axhline(one["fixed"] / 1e6, color=PINK, lw=1.5, ls="--")
    for begin, end, phase in one["phases"]:
        width = percent * (end - begin)
        axes.barh(-0.09 * top, width, 0.1 * top, left=percent * begin, color=PHASES[phase])
    highest = max(sizes)
    when = times[sizes.index(highest)]
    axes.text(when, highest + 0.02 * top, f"{highest:.0f} MB", va="bottom", weight="bold")
    axes.set(xlim=(0, 100), ylim=(-0.16 * top, 1.25 * top), ylabel="MB")
    return times, sizes


def draw_plateaus(axes, plateaus, times, sizes):
    """Dotted lines from the highest point to where the memory falls below 70% of it."""
    highest = max(sizes)
    when = times[sizes.index(highest)]
    right = None
    for time, size in zip(times, sizes, strict=True):
        if time > when and size < 0.7 * highest:
            right = time
            break
    for name, size in plateaus.items():
        axes.plot([when, right + 4], [size / 1e6, size / 1e6], color=ORANGE, lw=1.2, ls=":")
        axes.text(right + 5, size / 1e6, name, va="center", size=9)


# ---- time ---------------------------------------------------------------------------------------


def on_link(script, mbit=None):
    """Run a script as two ranks whose link has this rate; None for loopback. Returns the steps of rank 0,
    by setting, and what kind of link it was."""
    if mbit is None:
        return overlap.read_steps(ranks(script, 2, LIMIT, quiet=True)), "loopback"
    try:
        steps = overlap.read_steps(in_namespaces(script, mbit))
    except (ImportError, OSError, RuntimeError, subprocess.SubprocessError):
        # On macOS, or in a container that may not make namespaces.
        slow = ranks(script, 2, LIMIT, {"SIMULATED_MBIT": mbit}, quiet=True)
        return overlap.read_steps(slow), "simulated: a hook that waits"
    return steps, "network namespaces; the kernel limits the rate"


def in_namespaces(script, mbit):
    from tools.testbed import hosts

    if hosts.why_not():
        raise RuntimeError(hosts.why_not())
    folder = script.resolve().parent / f"{mbit}-mbit"
    both = []
    with hosts.Hosts(folder, 2) as two:
        for number in (1, 2):
            link = ("tc", "qdisc", "add", "dev", f"link{number}", "root", "tbf")
            two.call(*link, "rate", f"{mbit}mbit", "burst", BURST, "latency", "100ms")
        for rank in (0, 1):
            names = {"RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": "0", "STORE": str(folder / "store")}
            names |= {"RESULT": str(folder / f"{rank}.json"), "GLOO_SOCKET_IFNAME": "eth0"}
            names |= {"PYTHONPATH": python_path(LESSONS, RANK_SCRIPTS)}
            both.append(two.run(rank + 1, sys.executable, script.resolve(), environment=names))
        codes = [command.finish(LIMIT) for command in both]
    if codes != [0, 0]:
        raise AssertionError(
            f"a rank failed on a link of {mbit} Mbit/s: {both[0].output()}{both[1].output()}"
        )
    found = []
    for rank in (0, 1):
        where = folder / f"{rank}.json"
        found.append(SimpleNamespace(where=where, result=json.loads(where.read_text())))
    return found


def budget(steps):
    """The median milliseconds of rank 0's steps, by part. `hidden` lies inside the other parts, and so does
    `head start`: the time from the first bucket on its way to the end of backward."""
    times = {}  # of each part, a list
    for step in steps:
        for part, ms in parts_of(step).items():
            times.setdefault(part, []).append(ms)
    medians = {}
    for part, each in times.items():
        medians[part] = statistics.median(each)
    return medians


def parts_of(step):
    """The milliseconds of one step, by part."""
    computing = overlap.bars(step, "backward")
    sending = overlap.bars(step, "all_reduce")
    hidden = overlap.hidden(step)
    row = {
        "forward": overlap.covered(overlap.bars(step, "forward")),
        "backward": overlap.covered(computing),
        "communication, not hidden": overlap.covered(sending) - hidden,
        "optimizer": overlap.covered(overlap.bars(step, "update")),
    }
    row["everything else"] = max(0.0, step["ms"] - sum(row.values()))
    row["hidden"] = hidden
    row["head start"] = last_end(computing) - first_begin(sending)
    row["step"] = step["ms"]
    return row


def first_begin(bars):
    return min(begin for begin, _, _ in bars)


def last_end(bars):
    return max(end for _, end, _ in bars)


def draw_rank_0(steps):
    """For each setting, the step of rank 0 that has the median length, and what of its communication comes
    after the end of backward."""
    said = []
    _, halves = plt.subplots(len(steps), sharex=True, figsize=(4.8, 1.6 + 1.4 * len(steps)))
    for axes, (setting, of_rank_0) in zip(halves, steps.items(), strict=True):
        by_length = sorted(of_rank_0, key=lambda step: step["ms"])
        step = by_length[len(by_length) // 2]
        end = last_end(overlap.bars(step, "backward"))
        arrived = last_end(overlap.bars(step, "all_reduce"))
        axes.axvspan(end, arrived, color=tile(RED, 0.25), lw=0, zorder=0)
        words = f"after backward:\n{arrived - end:.0f} ms"
        axes.text((end + arrived) / 2, 0, words, ha="center", va="center", color=DARK)
        handed = [begin for begin, _, _ in overlap.bars(step, "handed over")]
        axes.plot(handed, [0] * len(handed), "|", color=INK, markersize=18, markeredgewidth=1.5)
        timeline(axes, rows_of(step), overlap.COLOURS)
        axes.set_title(setting, pad=26 if axes is halves[0] else 6)  # room for the legend
        axes.get_legend().set_visible(axes is halves[0])
        axes.set_xlim(left=0)
        said.append(
            f"With {setting}, backward ends at {end:.0f} ms, the first of {len(handed)} bucket(s) is handed "
            f"over at {min(handed):.0f} ms, and the last has been sent at {arrived:.0f} ms"
        )
    overlap.legend_above(halves[0], -0.2)
    halves[0].set(xlabel="")
    picture(f"Timelines of a step of rank 0. {'. '.join(said)}.")


def rows_of(step):
    """The bars of three threads. A row is empty if gloo had fewer than two threads."""
    rows = {"computes": [], "gloo 1": [], "gloo 2": []}
    for row, bars in zip(rows.values(), step["threads"].values(), strict=False):
        for bar in bars:
            if bar[2] in overlap.COLOURS:
                row.append(bar)
    return rows


def draw_communication(found, least, halved):
    """For each setting the communication that is not hidden, and the rest of it, which is hidden. `least` has
    the ms that the link needs at least, by what is sent: half as many for the settings in `halved`."""
    whole = [setting for setting in found if setting not in halved]
    _, axes = plt.subplots(figsize=(4.8, 2 + 0.72 * len(found)))
    said = []
    height = 0.0
    for settings, part in ((whole, 1.0), (halved, 0.5)):
        top = height + 0.8
        for setting in settings:
            shown = found[setting]["communication, not hidden"]
            hidden = found[setting]["hidden"]
            axes.barh(height, shown, 0.45, color=ORANGE, hatch=HATCHES[ORANGE], edgecolor="white", lw=0.4)
            axes.barh(height, hidden, 0.45, left=shown, color=SKY)
            axes.text(6, height + 0.27, setting, size=9.5, weight="bold", va="bottom")
            said.append(f"{setting}: {shown:.0f} ms not hidden, {hidden:.0f} ms hidden")
            height -= 1
        for name, ms in least.items():
            axes.plot([part * ms, part * ms], [height + 0.6, top], color=INK, lw=1.2, ls=":")
            axes.text(part * ms, top, name, ha="center", va="bottom", size=9)
        height -= 0.6
    axes.set_yticks([])
    axes.spines["left"].set_visible(False)
    axes.set(xlabel="ms of communication in a step of rank 0", ylim=(height + 1, 1.2), xlim=(0, None))
    handles = [Patch(facecolor=ORANGE, hatch=HATCHES[ORANGE], edgecolor="white"), Patch(color=SKY)]
    names = ["not hidden", "hidden under forward and backward"]
    axes.legend(handles, names, loc="lower left", bbox_to_anchor=(-0.02, 1), ncols=2, **overlap.TIGHT)
    marks = ", ".join(f"{name} {ms:.0f} ms in fp32, half in bf16" for name, ms in least.items())
    picture(f"Communication in a step. {'. '.join(said)}. At least: {marks}.")


def check(slow, least):
    """What the link and the head start forbid, and what the prose says about the settings."""
    whole, small, half, both = slow.values()
    for row in (whole, small):
        assert sent(row) > 0.9 * least["all gradients"]
        assert row["communication, not hidden"] > 0.9 * least["embedding"]
    for row in slow.values():
        assert row["hidden"] <= row["head start"]
    assert half["communication, not hidden"] < small["communication, not hidden"]
    assert both["communication, not hidden"] < whole["communication, not hidden"]
    assert sent(half) < 0.75 * sent(whole)


def sent(row):
    """The ms of all communication of a step."""
    return row["communication, not hidden"] + row["hidden"]
