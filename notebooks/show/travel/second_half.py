"""The second half of the ring, an all-gather. The exercise asks for it: write yours before you read on."""

from wires import rank, world_size


def all_gather(chunks, pass_on):
    complete = (rank + 1) % world_size  # what the first half leaves here
    for _ in range(world_size - 1):
        coming = (complete - 1) % world_size
        pass_on(chunks[complete], chunks[coming])
        complete = coming
