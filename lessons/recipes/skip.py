r"""Two ways to skip the batches that a killed run has already trained on, and what each costs.

    python lessons/recipes/skip.py

With islice over a DataLoader, each of these batches is loaded, augmented and thrown away.
With islice over the sampler, only indices are skipped. Both ways continue with the same
batches.
"""

import sys
import time
from itertools import islice
from pathlib import Path

import torch
from torch.utils.data import DataLoader

sys.path.append(str(Path(__file__).resolve().parent.parent))
import workload
from parts import loading

SIZE = 60  # images per batch


def skip_batches(images, sampler, done):
    return islice(make_loader(images, sampler), done, None)


def skip_indices(images, sampler, done):
    rest = list(islice(sampler, done * SIZE, None))
    return iter(make_loader(images, rest))


def make_loader(images, sampler):
    return DataLoader(images, SIZE, sampler=sampler, drop_last=True, collate_fn=workload.collate)


def main(arguments):
    train_set, _ = workload.load_images(arguments)
    images = loading.Augmented(train_set, arguments.seed, arguments.data)
    sampler = loading.Sampler(train_set, num_replicas=1, rank=0, seed=arguments.seed, drop_last=True)
    sampler.set_epoch(3)
    first = []
    for name, skip in ("batches", skip_batches), ("indices", skip_indices):
        start = time.perf_counter()
        first.append(next(skip(images, sampler, arguments.done)))
        seconds = time.perf_counter() - start
        print(f"skip {arguments.done} {name}: {seconds:.2f} s until the next batch is there", flush=True)
    (images, labels), (same_images, same_labels) = first
    print("the same batch:", torch.equal(images, same_images) and torch.equal(labels, same_labels))


if __name__ == "__main__":
    parser = workload.parser(__file__, __doc__)
    parser.add_argument("--done", type=int, default=180, help="batches to skip (180)")
    arguments = parser.parse_args()
    workload.check(arguments)
    main(arguments)
