"""Other solutions of exercise 01."""

import torch
import torch.nn.functional as F
from torch import nn


def sums_scaled_at_the_end():
    """Sums of losses, taken by torch.autograd.grad and divided at the end."""

    sum_of_losses = nn.CrossEntropyLoss(reduction="sum")

    class Sums:
        """Gradients and losses of the images so far."""

        def __init__(self, model):
            self.model, self.parameters = model, [one for one in model.parameters() if one.requires_grad]
            self.sums = [None] * len(self.parameters)
            self.loss = self.count = 0

        def take(self, images, labels):
            loss = sum_of_losses(self.model(images), labels)
            gradients = torch.autograd.grad(loss, self.parameters, allow_unused=True)
            for place, gradient in enumerate(gradients):
                if gradient is not None:
                    self.sums[place] = gradient if self.sums[place] is None else self.sums[place] + gradient
            self.loss += loss.item()
            self.count += len(images)

        def give(self):
            for parameter, total in zip(self.parameters, self.sums, strict=True):
                if total is None:
                    continue
                mean = total / self.count
                parameter.grad = mean if parameter.grad is None else parameter.grad + mean
            return self.loss / self.count

    def add_gradients(model, parts):
        sums = Sums(model)
        for images, labels in parts:
            sums.take(images, labels)
        return sums.give()

    def large_step(model, optimizer, images, labels, part_size):
        optimizer.zero_grad()
        sums = Sums(model)
        for start in range(0, len(images), part_size):
            sums.take(images[start : start + part_size], labels[start : start + part_size])
        loss = sums.give()
        optimizer.step()
        return loss

    def train_epoch(model, optimizer, batches, parts_per_step):
        losses, sums = [], Sums(model)
        for number, (images, labels) in enumerate(batches, 1):
            sums.take(images, labels)
            if number % parts_per_step == 0:
                optimizer.zero_grad()
                losses.append(sums.give())
                optimizer.step()
                sums = Sums(model)
        if sums.count:
            optimizer.zero_grad()
            losses.append(sums.give())
            optimizer.step()
        return losses


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
