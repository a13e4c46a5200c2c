"""Exercise 04a, bug 7 of 10. 3 points. Read first: notebooks 03 and 07.

A user reports: "The result depends on the number of processes, but only a little. If I throw away images
until each process has the same number, the difference disappears. But I need all images: one hospital sends
me 900 images, the other only 100."

What is wanted: every step is the step that a single process would make with the batches of all processes as
one batch, in which every image has the same weight. No image is left out, and no image is used twice. A
process with few images may have an empty batch in the last steps.

    04a.7 (3 points)  fix the bug (2 points), and set KIND to its kind (1 point): see KINDS.md
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy

# cut 04a.7: the kind of the bug
KIND = "mean of means"
# instead: KIND = ""
# end


def train(model, images, labels, steps, lr):
    """Every process has its own images, some more than others, and cuts them into `steps` batches."""
    model = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr)
    batches = zip(images.tensor_split(steps), labels.tensor_split(steps), strict=True)
    for step, (batch, targets) in enumerate(batches):
        # cut 04a.7: every image has the same weight, whichever process has it
        count = torch.tensor(float(len(batch)))
        dist.all_reduce(count)
        loss = cross_entropy(model(batch), targets, reduction="sum")
        loss = loss * dist.get_world_size() / count  # DDP divides by the number of processes
        # instead: loss = cross_entropy(model(batch), targets)
        # end
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if dist.get_rank() == 0:
            print(f"step {step} of {steps}")
