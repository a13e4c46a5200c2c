"""Run a lesson after torch was told to be deterministic: deterministic.py lessons/13_gpt.py ...

CUBLAS_WORKSPACE_CONFIG=:4096:8 has to be set. torch says of attention on GPUs that its backward "defaults
to a non-deterministic algorithm" unless this is called.
"""

import sys
from pathlib import Path

import torch

LESSON = Path(sys.argv[1]).resolve()
sys.argv = sys.argv[1:]
sys.path.insert(0, str(LESSON.parent))
import workload

torch.use_deterministic_algorithms(True)
parser = workload.parser
workload.parser = lambda file, description: parser(LESSON, description)
exec(compile(LESSON.read_text(), str(LESSON), "exec"))
