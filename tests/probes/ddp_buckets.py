"""DDP without and with gradient_as_bucket_view: bytes of its buckets, and with the gradients; RANK.json."""

import gc
import json
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel

import workload


def measure(view):
    model = DistributedDataParallel(workload.ConvNet((1, 28, 28)), gradient_as_bucket_view=view)
    buckets = []

    def note_bucket(state, bucket):
        buckets.append(bucket.buffer().untyped_storage())
        return allreduce_hook(state, bucket)

    model.register_comm_hook(None, note_bucket)
    for _ in range(2):  # after the first backward pass, DDP makes its buckets anew
        buckets.clear()
        model.zero_grad()
        model(torch.zeros(2, 1, 28, 28)).sum().backward()
    places = {storage.data_ptr(): storage.nbytes() for storage in buckets}
    size_of_buckets = sum(places.values())
    for parameter in model.parameters():
        storage = parameter.grad.untyped_storage()
        places[storage.data_ptr()] = storage.nbytes()
    return size_of_buckets, sum(places.values())


dist.init_process_group("gloo")
found = [measure(view) for view in (False, True)]
Path(f"{dist.get_rank()}.json").write_text(json.dumps(found))
gc.collect()
dist.destroy_process_group()
