"""Exercise 01: a large batch made of several small ones. 10 points.

A batch of 120 images may not fit into the memory of your GPU, and 50 may. So the batch is cut into 50, 50
and 20, each part goes forward and backward by itself, and only then the optimizer takes its one step. The
step must be the very step that the whole batch would have made: the same gradients, whatever the sizes.

What helps: `backward()` adds to the gradients that are there. What misleads: `cross_entropy` is a mean over
the images of its own call, so the mean of a part of 20 is not as heavy as that of a part of 50.

    01.1 (4 points)  the weight of a part in the mean over all images
    01.2 (6 points)  one step of the optimizer for the whole batch
"""

from torch.nn.functional import cross_entropy


def weight_of(part_size, batch_size):
    """How much the mean loss of `part_size` images counts in the mean over `batch_size` images: a float."""
    # cut 01.1: the weight of a part in the mean over all images
    return part_size / batch_size
    # end


def large_step(model, optimizer, images, labels, part_size):
    """Take one step of the optimizer for all images, with at most `part_size` of them in the model at a time.

    Gradients that were there before do not count. Returns the mean loss over all images, a float.
    """
    # cut 01.2: one step of the optimizer for the whole batch
    optimizer.zero_grad()
    mean = 0.0
    for part, answers in zip(images.split(part_size), labels.split(part_size), strict=True):
        loss = cross_entropy(model(part), answers) * weight_of(len(part), len(images))
        loss.backward()
        mean += loss.item()
    optimizer.step()
    return mean
    # end
