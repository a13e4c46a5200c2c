"""Another solution of exercise 04a."""

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import clip_grad_norm_


def by_hand():
    """Repairs five bugs with plain tensors and collectives."""

    def bug_01():
        """No sampler; an order drawn from the number of the epoch, padded from its beginning."""

        def train(model, images, labels, epochs, batch_size, lr):
            rank, world_size = dist.get_rank(), dist.get_world_size()
            model = DistributedDataParallel(model)
            optimizer = torch.optim.SGD(model.parameters(), lr)
            for epoch in range(epochs):
                order = torch.randperm(len(images), generator=torch.Generator().manual_seed(2024 + epoch))
                order = torch.cat([order, order[: -len(order) % world_size]])
                for batch in order[rank::world_size].split(batch_size):
                    optimizer.zero_grad()
                    cross_entropy(model(images[batch]), labels[batch]).backward()
                    optimizer.step()

    def bug_03():
        """Counts summed with all_reduce."""

        def measure(model, images, labels):
            counts = torch.tensor([float((model(images).argmax(1) == labels).sum()), len(labels)])
            dist.all_reduce(counts)
            return (counts[0] / counts[1]).item()

    def bug_05():
        """The limit scaled as the gradients are, at each step."""

        def train(model, images, labels, batch_size, lr, momentum, max_norm, scaler):
            model = DistributedDataParallel(model)
            optimizer = torch.optim.SGD(model.parameters(), lr, momentum)
            for batch, targets in zip(images.split(batch_size), labels.split(batch_size), strict=True):
                optimizer.zero_grad()
                scaler.scale(cross_entropy(model(batch), targets)).backward()
                clip_grad_norm_(model.parameters(), max_norm * scaler.get_scale())
                scaler.step(optimizer)
                scaler.update()

    def bug_07():
        """Sums of gradients and a count, all exchanged, then divided."""

        def train(model, images, labels, steps, lr):
            optimizer = torch.optim.SGD(model.parameters(), lr)
            for batch, targets in zip(images.tensor_split(steps), labels.tensor_split(steps), strict=True):
                optimizer.zero_grad()
                cross_entropy(model(batch), targets, reduction="sum").backward()
                count = torch.tensor([len(batch)])
                dist.all_reduce(count)
                for parameter in model.parameters():
                    dist.all_reduce(parameter.grad)
                    parameter.grad /= count
                optimizer.step()

    def bug_10():
        """Buffers averaged in every step."""

        def train(model, images, labels, batch_size, lr, test_images):
            model.train()
            parallel = DistributedDataParallel(model, forward_sync_buffers=False)
            optimizer = torch.optim.SGD(model.parameters(), lr)
            for batch, targets in zip(images.split(batch_size), labels.split(batch_size), strict=True):
                optimizer.zero_grad()
                cross_entropy(parallel(batch), targets).backward()
                optimizer.step()
                for buffer in model.buffers():
                    if buffer.is_floating_point():
                        dist.all_reduce(buffer)
                        buffer.div_(dist.get_world_size())
            model.eval()
            return model(test_images).detach()
