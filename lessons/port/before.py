"""Train a small network to tell directions of stripes apart: a script for one device, as people write them.

    python lessons/port/before.py

At the first start it draws its pictures and writes them into the folder --out. It prints a line for each
epoch. The weights of the best epoch are in best.pt, and --resume goes on from checkpoint.pt.
"""

import argparse
import math
import os

import torch
from torch import nn
from torch.nn.functional import cross_entropy, pad
from torch.utils.data import DataLoader, Dataset
from tqdm import tqdm

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=8)
parser.add_argument("--batch-size", type=int, default=64)
parser.add_argument("--lr", type=float, default=0.03)
parser.add_argument("--dropout", type=float, default=0.2)
parser.add_argument("--no-augment", action="store_true")
parser.add_argument("--workers", type=int, default=2)
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--resume", action="store_true")
parser.add_argument("--out", default="out/port")
args = parser.parse_args()

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def draw(count):
    """Noisy pictures of stripes in eight directions. The label is the direction."""
    generator = torch.Generator().manual_seed(count)
    labels = torch.randint(8, (count,), generator=generator)
    angles = (labels * math.pi / 8).view(-1, 1, 1)
    phases = 2 * math.pi * torch.rand(count, 1, 1, generator=generator)
    y, x = torch.meshgrid(torch.arange(16), torch.arange(16), indexing="ij")
    waves = torch.sin(x * torch.cos(angles) + y * torch.sin(angles) + phases)
    return waves.unsqueeze(1) + 4 * torch.randn(count, 3, 16, 16, generator=generator), labels


def augment(image):
    """Move the picture by up to two pixels, and change its contrast."""
    top, left = torch.randint(5, (2,)).tolist()
    image = pad(image, (2, 2, 2, 2))[:, top : top + 16, left : left + 16]
    return image * (0.8 + 0.4 * torch.rand(()))


class Stripes(Dataset):
    def __init__(self, path, transform=None):
        self.images, self.labels = torch.load(path)
        self.transform = transform

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        image = self.images[index]
        if self.transform:
            image = self.transform(image)
        return image, self.labels[index]


def block(inputs, outputs):
    convolution = nn.Conv2d(inputs, outputs, 3, padding=1, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(outputs), nn.ReLU(), nn.MaxPool2d(2))


@torch.no_grad()
def evaluate(model, loader):
    model.eval()
    loss_sum = correct = 0
    for images, labels in loader:
        images, labels = images.to(device), labels.to(device)
        outputs = model(images)
        loss_sum += cross_entropy(outputs, labels, reduction="sum").item()
        correct += (outputs.argmax(dim=1) == labels).sum().item()
    return loss_sum / len(loader.dataset), correct / len(loader.dataset)


def main():
    torch.manual_seed(args.seed)

    if not os.path.exists(f"{args.out}/val.pt"):
        os.makedirs(args.out, exist_ok=True)
        torch.save(draw(2000), f"{args.out}/train.pt")
        torch.save(draw(500), f"{args.out}/val.pt")

    train_set = Stripes(f"{args.out}/train.pt", None if args.no_augment else augment)
    val_set = Stripes(f"{args.out}/val.pt")
    train_loader = DataLoader(train_set, args.batch_size, shuffle=True, num_workers=args.workers)
    val_loader = DataLoader(val_set, args.batch_size, num_workers=args.workers)

    model = nn.Sequential(
        block(3, 16), block(16, 32), nn.Flatten(), nn.Dropout(args.dropout), nn.Linear(512, 8)
    )
    model = model.to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9, weight_decay=1e-4)
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.3, patience=0)
    first_epoch, best = 1, 0.0

    if args.resume:
        checkpoint = torch.load(f"{args.out}/checkpoint.pt")
        model.load_state_dict(checkpoint["model"])
        optimizer.load_state_dict(checkpoint["optimizer"])
        scheduler.load_state_dict(checkpoint["scheduler"])
        first_epoch, best = checkpoint["epoch"] + 1, checkpoint["best"]

    for epoch in range(first_epoch, args.epochs + 1):
        model.train()
        loss_sum = 0
        for images, labels in tqdm(train_loader, f"epoch {epoch}", leave=False):
            images, labels = images.to(device), labels.to(device)
            loss = cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            loss_sum += loss.item() * len(labels)
        train_loss = loss_sum / len(train_set)
        val_loss, accuracy = evaluate(model, val_loader)
        scheduler.step(val_loss)
        lr = optimizer.param_groups[0]["lr"]
        print(f"epoch {epoch} | loss {train_loss:.4f} | val {val_loss:.4f}, {accuracy:.1%} | lr {lr:.4g}")

        if accuracy > best:
            best = accuracy
            torch.save(model.state_dict(), f"{args.out}/best.pt")
        parts = {"model": model, "optimizer": optimizer, "scheduler": scheduler}
        checkpoint = {name: part.state_dict() for name, part in parts.items()}
        checkpoint |= {"epoch": epoch, "best": best}
        torch.save(checkpoint, f"{args.out}/checkpoint.pt")

    print(f"best accuracy: {best:.1%}")


if __name__ == "__main__":  # workers of the loaders may import this file again
    main()
