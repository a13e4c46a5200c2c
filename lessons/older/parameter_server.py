"""Lesson 04 with a parameter server over PyTorch's RPC, an early form of data parallelism.

    torchrun --standalone --nproc-per-node 3 lessons/older/parameter_server.py

You will see lesson 01's losses, and how many bytes go through rank 0 in a step. Rank 0 is the server: it
holds the weights and the optimizer, and trains on no images. The other ranks are workers.
"""

import os
import sys
import threading
import time
from pathlib import Path

import torch
import torch.distributed.rpc as rpc
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, DistributedSampler

sys.path.append(str(Path(__file__).resolve().parent.parent))
import workload


class Server:
    """The methods that workers call through `call`. Each call runs in a thread of rank 0."""

    def __init__(self, arguments):
        workload.set_seed(arguments.seed)
        train_set, self.test_set = workload.load_images(arguments)
        self.arguments, self.workers = arguments, arguments.world_size
        self.model = workload.ConvNet(train_set.images.shape[1:], arguments.width)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=arguments.lr, momentum=0.9)
        self.scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, arguments.epochs)
        self.lock, self.waiting = threading.Lock(), torch.futures.Future()
        self.came, self.steps, self.bytes, self.start = [], 0, 0, time.perf_counter()

    def weights(self):
        return [weight.detach() for weight in self.model.parameters()]

    def push(self, gradients):
        """Collect a worker's gradients. After the last worker's, return the new weights to all workers."""
        with self.lock:
            waiting = self.waiting
            self.came.append(gradients)
            self.bytes += sum(gradient.nbytes for gradient in gradients)
            if len(self.came) == self.workers:
                for weight, *parts in zip(self.model.parameters(), *self.came, strict=True):
                    weight.grad = torch.stack(parts).mean(dim=0)
                self.optimizer.step()
                self.came, self.waiting, self.steps = [], torch.futures.Future(), self.steps + 1
                self.bytes += self.workers * sum(weight.nbytes for weight in self.weights())
                waiting.set_result(self.weights())
        return waiting

    def end_epoch(self, epoch, loss, correct):
        """Collect a worker's sums. After the last worker's, print the epoch's line."""
        with self.lock:
            waiting = self.waiting
            self.came.append((loss, correct))
            if len(self.came) == self.workers:
                losses, counts = zip(*self.came, strict=True)
                self.scheduler.step()
                seconds, self.start = time.perf_counter() - self.start, time.perf_counter()
                steps = self.steps // epoch
                accuracy = sum(counts) / len(self.test_set)
                speed = steps * self.arguments.batch_size / seconds
                workload.report(self.arguments, epoch, sum(losses) / steps / self.workers, accuracy, speed)
                self.came, self.waiting = [], torch.futures.Future()
                waiting.set_result(None)
        return waiting


server = None  # on rank 0, where remote calls find it


@rpc.functions.async_execution
def call(name, *words):
    """Runs on rank 0. The caller gets the answer when the returned future has a result."""
    answer = getattr(server, name)(*words)
    if not isinstance(answer, torch.futures.Future):
        future = torch.futures.Future()
        future.set_result(answer)
        return future
    return answer


def train(number, workers, arguments):
    train_set, test_set = workload.load_images(arguments)
    sampler = DistributedSampler(train_set, workers, number, seed=arguments.seed, drop_last=True)
    size = arguments.batch_size // workers
    train_loader = DataLoader(train_set, size, sampler=sampler, drop_last=True, collate_fn=workload.collate)
    indices = range(number, len(test_set), workers)
    test_loader = DataLoader(test_set, 500, sampler=indices, collate_fn=workload.collate)
    model = workload.ConvNet(train_set.images.shape[1:], arguments.width)
    take(model, rpc.rpc_sync("rank0", call, ("weights",)))

    for epoch in range(1, arguments.epochs + 1):
        sampler.set_epoch(epoch)  # without set_epoch, every epoch uses the same order
        loss_sum = 0.0
        for images, labels in train_loader:
            loss = cross_entropy(model(images), labels)
            model.zero_grad()
            loss.backward()
            gradients = [weight.grad for weight in model.parameters()]
            take(model, rpc.rpc_sync("rank0", call, ("push", gradients)))
            loss_sum += loss.item()
        correct = count_correct(model, test_loader).item()
        rpc.rpc_sync("rank0", call, ("end_epoch", epoch, loss_sum, correct))


@torch.no_grad()
def take(model, weights):
    for mine, new in zip(model.parameters(), weights, strict=True):
        mine.copy_(new)


@torch.no_grad()
def count_correct(model, test_loader):
    correct = torch.zeros((), dtype=torch.int64)
    for images, labels in test_loader:
        correct += (model(images).argmax(dim=1) == labels).sum()
    return correct


if __name__ == "__main__":
    parser = workload.parser(__file__, __doc__)
    arguments = parser.parse_args()
    workload.require_torchrun(__file__)
    rank, arguments.world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]) - 1
    if arguments.world_size < 1:
        workload.refuse("this script needs at least 2 processes: a server and a worker")
    workload.check(arguments)
    if rank == 0:
        server = Server(arguments)
    rpc.init_rpc(f"rank{rank}", rank=rank, world_size=arguments.world_size + 1)
    if rank > 0:
        train(rank - 1, arguments.world_size, arguments)
    rpc.shutdown()  # waits until all processes have called it
    if rank == 0:
        size = server.bytes // server.steps
        print(f"{arguments.world_size} workers | each step, bytes through rank 0: {size:,}")
        torch.save(server.model.state_dict(), arguments.out / f"{arguments.lesson}.pt")
