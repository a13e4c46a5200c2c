r"""Models that need extra care under DDP, each with the mistake and with the fix.

    torchrun --standalone --nproc-per-node 2 lessons/recipes/your_model.py

Each line shows PyTorch's error, or how far DDP's gradients are from those that one
process computes from the whole batch: "same", or the relative error.
"""

import copy
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor, Partial, Shard
from torch.nn.functional import cross_entropy, mse_loss, normalize
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DistributedSampler

sys.path.append(str(Path(__file__).resolve().parent.parent))
import workload

ROWS, WIDTH = 24, 8  # a batch has 24 rows, which 1, 2, 3 or 4 processes can share equally


def gradients(model):
    """Return all gradients in one vector. A parameter without a gradient counts as 0."""
    parts = [torch.zeros_like(p) if p.grad is None else p.grad for p in model.parameters()]
    return torch.cat([part.flatten() for part in parts])


def show(case, model, loss_of, reference=None, **options):
    """Run backward passes with DDP, and compare the gradients with those of one process.

    `loss_of` computes the mean loss over the rows that it gets. `reference` computes this
    loss on one process, which cannot gather from others.
    """
    torch.manual_seed(1)
    batch = torch.randn(ROWS, WIDTH)
    alone = copy.deepcopy(model)
    (reference or loss_of)(alone, batch).backward()
    rank, world_size = dist.get_rank(), dist.get_world_size()
    shard = batch.tensor_split(world_size)[rank]
    try:
        model = DistributedDataParallel(model, **options)
        for _ in range(2):  # DDP notices some mistakes only in the second step
            model.zero_grad()
            loss_of(model, shard).backward()
        off = gradients(model) - gradients(alone)
        off = (off.norm() / gradients(alone).norm()).item()
        result = "same" if off < 1e-5 else f"off by {off:.0%}"
    except RuntimeError as error:
        result = "RuntimeError: " + str(error).split(".")[0].split(":")[0]
    if rank == 0:
        print(f"{case:52} | {result}", flush=True)


# ---- a layer that is used twice, with activation checkpointing


class UsedTwice(nn.Module):
    def __init__(self, reentrant):
        super().__init__()
        self.first, self.layer = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.reentrant = reentrant

    def forward(self, rows):
        rows = self.first(rows)
        for _ in range(2):
            rows = checkpoint(self.layer, rows, use_reentrant=self.reentrant).tanh()
        return rows


def squares(model, rows):
    return model(rows).square().mean()


# ---- batch norm, and two forward passes before one backward pass


def norm_model():
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH), nn.Tanh())


def two_passes(model, rows):
    real, fake = rows[0::2], rows[1::2] + 1
    return model(real).square().mean() + (model(fake) - 1).square().mean()


def one_pass(model, rows):
    real, fake = model(torch.cat([rows[0::2], rows[1::2] + 1])).chunk(2)
    return real.square().mean() + (fake - 1).square().mean()


def two_passes_alone(model, rows):
    """Each shard has batch statistics of its own, as in DDP without SyncBatchNorm."""
    shards = rows.tensor_split(dist.get_world_size())
    return sum(two_passes(model, shard) for shard in shards) / len(shards)


# ---- a contrastive loss over the rows of all processes


def contrast(mine, others, first):
    """Each row's partner is its own copy in `others`, where this process's copies begin at `first`."""
    targets = torch.arange(first, first + len(mine))
    return cross_entropy(normalize(mine, dim=1) @ normalize(others, dim=1).T / 0.1, targets)


def contrast_alone(model, rows):
    return contrast(model(rows), model(rows + 0.1), 0)


def contrast_without_gradient(model, rows):
    mine, copies = model(torch.stack([rows, rows + 0.1]))
    gathered = [torch.empty_like(copies) for _ in range(dist.get_world_size())]
    dist.all_gather(gathered, copies)  # autograd does not track this call
    return contrast(mine, torch.cat(gathered), dist.get_rank() * len(rows))


def contrast_with_gradient(model, rows):
    mine, copies = model(torch.stack([rows, rows + 0.1]))
    mesh = dist.init_device_mesh("cpu", (dist.get_world_size(),))
    # Each process has only a part of each row's gradient: backward adds up the parts, and
    # sends each process the sums for its own rows.
    gathered = DTensor.from_local(copies, mesh, [Shard(0)]).full_tensor(grad_placements=[Partial()])
    return contrast(mine, gathered, dist.get_rank() * len(rows))


# ---- parameters without a gradient


class Unused(nn.Module):
    def __init__(self):
        super().__init__()
        self.used, self.unused = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, rows):
        return self.used(rows)


# ---- tied weights


class Tied(nn.Module):
    def __init__(self, tied):
        super().__init__()
        self.encode, self.decode = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        if tied:
            self.tie()

    def tie(self):
        self.decode.weight = self.encode.weight

    def forward(self, rows):
        return self.decode(self.encode(rows).tanh())


def rebuild(model, rows):
    return mse_loss(model(rows), rows)


def tie_late(model, rows):
    getattr(model, "module", model).tie()  # the weight that DDP knew no longer gets a gradient
    return rebuild(model, rows)


# ---- predictions in order


def predict(case, sampler):
    """Gather the predictions for 25 rows on rank 0, in the order of the rows."""
    torch.manual_seed(1)
    rows, model = torch.randn(25, WIDTH), nn.Linear(WIDTH, 1)
    mine = list(sampler(rows))
    with torch.no_grad():
        pairs = list(zip(mine, model(rows[mine]).squeeze(1).tolist(), strict=True))
    gathered = [None] * dist.get_world_size() if dist.get_rank() == 0 else None
    dist.gather_object(pairs, gathered)
    if dist.get_rank() == 0:
        pairs = sorted(pair for some in gathered for pair in some)
        values = torch.tensor([value for _, value in pairs])
        with torch.no_grad():
            alone = model(rows).squeeze(1)
        result = "same" if len(pairs) == 25 and values.allclose(alone) else f"{len(pairs)} predictions"
        print(f"{case:52} | {result}", flush=True)


def repeats_rows(rows):
    return DistributedSampler(rows, shuffle=False)  # this sampler repeats some rows to make shards equal


def each_row_once(rows):
    return range(dist.get_rank(), len(rows), dist.get_world_size())


def main():
    torch.manual_seed(0)
    show("layer used twice, checkpoint, use_reentrant=True", UsedTwice(True), squares)
    show("layer used twice, checkpoint, use_reentrant=False", UsedTwice(False), squares)
    show("batch norm, two forward passes", norm_model(), two_passes, two_passes_alone)
    show("batch norm, both halves in one pass", norm_model(), one_pass, two_passes_alone)
    linear = nn.Linear(WIDTH, WIDTH)
    show("contrastive loss, dist.all_gather", linear, contrast_without_gradient, contrast_alone)
    show("contrastive loss, full_tensor()", linear, contrast_with_gradient, contrast_alone)
    show("unused parameters", Unused(), squares)
    show("unused parameters, find_unused_parameters=True", Unused(), squares, find_unused_parameters=True)
    show("tied weights, tied after DDP was made", Tied(False), tie_late)
    show("tied weights, tied before", Tied(True), rebuild)
    predict("25 predictions, DistributedSampler", repeats_rows)
    predict("25 predictions, range(rank, 25, world_size)", each_row_once)


if __name__ == "__main__":
    workload.require_torchrun(__file__)
    dist.init_process_group("gloo")
    main()
    dist.destroy_process_group()
