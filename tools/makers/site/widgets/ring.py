"""The ring, the server, the tree and the two-level ring, step by step.

All of it is worked out here: which chunk goes where, who has been added up in it, and how many bytes have
gone through each process. The script beside this file draws what it gets. What an all-reduce takes in
seconds is said by the planner's formulas.
"""

import math

from planner import __main__ as command
from planner import formulas
from tools import links
from tools.lessons import ROOT
from tools.makers.site import taken

TITLE = "The ring all-reduce, step by step"
INTRODUCTION = """\
How does an [all-reduce](../lessons/pages/words.md#all-reduce) give every process the sum of all gradients?
Press *step* and watch the chunks travel: the digits in a chunk say whose gradients have been added up in
it, and Σ means all of them. Then compare the ring with a parameter server: with four processes both take
six steps, but twice as many bytes go through the server as through each process of the ring. [How gradients
travel](../notebooks/03a_how_gradients_travel.ipynb) measures them on real sockets.
"""
PROCESSES = range(2, 9)
CHUNKS = range(1, 9)
WAYS = {"ring": "ring", "server": "parameter server", "tree": "tree", "two-level": "two-level ring"}
START = {"way": "ring", "processes": 4, "chunks": 4}
PRESETS = {  # labels, and what differs from the start
    "ring of 4": {},
    "parameter server": {"way": "server"},
    "tree of 8": {"way": "tree", "processes": 8, "chunks": 8},
    "two machines of 4": {"way": "two-level", "processes": 8, "chunks": 8},
    "one chunk: most ranks wait": {"chunks": 1},
}
# The lessons' model, and 7.5 billion parameters.
SIZES = {"time for 0.13 MB": 129_128, "time for 15 GB": 15e9}
HEAD = ["algorithm", "steps", "bytes through the busiest process", "bytes through all processes", *SIZES]
CONSTANT = {name: option.default for name, option in command.OPTIONS.items()}
play = taken.functions(ROOT / "notebooks/show/s03a_rings.py", "play").play


def ring_steps(ranks, chunks):
    """A chunk goes round once and is added up, then round again and replaces. It begins at the rank of its
    number; with fewer chunks than processes some of them wait, with more some send several at once."""
    steps, size = [], len(ranks)
    for step in range(2 * (size - 1)):
        half, kind = ("reduce-scatter", "add") if step < size - 1 else ("all-gather", "replace")
        places = [((chunk + step) % size, (chunk + step + 1) % size) for chunk in range(chunks)]
        steps.append((half, [(ranks[a], ranks[b], chunk, kind) for chunk, (a, b) in enumerate(places)]))
    return steps


def server_steps(world_size):
    """Rank 0 receives everything, adds up, and sends the sum back, to one rank after the other."""
    chunks, workers = range(world_size), range(1, world_size)
    collect = [("collect", [(worker, 0, chunk, "add") for chunk in chunks]) for worker in workers]
    return collect + [("hand out", [(0, worker, chunk, "replace") for chunk in chunks]) for worker in workers]


def tree_steps(world_size):
    """The sums climb to rank 0, in half as many processes at each step, and come back down."""
    climb = [
        [(rank, rank - far) for rank in range(far, world_size, 2 * far)]
        for far in (2**level for level in range(math.ceil(math.log2(world_size))))
    ]
    chunks = range(world_size)
    up = [("climb", [(*pair, chunk, "add") for pair in pairs for chunk in chunks]) for pairs in climb]
    down = [
        ("come down", [(*reversed(pair), chunk, "replace") for pair in pairs for chunk in chunks])
        for pairs in reversed(climb)
    ]
    return up + down


def two_level_steps(world_size):
    """Two machines: a ring in each, of which every process keeps the sum of its part; a ring of two for each
    part, over the network; and the second half of the ring in each machine."""
    inside = world_size // 2
    machines = [range(inside), range(inside, world_size)]
    rings = [ring_steps(machine, inside) for machine in machines]

    def fine(moves):  # a part of the ring inside is two chunks of the ring between the machines
        return [(*move[:2], 2 * move[2] + half, move[3]) for move in moves for half in range(2)]

    def joined(step):
        return fine([move for ring in rings for move in ring[step][1]])

    first = [(f"{ring[0]}, in the machine", joined(step)) for step, ring in enumerate(rings[0])]
    across = []
    for step in range(2):
        moves = []
        for rank in range(inside):
            part = (rank + 1) % inside  # what the first half leaves with this rank
            half, own = ring_steps([rank, rank + inside], 2)[step]
            moves += [(*move[:2], 2 * part + move[2], move[3]) for move in own]
        across.append((f"{half}, between the machines", moves))
    return first[: inside - 1] + across + first[inside - 1 :]


def steps_of(way, world_size, chunks):
    """The steps, and how many chunks there are."""
    if way == "ring":
        return ring_steps(range(world_size), chunks), chunks
    function = {"server": server_steps, "tree": tree_steps, "two-level": two_level_steps}[way]
    return function(world_size), world_size


def is_there(way, world_size):
    """Two machines have as many processes each, and more than one."""
    return way != "two-level" or (world_size % 2 == 0 and world_size > 2)


def run(way, world_size, chunks):
    """Each step: its name, its moves with what the receiver then has, and the bytes through each process so
    far, in sizes of the whole gradient: what it has sent and received."""
    steps, chunks = steps_of(way, world_size, chunks)
    states = play(world_size, [moves for _, moves in steps], chunks)
    through, told = [0] * world_size, []
    for (name, moves), holds in zip(steps, states[1:], strict=True):
        for rank in [rank for move in moves for rank in move[:2]]:
            through[rank] += 1
        has = [(*move[:3], "".join(map(str, sorted(holds[move[1]][move[2]])))) for move in moves]
        told.append(
            {
                "name": name,
                "moves": has,
                "working": len({rank for move in moves for rank in move[:2]}),
                "through": [round(count / chunks, 4) for count in through],
                "most": round(max(through) / chunks, 4),
            }
        )
    return {"chunks": chunks, "steps": told}


def seconds(way, world_size, size):
    """By the planner's formulas and constants; a machine of the two-level ring has half of the processes."""
    return formulas.all_reduce_seconds(
        size,
        world_size,
        CONSTANT["bandwidth-network"],
        CONSTANT["latency"],
        way,
        ranks_per_node=max(1, world_size // 2),
        node_bandwidth=CONSTANT["bandwidth-node"],
    )


def table(world_size):
    """All ways beside one another: steps, bytes through the busiest process and in all, and seconds."""
    rows = []
    for way in [way for way in WAYS if is_there(way, world_size)]:
        steps = run(way, world_size, world_size)["steps"]
        times = [links.in_words(seconds(way, world_size, size)) for size in SIZES.values()]
        amounts = [f"{amount:.2f} x" for amount in (steps[-1]["most"], sum(steps[-1]["through"]))]
        rows.append([WAYS[way], str(len(steps)), *amounts, *times])
    return rows


def data():
    chunks = {way: CHUNKS if way == "ring" else [START["chunks"]] for way in WAYS}
    runs = {
        way: {
            size: {count: run(way, size, count) for count in chunks[way]}
            for size in PROCESSES
            if is_there(way, size)
        }
        for way in WAYS
    }
    return {
        "ways": WAYS,
        "processes": list(PROCESSES),
        "chunks": list(CHUNKS),
        "start": START,
        "runs": runs,
        "head": HEAD,
        "tables": {size: table(size) for size in PROCESSES},
        "note": note(),
        "presets": [{"label": label, "inputs": START | changes} for label, changes in PRESETS.items()],
    }


def note():
    far, near = (f"{CONSTANT[f'bandwidth-{link}'] / 1e9:g} GB/s" for link in ("network", "node"))
    return (
        "1 x is the size of all gradients. A process's bytes are those that it sends plus those that it "
        "receives. In the table, the ring has as many chunks as processes. Times are estimates from the "
        f"planner's formulas, for links of {far} and a latency of {1e6 * CONSTANT['latency']:g} microseconds "
        f"a message; the two-level ring has {near} inside each of its two machines. The server sends while "
        "it receives."
    )


def still():
    """What the page says where no script runs: the words, and the table."""
    size = START["processes"]
    ring, server = (run(way, size, size)["steps"] for way in ("ring", "server"))
    said = (
        f"A ring of {size} processes takes {len(ring)} steps, and each process sends and receives "
        f"{ring[-1]['most']:.2f} times the size of the gradients; a server takes {len(server)} steps, and "
        f"{server[-1]['most']:.2f} times the size goes through it."
    )
    return {
        "said": said,
        "tables": [{"caption": f"{size} processes", "head": HEAD, "rows": table(size)}],
        "note": note(),
    }
