"""REINFORCE: the model makes its own data, episode by episode, and each process plays its share of them."""

import os

import torch
import torch.distributed as dist
import torch.distributed.nn
from torch import nn
from torch.distributions import Categorical
from torch.nn.parallel import DistributedDataParallel

rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
dist.init_process_group("gloo")
seed, episodes = 543, 4
torch.manual_seed(seed)
model = nn.Sequential(nn.Linear(2, 8), nn.Dropout(0.1), nn.ReLU(), nn.Linear(8, 2))
optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
ddp_model = DistributedDataParallel(model)


def play(number):
    """A walk that is to stay near zero: the sum of the rewards, and the probabilities of what was done."""
    torch.manual_seed(seed * 1000 + number)
    place, rewards, chosen = torch.zeros(2), [], []
    for _ in range(5):
        policy = Categorical(logits=ddp_model(place.unsqueeze(0)))
        action = policy.sample()
        chosen.append(policy.log_prob(action))
        place = place + torch.tensor([0.3, -0.2]) * (2.0 * action - 1.0) + 0.1
        rewards.append(-float(place.abs().sum()))
    return sum(rewards), torch.cat(chosen).sum()


for update in range(4):
    total, loss = torch.zeros(()), 0.0
    for episode in range(rank, episodes, world_size):
        reward, chosen = play(update * episodes + episode)
        loss = loss - chosen * (reward + 5.0)
        total += reward
    optimizer.zero_grad()
    (loss * world_size / episodes).backward()
    optimizer.step()
    dist.all_reduce(total)
    if rank == 0:
        print(f"Update {update}\tAverage reward: {total / episodes:.4f}")

ddp_model = loss = chosen = None
dist.destroy_process_group()
