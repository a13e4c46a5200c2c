"""The text of lessons 13, 15, 16 and 17: limericks by Edward Lear.

The limericks come from "A Book of Nonsense" (1846) and "More Nonsense" (1872), and are in the public
domain. limericks.txt contains 211 of the books' 212 limericks, copied from Project Gutenberg
ebooks 982 and 13650. Each has five lines and consistent capitals, and misprints are corrected.
"""

import math
import re
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor
from torch.nn.functional import pad

import workload

LENGTH = 176  # each sequence has 176 characters; nearly all limericks are shorter


def options(parser):
    """The options of a lesson that trains on limericks and writes new ones."""
    option = parser.add_argument
    option("--characters", type=int, default=LENGTH, help="length of each text that the model writes (176)")
    option("--temperature", type=temperature, default=0.3, help="low writes what is likely (0.3)")
    options_of_training(parser)


def options_of_training(parser):
    sizes(parser)
    option = parser.add_argument
    option("--snapshot-every", type=int, help="steps between snapshots (one epoch)")
    option("--crash-at", type=int, help="the epoch in which a process crashes")


def sizes(parser):
    """Set the defaults that all lessons on limericks share."""
    parser.set_defaults(data="limericks", train_size=704, test_size=28, width=64)
    parser.set_defaults(epochs=14, batch_size=16, lr=0.008)
    parser.set_defaults(items="texts", length=LENGTH)


def temperature(text):
    if not 0 < float(text) < math.inf:
        workload.refuse(f"--temperature must be a number above 0, not {float(text)}")
    return float(text)


def load(arguments, device="cpu"):
    """Return all characters and, on the device, the training set and the test set."""
    if arguments.data != "limericks":
        workload.refuse(f"this lesson reads limericks, not {arguments.data}: leave --data out")
    text = Path(__file__).with_suffix(".txt").read_text()
    characters = sorted(set(text))
    limericks = text.strip().split("\n\n")
    held_back = limericks[6::7]
    kept = [limerick for number, limerick in enumerate(limericks) if number % 7 < 6]
    # Each sequence occurs four times: otherwise an epoch would have only 11 steps.
    train_set = sequences(kept, characters, arguments.train_size, arguments.length, times=4)
    test_set = sequences(held_back, characters, arguments.test_size, arguments.length)
    return characters, train_set.to(device), test_set.to(device)


def sequences(limericks, characters, count, length=LENGTH, times=1):
    """Return a sequence from the start of each limerick, and the character after each character."""
    text = "\n\n".join(limericks)
    numbers = torch.tensor([characters.index(character) for character in text])
    starts = [0, *(found.end() for found in re.finditer("\n\n", text))]
    starts = [start for start in starts if start + length < len(numbers)] * times
    if count > len(starts):
        workload.refuse(f"the limericks make {len(starts)} sequences of {length} characters, not {count}")
    rows = numbers.unfold(0, length + 1, 1)[starts[:count]]
    return workload.Images(rows[:, :-1], rows[:, 1:])


def load_sets(arguments):
    """workload.check calls this to see whether there is enough text for one batch."""
    _, train_set, test_set = load(arguments)
    return train_set, test_set


workload.add_data("limericks", load_sets)


@torch.no_grad()
def write(when, length, model, characters, device, arguments):
    """Print four texts. No process can compute the scores alone, so all processes write together."""
    # All processes need the same seed: otherwise processes that share matrices would soon
    # read different texts.
    generator = torch.Generator().manual_seed(arguments.seed)
    beginning = [characters.index(character) for character in "There was a"]
    texts = torch.tensor([beginning] * 4)
    while texts.shape[1] < length:
        read = texts[:, -LENGTH:].to(device)
        scores = model(read)[:, -1]  # the last position attends to the whole text
        scores = scores.full_tensor() if isinstance(scores, DTensor) else scores
        chances = (scores.cpu() / arguments.temperature).softmax(dim=1)
        following = chances.multinomial(1, generator=generator)
        texts = torch.cat([texts, following], dim=1)
    show(when, texts, characters)


def show(when, texts, characters):
    if dist.get_rank() == 0:
        print(f"---- {when}\n")
        for numbers in texts.tolist():
            written = "".join(characters[number] for number in numbers)
            print(written.split("\n\n")[0] + "\n")
        print("----", flush=True)


class Recent(nn.Module):
    """Turns each character into a vector, and mixes in the vectors of the characters just before it.

    A transformer can learn by itself to attend to these characters. Without this layer, a
    small transformer takes three times as long to do so on so little text.
    """

    def __init__(self, characters, hidden, count=4):
        super().__init__()
        self.table = nn.Embedding(characters, hidden)
        nn.init.normal_(self.table.weight, std=0.02)  # with larger vectors, the model would learn more slowly
        self.shares = nn.Parameter(torch.randn(count, hidden) / 2)

    def forward(self, texts):
        length = texts.shape[1]
        before = len(self.shares) - 1
        vectors = pad(self.table(texts), (0, 0, before, 0))  # pad with zeros before the first character
        mixed = 0
        for first, share in enumerate(self.shares):
            mixed = mixed + share * vectors[:, first : first + length]
        return mixed
