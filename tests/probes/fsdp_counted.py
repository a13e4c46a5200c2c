"""Lesson 09, with a count of each step: its collectives, what it keeps for backward, the kinds it sends."""

import json
import warnings

import torch
import torch.distributed as dist
from torch.distributed.tensor.debug import CommDebugMode

import workload
from meshes import become

gather, scatter = dist.all_gather_single, dist.reduce_scatter_single
kinds = set()


def note_gather(output, input, **options):
    kinds.add(f"gather {input.dtype}")
    return gather(output, input, **options)


def note_scatter(output, input, **options):
    kinds.add(f"scatter {input.dtype}")
    return scatter(output, input, **options)


def progress(batches, epoch):
    warnings.simplefilter("ignore")  # the counter's hooks make views of the outputs, which FSDP warns of
    for batch in batches:
        kept = []

        def keep(tensor, kept=kept):
            kept.append([list(tensor.shape), str(tensor.dtype), tensor.nbytes])
            return tensor

        with CommDebugMode() as mode, torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            yield batch
        if (
            dist.get_rank() == 0 and epoch == 1
        ):  # later, the first step after a test prefetches a layer in vain
            sent = {str(name).split("_")[1]: number for name, number in mode.get_comm_counts().items()}
            print(f"counted {json.dumps([sent, kept, sorted(kinds)])}\n", end="")


dist.all_gather_single, dist.reduce_scatter_single = note_gather, note_scatter
workload.progress = progress
become("09_fsdp")
