"""Train a small transformer on a long text of sums, in one process: a loop that counts iterations.

    python lessons/port/before_iterations.py

It draws the batches at random from the text, prints a line every 25 iterations, and keeps the weights and
all that --resume needs in iterations.pt.
"""

import argparse
import math
import os
import random

import torch
from torch import nn
from torch.nn.functional import cross_entropy

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

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
length = 32


def get_batch(data):
    starts = torch.randint(len(data) - length, (args.batch_size,))
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
    loss = sum(loss_of(model, *get_batch(data)).item() for _ in range(10)) / 10
    model.train()
    return loss


def main():
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
    if args.resume:
        checkpoint = torch.load(f"{args.out}/iterations.pt")
        model.load_state_dict(checkpoint["model"])
        optimizer.load_state_dict(checkpoint["optimizer"])
        first = checkpoint["iteration"]

    for iteration in range(first, args.iterations):
        warmup = min(1, (iteration + 1) / 20)
        lr = args.lr * warmup * (1 + math.cos(math.pi * iteration / args.iterations)) / 2
        optimizer.param_groups[0]["lr"] = lr
        for _ in range(args.accumulate):
            inputs, targets = get_batch(train_data)
            loss = loss_of(model, inputs, targets) / args.accumulate
            loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if (iteration + 1) % 25 == 0:
            print(f"iteration {iteration + 1} | val {evaluate(model, val_data):.4f} | lr {lr:.5f}")
            checkpoint = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
            torch.save(checkpoint | {"iteration": iteration + 1}, f"{args.out}/iterations.pt")


if __name__ == "__main__":
    main()
