"""Checks the machines before a long run: one page within seconds. Start it as you will start the run:

    torchrun --standalone --nproc-per-node 2 lessons/launch/preflight.py
    srun --ntasks-per-node 4 python lessons/launch/preflight.py

You will see what all ranks have (versions, memory, clocks, addresses) and where they differ, the speed of
each link of a ring, and the speed of an all-reduce. Problems come last, each with what to do, and the exit
status is then 1. (torchrun adds a report of its own to stderr; 2>/dev/null hides it.) The script needs
nothing from the lessons: copy this one file to a cluster.

With --script train.py, --data FOLDER and --shared FOLDER it also compares the script and the data set on all
machines, and checks that all machines see the same folder for snapshots, with room on its disk.
"""

import argparse
import contextlib
import hashlib
import json
import os
import platform
import re
import shutil
import socket
import struct
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

SLOW = 5  # how many times slower a slow link is than the best link of its kind
FAR = 1.0  # seconds by which clocks may differ
LITTLE = 2**30  # bytes: less free memory is a problem
# What must be the same on all ranks, and what to do if it differs.
SAME = dict.fromkeys(("python", "torch", "cuda", "nccl", "driver", "device"), "Install")
SAME |= {"script": "Copy", "data": "Copy"}
NO_ADDRESS = "none"
ASK_FOR_ADDRESS = 0xC0206921 if sys.platform == "darwin" else 0x8915  # SIOCGIFADDR


class Page:
    """What rank 0 prints at the end."""

    def __init__(self):
        self.lines, self.problems = [], []

    def finish(self, rank: int) -> bool:
        """Print the page. Return whether anything is wrong."""
        if rank == 0:
            last = [f"problem: {each}" for each in self.problems] or ["nothing is wrong that this can see"]
            print("\n".join([*self.lines, *last]), flush=True)
        return bool(self.problems)


def refuse(message: str) -> None:
    print(f"error: {message}", file=sys.stderr, flush=True)
    os._exit(1)  # sys.exit would wait for a thread of the store that still waits


# ---- who am I? --------------------------------------------------------------------------------


def read_environment() -> None:
    """Copy what srun sets under its own names to the variables that torchrun sets."""
    if "RANK" in os.environ or "SLURM_PROCID" not in os.environ:
        return
    os.environ["RANK"], os.environ["WORLD_SIZE"] = os.environ["SLURM_PROCID"], os.environ["SLURM_NTASKS"]
    os.environ["LOCAL_RANK"] = os.environ["SLURM_LOCALID"]
    if "MASTER_ADDR" not in os.environ:
        # As in slurm.sbatch: the first node's address, and a port that depends on the job's number.
        nodes = subprocess.check_output(
            ["scontrol", "show", "hostnames", os.environ["SLURM_JOB_NODELIST"]], text=True
        )
        node = subprocess.check_output(["scontrol", "show", "node", nodes.split()[0]], text=True)
        os.environ["MASTER_ADDR"] = re.search(r"NodeAddr=(\S+)", node)[1]
        os.environ["MASTER_PORT"] = str(10000 + int(os.environ["SLURM_JOB_ID"]) % 10000)


def connect_store(rank: int, world_size: int, seconds: float) -> dist.Store:
    """The store at MASTER_ADDR, which rank 0 or the torchrun launcher hosts."""
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    is_host = rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
    limit = timedelta(seconds=seconds)
    try:
        store = dist.TCPStore(address, port, world_size, is_host, limit, wait_for_workers=False)
    except (dist.DistError, OSError) as error:
        reason = str(error).splitlines()[0][:160]
        refuse(
            f"rank {rank} on {socket.gethostname()} cannot reach {address}:{port}, where all meet "
            f"(MASTER_ADDR, MASTER_PORT): {reason}"
        )
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    return dist.PrefixStore(f"preflight-{attempt}", store)


def gather(store: dist.Store, name: str, rank: int, world_size: int, value, seconds: float) -> list:
    """Return the value of each rank under this name. After `seconds`, exit and name missing ranks."""
    store.set(f"{name}/{rank}", json.dumps(value))
    values, missing, deadline = [], [], time.monotonic() + seconds
    for other in range(world_size):
        left = max(deadline - time.monotonic(), 0.1)
        try:
            store.wait([f"{name}/{other}"], timedelta(seconds=left))
            values.append(json.loads(store.get(f"{name}/{other}")))
        except dist.DistError:
            missing.append(str(other))
    if missing and rank == 0:
        refuse(
            f"within {seconds:g} s, these ranks of {world_size} did not come: {', '.join(missing)}. "
            "Look at what they wrote; if that is nothing, at whether their machine started them"
        )
    if missing:
        os._exit(1)
    return values


# ---- what is here -----------------------------------------------------------------------------


def interfaces() -> dict[str, dict]:
    """For each interface that is up: its name, its address, and the speed that its card reports, in Mb/s."""
    import fcntl  # Windows has none

    found = {}
    for _, name in socket.if_nameindex():
        asked = struct.pack("256s", name.encode()[:15])
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe, contextlib.suppress(OSError):
            answer = fcntl.ioctl(probe.fileno(), ASK_FOR_ADDRESS, asked)
            speed = None
            with contextlib.suppress(OSError, ValueError):
                speed = int(Path(f"/sys/class/net/{name}/speed").read_text())
            # A virtual card may report -1, and /sys may belong to a different network namespace.
            found[name] = {"address": socket.inet_ntoa(answer[20:24]), "speed": max(speed or 0, 0) or None}
    return found


def offered_address(found: dict[str, dict]) -> str:
    """The address that gloo would offer to other ranks: GLOO_SOCKET_IFNAME's, or that of the host's name."""
    for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
        if os.environ.get(name) in found:
            return found[os.environ[name]]["address"]
    with contextlib.suppress(OSError):
        address = socket.gethostbyname(socket.gethostname())
        if address in {one["address"] for one in found.values()} or address.startswith("127."):
            return address
    return "127.0.0.1"  # gloo falls back to this


def route_to(address: str) -> str:
    """This machine's address from which packets to `address` leave."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((address, 9))  # sends nothing
            return probe.getsockname()[0]
        except OSError:
            return NO_ADDRESS


def driver() -> str:
    if not shutil.which("nvidia-smi"):
        return "none"
    words = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    said = subprocess.run(words, capture_output=True, text=True, timeout=30).stdout.split()
    return said[0] if said else "none"


def free_memory() -> int | None:
    """Bytes, or None if neither Linux nor psutil, which torch does not need, is there to say it."""
    about = Path("/proc/meminfo")
    if about.exists():
        return int(re.search(r"MemAvailable: +(\d+)", about.read_text())[1]) * 1024
    with contextlib.suppress(ImportError):
        import psutil

        return psutil.virtual_memory().available
    return None


def count_cores() -> int:
    """The cores that this process may use. macOS lets every process use all."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()


def describe_script(path: Path | None) -> str | None:
    """The first digits of the hash of a file."""
    if path is None:
        return None
    return hashlib.sha256(path.read_bytes()).hexdigest()[:12] if path.is_file() else "missing"


def describe_data(folder: Path | None) -> str | None:
    """How many files and bytes are in a folder, and a hash of the names and sizes of the files."""
    if folder is None:
        return None
    files = sorted(
        (str(path.relative_to(folder)), path.stat().st_size) for path in folder.rglob("*") if path.is_file()
    )
    names = hashlib.sha256(json.dumps(files).encode()).hexdigest()[:12]
    return (
        f"{len(files):,} files of {sum(size for _, size in files):,} bytes ({names})" if files else "missing"
    )


def examine(device: torch.device, options: argparse.Namespace) -> dict:
    """The versions, memory, addresses and files of this rank."""
    found = interfaces()
    is_gpu = device.type == "cuda"
    return {
        "host": socket.gethostname(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda or "none",
        "nccl": ".".join(map(str, torch.cuda.nccl.version())) if is_gpu else "none",
        "driver": driver(),
        "device": torch.cuda.get_device_name(device) if is_gpu else "cpu",
        "gpu": str(torch.cuda.get_device_properties(device).uuid) if is_gpu else None,
        "cores": count_cores(),
        "memory": free_memory(),
        "/dev/shm": shutil.disk_usage("/dev/shm").free if Path("/dev/shm").exists() else None,
        "gpu_memory": torch.cuda.mem_get_info(device)[0] if is_gpu else None,
        "interfaces": found,
        "address": offered_address(found),
        "route": route_to(os.environ["MASTER_ADDR"]),
        "script": describe_script(options.script),
        "data": describe_data(options.data),
    }


def share_gpus(rank: int, seen: list[dict]) -> None:
    """Let ranks of a machine share a GPU if SHARE_GPU=1 allows it. Otherwise end all ranks with one line.

    LOCAL_RANK and the number of GPUs do not show which ranks share a GPU: with srun --gpus-per-task=1, each
    process sees one GPU, and each process sees a different GPU.
    """
    first, sharing = {}, []
    for other, one in enumerate(seen):
        if one["gpu"] and first.setdefault((one["host"], one["gpu"]), other) != other:
            sharing.append(other)
    if sharing and os.environ.get("SHARE_GPU") != "1":
        if rank != 0:
            time.sleep(5)  # torchrun ends all processes as soon as one has ended, so let rank 0 print first
            os._exit(1)
        refuse(
            f"too few GPUs: {ranks_in_words(sharing)} would share a GPU with another rank of the same "
            "machine. Put SHARE_GPU=1 in front of the command to let them share, "
            "or CUDA_VISIBLE_DEVICES=-1 to use the CPU"
        )
    if rank in sharing:
        # NCCL does not let two processes of a machine share a GPU, so pretend to be another machine.
        os.environ["NCCL_HOSTID"] = f"{socket.gethostname()}-{os.getpid()}"


def check_shared(page: Page, store, rank: int, seen: list[dict], folder: Path, seconds: float) -> None:
    """Check that each rank finds what rank 0 writes into this folder, and that its disk has room."""
    ticket, free = folder / "preflight.ticket", None
    with contextlib.suppress(OSError):
        free = shutil.disk_usage(folder).free
    if rank == 0:
        with contextlib.suppress(OSError):
            ticket.write_text(str(time.time_ns()))
    written = ticket.read_text() if rank == 0 and ticket.is_file() else None
    written = gather(store, "written", rank, len(seen), written, seconds)[0]
    is_there, deadline = False, time.monotonic() + 3  # a network file system may be some seconds behind
    while not is_there and time.monotonic() < deadline:
        is_there = written is not None and ticket.is_file() and ticket.read_text() == written
        time.sleep(0.1)
    found = gather(store, "shared", rank, len(seen), [is_there, free], seconds)
    if rank == 0:
        ticket.unlink(missing_ok=True)
    if written is None:
        page.problems.append(
            f"{seen[0]['host']} cannot write into --shared {folder}: create it, or look at its owner"
        )
        return
    blind = {one["host"] for one, (there, _) in zip(seen, found, strict=True) if not there}
    for host in sorted(blind):
        page.problems.append(
            f"{host} does not see in {folder} what {seen[0]['host']} wrote there: mount the same disk on both"
        )
    least = min(room for _, room in found if room is not None)
    page.lines.append(f"  {'shared':10} {folder}: at least {in_gb(least)} free")
    if least < LITTLE:
        page.problems.append(f"the disk of --shared {folder} has {in_gb(least)} free: snapshots need more")


# ---- the links --------------------------------------------------------------------------------


def knock(store, rank: int, world_size: int, seen: list[dict], seconds: float) -> list:
    """Each rank connects to the next rank, at the address that the next rank offers and at a free port.

    A process group needs these connections. If one fails, the group waits and does not say for which rank.
    """
    listener = socket.create_server(("", 0), backlog=world_size)
    ports = gather(store, "port", rank, world_size, listener.getsockname()[1], seconds)
    following = (rank + 1) % world_size
    problem = None
    try:
        place = (seen[following]["address"], ports[following])
        with socket.create_connection(place, timeout=seconds) as caller:
            caller.sendall(struct.pack("I", rank))
    except OSError as error:
        problem = f"{error.strerror or error}"
    # All ranks have tried to connect before the first one closes its port.
    problems = gather(store, "knocked", rank, world_size, problem, 2 * seconds + 5)
    listener.close()
    return problems


def carry(tensor: torch.Tensor, rank: int, source: int, target: int) -> None:
    """Send the tensor from one rank to another. Both ranks call this function.

    A batch of one message, because NCCL warns about messages outside a batch, in four lines on each rank.
    """
    kind, other = (dist.isend, target) if rank == source else (dist.irecv, source)
    for work in dist.batch_isend_irecv([dist.P2POp(kind, tensor, other)]):
        work.wait()


def one_way(rank: int, source: int, target: int, device: torch.device, limit: float) -> float:
    """Bytes per second from one rank to another, as the source sees it. It takes about `limit` seconds."""
    if rank not in (source, target):
        return 0.0
    goes_on, answer = torch.ones(1, device=device), torch.zeros(1, device=device)

    def there_and_back(tensor):
        start = time.perf_counter()
        carry(tensor, rank, source, target)
        carry(answer, rank, target, source)
        answer.item()
        return time.perf_counter() - start

    there_and_back(
        goes_on
    )  # NCCL connects here. Inside the limit, this would leave time only for the smallest size
    best, began, size = 0.0, time.monotonic(), 2**16
    while goes_on.item():
        tensor = torch.zeros(size, dtype=torch.uint8, device=device)
        # The first message may wait for the other rank, or for a connection.
        quickest = min([there_and_back(tensor) for _ in range(3)][1:])
        best = max(best, size / quickest)
        # Both ranks must go on, or both must stop: the source decides.
        goes_on.fill_(size < 2**26 and 3 * 4 * quickest < limit - (time.monotonic() - began))
        carry(goes_on, rank, source, target)
        size *= 4
    return best


def apart(rank: int, world_size: int, device: torch.device) -> float:
    """The seconds by which this rank's clock is ahead of rank 0's, from the quickest of five exchanges."""
    found = []
    for other in range(1, world_size) if rank == 0 else [rank]:
        for _ in range(5):
            told = torch.zeros(1, dtype=torch.float64, device=device)
            start = time.time()
            carry(told, rank, 0, other)
            told.fill_(time.time())
            carry(told, rank, other, 0)
            answer, end = told.item(), time.time()
            both = torch.tensor([end - start, answer - (start + end) / 2], device=device)
            carry(both, rank, 0, other)
            found.append(both.tolist())
    return min(found)[1] if rank else 0.0


def all_reduce_speed(world_size: int, device: torch.device, slowest: float) -> tuple[int, float]:
    """The tensor's bytes, and the bytes per second that each link of a ring carries in an all-reduce."""
    carried = 2 * (world_size - 1) / world_size  # bytes over each link, per byte of the tensor
    size = 2**16
    while size < 2**26 and carried * size * 4 / slowest < 0.5:  # about half a second
        size *= 4
    tensor, taken = torch.ones(size // 4, device=device), []
    for _ in range(3):
        dist.barrier()
        start = time.perf_counter()
        dist.all_reduce(tensor)
        tensor[0].item()
        taken.append(time.perf_counter() - start)
    longest = torch.tensor([min(taken)], device=device)
    dist.all_reduce(longest, op=dist.ReduceOp.MAX)
    return size, carried * size / longest.item()


def measure(page: Page, rank: int, seen: list[dict], device: torch.device, expect: float | None) -> None:
    """Measure what needs a process group (clocks, links, an all-reduce), and add its problems to the page."""
    world_size = len(seen)
    expected = expect and expect * 1e9 / 8
    speeds, sources = [0.0] * world_size, range(world_size)
    for _ in range(3):  # a link may look slow while a rank waits for a core, so measure slow links again
        found = torch.tensor(speeds, dtype=torch.float64, device=device)
        for source in sources:  # one link after the other: two may share a cable
            speed = one_way(rank, source, (source + 1) % world_size, device, limit=0.5)
            found[source] = max(speed, found[source])
        dist.all_reduce(found, op=dist.ReduceOp.MAX)
        speeds = found.tolist()
        sources = [source for source in range(world_size) if slow_link(seen, speeds, source, expected)]
        if not sources:
            break
    found = torch.zeros(world_size, device=device, dtype=torch.float64)
    found[rank] = apart(rank, world_size, device)
    dist.all_reduce(found)
    offsets = found.tolist()
    spread = max(offsets) - min(offsets)
    page.lines.append(f"  {'clocks':10} at most {spread:.3f} s apart")
    if spread > FAR:
        middle = sorted(offsets)[world_size // 2]
        wrong = max(range(world_size), key=lambda other: abs(offsets[other] - middle))
        page.problems.append(
            f"the clocks of {seen[wrong]['host']} and others are {spread:.1f} s apart: look at "
            "`chronyc tracking` there, or logs and certificates will not fit"
        )
    show_links(page, seen, speeds, expected)
    size, speed = all_reduce_speed(world_size, device, min(speeds))
    page.lines.append(
        f"all-reduce of {size / 2**20:g} MiB: {speed_in_words(speed)} over each link; it can be at most that "
        f"of the slowest, {speed_in_words(min(speeds))}"
    )


# ---- the page ---------------------------------------------------------------------------------


def ranks_in_words(ranks: list[int]) -> str:
    """ranks 0 to 3; rank 5"""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    if ranks == list(range(ranks[0], ranks[-1] + 1)):
        return f"ranks {ranks[0]} to {ranks[-1]}"
    return f"ranks {', '.join(map(str, ranks))}"


def count(number: int, name: str) -> str:
    if number == 1:
        return f"1 {name}"
    return f"{number} {name}s"


def by_value(seen: list[dict], name: str) -> dict:
    """Which ranks have which value."""
    found = {}
    for rank, one in enumerate(seen):
        found.setdefault(one[name], []).append(rank)
    return found


def in_gb(size: float) -> str:
    return f"{size / 1e9:.1f} GB"


def speed_in_words(speed: float) -> str:
    return f"{speed / 1e9:.2f} GB/s" if speed >= 1e8 else f"{speed / 1e6:.2f} MB/s"


def compare(page: Page, seen: list[dict]) -> None:
    """Add to the page what the ranks have, and the problems with it."""
    for name in SAME:
        values = by_value(seen, name)
        if None in values:  # the option was not given
            continue
        said = "; ".join(f"{value} on {ranks_in_words(ranks)}" for value, ranks in values.items())
        page.lines.append(
            f"  {name:10} {said if len(values) > 1 else next(iter(values)) + ', the same on all'}"
        )
        if len(values) > 1:
            page.problems.append(f"{name} differs: {said}. {SAME[name]} the same everywhere")
        elif "missing" in values:
            page.problems.append(f"--{name} is missing on all ranks: name a path that every machine has")
    for name, words in (
        ("memory", "of free memory: look who has the rest"),
        ("/dev/shm", "free in /dev/shm, which NCCL and loader workers use"),
    ):
        known = [(one[name], one["host"]) for one in seen if one[name] is not None]
        if not known:  # macOS has no /dev/shm
            continue
        free, host = min(known)
        page.lines.append(f"  {name:10} at least {in_gb(free)} free, on {host}")
        if free < LITTLE:
            page.problems.append(f"{host} has {in_gb(free)} {words}")
    gpus = [(one["gpu_memory"], rank) for rank, one in enumerate(seen) if one["gpu_memory"] is not None]
    if gpus:
        free, rank = min(gpus)
        page.lines.append(f"  {'GPU memory':10} at least {in_gb(free)} free, on rank {rank}")
    cores = by_value(seen, "cores")
    said = "; ".join(f"{number} for {ranks_in_words(ranks)}" for number, ranks in cores.items())
    page.lines.append(f"  {'cores':10} {said}")


def show_addresses(page: Page, seen: list[dict]) -> None:
    """Add the address that each host offers, and a problem if it may belong to the wrong interface."""
    page.lines.append("hosts")
    several = len({one["host"] for one in seen}) > 1
    for host, ranks in by_value(seen, "host").items():
        one = seen[ranks[0]]
        names = {found["address"]: name for name, found in one["interfaces"].items()}
        others = [
            f"{name} {found['address']}" + (f" ({found['speed']:,} Mb/s)" if found["speed"] else "")
            for name, found in one["interfaces"].items()
        ]
        offered = f"{one['address']} ({names.get(one['address'], 'an address that it does not have')})"
        page.lines.append(f"  {host:10} {ranks_in_words(ranks)}; offers {offered}; has {', '.join(others)}")
        right = names.get(one["route"])
        if several and one["address"] != one["route"] and right and right != "lo":
            page.problems.append(
                f"{host} offers {offered} to the others, but the way to {os.environ['MASTER_ADDR']} leaves "
                f"from {one['route']}: set GLOO_SOCKET_IFNAME={right} and NCCL_SOCKET_IFNAME={right}"
            )


def link_names(seen: list[dict], rank: int) -> str:
    following = (rank + 1) % len(seen)
    return f"{rank} -> {following} ({seen[rank]['host']} -> {seen[following]['host']})"


def slow_link(seen: list[dict], speeds: list[float], rank: int, expected: float | None) -> str:
    """What the link to the next rank was compared with if it is slow, or "" if it is not slow."""
    hosts = [one["host"] for one in seen]
    inside = [hosts[rank] == hosts[(rank + 1) % len(hosts)] for rank in range(len(hosts))]
    if inside[rank] and seen[rank]["device"] == "cpu":
        return ""  # no cable: inside a machine without GPUs, the speed depends on what else its cores do
    if expected and not inside[rank]:
        return f"--expect says {speed_in_words(expected)}" if speeds[rank] < expected / 2 else ""
    best = max(speed for speed, kind in zip(speeds, inside, strict=True) if kind == inside[rank])
    return f"the best link of its kind {speed_in_words(best)}" if speeds[rank] < best / SLOW else ""


def show_links(page: Page, seen: list[dict], speeds: list[float], expected: float | None) -> None:
    """Add a line for each link of the ring, and a problem for each slow link."""
    page.lines.append("links, one at a time")
    for rank, speed in enumerate(speeds):
        compared, said = slow_link(seen, speeds, rank, expected), speed_in_words(speed)
        page.lines.append(f"  {link_names(seen, rank):40} {said:>12}{'  SLOW' if compared else ''}")
        if compared:
            page.problems.append(
                f"the link {link_names(seen, rank)} carries {said}, and {compared}: "
                "its cable, its card, its port of the switch, or other traffic"
            )


def main() -> bool:
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=formatter)
    expect = "Gbit/s that a link between machines should carry: less than half is slow"
    parser.add_argument("--expect", type=float, help=expect)
    parser.add_argument("--seconds", type=float, default=10, help="to wait for a rank or a link (10)")
    parser.add_argument("--script", type=Path, help="a file that must have the same content on all machines")
    parser.add_argument("--data", type=Path, help="a folder with the same files on all machines")
    parser.add_argument("--shared", type=Path, help="a folder on a disk that all machines share")
    options = parser.parse_args()
    if os.name == "nt":
        refuse("on Windows, use WSL 2: lessons/launch/README.md#windows")
    read_environment()
    if "RANK" not in os.environ:
        refuse("start it as the run will be started: torchrun --standalone --nproc-per-node 2 preflight.py")
    began = time.monotonic()
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
        torch.cuda.set_device(device)
    store = connect_store(rank, world_size, 3 * options.seconds)
    seen = gather(store, "seen", rank, world_size, examine(device, options), 3 * options.seconds)
    share_gpus(rank, seen)
    backend = dist.get_default_backend_for_device(device)
    hosts = len(by_value(seen, "host"))
    page = Page()
    page.lines.append(f"{count(world_size, 'rank')} on {count(hosts, 'host')}, by {backend}")
    compare(page, seen)
    if options.shared:
        check_shared(page, store, rank, seen, options.shared, 3 * options.seconds)
    show_addresses(page, seen)
    if world_size == 1:
        return page.finish(rank)

    reasons = knock(store, rank, world_size, seen, options.seconds)
    for source, reason in enumerate(reasons):
        if reason is not None:
            target = seen[(source + 1) % world_size]
            page.problems.append(
                f"the link {link_names(seen, source)} is dead: no connection to {target['address']}, "
                f"which {target['host']} offers ({reason})"
            )
    if reasons.count(None) < world_size:
        page.finish(rank)
        store.set(f"done/{rank}", "yes")
        if rank == 0:  # rank 0 hosts the store, so it must outlive the other ranks' reads
            for other in range(world_size):
                with contextlib.suppress(dist.DistError):
                    store.wait([f"done/{other}"], timedelta(seconds=5))
        return 1

    dist.init_process_group(
        backend,
        store=dist.PrefixStore("group", store),
        rank=rank,
        world_size=world_size,
        timeout=timedelta(seconds=6 * options.seconds),
        device_id=None if device.type == "cpu" else device,
    )
    measure(page, rank, seen, device, options.expect)
    page.lines.append(f"{time.monotonic() - began:.1f} s, without the start")
    is_wrong = page.finish(rank)
    dist.barrier()
    dist.destroy_process_group()
    return is_wrong


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    os._exit(status)
