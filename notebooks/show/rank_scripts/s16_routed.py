"""The model of lesson 16 and its steps, for the scripts of notebook 16."""

import importlib

import torch
import torch.distributed as dist
from group import rank, world_size
from sockets import count_bytes
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor
from torch.nn.functional import cross_entropy

import workload
from parts import experts, limericks

lesson = importlib.import_module("16_experts")
mesh = init_device_mesh("cpu", (world_size,))


noted = []  # for each layer that ran: how many tokens each process (row) has for each expert
gather = experts.gather


def note(own):
    noted.append(gather(own))
    return noted[-1]


experts.gather = note


def settings(**changed):
    parser = workload.parser("16_experts.py", "")
    limericks.options(parser)
    experts.options(parser)
    chosen = parser.parse_args([])
    vars(chosen).update(changed)
    return chosen


characters, train_set, test_set = limericks.load(settings())


def build(**changed):
    """The lesson's model, with the same seed on all processes."""
    workload.set_seed(0)
    model = lesson.build_model(len(characters))
    lesson.add_experts(model, mesh, settings(**changed))
    return model


def save(model, path):
    """Write the weights of all experts and of everything else. On one process, it holds all of them."""
    weights = {}
    for name, parameter in model.named_parameters():
        weights[name] = parameter.to_local() if isinstance(parameter, DTensor) else parameter
    torch.save(weights, path)


def load(path):
    """The model whose weights `save` has written."""
    model = build()
    weights = torch.load(path)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            own = parameter.to_local() if isinstance(parameter, DTensor) else parameter
            own.copy_(weights[name])
    return model


def layers(model):
    return [block.feed_forward for block in model.blocks]


def loss_of(model, texts, following):
    """The mean loss of this process's texts, and the balancing loss."""
    loss = cross_entropy(model(texts).flatten(0, 1), following.flatten())
    return loss, sum(layer.balance for layer in layers(model))


def train(steps, size, seed=0, **changed):
    """The model, and for each step the share of the tokens that went to each expert."""
    model = build(**changed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.008)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.008, steps, pct_start=0.2)
    generator, loads = torch.Generator().manual_seed(seed), []
    for _ in range(steps):
        chosen = torch.randint(len(train_set), (size,), generator=generator)
        loss, balance = loss_of(model, *train_set[chosen])
        optimizer.zero_grad()
        (loss + balance).backward()
        optimizer.step()
        scheduler.step()
        loads.append([layer.load.tolist() for layer in layers(model)])
    return model, loads


def leaving():
    """How many rows left this process in forward and backward, computed from what was noted."""
    rows = 0
    for counts in noted:
        counts = counts.unflatten(1, (world_size, -1)).sum(dim=2)  # from which process, to which
        rows += counts[rank].sum() - counts[rank, rank]  # its tokens
        rows += counts[:, rank].sum() - counts[rank, rank]  # outputs for the other processes' tokens
    return 2 * rows.item()  # twice: backward sends their gradients


def mean_of_all(loss):
    mean = loss.detach() / world_size
    dist.all_reduce(mean)
    return mean.item()


def wait_for_bytes():
    """The bytes that left this process so far, once all processes have received them."""
    dist.barrier()
    return count_bytes()


__all__ = ["build", "dist", "layers", "leaving", "lesson", "load", "loss_of", "mean_of_all"]
__all__ += ["noted", "rank", "save", "test_set", "train", "train_set", "wait_for_bytes", "world_size"]
