"""Notebook 01: one process and its device, what .grad holds in a step, and where the time of a step goes."""

import matplotlib.pyplot as plt

from show.pictures import BLUE, DARK, GREEN, GREY, INK, RED, SKY, YELLOW, arrow, box, canvas, picture, tile
from show.rank_inks import RED_INK


def draw_one_process(parameters):
    """Who does what in lesson 01."""
    axes = canvas(3.8, 4.7, across=10, down=12.4)
    box(axes, 0.2, 10.3, 9.6, 1.9, "images", "12,000 to train on, 2,000 to test on", GREY)
    arrow(axes, (5, 10.2), (5, 9.0), "120 at a time", at=(1.9, -0.25))
    axes.add_patch(plt.Rectangle((0.2, 3.5), 9.6, 5.4, fill=False, edgecolor=BLUE, lw=1.5))
    axes.text(5, 8.35, "process 0", ha="center", va="center", weight="bold")
    box(axes, 0.6, 3.8, 8.8, 4.0, "device: GPU 0, or the CPU", " ", SKY)
    held = (
        f"model: {parameters:,} parameters",
        "gradients: one for each parameter",
        "optimizer: momentum of each parameter",
    )
    for number, words in enumerate(held):
        bottom = 6.0 - 1.0 * number
        axes.add_patch(plt.Rectangle((0.9, bottom), 8.2, 0.85, facecolor=tile(SKY, 0.5), edgecolor=SKY))
        axes.text(5, bottom + 0.4, words, ha="center", va="center", size=9, color=DARK)
    arrow(axes, (5, 3.4), (5, 2.5), "writes", at=(1.2, -0.25))
    box(axes, 0.2, 0.2, 9.6, 2.2, "files", "a line for each epoch (.jsonl)\nthe weights (.pt)", GREEN)
    picture(
        "14,000 images go into one process, 120 at a time. The process has one device, with three things of "
        f"the same size: the model of {parameters:,} parameters, its gradients and the optimizer's momentum. "
        "It writes two files, which are outside the process: the curve and the weights."
    )


def draw_batches(images, epochs, size):
    """From the images to the batches: {epoch: (the sampler's order, the loader's batches)}."""
    axes = canvas(4.8, 4.1, across=12.6, down=4.6 * len(epochs) + 2.4)
    top = 4.6 * len(epochs) + 1.9
    axes.text(0, top, f"{images} images", weight="bold", size=10, va="center")
    for place in range(images):
        draw_number(axes, place, top - 1.4, place, GREY)

    said = []
    for number, (epoch, (order, batches)) in enumerate(epochs.items()):
        top = 4.6 * (len(epochs) - number) - 0.8
        axes.text(0, top, f"epoch {epoch}: the sampler's order", weight="bold", size=10, va="center")
        for place, image in enumerate(order):
            draw_number(axes, place, top - 1.4, image, GREY)

        axes.text(0, top - 2.1, f"the loader's batches of {size}", weight="bold", size=10, va="center")
        for batch, numbers in enumerate(batches):
            for place, image in enumerate(numbers):
                draw_number(axes, (size + 0.5) * batch + place, top - 3.5, image, SKY)
        dropped = order[size * len(batches) :]
        for place, image in enumerate(dropped):
            left = (size + 0.5) * len(batches) + place
            draw_number(axes, left, top - 3.5, image, None)
            axes.text(left + 1.1, top - 3.05, "dropped", va="center", size=9.5)
        said.append(
            f"In epoch {epoch}, the order is {order}, the batches are {batches}, and {dropped} is dropped"
        )
    picture(f"{images} images, in the order of their numbers. {'. '.join(said)}.")


def draw_number(axes, left, bottom, number, colour):
    """An image, with its number. Without a colour it is dropped."""
    looks = {"facecolor": "none", "edgecolor": INK, "ls": ":"}
    if colour:
        looks = {"facecolor": tile(colour, 0.4), "edgecolor": colour}
    axes.add_patch(plt.Rectangle((left + 0.04, bottom), 0.9, 0.95, lw=1, **looks))
    ink = DARK if colour else INK
    axes.text(left + 0.49, bottom + 0.45, number, ha="center", va="center", size=10, color=ink)


def draw_cell(axes, left, bottom, words, colour):
    """A place in memory, with what it holds. Without a colour it is empty."""
    looks = {"facecolor": "none", "edgecolor": INK, "ls": ":"}
    if colour:
        looks = {"facecolor": tile(colour, 0.5), "edgecolor": colour}
    axes.add_patch(plt.Rectangle((left, bottom), 3.4, 1.3, lw=1.5, **looks))
    ink = DARK if colour else INK
    axes.text(left + 1.7, bottom + 0.62, words, ha="center", va="center", size=10.5, color=ink)


def draw_grad():
    """A weight and its .grad after each line of a step, and in the next step with and without zero_grad."""
    axes = canvas(5, 4.9, across=16, down=14.2)
    moments = (
        (11.2, "optimizer.zero_grad()", "w", "empty", None),
        (9.2, "loss.backward()", "w", "g", YELLOW),
        (7.2, "optimizer.step()", "w moves", "g", YELLOW),
        (3.8, "zero_grad(), backward()", "w", "new g", YELLOW),
        (1.4, "backward() alone", "w", "g + new g", RED),
    )
    axes.text(9.5, 13.4, "weight", weight="bold", ha="center", size=10.5)
    axes.text(14.0, 13.4, ".grad", weight="bold", ha="center", size=10.5)
    axes.text(0, 13.4, "a step", weight="bold", size=10.5)
    axes.text(0, 6.0, "the next step", weight="bold", size=10.5)
    for bottom, line, weight, gradient, colour in moments:
        wrong = colour == RED
        axes.text(
            0, bottom + 0.62, line, va="center", size=10, family="monospace", color=RED_INK if wrong else INK
        )
        draw_cell(axes, 7.8, bottom, weight, SKY)
        draw_cell(axes, 12.3, bottom, gradient, colour)
    arrow(axes, (12.25, 7.85), (11.25, 7.85))
    axes.text(14.0, 0.6, "added to the old one", ha="center", size=9.5, color=RED_INK)
    picture(
        "A weight and its .grad after each line of a step. zero_grad() empties .grad, backward() writes the "
        "gradient g into it, and step() moves the weight by it and leaves g where it is. In the next step, "
        "zero_grad() and backward() leave the new gradient; backward() alone leaves the sum of both."
    )


def draw_parts(seconds, steps, device):
    """Where the time of a step goes: {part: the seconds that it took in all steps}."""
    whole = sum(seconds.values())
    figure, axes = plt.subplots(figsize=(4, 2.4))
    said = []
    for row, (part, of_part) in enumerate(seconds.items()):
        spent = 1000 * of_part / steps
        colour = GREY if part == "update" else SKY
        axes.barh(row, spent, color=colour)
        axes.text(spent, row, f" {spent:.1f} ms, {of_part / whole:.1%}", va="center")
        said.append(f"{part} {spent:.1f} ms")
    axes.set_yticks(range(len(seconds)), seconds)
    axes.invert_yaxis()
    longest = 1000 * max(seconds.values()) / steps
    axes.set(xlabel=f"milliseconds (mean of {steps} steps)", xlim=(0, 1.45 * longest))
    handles = [plt.Rectangle((0, 0), 1, 1, color=SKY), plt.Rectangle((0, 0), 1, 1, color=GREY)]
    names = ["processes can share it", "each does it all"]
    figure.legend(handles, names, loc="outside upper center", ncols=2, handlelength=1, columnspacing=1)
    picture(
        f"Where the time of a step goes on the {device}: {', '.join(said)}. Several processes can share "
        "forward and backward; each process performs the whole update."
    )
