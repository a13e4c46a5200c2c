"""Lesson 18, grown from lesson 07: a language model learns from PyTorch's own source code.

    torchrun --standalone --nproc-per-node 2 lessons/18_language_model.py

You will see how many bits the model needs per byte of files that it has not seen, and code
that it writes. After some minutes, it needs fewer bits than gzip. A run that was killed
resumes from its last snapshot. On a GPU, use the command for GPUs on the lesson's page.
"""

import os
import time
from contextlib import nullcontext
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, DistributedSampler

import workload
from parts import language_model, source
from parts.guard import Guard
from parts.journal import Journal


@workload.print_first_error
def train(rank, world_size, device, arguments):
    workload.check_shared(arguments.out, rank, device)
    workload.set_seed(arguments.seed)
    train_set, test_set, text = source.load(arguments, rank, device)
    sampler = DistributedSampler(train_set, seed=arguments.seed, drop_last=True)
    size = arguments.batch_size // world_size
    train_loader = DataLoader(train_set, size, sampler=sampler, drop_last=True, collate_fn=workload.collate)

    model = language_model.build_model(arguments, device)
    model = nn.parallel.DistributedDataParallel(model)
    workload.settle(model, train_set.images[:1])
    optimizer = language_model.make_optimizer(model, arguments)
    scheduler = language_model.make_scheduler(optimizer, arguments, len(train_loader))
    dtype = language_model.DTYPES[arguments.precision]
    autocast = torch.autocast(device.type, dtype, enabled=arguments.precision in ("bf16", "fp16"))
    scaler = torch.amp.GradScaler(device.type, enabled=arguments.precision == "fp16")
    guard = Guard(arguments.skip_above)
    parts = arguments.accumulate
    journal = Journal(arguments, text, model.module, optimizer, scheduler, scaler, guard)
    done, loss_sum = journal.resume(device)

    for last in language_model.validations(done, arguments):
        start = time.perf_counter()
        batches = language_model.batches(train_loader, done, last)
        for step, (tokens, following) in enumerate(batches, done + 1):
            optimizer.zero_grad()
            micro_batches = zip(tokens.tensor_split(parts), following.tensor_split(parts), strict=True)
            for number, (tokens, following) in enumerate(micro_batches, 1):
                # no_sync must also cover forward, where DDP decides whether backward all-reduces.
                with nullcontext() if number == parts else model.no_sync():
                    with autocast:
                        scores = model(tokens).flatten(0, 1)
                        loss = cross_entropy(scores, following.flatten(), reduction="sum")
                        loss = loss / (size * arguments.length)  # the tokens of this process
                    scaler.scale(loss).backward()
                loss_sum += loss.detach()
            scaler.unscale_(optimizer)
            norm = nn.utils.clip_grad_norm_(model.parameters(), arguments.clip_norm).item()
            if guard.accepts(step, norm):
                scaler.step(optimizer)
            scaler.update()
            scheduler.step()
            if journal.save_or_stop(step, loss_sum):
                return True
            workload.crash_once(step == arguments.crash_at)
        dist.all_reduce(loss_sum)
        mean_loss = loss_sum.item() / language_model.interval(last, arguments) / world_size
        seconds = time.perf_counter() - start

        # DDP's forward may wait for other ranks, so evaluate the model inside.
        held_out = language_model.validate(model.module, test_set, arguments.test_size, rank, world_size)
        speed = (last - done) * arguments.batch_size * arguments.length / seconds
        if rank == 0:
            journal.report(last, mean_loss, held_out, speed)
            language_model.write(model.module, text.encoder, arguments, device)
        done, loss_sum = last, torch.zeros_like(loss_sum)

    held_out = language_model.validate(model.module, test_set, len(test_set), rank, world_size)
    if rank == 0:  # all ranks hold the same weights, so only rank 0 saves them
        journal.report_end(held_out)
        torch.save(model.module.cpu().state_dict(), arguments.out / f"{arguments.lesson}.pt")
    journal.close()
    return False


if __name__ == "__main__":
    workload.end_with_parent()
    parser = workload.parser(__file__, __doc__)
    language_model.options(parser)
    arguments = parser.parse_args()
    workload.require_torchrun(__file__)
    language_model.check(arguments)
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    # RANK counts the processes of all machines, LOCAL_RANK those of this machine.
    device = workload.pick_device(int(os.environ["LOCAL_RANK"]))
    arguments.precision = language_model.pick_precision(arguments.precision, device)
    workload.require_precision(arguments.precision, device)
    backend = dist.get_default_backend_for_device(device)  # GPUs use NCCL, CPUs use gloo
    # All other ranks wait while rank 0 computes the tokens.
    dist.init_process_group(backend, timeout=timedelta(minutes=10))
    stopped = train(rank, world_size, device, arguments)
    dist.destroy_process_group()
    workload.exit_with_status(stopped)
