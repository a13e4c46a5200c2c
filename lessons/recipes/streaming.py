r"""Lesson 04's job with images from shard files: each process opens only its own files.

    torchrun --standalone --nproc-per-node 2 lessons/recipes/streaming.py

The losses are the same on 1, 2, 3, 4, 6 and 12 processes with any number of workers.
With --stop-after 150, the run ends after 150 steps; the same command without this
option resumes it, and opens only unfinished shards.
"""

import os
import sys
import time
from contextlib import nullcontext
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

sys.path.append(str(Path(__file__).resolve().parent.parent))
import workload
from parts.loading import start_worker

SHARDS = 48  # files
LANES = 12  # a lane is a stream of images; each process reads LANES / world_size lanes


class Stream(IterableDataset):
    """The images of the given lanes. Every step takes the same number of images from each lane.

    In each epoch, all shards are shuffled and dealt to the lanes, and the images of a shard
    are shuffled too. Both orders depend only on the seed and the epoch, so step 31 gets the same
    images on any number of processes, and a resumed run knows which shards are finished.
    """

    def __init__(self, folder, seed, lanes, chunk):
        self.folder, self.seed, self.lanes, self.chunk = folder, seed, lanes, chunk
        self.sizes = torch.load(folder / "sizes.pt")
        self.begin(1, 0)

    def begin(self, epoch, done):
        self.epoch, self.done = epoch, done
        order = torch.randperm(SHARDS, generator=self.generator(SHARDS)).tolist()
        self.shards = [order[lane::LANES] for lane in range(LANES)]

    def generator(self, number):
        return torch.Generator().manual_seed((self.seed * 10_000 + self.epoch) * 100 + number)

    def steps(self, lanes):
        """Return how many steps these lanes fill in this epoch. Shards differ in size."""
        images = []
        for lane in lanes:
            sizes = [self.sizes[shard] for shard in self.shards[lane]]
            images.append(sum(sizes))
        return min(images) // self.chunk

    def __iter__(self):
        worker = get_worker_info()
        # The loader asks its workers in turn, so worker 0 of 2 gets every second lane.
        mine = self.lanes[worker.id :: worker.num_workers] if worker else self.lanes
        lanes = [self.read(lane) for lane in mine]
        for _ in range(self.done, self.steps(self.lanes)):
            for lane in lanes:
                yield next(lane)

    def read(self, lane):
        skip = self.done * self.chunk
        images, labels = torch.tensor([], dtype=torch.uint8), torch.tensor([], dtype=torch.int64)
        for shard in self.shards[lane]:
            if skip >= self.sizes[shard]:  # a resumed run does not even open this shard
                skip -= self.sizes[shard]
                continue
            more_images, more_labels = torch.load(self.folder / f"{shard:02}.pt")
            order = torch.randperm(len(more_labels), generator=self.generator(shard))[skip:]
            images, labels = torch.cat([images, more_images[order]]), torch.cat([labels, more_labels[order]])
            skip = 0
            while len(labels) >= self.chunk:
                yield images[: self.chunk], labels[: self.chunk]
                images, labels = images[self.chunk :], labels[self.chunk :]


def write_shards(folder, images):
    """Split the images into files that differ in size, as real shards do."""
    mean = len(images) // SHARDS
    sizes = [mean + (number % 5 - 2) * mean // 20 for number in range(SHARDS - 1)]
    sizes.append(len(images) - sum(sizes))
    folder.mkdir(exist_ok=True)
    start = 0
    for number, size in enumerate(sizes):
        part = slice(start, start + size)
        torch.save((images.images[part].clone(), images.labels[part].clone()), folder / f"{number:02}.pt")
        start += size
    torch.save(sizes, folder / "sizes.pt")


def train(rank, world_size, device, arguments):
    workload.set_seed(arguments.seed)
    train_set, test_set = workload.load_images(arguments)
    folder = arguments.out / "shards"
    if rank == 0 and not folder.exists():
        write_shards(folder, train_set)
    del train_set
    dist.barrier()  # a process could open shards before rank 0 has written them
    lanes = list(range(rank, LANES, world_size))
    stream = Stream(folder, arguments.seed, lanes, arguments.batch_size // LANES)
    options = {"num_workers": arguments.workers}
    if arguments.workers:
        options |= {"multiprocessing_context": "forkserver", "worker_init_fn": start_worker}
    loader = DataLoader(stream, batch_size=None, **options)  # it makes the batches itself
    indices = range(rank, len(test_set), world_size)
    test_loader = DataLoader(test_set, 500, sampler=indices, collate_fn=workload.collate)

    model = workload.ConvNet(test_set.images.shape[1:], arguments.width).to(device)
    model = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=arguments.lr, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, arguments.epochs)
    parts = {"model": model.module, "optimizer": optimizer, "scheduler": scheduler}
    snapshot = arguments.out / "streaming.snapshot"
    first, done, totals = 1, 0, torch.zeros(2, dtype=torch.float64, device=device)
    if snapshot.exists():
        state = torch.load(snapshot, map_location=device)
        for name, part in parts.items():
            part.load_state_dict(state[name])
        first, done, totals = state["epoch"], state["step"], state["totals"]

    taken = 0
    for epoch in range(first, arguments.epochs + 1):
        start = time.perf_counter()
        stream.begin(epoch, done)
        # Without --join, all processes stop at the end of the shortest of all lanes.
        steps = stream.steps(lanes if arguments.join else range(LANES))
        chunks = iter(loader)
        with model.join() if arguments.join else nullcontext():
            for step in range(done + 1, steps + 1):
                mine = [next(chunks) for _ in lanes]
                images, labels = (torch.cat(tensors).to(device) for tensors in zip(*mine, strict=True))
                loss = cross_entropy(model(images), labels)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                totals[0] += loss.detach()
                totals[1] += 1
                taken += 1
                if taken == arguments.stop_after:
                    dist.all_reduce(totals)
                    if rank == 0:
                        state = {"epoch": epoch, "step": step, "totals": totals / world_size}
                        state |= {name: part.state_dict() for name, part in parts.items()}
                        torch.save(state, snapshot)
                    return
        del chunks  # this ends the workers, which may have read ahead
        scheduler.step()
        dist.all_reduce(totals)
        seconds = time.perf_counter() - start

        correct = workload.count_correct(model.module, test_loader, device)
        dist.all_reduce(correct)
        if rank == 0:
            speed = (totals[1].item() / world_size - done) * arguments.batch_size / seconds
            mean_loss = (totals[0] / totals[1]).item()
            workload.report(arguments, epoch, mean_loss, correct.item() / len(test_set), speed)
        done, totals = 0, torch.zeros_like(totals)


if __name__ == "__main__":
    parser = workload.parser(__file__, __doc__)
    option = parser.add_argument
    option("--workers", type=int, default=0, help="DataLoader workers per process (0)")
    option("--join", action="store_true", help="let each process read its own lanes to their end")
    option("--stop-after", type=int, help="steps after which the run saves its state and ends")
    arguments = parser.parse_args()
    workload.require_torchrun(__file__)
    workload.check(arguments)
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if LANES % world_size or arguments.batch_size % LANES:
        workload.refuse(f"{LANES} must divide by the number of processes, and --batch-size by {LANES}")
    if arguments.workers and LANES // world_size % arguments.workers:
        workload.refuse(f"the {LANES // world_size} lanes of a process must divide by --workers")
    device = workload.pick_device(int(os.environ["LOCAL_RANK"]))
    backend = dist.get_default_backend_for_device(device)
    device_id = None if device.type == "cpu" else device
    dist.init_process_group(backend, device_id=device_id)
    train(rank, world_size, device, arguments)
    dist.destroy_process_group()
