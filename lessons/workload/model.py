"""The model of lessons 01 to 07."""

from torch import nn


class ConvNet(nn.Sequential):
    """About 32,000 parameters for digits, smooth all through: GELU and average pooling.

    N processes add the same gradients in another order than one does, which changes them by 1e-8.
    ReLU and max pooling have kinks that turn such a grain into another path; this network forgets it.
    """

    def __init__(self, shape):
        channels, height, width = shape
        super().__init__(
            Normalize(),
            nn.Conv2d(channels, 16, kernel_size=5, stride=2, padding=2),
            nn.GELU(),
            nn.Conv2d(16, 16, kernel_size=5, padding=2),
            nn.AvgPool2d(2),
            nn.GELU(),
            nn.Flatten(),
            nn.Linear(16 * (height // 4) * (width // 4), 32),
            nn.GELU(),
            nn.Linear(32, 10),
        )


class Normalize(nn.Module):
    """Bytes to numbers around 0. In the model, so that bytes travel to the device: a quarter."""

    def forward(self, images):
        return (images.float() - 48) / 64
