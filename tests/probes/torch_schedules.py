"""The order of work of torch's pipeline schedules, for many sizes: a line of JSON for each.

    python tests/probes/torch_schedules.py

Nothing runs: a schedule lists what each process will do when it is made. `orders` is null where torch
refuses the sizes.
"""

import json

import torch
import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleInterleaved1F1B
from torch.nn.functional import cross_entropy

KINDS = {"FORWARD": "forward", "FULL_BACKWARD": "backward"}


def order(processes, chunks, microbatches):
    """For each process: (kind, stage), in its order; the micro-batches of each follow from 0 on."""
    count = processes * chunks
    stages = []
    for index in range(0, count, processes):
        stages.append(PipelineStage(torch.nn.Identity(), index, count, torch.device("cpu")))
    try:
        if chunks == 1:
            listed = Schedule1F1B(stages[0], microbatches, cross_entropy)._get_pipeline_order()
        else:
            listed = ScheduleInterleaved1F1B(stages, microbatches, cross_entropy).pipeline_order
    except ValueError:
        return None
    found = []
    for rank in range(processes):
        actions = []
        for action in listed[rank]:
            if action and action.computation_type.name in KINDS:
                actions.append((KINDS[action.computation_type.name], action.stage_index))
        found.append(actions)
    return found


for processes in range(2, 9):
    dist.init_process_group("fake", rank=0, world_size=processes)
    for chunks in (1, 2, 3, 4):
        for microbatches in (*range(1, 13), 16, 18, 22, 24, 32, 33, 34, 36):
            sizes = {"processes": processes, "chunks": chunks, "microbatches": microbatches}
            print(json.dumps(sizes | {"orders": order(**sizes)}))
    dist.destroy_process_group()
