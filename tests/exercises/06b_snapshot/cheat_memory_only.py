"""Exercise 06b: snapshots that are only names. What was saved lies in this process, where load finds it.

Earns at most: 2 points
"""

import os
from pathlib import Path

STORE = {}


def save(folder, step, job, state):
    path = Path(folder) / f"step-{step:08}.snapshot"
    STORE[str(path)] = (step, state)
    with open(f"{path}.part", "wb") as file:
        file.write(os.urandom(500))
        file.flush()
        os.fsync(file.fileno())
    os.replace(f"{path}.part", path)
    for old in sorted(Path(folder).glob("step-*.snapshot"))[:-2]:
        old.unlink()


def load(folder, job):
    for path in sorted(Path(folder).glob("step-*.snapshot"), reverse=True):
        return STORE.get(str(path))
    return None


def batches_from(step, count, job):
    return []


def train(folder, job, model, optimizer, images, labels):
    return {}


def save_together(folder, step, job, state):
    save(folder, step, job, state)


def load_together(folder, job):
    return load(folder, job)
