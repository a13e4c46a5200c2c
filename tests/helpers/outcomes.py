"""What a run has left behind: how good its weights are, and its curve."""

import importlib

import torch

import workload
from tools import launcher


def recount(weights, test_size):
    """The accuracy of these weights on the test images, counted in one process, in lesson 01's model."""
    model = importlib.import_module("01_single_gpu").workload.ConvNet((1, 28, 28))
    model.load_state_dict(torch.load(weights, weights_only=True))
    digits = workload.draw_digits(test_size, seed=2)
    with torch.no_grad():
        return (model(digits.images).argmax(dim=1) == digits.labels).sum().item() / test_size


def curve_of(out, stem):
    """What must not depend on a crash: the epochs, their losses and accuracies."""
    return [(row["epoch"], row["loss"], row["accuracy"]) for row in launcher.read_curve(out, stem)]
