"""Other solutions of exercise 04a."""

import os

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import clip_grad_norm_


def by_hand():
    """Repairs six bugs with plain tensors and collectives."""

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
        """Counts summed with all_reduce, by all processes, before anybody reports."""

        def train(model, images, labels, test_images, test_labels, epochs, lr):
            optimizer = torch.optim.SGD(model.parameters(), lr)
            for _ in range(epochs):
                optimizer.zero_grad()
                cross_entropy(model(images), labels).backward()
                for parameter in model.parameters():
                    parameter.grad /= dist.get_world_size()
                    dist.all_reduce(parameter.grad)
                optimizer.step()
            with torch.inference_mode():
                right = (model(test_images).argmax(1) == test_labels).double().sum()
            size = torch.tensor(float(len(test_labels)), dtype=torch.float64)
            dist.all_reduce(right)
            dist.all_reduce(size)
            return (right / size).item() if dist.get_rank() == 0 else None

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

    def bug_08():
        """The snapshot holds how many epochs are done; process 0 reads it for all."""

        def train(model, images, labels, epochs, batch_size, lr, momentum, path):
            optimizer = torch.optim.SGD(model.parameters(), lr, momentum)
            box = [None]
            if dist.get_rank() == 0 and os.path.exists(path):
                box = [torch.load(path)]
            dist.broadcast_object_list(box, src=0)
            done = 0
            if box[0] is not None:
                done = box[0]["done"]
                model.load_state_dict(box[0]["model"])
                optimizer.load_state_dict(box[0]["optimizer"])
            parallel = DistributedDataParallel(model)
            while done < epochs:
                order = torch.randperm(len(images), generator=torch.Generator().manual_seed(done))
                for batch in order.split(batch_size):
                    optimizer.zero_grad()
                    cross_entropy(parallel(images[batch]), labels[batch]).backward()
                    optimizer.step()
                done += 1
                if dist.get_rank() == 0:
                    torch.save(
                        {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "done": done},
                        f"{path}.half",
                    )
                    os.rename(f"{path}.half", path)
                dist.barrier()

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


def data_flow():
    """Repairs four bugs by changing which data goes where."""

    def bug_02():
        """One generator for all epochs, begun alike on all processes."""

        def train(model, images, labels, epochs, batch_size, lr, seed):
            share = len(images) // dist.get_world_size()
            generator = torch.Generator().manual_seed(seed)
            model = DistributedDataParallel(model)
            optimizer = torch.optim.SGD(model.parameters(), lr)
            for _ in range(epochs):
                mine = torch.randperm(len(images), generator=generator).split(share)[dist.get_rank()]
                for batch in mine.split(batch_size):
                    optimizer.zero_grad()
                    cross_entropy(model(images[batch]), labels[batch]).backward()
                    optimizer.step()

    def bug_04():
        """Nobody exchanges gradients; after each step, the mean of the parameters and momenta is
        taken, which is the same for SGD."""

        def average(tensors):
            for tensor in tensors:
                dist.all_reduce(tensor)
                tensor /= dist.get_world_size()

        def train(model, images, labels, batch_size, lr, momentum, weight_decay):
            parameters = [parameter.data for parameter in model.parameters()]
            for tensor in parameters:
                dist.broadcast(tensor, src=0)
            optimizer = torch.optim.SGD(model.parameters(), lr, momentum, weight_decay=weight_decay)
            for batch, targets in zip(images.split(batch_size), labels.split(batch_size), strict=True):
                optimizer.zero_grad()
                cross_entropy(model(batch), targets).backward()
                optimizer.step()
                average(parameters)
                average([state["momentum_buffer"] for state in optimizer.state.values()])

    def bug_06():
        """Small batches in no_sync, gradients exchanged one by one afterwards."""

        def train(model, images, labels, batch_size, accumulate, lr):
            model = DistributedDataParallel(model)
            optimizer = torch.optim.SGD(model.parameters(), lr)
            images, labels = images.split(batch_size), labels.split(batch_size)
            for number in range(len(images)):
                with model.no_sync():
                    (cross_entropy(model(images[number]), labels[number]) / accumulate).backward()
                if (number + 1) % accumulate == 0:
                    for parameter in model.parameters():
                        flat = parameter.grad.flatten() / dist.get_world_size()
                        dist.all_reduce(flat)
                        parameter.grad = flat.view_as(parameter)
                    optimizer.step()
                    optimizer.zero_grad()

    def bug_09():
        """Devices handed out by counting the ranks of the same machine."""

        def train(model, images, labels, batch_size, lr, devices):
            machines = [None] * dist.get_world_size()
            dist.all_gather_object(machines, os.environ["GROUP_RANK"])
            rank = dist.get_rank()
            device = devices[machines[:rank].count(machines[rank])]
            share = len(images) // dist.get_world_size()
            model = DistributedDataParallel(device.put(model))
            optimizer = torch.optim.SGD(model.parameters(), lr)
            images, labels = images[rank * share :][:share], labels[rank * share :][:share]
            for batch, targets in zip(images.split(batch_size), labels.split(batch_size), strict=True):
                optimizer.zero_grad()
                cross_entropy(model(device.put(batch)), device.put(targets)).backward()
                optimizer.step()
