"""Exercise 04a, bug 10: running means and variances averaged in every step."""

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

KIND = "buffers"


def train(model, images, labels, batch_size, lr, test_images):
    model.train()
    parallel = DistributedDataParallel(model, forward_sync_buffers=False)
    optimizer = torch.optim.SGD(model.parameters(), lr)
    for batch, targets in zip(images.split(batch_size), labels.split(batch_size), strict=True):
        optimizer.zero_grad()
        cross_entropy(parallel(batch), targets).backward()
        optimizer.step()
        for name, buffer in model.named_buffers():
            if "running" in name:
                dist.all_reduce(buffer)
                buffer.div_(dist.get_world_size())
    model.eval()
    return model(test_images).detach()
