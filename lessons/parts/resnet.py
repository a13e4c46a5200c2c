"""The model of lesson 08, ResNet-18 for small images, and its batch norm for the CPU."""

import torch
import torch.distributed as dist
from torch import nn

import workload

torchvision = workload.import_torchvision()


class ResNet18(nn.Sequential):
    """torchvision's blocks after a first layer for small images: a 3x3 convolution with
    neither a stride nor pooling.
    """

    def __init__(self, shape, width, norm):
        first = nn.Conv2d(shape[0], width, kernel_size=3, padding=1, bias=False)
        super().__init__(first, norm(width), nn.ReLU(inplace=True))
        block = torchvision.models.resnet.BasicBlock
        self.append(block(width, width, norm_layer=norm))
        self.append(block(width, width, norm_layer=norm))
        for before in (width, 2 * width, 4 * width):  # each group halves the size and doubles the channels
            channels = 2 * before
            convolution = nn.Conv2d(before, channels, kernel_size=1, stride=2, bias=False)
            shortcut = nn.Sequential(convolution, norm(channels))
            self.append(block(before, channels, 2, shortcut, norm_layer=norm))
            self.append(block(channels, channels, norm_layer=norm))
        self.extend([nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8 * width, 10)])
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, images):  # bytes
        return super().forward((images.to(self[0].weight.dtype) - 48) / 64)


def layout_for(width):
    """channels_last, except where it crashes in torch 2.13: on CPUs with AVX2, if a layer
    has fewer than 8 channels.
    """
    return torch.channels_last if width >= 8 else torch.contiguous_format


class SumOfAll(torch.autograd.Function):
    """The sum over all processes. The backward pass also sums gradients over all
    processes.
    """

    @staticmethod
    def forward(context, values):
        total = values.clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(context, gradients):
        total = gradients.clone()
        dist.all_reduce(total)
        return total


class SyncBatchNorm(nn.BatchNorm2d):
    """Synchronized batch norm for the CPU, on which nn.SyncBatchNorm refuses to run. All
    shards must have the same size.
    """

    def forward(self, values):
        world_size = dist.get_world_size() if dist.is_initialized() else 1
        if not self.training or world_size == 1:
            return super().forward(values)
        mean = values.mean(dim=(0, 2, 3))
        variance = values.var(dim=(0, 2, 3), correction=0)
        mine = torch.stack([mean, variance])
        rows = torch.zeros(world_size, *mine.shape, dtype=mine.dtype)
        rows[dist.get_rank()] = mine  # each rank fills only its own row, so the sum contains all rows
        means, variances = SumOfAll.apply(rows).unbind(dim=1)
        mean = means.mean(dim=0)
        variance = (variances + (means - mean).square()).mean(dim=0)  # variance within plus between shards
        count = values.numel() / values.shape[1] * world_size
        with torch.no_grad():
            self.num_batches_tracked += 1
            self.running_mean.lerp_(mean, self.momentum)
            self.running_var.lerp_(variance * count / (count - 1), self.momentum)
        scale = self.weight * (variance + self.eps).rsqrt()
        return (values - mean.view(-1, 1, 1)) * scale.view(-1, 1, 1) + self.bias.view(-1, 1, 1)


def compile_now(model, images):
    """Compile the DDP model in place before the first epoch is timed, because compiling
    takes minutes.
    """
    model.module.compile()  # torch.compile(model) would add a prefix to all parameter names
    before = {name: value.clone() for name, value in model.state_dict().items()}
    model(images).sum().backward()
    model.load_state_dict(before)  # restore the running statistics of batch norm
    model.zero_grad()
