"""Runs into one of the errors that lessons/pages/errors.md lists, as a reader would: the argument names it.

test_errors.py and test_statements.py start it, with torchrun where it needs two processes, and read what it
prints.
"""

import copy
import io
import json
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
from torch.distributed import run
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel
from torch.nn.parallel._functions import Gather
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, Dataset, DistributedSampler, IterableDataset

RANK, WORLD = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
SECONDS = 3  # how long a collective waits that cannot succeed
SECOND = timedelta(seconds=1)
NUMBERS = [torch.ones(1) for _ in range(400)]


def group():
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))


def sum_up(tensor):
    group()
    dist.all_reduce(tensor)


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def store(host="localhost", is_master=False):
    """Of two processes, of which the other one does not come."""
    dist.TCPStore(host, free_port(), 2, is_master=is_master, timeout=SECOND)


def ddp(model, **options):
    group()
    return DistributedDataParallel(model, **options)


def train(model):
    for _ in range(2):
        model(torch.ones(1, 2)).sum().backward()


def kill(number=signal.SIGKILL):
    os.kill(os.getpid(), number)


def raises():
    raise ValueError("of the script")


def child(function):
    mp.start_processes(lambda rank: function(), nprocs=1, start_method="fork")


def linear(out=2, **options):
    return nn.Linear(2, out, **options)


def sampler(dataset=NUMBERS, rank=0):
    return DistributedSampler(dataset, num_replicas=2, rank=rank)


# ---- starting ----


def rank_not_set():
    for name in ("RANK", "WORLD_SIZE"):
        os.environ.pop(name, None)
    dist.init_process_group("gloo")


def group_twice():
    group()
    group()


def port_taken():
    with socket.socket(socket.AF_INET6) as other:
        other.bind(("::", 0))
        other.listen()
        dist.TCPStore("localhost", other.getsockname()[1], is_master=True)


def nested_function():
    mp.start_processes(lambda rank: None, nprocs=1, start_method="spawn")


def no_operators():
    """What torchvision does on import, in a new Python: the fork server has declared this operator."""
    code = "import torch; torch.library.register_fake('torchvision::nms')(print)"
    os.execv(sys.executable, [sys.executable, "-c", code])


def threads_not_set():
    os.environ.pop("OMP_NUM_THREADS", None)
    run.config_from_args(run.parse_args(["--nproc-per-node", "2", "train.py"]))


# ---- meeting ----


def interface_unknown():
    os.environ["GLOO_SOCKET_IFNAME"] = "eth9"
    dist.init_process_group("gloo")


def rank_never_joins():
    store = dist.TCPStore("localhost", free_port(), is_master=True)
    dist.init_process_group("gloo", store=store, rank=0, world_size=2, timeout=SECOND)


def addresses_of_an_old_run():
    path = Path("store").absolute()
    first = mp.start_processes(joins, (path, 60), nprocs=2, join=False, start_method="fork")
    while not first.join():  # both end without a word, and leave the file
        pass
    # Rank 0 alone: if rank 1 came too and was quick, rank 0 would read its new address.
    mp.start_processes(joins, (path, 5), nprocs=1, start_method="fork")


def killed_with_a_lock():
    """As a progress bar has it where processes are not forked by default."""
    lock = mp.get_context("spawn").RLock()
    with lock:
        os.kill(os.getpid(), signal.SIGKILL)


def joins(rank, path, seconds):
    options = {"rank": rank, "world_size": 2, "timeout": timedelta(seconds=seconds)}
    dist.init_process_group("gloo", init_method=f"file://{path}", **options)
    dist.barrier()
    os._exit(0)


def launcher_gets(number):
    os.kill(os.getppid(), number)
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
        kill()
    # torchrun sends SIGTERM as soon as it sees the killed process, perhaps before the message.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    dist.all_reduce(torch.ones(1))


def other_collective():
    dist.set_debug_level(dist.DebugLevel.DETAIL)
    sum_up(torch.ones(1 + RANK))


def of_all_ranks(value):
    """Print what each rank has, on rank 0, where there is no message."""
    group()
    values = [None] * WORLD
    dist.all_gather_object(values, value)
    dist.destroy_process_group()
    if RANK == 0:
        print(values)


def own_plateau():
    optimizer = torch.optim.SGD(linear().parameters(), lr=1)
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0)
    for epoch in range(2):
        scheduler.step(1 - RANK * epoch)  # the loss of rank 0 stays, and that of rank 1 falls
    of_all_ranks(optimizer.param_groups[0]["lr"])


class Model(nn.Module):
    """Its parts, one after the other; the first is left out or run twice."""

    def __init__(self, is_used):
        super().__init__()
        self.first, self.last, self.is_used = linear(), linear(), is_used

    def forward(self, inputs):
        inputs = self.last(inputs)
        for _ in range(2 if self.is_used else 0):
            inputs = checkpoint(self.first, inputs, use_reentrant=True)
        return inputs


def mixed_dtensor():
    group()
    model = fully_shard(linear(), mesh=dist.init_device_mesh("cpu", (WORLD,)))
    nn.functional.linear(torch.ones(1, 2), model.weight)


class LanguageModel(nn.Module):
    """Its block is sharded on its own, and its embedding with the whole model."""

    def __init__(self):
        super().__init__()
        self.embed, self.block = nn.Embedding(4, 2), linear()
        for module in (self.block, self):
            fully_shard(module, mesh=dist.init_device_mesh("cpu", (WORLD,)))

    def forward(self, tokens):
        return self.block(self.embed(tokens))

    def generate(self, tokens):
        return self.forward(tokens)


def other_method():
    group()
    LanguageModel().generate(torch.tensor([1, 2]))


def part_of_the_model():
    group()
    LanguageModel().embed(torch.tensor([1, 2]))


def block_before_the_model():
    group()
    model = LanguageModel()
    model.block(torch.ones(1, 2))
    model(torch.tensor([1, 2]))


def plain_tensor():
    group()
    mesh = dist.init_device_mesh("cpu", (WORLD,))
    dist.tensor.distribute_tensor(torch.ones(2, 2), mesh) + torch.ones(2, 2)


def frozen_and_trained():
    group()
    model = nn.Sequential(linear().requires_grad_(False), linear())
    FullyShardedDataParallel(model, device_id=torch.device("cpu"))


def all_heads():
    group()
    heads, head_size = 4, 2
    layer = nn.Linear(8, heads * head_size)
    parallelize_module(layer, dist.init_device_mesh("cpu", (WORLD,)), ColwiseParallel())
    layer(torch.ones(1, 3, 8)).view(1, 3, heads, head_size)


def step_before_backward():
    model = ddp(nn.Sequential(linear(), linear()))
    optimizer = torch.optim.SGD(model.parameters(), lr=1)
    early = model(torch.ones(1, 2))
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    early.sum().backward()


def rows_of_each():
    group()
    rows = [torch.zeros(2), torch.zeros(3)]
    dist.all_gather(rows, torch.ones(2 + RANK))


def many_lengths():
    double = torch.compile(lambda values: 2 * values, backend="eager", dynamic=False)
    for length in range(1, 12):
        double(torch.ones(length))


def step_on_shards(optimizer_of, **options):
    group()
    model = fully_shard(linear())
    optimizer = optimizer_of(model.parameters(), **options)
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()


def no_rule_for_fused_sgd():
    step_on_shards(torch.optim.SGD, lr=1, fused=True)


def no_rule_for_adafactor():
    step_on_shards(torch.optim.Adafactor)


def no_inf_checks():
    group()
    model, scaler = linear(), torch.amp.GradScaler("cpu")
    optimizer = torch.optim.SGD(model.parameters(), lr=1)  # too early: the parameters are replaced below
    fully_shard(model, mesh=dist.init_device_mesh("cpu", (WORLD,)))
    scaler.scale(model(torch.ones(1, 2)).sum()).backward()
    scaler.step(optimizer)


def copied_after_sharding():
    group()
    model = nn.Linear(2, 2)
    fully_shard(model)
    copy.deepcopy(model)


def mesh_too_large():
    group()
    init_device_mesh("cpu", (2, 2))


# ---- saving ----


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


def other_groups():
    one, two = (torch.optim.SGD(linear(bias=bias).parameters(), lr=1) for bias in (True, False))
    one.load_state_dict(two.state_dict())


def key_not_in_checkpoint():
    group()
    dcp.save({"model": {"weight": torch.ones(2)}}, checkpoint_id="here")
    dcp.load({"model": {"other": torch.ones(2)}}, checkpoint_id="here")


def one_part_of_the_state():
    from torch.distributed.optim import ZeroRedundancyOptimizer  # it warns, which ends the other probes

    group()
    optimizer = ZeroRedundancyOptimizer(nn.Linear(2, 2).parameters(), torch.optim.SGD, lr=0.1)
    optimizer.state_dict()


# ---- loading data ----


class Kills(Dataset):
    def __init__(self, number):
        self.number = number

    def __len__(self):
        return 4

    def __getitem__(self, index):
        kill(self.number) if self.number else sys.exit(1)


def first_of(dataset):
    next(iter(DataLoader(dataset, num_workers=1)))


class Endless(IterableDataset):
    def __iter__(self):
        yield from torch.ones(4)


def too_many_files():
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
    list(DataLoader(NUMBERS, num_workers=1, batch_size=None))


# ---- what pages say, where there is no message ----


def only_rank_0(correct):
    """Rank 0 calls a collective alone, and then all processes sum up the loss."""
    group()
    if RANK == 0:
        dist.all_reduce(correct)
        print("correct:", correct.item(), flush=True)
    dist.all_reduce(torch.tensor([0.25]))
    os._exit(0)  # rank 1: as a fork it would otherwise wait for rank 0


def environment():
    print(json.dumps(dict(os.environ)))


def tied(and_parent):
    """The difference of two tied weights after a step, if each is sharded by its own call."""
    group()
    model = nn.Sequential(linear(bias=False), linear(bias=False))
    model[1].weight = model[0].weight
    for module in (*model, model) if and_parent else model:
        fully_shard(module, mesh=dist.init_device_mesh("cpu", (WORLD,)))
    model(torch.ones(1, 2)).sum().backward()
    torch.optim.SGD(model.parameters(), lr=1).step()
    difference = model[0].weight.full_tensor() - model[1].weight.full_tensor()
    print(difference.abs().max().item() > 0)


# ---- what one expression runs into ----

CASES = {
    "also_shards_the_parent": lambda: tied(and_parent=True),
    "attribute_of_data_parallel": lambda: nn.DataParallel(linear()).fc,
    "attribute_of_the_model": lambda: ddp(nn.Sequential(linear())).fc,
    "breakpoint_without_terminal": lambda: breakpoint(),
    "child_exits": lambda: child(lambda: sys.exit(1)),
    "child_raises": lambda: child(raises),
    "client_missing": lambda: store(is_master=True),
    "device_ids": lambda: ddp(linear(), device_ids=[0]),
    "disk_full": lambda: torch.save(torch.ones(1000000), "/dev/full"),
    "global_batch": lambda: nn.LSTM(3, 64, 2)(torch.ones(5, 10, 3), (torch.zeros(2, 20, 64),) * 2),
    "host_memory": lambda: torch.empty(1 << 50),
    "killed": kill,
    "launcher_hangs_up": lambda: launcher_gets(signal.SIGHUP),
    "launcher_told_to_stop": lambda: launcher_gets(signal.SIGTERM),
    # The warning comes before the step that needs GPUs.
    "losses_of_data_parallel": lambda: Gather.apply(0, 0, *[torch.ones((), device="meta")] * 2),
    "meta_tensor": lambda: linear(device="meta").to("cpu"),
    "module_names": lambda: linear().load_state_dict(ddp(linear()).state_dict()),
    "name_unknown": lambda: store("no-such-host.invalid"),
    "killed_with_a_lock": killed_with_a_lock,
    "own_name_unknown": lambda: store("no-such-host.invalid"),  # torchrun looks for its own host like this
    "nccl_without_gpu": lambda: dist.init_process_group("nccl"),
    "no_group": lambda: dist.all_reduce(torch.ones(1)),
    "no_cuda": lambda: torch.cuda.set_device(0),
    "no_sampler": lambda: of_all_ranks(next(iter(DataLoader(range(4), batch_size=2))).tolist()),
    "none_unused": lambda: train(ddp(linear(), find_unused_parameters=True)),
    "not_the_parent": lambda: tied(and_parent=False),
    "nothing_to_train": lambda: ddp(linear().requires_grad_(False)),
    "one_example": lambda: nn.BatchNorm1d(2)(torch.randn(1, 2)),
    "only_rank_0_counts": lambda: only_rank_0(torch.tensor([80])),
    "only_rank_0_sums": lambda: only_rank_0(torch.tensor([80.0])),
    "other_count_of_parameters": lambda: ddp(nn.Sequential(*[linear() for _ in range(1 + RANK)])),
    "other_model": lambda: linear().load_state_dict(linear(3).state_dict()),
    "other_shape_of_parameters": lambda: ddp(linear(2 + RANK)),
    "other_sizes": lambda: sum_up(torch.ones(1 + RANK * 1000)),
    "raised": raises,
    "rank_out_of_range": lambda: sampler(rank=2),
    "ready_twice": lambda: train(ddp(Model(is_used=True))),
    "sampler_of_iterable": lambda: DataLoader(Endless(), sampler=sampler()),
    "sampler_without_group": lambda: DistributedSampler(NUMBERS),
    "server_missing": store,
    "shuffle_and_sampler": lambda: DataLoader(NUMBERS, sampler=sampler(), shuffle=True),
    "sync_batch_norm": lambda: ddp(nn.SyncBatchNorm(2)),
    "too_many_workers": lambda: DataLoader(NUMBERS, num_workers=1000),
    "unused_parameter": lambda: train(ddp(Model(is_used=False))),
    "worker_bus_error": lambda: first_of(Kills(signal.SIGBUS)),
    "worker_exits": lambda: first_of(Kills(0)),
    "worker_killed": lambda: first_of(Kills(signal.SIGKILL)),
}

if __name__ == "__main__":
    try:
        (CASES | globals())[sys.argv[1]]()
    except Exception:
        # As in a launch without forks: which process fails first is a race, and torchrun reports only one.
        traceback.print_exc()
        sys.stderr.flush()
        raise
