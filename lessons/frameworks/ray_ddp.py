"""Lesson 04 with Ray Train: it starts a cluster of processes first, and hands them the function.

    python lessons/frameworks/ray_ddp.py --workers 2

You will see lesson 01's losses again among Ray's own lines, each with the worker that printed it. On several
machines, run `ray start` on each instead of torchrun.
"""

import os
import sys
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, DistributedSampler

try:
    import ray
    import ray.train.torch
    from ray.train import FailureConfig, RunConfig, ScalingConfig
except ModuleNotFoundError as error:
    sys.exit(f"error: {error}: pip install -r lessons/frameworks/ray.txt")
sys.path.append(str(Path(__file__).resolve().parent.parent))
import workload


def train(arguments):
    context = ray.train.get_context()
    rank, world_size = context.get_world_rank(), context.get_world_size()
    device = ray.train.torch.get_device()
    workload.set_seed(arguments.seed)
    train_set, test_set = workload.load_images(arguments, device)
    sampler = DistributedSampler(train_set, seed=arguments.seed, drop_last=True)
    size = arguments.batch_size // world_size
    train_loader = DataLoader(train_set, size, sampler=sampler, drop_last=True, collate_fn=workload.collate)
    # A DistributedSampler may repeat some test images.
    indices = range(rank, len(test_set), world_size)
    test_loader = DataLoader(test_set, 500, sampler=indices, collate_fn=workload.collate)

    model = workload.ConvNet(train_set.images.shape[1:], arguments.width).to(device)
    model = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=arguments.lr, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, arguments.epochs)

    for epoch in range(1, arguments.epochs + 1):
        start = time.perf_counter()
        sampler.set_epoch(epoch)  # without set_epoch, every epoch uses the same order
        loss_sum = torch.zeros((), device=device)
        for images, labels in workload.progress(train_loader, epoch):
            images, labels = images.to(device), labels.to(device)
            loss = cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            loss_sum += loss.detach()
        scheduler.step()
        dist.all_reduce(loss_sum)
        mean_loss = loss_sum.item() / len(train_loader) / world_size
        seconds = time.perf_counter() - start

        # DDP's forward may wait for other ranks, so evaluate the model inside.
        correct = workload.count_correct(model.module, test_loader, device)
        dist.all_reduce(correct)
        speed = len(train_loader) * arguments.batch_size / seconds
        if rank == 0:
            workload.report(arguments, epoch, mean_loss, correct.item() / len(test_set), speed)

    if rank == 0:  # all ranks hold the same weights, so only rank 0 saves them
        torch.save(model.module.cpu().state_dict(), arguments.out / f"{arguments.lesson}.pt")
    del model


if __name__ == "__main__":
    parser = workload.parser(__file__, __doc__)
    option = parser.add_argument
    option("--workers", type=int, default=1, help="processes to train on (%(default)s)")
    option("--max-failures", type=int, default=0, help="how often to restart after a failure (%(default)s)")
    arguments = parser.parse_args()
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # otherwise Ray reports usage to its authors
    os.environ.setdefault("RAY_TRAIN_ENABLE_PRINT_PATCH", "0")  # otherwise each line appears twice
    arguments.world_size = arguments.workers
    workload.check(arguments, can_share=False)
    arguments.out = arguments.out.resolve()  # workers have a different working directory
    # Paths of Ray's sockets may have at most 107 characters, and a path inside --out might be longer.
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="ray-") as folder:
        options = {
            "num_cpus": arguments.workers,
            "include_dashboard": False,
            "runtime_env": {"env_vars": {"PYTHONPATH": sys.path[-1]}},  # or workers do not find workload
            "_temp_dir": folder,
        }
        trainer = ray.train.torch.TorchTrainer(
            train,
            train_loop_config=arguments,
            torch_config=ray.train.torch.TorchConfig(timeout_s=120),
            scaling_config=ScalingConfig(num_workers=arguments.workers, use_gpu=workload.gpu_count() > 0),
            run_config=RunConfig(
                storage_path=folder, failure_config=FailureConfig(max_failures=arguments.max_failures)
            ),
        )
        with ray.init(**options):  # leaving it ends the cluster that it started
            trainer.fit()
