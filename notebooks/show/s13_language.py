"""The pictures of notebook 13: which rank holds what of the GPT, who reads a snapshot, what a step sends,
and what the model learns and writes."""

import math

import matplotlib.pyplot as plt
from torch.distributed.checkpoint import FileSystemReader

from show.pictures import DARK, GREY, RANKS, RED, SKY, arrow, canvas, picture, tile
from show.rank_inks import INK_OF_RANK, RED_INK

DIMENSIONS = {"data": SKY, "tensor": RED}
COLUMNS = ((0, 2, 1, 3),)  # which rank holds which part of a matrix: inputs down, outputs across
ROWS = ((0, 2), (1, 3))
TABLE = ((0, 1), (2, 3))
NORM = (("0, 1", "2, 3"),)  # two ranks hold each half


def draw_parts():
    """The GPT from the characters to their scores, and which rank of a 2 x 2 mesh holds which part."""
    layers = [
        ("embedding, positions", TABLE, "all-gather"),
        ("norm", NORM, ""),
        ("query, key, value", COLUMNS, ""),
        ("project", ROWS, "all-reduce"),
        ("norm", NORM, ""),
        ("up", COLUMNS, ""),
        ("down", ROWS, "all-reduce"),
        ("norm", NORM, ""),
        ("head", COLUMNS, ""),
    ]
    axes = canvas(4.4, 7.3, across=17, down=28)
    draw_small_mesh(axes, 5.4, 24)
    axes.text(0.2, 22.5, "in each row of the mesh: 8 texts of 176 characters", va="center", size=10)
    for number, (name, parts, collective) in enumerate(layers):
        bottom = 20 - 2.2 * number
        axes.text(6.6, bottom + 0.8, name, ha="right", va="center", size=10)
        draw_matrix(axes, 7.4, bottom, parts)
        if collective:
            words = f"{collective}\nover tensor"
            axes.text(13.2, bottom + 0.8, words, va="center", size=9, color=RED_INK)
    axes.plot((0.4, 0.1, 0.1, 0.4), (19.2, 19.2, 6.8, 6.8), color=SKY, lw=2)
    axes.text(0.5, 12, "2 blocks", va="center", weight="bold", size=10)
    axes.text(0.5, 10, "each: all-gather\nover data", va="center", size=9)
    axes.text(6.6, 0.8, "loss", ha="right", va="center", size=10)
    axes.text(9.9, 0.8, "from 61 scores at\neach position", ha="center", va="center", size=9)
    axes.text(13.2, 0.8, "3 all-reduces\nover tensor", va="center", size=9, color=RED_INK)
    picture(
        "Above, the mesh: ranks 0 and 1 are a row, ranks 0 and 2 a column; each row reads 8 texts. Below, a "
        "GPT from top to bottom: embedding, two blocks, norm, head. Each of the four ranks holds a quarter "
        "of every matrix. Ranks 0 and 2 have the left half of query, key, value, up and head, and the upper "
        "half of project and down. Each norm is on ranks 0 and 1 in one half, on ranks 2 and 3 in the other. "
        "Each block begins with an all-gather over data. Embedding, project and down are followed by a "
        "collective over tensor, and the loss needs three."
    )


def draw_small_mesh(axes, x, y):
    """The four ranks, and what a row and a column of them is."""
    for rank in range(4):
        left = x + 2.4 * (rank % 2)
        bottom = y + 1.9 - 1.9 * (rank // 2)
        draw_part(axes, left, bottom, 2.2, 1.7, tile(RANKS[rank], 0.6), rank)
    arrow(axes, (x + 5.6, y + 2.75), (x + 4.8, y + 2.75), colour=RED)
    axes.text(x + 5.8, y + 2.75, "row: tensor", va="center", size=9.5, color=RED_INK)
    axes.text(x + 5.8, y + 0.85, "row: other texts", va="center", size=9.5)
    arrow(axes, (x - 0.9, y + 1.8), (x - 0.1, y + 1.8), colour=SKY)
    axes.text(x - 1.1, y + 1.8, "column: data", va="center", ha="right", size=9.5)


def draw_matrix(axes, x, y, parts):
    """A matrix in the colours of the ranks that hold its parts."""
    height = 1.6 / len(parts)
    width = 5 / len(parts[0])
    for row, ranks in enumerate(parts):
        for column, rank in enumerate(ranks):
            fill = tile(GREY, 0.3) if parts is NORM else tile(RANKS[rank], 0.6)
            draw_part(axes, x + width * column, y + 1.6 - height * (row + 1), width, height, fill, rank)


def draw_part(axes, x, y, width, height, fill, words):
    axes.add_patch(plt.Rectangle((x, y), width, height, facecolor=fill, edgecolor=GREY, lw=0.8))
    axes.text(x + width / 2, y + height / 2, words, ha="center", va="center", color=DARK, size=9)


def chunks_of(snapshot, name):
    """The shape of a weight in a snapshot, and of each file the rank that wrote it and the place and size of
    what it holds."""
    metadata = FileSystemReader(snapshot).read_metadata()
    writers = {}
    for place, stored in metadata.storage_data.items():
        if place.fqn == name:  # the file of rank 2 is called __2_0.distcp
            writers[tuple(place.offset)] = int(stored.relative_path.split("_")[2])
    weight = metadata.state_dict_metadata[name]
    chunks = []
    for chunk in weight.chunks:
        chunks.append((writers[tuple(chunk.offsets)], tuple(chunk.offsets), tuple(chunk.sizes)))
    return tuple(weight.size), chunks


def draw_resumed(snapshot):
    """Two matrices as four processes wrote them into a snapshot, and as two processes read them."""
    axes = canvas(5, 5, across=16, down=16.2)
    axes.text(4.9, 15.6, "written by 4 processes", ha="center", va="center", weight="bold", size=10)
    axes.text(12.6, 15.6, "read by 2", ha="center", va="center", weight="bold", size=10)
    said = []
    for name, bottom in (("query", 8.7), ("project", 1.2)):
        weight = f"weights.model.blocks.0.attention.{name}.weight"
        (outputs, inputs), chunks = chunks_of(snapshot, weight)
        axes.text(2, bottom + 2.6, name, ha="right", va="center", size=10)
        for rank, (left, top), (across, down) in chunks:
            x, width = 5.4 * left / outputs, 5.4 * across / outputs
            y, height = 5.2 * (1 - (top + down) / inputs), 5.2 * down / inputs
            words = f"file\nof {rank}"
            draw_part(axes, 2.2 + x, bottom + y, width, height, tile(RANKS[rank], 0.6), words)
            if name == "query" and left >= outputs / 2:  # outputs are split over tensor
                x += 0.5
            if name == "project" and top >= inputs / 2:  # inputs are split over tensor
                y -= 0.9
            draw_part(axes, 9.8 + x, bottom + y, width, height, tile(RANKS[rank], 0.6), words)
        arrow(axes, (7.9, bottom + 2.6), (9.3, bottom + 2.6))
        if name == "query":
            draw_reader(axes, 0, (9.8, bottom), (2.7, 5.2))
            draw_reader(axes, 1, (13, bottom), (2.7, 5.2))
        else:
            draw_reader(axes, 0, (9.8, bottom + 2.6), (5.4, 2.6))
            draw_reader(axes, 1, (9.8, bottom - 0.9), (5.4, 2.6))
        writers = ", ".join(str(rank) for rank, place, _ in sorted(chunks, key=lambda chunk: chunk[1]))
        said.append(f"{name}, in files of ranks {writers}")
    picture(
        f"Two matrices, each in four files: {'; '.join(said)}. Of each matrix, two processes read one half "
        "each: rank 0 reads the files of the former ranks 0 and 2, rank 1 those of 1 and 3."
    )


def draw_reader(axes, rank, corner, size):
    """A frame around what one of the two processes reads, and its name above the frame."""
    axes.add_patch(plt.Rectangle(corner, *size, fill=False, edgecolor=RANKS[rank], lw=2.5))
    middle = corner[0] + size[0] / 2
    name = f"rank {rank}"
    looks = {"ha": "center", "va": "center", "weight": "bold", "size": 9.5, "color": INK_OF_RANK[rank]}
    axes.text(middle, corner[1] + size[1] + 0.45, name, **looks)


def draw_steps(steps, killed_after, resumed_after, every=2):
    """The steps of an epoch in the run that was killed and in the run that resumed, and their snapshots."""
    axes = canvas(5, 2.8, across=16, down=9)
    runs = (
        (5.6, "4 processes", range(1, killed_after + 1)),
        (2.4, "2 processes", range(resumed_after + 1, steps + 1)),
    )
    for bottom, name, taken in runs:
        axes.text(0, bottom + 0.7, name, va="center", size=9.5)
        for step in range(1, steps + 1):
            left = 3.7 + 1.23 * (step - 1)
            if step not in taken:
                continue
            is_lost = step > resumed_after and step <= killed_after
            fill = tile(RED, 0.6) if is_lost else tile(GREY, 0.3)
            draw_part(axes, left, bottom, 1.1, 1.4, fill, step)
            if step % every == 0:
                axes.text(left + 0.55, bottom - 0.8, "▲", ha="center", va="center", size=10)
    end = 3.7 + 1.23 * killed_after
    axes.text(end + 0.1, 6.3, "killed", va="center", size=9.5, weight="bold", color=RED_INK)
    axes.text(3.7, 8.3, "steps of epoch 2", va="center", size=9.5)
    axes.text(10.2, 8.3, "▲ a snapshot", va="center", size=9.5)
    axes.add_patch(plt.Rectangle((0.1, 0.1), 0.8, 0.8, facecolor=tile(RED, 0.6), edgecolor=GREY, lw=0.8))
    axes.text(1.2, 0.5, "taken twice, because no snapshot has it", va="center", size=9.5)
    picture(
        f"The {steps} steps of epoch 2. Four processes are killed after step {killed_after}; the last "
        f"snapshot is from step {resumed_after}. Two processes continue with step {resumed_after + 1} and "
        f"take the steps up to {steps}. The work of step {killed_after} is done twice."
    )


# Where in a step the collectives run. The forward pass goes down this list, and the backward pass goes up.
# Of one part, the upper collective comes first in the forward pass and last in the backward pass.
OF_BLOCK = (
    (("all-gather", "data", 1), ("all-reduce", "tensor", 2)),
    (("reduce-scatter", "data", 1), ("all-reduce", "tensor", 2), ("all-gather", "data", 1)),
)
STEP = {
    "embedding,\npositions": (
        (("all-gather", "data", 1), ("all-gather", "tensor", 2)),
        (("reduce-scatter", "data", 1),),
    ),
    "block 0": OF_BLOCK,
    "block 1": OF_BLOCK,
    "norm, head": ((), (("all-reduce", "tensor", 1),)),
    "loss": ((("all-reduce", "tensor", 3),), ()),
}


def draw_sent(sent):
    """Where in a step the collectives run, and bars for the bytes of each kind of collective."""
    figure = plt.figure(figsize=(5, 6.8))
    upper, lower = figure.subplots(2, 1, height_ratios=(7, 3))
    draw_step(upper)
    totals = {"data": 0, "tensor": 0}
    sizes = {}  # forward and backward together
    for (_, kind, dimension), size in sent.items():
        totals[dimension] += size / 1e3
        name = f"{kind}\nover {dimension}"
        sizes[dimension, name] = sizes.get((dimension, name), 0) + size / 1e3
    names = []
    for number, ((dimension, name), size) in enumerate(sorted(sizes.items())):
        lower.barh(number, size, 0.66, color=DIMENSIONS[dimension])
        lower.text(size + 50, number, f"{size:,.0f}", va="center", size=10)
        names.append(name)
    lower.set_yticks(range(len(names)), names)
    lower.tick_params(axis="y", length=0)
    lower.invert_yaxis()
    lower.set(xlabel="kB that rank 0 sends in a step", xlim=(0, 1.25 * max(sizes.values())))
    picture(
        "Where in a step the collectives run. Forward: an all-gather over data and two over tensor for the "
        "embedding and the positions; in each block, an all-gather over data and two all-reduces over "
        "tensor; three all-reduces for the loss. Backward: an all-reduce for the head; in each block, an "
        "all-gather, two all-reduces and a reduce-scatter; a last reduce-scatter. In a step rank 0 sends "
        f"{totals['data']:,.0f} kB over data and {totals['tensor']:,.0f} kB over tensor, most of it in "
        "all-reduces."
    )


def draw_step(axes):
    """The parts of the model from top to bottom, and the collectives of each part in both passes."""
    axes.set(xlim=(0, 16), ylim=(0, 16.4))
    axes.axis("off")
    axes.text(6.7, 15.9, "forward", ha="center", va="center", weight="bold", size=10)
    axes.text(13, 15.9, "backward", ha="center", va="center", weight="bold", size=10)
    arrow(axes, (3.8, 15.3), (3.8, 1.7))
    arrow(axes, (10.1, 1.7), (10.1, 15.3))
    top = 15.2
    for part, passes in STEP.items():
        rows = max(len(collectives) for collectives in passes)
        axes.text(3.4, top - 0.6 * rows, part, ha="right", va="center", size=9.5)
        for left, collectives in zip((4.2, 10.5), passes, strict=True):
            for number, (kind, dimension, times) in enumerate(collectives):
                words = kind
                if times > 1:
                    words = f"{times} {kind}s"
                fill = tile(DIMENSIONS[dimension], 0.6)
                draw_part(axes, left, top - 1.2 * (number + 1), 5.2, 1.1, fill, words)
        top -= 1.2 * rows + 0.45
    for left, dimension in ((4.2, "data"), (10.5, "tensor")):
        fill = tile(DIMENSIONS[dimension], 0.6)
        axes.add_patch(plt.Rectangle((left, 0.2), 0.9, 0.7, facecolor=fill, edgecolor=GREY, lw=0.8))
        axes.text(left + 1.2, 0.55, f"over {dimension}", va="center", size=9.5)


LEFT_OF_RANK = (3.1, 10.9)  # in the picture of the loss
CHARACTERS = "abcdef"


def draw_loss_parallel(halves, right):
    """How two ranks compute the loss of one position with three all-reduces. `halves` has the scores that
    each rank holds, and `right` is the number of the character that follows."""
    top = max(half.max() for half in halves).item()
    largest = []
    sums = []
    of_right = []  # 0 on the rank that does not have this character
    first = 0
    for half in halves:
        largest.append(half.max().item())
        sums.append((half - top).exp().sum().item())
        has_right = first <= right < first + len(half)
        of_right.append(half[right - first].item() if has_right else 0.0)
        first += len(half)
    loss = math.log(sum(sums)) + top - sum(of_right)

    axes = canvas(5, 4.6, across=16, down=14.6)
    for rank, left in enumerate(LEFT_OF_RANK):
        axes.text(left + 2.5, 13.6, f"rank {rank}", ha="center", color=INK_OF_RANK[rank], weight="bold")
        for number, score in enumerate(halves[rank].tolist()):
            character = CHARACTERS[len(halves[0]) * rank + number]
            words = f"“{character}”\n{score:.1f}"
            draw_part(axes, left + 1.7 * number, 10.6, 1.6, 2.4, tile(RANKS[rank], 0.6), words)
    axes.text(0, 11.8, "scores", va="center", size=10)
    draw_reduced(axes, 7.9, "largest", largest, f"max: {top:.1f}")
    draw_reduced(axes, 5.5, "sum of\nexp(score - max)", sums, f"sum: {sum(sums):.2f}")
    draw_reduced(axes, 3.1, f"score of\n“{CHARACTERS[right]}”", of_right, f"sum: {sum(of_right):.1f}")
    axes.text(0, 1, "loss: log(sum)\n+ max - score", va="center", size=10)
    for rank, left in enumerate(LEFT_OF_RANK):
        draw_part(axes, left + 1.3, 0.3, 2.4, 1.4, tile(RANKS[rank], 0.6), f"{loss:.2f}")
    picture(
        f"A position has {len(halves[0])} scores on rank 0 and {len(halves[1])} on rank 1. Three all-reduces "
        f"give both ranks the largest score, {top:.1f}, the sum of the exponentials, {sum(sums):.2f}, and "
        f"the score of the right character, {sum(of_right):.1f}. From these three numbers, each rank "
        f"computes the loss, {loss:.2f}. The scores do not travel."
    )


def draw_reduced(axes, bottom, name, own, result):
    """A row with one number of each rank, and the result of the all-reduce between them."""
    axes.text(0, bottom + 0.7, name, va="center", size=10)
    for rank, left in enumerate(LEFT_OF_RANK):
        draw_part(axes, left + 1.3, bottom, 2.4, 1.4, tile(RANKS[rank], 0.6), f"{own[rank]:.2f}")
    arrow(axes, (6.9, bottom + 0.5), (12.1, bottom + 0.5), colour=RED, both=True)
    axes.text(9.5, bottom + 0.8, result, ha="center", size=10, color=RED_INK)


def draw_losses(trained_on, held_back, characters):
    """The loss of each step on training text, and of every tenth step on text that is held back."""
    steps = len(trained_on)
    lowest = min(held_back)
    at = 10 * (held_back.index(lowest) + 1)
    axes = plt.figure(figsize=(5, 3.6)).add_subplot()
    axes.plot(range(1, steps + 1), trained_on, color=SKY)
    axes.plot(range(10, steps + 1, 10), held_back, color=RED, ls="-", marker="o", ms=3.5)
    axes.axhline(math.log(characters), color=GREY, ls="--")
    words = f"random guessing: log {characters} = {math.log(characters):.1f}"
    axes.text(steps, math.log(characters) + 0.1, words, ha="right", size=10)
    axes.text(steps, held_back[-1] + 0.18, "held-back limericks", ha="right", size=10, color=RED_INK)
    axes.text(steps, trained_on[-1] + 0.75, "training limericks", ha="right", size=10, color=INK_OF_RANK[0])
    axes.annotate(
        f"lowest: {lowest:.2f}",
        (at, lowest),
        xytext=(at - 12, lowest + 1),
        size=10,
        color=RED_INK,
        arrowprops={"arrowstyle": "-", "color": GREY},
    )
    axes.set(xlabel="step", ylabel="mean loss of a character", ylim=(0, 5))
    picture(
        f"The loss of {steps} steps. On limericks that the model trains on it falls to {trained_on[-1]:.2f}. "
        f"On limericks held back it falls to {lowest:.2f} after {at} steps, then rises to "
        f"{held_back[-1]:.2f}."
    )


def draw_temperatures(likely, beginning):
    """The likeliest next characters at each temperature: for each a list of a character and its chance."""
    figure, grid = plt.subplots(1, len(likely), figsize=(5, 3), sharey=True)
    said = []
    highest = 100 * max(chances[0][1] for chances in likely.values())
    for axes, (temperature, chances) in zip(grid, likely.items(), strict=True):
        for number, (_, chance) in enumerate(chances):
            axes.barh(number, 100 * chance, color=SKY)
            axes.text(100 * chance + 1.5, number, f"{chance:.0%}", va="center", size=9.5)
        axes.set(xlim=(0, 1.6 * highest), xticks=[], yticks=[])
        axes.set_title(f"temperature\n{temperature}", size=10, weight="normal")
        axes.spines["bottom"].set_visible(False)
        character, chance = chances[0]
        said.append(f"at {temperature}, {character!r} has {chance:.0%}")
    characters = [character for character, _ in likely[min(likely)]]
    grid[0].set_yticks(range(len(characters)), [f"“{character}”" for character in characters])
    grid[0].tick_params(length=0)
    grid[0].invert_yaxis()
    figure.supylabel("next character", size=10)
    picture(
        f"The chances of the characters that are likeliest after {beginning!r}, a panel for each "
        f"temperature: {'; '.join(said)}. The higher the temperature, the more even the chances are."
    )


def draw_written(texts_by_name, beginning, length=28):
    """The texts of four ranks, character by character. In a row of the mesh, a tile has the colour of its
    rank from the first character on in which the two ranks of this row differ."""
    axes = canvas(5, 4.6, across=length + 8.5, down=20.5)
    said = []
    for top, (name, texts) in zip((19.4, 8.6), texts_by_name.items(), strict=True):
        axes.text(0, top, name, va="center", weight="bold", size=10)
        for row in (0, 1):
            pair = [2 * row, 2 * row + 1]
            first = first_difference(texts[pair[0]], texts[pair[1]])
            for rank in pair:
                y = top - 1.9 - 1.7 * rank - 0.7 * row
                axes.text(0, y, f"rank {rank}", va="center", size=9.5, color=INK_OF_RANK[rank])
                written = texts[rank][len(beginning) : len(beginning) + length]
                for number, character in enumerate(written, len(beginning)):
                    draw_character(
                        axes, number - len(beginning) + 8, y, character, RANKS[rank], number >= first
                    )
            if first < len(beginning) + length:
                said.append(f"{name}: ranks {pair[0]} and {pair[1]} differ from character {first + 1} on")
            else:
                said.append(f"{name}: ranks {pair[0]} and {pair[1]} write the same characters")
    picture(f"What four ranks write after {beginning!r}. {'. '.join(said)}.")


def first_difference(one, other):
    for number, (ours, theirs) in enumerate(zip(one, other, strict=False)):
        if ours != theirs:
            return number
    return max(len(one), len(other))


SHOWN = {"\n": "↵", " ": "·"}


def draw_character(axes, x, y, character, colour, is_different):
    fill = tile(colour, 0.6) if is_different else tile(GREY, 0.2)
    axes.add_patch(plt.Rectangle((x, y - 0.75), 1, 1.5, facecolor=fill, edgecolor=GREY, lw=0.6))
    shown = SHOWN.get(character, character)
    axes.text(x + 0.5, y, shown, ha="center", va="center", color=DARK, size=9.5, family="monospace")


def draw_parting(texts):
    """What two ranks of a row compute before and after they draw different characters."""
    first = first_difference(*texts)
    ends = []
    drawn = []
    for text in texts:
        ends.append(shown_end(text[:first]))
        drawn.append(SHOWN.get(text[first], text[first]))
    parted = [ends[0] + drawn[0], ends[1] + drawn[1]]
    axes = canvas(5, 4.9, across=16, down=15.8)
    for rank, left in enumerate(LEFT_OF_PAIR):
        looks = {"ha": "center", "weight": "bold", "size": 10, "color": INK_OF_RANK[rank]}
        axes.text(left + 2.1, 15, f"rank {rank}", **looks)
    rows = (
        (13.2, "end of its text", ends, ""),
        (11.2, "partial result", [f"from {ends[0]}", f"from {ends[1]}"], "all-reduce"),
        (9.2, "scores", ["the same", "the same"], ""),
        (7.2, "it draws", [f"“{character}”" for character in drawn], ""),
        (4.2, "end of its text", parted, ""),
        (2.2, "partial result", [f"from {parted[0]}", f"from {parted[1]}"], "all-reduce"),
        (0.2, "scores", ["of neither text", "of neither text"], ""),
    )
    for bottom, name, words, collective in rows:
        axes.text(0, bottom + 0.75, name, va="center", size=10)
        for rank, left in enumerate(LEFT_OF_PAIR):
            is_own = words[0] != words[1]
            fill = tile(RANKS[rank], 0.6) if is_own else tile(GREY, 0.2)
            draw_part(axes, left, bottom, 4.2, 1.5, fill, words[rank])
        if collective:
            arrow(axes, (8.7, bottom + 0.5), (11.5, bottom + 0.5), colour=RED, both=True)
            axes.text(10.1, bottom + 0.9, collective, ha="center", size=9, color=RED_INK)
    axes.text(0, 6.2, "then, with different texts:", va="center", size=10, weight="bold")
    picture(
        f"Ranks 0 and 1 have texts that end in {ends[0]}. The all-reduce adds up their partial results, so "
        f"both get the same scores. With different seeds they draw {drawn[0]!r} and {drawn[1]!r}. In the "
        f"next step, the all-reduce adds up a result from {parted[0]} and one from {parted[1]}: the scores "
        "are those of neither text."
    )


LEFT_OF_PAIR = (4.4, 11.6)  # in the picture of two texts that part


def shown_end(text):
    """The last characters of a text, with marks for spaces and ends of lines."""
    shown = ""
    for character in text[-5:]:
        shown += SHOWN.get(character, character)
    return shown
