"""Lesson 01's job as most tutorials write it: PIL images, converted one at a time, default collate."""

import json
import sys
import time

import steps
import torch
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, Dataset

import workload

workload.import_torchvision()
from torchvision import transforms


class Pictures(Dataset):
    def __init__(self, images):
        to_picture = transforms.ToPILImage()
        self.pictures = [to_picture(image) for image in images.images]
        self.labels = images.labels.tolist()
        self.transform = transforms.Compose(
            [transforms.ToTensor(), transforms.Normalize((48 / 255,), (64 / 255,))]
        )

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        return self.transform(self.pictures[index]), self.labels[index]


def main(epochs):
    torch.manual_seed(0)
    train_set = Pictures(workload.draw_digits(12_000, seed=1))
    loader = DataLoader(train_set, batch_size=120, shuffle=True)
    model = torch.nn.Sequential(*list(workload.ConvNet((1, 28, 28)))[1:])  # without its Normalize
    optimizer = torch.optim.SGD(model.parameters(), lr=0.04, momentum=0.9)
    for epoch in range(1, epochs + 1):
        start = time.perf_counter()
        running_loss = 0.0
        for images, labels in loader:
            optimizer.zero_grad()
            loss = cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()
            running_loss += loss.item()
        seconds = time.perf_counter() - start
        loss = running_loss / len(loader)
        print(json.dumps({"epoch": epoch, "loss": loss, "images_per_second": 12_000 / seconds}), flush=True)


steps.clock()
main(int(sys.argv[1]))
