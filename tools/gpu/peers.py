"""Whether GPU 0 reaches the others' memory directly (P2P), and how many bytes a second a copy moves."""

import argparse
import statistics
import time

import torch
import turns

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--bytes", type=int, default=2**28)
found, size = {}, parser.parse_args().bytes
source = torch.zeros(size, dtype=torch.uint8, device="cuda:0")
for number in range(1, torch.cuda.device_count()):
    target, seconds = torch.empty_like(source, device=f"cuda:{number}"), []
    for _ in range(8):
        torch.cuda.synchronize(0)
        torch.cuda.synchronize(number)
        begin = time.perf_counter()
        target.copy_(source)
        torch.cuda.synchronize(0)
        torch.cuda.synchronize(number)
        seconds.append(time.perf_counter() - begin)
    found[number] = {
        "P2P": torch.cuda.can_device_access_peer(0, number),
        "bytes/s": source.numel() / statistics.median(seconds[2:]),
    }
turns.say({"peers": found})
