"""The order of work of two schedules of torch.distributed.pipelining, for the page on pipeline schedules.

    python -m tools.makers.site.orders

You will see widgets/orders.json written anew. The site is built without torch, so it has what torch says in
this file, and a test compares the two. GPipe and 1F1B are worked out in widgets/schedules.py.
"""

import json
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage, ScheduleInterleaved1F1B, ScheduleInterleavedZeroBubble
from torch.nn.functional import cross_entropy

from tools.makers.site.widgets.schedules import MICROBATCHES, PROCESSES, TWO_STAGES, ZERO

OUT = Path(__file__).resolve().parent / "widgets/orders.json"
KINDS = {TWO_STAGES: (ScheduleInterleaved1F1B, 2), ZERO: (ScheduleInterleavedZeroBubble, 1)}


def order(kind: str, processes: int, microbatches: int) -> list[str]:
    """The actions of each process, as torch writes them: 4F0 is stage 4's forward of micro-batch 0. B is a
    backward, I its part for the input, W its part for the weights."""
    schedule, stages_of_each = KINDS[kind]
    dist.init_process_group("fake", rank=0, world_size=processes)
    try:
        count = processes * stages_of_each
        stages = [
            PipelineStage(torch.nn.Identity(), index, count, torch.device("cpu"))
            for index in range(0, count, processes)
        ]
        found = schedule(stages, microbatches, cross_entropy).pipeline_order
    finally:
        dist.destroy_process_group()
    return [" ".join(map(str, filter(None, found[rank]))) for rank in range(processes)]


def orders() -> dict[str, list[str]]:
    return {
        f"{kind} {processes} {microbatches}": order(kind, processes, microbatches)
        for kind in KINDS
        for processes in PROCESSES
        for microbatches in MICROBATCHES
    }


if __name__ == "__main__":
    OUT.write_text(json.dumps(orders(), indent=0) + "\n")
    print(OUT)
