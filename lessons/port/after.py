r"""before.py on several processes: each trains on its part of every batch.

    TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 torchrun --standalone --nproc-per-node 2 \
        --max-restarts 3 lessons/port/after.py --resume

At the first start it draws its pictures and writes them into the folder --out. It prints a line for each
epoch. The weights of the best epoch are in best.pt, and --resume goes on from checkpoint.pt.
"""

import argparse
import math
import os

import torch
import torch.distributed as dist
import torch.distributed.nn  # before init_process_group, or gloo may abort the process at exit
from torch import nn
from torch.nn.functional import cross_entropy, pad
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler
from tqdm import tqdm

import batch_norm

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

rank, local_rank, world_size = (int(os.environ[name]) for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE"))
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


def sum_of_ranks(*values):
    values = torch.tensor(values, dtype=torch.float64, device=device)
    dist.all_reduce(values)
    return values.tolist()


@torch.no_grad()
def evaluate(model, loader):
    model.eval()
    loss_sum = correct = 0
    for images, labels in loader:
        images, labels = images.to(device), labels.to(device)
        outputs = model(images)
        loss_sum += cross_entropy(outputs, labels, reduction="sum").item()
        correct += (outputs.argmax(dim=1) == labels).sum().item()
    loss_sum, correct = sum_of_ranks(loss_sum, correct)
    return loss_sum / len(loader.dataset), correct / len(loader.dataset)


def main():
    if torch.cuda.is_available():
        torch.cuda.set_device(local_rank)  # from now on, "cuda" means this process's GPU
    dist.init_process_group(dist.get_default_backend_for_device(device))  # GPUs use NCCL, CPUs use gloo
    torch.manual_seed(args.seed)

    if rank == 0 and not os.path.exists(f"{args.out}/val.pt"):
        os.makedirs(args.out, exist_ok=True)
        torch.save(draw(2000), f"{args.out}/train.pt")
        torch.save(draw(500), f"{args.out}/val.pt")
    dist.barrier()  # all ranks wait here until rank 0 has written the pictures

    train_set = Stripes(f"{args.out}/train.pt", None if args.no_augment else augment)
    val_set = Stripes(f"{args.out}/val.pt")
    sampler = DistributedSampler(train_set, seed=args.seed)
    size = args.batch_size // world_size
    train_loader = DataLoader(train_set, size, sampler=sampler, num_workers=args.workers)
    indices = range(rank, len(val_set), world_size)
    val_loader = DataLoader(val_set, args.batch_size, sampler=indices, num_workers=args.workers)

    model = nn.Sequential(
        block(3, 16), block(16, 32), nn.Flatten(), nn.Dropout(args.dropout), nn.Linear(512, 8)
    )
    model = batch_norm.convert(model.to(device), device)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9, weight_decay=1e-4)
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.3, patience=0)
    first_epoch, best = 1, 0.0

    if args.resume and os.path.exists(f"{args.out}/checkpoint.pt"):
        checkpoint = torch.load(f"{args.out}/checkpoint.pt", map_location=device)
        model.load_state_dict(checkpoint["model"])
        optimizer.load_state_dict(checkpoint["optimizer"])
        scheduler.load_state_dict(checkpoint["scheduler"])
        first_epoch, best = checkpoint["epoch"] + 1, checkpoint["best"]

    ddp_model = DistributedDataParallel(model)
    model.eval()
    image, _ = train_set[0]
    ddp_model(image.unsqueeze(0).to(device)).sum().backward()  # DDP reorders its sums after this pass
    model.zero_grad()

    for epoch in range(first_epoch, args.epochs + 1):
        model.train()
        sampler.set_epoch(epoch)
        torch.manual_seed(10**9 * args.seed + 10**3 * epoch + rank)  # for dropout and augmentation
        loss_sum = seen = 0
        for images, labels in tqdm(train_loader, f"epoch {epoch}", leave=False, disable=rank != 0):
            images, labels = images.to(device), labels.to(device)
            loss = cross_entropy(ddp_model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            loss_sum += loss.item() * len(labels)
            seen += len(labels)
        loss_sum, seen = sum_of_ranks(loss_sum, seen)
        train_loss = loss_sum / seen
        val_loss, accuracy = evaluate(model, val_loader)
        scheduler.step(val_loss)
        lr = optimizer.param_groups[0]["lr"]
        if rank == 0:
            print(f"epoch {epoch} | loss {train_loss:.4f} | val {val_loss:.4f}, {accuracy:.1%} | lr {lr:.4g}")

        if accuracy > best:
            best = accuracy
            if rank == 0:
                torch.save(model.state_dict(), f"{args.out}/best.pt")
        parts = {"model": model, "optimizer": optimizer, "scheduler": scheduler}
        checkpoint = {name: part.state_dict() for name, part in parts.items()}
        checkpoint |= {"epoch": epoch, "best": best}
        if rank == 0:
            torch.save(checkpoint, f"{args.out}/checkpoint.new")
            os.replace(f"{args.out}/checkpoint.new", f"{args.out}/checkpoint.pt")

    if rank == 0:
        print(f"best accuracy: {best:.1%}")
    ddp_model = loss = None  # nothing may refer to the process group at the end
    dist.destroy_process_group()


if __name__ == "__main__":  # workers of the loaders may import this file again
    main()
