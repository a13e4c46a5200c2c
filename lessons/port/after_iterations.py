r"""before_iterations.py on several processes: each trains on its part of every batch.

    TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 torchrun --standalone --nproc-per-node 2 \
        --max-restarts 3 lessons/port/after_iterations.py --resume
"""

import argparse
import math
import os
import random
from contextlib import nullcontext

import torch
import torch.distributed as dist
import torch.distributed.nn  # before init_process_group, or gloo may abort the process at exit
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

parser = argparse.ArgumentParser()
parser.add_argument("--iterations", type=int, default=200)
parser.add_argument("--batch-size", type=int, default=16)
parser.add_argument("--accumulate", type=int, default=2, help="batches for each iteration")
parser.add_argument("--lr", type=float, default=0.003)
parser.add_argument("--dropout", type=float, default=0.1)
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--resume", action="store_true")
parser.add_argument("--out", default="out/port")
args = parser.parse_args()

rank, local_rank, world_size = (int(os.environ[name]) for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE"))
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
length = 32


def get_batch(data, iteration, part):
    generator = torch.Generator().manual_seed(10**9 * args.seed + 10**3 * iteration + part)
    starts = torch.randint(len(data) - length, (args.batch_size,), generator=generator)
    starts = starts[rank::world_size]  # all ranks draw the same batch, and each takes its rows
    rows = torch.stack([data[start : start + length + 1] for start in starts]).to(device)
    return rows[:, :-1], rows[:, 1:]


class Transformer(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(19, width), nn.Embedding(length, width)
        layer = nn.TransformerEncoderLayer(
            width, 4, 4 * width, args.dropout, batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.head = nn.Linear(width, 19)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(length))

    def forward(self, tokens):
        hidden = self.tokens(tokens) + self.positions.weight
        return self.head(self.layers(hidden, self.mask, is_causal=True))


def loss_of(model, inputs, targets):
    return cross_entropy(model(inputs).flatten(0, 1), targets.flatten())


@torch.no_grad()
def evaluate(model, data):
    model.eval()
    loss = sum(loss_of(model, *get_batch(data, 0, part)) for part in range(10)) / 10
    model.train()
    dist.all_reduce(loss)
    return loss.item() / world_size


def main():
    if torch.cuda.is_available():
        torch.cuda.set_device(local_rank)  # from now on, "cuda" means this process's GPU
    dist.init_process_group(dist.get_default_backend_for_device(device))  # GPUs use NCCL, CPUs use gloo
    torch.manual_seed(args.seed)
    os.makedirs(args.out, exist_ok=True)

    numbers = random.Random(0)
    pairs = [(numbers.randrange(10), numbers.randrange(10)) for _ in range(10000)]
    text = "".join(f"{a}+{b}={a + b};" for a, b in pairs)
    data = torch.tensor(list(text.encode())) - ord("+")
    train_data, val_data = data[:-10000], data[-10000:]

    model = Transformer().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    first = 0
    if args.resume and os.path.exists(f"{args.out}/iterations.pt"):
        checkpoint = torch.load(f"{args.out}/iterations.pt", map_location=device)
        model.load_state_dict(checkpoint["model"])
        optimizer.load_state_dict(checkpoint["optimizer"])
        first = checkpoint["iteration"]
    ddp_model = DistributedDataParallel(model)
    loss_of(ddp_model, *get_batch(train_data, 0, 0)).backward()  # DDP reorders its sums after this pass
    model.zero_grad()

    for iteration in range(first, args.iterations):
        warmup = min(1, (iteration + 1) / 20)
        lr = args.lr * warmup * (1 + math.cos(math.pi * iteration / args.iterations)) / 2
        optimizer.param_groups[0]["lr"] = lr
        torch.manual_seed(10**9 * args.seed + 10**3 * iteration + rank)  # for dropout
        for part in range(args.accumulate):
            inputs, targets = get_batch(train_data, iteration, part)
            with nullcontext() if part == args.accumulate - 1 else ddp_model.no_sync():
                loss = loss_of(ddp_model, inputs, targets) / args.accumulate
                loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if (iteration + 1) % 25 == 0:
            val_loss = evaluate(model, val_data)
            if rank == 0:
                print(f"iteration {iteration + 1} | val {val_loss:.4f} | lr {lr:.5f}")
            checkpoint = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
            if rank == 0:
                torch.save(checkpoint | {"iteration": iteration + 1}, f"{args.out}/iterations.new")
                os.replace(f"{args.out}/iterations.new", f"{args.out}/iterations.pt")

    ddp_model = loss = None  # nothing may refer to the process group at the end
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
