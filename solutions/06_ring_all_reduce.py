"""Exercise 06: a ring all-reduce, from send and recv only. 14 points.

N processes have a tensor each, and all want the sum. In a ring, each talks to two others only: it sends to
the right (rank + 1) and receives from the left (rank - 1). The tensor is cut into N chunks. In N - 1 steps,
each adds what comes from the left to its own chunk and hands it on: now each has one chunk that is done. In
N - 1 more steps, the done chunks travel round. Each process sends 2 (N-1) / N of the data, however many
there are. The notebook "how gradients travel" has the pictures.

All processes send at the same time. `dist.send` waits until the other side receives: if all do so, nobody
ever receives. `dist.isend` does not wait.

    06.1 (3 points)  cut a tensor into chunks
    06.2 (5 points)  send to the right and receive from the left
    06.3 (6 points)  reduce-scatter and all-gather, for any size
"""

import torch
import torch.distributed as dist


def chunks_of(flat, world_size):
    """`world_size` views of a flat tensor, in order, sizes as equal as possible, the first ones larger.
    Some are empty if there are fewer numbers than processes."""
    # cut 06.1: cut a tensor into chunks
    return list(flat.tensor_split(world_size))
    # end


def pass_on(outgoing, incoming):
    """Send one tensor to the right and receive another one from the left, at the same time."""
    # cut 06.2: send to the right and receive from the left
    rank, world_size = dist.get_rank(), dist.get_world_size()
    request = dist.isend(outgoing, (rank + 1) % world_size)
    dist.recv(incoming, (rank - 1) % world_size)
    request.wait()
    # end


def ring_all_reduce(tensor):
    """Replace a contiguous tensor by the sum over all ranks, in place, with point-to-point messages only."""
    # cut 06.3: reduce-scatter and all-gather, for any size
    rank, world_size = dist.get_rank(), dist.get_world_size()
    chunks = chunks_of(tensor.view(-1), world_size)
    for step in range(world_size - 1):
        incoming = torch.empty_like(chunks[(rank - step - 1) % world_size])
        pass_on(chunks[(rank - step) % world_size], incoming)
        chunks[(rank - step - 1) % world_size] += incoming
    for step in range(world_size - 1):
        pass_on(chunks[(rank + 1 - step) % world_size], chunks[(rank - step) % world_size])
    # end
