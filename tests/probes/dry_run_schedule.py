"""A step of the dry run's model under lesson 17's schedule, which is torch's: what each process sends, and
of how many micro-batches it keeps the activations at once; RANK.json.

The words: a JSON file with a mesh and the options of dry_run.measure.
"""

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import torch
import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage

from parts.ring_attention import positions_of
from planner import dry_mesh, dry_run

dist.init_process_group("gloo")
sizes, options = json.loads(Path(sys.argv[1]).read_text())
mesh = dist.init_device_mesh("cpu", tuple(sizes.values()), mesh_dim_names=tuple(sizes))
model, microbatches = options["model"], options["microbatches"]
network, _ = dry_mesh.build(mesh, model, options.get("experts", 0))
network.to_empty(device="cpu")
for parameter in network.parameters():
    torch.nn.init.constant_(parameter, 0.01)
positions = positions_of(mesh["context"].get_local_rank(), sizes["context"], "zigzag", model["length"])
held, most = 0, 0


class Counted(PipelineStage):
    def forward_one_chunk(self, *arguments, **named):
        global held, most
        held += 1
        most = max(most, held)
        return super().forward_one_chunk(*arguments, **named)

    def backward_one_chunk(self, *arguments, **named):
        global held
        held -= 1
        return super().backward_one_chunk(*arguments, **named)


lesson = dry_mesh.lesson
lesson.PipelineStage = Counted
arguments = SimpleNamespace(microbatches=microbatches)
schedule = lesson.make_schedule(network, mesh, torch.device("cpu"), arguments)
texts = torch.zeros(options["batch"] * microbatches, len(positions), dtype=torch.int64)
places = positions.expand_as(texts)
# The first also sends what shapes there are.
schedule.step(texts, places, target=texts, losses=[], return_outputs=False)
most = 0
with dry_run.Recorder(mesh) as recorder:
    schedule.step(texts, places, target=texts, losses=[], return_outputs=False)
rows = [collective._asdict() | {"times": times} for collective, times in recorder.counts.items()]
Path(f"{dist.get_rank()}.json").write_text(json.dumps({"collectives": rows, "most": most}))
del schedule, network
dist.destroy_process_group()
