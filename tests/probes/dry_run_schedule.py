"""A step of the dry run's model under torch's own schedule: what each process sends, and of how many
micro-batches it keeps the activations at once; RANK.json.

The words: a JSON file with a mesh and the options of dry_run.measure.
"""

import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.nn.functional import cross_entropy

import workload
from parts.ring_attention import positions_of
from planner import dry_run, one_mesh

dist.init_process_group("gloo")
sizes, options = json.loads(Path(sys.argv[1]).read_text())
mesh = dist.init_device_mesh("cpu", tuple(sizes.values()), mesh_dim_names=tuple(sizes))
model, microbatches = options["model"], options["microbatches"]
network, _ = one_mesh.build(mesh, model, options.get("experts", 0))
network.to_empty(device="cpu")
for parameter in network.parameters():
    torch.nn.init.constant_(parameter, 0.01)
positions = positions_of(mesh["context"].get_local_rank(), sizes["context"], "zigzag", model["length"])
stage, stages = mesh["pipeline"].get_local_rank(), sizes["pipeline"]
held, most = 0, 0


class Stage(torch.nn.Module):
    def __init__(self, network):
        super().__init__()
        self.network = network

    def forward(self, x):
        if stage == 0:
            x = self.network.embedding(x) + self.network.position(positions)
        for block in self.network.blocks:
            x = block(x)
        return self.network.head(self.network.norm(x))


def loss_of(scores, texts):
    return cross_entropy(scores.flatten(0, 1), texts.flatten())


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


schedule = Schedule1F1B(
    Counted(Stage(network), stage, stages, torch.device("cpu"), group=mesh.get_group("pipeline")),
    microbatches,
    loss_of,
)
texts = torch.zeros(options["batch"] * microbatches, len(positions), dtype=torch.int64)
schedule.step(
    texts, target=texts, losses=[], return_outputs=False
)  # the first also sends what shapes there are
most = 0
with dry_run.Recorder(mesh) as recorder:
    schedule.step(texts, target=texts, losses=[], return_outputs=False)
rows = [collective._asdict() | {"times": times} for collective, times in recorder.counts.items()]
Path(f"{dist.get_rank()}.json").write_text(json.dumps({"collectives": rows, "most": most}))
del schedule, network
workload.release_group()
dist.destroy_process_group()
