"""Notebook 06a: what a crash repeats, what a snapshot gathers, and in which order a sum is added."""

import matplotlib.pyplot as plt

from show.left_out import differing
from show.pictures import (
    BLUE,
    DARK,
    GREEN,
    GREY,
    INK,
    RANKS,
    RED,
    SKY,
    YELLOW,
    arrow,
    box,
    canvas,
    picture,
    tile,
)
from show.rank_inks import GREEN_INK, INK_OF_RANK, RED_INK


def wait_for(running):
    """Wait until a command ends, and print only its lines about epochs, without torchrun's report."""
    running.reader.join(120)
    running.end()
    for line in running.text.splitlines():
        if line.startswith("epoch"):
            print(line)


def snapshots_before(killed_after, steps, every):
    """The steps of the run after which there was a snapshot. The lesson counts from the epoch's begin, so
    an epoch ends without a snapshot if its number of steps is no multiple of `every`."""
    saved = []
    for step in range(1, killed_after):
        step_of_epoch = (step - 1) % steps + 1
        if step_of_epoch % every == 0:
            saved.append(step)
    return saved


def draw_bar(axes, bottom, first, last, colour, hatch=None):
    """A bar from the beginning of step `first` to the end of step `last`."""
    axes.add_patch(
        plt.Rectangle(
            (first - 1, bottom),
            last - first + 1,
            0.8,
            facecolor=tile(colour, 0.55),
            edgecolor="white",
            hatch=hatch,
            lw=0,
        )
    )


def draw_words(axes, bottom, first, last, words, **looks):
    middle = (first - 1 + last) / 2
    axes.text(middle, bottom + 0.4, words, ha="center", va="center", size=10, **looks)


def draw_repeated(steps, every, killed_after):
    """A crash in lessons 05 and 06a. Each has two rows: until the kill, and after the restart."""
    axes = plt.subplots(figsize=(5, 4.3))[1]
    end = killed_after + steps
    said = []
    for lesson, bottom, saving in (("lesson 05", 3.9, steps), ("lesson 06a", 0, every)):
        saved = snapshots_before(killed_after, steps, saving)
        kept = saved[-1]
        repeated = killed_after - kept
        axes.text(0, bottom + 2.75, lesson, weight="bold", size=10.5)
        for epoch_end in range(steps, end, steps):
            height = (bottom, bottom + 2.3)  # higher, it would cross the legend
            axes.plot((epoch_end, epoch_end), height, color=GREY, lw=0.8, ls=":", zorder=0)

        above = bottom + 1.4
        draw_bar(axes, above, 1, kept, SKY)
        draw_words(axes, above, 1, kept, f"{kept} in the snapshot", color=DARK)
        draw_bar(axes, above, kept + 1, killed_after, RED, "//")
        axes.plot(saved, [above + 0.95] * len(saved), "v", color=GREEN, ms=7)
        axes.plot(killed_after, above + 0.4, "x", color=RED, ms=10, mew=3)
        words = f"{repeated} lost"
        axes.text(killed_after + 3, above + 0.4, words, va="center", size=10, color=RED_INK)

        skipped = kept % steps
        if skipped:
            box = (kept - skipped, bottom), skipped, 0.8
            axes.add_patch(plt.Rectangle(*box, facecolor="none", edgecolor=INK, ls=":", lw=1.2))
            draw_words(axes, bottom, kept - skipped + 1, kept, f"{skipped} skipped")
        draw_bar(axes, bottom, kept + 1, killed_after, RED)
        draw_words(axes, bottom, kept + 1, killed_after, repeated, color=DARK)
        draw_words(axes, bottom - 0.7, kept + 1, killed_after, "repeated", color=RED_INK)
        draw_bar(axes, bottom, killed_after + 1, end, SKY)
        draw_words(axes, bottom, killed_after + 1, end, "new", color=DARK)
        said.append(
            f"{lesson} has snapshots after steps {', '.join(map(str, saved))}. It has saved {kept} steps and "
            f"repeats {repeated}"
            + (f", after skipping the {skipped} finished steps of the epoch" if skipped else "")
        )
    axes.set(xlim=(-1, end + 1), ylim=(-0.7, 7.2), xlabel="step of the run")
    axes.set_yticks([0.4, 1.8, 4.3, 5.7], ["after the\nrestart", "before\nthe kill"] * 2)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    handles = [
        plt.Line2D([], [], marker="v", color=GREEN, ls="", ms=7),
        plt.Line2D([], [], marker="x", color=RED, ls="", ms=9, mew=3),
    ]
    axes.legend(handles, ["snapshot", "kill"], loc="upper right", ncols=2, bbox_to_anchor=(1.02, 1.03))
    picture(
        f"A kill after step {killed_after} of the run, with {steps} steps in an epoch. {'; '.join(said)}. "
        "Steps that are lost are trained again; skipped steps are only loaded."
    )


def draw_duties():
    """Where the parts of a snapshot come from: what is the same in both ranks, and what each has alone."""
    axes = canvas(5, 5.6, across=16, down=16.6)
    kinds = ("random state", "sum of losses")
    for rank in (0, 1):
        left = 0.4 + 7.8 * rank
        middle = left + 3.7
        axes.text(middle, 16.0, f"rank {rank}", ha="center", weight="bold", color=INK_OF_RANK[rank])
        draw_part(axes, left, 14.0, 7.4, "model, optimizer, scheduler", GREY)
        for number, kind in enumerate(kinds):
            draw_part(axes, left, 12.4 - 1.6 * number, 7.4, kind, RANKS[rank])
            draw_part(axes, left, 2.0 - 1.6 * number, 7.4, kind, RANKS[rank])
        arrow(axes, (middle, 10.7), (middle, 9.6))
    box(axes, 0.1, 8.2, 15.8, 1.3, "all_gather_object", colour=RED)
    arrow(axes, (4.1, 8.1), (4.1, 7.0), colour=RANKS[0])
    words = "rank 0 adds the grey parts, and writes"
    axes.text(4.6, 7.55, words, va="center", size=9.5, color=INK_OF_RANK[0])
    axes.add_patch(plt.Rectangle((0.1, 0.1), 15.8, 6.8, facecolor="none", edgecolor=GREEN, lw=1.5))
    axes.text(8, 6.25, "snapshot", ha="center", va="center", weight="bold", color=GREEN_INK)
    draw_part(axes, 0.4, 3.95, 7.4, "model, optimizer, scheduler", GREY)
    draw_part(axes, 8.2, 3.95, 7.4, "epoch, step", GREY)
    picture(
        "What a snapshot gathers from two ranks. The model, the optimizer and the scheduler are the same in "
        "both. Each rank has its own random state and its own sum of losses. all_gather_object brings these "
        "together, and rank 0 writes them into the snapshot, with the model, the optimizer, the scheduler, "
        "the epoch and the step."
    )


def draw_part(axes, left, bottom, width, words, colour, height=1.35):
    """A filled box with words: what a rank has, or a part of a snapshot."""
    looks = {"facecolor": tile(colour, 0.45), "edgecolor": colour, "lw": 1}
    axes.add_patch(plt.Rectangle((left, bottom), width, height, **looks))
    middle = left + width / 2, bottom + height / 2 - 0.03
    axes.text(*middle, words, ha="center", va="center", size=9.5, color=DARK)


def draw_skipping(steps=16, done=6):
    """The resumed epoch, with the right and the wrong moment for restoring the random state."""
    axes = canvas(5, 4.1, across=steps + 0.4, down=10.6)
    axes.set_xlim(-0.3, steps + 0.1)
    cases = (
        (6.6, done, "restored after skipping", "the saved state"),
        (1.2, 0, "restored before skipping", "a later state"),
    )
    for bottom, restored_at, title, state in cases:
        right = restored_at == done
        axes.text(0, bottom + 3.4, title, weight="bold", size=10.5, color=GREEN_INK if right else RED_INK)
        for step in range(1, steps + 1):
            corner = (step - 0.92, bottom)
            if step <= done:
                patch = plt.Rectangle(corner, 0.84, 1.2, facecolor="none", edgecolor=INK, ls=":")
            else:
                colour = SKY if right else RED
                patch = plt.Rectangle(corner, 0.84, 1.2, facecolor=tile(colour, 0.55), lw=0)
            axes.add_patch(patch)
            ink = INK if step <= done else DARK
            axes.text(step - 0.5, bottom + 0.58, step, ha="center", va="center", size=9, color=ink)
        x = restored_at + 0.02
        arrow(axes, (x, bottom + 2.6), (x, bottom + 1.2), colour=GREEN)
        axes.text(x + 0.3, bottom + 2.2, "restore", size=9.5, color=GREEN_INK, va="center")
        words = "skipped: the\nloader draws"
        axes.text(done / 2, bottom - 0.75, words, size=9.5, ha="center", va="center")
        words = f"trained: dropout draws\nfrom {state}"
        axes.text((done + steps) / 2, bottom - 0.75, words, size=9.5, ha="center", va="center")
    picture(
        f"An epoch of {steps} steps is resumed after step {done}. Batches 1 to {done} are loaded and "
        "dropped, for which the loader uses up random numbers. If the random state is restored after that, "
        "dropout draws from the saved state, as in the uninterrupted run. If it is restored before, dropout "
        "draws from a later state, and the run is a different one."
    )


def draw_differences(runs, next_epoch_after):
    """How far the weights of each resumed run are from the uninterrupted run: {left out: after each step}."""
    axes = plt.subplots(figsize=(5, 3.5))[1]
    looks = {
        "scheduler": (RED, RED_INK, "-"),
        "random states": (BLUE, INK_OF_RANK[0], "--"),
        "settle": (GREEN, GREEN_INK, "-."),
    }
    said = []
    for name, distances in runs.items():
        steps, far = differing(distances)
        colour, ink, style = looks[name]
        axes.plot(steps, far, style, color=colour, lw=2.5)
        axes.plot(steps[0], far[0], "o", color=colour, ms=6)
        place, side = (26, max(far) * 3), "right"
        if name == "random states":
            place, side = (1, far[0] * 0.1), "left"
        axes.text(*place, name, color=ink, ha=side, va="center", weight="bold")
        said.append(f"without {name}, from step {steps[0]} on, by up to {max(far):.1g}")
    axes.axvline(next_epoch_after + 0.5, color=GREY, lw=1, ls=":")
    place = axes.get_xaxis_transform()  # steps across, and parts of the height
    axes.text(next_epoch_after + 0.8, 0.36, "epoch 3", size=9.5, transform=place)
    axes.set(yscale="log", ylim=(1e-10, 1), xlabel="steps since the snapshot")
    axes.set_title("What was left out")
    axes.set_ylabel("largest difference of a weight")
    axes.set_yticks([1e-9, 1e-6, 1e-3])
    axes.minorticks_off()
    picture(
        "How far the weights of a resumed run are from the weights of an uninterrupted run, after each step: "
        f"{'; '.join(said)}. The curves are drawn from the first difference on."
    )


def draw_order(names="abc"):
    """Three processes add up a bucket of three gradients: the place decides with whose value a sum begins."""
    axes = canvas(5, 4.8, across=16, down=13.9)
    axes.set_xlim(-0.15, 16.15)  # or the outer edges of the first and the last box would be cut
    rows = {"first step: initial bucket": ["w1", "w2", "w3"], "from step 2 on: rebuilt": ["w3", "w2", "w1"]}
    for rank, name in enumerate(names):
        x = 0.9 + 5.5 * rank
        axes.plot(x, 13.1, "o", color=tile(RANKS[rank], 0.55), ms=20, mew=0)
        axes.text(x, 13.05, name, ha="center", va="center", size=10, color=DARK)
        axes.text(x + 0.9, 13.05, f"of rank {rank}", va="center", size=9.5, color=INK_OF_RANK[rank])
    sums = []
    for (title, bucket), bottom in zip(rows.items(), (6.6, 0.2), strict=True):
        axes.text(0, bottom + 5.2, title, weight="bold", size=10.5)
        for place, gradient in enumerate(bucket):
            left, marked = 5.5 * place, gradient == "w1"
            ground = tile(GREY, 0.4) if marked else "none"
            axes.add_patch(
                plt.Rectangle((left, bottom + 3), 5, 1.5, facecolor=ground, edgecolor=GREY, lw=1.5)
            )
            looks = {"color": DARK, "weight": "bold"} if marked else {}
            axes.text(
                left + 2.5,
                bottom + 3.75,
                f"gradient of {gradient}",
                ha="center",
                va="center",
                size=9.5,
                **looks,
            )
            order = names[place:] + names[:place]
            for turn, name in enumerate(order):
                x = left + 0.9 + 1.6 * turn
                rank = names.index(name)
                axes.plot(x, bottom + 1.2, "o", color=tile(RANKS[rank], 0.55), ms=25, mew=0)
                axes.text(x, bottom + 1.15, name, ha="center", va="center", size=10, color=DARK)
                if turn:
                    axes.text(x - 0.8, bottom + 1.15, "+", ha="center", va="center", size=10)
            if marked:
                sums.append("({} + {}) + {}".format(*order))
    picture(
        "A bucket of three gradients on three processes, whose values are a, b and c. The place in the "
        f"bucket decides with whose value the sum begins. In the first step, the gradient of w1 has the "
        f"first place: {sums[0]}. In the rebuilt bucket it has the last place: {sums[1]}."
    )


BUCKETS = {"initial buckets": YELLOW, "rebuilt buckets": SKY}


def draw_passes(axes, bottom, places, settled):
    """The passes of a process from its start: {place: the step}. Its first one uses the initial buckets."""
    is_first = True
    for place, step in places.items():
        is_settle = step == "settle"
        if is_settle and not settled:
            continue
        colour = YELLOW if is_first else SKY
        is_first = False
        style = ":" if is_settle else "-"
        looks = {"facecolor": tile(colour, 0.5), "edgecolor": INK if is_settle else colour, "ls": style}
        left = 2.0 * place
        axes.add_patch(plt.Rectangle((left + 0.05, bottom), 1.8, 1.3, lw=1.3, **looks))
        axes.text(left + 0.95, bottom + 0.62, step, ha="center", va="center", size=9.5, color=DARK)


def draw_settling():
    """Which buckets each pass of a process uses: in an uninterrupted run, and in one resumed after step 3."""
    axes = canvas(5, 5.5, across=16, down=17.4)
    axes.set_xlim(-0.1, 16.1)
    for number, (name, colour) in enumerate(BUCKETS.items()):
        left = 0.05 + 6.4 * number
        axes.add_patch(plt.Rectangle((left, 16.4), 0.9, 0.8, facecolor=tile(colour, 0.5), edgecolor=colour))
        axes.text(left + 1.2, 16.8, name, va="center", size=9.5)
    uninterrupted = {0: "settle", 1: 1, 2: 2, 3: 3, 5: 4, 6: 5, 7: 6}
    resumed = {4: "settle", 5: 4, 6: 5, 7: 6}
    cases = ((8.4, "without settle", False, RED_INK), (0.2, "with settle", True, GREEN_INK))
    for bottom, title, settled, ink in cases:
        axes.text(0, bottom + 6.6, title, weight="bold", size=10.5, color=ink, va="center")
        axes.text(0, bottom + 5.5, "uninterrupted: steps 1 to 6", size=9.5, va="center")
        draw_passes(axes, bottom + 3.7, uninterrupted, settled)
        axes.text(0, bottom + 1.9, "new processes, resumed after step 3", size=9.5, va="center")
        draw_passes(axes, bottom + 0.1, resumed, settled)
        words = "step 4: the same buckets"
        if not settled:
            words = "step 4: other buckets"
        axes.text(16, bottom + 2.7, words, size=9.5, ha="right", va="center", color=ink)
    picture(
        "Which buckets each pass uses: the first pass of a new process uses the initial buckets, and the "
        "later ones use rebuilt buckets. Without settle, step 4 uses rebuilt buckets in the uninterrupted "
        "run and the initial ones after a restart. With settle, the first pass of each process is not a "
        "step, so step 4 uses rebuilt buckets in both runs."
    )


def draw_on_one(processes):
    """What a single process takes from a snapshot of two: {"random": state, "loss_sum": sum} of each rank."""
    axes = canvas(5, 4.0, across=16, down=12.4)
    sums = [float(own["loss_sum"]) for own in processes]
    mean = sum(sums) / len(sums)
    axes.add_patch(plt.Rectangle((0.1, 8.0), 15.8, 4.3, facecolor="none", edgecolor=GREEN, lw=1.5))
    axes.text(8, 11.6, "snapshot: processes", ha="center", va="center", weight="bold", color=GREEN_INK)
    for rank, loss_sum in enumerate(sums):
        draw_part(axes, 0.4 + 11.65 * rank, 8.4, 3.5, f"random state\nof rank {rank}", RANKS[rank], 2.4)
        draw_part(axes, 4.35 + 3.8 * rank, 8.4, 3.5, f"loss sum\n{loss_sum:.2f}", RANKS[rank], 2.4)
        arrow(axes, (6.1 + 3.8 * rank, 8.3), (8.0, 4.3))
    axes.text(9.4, 6.0, "mean", va="center", size=9.5)
    arrow(axes, (2.15, 8.3), (2.15, 4.3), colour=RANKS[0])
    axes.text(13.8, 7.2, "not used", ha="center", va="center", size=9.5, color=RED_INK)
    axes.add_patch(plt.Rectangle((0.1, 0.1), 15.8, 4.6, facecolor="none", edgecolor=RANKS[0], lw=1.5))
    draw_part(axes, 0.4, 1.8, 3.5, "random state\nof rank 0", RANKS[0], 2.4)
    draw_part(axes, 6.25, 1.8, 3.5, f"loss sum\n{mean:.2f}", RANKS[0], 2.4)
    axes.text(8, 0.85, "the single process", ha="center", va="center", weight="bold", color=INK_OF_RANK[0])
    picture(
        f"What a single process takes from a snapshot of {len(sums)} processes: the random state of rank 0, "
        f"and {mean:.2f}, the mean of the saved loss sums, which are "
        f"{' and '.join(f'{loss_sum:.2f}' for loss_sum in sums)}. The random state of rank 1 is not used."
    )


def draw_orders(steps=40, done=30):
    """Which batches, of which order, are trained before the kill and after each of three restarts."""
    axes = canvas(5, 5.1, across=steps, down=17.6)
    axes.set_xlim(-0.3, steps + 0.3)
    rows = (
        (14.4, "before the kill", 1, done, SKY, "order of epoch 2"),
        (10.0, "restart: epoch begins again", 1, steps, SKY, "order of epoch 2, from its first batch"),
        (5.6, "restart: no set_epoch", done + 1, steps, RED, "other order"),
        (1.2, "restart: the lesson", done + 1, steps, SKY, "the rest"),
    )
    for bottom, title, first, last, colour, words in rows:
        axes.text(0, bottom + 2.4, title, weight="bold", size=10, va="center")
        looks = {"facecolor": tile(colour, 0.5), "edgecolor": colour}
        axes.add_patch(plt.Rectangle((first - 1, bottom), last - first + 1, 1.6, lw=1.3, **looks))
        middle = (first - 1 + last) / 2
        axes.text(middle, bottom + 0.77, words, ha="center", va="center", size=9.5, color=DARK)
        if first > 1:
            skipped = plt.Rectangle((0, bottom), first - 1, 1.6, facecolor="none", edgecolor=INK, ls=":")
            axes.add_patch(skipped)
            words = "skipped, in the same order"
            if colour == RED:
                words = "skipped, in the other order"
            axes.text((first - 1) / 2, bottom + 0.77, words, ha="center", va="center", size=9.5)
    for x, words, side in ((0, "1", "left"), (done, f"{done}", "center"), (steps, f"{steps}", "right")):
        axes.text(x, 0.4, words, ha=side, va="center", size=9.5)
    axes.text(done / 2, 0.4, "batch of the epoch", ha="center", va="center", size=9.5)
    picture(
        f"An epoch of {steps} batches, of which {done} are trained before the kill, in the order of epoch 2. "
        f"If the epoch begins again, all {steps} follow. Without set_epoch, {done} batches of another order "
        "are skipped, and the rest of that order is trained. The lesson skips the batches that are done and "
        "trains the rest of the same order."
    )
