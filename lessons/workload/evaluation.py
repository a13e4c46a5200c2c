"""How many test images a model classifies correctly."""

import torch


@torch.no_grad()
def count_correct(model, test_loader, device):
    model.eval()  # otherwise batch norm would make predictions depend on the rest of the batch
    correct = torch.zeros((), dtype=torch.int64, device=device)
    for images, labels in test_loader:
        correct += (model(images.to(device)).argmax(dim=1) == labels.to(device)).sum()
    model.train()
    return correct
