"""For scripts that show.ranks starts as two ranks: meet, work, and give the notebook the result."""

import json
import os
import re
from datetime import timedelta

import torch.distributed as dist

import workload  # noqa: F401 - at exit it ends the threads of the group

rank = int(os.environ["RANK"])


def together(work):
    store = f"file://{os.environ['STORE']}"
    dist.init_process_group("gloo", store, timedelta(seconds=20), rank=rank, world_size=2)
    try:
        with open(os.environ["RESULT"], "w") as file:
            json.dump(work(), file)
    except RuntimeError as error:
        message = re.sub(r" ?\[[^]]*\](:\d+)?", "", str(error))  # without files and addresses
        print("RuntimeError:", message, flush=True)
        os._exit(1)  # the other rank is lost: do not wait for it
    dist.destroy_process_group()
