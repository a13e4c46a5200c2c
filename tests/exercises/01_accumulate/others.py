"""Other solutions of exercise 01."""

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


def weight_given_to_backward():
    """The weight as the gradient that backward() begins with; zero_grad() after a step."""

    def add_gradients(model, parts):
        total = sum(images.shape[0] for images, _ in parts)
        losses = torch.zeros(len(parts), dtype=torch.float64)
        for place, (images, labels) in enumerate(parts):
            weight = torch.tensor(images.shape[0] / total)
            loss = F.nll_loss(model(images).log_softmax(1), labels)
            loss.backward(weight)
            losses[place] = loss.detach() * weight
        return float(losses.sum())

    def large_step(model, optimizer, images, labels, part_size):
        pairs = torch.utils.data.TensorDataset(images, labels)
        loader = torch.utils.data.DataLoader(pairs, batch_size=part_size)
        return train_epoch(model, optimizer, loader, len(loader))[0]

    def train_epoch(model, optimizer, batches, parts_per_step):
        model.zero_grad()
        losses, parts = [], []

        def step():
            losses.append(add_gradients(model, parts))
            optimizer.step()
            optimizer.zero_grad()
            parts.clear()

        for pair in batches:
            parts.append(pair)
            if len(parts) == parts_per_step:
                step()
        if parts:
            step()
        return losses
