"""Runs into one of the errors that lessons/pages/errors.md lists, as a reader would: the argument names it.

test_errors.py starts it, with torchrun where an error needs two processes, and reads what it prints.
"""

import io
import os
import resource
import signal
import socket
import sys
import time
import traceback
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.distributed.nn  # before init_process_group, or gloo may abort the process at exit
import torch.multiprocessing as mp
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, Dataset, DistributedSampler, IterableDataset, TensorDataset

RANK, WORLD = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
SECONDS = 3  # how long a collective waits that cannot succeed


def group():
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def ddp(model, **options):
    group()
    return DistributedDataParallel(model, **options)


def numbers(count=8):
    return TensorDataset(torch.randn(count, 2))


# ---- starting ----


def rank_not_set():
    for name in ("RANK", "WORLD_SIZE"):
        os.environ.pop(name, None)
    dist.init_process_group("gloo")


def no_group():
    dist.all_reduce(torch.ones(1))


def group_twice():
    group()
    group()


def port_taken():
    with socket.socket(socket.AF_INET6) as other:
        other.bind(("::", 0))
        other.listen()
        port = other.getsockname()[1]
        dist.TCPStore("localhost", port, is_master=True)


def nested_function():
    def train(rank):
        pass

    mp.start_processes(train, nprocs=1, start_method="spawn")


def child_raises():
    mp.start_processes(raises, nprocs=1, start_method="fork")


def raises(rank):
    raise ValueError("of the script")


def child_killed():
    mp.start_processes(kills_itself, nprocs=1, start_method="fork")


def kills_itself(rank):
    os.kill(os.getpid(), signal.SIGKILL)


def nccl_without_gpu():
    dist.init_process_group("nccl")


def killed():
    os.kill(os.getpid(), signal.SIGKILL)


def raised():
    raise ValueError("of the script")


# ---- meeting ----


def client_missing():
    dist.TCPStore("localhost", free_port(), 2, is_master=True, timeout=timedelta(seconds=1))


def server_missing():
    dist.TCPStore("localhost", free_port(), 2, is_master=False, timeout=timedelta(seconds=1))


def name_unknown():
    dist.TCPStore("no-such-host.invalid", 29500, 2, is_master=False, timeout=timedelta(seconds=1))


def interface_unknown():
    os.environ["GLOO_SOCKET_IFNAME"] = "eth9"
    dist.init_process_group("gloo")


def rank_never_joins():
    store = dist.TCPStore("localhost", free_port(), is_master=True)
    dist.init_process_group("gloo", store=store, rank=0, world_size=2, timeout=timedelta(seconds=1))


def addresses_of_an_old_run():
    path = Path("store").absolute()
    first = mp.start_processes(joins, (path, 60), nprocs=2, join=False, start_method="fork")
    while not first.join():  # both end without a word, and leave the file
        pass
    mp.start_processes(joins, (path, 5), nprocs=2, start_method="fork")


def joins(rank, path, seconds):
    options = {"rank": rank, "world_size": 2, "timeout": timedelta(seconds=seconds)}
    dist.init_process_group("gloo", init_method=f"file://{path}", **options)
    dist.barrier()
    os._exit(0)


def launcher_hangs_up():
    os.kill(os.getppid(), signal.SIGHUP)
    time.sleep(SECONDS + 2)


def store_gone():
    port = free_port()
    reader, writer = os.pipe()
    if os.fork() == 0:
        store = dist.TCPStore("localhost", port, 1, is_master=True)
        os.write(writer, b".")
        time.sleep(1)
        os._exit(0)
    os.read(reader, 1)
    store = dist.TCPStore("localhost", port, 1, is_master=False)
    os.wait()
    for _ in range(3):
        try:
            store.set("key", "value" * 1000)
        except dist.DistNetworkError as error:
            print(error, file=sys.stderr)
            time.sleep(0.1)


# ---- training ----


def left_out():
    group()
    # Joining the group had more time: on a busy machine it takes long, and would say something else.
    dist.distributed_c10d._set_pg_timeout(timedelta(seconds=SECONDS), dist.group.WORLD)
    if RANK == 0:
        dist.all_reduce(torch.ones(1))
    else:
        time.sleep(SECONDS + 2)


def peer_killed():
    group()
    if RANK == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    dist.all_reduce(torch.ones(1))


def other_sizes():
    group()
    dist.all_reduce(torch.ones(1 + RANK * 1000))


def other_collective():
    dist.set_debug_level(dist.DebugLevel.DETAIL)
    group()
    dist.all_reduce(torch.ones(1 + RANK))


class Two(nn.Module):
    def __init__(self):
        super().__init__()
        self.used, self.unused = nn.Linear(2, 2), nn.Linear(2, 2)

    def forward(self, inputs):
        return self.used(inputs)


def unused_parameter():
    model = ddp(Two())
    for _ in range(2):
        model(torch.ones(1, 2)).sum().backward()


def none_unused():
    model = ddp(nn.Linear(2, 2), find_unused_parameters=True)
    model(torch.ones(1, 2)).sum().backward()


class Reentrant(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.twice, self.last = nn.Linear(2, 2), nn.Linear(2, 2), nn.Linear(2, 2)

    def forward(self, inputs):
        inputs = self.first(inputs)
        for _ in range(2):
            inputs = checkpoint(self.twice, inputs, use_reentrant=True)
        return self.last(inputs)


def ready_twice():
    model = ddp(Reentrant())
    for _ in range(2):
        model(torch.ones(1, 2)).sum().backward()


def other_count_of_parameters():
    ddp(nn.Sequential(*[nn.Linear(2, 2) for _ in range(1 + RANK)]))


def other_shape_of_parameters():
    ddp(nn.Linear(2, 2 + RANK))


def nothing_to_train():
    ddp(nn.Linear(2, 2).requires_grad_(False))


def attribute_of_the_model():
    ddp(nn.Sequential(nn.Linear(2, 2))).fc  # noqa: B018


def sync_batch_norm():
    ddp(nn.SyncBatchNorm.convert_sync_batchnorm(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))))


def device_ids():
    group()
    DistributedDataParallel(nn.Linear(2, 2), device_ids=[0])


def one_example():
    nn.BatchNorm1d(2)(torch.randn(1, 2))


def mixed_dtensor():
    group()
    mesh = dist.init_device_mesh("cpu", (WORLD,))
    model = fully_shard(nn.Linear(2, 2), mesh=mesh)
    model.weight.to_local()
    nn.functional.linear(torch.ones(1, 2), model.weight)


def no_inf_checks():
    group()
    model, scaler = nn.Linear(2, 2), torch.amp.GradScaler("cpu")
    optimizer = torch.optim.SGD(model.parameters(), lr=1)  # too early: the parameters are replaced below
    fully_shard(model, mesh=dist.init_device_mesh("cpu", (WORLD,)))
    scaler.scale(model(torch.ones(1, 2)).sum()).backward()
    scaler.step(optimizer)


def host_memory():
    torch.empty(1 << 50)


# ---- saving ----


def module_names():
    model = ddp(nn.Linear(2, 2))
    nn.Linear(2, 2).load_state_dict(model.state_dict())


def other_model():
    nn.Linear(2, 2).load_state_dict(nn.Linear(2, 3).state_dict())


def more_than_weights():
    torch.save({"settings": Path("out")}, buffer := io.BytesIO())
    buffer.seek(0)
    torch.load(buffer)


def truncated():
    torch.save(torch.ones(1000), "weights.pt")
    os.truncate("weights.pt", 1000)
    torch.load("weights.pt")


def empty_file():
    Path("weights.pt").touch()
    torch.load("weights.pt")


def disk_full():
    torch.save(torch.ones(1000000), "/dev/full")


def other_groups():
    one, two = (nn.Linear(2, 2, bias=bias) for bias in (True, False))
    optimizer = torch.optim.SGD(one.parameters(), lr=1)
    optimizer.load_state_dict(torch.optim.SGD(two.parameters(), lr=1).state_dict())


def key_not_in_checkpoint():
    group()
    dcp.save({"model": {"weight": torch.ones(2)}}, checkpoint_id="here")
    dcp.load({"model": {"other": torch.ones(2)}}, checkpoint_id="here")


# ---- loading data ----


class Kills(Dataset):
    def __init__(self, number):
        self.number = number

    def __len__(self):
        return 4

    def __getitem__(self, index):
        os.kill(os.getpid(), self.number) if self.number else sys.exit(1)


def worker_exits():
    next(iter(DataLoader(Kills(0), num_workers=1)))


def worker_killed():
    next(iter(DataLoader(Kills(signal.SIGKILL), num_workers=1)))


def worker_bus_error():
    next(iter(DataLoader(Kills(signal.SIGBUS), num_workers=1)))


def shuffle_and_sampler():
    sampler = DistributedSampler(numbers(), num_replicas=2, rank=0)
    DataLoader(numbers(), sampler=sampler, shuffle=True)


def sampler_without_group():
    DistributedSampler(numbers())


def rank_out_of_range():
    DistributedSampler(numbers(), num_replicas=2, rank=2)


class Endless(IterableDataset):
    def __iter__(self):
        yield from torch.ones(4)


def sampler_of_iterable():
    DataLoader(Endless(), sampler=DistributedSampler(numbers(), num_replicas=2, rank=0))


def too_many_workers():
    DataLoader(numbers(), num_workers=1000)


def too_many_files():
    class Many(Dataset):
        def __len__(self):
            return 400

        def __getitem__(self, index):
            return torch.ones(1)

    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
    kept = []
    for item in DataLoader(Many(), num_workers=1, batch_size=None):
        kept.append(item)


if __name__ == "__main__":
    try:
        globals()[sys.argv[1]]()
    except Exception:
        # As in a launch without forks: which process fails first is a race, and torchrun reports only one.
        traceback.print_exc()
        sys.stderr.flush()
        raise
