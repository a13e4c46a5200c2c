"""Exercise 04a, bug 10 of 10. 3 points. Read first: notebook 08.

A user reports: "My model has batch norm. After training, I compared all parameters between the processes:
they are equal. But for the same test image, the processes give different answers, and no answer is as good
as the answer from a single GPU."

What is wanted: for the same test image, all processes give the same answer, and this answer depends on the
training images of every process, not only on the images of one process. Where the models of the processes
contain different numbers after training, replace these numbers by their plain mean. Training must still
change the parameters exactly as it does now.

The script needs torch 2.13: one of the arguments of DistributedDataParallel is new in that release.

    04a.10 (3 points)  fix the bug (2 points), and set KIND to its kind (1 point): see KINDS.md
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
    """Every process has its own images, the same number on each process. All processes have the same test
    images. Return the model's answers for the test images.
    """
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

    # cut 04a.10: average the running means and variances over all processes
    for buffer in model.buffers():
        if buffer.is_floating_point():  # the counter of batches is equal everywhere
            dist.all_reduce(buffer)
            buffer /= dist.get_world_size()
    # instead:
    # end
    model.eval()
    with torch.inference_mode():
        return model(test_images)
