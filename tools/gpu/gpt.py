"""Lesson 13's model, made large, in bf16 on one GPU: which share of the hardware's peak goes into it.

The texts are random and stay on the GPU. The number of operations is the planner's: products only,
forward and backward, with attention to earlier positions counted as if to all, as papers do.
"""

import argparse
import importlib
import statistics
import sys
import time
from pathlib import Path

import torch
import turns
from torch.nn.functional import cross_entropy

import workload

sys.path.insert(0, str(Path(workload.__file__).resolve().parents[1] / "planner"))
import formulas

gpt = importlib.import_module("13_gpt")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    option = parser.add_argument
    option("--hidden", type=int, default=2048)
    option("--layers", type=int, default=12)
    option("--heads", type=int, default=16)
    option("--length", type=int, default=1024)
    option("--characters", type=int, default=64)
    option("--batch-size", type=int, default=8)
    option("--steps", type=int, default=10, help="of a round")
    option("--compile", action="store_true")
    arguments = parser.parse_args()
    device = workload.pick_device()
    torch.manual_seed(0)
    sizes = (arguments.characters, arguments.length, arguments.hidden, arguments.heads, arguments.layers)
    with device:
        model = gpt.build_model(*sizes)
        texts = torch.randint(arguments.characters, (256, arguments.length + 1))
    if arguments.compile:
        model.compile()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

    def train(steps):
        """Seconds for so many steps."""
        turns.synchronize(device)
        begin = time.perf_counter()
        for _ in range(steps):
            batch = texts[torch.randint(len(texts), (arguments.batch_size,), device=device)]
            with torch.autocast(device.type, torch.bfloat16):
                scores = model(batch[:, :-1])
                loss = cross_entropy(scores.flatten(0, 1), batch[:, 1:].flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        turns.synchronize(device)
        return time.perf_counter() - begin

    prepared = train(3)
    turns.wait_for_turn()
    train(arguments.steps)
    seconds = [train(arguments.steps) / arguments.steps for _ in range(3)]
    with turns.Watch(device) as watch:
        train(min(5, arguments.steps))
    characters, length, hidden, _, layers = sizes
    flops = formulas.step_flops(layers, hidden, characters, length, arguments.batch_size, recompute="none")
    turns.say(
        {
            "seconds": statistics.median(seconds),
            "tokens/s": arguments.batch_size * length / statistics.median(seconds),
            "flops": flops,
            "parameters": sum(parameter.numel() for parameter in model.parameters()),
            "bytes": torch.cuda.max_memory_allocated() if device.type == "cuda" else 0,
            "first steps": prepared,
            "busy": watch.found,
        }
    )


if __name__ == "__main__":
    main()
