"""Notebook 18a: two ways to send a bucket, and a slow link where the kernel cannot limit one."""

import os
import time
from threading import Lock

from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook, bf16_compress_hook

link = Lock()  # one bucket at a time


def fp32(group, bucket):
    return allreduce_hook(group, bucket)


def bf16(group, bucket):
    """DDP accepts bf16_compress_hook only for NCCL, and checks its name."""
    return bf16_compress_hook(group, bucket)


def register(model, send):
    """Let DDP send its buckets with this hook."""
    if "SIMULATED_MBIT" in os.environ:
        model.register_comm_hook(send, send_slowly)
    else:
        model.register_comm_hook(None, send)


def send_slowly(send, bucket):
    """Wait as long as the bytes need. In a ring of two, each process sends as many as the bucket has."""
    sent = bucket.buffer().nbytes // (2 if send is bf16 else 1)
    rate = float(os.environ["SIMULATED_MBIT"]) * 1e6 / 8

    def travel(future):
        with link:
            time.sleep(sent / rate)
        return future.value()

    return send(None, bucket).then(travel)
