"""A lesson, named first; and of each rank, which collectives it took part in, as gloo names them."""

import json
import os
import sys
from pathlib import Path

from torch.profiler import ProfilerActivity, profile

from tests.helpers.probe_runs import become

stem = sys.argv.pop(1)
with profile(activities=[ProfilerActivity.CPU]) as profiler:
    become(stem)
names = {event.name.removeprefix("gloo:") for event in profiler.events() if event.name.startswith("gloo:")}
names |= {
    "reduce_scatter" for event in profiler.events() if "_reduce_scatter" in event.name
}  # gloo all-reduces
Path(f"collectives-{os.environ['RANK']}.json").write_text(json.dumps(sorted(names)))
