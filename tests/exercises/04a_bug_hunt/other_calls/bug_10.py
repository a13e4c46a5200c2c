"""Exercise 04a, bug 10: the states of all processes gathered, and their mean loaded."""

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

KIND = "buffers"


def train(model, images, labels, batch_size, lr, test_images):
    parallel = DistributedDataParallel(model.train(), forward_sync_buffers=False)
    optimizer = torch.optim.SGD(model.parameters(), lr)
    for batch, targets in zip(images.split(batch_size), labels.split(batch_size), strict=True):
        optimizer.zero_grad()
        cross_entropy(parallel(batch), targets).backward()
        optimizer.step()
    states = [None] * dist.get_world_size()
    dist.all_gather_object(states, model.state_dict())
    model.load_state_dict(
        {name: torch.stack([state[name].double() for state in states]).mean(0) for name in states[0]}
    )
    with torch.no_grad():
        return model.eval()(test_images)
