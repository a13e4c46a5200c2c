"""deepspeed_ddp.py with ZeRO: each stage shards one more kind of tensor among the processes.

    DS_ACCELERATOR=cpu deepspeed --num_accelerators 2 --no_local_rank lessons/frameworks/deepspeed_zero.py

You will see lesson 01's losses again, and how many bytes each process holds, as in lesson 09. --stage 1
shards the optimizer state, 2 also the gradients, 3 (the default) also the weights.
"""

import atexit
import math
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
    # Every process needs the same number of batches: at stage 3, forward waits for all processes.
    rounds = math.ceil(len(test_set) / world_size / 500)
    batches = [indices[number::rounds] for number in range(rounds)]
    test_loader = DataLoader(test_set, batch_sampler=batches, collate_fn=workload.collate)

    model = workload.ConvNet(train_set.images.shape[1:], arguments.width)
    optimizer = torch.optim.SGD(model.parameters(), lr=arguments.lr, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, arguments.epochs)
    # By default DeepSpeed clips the gradients to a norm of 1, which would change the curve.
    config = {"train_micro_batch_size_per_gpu": size, "gradient_clipping": 0.0}
    config["zero_allow_untested_optimizer"] = True  # otherwise DeepSpeed refuses SGD
    config["zero_optimization"] = {
        "stage": arguments.stage,
        "stage3_param_persistence_threshold": 0,  # otherwise weights below 100,000 numbers stay gathered
        "reduce_bucket_size": 1_000_000,  # stage 3 allocates the whole bucket: by default 500 million numbers
    }
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

    engine.backward(cross_entropy(engine(images), labels))  # no step: it would drop the gradients
    report_memory(rank, world_size, arguments.stage, engine)
    weights = list(engine.module.parameters())
    with deepspeed.zero.GatheredParameters(weights, enabled=arguments.stage == 3):
        if rank == 0:
            torch.save(engine.module.state_dict(), arguments.out / f"{arguments.lesson}.pt")


def report_memory(rank, world_size, stage, engine):
    optimizer, weights = engine.optimizer, list(engine.module.parameters())
    if stage == 3:
        weights += [weight.ds_tensor for weight in weights]  # shards; the weights are empty now
        copy = optimizer.fp32_partitioned_groups_flat
        buffers = [bucket.buffer for bucket in optimizer.ipg_buckets.values()]
    else:
        copy, buffers = optimizer.single_partition_of_fp32_groups, []
    gradients = [tensor for group in optimizer.averaged_gradients.values() for tensor in group]
    momentum = [state["momentum_buffer"] for state in optimizer.optimizer.state.values()]
    line = (
        f"rank {rank} holds {held(weights):,} bytes of weights, {held(gradients):,} of gradients, "
        f"{held(momentum):,} of momentum; {held(copy):,} of a second copy, {held(buffers):,} of buffers"
    )
    lines = [None] * world_size
    dist.all_gather_object(lines, line)
    if rank == 0:
        print(*lines, sep="\n")


def held(tensors):
    """Bytes of memory that these tensors keep: a view keeps all of its storage."""
    storages = [tensor.untyped_storage() for tensor in tensors]
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())


if __name__ == "__main__":
    parser = workload.parser(__file__, __doc__)
    parser.add_argument("--stage", type=int, choices=(1, 2, 3), default=3, help="stage of ZeRO (%(default)s)")
    arguments = parser.parse_args()
    workload.require_torchrun(__file__)
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    on_cpu = deepspeed.get_accelerator().device_name() == "cpu"
    workload.check(arguments, uses_gpus=not on_cpu, can_share=False)
    if on_cpu:
        deepspeed.ops.__compatible_ops__ = {}  # or it compiles an operator that only inference needs
    deepspeed.init_distributed(timeout=timedelta(minutes=2))
    train(rank, world_size, arguments)
    dist.destroy_process_group()
    sys.stdout.flush()
    atexit.register(os._exit, 0)  # stage 3 keeps threads that may abort the process at exit
