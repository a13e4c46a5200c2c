"""What weights are worth that a run has left behind."""

import importlib

import torch

import workload


def recount(weights, test_size):
    """The accuracy of these weights on the test images, counted in one process, in lesson 01's model."""
    model = importlib.import_module("01_single_gpu").workload.ConvNet((1, 28, 28))
    model.load_state_dict(torch.load(weights, weights_only=True))
    digits = workload.draw_digits(test_size, seed=2)
    with torch.no_grad():
        return (model(digits.images).argmax(dim=1) == digits.labels).sum().item() / test_size
