"""The pictures of notebook 11: who holds which numbers of a matrix, and which collective runs where."""

import matplotlib.pyplot as plt
import numpy

from show.pictures import BLUE, DARK, GREY, INK, RANKS, RED, SKY, YELLOW, arrow, canvas, picture, tile
from show.rank_inks import INK_OF_RANK, RED_INK


def draw_part(axes, corner, size, rank, part):
    """A tensor, filled as far as this rank of two has it: in its colour, or grey if both have the same."""
    left, bottom = corner
    width, height = size
    areas = {
        "same": (left, bottom, width, height),
        "term": (left, bottom, width, height),
        "columns": (left + rank * width / 2, bottom, width / 2, height),
        "rows": (left, bottom + (1 - rank) * height / 2, width, height / 2),
    }
    fill, hatch = tile(RANKS[rank], 0.7), None
    if part == "same":
        fill = tile(GREY, 0.5)
    if part == "term":
        fill, hatch = tile(RANKS[rank], 0.5), "/////"
    x, y, across, up = areas[part]
    axes.add_patch(plt.Rectangle((x, y), across, up, facecolor=fill, edgecolor=DARK, hatch=hatch, lw=0))
    axes.add_patch(plt.Rectangle(corner, width, height, fill=False, edgecolor=GREY, lw=1))


def draw_two_ways():
    """Data parallelism above, tensor parallelism below: what two ranks have, and what travels."""
    axes = canvas(5, 4.5, across=40, down=36)
    ways = (
        ("data parallel (lesson 04)", "rows", "same", "same", "gradients,\nonce a step"),
        ("tensor parallel (this lesson)", "same", "columns", "rows", "partial results,\nin every block"),
    )
    for number, (title, images, up, down, travels) in enumerate(ways):
        bottom = 19.8 - 16.8 * number
        axes.text(0.3, bottom + 14.6, title, weight="bold", size=11)
        for rank, left in enumerate((0.3, 26.3)):
            name = f"rank {rank}"
            axes.text(left, bottom + 12, name, weight="bold", size=10, color=INK_OF_RANK[rank])
            draw_part(axes, (left, bottom + 7.8), (8, 3.2), rank, images)  # an image is a row
            draw_part(axes, (left, bottom + 2.8), (8, 2), rank, up)
            draw_part(axes, (left + 10.6, bottom + 1.8), (2, 8), rank, down)
            axes.text(left + 4, bottom + 6.6, "the images", size=9, ha="center", va="center")
            axes.text(left + 4, bottom + 1.6, "up", size=9, ha="center", va="center")
            axes.text(left + 11.6, bottom + 0.6, "down", size=9, ha="center", va="center")
        arrow(axes, (14.2, bottom + 5.4), (25.2, bottom + 5.4), travels, both=True, colour=RED, size=9)
    axes.text(20, 0.3, "grey: the same on both   empty: not on this rank", ha="center", size=9)
    picture(
        "What two ranks have of the images and of the two matrices of a feed-forward layer, up and down. "
        "Data parallel: each rank has half of the images and both whole matrices, and gradients travel once "
        "a step. Tensor parallel: each rank has all images, half of the columns of up and half of the rows "
        "of down, and partial results, which are added up, travel in every block."
    )


def draw_products():
    """The products of two ranks, number by number: the forward pass above, the backward pass below."""
    axes = canvas(5, 4.9, across=51, down=49)
    draw_pass(axes, 28, "forward", "GELU", ("x", "up", "hidden", "down", "terms", "output"))
    names = ("gradient\nof output", "down.T", "gradient\nof x @ up", "up.T", "terms", "gradient\nof x")
    draw_pass(axes, 4.2, "backward", "GELU'", names)
    axes.text(25.5, 1.9, "grey: the same on both   empty: not on this rank", ha="center", size=9)
    axes.text(25.5, 0.2, "striped: a term of a sum", ha="center", size=9)
    picture(
        "The numbers of two matrices on two ranks. Forward: both ranks have x. Times its half of the columns "
        "of up, and through GELU, it gives each rank half of the hidden numbers. These, times the rank's "
        "half of the rows of down, give one term of every output, and an all-reduce adds up the two terms. "
        "Backward: both ranks have the gradient of the output. Times the rank's half of down and the "
        "derivative of GELU, it gives half of the gradient of x @ up. This half, times the rank's half of "
        "up, gives one term of the gradient of x, and a second all-reduce adds up the two terms."
    )


def draw_pass(axes, bottom, title, function, names):
    """`function` is applied to each number of the first product."""
    axes.text(0, bottom + 19.7, title, weight="bold", size=11)
    for middle, name in zip((7, 13.8, 24.8, 31.5, 37.2, 48), names, strict=True):
        axes.text(middle, bottom + 15.6, name, ha="center", va="bottom", size=9)
    for rank in (0, 1):
        middle = bottom + 11.8 - 7.6 * rank
        axes.text(0, middle, f"rank {rank}", va="center", size=9, color=INK_OF_RANK[rank])
        draw_numbers(axes, 5, middle, (3, 4), rank, "same")
        draw_numbers(axes, 10.8, middle, (4, 6), rank, "columns")
        draw_numbers(axes, 21.8, middle, (3, 6), rank, "columns")
        draw_numbers(axes, 29.5, middle, (6, 4), rank, "rows")
        draw_numbers(axes, 35.2, middle, (3, 4), rank, "term")
        draw_numbers(axes, 46, middle, (3, 4), rank, "same")
        for place, sign in ((9.9, "@"), (28.65, "@"), (34.35, "=")):
            axes.text(place, middle, sign, ha="center", va="center", size=9)
        arrow(axes, (17.2, middle), (21.5, middle))
        axes.text(19.3, middle + 1.2, function, ha="center", va="center", size=9)
        arrow(axes, (39.3, middle), (41.3, middle), colour=RED)
        arrow(axes, (44, middle), (46, middle), colour=RED)
    axes.add_patch(plt.Rectangle((41.3, bottom + 0.6), 2.7, 14.8, fill=False, edgecolor=RED, lw=1.4))
    axes.text(42.65, bottom + 8, "all-reduce", rotation=90, ha="center", va="center", size=9, color=RED_INK)


def draw_numbers(axes, left, middle, shape, rank, part):
    """A matrix as draw_part draws it, with a line between two numbers."""
    rows, columns = shape
    bottom = middle - rows / 2
    draw_part(axes, (left, bottom), (columns, rows), rank, part)
    for row in range(1, rows):
        axes.plot((left, left + columns), (bottom + row, bottom + row), color=GREY, lw=0.5)
    for column in range(1, columns):
        axes.plot((left + column, left + column), (bottom, bottom + rows), color=GREY, lw=0.5)


def draw_held(held):
    """The weights of a block to scale: each dot is a number, in the colour of the rank that holds it, or grey
    if each rank has a copy."""
    axes = canvas(5, 4.1, across=40, down=33)
    draw_weights(axes, held, "feed_forward.up", (1, 24))
    draw_weights(axes, held, "attention.query", (0.2, 11.6))
    draw_weights(axes, held, "attention.key", (8, 11.6))
    draw_weights(axes, held, "attention.value", (15.8, 11.6))
    draw_weights(axes, held, "attention.project", (23.6, 11.6))
    draw_weights(axes, held, "feed_forward.down", (33, 6))

    axes.text(0.2, 4.6, "norm", weight="bold", size=10)
    for rank in (0, 1):
        ones = numpy.abs([held[rank]["attention_norm.weight"]["numbers"]])
        draw_dots(axes, ones, (0.2, 3.2 - 1.1 * rank), GREY)
    axes.text(
        7, 3, "thin strips: biases, and the weights of a norm\ngrey, twice: a copy on each rank", size=9
    )
    axes.text(0.2, 0.2, "blue: rank 0   orange: rank 1   stronger: a larger number", size=9)
    picture(
        "The weights of a block, with a dot for each number. Query, key, value and up are in a left half on "
        "rank 0 and a right half on rank 1, and so are their biases. Project and down are in an upper and a "
        "lower half. The biases of project and down, and the norm's weights, are grey: each rank has a copy."
    )


def draw_weights(axes, held, name, corner):
    """A matrix, its bias below it, and its sizes. `corner` is the lower left corner of the matrix."""
    left, bottom = corner
    # nn.Linear stores the transpose. In x @ W, inputs go down and outputs go across.
    own = [numpy.abs(found[f"{name}.weight"]["numbers"]).T for found in held]
    biases = [numpy.abs([found[f"{name}.bias"]["numbers"]]) for found in held]
    rows, columns = own[0].shape
    if held[0][f"{name}.weight"]["placement"] == "S(0)":
        whole = rows, 2 * columns
        draw_dots(axes, own[0], (left, bottom), RANKS[0])
        draw_dots(axes, own[1], (left + DOT * columns, bottom), RANKS[1])
        draw_dots(axes, biases[0], (left, bottom - 1.1), RANKS[0])
        draw_dots(axes, biases[1], (left + DOT * columns, bottom - 1.1), RANKS[1])
        below = bottom - 1.6
    else:
        whole = 2 * rows, columns
        draw_dots(axes, own[0], (left, bottom + DOT * rows), RANKS[0])
        draw_dots(axes, own[1], (left, bottom), RANKS[1])
        draw_dots(axes, biases[0], (left, bottom - 1.1), GREY)
        draw_dots(axes, biases[1], (left, bottom - 2.2), GREY)
        below = bottom - 2.7
    title = name.split(".")[1]
    middle = left + DOT * whole[1] / 2
    top = bottom + DOT * whole[0]
    axes.text(middle, top + 0.5, title, ha="center", weight="bold", size=10)
    words = f"{size_of(whole)},\n{size_of((rows, columns))} each"
    axes.text(middle, below, words, ha="center", va="top", size=9)


DOT = 0.1875  # the side of a dot


def draw_dots(axes, numbers, corner, colour):
    rows, columns = numbers.shape
    left, bottom = corner
    height = DOT * rows
    if rows == 1:
        height = 0.8  # a strip, because a single row of dots would be too thin to see
    place = (left, left + DOT * columns, bottom, bottom + height)
    axes.imshow(tinted(numbers, colour), extent=place, aspect="auto", interpolation="nearest")


def tinted(numbers, colour):
    """A pixel for each number: the larger it is, the stronger the colour, and the less white."""
    strength = 0.25 + 0.75 * numbers / numbers.max()
    strength = strength[:, :, None]  # the same for red, green and blue
    white = 1 - strength
    return strength * plt.matplotlib.colors.to_rgb(colour) + white


# The layers of a block: the name in the picture, the shapes of the weights, how they are sharded, and what
# comes after the layer. Query, key and value share a row.
LAYERS = {
    "attention_norm": ("norm", [(2, 32)], "same", None),
    "attention.query": ("query,\nkey, value", [(32, 32), (32, 32), (32, 32)], "columns", "attention"),
    "attention.project": ("project", [(32, 32)], "rows", None),
    "feed_forward_norm": ("norm", [(2, 32)], "same", None),
    "feed_forward.up": ("up", [(32, 128)], "columns", "GELU"),
    "feed_forward.down": ("down", [(128, 32)], "rows", None),
}
HEADS = ("heads 0 and 1", "heads 2 and 3")  # of each rank
TURNED = {"rows": "columns", "columns": "rows", "same": "same"}  # what sharded rows are in the transpose
POSITIONS, HIDDEN = 28, 32
COLUMNS = (9.2, 25)  # where the column of each rank begins
UNIT = 0.046  # of a number: all tensors have the same scale


def draw_block(row, direction, first="attention_norm"):
    """A block on two ranks, step by step: what goes into each layer, its weights, and each collective.

    `row` is what was measured for one way of working. A picture of the forward pass can begin later, at the
    layer `first`.
    """
    steps = steps_of(row["diary"], direction, first)
    down = 9 + sum(step["height"] for step in steps)
    axes = canvas(5, down / 8, across=40, down=down)
    heads = ("input", "weights\nred: result")
    if direction == "backward":
        heads = ("gradient", "weights.T\nred: result")
    for rank in (0, 1):
        left = COLUMNS[rank]
        name = f"rank {rank}"
        axes.text(left + 7, down - 1, name, weight="bold", ha="center", size=10, color=INK_OF_RANK[rank])
        for place, words in zip((3.2, 10.8), heads, strict=True):
            axes.text(left + place, down - 2.2, words, ha="center", va="top", size=9, linespacing=1.3)

    top = down - 5.6
    said = []
    for step in steps:
        middle = top - step["height"] / 2
        top -= step["height"]
        said.append(step["title"].replace("\n", " "))
        if step["kind"] == "between":
            draw_between(axes, middle, step["title"])
            continue
        said[-1] += f" {size_of(step['shape'])}"
        if step["kind"] == "layer":
            draw_layer(axes, middle, step)
        else:
            draw_collective(axes, middle, step)
    axes.text(20, 1.9, "grey: the same on both   empty: not on this rank", ha="center", size=9)
    axes.text(20, 0.2, "striped: a term of a sum", ha="center", size=9)
    picture(
        f"The {direction} pass of a block on two ranks, {row['way']} parallel, in the order of its steps, "
        f"with the size of what each rank puts in: {', '.join(said)}. Rank 0 has the left half of query, "
        "key, value and up and the upper half of project and down, and rank 1 has the other halves."
    )


def steps_of(diary, direction, first):
    """The layers and collectives of the block in their order; nothing before it, and nothing after it."""
    entries = [entry for entry in diary if entry["direction"] == direction]
    names = [entry["name"] for entry in entries]
    begin, end = sorted([names.index(first), names.index("feed_forward.down")])
    if direction == "forward":
        end += 1  # the collective that follows `down`

    steps = []
    for entry in entries[begin : end + 1]:
        name, shape = entry["name"], entry["shape"]
        if entry["is_collective"]:
            title = name.removesuffix("_tensor").removesuffix("_into").replace("_", "-")
            if name == "reduce_scatter_tensor":  # PyTorch has put the shards one after the other
                shape = [shape[0] // 2, 2 * shape[1], shape[2]]
            steps.append({"kind": "collective", "title": title, "shape": shape, "height": 4.2})
        elif name in LAYERS:
            title, weights, sharded, then = LAYERS[name]
            if direction == "backward" and title != "norm":
                weights = [(outputs, inputs) for inputs, outputs in weights]
                sharded = TURNED[sharded]
            height = 4.2
            if weights[0][0] > HIDDEN:
                height = 8.2  # a matrix of 128 rows
            layer = {"kind": "layer", "title": title, "shape": shape, "height": height}
            steps.append(layer | {"weights": weights, "sharded": sharded})
            if then:
                between = {"kind": "between", "title": then, "height": 1.8}
                place = len(steps)
                if direction == "backward":
                    place -= 1
                steps.insert(place, between)
    return steps


def draw_between(axes, middle, title):
    axes.text(0.4, middle, title, va="center", size=9)
    if title == "attention":
        for left, words in zip(COLUMNS, HEADS, strict=True):
            axes.text(left + 7, middle, words, ha="center", va="center", size=9)


def draw_layer(axes, middle, step):
    """On each rank: what goes into the layer, and the part of the weights that the rank has."""
    axes.text(0.4, middle + 0.6, step["title"], va="center", weight="bold", size=9, linespacing=1.3)
    rows, columns = step["weights"][0]
    features = HIDDEN
    if step["title"] != "norm":
        features = rows  # in x @ W, a row of x is as long as a column of W
    _, positions, own_features = step["shape"]
    part = "same"
    if own_features < features:
        part = "columns"
    if positions < POSITIONS:
        part = "rows"
    own = {"columns": (rows, columns // 2), "rows": (rows // 2, columns), "same": (rows, columns)}
    own_size = size_of(own[step["sharded"]])
    for rank in (0, 1):
        left = COLUMNS[rank]
        draw_tensor(axes, left + 3.2, middle, (POSITIONS, features), rank, part, size_of(step["shape"]))
        if step["title"] != "norm":
            axes.text(left + 7, middle + 0.6, "@", ha="center", va="center", size=9)
        if len(step["weights"]) == 1:
            draw_tensor(axes, left + 10.8, middle, step["weights"][0], rank, step["sharded"], own_size)
        else:
            for place in (8.8, 10.8, 12.8):  # query, key, value
                draw_tensor(axes, left + place, middle, (rows, columns), rank, step["sharded"], "")
            axes.text(left + 10.8, middle - 1.1, f"{own_size} each", ha="center", va="center", size=9)


def draw_collective(axes, middle, step):
    """On each rank: what it passes to the collective, and what it gets."""
    frame = plt.Rectangle((0.1, middle - 1.9), 39.6, 3.8, fill=False, edgecolor=RED, lw=1.2)
    axes.add_patch(frame)
    words = step["title"].replace("reduce-s", "reduce-\ns")
    axes.text(0.4, middle + 0.3, words, va="center", size=9, color=RED_INK, linespacing=1.3)
    batch = step["shape"][0]
    whole = POSITIONS, HIDDEN
    some = size_of((batch, POSITIONS // 2, HIDDEN))
    everything = size_of((batch, *whole))
    passes, gets = {
        "all-reduce": (("term", everything), ("same", everything)),
        "reduce-scatter": (("term", everything), ("rows", some)),
        "all-gather": (("rows", some), ("same", everything)),
    }[step["title"]]
    for rank in (0, 1):
        left = COLUMNS[rank]
        draw_tensor(axes, left + 3.2, middle, whole, rank, *passes)
        draw_tensor(axes, left + 10.8, middle, whole, rank, *gets)
        arrow(axes, (left + 5.6, middle + 0.6), (left + 8.4, middle + 0.6), colour=RED)


def draw_tensor(axes, across, middle, shape, rank, part, label):
    """A tensor around this place, with the size of the rank's part below it."""
    height, width = max(0.5, UNIT * shape[0]), UNIT * shape[1]
    bottom = middle + 0.6 - height / 2
    draw_part(axes, (across - width / 2, bottom), (width, height), rank, part)
    axes.text(across, bottom - 0.9, label, ha="center", va="center", size=9)


def size_of(shape):
    return " x ".join(map(str, shape))


def draw_bytes(results):
    """The bytes that a step puts into collectives, for several hidden sizes. Lines are the formulas."""
    axes = plt.figure(figsize=(5, 4)).add_subplot()
    line = numpy.array([24, 1024])
    for batch, mark in ((8, "o"), (32, "^")):
        axes.plot(line, 4 * 4 * 2 * batch * 28 * line, color=RED)
        equal = batch * 28 / 3  # the hidden size at which both ways send as much
        axes.plot(equal, 4 * 2 * 12 * equal**2, "x", color=INK, ms=11, mew=2.5, zorder=3)
        axes.text(0.85 * equal, 4 * 2 * 12 * equal**2, "equal", ha="right", va="bottom")
        for row in results:
            if row["way"] == "tensor" and row["batch"] == batch:
                axes.plot(row["hidden"], row["sent"], mark, color=RED)
    axes.plot(line, 4 * 2 * 12 * line**2, color=GREY, ls="--")
    for row in results:
        if row["way"] == "data":
            axes.plot(row["hidden"], row["sent"], "s", color=GREY)
    axes.text(600, 1.5e6, "tensor parallel,\n8 images", ha="center", va="top", color=RED_INK)
    axes.text(50, 2.2e6, "tensor parallel,\n32 images", ha="center", va="bottom", color=RED_INK)
    axes.text(330, 4.5e7, "data parallel,\nany batch", ha="right", va="center")
    axes.set(xscale="log", yscale="log", xlabel="hidden size", ylabel="bytes passed to collectives")
    sizes = (32, 64, 128, 256, 512, 1024)
    axes.set_xticks(sizes, [str(size) for size in sizes])
    axes.minorticks_off()
    picture(
        "Bytes that a step puts into collectives, against the hidden size. Tensor parallel grows with the "
        "hidden size and with the images, data parallel with the square of the hidden size. Measured marks "
        "are on the lines or near them."
    )


def draw_kept(kept):
    """A bar for each way of working, of the bytes that a process keeps for the backward pass."""
    axes = plt.figure(figsize=(5, 2.4)).add_subplot()
    labels, words = [], []
    for number, (way, label, colour) in enumerate(
        (
            ("data", "one process", GREY),
            ("tensor", "tensor\nparallel", BLUE),
            ("sequence", "sequence\nparallel", BLUE),
        )
    ):
        megabytes = kept[way] / 1e6
        axes.barh(-number, megabytes, color=colour, height=0.6)
        axes.text(megabytes, -number, f" {megabytes:.2f} MB", va="center", color=INK)
        labels.append(label)
        name = label.replace("\n", " ")
        words.append(f"{name} {megabytes:.2f} MB")
    axes.set_yticks([0, -1, -2], labels)
    axes.set(xlabel="MB that rank 0 keeps for the backward pass", xlim=(0, 1.25 * kept["data"] / 1e6))
    picture(f"Kept for the backward pass by one process, without the weights: {', '.join(words)}.")


def draw_kept_tensors():
    """The tensors that a block keeps for the backward pass: what rank 0 of two ranks has of each."""
    rows = {
        "norms:\ninputs": (2, "whole whole half half"),
        "norms:\noutputs": (2, "whole whole whole half"),
        "queries, keys,\nvalues, outputs": (4, "whole half half half"),
        "GELU: input": (4, "whole half half half"),
        "GELU: output": (4, "whole half half half"),
    }
    columns = ("one\nprocess", "tensor\nparallel", "sequence\nparallel", "Megatron-\nLM")
    formulas = ("", "4 + 12/n", "2 + 14/n", "16/n")
    axes = canvas(5, 3.8, across=30, down=22)
    totals = [0, 0, 0, 0]
    for number, (name, (count, shares)) in enumerate(rows.items()):
        bottom = 17 - 3 * number
        axes.text(8.2, bottom + 0.6, name, ha="right", va="center", size=9)
        for column, share in enumerate(shares.split()):
            filled = 1
            if share == "half":
                filled = 0.5
            totals[column] += count * filled
            for place in range(count):
                corner = 9.2 + 5.4 * column + 1.15 * place, bottom
                axes.add_patch(plt.Rectangle(corner, filled, 1.2, color=BLUE, lw=0))
                axes.add_patch(plt.Rectangle(corner, 1, 1.2, fill=False, edgecolor=GREY, lw=0.8))
    for column, name in enumerate(columns):
        middle = 11.4 + 5.4 * column
        axes.text(middle, 20.6, name, ha="center", va="center", weight="bold", size=9)
        axes.text(middle, 2.9, f"{totals[column]:g}", ha="center", va="center", weight="bold", size=11)
        axes.text(middle, 0.9, formulas[column], ha="center", va="center", size=9)
    axes.text(8.2, 2.9, "tensors on rank 0", ha="right", va="center", size=9)
    axes.text(8.2, 0.9, "on n processes", ha="right", va="center", size=9)
    picture(
        "The 16 tensors that a block keeps, and what rank 0 of two ranks has of each. Tensor parallelism "
        "halves all but the inputs and outputs of the norms, sequence parallelism also halves the inputs, "
        "Megatron-LM halves everything. So rank 0 keeps "
        f"{totals[1]:g}, {totals[2]:g} or {totals[3]:g} tensors."
    )


def draw_what_differs():
    """What two ranks have if all is right, and with two of the mistakes: what differs is in colour."""
    axes = canvas(5, 3.4, across=40, down=27)
    columns = (
        (8.6, "right", ()),
        (19.4, "other images", ("images",)),
        (30.2, "other seeds", ("not sharded",)),
    )
    for left, title, differs in columns:
        axes.text(left + 4.6, 25.6, title, ha="center", weight="bold", size=10)
        for rank in (0, 1):
            top = 24 - 10.6 * rank
            for row, name in enumerate(("images", "not sharded", "up")):
                part = "same"
                if name == "up":
                    part = "same columns"
                if name in differs:
                    part = "own"
                draw_origin(axes, (left, top - 2.2 - 2.9 * row), (9.2, 2.1), rank, part)
    for rank in (0, 1):
        top = 24 - 10.6 * rank
        axes.text(0.2, top + 0.9, f"rank {rank}", va="center", weight="bold", size=9, color=INK_OF_RANK[rank])
        for row, name in enumerate(("images", "embedding,\nnorms, head", "up")):
            axes.text(8.2, top - 1.2 - 2.9 * row, name, ha="right", va="center", size=9)
    axes.text(20, 1.9, "grey: the ranks agree   colour: the ranks differ", ha="center", size=9)
    axes.text(20, 0.2, "empty: not on this rank", ha="center", size=9)
    picture(
        "What two ranks have. If all is right, both have the same images and the same embedding, norms and "
        "head, and each has its half of up. With other images, the images of the two ranks differ. With "
        "other seeds, their embedding, norms and head differ, but the halves of up belong together."
    )


def draw_origin(axes, corner, size, rank, part):
    """Grey if the ranks agree, or in the rank's colour if each rank has its own."""
    left, bottom = corner
    width, height = size
    fill = tile(GREY, 0.5)
    if part == "own":
        fill = tile(RANKS[rank], 0.7)
    if part == "same columns":
        left, width = left + rank * width / 2, width / 2
    axes.add_patch(plt.Rectangle((left, bottom), width, height, facecolor=fill, lw=0))
    axes.add_patch(plt.Rectangle(corner, *size, fill=False, edgecolor=GREY, lw=1))


def draw_heads():
    """The 32 columns of the query matrix: which of them make a head, and which rank holds it."""
    axes = canvas(4.4, 4.4, across=33.5, down=21)
    both, first, second = tile(GREY, 0.35), tile(RANKS[0], 0.55), tile(RANKS[1], 0.55)

    axes.text(0.4, 19.6, "one process: 4 heads of 8 columns", weight="bold", size=10)
    for head in range(4):
        draw_head(axes, 0.4 + 8 * head, 16, 8, f"head {head}", both)

    axes.text(0.4, 12.6, "two processes, right: the same 4 heads", weight="bold", size=10)
    for head in range(2):
        draw_head(axes, 0.4 + 8 * head, 9, 8, f"head {head}", first)
        draw_head(axes, 16.9 + 8 * head, 9, 8, f"head {head + 2}", second)
    axes.text(8.4, 7.9, "rank 0", ha="center", va="center", size=9)
    axes.text(24.9, 7.9, "rank 1", ha="center", va="center", size=9)

    axes.text(0.4, 4.8, "mistake: 4 heads on each, of 4 columns", weight="bold", size=10)
    for head in range(4):
        draw_head(axes, 0.4 + 4 * head, 1.2, 4, str(head), first)
        draw_head(axes, 16.9 + 4 * head, 1.2, 4, str(head), second)
    axes.text(8.4, 0.2, "rank 0", ha="center", va="center", size=9)
    axes.text(24.9, 0.2, "rank 1", ha="center", va="center", size=9)
    picture(
        "The 32 columns of the query matrix, with a short line between two columns. On one process they are "
        "four heads of 8 columns. On two processes, rank 0 holds heads 0 and 1, and rank 1 holds heads 2 "
        "and 3, each still of 8 columns. With the mistake, each rank cuts its 16 columns into four heads of "
        "4 columns: eight small heads."
    )


def draw_head(axes, left, bottom, columns, name, colour):
    axes.add_patch(plt.Rectangle((left, bottom), columns, 2.6, facecolor=colour, edgecolor="none"))
    for column in range(1, columns):
        place = left + column
        axes.plot([place, place], [bottom, bottom + 0.5], color=GREY, lw=0.6)
    axes.add_patch(plt.Rectangle((left, bottom), columns, 2.6, fill=False, edgecolor=INK, lw=1.2))
    middle = left + columns / 2, bottom + 1.45
    axes.text(*middle, name, ha="center", va="center", color=DARK, size=9)


def draw_key_heads():
    """Two key heads on eight ranks: as ColwiseParallel shards them, and with four copies of each head."""
    axes = canvas(5, 2.9, across=40, down=23)
    colours = (tile(SKY, 0.8), tile(YELLOW, 0.8))

    axes.text(0.2, 21.6, "2 heads: each rank has a quarter of a head", weight="bold", size=10)
    for rank in range(8):
        left = 0.2 + 5 * rank
        head = rank // 4
        draw_key_shard(axes, left, 18, 1, colours[head])
        axes.text(left + 2.2, 15.8, f"rank {rank}", ha="center", va="center", size=9)

    axes.text(0.2, 11.6, "4 copies of each: each rank has a whole head", weight="bold", size=10)
    for rank in range(8):
        left = 0.2 + 5 * rank
        head = rank // 4
        draw_key_shard(axes, left, 5, 4, colours[head])
        axes.text(left + 2.2, 3.8, f"rank {rank}", ha="center", va="center", size=9)
    for head, left in ((0, 6), (1, 22)):
        axes.add_patch(plt.Rectangle((left, 0.2), 1.4, 1.4, facecolor=colours[head], edgecolor=GREY))
        axes.text(left + 2, 0.9, f"key/value head {head}", va="center", size=9)
    picture(
        "Two key heads on eight ranks. Without copies, ranks 0 to 3 each have a quarter of head 0, and ranks "
        "4 to 7 a quarter of head 1. With four copies of each head, ranks 0 to 3 each have the whole head 0 "
        "and ranks 4 to 7 the whole head 1."
    )


def draw_key_shard(axes, left, bottom, quarters, colour):
    """A quarter of a head's rows is a box."""
    for quarter in range(quarters):
        corner = left, bottom + 1.4 * quarter
        axes.add_patch(plt.Rectangle(corner, 4.4, 1.4, facecolor=colour, edgecolor=GREY, lw=0.8))
