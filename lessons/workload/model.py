"""The model of lessons 01 to 07, 09 and 10."""

from torch import nn


class ConvNet(nn.Sequential):
    """About 32,000 parameters for digits. Smooth all through: GELU and average pooling.

    N processes add the same gradients in another order than one does, which changes them by 1e-8.
    ReLU and max pooling have kinks that turn such a grain into another path; this network forgets it.
    """

    def __init__(self, shape, width=16):
        channels, rows, columns = shape
        super().__init__(
            Normalize(),
            nn.Conv2d(channels, width, kernel_size=5, stride=2, padding=2),
            nn.GELU(),
            nn.Conv2d(width, width, kernel_size=5, padding=2),
            nn.AvgPool2d(2),
            nn.GELU(),
            nn.Flatten(),
            nn.Linear(width * (rows // 4) * (columns // 4), 2 * width),
            nn.GELU(),
            nn.Linear(2 * width, 10),
        )


class Normalize(nn.Module):
    """Bytes to numbers around 0. In the model, so that the device holds bytes: a quarter."""

    def forward(self, images):
        return (images.float() - 48) / 64
