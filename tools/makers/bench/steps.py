"""How the steps of any training loop spend their time: call clock() before the loop begins."""

import atexit
import itertools
import json
import os
import sys
import time

import torch
from torch.utils.data import dataloader

PARTS = ("batch", "forward", "backward", "update", "rest")
SKIPPED = 50  # the first steps, which fill caches


def around(place, name, before=lambda: None, after=lambda found: None):
    """Let a function of a module or class call these too; `after` gets what it returns."""
    function = getattr(place, name)

    def call(*arguments, **options):
        before()
        found = function(*arguments, **options)
        after(found)
        return found

    setattr(place, name, call)


def clock():
    """A step is the time from one batch of the DataLoader to the next."""
    spent = dict.fromkeys(PARTS, 0.0)
    marks = []
    seen = 0
    following = dataloader._BaseDataLoaderIter.__next__

    def note(*found):
        marks.append(time.perf_counter())

    def clocked_next(self):
        nonlocal seen
        begin = time.perf_counter()
        if len(marks) == 6:  # a whole step lies behind, and what came after
            seen += 1
            lengths = [later - earlier for earlier, later in itertools.pairwise([*marks, begin])]
            batch, forward, backward, rest, update, more = lengths
            if seen > SKIPPED:
                spent["batch"] += batch
                spent["forward"] += forward
                spent["backward"] += backward
                spent["update"] += update
                spent["rest"] += rest + more
        marks.clear()
        batch = following(self)
        marks.extend((begin, time.perf_counter()))
        return batch

    def say():
        steps = seen - SKIPPED
        if steps > 0 and os.environ.get("RANK", "0") == "0":
            line = {name: seconds / steps for name, seconds in spent.items()}
            print("\n" + json.dumps({"stepped": line}), file=sys.stderr, flush=True)

    dataloader._BaseDataLoaderIter.__next__ = clocked_next
    around(torch.Tensor, "backward", note, note)
    around(torch.optim.SGD, "step", note, note)
    atexit.register(say)
