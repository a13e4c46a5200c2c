"""Exercise 06b: snapshots that survive a kill at any moment. 14 points.

A run of days ends before its time: a machine is wanted back, a power supply dies, somebody types `kill -9`.
So every few minutes a run writes down all that it needs to go on, and the next process goes on from there, as
if nothing had happened: the same images in the same order, the same losses, one curve.

The process may be killed while it saves. So a snapshot is first a temporary file: one with another name, in
the same folder. It is flushed out of Python (`file.flush`) and then out of the system's memory onto the disk
(`os.fsync` of `file.fileno()`). Only then it gets its name: a rename within a folder happens at once or not
at all (`os.replace`, `Path.replace`). The file of before is needed until that has happened.

What lies in the folder may still be no good: cut short or damaged by a full disk or a bad one (a checksum,
`zlib.crc32` say, notices what torch.load does not), of another job, or no snapshot at all. And a pickle may
run any code when it is loaded: `torch.load(..., weights_only=True)` refuses such a file. The snapshot before
is often still good, and this is why two are kept.

A `job` is a dict of words and numbers: the settings of a run. A `state` is what `state_of` returns, or any
other nested dicts and lists of tensors, numbers, words and None.

    06b.1 (4 points)  save: a temporary file, onto the disk, then the name
    06b.2 (5 points)  load: the newest that is whole, and of this job
    06b.3 (3 points)  go on in the middle of an epoch
    06b.4 (2 points)  several processes, one snapshot
"""

import io
import os
import sys
import zlib
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy


def save(folder, step, job, state):
    """Save `state`, which is that after step number `step`, for `load` to find. The folder is there.

    The snapshot is one file, `step-00000012.snapshot` for step 12, and what is in it is up to you. There are
    never more than eight digits. A file of such a name is always whole and on the disk. If there is one of
    this step already, it is replaced.

    The two snapshots with the highest steps stay, and older ones are removed. No temporary file is left, not
    even that of an earlier save that was killed. All other files in the folder stay: those that `load` has
    refused, and every file whose name does not begin with `step-`, so give your temporary file a name that
    begins with `step-` too. Once there are two snapshots, there are two at every moment. No other process
    saves here meanwhile.
    """
    raise NotImplementedError("06b.1: write a temporary file, flush it onto the disk, then rename it")


def load(folder, job):
    """Return `(step, state)` of the newest snapshot that is good, or None if there is none.

    The newest is the one with the highest step in its name, whatever the clock says. It is good if it is
    whole, undamaged, and saved for a job that is equal to `job`. Otherwise it is refused: say so in one line
    on stderr that has the file's name and the reason, add `.refused` to its name (or it would count among the
    two that `save` keeps), and try the one before. A refused file may be precious to somebody: it is neither
    removed nor overwritten. If there is a file of the new name already, take one that ends in `.2.refused`,
    `.3.refused` and so on. No code in a file is run. Files whose names do not begin with `step-` are left
    alone.
    """
    raise NotImplementedError("06b.2: find the newest snapshot that is good")


def batches_from(step, count, job):
    """Yield the numbers of the images of every batch that is to come after `step` steps: a tensor for each.

    `job` says how many "epochs" there are, the "batch_size" and the "seed". The order of the images of epoch
    0, 1, 2 ... is `torch.randperm(count, generator=g)`, with a new `torch.Generator` g that is seeded with
    seed + epoch. The last batch of an epoch may be smaller. No other random number is used up.
    """
    raise NotImplementedError("06b.3: yield the batches that are left")


def state_of(model, optimizer):
    """All that the next steps depend on, beside the number of the step. Dropout draws from torch's own
    random numbers (`torch.get_rng_state()`); batch norm has buffers; an optimizer may have a memory."""
    raise NotImplementedError("06b.3: all that the next steps depend on")


def restore(model, optimizer, state):
    """Put back what `state_of` has returned in another process."""
    raise NotImplementedError("06b.3: put it back")


def train(folder, job, model, optimizer, images, labels):
    """Go on from the newest snapshot, or begin. Returns the loss of each step taken here, by its number.

    This is ready. An image that was seen in this epoch before the snapshot is not looked at again.
    """
    step, losses = 0, {}
    found = load(folder, job)
    if found:
        step, state = found
        restore(model, optimizer, state)
    for batch in batches_from(step, len(images), job):
        loss = cross_entropy(model(images[batch]), labels[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        losses[step] = loss.item()
        if step % job["every"] == 0:
            save(folder, step, job, state_of(model, optimizer))
    return losses


def save_together(folder, step, job, state):
    """All ranks call it, each with its own state (random numbers differ). The states travel through the
    process group, and rank 0 alone writes, one snapshot with the states of all. No rank returns before the
    snapshot has its name."""
    raise NotImplementedError("06b.4: rank 0 saves what all ranks have")


def load_together(folder, job):
    """All ranks call it. Returns `(step, state)` on each rank, with this rank's own state, or None on all.

    Rank 0 alone looks into its folder, and sends what it finds to all: on another machine the folder of that
    name may hold something else, or nothing, and ranks that go on from different steps train nonsense.
    The number of processes is the same as when it was saved.
    """
    raise NotImplementedError("06b.4: all ranks take what rank 0 finds")
