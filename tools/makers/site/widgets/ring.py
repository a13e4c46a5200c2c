"""The ring, the server, the tree and the two-level ring, step by step.

All of it is worked out here: which chunk goes where, who has been added up in it, and how many bytes have
gone through each process. The script beside this file draws what it gets. What an all-reduce takes in
seconds is said by the planner's formulas.
"""

from planner import __main__ as command
from planner import formulas
from tools import gpu_links
from tools.lessons import ROOT
from tools.makers.site import extract

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
play = extract.functions(ROOT / "notebooks/show/s03a_rings.py", "play").play


def ring_steps(ranks, chunks):
    """A chunk goes round once and is added up, then round again and replaces. It begins at the rank of its
    number; with fewer chunks than processes some of them wait, with more some send several at once."""
    size = len(ranks)
    steps = []
    for step in range(2 * (size - 1)):
        if step < size - 1:
            half, kind = "reduce-scatter", "add"
        else:
            half, kind = "all-gather", "replace"
        moves = []
        for chunk in range(chunks):
            sender = ranks[(chunk + step) % size]
            receiver = ranks[(chunk + step + 1) % size]
            moves.append((sender, receiver, chunk, kind))
        steps.append((half, moves))
    return steps


def server_steps(world_size):
    """Rank 0 receives everything, adds up, and sends the sum back, to one rank after the other."""
    workers = range(1, world_size)
    collect = []
    hand_out = []
    for worker in workers:
        received = []
        sent = []
        for chunk in range(world_size):
            received.append((worker, 0, chunk, "add"))
            sent.append((0, worker, chunk, "replace"))
        collect.append(("collect", received))
        hand_out.append(("hand out", sent))
    return collect + hand_out


def tree_steps(world_size):
    """The sums climb to rank 0, in half as many processes at each step, and come back down."""
    up = []
    down = []
    distance = 1
    while distance < world_size:
        climbing = []
        coming_down = []
        for rank in range(distance, world_size, 2 * distance):
            for chunk in range(world_size):
                climbing.append((rank, rank - distance, chunk, "add"))
                coming_down.append((rank - distance, rank, chunk, "replace"))
        up.append(("climb", climbing))
        down.append(("come down", coming_down))
        distance *= 2
    return up + down[::-1]


def two_level_steps(world_size):
    """Two machines: a ring in each, of which every process keeps the sum of its part; a ring of two for each
    part, over the network; and the second half of the ring in each machine."""
    inside = world_size // 2
    machines = [range(inside), range(inside, world_size)]
    rings = [ring_steps(machine, inside) for machine in machines]

    in_the_machine = []
    for step, (half, _) in enumerate(rings[0]):
        moves = []
        for ring in rings:
            for sender, receiver, part, kind in ring[step][1]:
                # A part of the ring inside is two chunks of the ring between the machines.
                moves.append((sender, receiver, 2 * part, kind))
                moves.append((sender, receiver, 2 * part + 1, kind))
        in_the_machine.append((f"{half}, in the machine", moves))

    between = []
    for step in range(2):
        moves = []
        for rank in range(inside):
            part = (rank + 1) % inside  # what the first half leaves with this rank
            half, own = ring_steps([rank, rank + inside], 2)[step]
            for sender, receiver, chunk, kind in own:
                moves.append((sender, receiver, 2 * part + chunk, kind))
        between.append((f"{half}, between the machines", moves))
    return in_the_machine[: inside - 1] + between + in_the_machine[inside - 1 :]


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
    through = [0] * world_size
    told = []
    for (name, moves), holds in zip(steps, states[1:], strict=True):
        working = set()
        has = []
        for sender, receiver, chunk, _ in moves:
            working.update((sender, receiver))
            through[sender] += 1
            through[receiver] += 1
            ranks = sorted(holds[receiver][chunk])
            has.append((sender, receiver, chunk, "".join(map(str, ranks))))
        told.append(
            {
                "name": name,
                "moves": has,
                "working": len(working),
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
    for way, name in WAYS.items():
        if not is_there(way, world_size):
            continue
        steps = run(way, world_size, world_size)["steps"]
        last = steps[-1]
        row = [name, str(len(steps)), f"{last['most']:.2f} x", f"{sum(last['through']):.2f} x"]
        for size in SIZES.values():
            row.append(gpu_links.in_words(seconds(way, world_size, size)))
        rows.append(row)
    return rows


def data():
    return {
        "ways": WAYS,
        "processes": list(PROCESSES),
        "chunks": list(CHUNKS),
        "start": START,
        "runs": {way: runs(way) for way in WAYS},
        "head": HEAD,
        "tables": {size: table(size) for size in PROCESSES},
        "note": note(),
        "presets": [{"label": label, "inputs": START | changes} for label, changes in PRESETS.items()],
    }


def runs(way):
    """All runs of a way, by the number of processes and by the number of chunks. Only the ring lets a reader
    choose the chunks."""
    chunks = CHUNKS if way == "ring" else [START["chunks"]]
    found = {}
    for size in PROCESSES:
        if is_there(way, size):
            found[size] = {count: run(way, size, count) for count in chunks}
    return found


def note():
    far = f"{CONSTANT['bandwidth-network'] / 1e9:g} GB/s"
    near = f"{CONSTANT['bandwidth-node'] / 1e9:g} GB/s"
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
    ring = run("ring", size, size)["steps"]
    server = run("server", size, size)["steps"]
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
