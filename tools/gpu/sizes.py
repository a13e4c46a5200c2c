"""Seconds of an all-reduce by its size, under torchrun: sizes.py --largest 26"""

import argparse
import os
import statistics
import time

import torch
import torch.distributed as dist
import turns

import workload


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--largest", type=int, default=26, help="power of two, in bytes")
    parser.add_argument("--times", type=int, default=20)
    arguments = parser.parse_args()
    device = workload.pick_device(int(os.environ["LOCAL_RANK"]))
    turns.join(device)
    found = {}
    for size in [2**power for power in range(10, arguments.largest + 1, 2)]:
        tensor, seconds = torch.zeros(size // 4, device=device), []
        for _ in range(arguments.times + 3):
            turns.synchronize(device)
            dist.barrier()
            begin = time.perf_counter()
            dist.all_reduce(tensor)
            turns.synchronize(device)
            seconds.append(time.perf_counter() - begin)
        found[size] = statistics.median(seconds[3:])  # the first ones connect
    turns.say({"seconds": found})
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
