"""Prints each pair of GPUs between which a copy arrives changed: tools/run.py asks before the lessons.

On some machines, a GPU reaches the other's memory directly (P2P), but the bytes arrive as zeros. NCCL, which
DataParallel uses too, then waits forever.
"""

import torch


def arrives(source: torch.device, target: torch.device) -> bool:
    sent = torch.arange(1, 1 + 2**16)
    return torch.equal(sent.to(source).to(target).cpu(), sent)


def main() -> None:
    gpus = [torch.device("cuda", number) for number in range(torch.cuda.device_count())]
    for source in gpus:
        for target in gpus:
            if source != target and not arrives(source, target):
                print(f"from GPU {source.index} to GPU {target.index}")


if __name__ == "__main__":
    main()
