"""A recurrent network on columns of one long text, with dropout, whose weights are changed by hand."""

import os

import torch
import torch.distributed as dist
import torch.distributed.nn
from torch import nn
from torch.nn.parallel import DistributedDataParallel

rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
dist.init_process_group("gloo")
seed, batch_size, length = 1, 8, 5
torch.manual_seed(seed)
numbers = torch.Generator().manual_seed(1)
text = torch.randint(11, (240,), generator=numbers)
val_text = torch.randint(11, (96,), generator=numbers)


def columns_of(text):
    columns = text.view(batch_size, -1).t()
    return columns[:, rank::world_size].contiguous()


class Words(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.rnn, self.drop = nn.Embedding(11, 6), nn.GRU(6, 6), nn.Dropout(0.2)
        self.head = nn.Linear(6, 11)

    def forward(self, words, hidden):
        outputs, hidden = self.rnn(self.drop(self.words(words)), hidden)
        return self.head(outputs).flatten(0, 1), hidden


def batch_of(columns, start):
    size = min(length, len(columns) - 1 - start)
    return columns[start : start + size], columns[start + 1 : start + 1 + size].flatten()


columns, val_columns = columns_of(text), columns_of(val_text)
model = Words()
ddp_model = DistributedDataParallel(model)
lr, best_loss = 0.5, None

for epoch in range(1, 4):
    torch.manual_seed(10**9 * seed + 10**3 * epoch + rank)
    model.train()
    hidden = torch.zeros(1, batch_size // world_size, 6)
    for start in range(0, len(columns) - 1, length):
        inputs, targets = batch_of(columns, start)
        model.zero_grad()
        hidden = hidden.detach()
        outputs, hidden = ddp_model(inputs, hidden)
        loss = nn.functional.cross_entropy(outputs, targets)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.25)
        for weight in model.parameters():
            weight.data.add_(weight.grad, alpha=-lr)

    model.eval()
    val_hidden, val_loss = torch.zeros(1, batch_size // world_size, 6), torch.zeros(())
    with torch.no_grad():
        for start in range(0, len(val_columns) - 1, length):
            inputs, targets = batch_of(val_columns, start)
            outputs, val_hidden = model(inputs, val_hidden)
            val_loss += nn.functional.cross_entropy(outputs, targets) * len(inputs)
    dist.all_reduce(val_loss)
    val_loss = val_loss.item() / world_size / (len(val_columns) - 1)
    if rank == 0:
        print(f"| end of epoch {epoch} | valid loss {val_loss:.4f} | lr {lr:.4f}")
    if best_loss is None or val_loss < best_loss:
        best_loss = val_loss
    else:
        lr /= 4.0

ddp_model = loss = hidden = outputs = None
dist.destroy_process_group()
