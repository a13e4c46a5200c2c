"""Exercise 04a, bug 10 of 10. 3 points. Read first: notebook 08.

A user reports: "My model has batch norm. After training I compared all parameters between the processes:
they are equal. But for the same test image the processes give different answers, and none is as good as the
answer that I get from a single GPU."

What is wanted: for the same test image all processes give the same answer, and the images of every process
have a say in it, not those of one only. Where the models of the processes have come to hold different
numbers, the plain mean takes their place. What training does to the parameters does not change.

The script needs torch 2.13: one of the arguments of DistributedDataParallel is new there.

    04a.10 (3 points)  mend it (2), and put its kind into KIND (1): KINDS.md lists them
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy

# cut 04a.10: the kind of the bug
KIND = "buffers"
# instead: KIND = ""
# end


def train(model, images, labels, batch_size, lr, test_images):
    """Every process has images of its own, equally many, and the same test images. Returns the answers."""
    model.train()
    parallel = nn.parallel.DistributedDataParallel(model, forward_sync_buffers=False)
    optimizer = torch.optim.SGD(model.parameters(), lr)
    for batch, targets in zip(images.split(batch_size), labels.split(batch_size), strict=True):
        loss = cross_entropy(parallel(batch), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    if dist.get_rank() == 0:
        print(f"the last loss of process 0 is {loss.item():.4f}")

    # cut 04a.10: running means and variances of all processes
    for buffer in model.buffers():
        if buffer.is_floating_point():  # the counter of batches is equal everywhere
            dist.all_reduce(buffer)
            buffer /= dist.get_world_size()
    # instead:
    # end
    model.eval()
    with torch.inference_mode():
        return model(test_images)
