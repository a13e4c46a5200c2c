"""The pictures of notebook 15: which rank computes which blocks of attention, and what that costs."""

import matplotlib.pyplot as plt

from parts.ring_attention import ORDERS, chunks_of, positions_of
from show.pictures import DARK, GREY, HATCHES, INK, RANKS, RED, SKY, arrow, box, canvas, picture, tile
from show.rank_inks import INK_OF_RANK, RED_INK


def draw_blocks(processes=4):
    """Which chunks of queries meet which chunks of keys. The colour is the rank that has the queries."""
    chunks = 2 * processes
    _, panels = plt.subplots(2, 1, figsize=(3.8, 6.6))
    for axes, order in zip(panels, ORDERS, strict=True):
        owners = owners_of_chunks(processes, order)
        for query in range(chunks):
            bottom = chunks - 1 - query
            fill = tile(RANKS[owners[query]], 0.55)
            for key in range(query + 1):
                axes.add_patch(plt.Rectangle((key, bottom), 0.94, 0.94, facecolor=fill, edgecolor=GREY))
                words = str(owners[key])
                axes.text(key + 0.47, bottom + 0.47, words, ha="center", va="center", color=DARK, size=10)
            axes.text(-0.25, bottom + 0.47, f"rank {owners[query]}", ha="right", va="center", size=10)
        axes.set(xlim=(-2.2, chunks), ylim=(-0.1, chunks), xticks=[], yticks=[], aspect="equal", title=order)
        axes.set_xlabel("keys: the rank that holds them")
        axes.set_ylabel("queries: the rank that holds them")
        axes.spines[["left", "bottom"]].set_visible(False)
    picture(
        f"Causal attention with {chunks} chunks, a triangle of {chunks * (chunks + 1) // 2} blocks. "
        f"Contiguous: rank 0 has the two shortest rows, rank {processes - 1} the two longest. Zigzag: each "
        f"rank has a short row and a long one, {chunks + 1} blocks."
    )


def owners_of_chunks(processes, order):
    """For each chunk of a text, the rank that holds it."""
    owners = {}
    for rank in range(processes):
        for chunk in chunks_of(rank, processes, order):
            owners[chunk] = rank
    return owners


def draw_ring(processes=4):
    """A row for each rank, a column for each step: whose keys and values it has, and where it sends them."""
    axes = canvas(4.2, 3.9, across=4.2 * processes + 1.6, down=3.2 * processes + 2.6)
    top = 3.2 * processes
    for step in range(processes):
        left = 2.9 + 4.2 * step
        axes.text(left + 1.3, top + 1.5, f"step {step + 1}", ha="center", weight="bold", size=10)
        for rank in range(processes):
            bottom = top - 3.2 * (rank + 1) + 0.9
            owner = (rank - step) % processes  # as in around_the_ring
            fill = tile(RANKS[owner], 0.55)
            axes.add_patch(plt.Rectangle((left, bottom), 2.6, 2.2, facecolor=fill, edgecolor=GREY))
            words = f"keys\nof {owner}"
            axes.text(left + 1.3, bottom + 1.1, words, ha="center", va="center", color=DARK, size=9)
            if step == processes - 1:
                continue
            if rank < processes - 1:
                arrow(axes, (left + 2.6, bottom + 0.3), (left + 4.2, bottom - 1.2), colour=RANKS[owner])
            else:  # from the last rank to the first: out at the bottom, in at the top
                arrow(axes, (left + 2.6, bottom + 0.3), (left + 3.5, bottom - 0.9), colour=RANKS[owner])
                arrow(axes, (left + 3.3, top + 1.2), (left + 4.2, top - 0.2), colour=RANKS[owner])
    for rank in range(processes):
        middle = top - 3.2 * (rank + 1) + 2.0
        colour = INK_OF_RANK[rank]
        axes.text(0, middle, f"rank {rank}", va="center", color=colour, weight="bold", size=10)
    picture(
        f"The ring on {processes} ranks. In step 1, each rank computes with its own keys and values. After "
        "each step, it sends the keys and values that it has to the next rank, and the last rank sends to "
        f"rank 0. In {processes} steps, each rank computes with the keys of all ranks, one after the other."
    )


def draw_backward_ring(processes=4):
    """As draw_ring, with the gradients: small squares show which ranks have added their contribution."""
    axes = canvas(5, 4.6, across=2.7 + 3.9 * (processes + 1), down=3.4 * processes + 2.6)
    top = 3.4 * processes
    for step in range(processes + 1):
        left = 2.8 + 3.9 * step
        name = f"step {step + 1}" if step < processes else "after"
        axes.text(left + 1.4, top + 1.5, name, ha="center", weight="bold", size=10)
        for rank in range(processes):
            bottom = top - 3.4 * (rank + 1) + 0.9
            owner = (rank - step) % processes
            draw_part_of_ring(axes, left, bottom, owner)
            added = min(step + 1, processes)  # the owner adds first, then the ranks behind it
            draw_added(axes, left, bottom, owner, added, processes)
            if step == processes:
                continue
            if rank < processes - 1:
                arrow(axes, (left + 2.8, bottom + 0.4), (left + 3.9, bottom - 1.3), colour=RANKS[owner])
            else:
                arrow(axes, (left + 2.8, bottom + 0.4), (left + 3.4, bottom - 0.9), colour=RANKS[owner])
                arrow(axes, (left + 3.2, top + 1.2), (left + 3.9, top - 0.2), colour=RANKS[owner])
    for rank in range(processes):
        middle = top - 3.4 * (rank + 1) + 2.1
        axes.text(0, middle, f"rank {rank}", va="center", color=INK_OF_RANK[rank], weight="bold", size=10)
    picture(
        f"The backward ring on {processes} ranks. Keys and values travel as in the forward pass, and their "
        "gradients travel with them. In step 1, each rank adds its own contribution to the gradients of its "
        f"own keys and values; in each further step, the next rank adds its contribution. After step "
        f"{processes}, the gradients have the contributions of all ranks and return to their owner."
    )


def draw_part_of_ring(axes, left, bottom, owner):
    fill = tile(RANKS[owner], 0.55)
    axes.add_patch(plt.Rectangle((left, bottom + 0.9), 2.8, 1.4, facecolor=fill, edgecolor=GREY))
    axes.text(left + 1.4, bottom + 1.6, f"of {owner}", ha="center", va="center", color=DARK, size=9)


def draw_added(axes, left, bottom, owner, added, processes):
    """A small square for each rank whose contribution is in the gradients, and empty ones for the others."""
    width = 2.8 / processes
    for place in range(processes):
        corner = left + width * place, bottom
        if place >= added:
            axes.add_patch(plt.Rectangle(corner, width, 0.9, fill=False, edgecolor=GREY, lw=0.6, ls=":"))
            continue
        rank = (owner + place) % processes
        fill = tile(RANKS[rank], 0.55)
        axes.add_patch(plt.Rectangle(corner, width, 0.9, facecolor=fill, edgecolor=GREY, lw=0.6))
        middle = corner[0] + width / 2, bottom + 0.42
        axes.text(*middle, str(rank), ha="center", va="center", color=DARK, size=9)


def draw_mesh():
    """A mesh with the dimensions data and context: which text, positions and weights each rank has."""
    axes = canvas(5, 3.6, across=16, down=11.6)
    for rank, (left, bottom) in enumerate(((0.1, 7), (9.5, 7), (0.1, 0.4), (9.5, 0.4))):
        text = "first" if rank < 2 else "second"
        chunks = "chunks 0 and 3" if rank % 2 == 0 else "chunks 1 and 2"
        words = f"{text} text: {chunks}\nshard {rank % 2} of the weights"
        box(axes, left, bottom, 6.4, 4.2, f"rank {rank}", words, RANKS[rank], size=9.5)
    for y in (9.1, 2.5):
        arrow(axes, (6.6, y), (9.4, y), colour=RED, both=True)
        axes.text(8, y + 0.4, "ring", ha="center", size=9.5, color=RED_INK)
        axes.text(8, y - 1.9, "weights,\ngradients", ha="center", size=9.5, color=RED_INK)
    for x in (3.3, 12.7):
        arrow(axes, (x, 6.9), (x, 4.7), both=True)
    axes.text(8, 5.8, "average of\nthe gradients", ha="center", va="center", size=9.5)
    picture(
        "Four ranks in a mesh. Ranks 0 and 1 share the first text, ranks 2 and 3 the second: in each pair, "
        "the first rank has chunks 0 and 3, the second chunks 1 and 2. The two ranks of a pair have "
        "different shards of the weights and exchange keys, values, weights and gradients. Ranks 0 and 2 "
        "have the same shard, and so do 1 and 3: they average its gradients."
    )


def draw_merge(scores, count):
    """Two softmaxes, over the first `count` keys and over the others, and how they become one."""
    parts = [scores[:count], scores[count:]]
    total = scores.logsumexp(dim=0)
    expected = scores.softmax(dim=0).tolist()
    _, (upper, lower) = plt.subplots(2, 1, figsize=(4.6, 4.4), sharex=True)
    upper.set_title("each step: a softmax over its own keys")
    lower.set_title("times its share: a softmax over all keys")
    said = []
    begin = 0
    for step, (part, colour) in enumerate(zip(parts, (SKY, RED), strict=True), 1):
        log_sum = part.logsumexp(dim=0)
        share = (log_sum - total).exp().item()
        weights = part.softmax(dim=0)
        keys = range(begin, begin + len(part))
        looks = {"color": colour, "hatch": HATCHES.get(colour), "edgecolor": GREY, "lw": 0.6}
        upper.bar(keys, weights.tolist(), 0.7, **looks)
        lower.bar(keys, (share * weights).tolist(), 0.7, **looks)
        middle = begin + (len(part) - 1) / 2
        upper.text(middle, 1.02, f"step {step}\nlog-sum-exp {log_sum:.2f}", ha="center", size=9.5)
        lower.text(middle, 0.67, f"x {share:.2f}", ha="center", size=10)
        said.append(
            f"the softmax of step {step} has a log-sum-exp of {log_sum:.2f} and a share of {share:.2f}"
        )
        begin += len(part)
    marks = lower.plot(range(len(scores)), expected, "o", color=INK, mfc="none", ms=9, mew=1.8)
    lower.legend(marks, ["softmax of all scores at once"], loc="upper left", bbox_to_anchor=(-0.02, -0.28))
    upper.set(ylim=(0, 1.4), yticks=[0, 0.5, 1])
    lower.set(ylim=(-0.03, 0.78), yticks=[0, 0.25, 0.5, 0.75], xlabel="keys", xlim=(-0.6, len(scores) - 0.2))
    lower.set_xticks(range(len(scores)), [f"{number}" for number in range(len(scores))])
    for axes in (upper, lower):
        axes.axvline(count - 0.5, color=GREY, lw=1, ls=":")
        axes.set_ylabel("weight")
    picture(
        f"The weights of {len(scores)} keys. Above, {' and '.join(said)}. Below, each weight is multiplied "
        "by the share of its step: the bars end at the marks, which are the softmax over all keys at once."
    )


def draw_all_gather(processes=4):
    """A row for each rank: its queries, its keys and values, and those that the all-gather brings."""
    axes = canvas(5, 3.5, across=16, down=11.2)
    looks = {"ha": "center", "va": "bottom", "size": 10, "linespacing": 1.2}
    axes.text(4.1, 9.3, "its queries", **looks)
    axes.text(8.3, 9.3, "its keys\nand values", **looks)
    axes.text(13.9, 9.3, "after the\nall-gather", **looks)
    for rank in range(processes):
        bottom = 7.6 - 2 * rank
        axes.text(0, bottom + 0.7, f"rank {rank}", va="center", weight="bold", color=INK_OF_RANK[rank])
        for shard in range(processes):
            is_own = shard == rank
            draw_shard(axes, 2.3 + 0.9 * shard, bottom, shard, 0.6 if is_own else 0)
            draw_shard(axes, 6.5 + 0.9 * shard, bottom, shard, 0.6 if is_own else 0)
            if shard <= rank:
                draw_shard(axes, 12.1 + 0.9 * shard, bottom, shard, 0.6)
            else:
                draw_hidden(axes, 12.1 + 0.9 * shard, bottom, shard)
        arrow(axes, (10.3, bottom + 0.7), (11.9, bottom + 0.7), colour=RED)
    words = "struck out: later than all queries of the rank, so masked"
    axes.text(0, 0.5, words, size=9.5, va="center")
    hidden = processes * (processes - 1) // 2
    picture(
        f"{processes} ranks, each with the queries, keys and values of a quarter of the positions. After the "
        f"all-gather, each rank has the keys and values of all {processes} shards, and still only its own "
        f"queries. The mask hides {hidden} of the {processes**2} gathered shards: rank 0 uses only its own."
    )


def draw_shard(axes, x, y, owner, strength):
    """A square for a shard of the positions; without colour if the rank does not have it."""
    if strength == 0:
        axes.add_patch(plt.Rectangle((x, y), 0.8, 1.4, fill=False, edgecolor=GREY, lw=0.8, ls=":"))
        return
    fill = tile(RANKS[owner], strength)
    axes.add_patch(plt.Rectangle((x, y), 0.8, 1.4, facecolor=fill, edgecolor=GREY, lw=0.8))
    axes.text(x + 0.4, y + 0.7, owner, ha="center", va="center", color=DARK, size=9.5)


def draw_hidden(axes, x, y, owner):
    """A shard that the rank has but does not use: its number, struck out, in a tile without colour."""
    axes.add_patch(plt.Rectangle((x, y), 0.8, 1.4, fill=False, edgecolor=GREY, lw=0.8))
    axes.plot((x, x + 0.8), (y, y + 1.4), color=GREY, lw=1)
    axes.text(x + 0.4, y + 0.7, owner, ha="center", va="center", color=INK, size=9.5)


def draw_all_to_all(processes=4):
    """Heads against positions: who has which part of a tensor before and after the all-to-all."""
    axes = canvas(5, 3.6, across=16, down=11.5)
    looks = {"ha": "center", "va": "bottom", "size": 10, "linespacing": 1.2}
    axes.text(5.1, 9.7, "some positions\nof all heads", **looks)
    axes.text(13.2, 9.7, "all positions\nof some heads", **looks)
    stays = 0
    for head in range(processes):
        bottom = 7.7 - 1.75 * head
        axes.text(0, bottom + 0.8, f"head {head}", va="center", size=10)
        for shard in range(processes):
            if shard == head:
                stays += 1
            draw_part(axes, 2.4 + 1.35 * shard, bottom, rank=shard, stays=shard == head)
            draw_part(axes, 10.5 + 1.35 * shard, bottom, rank=head, stays=shard == head)
    arrow(axes, (7.9, 6.3), (10.4, 6.3), colour=RED)
    axes.text(9.15, 6.6, "all-to-all", ha="center", size=9.5, color=RED_INK)
    arrow(axes, (10.4, 4.7), (7.9, 4.7), colour=RED)
    axes.text(9.15, 3.2, "the result,\nback", ha="center", size=9.5, color=RED_INK, linespacing=1.2)
    axes.text(5.1, 1.5, "positions", ha="center", size=10)
    axes.text(13.2, 1.5, "positions", ha="center", size=10)
    axes.text(0, 0.3, "number and colour: the rank; thick frame: stays on its rank", size=9.5, va="center")
    parts = processes**2
    picture(
        f"A tensor with {processes} heads in rows and {processes} shards of the positions in columns. Before "
        "the all-to-all, each rank has a column: some positions of all heads. After it, each rank has a row: "
        f"all positions of one head. {parts - stays} of the {parts} parts travel to another rank."
    )


def draw_part(axes, x, y, rank, stays):
    """A part of the tensor in the colour of the rank that has it."""
    looks = {"edgecolor": INK, "lw": 2.2, "zorder": 2} if stays else {"edgecolor": GREY, "lw": 0.8}
    axes.add_patch(plt.Rectangle((x, y), 1.3, 1.6, facecolor=tile(RANKS[rank], 0.6), **looks))
    axes.text(x + 0.65, y + 0.8, rank, ha="center", va="center", color=DARK, size=9.5, zorder=3)


def draw_costs(rows):
    """What each way sends and keeps, in shards of a process. `rows` are those of the notebook's table."""
    panels = plt.subplots(2, 1, figsize=(4.4, 4.6), sharex=True)[1]
    said = []
    for axes, n in zip(panels, (2, 4), strict=True):
        names = []
        for processes, way, _, sends, _, keeps in rows:
            if processes != n:
                continue
            number = len(names)
            names.append(way)
            for shift, size, colour in ((-0.2, float(sends), RED), (0.2, keeps, SKY)):
                looks = {"color": colour, "hatch": HATCHES.get(colour), "edgecolor": GREY, "lw": 0.6}
                axes.barh(number + shift, size, 0.38, **looks)
                axes.text(size + 0.3, number + shift, f"{size:.0f}", va="center", size=9.5)
            said.append(f"on {n} processes, the {way} sends {float(sends):.0f} and keeps {keeps:.0f}")
        axes.set_yticks(range(len(names)), names)
        axes.tick_params(axis="y", length=0)
        axes.invert_yaxis()
        axes.set_title(f"{n} processes")
    panels[1].set(xlabel="shards of a process", xlim=(0, 22))
    handles = [
        plt.Rectangle((0, 0), 1, 1, facecolor=RED, hatch=HATCHES[RED], edgecolor=GREY),
        plt.Rectangle((0, 0), 1, 1, facecolor=SKY, edgecolor=GREY),
    ]
    panels[0].figure.legend(handles, ["sends", "keeps"], loc="outside upper right", ncols=2)
    picture(f"What a process sends and keeps, in shards: {'; '.join(said)}.")


def draw_work(measured):
    """For each order, how long each rank works, and how much less that is than the slowest rank's time."""
    _, panels = plt.subplots(2, 1, figsize=(4, 4.4), sharex=True)
    longest = 0
    for rank in measured:
        for order in ORDERS:
            longest = max(longest, 1000 * rank[order]["seconds"])
    for axes, order in zip(panels, ORDERS, strict=True):
        times = [1000 * rank[order]["seconds"] for rank in measured]
        end = max(times)
        for number, busy in enumerate(times):
            axes.barh(-number, busy, 0.7, color=tile(RANKS[number], 0.55))
            axes.barh(-number, end - busy, 0.7, left=busy, color="none", edgecolor=GREY, ls=":")
            words = f"{millions_of(measured[number], order)} million"
            axes.text(0.02 * longest, -number, words, va="center", color=DARK, size=9)
        axes.axvline(end, color=INK, lw=1.2)
        axes.set_yticks([0, -1, -2, -3], ["rank 0", "rank 1", "rank 2", "rank 3"])
        axes.tick_params(axis="y", length=0)
        axes.set(title=order, xlim=(0, 1.05 * longest))
    panels[1].set_xlabel("ms of CPU time; in the bars: multiply-adds")
    lists = []
    for order in ORDERS:
        lists.append(", ".join(millions_of(rank, order) for rank in measured))
    picture(
        f"Attention on four ranks. In contiguous order, multiply-adds and CPU time rise from rank 0 to "
        f"rank 3: {lists[0]} million. Dotted frames show how much longer the slowest rank works. In zigzag "
        f"order, the ranks have {lists[1]} million, the times are about equal, and the layer ends earlier."
    )


def millions_of(rank, order):
    return f"{rank[order]['multiply-adds'] / 1e6:.0f}"


def draw_memory(lengths, found):
    """The peak memory of attention in one process, against the length of the text."""
    _, axes = plt.subplots(figsize=(4.2, 3.8))
    for name, mark, words in (
        ("1", "s", "1 process"),
        ("2", "o", "2 processes"),
        ("4", "^", "4 processes"),
    ):
        megabytes = [peak / 1e6 for peak in found[name]]
        axes.plot(lengths, megabytes, f"{mark}-", color=RED)
        axes.annotate(words, (lengths[3], megabytes[3]), (8, -4), textcoords="offset points")
    megabytes = [peak / 1e6 for peak in found["kernel"]]
    axes.plot(lengths, megabytes, "d--", color=SKY)
    words = "1 process,\nPyTorch's\nkernel"
    axes.annotate(words, (lengths[3], megabytes[3]), (8, -24), textcoords="offset points")
    axes.set(xscale="log", yscale="log", xlabel="positions of a text", ylabel="peak MB in one process")
    axes.set_xlim(220, 6500)  # the names of the lines need the room on the right
    axes.set_xticks(lengths, [str(length) for length in lengths])
    axes.minorticks_off()
    axes.set_yticks([0.1, 1, 10, 100], ["0.1", "1", "10", "100"])
    growth = {}
    for name, values in found.items():
        growth[name] = f"{values[-1] / values[-2]:.1f}"
    picture(
        "Peak memory of attention in one process against the length of the text. On 1, 2 and 4 processes it "
        f"grows {growth['1']}, {growth['2']} and {growth['4']} times with the last doubling of the length. "
        f"With PyTorch's own kernel on one process it grows {growth['kernel']} times."
    )


def draw_two_mistakes(text="abcdefghi"):
    """The positions and the targets of two ranks in zigzag order, and what two mistakes make of them."""
    rows = {"characters": [], "positions": [], "from 0 on": [], "targets": [], "shifted after\nsharding": []}
    for rank in (0, 1):
        own = positions_of(rank, 2, "zigzag", len(text) - 1).tolist()
        characters = [text[position] for position in own]
        rows["characters"].append(characters)
        rows["positions"].append(own)
        rows["from 0 on"].append(list(range(len(own))))
        rows["targets"].append([text[position + 1] for position in own])
        rows["shifted after\nsharding"].append([*characters[1:], characters[0]])
    right = {"from 0 on": rows["positions"], "shifted after\nsharding": rows["targets"]}

    axes = canvas(5, 3.9, across=16, down=12.4)
    wrong = {}
    for rank, left in enumerate(LEFT_OF_RANK):
        words = f"rank {rank}: chunks {' and '.join(map(str, chunks_of(rank, 2, 'zigzag')))}"
        looks = {"color": INK_OF_RANK[rank], "weight": "bold", "ha": "center", "size": 9.5}
        axes.text(left + 2.55, 11.7, words, **looks)
    for number, (name, lists) in enumerate(rows.items()):
        bottom = 9.3 - 2.0 * number - (0.5 if number > 0 else 0) - (0.5 if number > 2 else 0)
        axes.text(0, bottom + 0.75, name, va="center", size=10)
        for rank, left in enumerate(LEFT_OF_RANK):
            for place, value in enumerate(lists[rank]):
                is_wrong = name in right and value != right[name][rank][place]
                wrong[name] = wrong.get(name, 0) + is_wrong
                draw_value(axes, left + 1.3 * place, bottom, value, rank, is_wrong)
    picture(
        f"The text {text!r} on two ranks. Told positions from 0 on, they have {wrong['from 0 on']} of "
        f"{len(text) - 1} wrong. Shifted after sharding, {wrong[list(right)[1]]} of {len(text) - 1} targets "
        "are wrong: the last of a chunk whose next chunk is on the other rank, or the last of the text."
    )


LEFT_OF_RANK = (4.6, 10.6)  # in the picture of two mistakes


def draw_value(axes, x, y, value, rank, is_wrong):
    """A tile in the colour of its rank, or a hatched one in dark orange if the value is wrong."""
    looks = {"facecolor": tile(RANKS[rank], 0.55), "edgecolor": GREY, "lw": 0.8}
    if is_wrong:
        looks = {"facecolor": tile(RED, 0.75), "edgecolor": INK, "lw": 2.2, "zorder": 2}
    axes.add_patch(plt.Rectangle((x, y), 1.2, 1.5, **looks))
    weight = "bold" if is_wrong else "normal"
    middle = x + 0.6, y + 0.75
    axes.text(*middle, value, ha="center", va="center", color=DARK, size=10, weight=weight, zorder=3)
