"""Prints each pair of GPUs between which a copy arrives changed. run_lessons.py asks before the lessons.

On some machines, a GPU reaches the other's memory directly (P2P), but the bytes arrive as zeros. NCCL, which
DataParallel uses too, then waits forever.
"""

import itertools

import torch


def arrives(source: torch.device, target: torch.device) -> bool:
    sent = torch.arange(1, 1 + 2**16)
    return torch.equal(sent.to(source).to(target).cpu(), sent)


def main() -> None:
    count = torch.cuda.device_count()
    for source, target in itertools.permutations(range(count), 2):
        if not arrives(torch.device("cuda", source), torch.device("cuda", target)):
            print(f"from GPU {source} to GPU {target}")


if __name__ == "__main__":
    main()
