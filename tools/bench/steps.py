"""How the steps of any training loop spend their time. Call clock() before the loop begins."""

import atexit
import json
import os
import sys
import time

import torch
from torch.utils.data import dataloader

PARTS = ("batch", "forward", "backward", "update", "rest")
SKIPPED = 50  # the first steps, which fill caches


def clock():
    """A step is the time from one batch of the DataLoader to the next."""
    spent, marks, seen = dict.fromkeys(PARTS, 0.0), [], [0]
    iterator, optimizer = dataloader._BaseDataLoaderIter, torch.optim.SGD
    following, backward, update = iterator.__next__, torch.Tensor.backward, optimizer.step

    def clocked_next(self):
        begin = time.perf_counter()
        if len(marks) == 6:  # a whole step lies behind: batch, forward, backward, update, and what came after
            seen[0] += 1
            if seen[0] > SKIPPED:
                ends = [*marks[1:], begin]
                spent["batch"] += ends[0] - marks[0]
                spent["forward"] += ends[1] - ends[0]
                spent["backward"] += ends[2] - ends[1]
                spent["update"] += ends[4] - ends[3]
                spent["rest"] += ends[3] - ends[2] + ends[5] - ends[4]
        marks.clear()
        batch = following(self)
        marks.extend((begin, time.perf_counter()))
        return batch

    def clocked_backward(*arguments, **options):
        marks.append(time.perf_counter())
        backward(*arguments, **options)
        marks.append(time.perf_counter())

    def clocked_update(*arguments, **options):
        marks.append(time.perf_counter())
        update(*arguments, **options)
        marks.append(time.perf_counter())

    iterator.__next__, torch.Tensor.backward, optimizer.step = clocked_next, clocked_backward, clocked_update

    def say():
        steps = seen[0] - SKIPPED
        if steps > 0:
            line = {name: seconds / steps for name, seconds in spent.items()}
            print(json.dumps({"stepped": line}), file=sys.stderr, flush=True)

    if os.environ.get("RANK", "0") == "0":
        atexit.register(say)
