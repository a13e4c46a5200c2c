"""The second half of the ring, an all-gather. It solves the exercise: write your own before you read on."""

from wires import rank, world_size


def all_gather(chunks, pass_on):
    complete = (rank + 1) % world_size  # the chunk that the first half completes here
    for _ in range(world_size - 1):
        coming = (complete - 1) % world_size
        pass_on(chunks[complete], chunks[coming])
        complete = coming
