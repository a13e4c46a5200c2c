"""Batch norm over the images of all processes, on CPUs too. Copy this file beside your script.

nn.SyncBatchNorm refuses tensors on the CPU. The class here computes the same, and is slower.
"""

import torch
import torch.distributed as dist
from torch import nn


class SumOfRanks(torch.autograd.Function):
    """dist.all_reduce has no backward pass. The backward pass of a sum is the sum of the gradients."""

    @staticmethod
    def forward(context, values):
        total = values.clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(context, gradient):
        return SumOfRanks.forward(context, gradient)


class BatchNorm(nn.modules.batchnorm._BatchNorm):
    def _check_input_dim(self, values):
        pass  # images, sequences and plain vectors

    def forward(self, values):
        if not self.training or not dist.is_initialized():
            return super().forward(values)
        dtype = values.dtype
        if dtype in (torch.bfloat16, torch.float16):
            values = values.float()  # 16 bits are too few for sums over a batch
        dims = [0, *range(2, values.dim())]  # all dimensions except the channels
        shape = [1, -1] + [1] * (values.dim() - 2)
        count = SumOfRanks.apply(values.new_tensor(values.numel() / values.shape[1]))
        mean = SumOfRanks.apply(values.sum(dims)) / count
        centered = values - mean.view(shape)
        variance = SumOfRanks.apply(centered.square().sum(dims)) / count
        if self.running_mean is not None:
            self.update(mean, variance * count / (count - 1))
        scale = (variance + self.eps).rsqrt()
        if self.affine:
            scale = scale * self.weight
        normalized = centered * scale.view(shape)
        if self.affine:
            normalized = normalized + self.bias.view(shape)
        return normalized.to(dtype)

    @torch.no_grad()
    def update(self, mean, variance):
        """Move the running statistics. Without a momentum they are means over all batches so far."""
        self.num_batches_tracked += 1
        momentum = self.momentum
        if momentum is None:
            momentum = 1.0 / self.num_batches_tracked.item()
        self.running_mean.lerp_(mean.to(self.running_mean.dtype), momentum)
        self.running_var.lerp_(variance.to(self.running_var.dtype), momentum)


def convert(model, device):
    """Let every batch norm of a model, at any depth, use the images of all processes."""
    if torch.device(device).type != "cpu":
        return nn.SyncBatchNorm.convert_sync_batchnorm(model)
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            module.__class__ = BatchNorm  # keeps the parameters and buffers, but replaces the forward pass
    return model
