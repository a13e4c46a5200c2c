"""The pictures of notebook 16: which rank has which experts, what is sent, and which experts are busy."""

import math

import matplotlib.pyplot as plt
import numpy

from show.pictures import BLUE, DARK, GREY, INK, ORANGE, RANKS, RED, arrow, box, canvas, picture, tile
from show.rank_inks import INK_OF_RANK, RED_INK

# On two processes, experts 0 and 1 are on rank 0, and experts 2 and 3 on rank 1.
EXPERTS = [BLUE, tile(BLUE, 0.45), ORANGE, tile(ORANGE, 0.45)]


def draw_ways():
    """The layer on two processes: from the router to the experts and back."""
    axes = canvas(5, 4.4, 16, 13.2)
    for rank, left in enumerate((0.2, 9.2)):
        colour = RANKS[rank]
        box(axes, left, 10.4, 6.6, 2.3, f"rank {rank}", "its own texts", colour)
        box(axes, left, 6.7, 6.6, 2.1, "router", "which expert?", GREY)
        box(axes, left, 2.4, 6.6, 2.3, f"experts {2 * rank}, {2 * rank + 1}", "only here", colour)
        arrow(axes, (left + 3.3, 10.3), (left + 3.3, 8.9))
        arrow(axes, (left + 2.6 + 1.4 * rank, 6.6), (left + 2.6 + 1.4 * rank, 4.8), both=True)
    arrow(axes, (5.6, 6.6), (10.4, 4.8), colour=RED, both=True)
    arrow(axes, (10.4, 6.6), (5.6, 4.8), colour=RED, both=True)
    words = "dark orange: all-to-all, tokens there, outputs back"
    axes.text(8, 1.1, words, ha="center", size=9, color=RED_INK)
    axes.text(8, 0, "everything else is on both, as in lesson 04", ha="center", size=9)
    picture(
        "Rank 0 has its own texts, a router and experts 0 and 1. Rank 1 has its own texts, a router and "
        "experts 2 and 3. Dark orange arrows go from each router to the experts of the other rank, and back."
    )


def draw_router(scores, weights):
    """A token's way through the router: a score for each expert, a weight for each, and the chosen expert."""
    axes = canvas(5, 3.6, across=16, down=11.6)
    chosen = weights.argmax().item()
    axes.text(0.8, 9.7, "token", ha="center", size=10)
    axes.text(6.1, 9.7, "router", ha="center", size=10)
    axes.text(9.1, 9.7, "score", ha="center", size=10)
    axes.text(12.9, 9.7, "weight (softmax)", ha="center", size=10)
    for number in range(8):
        axes.add_patch(plt.Rectangle((0.5, 2.7 + 0.75 * number), 0.6, 0.7, facecolor=tile(GREY, 0.3), lw=0))
    said = []
    for expert, (score, weight) in enumerate(zip(scores.tolist(), weights.tolist(), strict=True)):
        bottom = 7.6 - 1.8 * expert
        looks = {"va": "center", "size": 10}
        if expert == chosen:
            looks["weight"] = "bold"
        for number in range(8):
            corner = 4.4 + 0.45 * number, bottom
            axes.add_patch(plt.Rectangle(corner, 0.4, 1.3, facecolor=tile(EXPERTS[expert], 0.7), lw=0))
        axes.text(1.7, bottom + 0.65, f"expert {expert}", **looks)
        axes.text(9.1, bottom + 0.65, f"{score:.1f}", ha="center", **looks)
        axes.add_patch(plt.Rectangle((10.4, bottom), 3.6 * weight, 1.3, color=EXPERTS[expert], lw=0))
        axes.text(10.6 + 3.6 * weight, bottom + 0.65, f"{weight:.2f}", **looks)
        said.append(f"expert {expert}: score {score:.1f}, weight {weight:.2f}")
    words = f"The token goes to expert {chosen}. Its output is multiplied by {weights[chosen]:.2f}."
    axes.text(8, 0.3, words, ha="center", size=10)
    picture(
        f"A token, the router with one row for each expert, and what comes out: {'; '.join(said)}. {words}"
    )


def draw_gradients():
    """Which gradients two processes add up, and which they do not."""
    axes = canvas(5, 4, across=16, down=12.8)
    rows = (
        (8.4, "attention, norms, embedding, head", ("the same weights", "the same weights"), True),
        (4.8, "router", ("the same weights", "the same weights"), True),
        (1.2, "experts", ("experts 0, 1", "experts 2, 3"), False),
    )
    for rank, left in enumerate((0, 11)):
        looks = {"ha": "center", "weight": "bold", "size": 10, "color": INK_OF_RANK[rank]}
        axes.text(left + 2.4, 12, f"rank {rank}", **looks)
    for bottom, name, held, is_summed in rows:
        axes.text(0, bottom + 2.4, name, va="center", size=9.5, weight="bold")
        for rank, left in enumerate((0.1, 11.1)):
            fill = tile(GREY, 0.25) if is_summed else tile(RANKS[rank], 0.45)
            axes.add_patch(plt.Rectangle((left, bottom), 4.8, 1.8, facecolor=fill, edgecolor=GREY, lw=0.8))
            middle = left + 2.4, bottom + 0.9
            axes.text(*middle, held[rank], ha="center", va="center", size=9.5, color=DARK)
        if is_summed:
            arrow(axes, (5, bottom + 0.9), (11, bottom + 0.9), colour=RED, both=True)
            axes.text(8, bottom + 1.2, "all-reduce (sum)", ha="center", size=9.5, color=RED_INK)
        else:
            axes.text(8, bottom + 0.9, "nothing to add", ha="center", va="center", size=9.5)
    axes.text(8, 0.1, "an expert's gradient has the tokens of both ranks", ha="center", size=9.5)
    picture(
        "Two ranks. Attention, norms, embedding, head and router are the same on both, and an all-reduce "
        "sums their gradients. Rank 0 has experts 0 and 1, rank 1 has experts 2 and 3. The gradients of an "
        "expert already include the tokens of both ranks, so nothing is added."
    )


LEFT_OF_RANK = (0.2, 8.9)  # where the tokens of rank 0 and of rank 1 begin in the next picture
WIDTH_OF_TOKEN = 0.74


def draw_route(chosen):
    """The tokens of two ranks in each step of the layer's forward pass. `chosen` has, for each rank, the
    expert of each of its tokens."""
    axes = canvas(5, 5.8, across=16, down=19)
    own = []
    ordered = []
    lists = []
    for rank, experts in enumerate(chosen):
        own.append([(rank, expert) for expert in experts])
        ordered.append(sorted(own[rank]))
        lists.append(f"rank {rank}'s tokens go to experts {', '.join(map(str, experts))}")
    arrived = [[], []]
    for rank, expert in ordered[0] + ordered[1]:  # sorted by rank, and for each rank by expert
        arrived[expert // 2].append((rank, expert))

    for rank, left in enumerate(LEFT_OF_RANK):
        words = f"rank {rank}: experts {2 * rank}, {2 * rank + 1}"
        axes.text(left, 18.3, words, weight="bold", size=10, color=INK_OF_RANK[rank])
    stages = (
        (16.2, "tokens in the order of the texts, with their experts' numbers", own),
        (13.0, "1  sorted by expert", ordered),
        (7.9, "2, 3  sent to the experts, which compute the outputs", arrived),
        (3.5, "4  the outputs are back, still sorted", ordered),
        (0.3, "5  in the order of the texts, times their weights", own),
    )
    for bottom, words, rows in stages:
        axes.text(0.2, bottom + 1.3, words, size=9)
        for left, row in zip(LEFT_OF_RANK, rows, strict=True):
            draw_tokens(axes, left, bottom, row)

    axes.text(6.75, 13.85, "2  counts", ha="center", va="center", size=9, color=RED_INK)
    arrow(axes, (4.75, 13.3), (8.75, 13.3), colour=RED, both=True)
    draw_all_to_all(axes, ordered, 12.95, arrived, 10.0)
    draw_all_to_all(axes, arrived, 7.85, ordered, 5.6)
    picture(
        f"A forward pass of the layer on two ranks: {'; '.join(lists)}. Each rank sorts its tokens, and the "
        "ranks exchange their counts. An all-to-all brings the tokens to the ranks of their experts, a "
        "second one brings the outputs back, and each rank puts its outputs into the order of its texts."
    )


def draw_all_to_all(axes, before, top, after, bottom):
    """An arrow for each group of tokens that go from a rank to a rank, red if these are two ranks."""
    for sender, sent in enumerate(before):
        for receiver, received in enumerate(after):
            group = [token for token in sent if token in received]
            if group:
                start = middle_of(group, sent, LEFT_OF_RANK[sender])
                end = middle_of(group, received, LEFT_OF_RANK[receiver])
                colour = GREY if sender == receiver else RED
                arrow(axes, (start, top), (end, bottom), colour=colour)
    middle = (top + bottom) / 2
    axes.text(6.2, middle + 0.95, "all-to-all", ha="center", va="center", size=9, color=RED_INK)


def middle_of(group, row, left):
    """Where the middle of a group of neighbours in a row of tokens is."""
    first = row.index(group[0])
    return left + WIDTH_OF_TOKEN * (first + len(group) / 2) - 0.03


def draw_tokens(axes, left, bottom, tokens):
    """A square for each token, in the colour of its own rank, with the number of its expert."""
    for place, (rank, expert) in enumerate(tokens):
        corner = left + WIDTH_OF_TOKEN * place, bottom
        axes.add_patch(plt.Rectangle(corner, 0.68, 1, facecolor=tile(RANKS[rank], 0.55), edgecolor=GREY))
        middle = corner[0] + 0.34, bottom + 0.48
        axes.text(*middle, str(expert), ha="center", va="center", color=DARK, size=9)


def draw_counts(counts):
    """A row for each sending rank, a column for each expert, and the sums for each receiving rank. Colours
    are those of the receivers."""
    axes = canvas(5, 2.7, across=16, down=8.6)
    most = max(map(max, counts))
    said = []
    for receiver, left in enumerate((2.9, 9.8)):
        words = f"to rank {receiver}"
        looks = {"ha": "center", "size": 10, "weight": "bold", "color": INK_OF_RANK[receiver]}
        axes.text(left + 3, 7.4, words, **looks)
        for number in (0, 1):
            words = f"expert {2 * receiver + number}"
            axes.text(left + 0.95 + 2.05 * number, 6, words, ha="center", size=9)
        axes.text(left + 5.1, 6, "sum", ha="center", size=9)
    for sender, line in enumerate(counts):
        bottom = 3 - 2.8 * sender
        looks = {"va": "center", "size": 10, "color": INK_OF_RANK[sender]}
        axes.text(0, bottom + 1.2, f"rank {sender}\nsends", **looks)
        for receiver, left in enumerate((2.9, 9.8)):
            parts = line[2 * receiver : 2 * receiver + 2]
            for number, count in enumerate(parts):
                fill = tile(RANKS[receiver], 0.12 + 0.5 * count / most)
                corner = left + 2.05 * number, bottom
                axes.add_patch(plt.Rectangle(corner, 1.9, 2.4, facecolor=fill, lw=0))
                middle = corner[0] + 0.95, bottom + 1.2
                axes.text(*middle, count, ha="center", va="center", color=DARK, size=10)
            looks = {"ha": "center", "va": "center", "weight": "bold", "size": 10}
            axes.text(left + 5.1, bottom + 1.2, sum(parts), **looks)
            said.append(f"rank {sender} sends {' and '.join(map(str, parts))} to rank {receiver}")
    picture(f"How many tokens each rank has for each expert, and for each rank: {'; '.join(said)}.")


def draw_bytes(counted, whole):
    """Bytes that leave a process in a step: by the formula (hollow), and counted by the kernel (filled)."""
    axes = plt.figure(figsize=(4.6, 3.6)).add_subplot()
    sizes = (1, 2, 4, 8)
    for per_token, colour, ink, mark, words in (
        (2, RED, RED_INK, "s", "two experts per token"),
        (1, INK, INK, "o", "one expert per token"),
    ):
        formula = [per_token * whole * (n - 1) / n**2 / 1e6 for n in sizes]
        axes.plot(sizes, formula, marker=mark, color=colour, mfc="none", ms=12, ls=":", lw=1)
        for (n, each), sent in counted.items():
            if each == per_token:
                axes.plot(n, sent / 1e6, mark, color=colour, ms=5)
        axes.text(4.3, formula[2] + 0.12, words, color=ink)
    axes.set_xticks(sizes)
    axes.set(xlabel="processes (8: with eight experts)", ylabel="MB that leave each process")
    axes.set_ylim(-0.2, 3.2)
    handles = [
        axes.plot([], [], "o:", color=GREY, mfc="none", ms=12, lw=1)[0],
        axes.plot([], [], "o", color=GREY, ms=5)[0],
    ]
    axes.figure.legend(
        handles, ["by the formula, even share", "counted"], loc="outside lower center", ncols=2
    )
    picture(
        "MB that leave the average process in a step. By the formula for an even share it is none on one "
        "process, most on two, and less on four and eight. Two experts per token double it. The counted "
        "bytes, on two and four processes, lie inside the marks of the formula."
    )


def draw_loads(runs, block):
    """The share of the tokens that each expert gets, step by step, one panel for each run. Blocks are
    counted from 1."""
    figure, panels = plt.subplots(len(runs), figsize=(4.6, 4.8), sharex=True)
    words = []
    for panel, (title, loads) in zip(panels, runs.items(), strict=True):
        steps = range(1, len(loads) + 1)
        shares = []
        for expert in range(4):
            shares.append([100 * step[block - 1][expert] for step in loads])
        panel.stackplot(steps, shares, colors=EXPERTS, lw=0.4, edgecolor="white")
        panel.set(title=f"block {block}, {title}", ylabel="% of the tokens")
        panel.set(ylim=(0, 100), xlim=(1, len(loads)))
        for line in (25, 50, 75):
            panel.axhline(line, color="white", lw=0.8, ls=":")
        words.append(f"{title}, the busiest ends with {max(loads[-1][block - 1]):.0%}")
    panels[-1].set_xlabel("step")
    handles = []
    names = []
    for number, colour in enumerate(EXPERTS):
        handles.append(plt.Rectangle((0, 0), 1, 1, facecolor=colour))
        names.append(f"expert {number}")
    figure.legend(handles, names, loc="outside lower center", ncols=4, handlelength=1, columnspacing=1)
    picture(
        f"The share of the tokens that each expert of block {block} gets, step by step: {'; '.join(words)}."
    )


def draw_jump(places, better, both):
    """One component of the output, along a line from one token to another."""
    jump = numpy.abs(numpy.diff(better)).argmax()  # the place after which the other expert is the better one
    tie = places[jump].item()
    axes = plt.figure(figsize=(4.6, 2.9)).add_subplot()
    axes.plot(places, both, color=GREY, ls="--", label="both experts, weighted")
    axes.plot(places, better, ".", color=RED, ms=3, label="the better expert only")
    axes.axvline(tie, color=GREY, lw=0.8, ls=":")
    axes.text(tie - 0.02, -0.03, "equal scores", ha="right", va="top", size=9)
    axes.set(xlabel="from one token to another", ylabel="a component of the output")
    axes.legend(labelcolor=INK, loc="lower right")
    picture(
        "One component of the layer's output while a token moves. If both experts are weighted, it changes "
        "smoothly. With the better expert only, it jumps where both experts have the same score, because the "
        "other expert is the better one from there on."
    )


def draw_capacity(chosen, experts, capacity):
    """The tokens of a process in order, the places that each expert has, and the tokens that get none."""
    places = math.ceil(capacity * len(chosen) / experts)
    axes = canvas(5, 3.5, across=16, down=11.2)
    axes.text(0, 10.4, "tokens, with their experts' numbers", size=10)
    taken = {expert: [] for expert in range(experts)}
    dropped = []
    for token, expert in enumerate(chosen):
        left = 1.9 * token
        fits = len(taken[expert]) < places
        fill = tile(EXPERTS[expert], 0.75)
        axes.add_patch(plt.Rectangle((left, 8), 1.6, 1.7, facecolor=fill, edgecolor=GREY, lw=0.8))
        axes.text(left + 0.8, 8.85, expert, ha="center", va="center", color=DARK, size=10)
        axes.text(left + 0.8, 7.2, f"t{token}", ha="center", va="center", size=9)
        if fits:
            taken[expert].append(token)
        else:
            dropped.append(f"t{token}")
            axes.plot((left, left + 1.6), (8, 9.7), color=RED, lw=2.2)
            axes.text(left + 0.8, 6.2, "dropped", ha="center", va="center", size=9.5, color=RED_INK)
    axes.text(0, 4.6, f"experts, with {places} places each", size=10)
    for expert in range(experts):
        left = 4 * expert
        axes.text(left + 1.75, 0.9, f"expert {expert}", ha="center", va="center", size=9.5)
        for place in range(places):
            corner = left + 3.5 / places * place, 2
            has_token = place < len(taken[expert])
            fill = tile(EXPERTS[expert], 0.75) if has_token else "none"
            looks = {"facecolor": fill, "edgecolor": GREY, "lw": 0.8, "ls": "-" if has_token else ":"}
            axes.add_patch(plt.Rectangle(corner, 3.3 / places, 1.7, **looks))
            if has_token:
                middle = corner[0] + 1.65 / places, 2.85
                words = f"t{taken[expert][place]}"
                axes.text(*middle, words, ha="center", va="center", color=DARK, size=9.5)
    picture(
        f"{len(chosen)} tokens of a process choose experts {', '.join(map(str, chosen))}. With a capacity of "
        f"{capacity}, each expert has {places} places, and the first tokens get them. These tokens are "
        f"dropped: {', '.join(dropped)}."
    )


def draw_stored(gradients):
    """Four ranks in a mesh of data and expert: the expert that each one stores, and its gradient."""
    axes = canvas(5, 3.4, across=16, down=10.8)
    places = ((0.1, 5.6), (8.7, 5.6), (0.1, 0.2), (8.7, 0.2))
    of_rank = (0, 2, 1, 3)  # the expert that it stores
    said = []
    for rank, (left, bottom) in enumerate(places):
        first = rank % 2
        words = (
            f"stores expert {of_rank[rank]}\ngradient ({first} + {first + 2}) / 4 = {gradients[rank][0]:g}"
        )
        box(axes, left, bottom, 7.2, 3.4, f"rank {rank}", words, RANKS[rank], size=9.5)
        said.append(f"rank {rank} stores expert {of_rank[rank]}, gradient {gradients[rank][0]:g}")
    for x, experts in ((3.7, "experts 0, 1"), (12.3, "experts 2, 3")):
        axes.text(x, 9.7, experts, ha="center", size=10)
        arrow(axes, (x - 2.2, 5.5), (x - 2.2, 3.7), colour=RED, both=True)
        axes.text(x - 1.7, 4.6, "FSDP over data", va="center", size=9.5, color=RED_INK)
    picture(
        f"A mesh of 2 x 2. {'; '.join(said)}. Ranks 0 and 2 share experts 0 and 1, ranks 1 and 3 the others."
    )


def draw_biases(loads, biases):
    """The load and the bias of each expert, step by step."""
    figure, panels = plt.subplots(2, figsize=(4.6, 4.2), sharex=True)
    steps = range(len(loads))
    for expert, colour in enumerate(EXPERTS):
        percent = [100 * load[expert] for load in loads]
        own = [bias[expert] for bias in biases]
        panels[0].plot(steps, percent, color=colour, lw=1.8, label=f"expert {expert}")
        panels[1].plot(steps, own, color=colour, lw=1.8)
    panels[0].set(title="load", ylabel="% of the tokens", ylim=(0, None))
    panels[1].set(title="bias", xlabel="step")
    figure.legend(loc="outside lower center", ncols=4, handlelength=1, columnspacing=1)
    picture(
        f"Above, the loads of four experts: in the first step expert 0 has {loads[0][0]:.0%} of the tokens, "
        f"in the last {loads[-1][0]:.0%}. Below, their biases: that of expert 0 falls to "
        f"{biases[-1][0]:.2f}, that of expert 3 rises to {biases[-1][3]:.2f}."
    )
