"""Who does what: the diagrams at the beginning of notebooks."""

from show.pictures import (
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    PINK,
    RANKS,
    SKY,
    arrow,
    box,
    canvas,
    picture,
)


def data_parallel():
    axes = canvas(4, 4.3, across=10, down=11)
    words = "one Python, one lock\nstarts one thread per GPU in every step"
    box(axes, 0.2, 8.6, 9.6, 2.2, "process 0", words, GREY)
    held = "the model, momentum\npart 0 of the batch\n\nall outputs, the loss\nall gradients\nthe update"
    box(axes, 0.2, 0.2, 4.1, 7, "GPU 0", held, RANKS[0])
    for number, y in enumerate((5, 2.6, 0.2), 1):
        held = f"a copy of the model\npart {number}"
        box(axes, 5.9, y, 3.9, 2.2, f"GPU {number}", held, RANKS[number])
        arrow(axes, (4.4, y + 1), (5.8, y + 1), both=True)
    arrow(axes, (2.3, 8.5), (2.3, 7.3))
    arrow(axes, (7.8, 8.5), (7.8, 7.3))
    picture(
        "One process with a thread for each of four GPUs. GPU 0 has the model, all outputs, all gradients "
        "and the update. In every step, it sends each other GPU a copy of the model and a part of the batch, "
        "and the other GPUs send outputs and gradients back."
    )


def ddp():
    axes = canvas(3.8, 4.2, across=10, down=11)
    for rank, y in enumerate((6.4, 0.2)):
        held = (
            f"60 of the 120 images of a batch\nmodel: forward, backward\noptimizer\non GPU {rank}, or the CPU"
        )
        box(axes, 0.4, y, 9.2, 4.4, f"process of rank {rank}", held, RANKS[rank], 10)
    arrow(axes, (3, 6.3), (3, 4.7), both=True)
    axes.text(3.5, 5.5, "the average of the gradients", va="center")
    picture(
        "Two processes, rank 0 and rank 1. Each has 60 of the 120 images of a batch, the model and the "
        "optimizer. They exchange only the average of the gradients."
    )


def preemption():
    axes = canvas(5, 4.9, across=10, down=9.8)
    box(axes, 2.6, 8.5, 4.8, 1.2, "torchrun launcher", "starts and watches both", GREY)
    for rank, left in ((0, 0.1), (1, 6.7)):
        box(axes, left, 5.4, 3.2, 1.9, f"process {rank}", "model, optimizer,\nits images", RANKS[rank])
    arrow(axes, (3.2, 8.4), (1.9, 7.4))
    arrow(axes, (6.8, 8.4), (8.1, 7.4))
    arrow(axes, (3.4, 6.8), (6.6, 6.8), "gradients", both=True, size=9)
    arrow(axes, (3.4, 5.7), (6.6, 5.7), "votes", both=True, colour=GREY, size=9)
    box(axes, 0.3, 3.1, 2.7, 1.1, "temporary file", colour=ORANGE)
    box(axes, 0.1, 0.2, 3.2, 1.7, "newest snapshot", "complete,\nor not there", GREEN)
    box(axes, 6.0, 0.2, 3.9, 1.7, "the one before it", "in case the newest\nis damaged", GREEN)
    arrow(axes, (1.7, 5.3), (1.7, 4.3), "1 write", at=(-0.8, -0.15), size=9)
    arrow(axes, (1.7, 3.0), (1.7, 2.0), "2 rename", at=(-0.9, -0.15), size=9)
    arrow(axes, (3.4, 1.6), (7.6, 5.3), colour=GREEN)
    arrow(axes, (3.2, 2.0), (3.2, 5.3), colour=GREEN)
    axes.text(4.4, 3.6, "3 read by all\nat the start", size=9, color=GREEN, ha="center")
    picture(
        "A torchrun launcher starts and watches two processes. They exchange gradients in one group and "
        "votes in the control group. Process 0 writes a temporary file and renames it to be "
        "the newest snapshot; the one before it is kept. At the start, both processes read the newest."
    )


def nodes(places):
    """Two nodes with two processes each. `places` has of each process what its environment told it."""
    axes = canvas(5, 4.6, down=9.2)
    for node in (0, 1):
        left = 0.05 + 8.1 * node
        box(axes, left, 0.1, 7.8, 8.2, f"node (GROUP_RANK {node})", " ", GREY, 10)
        box(axes, left + 0.3, 5.8, 7.2, 1.4, "launcher" if node else "", colour=GREY)
    axes.text(8, 8.6, f"WORLD_SIZE {places[0]['WORLD_SIZE']}", ha="center", weight="bold", size=10)
    axes.text(2.0, 6.5, "launcher", ha="center", va="center", weight="bold", size=9)
    box(axes, 3.7, 6.0, 3.5, 1.0, "the store", colour=PINK)
    arrow(axes, (8.5, 6.5), (7.25, 6.5), both=True)
    box(axes, 0.35, 1.7, 15.2, 0.9, "", colour=SKY)
    box(axes, 0.35, 0.4, 15.2, 0.9, "", colour=GREEN)
    for x, above, below in (
        (4.2, "gradients: all-reduce", "a disk that"),
        (11.8, "among all processes", "both nodes share"),
    ):
        axes.text(x, 2.15, above, ha="center", va="center", weight="bold", size=9)
        axes.text(x, 0.85, below, ha="center", va="center", weight="bold", size=9)
    for place in places:
        rank, local_rank = place["RANK"], place["LOCAL_RANK"]
        left = 0.35 + 8.1 * place["GROUP_RANK"] + 3.65 * local_rank
        box(axes, left, 3.1, 3.45, 2.2, f"RANK {rank}", f"LOCAL_RANK\n{local_rank}", RANKS[rank])
        arrow(axes, (left + 1.7, 5.8), (left + 1.7, 5.3))
        arrow(axes, (left + 1.7, 3.1), (left + 1.7, 2.6), both=True)
    picture(
        "Two nodes, each with a launcher and two processes, and a disk that both share. Ranks 0 and 1 are "
        "on the first node, 2 and 3 on the second; local ranks are 0 and 1 on both. The first launcher runs "
        "the store. All four processes take part in one all-reduce."
    )


def mixed_precision():
    axes = canvas(5, 4.6, down=11)
    for rank, left in ((0, 0.1), (1, 8.3)):
        axes.text(left + 3.8, 10.5, f"process {rank}", weight="bold", size=10, ha="center")
        box(axes, left, 9.0, 7.6, 1.0, "weights", "", BLUE)
        for number, place in ((1, left), (2, left + 4.0)):
            words = "forward,\nbackward"
            box(axes, place, 6.0, 3.6, 2.3, f"micro-batch {number}", words, ORANGE)
            arrow(axes, (place + 1.8, 8.95), (place + 1.8, 8.4))
            arrow(axes, (place + 1.8, 5.95), (place + 1.8, 5.4))
        box(axes, left, 4.3, 7.6, 1.0, "gradients, added up", "", BLUE)
        arrow(axes, (left + 3.8, 4.25), (left + 3.8, 3.7))
        arrow(axes, (left + 3.8, 2.55), (left + 3.8, 2.0))
        box(axes, left, 0.2, 7.6, 1.7, "optimizer", "step", BLUE)
    box(axes, 0.1, 2.6, 15.8, 1.0, "all-reduce, once, after the last micro-batch", "", GREEN)
    picture(
        "One step of two processes. Each has its weights in 32 bits, takes two micro-batches forward and "
        "backward in 16 bits, and adds up their gradients in 32 bits. One all-reduce averages them between "
        "the processes after the last micro-batch. Then the optimizer of each makes its step."
    )
