"""Exercise 06b: snapshots that survive a kill at any moment. 14 points, about 150 minutes.

A run that takes days is often interrupted: somebody else needs the machine, a power supply fails, somebody
types `kill -9`. So every few minutes the run saves everything that it needs to continue. After a restart, the
run continues as if nothing had happened: with the same images in the same order, the same losses, and one
continuous loss curve.

The process may be killed while it saves. So a snapshot is first written to a temporary file in the same
folder, under a different name. Then the file is flushed from Python to the system (`file.flush`), and from
the system's memory to the disk (`os.fsync` of `file.fileno()`). Only then is the file renamed (`os.replace`,
`Path.replace`): within a folder, a rename happens either completely or not at all. Until the rename has
happened, the previous snapshot is still needed.

A file in the folder may still be unusable. A full or failing disk may have cut it short or damaged it (a
checksum such as `zlib.crc32` detects damage that torch.load does not notice). The file may belong to another
job, or it may not be a snapshot at all, or the system may refuse to read it. And a pickle may run any code
when it is loaded: `torch.load(..., weights_only=True)` refuses such a file. The previous snapshot is often
still good, which is why `save` keeps two snapshots.

A `job` is a dict of strings and numbers: the settings of a run. A `state` is what `state_of` returns, or
any other nested dicts and lists that contain tensors, numbers, strings and None.

    06b.1 (4 points)  save: write a temporary file, flush it onto the disk, then rename it
    06b.2 (5 points)  load: find the newest snapshot that is complete and belongs to this job
    06b.3 (3 points)  continue in the middle of an epoch
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

# `folder.glob(SNAPSHOTS)` finds the snapshots in a folder. `step-*.snapshot` would also find
# `step-old.snapshot`, which is not a snapshot of any step.
SNAPSHOTS = "step-" + 8 * "[0-9]" + ".snapshot"


def save(folder, step, job, state):
    """Save `state`, the state after step number `step`, so that `load` finds it. The folder exists.

    The snapshot is one file, `step-00000012.snapshot` for step 12. You decide what the file contains. A step
    number never has more than eight digits. A file with the name of a snapshot must always be complete and on
    the disk. If there is already a snapshot of this step, replace it.

    Keep the two snapshots with the highest step numbers, and remove older snapshots. A file without a step
    number, such as `step-old.snapshot`, is not one of the two, and you may remove it. Leave no temporary file
    behind, not even the temporary file of an earlier save that was killed. All other files in the folder
    stay: the files that `load` has refused, and every file whose name does not begin with `step-`. So the
    name of your temporary file must begin with `step-` too, or you could not remove it after a kill. Once the
    folder contains two snapshots, it must contain at least two at every moment. No other process saves in
    this folder at the same time.
    """
    # cut 06b.1: write a temporary file, flush it onto the disk, then rename it
    path, temporary = Path(folder) / f"step-{step:08}.snapshot", Path(folder) / "step-temporary"
    buffer = io.BytesIO()
    torch.save({"step": step, "job": job, "state": state}, buffer)
    with open(temporary, "wb") as file:
        file.write(buffer.getvalue() + zlib.crc32(buffer.getbuffer()).to_bytes(4, "big"))
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    for old in sorted(path.parent.glob(SNAPSHOTS))[:-2]:
        old.unlink()
    # end


def load(folder, job):
    """Return `(step, state)` of the newest good snapshot, or None if there is none.

    The newest snapshot is the one with the highest step number in its name, whatever the file times are. A
    snapshot is good if it is complete, undamaged, and was saved for a job equal to `job`. Refuse any other
    snapshot: print one line on stderr with the file's name and the reason, add `.refused` to the file's name
    (otherwise the file would count as one of the two snapshots that `save` keeps), and try the previous
    snapshot. A refused file may still matter to somebody, so never remove or overwrite it. If a file with the
    new name already exists, use a name that ends in `.2.refused`, `.3.refused` and so on. Never run code from
    a file. Leave alone all files whose names do not begin with `step-`.
    """
    # cut 06b.2: find the newest snapshot that is good
    for path in sorted(Path(folder).glob(SNAPSHOTS), reverse=True):
        try:
            data = path.read_bytes()
            if zlib.crc32(data[:-4]).to_bytes(4, "big") != data[-4:]:
                raise ValueError("damaged, or no snapshot")
            found = torch.load(io.BytesIO(data[:-4]), weights_only=True)
            if found["job"] != job:
                raise ValueError(f"of another job, {found['job']}")
            return found["step"], found["state"]
        except ValueError as error:
            reason = error
        except Exception:  # torch.load's own message is long, and explains how to load the file anyway
            reason = "no snapshot of ours"
        print(f"refused {path}: {reason}; trying the one before", file=sys.stderr)
        refused, number = Path(f"{path}.refused"), 1
        while refused.exists():
            number += 1
            refused = Path(f"{path}.{number}.refused")
        path.rename(refused)
    return None
    # end


def batches_from(step, count, job):
    """For each batch after the first `step` steps, yield one tensor: the numbers of the batch's images.

    `job` contains the number of "epochs", the "batch_size" and the "seed". Epochs are numbered from 0. In
    each epoch, the order of the images is `torch.randperm(count, generator=g)`, where g is a new
    `torch.Generator` seeded with seed + epoch. The last batch of an epoch may be smaller. Draw no other
    random numbers.
    """
    # cut 06b.3: yield the batches that are left
    for epoch in range(job["epochs"]):
        generator = torch.Generator().manual_seed(job["seed"] + epoch)
        batches = torch.randperm(count, generator=generator).split(job["batch_size"])
        yield from batches[max(0, step - epoch * len(batches)) :]
    # end


def state_of(model, optimizer):
    """Return everything that the next steps depend on, except the step number.

    Dropout uses torch's own random state (`torch.get_rng_state()`), batch norm has buffers, and an optimizer
    may keep state from step to step. The optimizer's learning rate and its other options may have changed
    since the optimizer was made.
    """
    # cut 06b.3: everything that the next steps depend on
    return {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "random": torch.get_rng_state(),
    }
    # end


def restore(model, optimizer, state):
    """Restore a state that `state_of` returned in another process."""
    # cut 06b.3: restore it
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    torch.set_rng_state(state["random"])
    # end


def train(folder, job, model, optimizer, images, labels):
    """Continue from the newest snapshot, or start from the beginning. This function is complete.

    The function returns a dict that maps the number of each step taken in this call to the step's loss.
    Images that were already used in the current epoch, before the snapshot, are not read again.
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
    """Save the states of all ranks in one snapshot. All ranks call this, each with its own state.

    The states differ, for example in their random numbers. Rank 0 gets all states through the process group,
    and only rank 0 writes. No rank returns before the snapshot has its final name.
    """
    # cut 06b.4: rank 0 saves what all ranks have
    states = [None] * dist.get_world_size()
    dist.all_gather_object(states, state)
    if dist.get_rank() == 0:
        save(folder, step, job, states)
    dist.barrier()
    # end


def load_together(folder, job):
    """Return `(step, state)` on each rank, with this rank's own state. If there is no good snapshot, return
    None on all ranks.

    All ranks call this. Only rank 0 looks into its folder, and it sends what it finds to all ranks. The other
    ranks must not look for a snapshot: on another machine, a folder with this name may contain other files or
    not exist at all. If ranks continued from different steps, the run would be useless. The number of
    processes is the same as when the snapshot was saved.
    """
    # cut 06b.4: all ranks take what rank 0 finds
    found = [load(folder, job) if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(found, src=0)
    if found[0] is None:
        return None
    step, states = found[0]
    return step, states[dist.get_rank()]
    # end
