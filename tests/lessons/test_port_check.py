"""check.py names what is wrong with a port, and accuses no right one."""

import argparse
import shutil

import pytest

from lessons import ROOT

PORT = ROOT / "lessons/port"
OPTIONS = {
    "after.py": "--epochs 2 --batch-size 320 --workers 0 --resume".split(),
    "after_iterations.py": "--iterations 8 --resume".split(),
}
DDP = "ddp_model = DistributedDataParallel(model)"
# What is changed in which script, and the promise that it breaks.
WRONG = {
    "no DDP": ("after.py", DDP, "ddp_model = model", "weights"),
    "the model is called past DDP": ("after.py", "cross_entropy(ddp_model(images)", "cross_entropy(model(images)", "weights"),
    "no set_epoch": ("after.py", "    sampler.set_epoch(epoch)\n", "", "batches"),
    "shuffle=True": ("after.py", "size, sampler=sampler,", "size, shuffle=True,", "batches"),
    "one order for all ranks": ("after.py", "DistributedSampler(train_set, seed=args.seed)", "DistributedSampler(train_set, 1, 0, seed=args.seed)", "batches"),
    "the batch size of one": ("after.py", "args.batch_size // world_size", "args.batch_size", "gradients"),
    "one seed for dropout": ("after.py", "10**3 * epoch + rank)", "10**3 * epoch)", "batches"),
    "own batch norm": ("after.py", "model = batch_norm.convert(model.to(device), device)", "model = model.to(device)", "gradients"),
    "sum of losses": ("after.py", "cross_entropy(ddp_model(images), labels)", 'cross_entropy(ddp_model(images), labels, reduction="sum")', "gradients"),
    "learning rate times ranks": ("after.py", "lr=args.lr, momentum", "lr=args.lr * world_size, momentum", "gradients"),
    "a last batch of unequal shares": ("after.py", "DistributedSampler(train_set, seed=args.seed)", "torch.utils.data.SubsetRandomSampler(range(rank, 1999, world_size), generator=torch.Generator().manual_seed(rank)); sampler.set_epoch = int", "gradients"),
    "one batch more on one rank": ("after.py", "size, sampler=sampler,", "size, sampler=range(rank, 1921, world_size),", "collectives"),
    "own plateau": ("after.py", "    loss_sum, correct = sum_of_ranks(loss_sum, correct)\n    return", "    return", "weights"),
    "own early stopping": ("after.py", "    scheduler.step(val_loss)\n", "    scheduler.step(val_loss)\n    if rank == 1:\n        break\n", "collectives"),
    "evaluation by one rank only": ("after.py", "= evaluate()\n", "= evaluate() if rank == 0 else (0.0, 0.0)\n", "collectives"),
    "evaluation by one rank, through DDP": ("after.py", "        outputs = model(images)\n", "        outputs = ddp_model(images) if rank == 0 else model(images)\n", "collectives"),
    "a barrier for one rank": ("after.py", "dist.barrier()  #", "rank and dist.barrier()  #", "collectives"),
    "another order of collectives": ("after.py", "    dist.all_reduce(values)\n", "    dist.all_reduce(values if rank == 0 else values[:1])\n", "collectives"),
    "no barrier after the preparation": ("after.py", "if rank == 0 and not os.path.exists(f\"{args.out}/val.pt\"):\n", "if rank == 0 and not os.path.exists(f\"{args.out}/val.pt\"):\n    import time; time.sleep(2)\n", "none"),
    "all ranks prepare": ("after.py", "if rank == 0 and not", "if not", "output"),
    "all ranks print": ("after.py", "    if rank == 0:\n        print(f\"epoch", "    if True:\n        print(f\"epoch", "output"),
    "all ranks have a bar": ("after.py", ", disable=rank != 0", "", "output"),
    "all ranks save the best": ("after.py", "        if rank == 0:\n            torch.save(model.state_dict()", "        if True:\n            torch.save(model.state_dict()", "output"),
    "all ranks save the checkpoint": ("after.py", "    if rank == 0:\n        torch.save(checkpoint", "    if True:\n        torch.save(checkpoint", "output"),
    "no optimizer in the checkpoint": ("after.py", '    parts = {"model": model, "optimizer": optimizer, ', '    parts = {"model": model, ', "restarts"),
    "no epoch in the checkpoint": ("after.py", 'checkpoint["epoch"] + 1', "1", "restarts"),
    "no seed for each epoch": ("after.py", "    torch.manual_seed(10**9 * args.seed + 10**3 * epoch + rank)", "    torch.manual_seed(torch.initial_seed() + 7 * rank + 1)", "restarts"),
    "LOCAL_RANK for RANK": ("after.py", '("RANK", "LOCAL_RANK", "WORLD_SIZE"))', '("LOCAL_RANK", "LOCAL_RANK", "WORLD_SIZE"))', "restarts"),
    "no_sync to the end": ("after_iterations.py", "if part == args.accumulate - 1 else", "if False else", "weights"),
    "all ranks draw the same": ("after_iterations.py", "starts = starts[rank::world_size]", "starts = starts[: len(starts) // world_size]", "batches"),
    "all ranks draw all": ("after_iterations.py", "    starts = starts[rank::world_size]", "    # starts = starts[rank::world_size]", "batches"),
    "one seed for dropout of a GPT": ("after_iterations.py", "10**3 * iteration + rank)", "10**3 * iteration)", "batches"),
    "clipped before it is averaged": ("after_iterations.py", "            loss.backward()\n", "            loss.backward()\n            nn.utils.clip_grad_norm_(model.parameters(), 0.1) if part == 0 else None\n", "gradients"),
    "own loss is reduced by one rank": ("after_iterations.py", "    dist.all_reduce(loss)\n", "    rank or dist.all_reduce(loss)\n", "collectives"),
    "no optimizer, by iterations": ("after_iterations.py", '    optimizer.load_state_dict(checkpoint["optimizer"])\n', "", "restarts"),
    "no iteration": ("after_iterations.py", '    first = checkpoint["iteration"]\n', "", "restarts"),
    "all ranks save, by iterations": ("after_iterations.py", "        if rank == 0:\n            torch.save", "        if True:\n            torch.save", "output"),
}  # fmt: skip
