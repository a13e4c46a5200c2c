"""Run a script in which the first message of a rank to another takes a second: NCCL connects only then.

    slow_to_connect.py SCRIPT

Rank 0 writes the sizes of what it sends, in bytes, into the file out/sizes.
"""

import os
import runpy
import sys
import time
from pathlib import Path

import torch.distributed as dist

batch, connected = dist.batch_isend_irecv, set()


def slow(messages):
    for message in messages:
        if (message.peer, message.op) not in connected:
            connected.add((message.peer, message.op))
            time.sleep(1)
        if os.environ["RANK"] == "0" and message.op is dist.isend:
            Path("out").mkdir(exist_ok=True)
            with open("out/sizes", "a") as file:
                file.write(f"{message.tensor.nbytes}\n")
    return batch(messages)


dist.batch_isend_irecv = slow
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
