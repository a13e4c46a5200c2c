"""Lesson 04 with Hugging Face Accelerate: the loop does not depend on the number of processes.

    torchrun --standalone --nproc-per-node 2 lessons/frameworks/accelerate_ddp.py

You will see lesson 01's losses again. `prepare` wraps the model, distributes the batches and moves them to
the device. On GPUs you can also start it with `accelerate launch --num-processes 2`; on CPUs that command
starts a single process unless you tell it to use mpirun.
"""

import os
import sys
import time
import warnings
from datetime import timedelta
from pathlib import Path

import torch
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

try:
    from accelerate import Accelerator, DataLoaderConfiguration, InitProcessGroupKwargs
except ModuleNotFoundError as error:
    sys.exit(f"error: {error}: pip install -r lessons/frameworks/requirements.txt")
sys.path.append(str(Path(__file__).resolve().parent.parent))
import workload


def train(accelerator, arguments):
    workload.set_seed(arguments.seed)
    train_set, test_set = workload.load_images(arguments)
    size = arguments.batch_size // accelerator.num_processes
    train_loader = DataLoader(train_set, size, shuffle=True, drop_last=True, collate_fn=workload.collate)
    test_loader = DataLoader(test_set, 500, collate_fn=workload.collate)

    model = workload.ConvNet(train_set.images.shape[1:], arguments.width)
    optimizer = torch.optim.SGD(model.parameters(), lr=arguments.lr, momentum=0.9)
    # The scheduler is not prepared: Accelerate would step it once per process.
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, arguments.epochs)
    model, optimizer, train_loader, test_loader = accelerator.prepare(
        model, optimizer, train_loader, test_loader
    )

    for epoch in range(1, arguments.epochs + 1):
        start = time.perf_counter()
        train_loader.set_epoch(epoch)  # otherwise a resumed run would begin with the first epoch's order
        loss_sum = torch.zeros((), device=accelerator.device)
        for images, labels in workload.progress(train_loader, epoch):
            loss = cross_entropy(model(images), labels)
            optimizer.zero_grad()
            accelerator.backward(loss)
            optimizer.step()
            loss_sum += loss.detach()
        scheduler.step()
        mean_loss = accelerator.reduce(loss_sum, "mean").item() / len(train_loader)
        seconds = time.perf_counter() - start

        correct = count_correct(accelerator, model, test_loader)
        speed = len(train_loader) * arguments.batch_size / seconds
        if accelerator.is_main_process:
            workload.report(arguments, epoch, mean_loss, correct.item() / len(test_set), speed)

    if accelerator.is_main_process:
        model = accelerator.unwrap_model(model)
        torch.save(model.cpu().state_dict(), arguments.out / f"{arguments.lesson}.pt")


@torch.no_grad()
def count_correct(accelerator, model, test_loader):
    correct = torch.zeros((), dtype=torch.int64, device=accelerator.device)
    for images, labels in test_loader:
        hits = model(images).argmax(dim=1) == labels
        correct += accelerator.gather_for_metrics(hits).sum()
    return correct


if __name__ == "__main__":
    parser = workload.parser(__file__, __doc__)
    arguments = parser.parse_args()
    workload.require_torchrun(__file__)
    arguments.world_size = int(os.environ["WORLD_SIZE"])
    workload.check(arguments, can_share=False)
    # On GPUs, Accelerate 1.15 gathers with a function that torch 2.13 calls deprecated.
    warnings.filterwarnings("ignore", ".*all_gather_into_tensor", FutureWarning)
    accelerator = Accelerator(
        cpu=workload.gpu_count() == 0,
        dataloader_config=DataLoaderConfiguration(use_seedable_sampler=True, data_seed=arguments.seed),
        kwargs_handlers=[InitProcessGroupKwargs(timeout=timedelta(minutes=2))],
    )
    train(accelerator, arguments)
    accelerator.free_memory()
    accelerator.end_training()
