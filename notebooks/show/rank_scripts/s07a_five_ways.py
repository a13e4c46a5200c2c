"""Ways to train one model on several processes with fewer or smaller messages, and a run of each.

Notebook 07a shows these functions and runs them. tools/makers/bench/slow_links.py runs them over slow links.
"""

import json
import os
import time
from datetime import timedelta
from types import SimpleNamespace

import torch
import torch.distributed as dist
from sockets import count_bytes
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import parameters_to_vector, vector_to_parameters
from torch.utils.data import DataLoader, DistributedSampler

import workload


def never(step):
    """DDP communicates in each backward pass: nothing is left to do after a step."""


def ddp(model):
    return DistributedDataParallel(model), never


def in_16_bits(group, bucket):
    """DDP accepts bf16_compress_hook only for NCCL, and checks its name.

    Gloo can do what this hook asks for, so it needs another name.
    """
    return bf16_compress_hook(group, bucket)


def bf16(model):
    model = DistributedDataParallel(model)
    model.register_comm_hook(None, in_16_bits)
    return model, never


def power_sgd(model, approximation_rank=2):
    model = DistributedDataParallel(model)
    state = PowerSGDState(None, int(approximation_rank), start_powerSGD_iter=10)
    model.register_comm_hook(state, powerSGD_hook)
    return model, never


def local_sgd(model, steps_alone=20):
    parameters = list(model.parameters())

    def average_weights(step):
        if step % steps_alone == 0:
            weights = parameters_to_vector(parameters).detach()
            dist.all_reduce(weights)
            vector_to_parameters(weights / dist.get_world_size(), parameters)

    return model, average_weights


def diloco(model, steps_alone=20, rate=0.7, momentum=0.5):
    parameters = list(model.parameters())
    start = parameters_to_vector(parameters).detach()  # the same on all processes
    outer = torch.optim.SGD([start], rate, momentum, nesterov=True)

    def outer_step(step):
        if step % steps_alone == 0:
            start.grad = start - parameters_to_vector(parameters).detach()
            dist.all_reduce(start.grad)
            start.grad /= dist.get_world_size()
            outer.step()
            # A copy: the parameters become views of it, and inner steps change them.
            vector_to_parameters(start.clone(), parameters)

    return model, outer_step


WAYS = {"ddp": ddp, "bf16": bf16, "power_sgd": power_sgd, "local_sgd": local_sgd, "diloco": diloco}


def start(way):
    """A way by its name: "diloco 100" is diloco(model, 100)."""
    name, *options = way.split()
    workload.set_seed(0)
    return WAYS[name](workload.ConvNet((1, 28, 28)), *map(float, options))


def batches(train_set, epoch, size, world_size):
    """Lesson 04's images, in its order."""
    sampler = DistributedSampler(train_set, seed=0, drop_last=True)
    sampler.set_epoch(epoch)
    return DataLoader(
        train_set, size // world_size, sampler=sampler, drop_last=True, collate_fn=workload.collate
    )


@torch.no_grad()
def accuracy(model, test_set):
    """Each process tests its shard of the images."""
    images, labels = test_set[list(range(dist.get_rank(), len(test_set), dist.get_world_size()))]
    correct = (model(images).argmax(dim=1) == labels).sum()
    dist.all_reduce(correct)
    return correct.item() / len(test_set)


def train(way, sets, epochs, look_every, enough=1.1, batch_size=120):
    """A row for every `look_every` steps: steps, seconds and bytes so far (without those of the tests), the
    loss since the last row, and the accuracy. Ends when the accuracy is `enough`."""
    train_set, test_set = sets
    model, meet = start(way)
    inner = model.module if isinstance(model, DistributedDataParallel) else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.04, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs)
    rows = []
    step, seconds, sent = 0, 0.0, 0
    loss_sum = torch.zeros(())
    dist.barrier()
    begin, before = time.perf_counter(), count_bytes()
    for epoch in range(1, epochs + 1):
        for images, labels in batches(train_set, epoch, batch_size, dist.get_world_size()):
            loss = cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            meet(step)
            loss_sum += loss.detach()
            if step % look_every == 0:
                dist.barrier()  # the slowest process counts
                seconds += time.perf_counter() - begin
                if before:  # only Linux counts the bytes
                    sent += count_bytes()[0] - before[0]
                dist.all_reduce(loss_sum)
                rows.append(
                    {
                        "step": step,
                        "seconds": seconds,
                        "sent": sent,
                        "loss": loss_sum.item() / look_every / dist.get_world_size(),
                        "accuracy": accuracy(inner, test_set),
                    }
                )
                if rows[-1]["accuracy"] >= enough:
                    return rows
                loss_sum = torch.zeros(())
                dist.barrier()
                begin, before = time.perf_counter(), count_bytes()
        scheduler.step()
    return rows


def main():
    """Run what RUNS lists: the arguments of train() for each run."""
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    runs, sizes = json.loads(os.environ["RUNS"]), json.loads(os.environ["SIZES"])
    sets = workload.load_images(SimpleNamespace(data="digits", train_size=sizes[0], test_size=sizes[1]))
    store, limit = f"file://{os.environ['STORE']}", timedelta(seconds=120)
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=world_size, timeout=limit)
    found = [train(sets=sets, **run) for run in runs]
    with open(os.environ["RESULT"], "w") as file:
        json.dump(found, file)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
