"""Another solution of exercise 01."""

import torch
import torch.nn.functional as F


def sums_scaled_at_the_end():
    """Sums of losses, taken by torch.autograd.grad and divided at the end."""

    def add_gradients(model, parts):
        parameters = [one for one in model.parameters() if one.requires_grad]
        sums, total, count = [None] * len(parameters), 0, 0
        for images, labels in parts:
            loss = F.cross_entropy(model(images), labels, reduction="sum")
            gradients = torch.autograd.grad(loss, parameters, allow_unused=True)
            for place, gradient in enumerate(gradients):
                if gradient is not None:
                    sums[place] = gradient if sums[place] is None else sums[place] + gradient
            total += loss.item()
            count += len(images)
        for parameter, gradient in zip(parameters, sums, strict=True):
            if gradient is not None:
                mean = gradient / count
                parameter.grad = mean if parameter.grad is None else parameter.grad + mean
        return total / count
