"""A ring all-reduce that receives in pieces, and adds one piece while the next one travels."""

import torch.distributed as dist
from second_half import all_gather
from wires import rank, world_size

left = (rank - 1) % world_size
right = (rank + 1) % world_size


def ring_in_pieces(tensor, groups, kept):
    """`groups` has two process groups: even ranks send on the first, odd ranks on the second. `kept` is
    memory for two pieces."""

    def isend(outgoing):
        return dist.isend(outgoing, right, group=groups[rank % 2])

    def irecv(incoming):
        return dist.irecv(incoming, left, group=groups[left % 2])

    def pass_and_add(outgoing, mine):
        pieces = mine.split(kept.shape[1])
        incoming = []
        for number, piece in enumerate(pieces):
            incoming.append(kept[number % 2, : piece.numel()])
        coming = [irecv(memory) for memory in incoming[:2]]
        going = [isend(piece) for piece in outgoing.split(kept.shape[1])]
        for number, piece in enumerate(pieces):
            coming[number].wait()
            piece += incoming[number]  # meanwhile the next piece travels
            if number + 2 < len(pieces):
                coming.append(irecv(incoming[number + 2]))
        for request in going:
            request.wait()

    def pass_on(outgoing, incoming):
        for request in (irecv(incoming), isend(outgoing)):
            request.wait()

    chunks = tensor.view(-1).tensor_split(world_size)
    for step in range(world_size - 1):
        pass_and_add(chunks[(rank - step) % world_size], chunks[(rank - step - 1) % world_size])
    all_gather(chunks, pass_on)
