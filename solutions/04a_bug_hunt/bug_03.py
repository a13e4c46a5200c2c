"""Exercise 04a, bug 3 of 10. 3 points. Read first: notebook 04a.

A user reports: "All epochs run, the loss goes down, and then the job never ends. There is no error, and the
GPUs are idle. With one process the job ends as it should. I have to press Ctrl-C, and the accuracy is never
printed."

What is wanted: process 0 returns the accuracy over the test images of all processes, and the other processes
return None. Some processes may have no test images.

    04a.3 (3 points)  fix the bug (2 points), and set KIND to its kind (1 point): see KINDS.md
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy

# cut 04a.3: the kind of the bug
KIND = "collective"
# instead: KIND = ""
# end


@torch.no_grad()
def measure(model, images, labels):
    """Return the share of the images that the model classifies correctly."""
    right = (model(images).argmax(1) == labels).sum().item()
    found = [None] * dist.get_world_size()
    dist.all_gather_object(found, (right, len(images)))
    return sum(right for right, _ in found) / sum(size for _, size in found)


def train(model, images, labels, test_images, test_labels, epochs, lr):
    """Every process has its own training images and test images. Train the model in place."""
    parallel = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr)
    for _ in range(epochs):
        loss = cross_entropy(parallel(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    # cut 04a.3: all processes measure, and process 0 reports
    accuracy = measure(model, test_images, test_labels)
    if dist.get_rank() == 0:
        print(f"accuracy {accuracy:.2%}")
        return accuracy
    # instead: if dist.get_rank() == 0:
    # instead:     accuracy = measure(model, test_images, test_labels)
    # instead:     print(f"accuracy {accuracy:.2%}")
    # instead:     return accuracy
    # end
    return None
