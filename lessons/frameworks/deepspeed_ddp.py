"""Lesson 04 with DeepSpeed: an engine wraps the model, and a dictionary configures it.

    DS_ACCELERATOR=cpu deepspeed --num_accelerators 2 --no_local_rank lessons/frameworks/deepspeed_ddp.py

You will see lesson 01's losses again, between lines of the launcher. On GPUs, leave out DS_ACCELERATOR. ZeRO
is one more entry in the dictionary. The processes meet at port 29500; --master_port changes it.
"""

import os
import sys
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, DistributedSampler

try:
    import deepspeed
except ModuleNotFoundError as error:
    sys.exit(f"error: {error}: pip install -r lessons/frameworks/deepspeed.txt")
sys.path.append(str(Path(__file__).resolve().parent.parent))
import workload


def train(rank, world_size, arguments):
    workload.set_seed(arguments.seed)
    train_set, test_set = workload.load_images(arguments)
    sampler = DistributedSampler(train_set, seed=arguments.seed, drop_last=True)
    size = arguments.batch_size // world_size
    train_loader = DataLoader(train_set, size, sampler=sampler, drop_last=True, collate_fn=workload.collate)
    # A DistributedSampler may repeat some test images.
    indices = range(rank, len(test_set), world_size)
    test_loader = DataLoader(test_set, 500, sampler=indices, collate_fn=workload.collate)

    model = workload.ConvNet(train_set.images.shape[1:], arguments.width)
    optimizer = torch.optim.SGD(model.parameters(), lr=arguments.lr, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, arguments.epochs)
    # By default DeepSpeed clips the gradients to a norm of 1, which would change the curve.
    config = {"train_micro_batch_size_per_gpu": size, "gradient_clipping": 0.0}
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)

    for epoch in range(1, arguments.epochs + 1):
        start = time.perf_counter()
        sampler.set_epoch(epoch)  # without set_epoch, every epoch uses the same order
        loss_sum = torch.zeros((), device=engine.device)
        for images, labels in workload.progress(train_loader, epoch):
            images, labels = images.to(engine.device), labels.to(engine.device)
            loss = cross_entropy(engine(images), labels)
            engine.backward(loss)
            engine.step()
            loss_sum += loss.detach()
        scheduler.step()
        dist.all_reduce(loss_sum)
        mean_loss = loss_sum.item() / len(train_loader) / world_size
        seconds = time.perf_counter() - start

        correct = workload.count_correct(engine.module, test_loader, engine.device)
        dist.all_reduce(correct)
        speed = len(train_loader) * arguments.batch_size / seconds
        if rank == 0:
            workload.report(arguments, epoch, mean_loss, correct.item() / len(test_set), speed)

    if rank == 0:  # all ranks hold the same weights, so only rank 0 saves them
        torch.save(engine.module.cpu().state_dict(), arguments.out / f"{arguments.lesson}.pt")


if __name__ == "__main__":
    parser = workload.parser(__file__, __doc__)
    arguments = parser.parse_args()
    workload.require_torchrun(__file__)
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    on_cpu = deepspeed.get_accelerator().device_name() == "cpu"
    workload.check(arguments, uses_gpus=not on_cpu, can_share=False)
    if on_cpu:
        deepspeed.ops.__compatible_ops__ = {}  # or it compiles an operator that only inference needs
    deepspeed.init_distributed(timeout=timedelta(minutes=2))
    train(rank, world_size, arguments)
    deepspeed.utils.groups._WORLD_GROUP = None  # it would keep the process group alive
    dist.destroy_process_group()
