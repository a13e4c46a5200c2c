"""The images: digits that are drawn here, and MNIST and CIFAR-10 from torchvision."""

import contextlib
import fcntl
import socket
from importlib.util import find_spec
from pathlib import Path

import torch
from torch.nn.functional import affine_grid, grid_sample, interpolate
from torch.utils.data import Dataset

from workload.endings import refuse


class Images(Dataset):
    """Images as bytes (N x channels x height x width) and their labels."""

    def __init__(self, images, labels):
        self.images, self.labels = images, labels

    def to(self, device):
        return Images(self.images.to(device), self.labels.to(device))

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        return self.images[index], self.labels[index]

    def __getitems__(self, indices):
        # A DataLoader fetches a whole batch in one call. One image per call would take longer than training.
        indices = torch.tensor(indices, dtype=torch.int64)  # the list may be empty
        # Without non_blocking, this line would wait until the GPU has finished its queue.
        indices = indices.to(self.images.device, non_blocking=True)
        return self.images[indices], self.labels[indices]


def collate(batch):
    """The collate function for Images, which already return a whole batch."""
    return batch


def load_images(arguments, device="cpu"):
    """The training set and the test set that --data names, on the device.

    They need only a few megabytes. If they stayed on the CPU, a GPU would wait for every batch.
    """
    train_set, test_set = DATA[arguments.data](arguments)
    return train_set.to(device), test_set.to(device)


def split(train_set, size):
    """Split off `size` images for validation, the same images for every seed and process."""
    # Pick them at random, because many data sets are sorted by class.
    order = torch.randperm(len(train_set), generator=torch.Generator().manual_seed(0))
    order = order.to(train_set.labels.device)
    return Images(*train_set[order[size:]]), Images(*train_set[order[:size]])


def digits(arguments):
    """The default data set. It needs no download and takes a second to draw."""
    train_size, test_size = arguments.train_size or 12_000, arguments.test_size or 2_000
    return draw_digits(train_size, seed=1), draw_digits(test_size, seed=2)


def draw_digits(count, seed):
    """`count` images of digits (1x28x28), warped, shifted and noisy, determined by the seed."""
    fonts, ink = draw_fonts()
    images, labels = [], []
    for start in range(0, count, 1000):  # otherwise, a million digits would need 25 GB of memory
        generator = torch.Generator().manual_seed(seed * 1_000_003 + start)

        def uniform(low, high, *shape):
            return torch.empty(1000, *shape).uniform_(low, high, generator=generator)  # noqa: B023

        label = torch.randint(10, (1000,), generator=generator)
        font = torch.randint(fonts, (1000,), generator=generator)
        turn, slant = uniform(-0.2, 0.2), uniform(-0.2, 0.2)
        width, height = uniform(0.95, 1.6), uniform(0.95, 1.5)
        across = width * turn.cos(), slant - width * turn.sin(), uniform(-0.2, 0.2)
        upright = height * turn.sin(), height * turn.cos(), uniform(-0.2, 0.2)
        warp = torch.stack(across + upright, dim=1).view(1000, 2, 3)
        grid = affine_grid(warp, (1000, 1, 28, 28), align_corners=False)
        ripple = 0.08 * torch.randn(1000, 2, 5, 5, generator=generator)
        ripple = interpolate(ripple, size=(28, 28), mode="bicubic", align_corners=True)
        drawn = grid_sample(ink[label * fonts + font], grid + ripple.permute(0, 2, 3, 1), align_corners=False)
        drawn = drawn * uniform(0.45, 1, 1, 1, 1)
        drawn = drawn + 0.12 * torch.randn(1000, 1, 28, 28, generator=generator)
        images.append((drawn.clamp(0, 1) * 255).round().to(torch.uint8))
        labels.append(label)
    return Images(torch.cat(images)[:count], torch.cat(labels)[:count])


def draw_fonts():
    """The number of DejaVu fonts in matplotlib, and every digit in every font (40x40)."""
    from PIL import Image, ImageDraw, ImageFont

    # Importing matplotlib would take half a second and write into the home folder.
    folder = Path(find_spec("matplotlib").submodule_search_locations[0]) / "mpl-data/fonts/ttf"
    # The two fonts named Display have boxes instead of digits.
    fonts = sorted(path for path in folder.glob("DejaVu*.ttf") if "Display" not in path.name)
    ink = []
    for digit in range(10):
        for path in fonts:
            picture = Image.new("L", (40, 40))
            font = ImageFont.truetype(str(path), 36, layout_engine=ImageFont.Layout.BASIC)
            ImageDraw.Draw(picture).text((20, 20), str(digit), fill=255, font=font, anchor="mm")
            ink.append(torch.tensor(list(picture.tobytes())).view(1, 40, 40) / 255)
    return len(fonts), torch.stack(ink)


def mnist(arguments):
    def load(root, train):
        dataset = import_torchvision().datasets.MNIST(root, train=train, download=True)
        return dataset.data.unsqueeze(1), dataset.targets

    return from_torchvision(arguments, load, files="MNIST/raw")


def cifar10(arguments):
    def load(root, train):
        dataset = import_torchvision().datasets.CIFAR10(root, train=train, download=True)
        images = torch.from_numpy(dataset.data).permute(0, 3, 1, 2).contiguous()
        return images, torch.tensor(dataset.targets)

    return from_torchvision(arguments, load, files="cifar-10-batches-py")


def from_torchvision(arguments, load, files):
    root = arguments.out / "data"
    root.mkdir(parents=True, exist_ok=True)
    with open(root / ".lock", "w") as lock, contextlib.redirect_stdout(None):
        # One process downloads while the others wait, so no two processes write the same file.
        fcntl.flock(lock, fcntl.LOCK_EX)
        limit = socket.getdefaulttimeout()
        socket.setdefaulttimeout(10)  # a network that drops packets would block forever
        try:
            splits = load(root, train=True), load(root, train=False)
        except Exception as error:
            splits, reason = None, f"{type(error).__name__}: {error}"
        finally:
            socket.setdefaulttimeout(limit)
    if splits is None:  # after the lock is released, because others may wait for it
        cure = f"use --data digits, or put the files at {root / files}"
        refuse(f"cannot load {arguments.data} ({reason}): {cure}")
    (train_images, train_labels), (test_images, test_labels) = splits
    train_size, test_size = arguments.train_size, arguments.test_size
    train_set = Images(train_images[:train_size], train_labels[:train_size])
    return train_set, Images(test_images[:test_size], test_labels[:test_size])


DATA = {"digits": digits, "mnist": mnist, "cifar10": cifar10}


def add_data(name, load):
    """Add a choice for --data. load(arguments) returns a training set and a test set."""
    DATA[name] = load


def import_torchvision():
    """Import torchvision, even with a torch build that it was not compiled for.

    With a CPU build of torch, the standard torchvision wheel cannot load its compiled
    operators, and the import fails: "operator torchvision::nms does not exist". The lessons
    need no such operator. So declare the two that torchvision's Python code mentions, and
    import torchvision again.
    """
    try:
        import torchvision
    except RuntimeError:
        declared = torch.library.Library("torchvision", "DEF")
        for name in ("nms", "qnms"):
            declared.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        import_torchvision.declared = declared  # freeing it would remove its schemas
        import torchvision
    return torchvision
