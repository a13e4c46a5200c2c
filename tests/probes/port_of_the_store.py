"""Can somebody else have the port on which rank 0 is about to listen? torchrun has chosen it."""

import os
import socket
from datetime import timedelta

import torch.distributed as dist

if os.environ["RANK"] == "0":
    with socket.socket() as other:
        try:
            other.bind(("", int(os.environ["MASTER_PORT"])))
        except OSError:
            print("the port is reserved")
dist.init_process_group("gloo", timeout=timedelta(seconds=30))
dist.barrier()
dist.destroy_process_group()
