"""Lesson 09, grown from lesson 04: each process holds a shard of the model, not a copy.

    torchrun --standalone --nproc-per-node 2 lessons/09_fsdp.py

You will see lesson 01's losses and how many bytes each process holds. fully_shard
(FSDP) gives each process a shard of every weight, with the shard's gradient and
momentum. FSDP gathers a layer's weights just before the layer computes. The script
saves a checkpoint after each epoch. If you stop the run and start it again on a
different number of processes, it resumes from the last checkpoint.
"""

import math
import os
import time
from datetime import timedelta
from functools import partial

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard
from torch.nn.functional import cross_entropy
from torch.utils.checkpoint import checkpoint_sequential
from torch.utils.data import DataLoader, DistributedSampler

import workload
from parts.checkpoints import Checkpoints  # this module is the other half of the lesson


def train(rank, world_size, device, arguments):
    workload.set_seed(arguments.seed)
    train_set, test_set = workload.load_images(arguments, device)
    sampler = DistributedSampler(train_set, seed=arguments.seed, drop_last=True)
    size = arguments.batch_size // world_size
    train_loader = DataLoader(train_set, size, sampler=sampler, drop_last=True, collate_fn=workload.collate)
    # A DistributedSampler may repeat some test images.
    indices = range(rank, len(test_set), world_size)
    # All ranks need the same number of batches, full or not, because FSDP's forward waits for all ranks.
    rounds = math.ceil(len(test_set) / world_size / 500)
    batches = [indices[number::rounds] for number in range(rounds)]
    test_loader = DataLoader(test_set, batch_sampler=batches, collate_fn=workload.collate)

    with torch.device("meta"):  # the whole model may not fit into memory
        model = workload.ConvNet(train_set.images.shape[1:], arguments.width)
    shard(model, arguments, device)  # shard first, because the optimizer needs shards
    optimizer = torch.optim.SGD(model.parameters(), lr=arguments.lr, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, arguments.epochs)
    checkpoints = Checkpoints(arguments, model, optimizer, scheduler)
    first = checkpoints.load_newest() + 1

    for epoch in range(first, arguments.epochs + 1):
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

        correct = workload.count_correct(model, test_loader, device)
        dist.all_reduce(correct)
        speed = len(train_loader) * arguments.batch_size / seconds
        if rank == 0:
            workload.report(arguments, epoch, mean_loss, correct.item() / len(test_set), speed)
        checkpoints.save(epoch)  # a thread writes the checkpoint while training continues

    checkpoints.wait()  # the writing thread still needs the process group
    if first <= arguments.epochs:  # a run that resumes after the last epoch has no gradients
        report_memory(rank, world_size, model, optimizer)
    # Gathering is a collective: if only rank 0 called it, rank 0 would wait forever.
    full = StateDictOptions(full_state_dict=True, cpu_offload=True)
    weights = get_model_state_dict(model, options=full)
    if rank == 0:
        torch.save(weights, arguments.out / f"{arguments.lesson}.pt")


def shard(model, arguments, device):
    if arguments.checkpoint_activations:  # recompute the first five layers in backward
        model.forward = partial(checkpoint_sequential, list(model), 2, use_reentrant=False)
    dtype = torch.bfloat16 if arguments.precision == "bf16" else torch.float32
    mesh = workload.make_mesh(device, data=arguments.world_size)
    options = {
        "mesh": mesh,
        "mp_policy": MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32),
        "reshard_after_forward": not arguments.no_reshard,
    }
    if arguments.offload:
        options["offload_policy"] = CPUOffloadPolicy(pin_memory=device.type != "cpu")
    for layer in model:
        if list(layer.parameters()):
            # Initialize each whole layer as in lesson 01, and shard it before initializing the next layer.
            layer.to_empty(device="cpu").reset_parameters()
            fully_shard(layer, **options)
    # The root comes last. If only the root were sharded, FSDP would gather all layers at once.
    fully_shard(model, mesh=mesh, mp_policy=MixedPrecisionPolicy(output_dtype=torch.float32))


def report_memory(rank, world_size, model, optimizer):
    weights = gradients = momentum = 0
    for weight in model.parameters():
        weights += weight.to_local().nbytes
        gradients += weight.grad.to_local().nbytes
        momentum += optimizer.state[weight]["momentum_buffer"].to_local().nbytes
    line = (
        f"rank {rank} holds {weights:,} bytes of weights, "
        f"{gradients:,} of gradients, {momentum:,} of momentum"
    )
    lines = [None] * world_size
    dist.all_gather_object(lines, line)
    if rank == 0:
        print(*lines, sep="\n")


if __name__ == "__main__":
    parser = workload.parser(__file__, __doc__)
    option = parser.add_argument
    option("--precision", choices=("fp32", "bf16"), default="fp32", help="of the computation (fp32)")
    option("--checkpoint-activations", action="store_true", help="compute large activations twice")
    option("--offload", action="store_true", help="keep the shards in the CPU's memory")
    option("--no-reshard", action="store_true", help="keep layers gathered until backward")
    arguments = parser.parse_args()
    workload.require_torchrun(__file__)
    workload.check(arguments)
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    # RANK counts the processes of all machines, LOCAL_RANK those of this machine.
    device = workload.pick_device(int(os.environ["LOCAL_RANK"]))
    backend = dist.get_default_backend_for_device(device)  # GPUs use NCCL, CPUs use gloo
    device_id = None if device.type == "cpu" else device  # given a device_id, NCCL starts immediately
    dist.init_process_group(backend, device_id=device_id, timeout=timedelta(minutes=2))
    train(rank, world_size, device, arguments)
    dist.destroy_process_group()
