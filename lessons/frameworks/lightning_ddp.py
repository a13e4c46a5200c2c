"""Lesson 04 with Lightning's Trainer: it owns the loop and calls the methods of your module.

    python lessons/frameworks/lightning_ddp.py --devices 2

You will see lesson 01's losses again. The Trainer starts this script again for each further process.
--precision bf16-mixed computes in 16 bits without any change to the code.
"""

import sys
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, DistributedSampler

sys.path.append(str(Path(__file__).resolve().parent.parent))
import workload

workload.import_torchvision()  # Lightning's metrics import torchvision, and fail if it does not fit torch
try:
    from pytorch_lightning import LightningModule, Trainer
    from pytorch_lightning.strategies import DDPStrategy
except ModuleNotFoundError as error:
    sys.exit(f"error: {error}: pip install -r lessons/frameworks/requirements.txt")


class Classifier(LightningModule):
    def __init__(self, arguments):
        super().__init__()
        self.arguments = arguments
        self.train_set, self.test_set = workload.load_images(arguments)
        self.model = workload.ConvNet(self.train_set.images.shape[1:], arguments.width)

    def train_dataloader(self):
        # + 1, because the Trainer calls set_epoch itself and counts from 0.
        seed = self.arguments.seed + 1
        sampler = DistributedSampler(self.train_set, seed=seed, drop_last=True)
        size = self.arguments.batch_size // self.trainer.world_size
        return DataLoader(self.train_set, size, sampler=sampler, drop_last=True, collate_fn=workload.collate)

    def val_dataloader(self):
        # A DistributedSampler may repeat some test images.
        indices = range(self.global_rank, len(self.test_set), self.trainer.world_size)
        return DataLoader(self.test_set, 500, sampler=indices, collate_fn=workload.collate)

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.model.parameters(), lr=self.arguments.lr, momentum=0.9)
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, self.arguments.epochs)
        return [optimizer], [scheduler]

    def on_train_epoch_start(self):
        self.start = time.perf_counter()

    def training_step(self, batch):
        images, labels = batch
        loss = cross_entropy(self.model(images), labels)
        self.log("loss", loss, on_step=False, on_epoch=True, sync_dist=True, batch_size=len(labels))
        return loss

    def on_validation_start(self):
        self.seconds = time.perf_counter() - self.start

    def validation_step(self, batch):
        images, labels = batch
        correct = (self.model(images).argmax(dim=1) == labels).sum()
        self.log("correct", correct.float(), reduce_fx="sum", sync_dist=True, batch_size=len(labels))

    def on_train_epoch_end(self):
        seen = self.trainer.callback_metrics
        speed = self.trainer.num_training_batches * self.arguments.batch_size / self.seconds
        accuracy = seen["correct"].item() / len(self.test_set)
        if self.trainer.is_global_zero:
            epoch = self.current_epoch + 1
            workload.report(self.arguments, epoch, seen["loss"].item(), accuracy, speed)


def train(arguments):
    workload.set_seed(arguments.seed)
    trainer = Trainer(
        accelerator="cpu" if workload.gpu_count() == 0 else "auto",  # a Mac's GPU has no collectives
        devices=arguments.devices,
        strategy=DDPStrategy(timeout=timedelta(minutes=2)),  # "ddp" would time out after 30 minutes
        precision=arguments.precision,
        max_epochs=arguments.epochs,
        use_distributed_sampler=False,
        num_sanity_val_steps=0,
        logger=False,
        enable_checkpointing=False,
        enable_model_summary=False,
        enable_progress_bar=sys.stdout.isatty(),
    )
    classifier = Classifier(arguments)
    trainer.fit(classifier)
    if trainer.is_global_zero:
        torch.save(classifier.model.cpu().state_dict(), arguments.out / f"{arguments.lesson}.pt")


if __name__ == "__main__":
    parser = workload.parser(__file__, __doc__)
    option = parser.add_argument
    option("--devices", type=int, default=1, help="processes on this machine (%(default)s)")
    option("--precision", default="32-true", help="or bf16-mixed, 16-mixed and others (%(default)s)")
    arguments = parser.parse_args()
    arguments.world_size = arguments.devices
    workload.check(arguments, can_share=False)
    train(arguments)
    dist.destroy_process_group()
