"""Run the rows of the page "Your own script" on two processes: their lines, and what follows without them.

    torchrun --standalone --nproc-per-node 2 tests/probes/port_page_lines.py

A fence is two scripts: for several processes its lines without those that have a minus, and for one process
without those that have a plus. Each has an entry in ROWS: what comes before it and what holds after it; under
"without", what holds after the lines of one process.
"""

# ruff: noqa: F401, F403, F405 (the lines of the page use the imports)

import argparse
import gc
import os
import re
import sys
import tempfile
import textwrap
import types
from contextlib import nullcontext
from datetime import timedelta
from itertools import islice
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.nn  # before init_process_group, or gloo may abort the process at exit
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.lr_scheduler import OneCycleLR, ReduceLROnPlateau
from torch.utils.data import *
from tqdm import tqdm

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "lessons/pages/port.md"
sys.path.append(str(ROOT / "lessons/port"))

NET = "Net = lambda: nn.Sequential(nn.Linear(1, 4), nn.Sequential(nn.BatchNorm1d(4)))"
WEIGHTS = "[p.detach().flatten().tolist() for p in model.parameters()]"
ROWS = {
    "A shuffled DataLoader": {
        "setup": """
            seen = {1: [], 2: []}
            train_step = lambda inputs, targets: seen[epoch].append(targets.tolist())
        """,
        "then": """
            ranks = gather(seen)
            for epoch in (1, 2):
                assert sorted(n for rank in ranks for batch in rank[epoch] for n in batch) == list(range(48))
                assert [len(batch) for batch in ranks[0][epoch]] == [size] * 6
            assert ranks[0][1] != ranks[0][2]
        """,
        "without": "ranks = gather(seen); assert ranks[0] == ranks[1] and len(seen[1]) == 6",
    },
    "A sampler of your own": {
        "setup": "weights = torch.arange(48.0)",
        "then": """
            mine = torch.cat([targets for _, targets in loader]).tolist()
            generator.manual_seed(10**3 * seed + epoch)
            alone = list(WeightedRandomSampler(weights, 48, generator=generator))
            assert mine == alone[rank::2] and len(loader) == 6
        """,
        "without": "assert sum(len(targets) for _, targets in loader) == 48",
    },
    "No DataLoader": {
        "setup": "data, length, iteration, part = torch.arange(100), 4, 3, 1",
        "then": "ranks = gather(inputs.tolist()); assert len(inputs) == 4 and ranks[0] != ranks[1]",
        "without": "ranks = gather(inputs.tolist()); assert len(inputs) == 8 and ranks[0] == ranks[1]",
    },
    "Columns of one long text": {
        "setup": """
            text = torch.arange(80)
            model = types.SimpleNamespace(initial_state=lambda rows: torch.zeros(1, rows, 3))
        """,
        "then": """
            assert columns[:, 0].tolist() == list(range(10 * rank, 10 * rank + 10))
            assert state.shape[1] == columns.shape[1] == 4
        """,
    },
    "An IterableDataset": {
        "setup": "",
        "then": """
            lines = Lines(); lines.lines = list(range(20))
            for workers in (0, 2):
                mine = [n for batch in DataLoader(lines, 3, num_workers=workers) for n in batch.tolist()]
                assert sorted(sum(gather(mine), [])) == list(range(20))
        """,
        "without": """
            lines = Lines(); lines.lines = list(range(20))
            mine = [n for batch in DataLoader(lines, 3, num_workers=2) for n in batch.tolist()]
            assert sorted(mine) == sorted([*range(20), *range(20)])
        """,
    },
    "An incomplete last batch": {
        "setup": "train_set = TensorDataset(torch.zeros(51, 1), torch.arange(51))",
        "then": """
            ranks = gather([targets.tolist() for _, targets in loader])
            mine = [n for rank in ranks for batch in rank for n in batch]
            assert len(mine) == len(set(mine)) == 48
        """,
    },
    "An incomplete last batch 2": {
        "setup": """
            rows = torch.arange(1.0, 6.0).view(5, 1)
            inputs, targets = (rows[:3], rows[:3]) if rank == 0 else (rows[3:], rows[3:])
            model.zero_grad()
            (model(rows) - rows).square().mean().backward()
            whole = model.weight.grad.clone()
            model.zero_grad()
        """,
        "then": "torch.testing.assert_close(model.weight.grad, whole)",
        "without": "assert abs(model.weight.grad - whole) > 1e-3 * abs(whole)",
    },
    "A loop that counts iterations": {
        "setup": """
            sampler = DistributedSampler(train_set, seed=seed)
            loader = DataLoader(train_set, size, sampler=sampler)
            orders_of = lambda batches: [targets.tolist() for _, targets in islice(batches, 12)]
        """,
        "then": "orders = orders_of(endless(loader)); assert orders[:6] != orders[6:]",
        "without": "orders = orders_of(endless(loader)); assert orders[:6] == orders[6:]",
    },
    "A loss that is a sum": {
        "setup": """
            loss_function = nn.MSELoss(reduction="sum")
            rows = torch.arange(1.0, 5.0).view(4, 1)
            inputs = targets = rows[rank::2]
            loss_function(model(rows), rows).backward()
            whole = model.weight.grad.clone()
            model.zero_grad()
        """,
        "then": "torch.testing.assert_close(model.weight.grad, whole)",
        "without": "torch.testing.assert_close(2 * model.weight.grad, whole)",
    },
    "An optimizer with a closure": {
        "setup": """
            optimizer = torch.optim.LBFGS(model.parameters(), line_search_fn="strong_wolfe")
            inputs = targets = torch.full((2, 1), 1.0 + rank)
        """,
        "then": "losses = gather(float(closure())); assert losses[0] == losses[1]",
    },
    "Noise in the model": {
        "setup": "generator = torch.Generator().manual_seed(1)",
        "then": """
            ranks, alone = gather(noise), torch.randn(8, 16, generator=generator.manual_seed(1))
            assert all(torch.equal(ranks[rank], alone[rank::2]) for rank in (0, 1))
        """,
    },
    "DataParallel": {"setup": "", "then": "assert ddp_model.module is model"},
    "Seeds and dropout": {
        "setup": """
            Net, drawn = lambda: nn.Linear(1, 1), []
            train_one_epoch = lambda: drawn.append(torch.rand(1).item())
        """,
        "then": "ranks = gather(drawn); assert len({*ranks[0], *ranks[1]}) == 4",
        "without": "ranks = gather(drawn); assert ranks[0] == ranks[1]",
    },
    "Batch norm": {
        "setup": NET,
        "then": "assert isinstance(model[1][0], nn.SyncBatchNorm)",
        "without": """
            ddp_model = DistributedDataParallel(model)
            ddp_model(torch.rand(4, 1) + rank)
            ranks = gather(model[1][0].running_mean.tolist())
            assert ranks[0] != ranks[1]
        """,
    },
    "Batch norm 2": {
        "setup": NET,
        "then": """
            alone = Net(); alone.load_state_dict(model.state_dict())
            ddp_model = DistributedDataParallel(model)
            rows = torch.rand(5, 1, generator=torch.Generator().manual_seed(1))
            torch.testing.assert_close(ddp_model(rows[rank::world_size]), alone(rows)[rank::world_size])
            for one, other in zip(model.buffers(), alone.buffers()):
                torch.testing.assert_close(one, other)
        """,
    },
    "Random augmentation with workers": {
        "setup": """
            generator, drawn = torch.Generator(), {1: [], 2: []}
            class Random(list):
                def __getitem__(self, index):
                    return torch.rand(()), index
            train_set = Random(range(48))
            train_step = lambda inputs, targets: drawn[epoch].extend(inputs.tolist())
        """,
        "then": """
            assert len({n for rank in gather(drawn) for numbers in rank.values() for n in numbers}) == 96
        """,
        "without": "ranks = gather(drawn); assert ranks[0] == ranks[1]",
    },
    "Gradient accumulation": {
        "setup": """
            parts = 3
            torch.manual_seed(rank)
            micro_batches = [(torch.rand(4, 1), torch.rand(4, 1)) for _ in range(parts)]
            every = gather(micro_batches)
            alone = nn.Linear(1, 1); alone.load_state_dict(model.state_dict())
            for rows in every:
                for inputs, targets in rows:
                    (loss_function(alone(inputs), targets) / parts / world_size).backward()
        """,
        "then": f"""
            torch.testing.assert_close(model.weight.grad, alone.weight.grad)
            ranks = gather({WEIGHTS}); assert ranks[0] == ranks[1]
        """,
        "without": f"ranks = gather({WEIGHTS}); assert ranks[0] != ranks[1]",
    },
    "Gradient clipping": {
        "setup": "loss = ddp_model(torch.full((4, 1), 100.0 * (rank + 1))).square().mean()",
        "then": f"ranks = gather({WEIGHTS}); assert ranks[0] == ranks[1]",
    },
    "Two optimizers": {
        "setup": """
            torch.manual_seed(rank)
            generator, discriminator = nn.Linear(1, 1), nn.Linear(1, 1)
            ddp_generator, ddp_discriminator = map(DistributedDataParallel, (generator, discriminator))
            g_optimizer, d_optimizer = (
                torch.optim.SGD(m.parameters(), 0.1) for m in (generator, discriminator)
            )
            noise, real = torch.randn(4, 1), torch.randn(4, 1)
            real_or_fake = lambda scores, is_real: (scores - is_real).square().mean()
            before = [p.detach().clone() for p in (*generator.parameters(), *discriminator.parameters())]
        """,
        "then": """
            after = [p.detach() for p in (*generator.parameters(), *discriminator.parameters())]
            assert not any(torch.equal(a, b) for a, b in zip(before, after))
            ranks = gather([p.tolist() for p in after]); assert ranks[0] == ranks[1]
        """,
    },
    "Unused parameters": {
        "setup": "model = nn.Linear(1, 1); model.unused = nn.Parameter(torch.ones(1))",
        "then": "for _ in range(3): ddp_model(torch.rand(4, 1)).sum().backward()",
    },
    "A learning rate schedule": {
        "setup": "max_lr, loader = 1.0, range(6)",
        "then": """
            for _ in range(epochs * len(loader) - 1):
                optimizer.step(); scheduler.step()
            assert scheduler.get_last_lr()[0] < 1e-4
        """,
    },
    "ReduceLROnPlateau": {
        "setup": """
            scheduler = ReduceLROnPlateau(optimizer, patience=0)
            scheduler.step(2.0)
            val_loader, evaluate = None, lambda model, loader: 1.0 if rank == 0 else 2.5
        """,
        "then": "lrs = gather(optimizer.param_groups[0]['lr']); assert lrs[0] == lrs[1]",
        "without": "lrs = gather(optimizer.param_groups[0]['lr']); assert lrs[0] != lrs[1]",
    },
    "A learning rate in a plain variable": {
        "setup": "val_loss, best_loss, lr = 1.0 + rank, 1.4, 0.4",
        "then": "lrs = gather(lr); assert lrs == [0.1, 0.1]",
        "without": "lrs = gather(lr); assert lrs == [0.4, 0.1]",
    },
    "Early stopping and the best model": {
        "setup": "best_epoch, patience = (1, 0) if rank == 0 else (2, 0)",
        "loop": "for epoch in range(1, 4):",
        "then": "assert gather(epoch) == [2, 2]",
        "without": "assert gather(epoch) == [2, 3]",
    },
    "Evaluation": {
        "setup": """
            labels = torch.tensor([0, 1, 2] * 3 + [0, 2])  # the last one is wrong
            val_set = TensorDataset(torch.eye(3)[torch.arange(11) % 3], labels)
            model = nn.Identity()
        """,
        "then": "assert abs(accuracy - 10 / 11) < 1e-6, accuracy",
    },
    "The loss that is printed": {
        "setup": "loss_sum = torch.tensor(24.0 + rank)",
        "then": "assert loss_sum == 49",
    },
    "Downloads and preparations": {
        "setup": """
            folder = Path(folder, "downloads"); folder.mkdir(exist_ok=True)
            prepare = lambda folder: (folder / "data").write_text("4")
            load = lambda folder: (folder / "data").read_text()
        """,
        "then": "assert train_set == '4'",
    },
    "Printing and progress bars": {
        "setup": """
            loader, epoch, printed = [(1, 1)] * 2, 1, []
            SummaryWriter, train_step = lambda folder: "writer", lambda inputs, targets: None
            print = printed.append
        """,
        "then": "assert gather([printed, writer]) == [[['epoch 1'], 'writer'], [[], None]]",
    },
    "Saving weights": {
        "setup": "path = f'{folder}/weights.pt'",
        "then": """
            dist.barrier()
            assert torch.load(path).keys() == {"weight", "bias"}
        """,
    },
    "Loading a checkpoint": {
        "setup": """
            path = f"{folder}/loaded.pt"
            if rank == 0:
                state = {f"module.{name}": value + 1 for name, value in model.state_dict().items()}
                torch.save(state, path)
            dist.barrier()
            was = model.weight.item()
        """,
        "then": "assert model.weight.item() == was + 1",
    },
    "Attributes of the model": {"setup": "inputs = 3; model.generate = lambda inputs: inputs", "then": ""},
    "torch.compile": {
        "setup": "import warnings; warnings.simplefilter('ignore')  # it imports what is deprecated",
        "then": "assert model.state_dict().keys() == {'weight', 'bias'}",
        "without": "assert model.state_dict().keys() == {'_orig_mod.weight', '_orig_mod.bias'}",
    },
    "The batch size used later": {
        "setup": "loader, seconds = range(6), 3",
        "then": "assert len(noise) == 4 and images_per_second == 16",
    },
    "CPU builds and .cuda()": {"setup": "local_rank = rank; Net = lambda: nn.Linear(1, 1)", "then": ""},
    "Questions at the terminal": {
        "setup": 'parser = argparse.ArgumentParser(); sys.argv = ["my.py", "--name", "a"]',
        "then": "assert name == 'a'",
    },
}


def fences():
    """(name in ROWS, lines) of each row's code: the heading, with a 2 for a second fence."""
    text = PAGE.read_text().partition("\n## What does your script have?\n")[2].partition("\n## ")[0]
    for row in text.split("\n### ")[1:]:
        heading = row.splitlines()[0].strip().replace("`", "")
        for number, fence in enumerate(re.findall(r"(?s)```diff\n(.*?)```", row), 1):
            yield heading + f" {number}" * (number > 1), fence.splitlines()


def code(lines, sign, loop=None):
    """The script of a fence: with its new lines ("+"), or with its old ones ("-")."""
    chosen = [line[1:] for line in lines if line[:1] in (" ", sign)]
    return "\n".join([loop, *(f"    {line}" for line in chosen)] if loop else chosen)


def gather(value):
    values = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values


def names(folder):
    """What the ten lines have made."""
    torch.manual_seed(0)
    found = {"rank": dist.get_rank(), "world_size": 2, "device": torch.device("cpu"), "folder": folder}
    found |= {"seed": 1, "epoch": 1, "epochs": 2, "batch_size": 8, "size": 4, "model": nn.Linear(1, 1)}
    found["loss_function"] = nn.functional.mse_loss
    found["train_set"] = TensorDataset(torch.arange(48.0).view(48, 1), torch.arange(48))
    found["ddp_model"] = DistributedDataParallel(found["model"])
    found["optimizer"] = torch.optim.SGD(found["model"].parameters(), 0.1)
    return globals() | found


def main():
    folder = gather(tempfile.mkdtemp())[0]
    for name, lines in fences():
        if name == "No main guard":  # its lines end the group
            continue
        row = ROWS[name]
        for way, sign in (("then", "+"), ("without", "-")):
            if way in row:
                print(f"{name}, {way}", file=sys.stderr)  # an error of this one comes next
                space = names(folder)
                for text in (row["setup"], code(lines, sign, row.get("loop")), row[way]):
                    exec(textwrap.dedent(text), space)


if __name__ == "__main__":
    dist.init_process_group("gloo", timeout=timedelta(seconds=30))  # if one process has an error
    main()
    gc.collect()
    dist.destroy_process_group()
