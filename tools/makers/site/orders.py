"""The order of work of two schedules of torch.distributed.pipelining, for the page on pipeline schedules.

    python -m tools.makers.site.orders

You will see widgets/orders.json written anew. The site is built without torch, so it has what torch says in
this file, and a test compares the two. GPipe and 1F1B are worked out in widgets/schedules.py.
"""

import itertools
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
        stages = []
        for index in range(0, count, processes):
            stages.append(PipelineStage(torch.nn.Identity(), index, count, torch.device("cpu")))
        found = schedule(stages, microbatches, cross_entropy).pipeline_order
    finally:
        dist.destroy_process_group()

    lines = []
    for rank in range(processes):
        actions = filter(None, found[rank])  # torch has None where a process waits
        lines.append(" ".join(map(str, actions)))
    return lines


def orders() -> dict[str, list[str]]:
    found = {}
    for kind, processes, microbatches in itertools.product(KINDS, PROCESSES, MICROBATCHES):
        found[f"{kind} {processes} {microbatches}"] = order(kind, processes, microbatches)
    return found


if __name__ == "__main__":
    OUT.write_text(json.dumps(orders(), indent=0) + "\n")
    print(OUT)
