r"""What torch.compile puts into a graph, if it compiles a model before or after wrapping.

    torchrun --standalone --nproc-per-node 2 lessons/recipes/compile.py

For each order, the table shows how many compiled graphs a forward pass runs, how many of the
12 linear layers are in them and, for DDP, when the first all-reduce begins. The backend
aot_eager needs no compiler. The backend inductor takes minutes and needs gcc.
"""

import argparse
import sys
import time
from pathlib import Path

import torch
import torch._dynamo
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

sys.path.append(str(Path(__file__).resolve().parent.parent))
import workload

WIDTH, BLOCKS = 256, 6


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.rise, self.fall = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, rows):
        return rows + self.fall(torch.nn.functional.gelu(self.rise(rows)))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(BLOCKS))

    def forward(self, rows):
        for block in self.blocks:
            rows = block(rows)
        return rows


class Counted:
    """A backend for torch.compile that counts the graphs that run, and the layers in them."""

    def __init__(self, backend):
        self.backend = torch._dynamo.lookup_backend(backend)
        self.graphs = self.layers = 0

    def __call__(self, graph, inputs):
        compiled = self.backend(graph, inputs)
        layers = sum("linear" in str(node.target) for node in graph.graph.nodes)

        def run(*values):
            self.graphs += 1
            self.layers += layers
            return compiled(*values)

        return run


def with_ddp(model, order, counted):
    if order.startswith("before"):
        model.compile(backend=counted)
    model = nn.parallel.DistributedDataParallel(model, bucket_cap_mb=2)
    if order == "after":
        model.compile(backend=counted)
    return model


def with_fsdp2(model, order, counted):
    mesh = dist.init_device_mesh("cpu", (dist.get_world_size(),))  # FSDP's default mesh would use GPUs
    if order == "before":
        model.compile(backend=counted)
    for block in model.blocks:
        if order == "each block before":
            block.compile(backend=counted)
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    if order == "after":
        model.compile(backend=counted)
    return model


def with_tensor_parallel(model, order, counted):
    if order == "before":
        model.compile(backend=counted)
    mesh = dist.init_device_mesh("cpu", (dist.get_world_size(),))
    for block in model.blocks:
        parallelize_module(block, mesh, {"rise": ColwiseParallel(), "fall": RowwiseParallel()})
    if order == "after":
        model.compile(backend=counted)
    return model


def first_message(model, rows):
    """Return the share of a backward pass after which DDP begins its first all-reduce."""
    begun = []

    def hook(_, bucket):
        begun.append(time.perf_counter())
        work = dist.all_reduce(bucket.buffer(), async_op=True)
        return work.get_future().then(lambda future: future.value()[0] / dist.get_world_size())

    model.register_comm_hook(None, hook)
    shares = []
    for _ in range(5):
        loss = model(rows).square().mean()
        begun.clear()
        start = time.perf_counter()
        loss.backward()
        shares.append((begun[0] - start) / (begun[-1] - start))
    return sorted(shares)[2]


def measure(wrap, order, backend):
    torch._dynamo.reset()
    torch.manual_seed(0)
    model, rows = Model(), torch.randn(256, WIDTH)
    counted = Counted(backend)
    model = wrap(model, order, counted)
    for _ in range(3):  # the first steps compile the model, and DDP orders its buckets
        counted.graphs = counted.layers = 0
        loss = model(rows).square().mean()
        loss.backward()
    words = f"{counted.graphs:2} graphs with {counted.layers:2} of {2 * BLOCKS} layers"
    if wrap is with_ddp:
        words += f", first all-reduce at {first_message(model, rows):4.0%} of backward"
    return words, loss.item()


def main(arguments):
    ways = {"DDP": with_ddp, "FSDP2": with_fsdp2, "tensor parallel": with_tensor_parallel}
    for name, wrap in ways.items():
        more = {"DDP": ["before, one graph"], "FSDP2": ["each block before"]}
        for order in ["never", "before", "after", *more.get(name, [])]:
            with torch._dynamo.config.patch(optimize_ddp=order != "before, one graph"):
                words, loss = measure(wrap, order, arguments.backend)
            if dist.get_rank() == 0:
                print(f"{name:15} | {order:17} | {words} | loss {loss:.4f}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--backend", default="aot_eager", help="backend of torch.compile (aot_eager)")
    arguments = parser.parse_args()
    workload.require_torchrun(__file__)
    dist.init_process_group("gloo")
    main(arguments)
    dist.destroy_process_group()
