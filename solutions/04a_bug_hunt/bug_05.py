"""Exercise 04a, bug 5 of 10. 3 points. Read first: notebook 07.

A user reports: "To train in mixed precision, I added GradScaler to my script. Since then the model hardly
learns, whatever I do: the parameters move, but thousands of times less than before. There is no NaN
anywhere."

What is wanted: a step is the same as without GradScaler. The norm of all gradients together is limited to
`max_norm`, and the scale must not influence whether a gradient is too large. Only a step whose gradients are
not finite is different: it is skipped, and afterwards the scale is halved. GradScaler exists for such steps,
and one occurs here, because one of the images is broken. The loss must still be scaled with the scaler that
`train` is given.

    04a.5 (3 points)  fix the bug (2 points), and set KIND to its kind (1 point): see KINDS.md
"""

import torch
from torch import nn
from torch.nn.functional import cross_entropy

# cut 04a.5: the kind of the bug
KIND = "clipping"
# instead: KIND = ""
# end


def train(model, images, labels, batch_size, lr, momentum, max_norm, scaler):
    """Every process has its own images. Train the model in place.

    `scaler` is a torch.amp.GradScaler. The script does not use autocast, because the bug occurs without it.
    """
    model = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr, momentum)
    for batch, targets in zip(images.split(batch_size), labels.split(batch_size), strict=True):
        loss = cross_entropy(model(batch), targets)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        # cut 04a.5: remove the scale from the gradients before they are clipped
        scaler.unscale_(optimizer)
        # instead:
        # end
        nn.utils.clip_grad_norm_(model.parameters(), max_norm)
        scaler.step(optimizer)
        scaler.update()
