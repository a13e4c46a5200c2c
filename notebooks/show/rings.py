"""Pictures of the notebook on how gradients travel: who holds the sum of what, step by step."""

import matplotlib.pyplot as plt

from show.pictures import DARK, INK, RANKS, arrow, tile


def play(world_size, steps, chunks=None):
    """Who has been added up in which chunk of which process: at the start, and after each step. A step is a
    list of moves: (from rank, to rank, chunk, "add" or "replace"). There is a chunk for each process, or as
    many as are named."""
    holds = [[{rank} for _ in range(chunks or world_size)] for rank in range(world_size)]
    states = [holds]
    for moves in steps:
        before, holds = holds, [list(column) for column in holds]
        for source, target, chunk, kind in moves:
            moved = before[source][chunk]
            assert kind == "replace" or not moved & before[target][chunk], "counted twice"
            holds[target][chunk] = moved if kind == "replace" else moved | before[target][chunk]
        states.append(holds)
    assert all(len(cell) == world_size for column in holds for cell in column), "not everyone has the sum"
    return states


def all_gather(world_size):
    """The steps of a ring's second half. The exercise asks for them: the notebook does not show them."""
    ranks, steps = range(world_size), []
    complete = [(rank + 1) % world_size for rank in ranks]  # what the first half leaves with each
    for _ in range(world_size - 1):
        steps.append([(rank, (rank + 1) % world_size, complete[rank], "replace") for rank in ranks])
        complete = [complete[rank - 1] for rank in ranks]
    return steps


def draw(world_size, steps, names):
    """A panel for each step: the first half of the steps on the left, the second on the right."""
    states, half = play(world_size, steps), world_size - 1
    size = (4.2, 0.6 + (0.45 + 0.24 * world_size) * world_size)
    figure, grid = plt.subplots(world_size, 2, figsize=size, squeeze=False, layout="constrained")
    figure.suptitle(f"{world_size} processes", size=11, weight="bold")
    figure.get_layout_engine().set(h_pad=0.08)  # the ranks' numbers belong to the panel above them
    panel(grid[0, 0], states[0], [], "start")
    for number, (holds, moves) in enumerate(zip(states[1:], steps, strict=True)):
        column, row = divmod(number, half)
        panel(grid[row + 1, column], holds, moves, f"{names[column]} {row + 1}")
    hint = ["column: process (rank)", "row, colour: chunk", "digits: whose are in it", "Σ: the sum of all"]
    grid[0, 1].text(0.5, 0.5, "\n".join(hint), ha="center", va="center", size=9.5)
    grid[0, 1].axis("off")


def panel(axes, holds, moves, title):
    """What each process holds, with a frame around what has just arrived."""
    world_size = len(holds)
    arrived = {(target, chunk) for _, target, chunk, _ in moves}
    for rank, column in enumerate(holds):
        for chunk, added in enumerate(column):
            done = len(added) == world_size
            face = tile(RANKS[chunk], 0.15 + 0.45 * (len(added) - 1) / (world_size - 1))
            frame = {"edgecolor": INK, "lw": 1.6} if (rank, chunk) in arrived else {"lw": 0}
            axes.add_patch(plt.Rectangle((rank - 0.36, chunk - 0.4), 0.72, 0.8, facecolor=face, **frame))
            text, weight = ("Σ", "bold") if done else ("".join(map(str, sorted(added))), "normal")
            axes.text(rank, chunk, text, ha="center", va="center", size=9, weight=weight, color=DARK)
    if len({move[:2] for move in moves}) == 1:  # one sends to one other: an arrow above the columns
        source, target = moves[0][:2]
        arrow(axes, (source, -0.5), (target, -0.5), bend=-0.2 if target > source else 0.2)
    else:  # everyone sends to the right, the last one to the first
        for source, target, chunk, _ in moves:
            axes.plot([source + 0.5, target - 0.5], [chunk, chunk], ">", color=INK, ms=4)
    axes.set(xlim=(-0.75, world_size - 0.25), ylim=(world_size - 0.5, -1.1))
    axes.set_xticks(range(world_size), range(world_size), size=9)
    axes.set_yticks([])
    axes.tick_params(length=0, pad=1)
    axes.spines[:].set_visible(False)
    axes.set_title(title, size=10, loc="center", pad=2)


def draw_wires(shares):
    """For each way, how much each rank has sent to each, in K: a list of lists, [from][to]."""
    _, grid = plt.subplots(len(shares), 1, figsize=(3.4, 2 * len(shares)))
    for axes, (way, share) in zip(grid, shares.items(), strict=True):
        ranks = range(len(share))
        for source in ranks:
            for target in ranks:
                if share[source][target] > 0.005:
                    face = tile(RANKS[0], 0.1 + 0.15 * min(share[source][target], 2))
                    place = (target - 0.48, source - 0.46)
                    axes.add_patch(plt.Rectangle(place, 0.96, 0.92, facecolor=face, lw=0))
                    words = f"{share[source][target]:.2f} K"
                    axes.text(target, source, words, ha="center", va="center", color=DARK)
        axes.set(xlim=(-0.5, len(share) - 0.5), ylim=(len(share) - 0.5, -0.5), title=way)
        axes.set(xlabel="to rank", ylabel="from rank", xticks=ranks, yticks=ranks)
        axes.set_xticks([rank + 0.5 for rank in ranks[:-1]], minor=True)
        axes.set_yticks([rank + 0.5 for rank in ranks[:-1]], minor=True)
        axes.grid(which="minor", lw=0.4)
        axes.tick_params(which="both", length=0)
