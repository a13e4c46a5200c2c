"""Notebook 09: what processes hold, who reads which rows of a checkpoint, and what a step keeps."""

import re

import matplotlib.pyplot as plt

from show.pictures import (
    BLUE,
    DARK,
    GREEN,
    GREY,
    INK,
    ORANGE,
    PAPER,
    RANKS,
    RED,
    SKY,
    arrow,
    box,
    canvas,
    picture,
    tile,
    timeline,
)
from show.rank_inks import INK_OF_RANK, RED_INK


def held(running):
    """What each process of a run has printed: bytes of weights, of gradients, of momentum."""
    sizes_by_rank = []
    for line in running.text.splitlines():
        if " holds " in line:
            numbers = re.findall(r"([\d,]+) (?:bytes )?of", line)
            sizes_by_rank.append([int(number.replace(",", "")) for number in numbers])
    return sizes_by_rank


# What a process has of each kind at five moments of a step: "own" is its shard, "all" is both shards. A
# gradient is a process's own or, after the reduce-scatter, averaged.
MOMENTS = (
    ("between two steps", {"weights": "own", "averaged gradient": "own", "momentum": "own"}),
    ("forward", {"weights": "all", "averaged gradient": "own", "momentum": "own"}),
    ("after forward", {"weights": "own", "gradient": "none", "momentum": "own"}),
    ("backward", {"weights": "all", "own gradient": "all", "momentum": "own"}),
    ("after backward", {"weights": "own", "averaged gradient": "own", "momentum": "own"}),
)
THEN = (
    "all-gather of the weights",
    "reshard, and zero_grad",
    "all-gather of the weights",
    "reduce-scatter of the gradients, and reshard",
    "optimizer step on the shards: no communication",
)
PATTERNS = {
    "weights": None,
    "gradient": None,
    "own gradient": "////",
    "averaged gradient": "xxxx",
    "momentum": "....",
}


def draw_step():
    """One layer on two processes during a step, from top to bottom: which shards each process has."""
    axes = canvas(5, 5.7, across=16, down=18.4)
    for rank, middle in ((0, 2.9), (1, 13.1)):
        name = f"process {rank}"
        axes.text(middle, 17.8, name, ha="center", size=10, weight="bold", color=INK_OF_RANK[rank])
    top = 17.8
    for number, (moment, has) in enumerate(MOMENTS):
        axes.text(8, top - 0.1, moment, ha="center", va="center", size=10, weight="bold")
        for row, (kind, part) in enumerate(has.items()):
            bottom = top - 1.0 - 0.56 * row
            axes.text(8, bottom + 0.22, kind, ha="center", va="center", size=9)
            for rank, left in ((0, 0.2), (1, 10.4)):
                draw_shards(axes, left, bottom, rank, part, PATTERNS[kind])
        words = THEN[number]
        colour, ink = GREY, INK
        if words.startswith(("all-gather", "reduce-scatter")):
            colour, ink = RED, RED_INK
        frame = plt.Rectangle((0.2, top - 3.06), 15.4, 0.62, fill=False, edgecolor=colour, lw=1.2)
        axes.add_patch(frame)
        axes.text(8, top - 2.77, words, ha="center", va="center", size=9, color=ink)
        top -= 3.5
    axes.text(8, 0.1, "blue: shard 0   orange: shard 1   empty: not in memory", ha="center", size=9)
    picture(
        "The weights, the gradient and the momentum of one layer on two processes during a step. Between "
        "two steps each process has its shard of all three. An all-gather gives both processes both shards "
        "of the weights for the forward pass. Then the layer is resharded, and zero_grad deletes the old "
        "gradient. A second all-gather gives both processes the whole weights for the backward pass, in "
        "which each has a whole gradient from its own images. A reduce-scatter leaves each process its shard "
        "of the averaged gradient. Then the optimizer updates the shards. The momentum is never gathered."
    )


def draw_shards(axes, left, bottom, rank, part, hatch):
    """Two shards side by side, each in the colour of the rank that owns it, or empty."""
    for owner in (0, 1):
        fill, pattern = PAPER, None
        if part == "all" or (part == "own" and owner == rank):
            fill, pattern = tile(RANKS[owner], 0.6), hatch
        corner = left + 2.6 * owner, bottom
        axes.add_patch(
            plt.Rectangle(corner, 2.6, 0.46, facecolor=fill, hatch=pattern, edgecolor=GREY, lw=0.8)
        )


def draw_checkpoint(files, rows_of_readers):
    """The rows of a weight, on the left in the files of the ranks that wrote them, on the right as other
    ranks read them. `files` and `rows_of_readers` have the number of rows for each file and each reader."""
    axes = canvas(4.6, 5, across=16, down=16.6)
    left = stacked(files.values())
    right = stacked(rows_of_readers)
    axes.text(5.6, 16, f"{len(files)} files", ha="center", va="center", weight="bold", size=10)
    axes.text(11.6, 16, f"{len(rows_of_readers)} processes", ha="center", va="center", weight="bold", size=10)
    for row, ((writer, above), (reader, below)) in enumerate(zip(left, right, strict=True)):
        draw_row(axes, 4.3, above, row, RANKS[writer])
        draw_row(axes, 10.3, below, row, RANKS[reader])
        axes.plot((7.0, 10.2), (above, below), color=GREY, lw=1.4)
    for writer, name in enumerate(files):
        at = middle_of(writer, left)
        axes.text(4.0, at, name, ha="right", va="center", size=9.5, color=INK_OF_RANK[writer])
    for reader in range(len(rows_of_readers)):
        at = middle_of(reader, right)
        axes.text(13.2, at, f"rank {reader}", va="center", size=10, color=INK_OF_RANK[reader])
    axes.text(8, 0.2, "each line: a row that a process reads", ha="center", size=9.5)
    written = " ".join(str(count) for count in files.values())
    read = " ".join(str(count) for count in rows_of_readers)
    files_of_reader = {}
    for (writer, _), (reader, _) in zip(left, right, strict=True):
        files_of_reader.setdefault(reader, set()).add(writer)
    sources = []
    for reader, writers in files_of_reader.items():
        sources.append(f"Rank {reader} reads from {len(writers)} of the files.")
    picture(
        f"The {len(left)} rows of the last layer. On the left they lie in {len(files)} files with {written} "
        f"rows. On the right are {len(rows_of_readers)} processes, which read {read} rows. A line leads "
        f"from each row in a file to the process that reads it. {' '.join(sources)}"
    )


def stacked(counts):
    """For each row of a stack, the group that it belongs to and its height in the picture, top first."""
    places, height = [], 14.6
    for group, count in enumerate(counts):
        for _ in range(count):
            places.append((group, height))
            height -= 1.15
        height -= 0.75
    return places


def middle_of(wanted, places):
    heights = [height for group, height in places if group == wanted]
    return (heights[0] + heights[-1]) / 2


def draw_row(axes, x, y, row, colour):
    axes.add_patch(plt.Rectangle((x, y - 0.5), 2.6, 1, facecolor=tile(colour, 0.6), edgecolor=GREY, lw=0.8))
    axes.text(x + 1.3, y, f"row {row}", ha="center", va="center", color=DARK, size=9)


KINDS = {  # a colour names a rank, so a pattern names what is held
    "weights": {"facecolor": tile(SKY, 1), "hatch": None},
    "gradients": {"facecolor": tile(SKY, 0.5), "hatch": "////"},
    "momentum": {"facecolor": tile(SKY, 0.2), "hatch": "...."},
}

MEASURED = ["measured: rank 0", "rank 1", "rank 2", "rank 3"]


def bytes_by_formula(stage, processes):
    """By ZeRO's formulas, the bytes that a process holds per parameter of this training, for each kind."""
    sizes = {"weights": 4, "gradients": 4, "momentum": 4}
    if stage >= 1:
        sizes["momentum"] /= processes
    if stage >= 2:
        sizes["gradients"] /= processes
    if stage >= 3:
        sizes["weights"] /= processes
    return sizes


def draw_held(parameters, measured):
    """Bars for ZeRO's formulas, four numbers of processes and four stages; dots for what each measured."""
    axes = plt.subplots(figsize=(5, 3.9))[1]
    for processes in (1, 2, 3, 4):
        for stage in range(4):
            place = processes + 0.2 * (stage - 1.5)
            bottom = 0
            for kind, size in bytes_by_formula(stage, processes).items():
                height = parameters * size / 1000
                axes.bar(place, height, 0.17, bottom, edgecolor=GREY, lw=0.5, **KINDS[kind])
                bottom += height
            axes.text(place, -6, stage, ha="center", va="top", size=9)
        for rank, sizes in enumerate(measured[processes]):
            place = processes + 0.3 + 0.06 * (rank - (processes - 1) / 2)
            axes.plot(place, sum(sizes) / 1000, "o", color=RANKS[rank], mec=DARK, mew=0.6, ms=6)
    axes.set_xticks((1, 2, 3, 4), ["\n1 process", "\n2 processes", "\n3 processes", "\n4 processes"])
    axes.tick_params(axis="x", length=0)
    axes.text(0.52, -6, "stage", ha="right", va="top", size=9)
    axes.set(ylabel="kB on each process")
    name_kinds_and_ranks(axes.figure)
    picture(
        "What each process holds by ZeRO's stage on 1 to 4 processes. Stage 0 is "
        f"{12 * parameters / 1000:.0f} kB on any number; stage 3 is that divided by the number of processes. "
        "The measured dots are at the height of stage 3."
    )


def name_kinds_and_ranks(figure):
    # A legend is filled column by column: a kind above, a rank below. Above rank 3 nothing is left to name.
    patches = [plt.Rectangle((0, 0), 1, 1, edgecolor=GREY, lw=0.5, **look) for look in KINDS.values()]
    patches.append(plt.Line2D([], [], lw=0))
    kinds = [*KINDS, ""]
    handles, names = [], []
    for rank, words in enumerate(MEASURED):
        dot = plt.Line2D([], [], marker="o", color=RANKS[rank], mec=DARK, mew=0.6, ms=6, lw=0)
        handles += [patches[rank], dot]
        names += [kinds[rank], words]
    looks = {"loc": "outside upper center", "ncols": 4, "columnspacing": 0.9, "handletextpad": 0.4}
    figure.legend(handles, names, **looks)


def draw_formulas(bytes_per_parameter, billions, limit):
    """GB on each GPU against the number of GPUs, a line for each stage, and where a line goes below the
    limit."""
    axes = plt.subplots(figsize=(5, 3.4))[1]
    numbers = range(1, 65)
    said = []
    for stage, style in enumerate(("-", "--", "-.", "-")):
        sizes = [billions * bytes_per_parameter(stage, gpus) for gpus in numbers]
        colour = INK
        if stage == 3:
            colour = BLUE
        axes.plot(numbers, sizes, style, color=colour, lw=2.2)
        axes.text(68, sizes[-1], f"stage {stage}", va="center", size=10)
        for gpus, size in zip(numbers, sizes, strict=True):
            if size <= limit:
                mark_gpus(axes, gpus, size)
                said.append(f"stage {stage} is below it from {gpus} GPUs on")
                break
    axes.axhline(limit, color=RED, lw=1)
    axes.text(1, 0.94 * limit, f"{limit} GB", color=RED_INK, va="top", size=10)
    axes.set(xscale="log", yscale="log", xlabel="GPUs", ylabel="GB on each", xlim=(0.9, 130))
    axes.set_title(f"{billions} billion parameters")
    axes.set_xticks([1, 2, 4, 8, 16, 32, 64], [1, 2, 4, 8, 16, 32, 64])
    axes.set_yticks([10, 20, 50, 100, 200, 500], [10, 20, 50, 100, 200, 500])
    axes.minorticks_off()
    picture(
        f"GB on each GPU by the number of GPUs, for {billions} billion parameters, and a line at {limit} GB. "
        f"Stages 0 and 1 stay above the line, {' and '.join(said)}. Stage 3 falls without end, to "
        f"{billions * bytes_per_parameter(3, 64):.1f} GB on 64 GPUs."
    )


def mark_gpus(axes, gpus, size):
    """A dot where a line goes below the limit, with the number of GPUs below it."""
    axes.plot(gpus, size, "o", color=RED, ms=7)
    axes.annotate(
        f"{gpus} GPUs",
        (gpus, size),
        xytext=(-6, -15),
        textcoords="offset points",
        ha="right",
        color=RED_INK,
        size=10,
    )


def draw_whole(found):
    """The weights that are whole at every place of a step, in three settings."""
    axes = plt.subplots(figsize=(5, 4))[1]
    looks = {"the lesson": (BLUE, "-"), "--no-reshard": (GREEN, "--"), "only the root": (RED, ":")}
    most = {}
    for name, (colour, style) in looks.items():
        places, sizes = [], []
        for place, size in found[name]["whole"]:
            places.append(place)
            sizes.append(size / 1000)
        axes.step(range(len(places)), sizes, where="mid", color=colour, ls=style, lw=2.4, label=name)
        most[name] = max(sizes)
    axes.set_xticks(range(len(places)), places, rotation=90)
    axes.set_ylabel("kB of weights that are whole")
    axes.legend(ncols=2, loc="lower left", bbox_to_anchor=(0, 1))
    picture(
        "The weights that are whole during a step. In the lesson only the layer that computes, at most "
        f"{most['the lesson']:.0f} kB. With --no-reshard they add up to all {most['--no-reshard']:.0f} kB "
        "until backward. With fully_shard only on the root, all are whole from the first layer on."
    )


def draw_kept(kept, weights):
    """A bar for what each setting keeps for the backward pass, in bytes, and a line for all weights."""
    axes = plt.subplots(figsize=(5, 2.1))[1]
    sizes = [size / 1000 for size in kept.values()]
    bars = axes.barh(list(kept), sizes, color=SKY)
    axes.bar_label(bars, padding=4, fmt="{:,.0f} kB", color=INK)
    axes.axvline(weights / 1000, color=RED, lw=1)
    axes.text(170, -0.66, "all weights of the model", color=RED_INK, va="center", size=10)
    axes.set(xlabel="kept for backward on each process, kB", xlim=(0, 3600), ylim=(2.6, -0.95))
    said = []
    for label, size in kept.items():
        name = label.replace("-\n", "-").replace("\n", " ")
        said.append(f"{size / 1000:,.0f} kB ({name})")
    picture(
        f"What a process keeps for the backward pass: {', '.join(said)}. All weights together are "
        f"{weights / 1000:.0f} kB."
    )


def draw_saving(diaries):
    """When each rank trains, copies and writes: from the step before the copy to the step after the write."""
    rows = {}
    for rank, diary in enumerate(diaries):
        copy = next(begin for begin, _, kind in diary if kind == "copy")
        last_write = max(end for _, end, kind in diary if kind == "write")
        zero = max(begin for begin, end, kind in diary if kind == "step" and end <= copy)
        trains, writes = [], []
        for begin, end, kind in diary:
            if zero <= begin < last_write:
                bar = (1000 * (begin - zero), 1000 * (end - zero), kind)
                if kind == "write":
                    writes.append(bar)
                else:
                    trains.append(bar)
        rows[f"rank {rank} trains"] = trains
        rows[f"rank {rank} writes"] = writes
    timeline(plt.subplots(figsize=(5, 2.6))[1], rows, {"step": SKY, "copy": RED, "write": GREEN})
    during = count_during_the_write(diaries[0])
    picture(
        "Two ranks over time, each with a row for training and one for writing. The checkpoint is copied, "
        f"while no step is taken, and then written, while rank 0 begins {during} further steps."
    )


def count_during_the_write(diary):
    """How many steps a rank begins while its thread writes."""
    begin, end = next((begin, end) for begin, end, kind in diary if kind == "write")
    steps = 0
    for begin_of_step, _, kind in diary:
        if kind == "step" and begin <= begin_of_step < end:
            steps += 1
    return steps


def draw_gathered(places):
    """What rank 0 of two ranks has in memory at each place of a later step: a column for each layer."""
    moments, layers, heights = [], [], []
    for row, (moment, _) in enumerate(places[1:]):  # without "before"
        moments.append(moment)
        if moment.startswith("forward "):
            layers.append(moment.removeprefix("forward "))
            heights.append(-row)
        else:
            heights.append(-row - 0.55)  # a gap for zero_grad, between forward and backward
    zero_grad = -len(layers) + 0.2
    axes = plt.subplots(figsize=(4.8, 4.9))[1]
    for column, layer in enumerate(layers):
        is_done = False
        for moment, y in zip(moments, heights, strict=True):
            is_whole = moment.endswith(layer)
            is_forward = moment.startswith("forward ")
            is_backward = moment == f"backward {layer}"
            is_done = is_done or is_backward
            draw_half(axes, column, y, BLUE, True)
            draw_half(axes, column + 0.42, y, ORANGE, is_whole)
            draw_half(axes, column, y - 0.36, BLUE, is_forward or is_done, "////")
            draw_half(axes, column + 0.42, y - 0.36, ORANGE, is_backward, "////")
    axes.plot((0, len(layers) - 0.16), (zero_grad, zero_grad), color=GREY, ls="--", lw=1)
    axes.set_yticks([*heights, zero_grad], [*moments, "zero_grad"])
    axes.set_xticks([column + 0.42 for column in range(len(layers))], layers)
    axes.xaxis.tick_top()
    axes.tick_params(length=0)
    axes.spines[["left", "bottom"]].set_visible(False)
    axes.set(xlim=(-0.1, len(layers)), ylim=(heights[-1] - 0.5, 0.5))
    looks = {"rank 0's shard": (BLUE, None), "rank 1's shard": (ORANGE, None), "gradient": (GREY, "////")}
    handles = []
    for colour, hatch in looks.values():
        handles.append(plt.Rectangle((0, 0), 1, 1, facecolor=tile(colour, 0.6), hatch=hatch, edgecolor=GREY))
    axes.figure.legend(handles, list(looks), loc="outside lower center", ncols=3, columnspacing=1)
    picture(
        "The memory of rank 0 of two ranks during the second step or a later one. It always has its shard "
        "of the weights of each layer. The other rank's shard is there only while the layer computes: in "
        f"turn forward, from {layers[0]} to {layers[-1]}, and back. Rank 0's shards of the last step's "
        "gradients are there during the forward pass, until zero_grad deletes them. The new gradient of a "
        "layer is whole in its backward pass, then rank 0 keeps its shard."
    )


def draw_half(axes, x, y, colour, is_there, hatch=None):
    """A rank's half of the weights or of the gradient of a layer: empty if it is not in memory."""
    fill = tile(colour, 0.6) if is_there else PAPER
    pattern = hatch if is_there else None
    axes.add_patch(plt.Rectangle((x, y), 0.42, 0.32, facecolor=fill, hatch=pattern, edgecolor=GREY, lw=0.6))


def draw_orders():
    """Which tensors the optimizer has if it is created before fully_shard, and after it."""
    axes = canvas(5, 2.3, across=40, down=18.4)
    for left, title, of_optimizer in ((0.3, "optimizer first", 2.6), (21.1, "fully_shard first", 9.6)):
        axes.text(left, 17, title, weight="bold", size=10)
        box(axes, left, 9.6, 7.4, 4.4, "model", colour=GREY)
        box(axes, left, 2.6, 7.4, 4.4, "optimizer", colour=GREY)
        box(axes, left + 10.6, 9.6, 7.8, 4.4, "shards", "gradients", BLUE)
        arrow(axes, (left + 7.6, 11.8), (left + 10.4, 11.8))
        end = (left + 10.4, of_optimizer + 1.8)
        arrow(axes, (left + 7.6, 5), end, colour=RED if of_optimizer < 9 else INK)
    box(axes, 10.9, 2.6, 7.8, 4.4, "old weights", "no gradients", RED)
    picture(
        "If the optimizer is created first, it still has the old weights, which get no gradients, while the "
        "model has the shards. If fully_shard comes first, the optimizer and the model have the same shards."
    )


def draw_files():
    """The ten rows of the last layer's weight in the file of rank 0 alone, and in that of both ranks."""
    axes = canvas(5, 2.3, across=40, down=18.4)
    for left, name, ranks_in_file in ((4, "alone.pt", (0,)), (24, "together.pt", (0, 1))):
        axes.text(left + 6, 16.6, name, ha="center", weight="bold", size=10)
        for row in range(10):
            owner = row // 5
            fill = PAPER
            if owner in ranks_in_file:
                fill = tile(RANKS[owner], 0.6)
            corner = left, 14.6 - 1.25 * row
            axes.add_patch(plt.Rectangle(corner, 12, 1.25, facecolor=fill, edgecolor=GREY, lw=0.8))
    axes.text(20, 0.3, "blue: rank 0's rows   orange: rank 1's rows   empty: missing", ha="center", size=9)
    picture(
        "The ten rows of the last layer's weight. The file that rank 0 saves alone has only the five rows of "
        "rank 0. The file that is saved after gathering has the rows of both ranks."
    )


def draw_patchwork(seed_of_row):
    """The rows of a gathered weight, in the colour of the rank whose own model each of them comes from."""
    axes = canvas(5, 3.3, across=16, down=10.4)
    for seed, x in ((0, 0.4), (1, 12.2)):
        name = f"built by\nrank {seed}"
        axes.text(x + 1.7, 9.6, name, ha="center", va="center", size=10, color=INK_OF_RANK[seed])
        draw_rows(axes, x, [seed] * len(seed_of_row))
    axes.text(8, 9.6, "gathered", ha="center", va="center", size=10, weight="bold")
    draw_rows(axes, 6.3, seed_of_row)
    half = 0.5 * len(seed_of_row)
    arrow(axes, (4.0, 8.5 - 0.25 * half), (6.1, 8.5 - 0.25 * half))
    arrow(axes, (12.0, 8.5 - 0.75 * half), (9.9, 8.5 - 0.75 * half))
    first = seed_of_row.index(1)
    picture(
        f"The {len(seed_of_row)} rows of the first layer's weight, as rank 0 built it, as rank 1 built it, "
        f"and gathered. Rows 0 to {first - 1} of the gathered weight are rank 0's, rows {first} to "
        f"{len(seed_of_row) - 1} are rank 1's."
    )


def draw_rows(axes, x, seed_of_row):
    for row, seed in enumerate(seed_of_row):
        corner = x, 8 - 0.5 * row
        axes.add_patch(
            plt.Rectangle(corner, 3.4, 0.5, facecolor=tile(RANKS[seed], 0.6), edgecolor=GREY, lw=0.6)
        )
