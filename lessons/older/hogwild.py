"""Lesson 01 as Hogwild: processes of one machine change the same weights in shared memory, without a lock.

    python lessons/older/hogwild.py --world-size 2

You will see the accuracy at the end. It is close to lesson 01's. The weights differ from run to run, because
the processes may overwrite each other's changes. No process waits for another, and none sends anything.
"""

import sys
from pathlib import Path

import torch
import torch.multiprocessing as mp
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, DistributedSampler

sys.path.append(str(Path(__file__).resolve().parent.parent))
import workload


def worker(rank, world_size, model, arguments):
    torch.set_num_threads(1)
    train_set, _ = workload.load_images(arguments)
    sampler = DistributedSampler(train_set, world_size, rank, seed=arguments.seed, drop_last=True)
    size = arguments.batch_size // world_size
    loader = DataLoader(train_set, size, sampler=sampler, drop_last=True, collate_fn=workload.collate)
    # Together, the processes take world_size times as many steps, each on fewer images.
    optimizer = torch.optim.SGD(model.parameters(), lr=arguments.lr / world_size, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, arguments.epochs)
    for epoch in range(1, arguments.epochs + 1):
        sampler.set_epoch(epoch)
        for images, labels in loader:
            loss = cross_entropy(model(images), labels)
            optimizer.zero_grad()  # sets the gradients to None: each process has gradients of its own
            loss.backward()
            optimizer.step()  # changes the weights of all processes
        scheduler.step()


@torch.no_grad()
def count_correct(model, test_set):
    loader = DataLoader(test_set, 500, collate_fn=workload.collate)
    return sum((model(images).argmax(dim=1) == labels).sum().item() for images, labels in loader)


if __name__ == "__main__":
    parser = workload.parser(__file__, __doc__)
    parser.add_argument("--world-size", type=int, default=2)
    arguments = parser.parse_args()
    workload.check(arguments)
    workload.set_seed(arguments.seed)
    train_set, test_set = workload.load_images(arguments)
    model = workload.ConvNet(train_set.images.shape[1:], arguments.width)
    model.share_memory()  # mp.spawn would do this as well, but forked processes would train copies
    before = count_correct(model, test_set)
    mp.spawn(worker, (arguments.world_size, model, arguments), nprocs=arguments.world_size)
    after = count_correct(model, test_set)
    print(f"accuracy before {before / len(test_set):.1%}, after {after / len(test_set):.1%}")
