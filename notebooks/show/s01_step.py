"""Notebook 01: one process and its device, what a step changes in memory, and where its time goes."""

import matplotlib.pyplot as plt

from show.pictures import BLUE, DARK, GREEN, GREY, INK, RED, SKY, YELLOW, arrow, box, canvas, picture, tile
from show.rank_inks import GREEN_INK, RED_INK


def draw_one_process(parameters):
    """Who does what in lesson 01."""
    axes = canvas(3.8, 5.2, across=10, down=13.6)
    axes.add_patch(plt.Rectangle((0.2, 3.4), 9.6, 10.0, fill=False, edgecolor=BLUE, lw=1.5))
    axes.text(5, 12.85, "process 0", ha="center", va="center", weight="bold")
    box(axes, 0.6, 10.5, 8.8, 1.7, "sampler and loader, on the CPU", "pick 120 images for each step", GREY)
    arrow(axes, (5, 10.4), (5, 9.3))
    box(axes, 0.6, 3.7, 8.8, 5.5, "device: GPU 0, or the CPU", " ", SKY)
    held = (
        (7.35, GREY, "images: 12,000 to train on, 2,000 to test on"),
        (5.5, SKY, f"model: {parameters:,} parameters"),
        (4.7, SKY, "gradients: one for each parameter"),
        (3.9, SKY, "optimizer: momentum of each parameter"),
    )
    for bottom, colour, words in held:
        looks = {"facecolor": tile(colour, 0.5), "edgecolor": colour}
        axes.add_patch(plt.Rectangle((0.8, bottom), 8.4, 0.75, **looks))
        axes.text(5, bottom + 0.35, words, ha="center", va="center", size=9, color=DARK)
    arrow(axes, (5, 7.35), (5, 6.25))
    axes.text(5.4, 6.82, "a batch of 120", va="center", size=9)
    arrow(axes, (5, 3.3), (5, 2.4), "writes", at=(1.2, -0.25))
    box(axes, 0.2, 0.2, 9.6, 2.1, "files", "a line for each epoch (.jsonl)\nthe weights (.pt)", GREEN)
    picture(
        "One process. Its sampler and loader, on the CPU, pick 120 images for each step. Its device holds "
        f"14,000 images, of which a batch of 120 goes to the model, and three things of the same size: the "
        f"model of {parameters:,} parameters, its gradients and the optimizer's momentum. The process writes "
        "two files, which are outside the process: the curve and the weights."
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


def draw_cell(axes, left, bottom, number, colour):
    """A number in memory. Without a colour the line has not written it; without a number there is none."""
    looks = {"facecolor": "none", "edgecolor": INK, "ls": "-" if number is not None else ":"}
    if colour:
        looks = {"facecolor": tile(colour, 0.5), "edgecolor": colour}
    axes.add_patch(plt.Rectangle((left, bottom), 2.5, 1.2, lw=1.3, **looks))
    words = "none" if number is None else f"{number:.2f}"
    ink = DARK if colour else INK
    axes.text(left + 1.25, bottom + 0.56, words, ha="center", va="center", size=10.5, color=ink)


def draw_memory(moments):
    """What is in memory after each line of a step, and of a second step that forgets zero_grad():
    (the line, the numbers of the loss, the weight, .grad and the momentum) for each."""
    axes = canvas(5, 5.8, across=16, down=17.4)
    names = ("loss", "weight", ".grad", "momentum")
    lefts = (4.9, 7.7, 10.5, 13.3)
    for name, left in zip(names, lefts, strict=True):
        axes.text(left + 1.25, 16.7, name, weight="bold", ha="center", va="center", size=10)
    axes.text(0, 15.4, "step 1", weight="bold", va="center", size=10.5)
    axes.text(0, 7.2, "step 2, without zero_grad()", weight="bold", va="center", size=10.5, color=RED_INK)

    before = (None, moments[0][1][1], None, None)
    said = []
    bottoms = (13.7, 12.1, 10.5, 8.9, 5.4, 3.8, 1.4)
    for (line, numbers), bottom in zip(moments, bottoms, strict=True):
        axes.text(0, bottom + 0.56, line, va="center", size=10, family="monospace")
        for name, left, number, old in zip(names, lefts, numbers, before, strict=True):
            colour = None
            if number != old:
                colour = RED if bottom < 5 else SKY
                said.append(f"{line} makes {name} {number:.2f}")
            draw_cell(axes, left, bottom, number, colour)
        before = numbers
    old = moments[2][1][2]
    words = f"{old:.2f} old + {before[2] - old:.2f} new"
    axes.text(lefts[2] + 1.25, 3.15, words, ha="center", va="center", size=9.5, color=RED_INK)
    for left, colour, meaning in ((0, SKY, "written by this line"), (7.7, RED, "written, and wrong")):
        axes.add_patch(plt.Rectangle((left, 0.1), 0.9, 0.7, facecolor=tile(colour, 0.5), edgecolor=colour))
        axes.text(left + 1.2, 0.43, meaning, va="center", size=9.5)
    picture(
        f"What is in memory after each line of a step: {'; '.join(said)}. The last three lines are of a "
        f"second step without zero_grad(): its gradient is added to the old one, {words}, so step() makes a "
        "wrong momentum and a wrong weight."
    )


WORK = {"forward": SKY, "backward": YELLOW, "update": GREY}


def draw_work(axes, row, parts):
    """(begin, end, part) for each piece of work in a row. What is not work is waiting."""
    for begin, end, part in parts:
        looks = {"facecolor": "none", "edgecolor": INK, "hatch": "....", "lw": 0.8}
        if part in WORK:
            looks = {"facecolor": tile(WORK[part], 0.6), "edgecolor": WORK[part]}
        axes.add_patch(plt.Rectangle((begin, row), end - begin, 0.7, **looks))


def draw_queue():
    """Python and the GPU in one step: with the clock read at once, and read after the GPU has finished."""
    figure, (at_once, waiting) = plt.subplots(2, 1, figsize=(4.8, 4.2))
    lengths = {"forward": 2.2, "backward": 3.4, "update": 0.7}
    launch = 0.5

    at_once.set_title("the clock is read at once", pad=10)
    begin, on_gpu = 0, 0.3
    for part, length in lengths.items():
        draw_work(at_once, 1, [(begin, begin + launch, part)])
        draw_work(at_once, 0, [(on_gpu, on_gpu + length, part)])
        begin += launch
        on_gpu += length
        at_once.plot(begin, 1.88, "v", color=RED, ms=6)
    draw_work(at_once, 1, [(begin, on_gpu, "waits")])
    ground = {"facecolor": tile(GREY, 0.2), "edgecolor": "none", "pad": 2}
    middle = (begin + on_gpu) / 2
    words = "a later line waits"
    at_once.text(middle, 1.35, words, ha="center", va="center", size=9.5, color=DARK, bbox=ground)

    waiting.set_title("book waits for the GPU first", pad=10)
    begin = 0
    for part, length in lengths.items():
        end = begin + 0.3 + length
        draw_work(waiting, 1, [(begin, begin + launch, part), (begin + launch, end, "waits")])
        draw_work(waiting, 0, [(begin + 0.3, end, part)])
        waiting.plot(end, 1.88, "v", color=RED, ms=6)
        begin = end

    for axes in (at_once, waiting):
        axes.set(xlim=(-0.05, begin + 0.2), ylim=(-0.1, 2.05), xticks=[])
        axes.set_yticks([0.35, 1.35], ["GPU", "Python"])
        axes.tick_params(axis="y", length=0)
        axes.spines["left"].set_visible(False)
    waiting.set_xlabel("time (drawn, not measured)")
    handles = []
    for colour in WORK.values():
        handles.append(plt.Rectangle((0, 0), 1, 1, facecolor=tile(colour, 0.6), edgecolor=colour))
    handles.append(plt.Rectangle((0, 0), 1, 1, facecolor="none", edgecolor=INK, hatch="...."))
    handles.append(plt.Line2D([], [], marker="v", color=RED, ls="", ms=6))
    names = [*WORK, "waits", "reads the clock"]
    figure.legend(handles, names, loc="outside upper center", ncols=3, handlelength=1, columnspacing=1)
    picture(
        "Python and the GPU during one step. Above, Python reads the clock at once: it has only put the work "
        "into the queue, the three times are all short, and a later line waits for the whole work. Below, "
        "book waits for the GPU before each reading, so each time is as long as the GPU's work."
    )


def draw_history(kept, detached, losses=5):
    """What the sum of some losses refers to, and how many operations it keeps: without and with detach()."""
    axes = canvas(4.8, 4.7, across=15, down=15.2)
    cases = (
        (8.0, "attached", "loss", kept, RED, RED_INK),
        (0.2, "detached", "loss.detach()", detached, None, GREEN_INK),
    )
    for bottom, name, added, count, colour, ink in cases:
        axes.text(0, bottom + 6.4, f"{name} += {added}", family="monospace", size=10, va="center")
        box(axes, 0.1, bottom + 4.3, 14.8, 1.3, f"{name} keeps {count} operations", colour=SKY, size=10)
        for number in range(losses):
            left = 0.15 + 2.99 * number
            looks = {"facecolor": "none", "edgecolor": INK, "ls": ":"}
            words = "freed"
            if colour:
                looks = {"facecolor": tile(colour, 0.4), "edgecolor": colour}
                words = f"graph of\nloss {number + 1}"
                arrow(axes, (left + 1.37, bottom + 4.2), (left + 1.37, bottom + 2.5), colour=colour)
            axes.add_patch(plt.Rectangle((left, bottom), 2.75, 2.4, lw=1.3, **looks))
            dark = DARK if colour else INK
            axes.text(left + 1.37, bottom + 1.15, words, ha="center", va="center", size=9.5, color=dark)
        if not colour:
            words = "takes the number, without a link to the graph"
            axes.text(7.5, bottom + 3.35, words, ha="center", va="center", size=9.5, color=ink)
    picture(
        f"What the sum of {losses} losses refers to. Without detach(), it leads to the graphs of all "
        f"{losses} losses and keeps {kept} operations. With detach(), it takes only the numbers, keeps "
        f"{detached} operations, and every graph is freed."
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
