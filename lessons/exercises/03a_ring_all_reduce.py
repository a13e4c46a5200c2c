"""Exercise 03a: a ring all-reduce, from send and recv only. 14 points.

N processes have a tensor each, and all want the sum. If all sent theirs to rank 0, it would have N - 1
tensors to receive and as many to send, while the others wait. In a ring, all have the same to do, and each
talks to two others only: it sends to the right (rank + 1; the last one to rank 0) and receives from the left
(rank - 1).

The tensor is cut into N chunks. There are two halves of N - 1 steps each, and in each step every process
sends one chunk and receives one:

    First half: what comes in is added to one's own chunk, and the sum is handed on in the next step. Rank r
    begins by sending chunk r. At the end it has chunk r + 1 complete, summed over all ranks.
    Second half: the complete chunks travel round, and what comes in replaces one's own.

Chunk numbers count round the ring, too: after the last comes chunk 0. So each process sends 2 (N - 1)
messages, and 2 (N - 1) / N of the data, however many processes there are. The notebook "how gradients
travel" has the pictures. Draw three processes with three chunks on paper before you write the third part.

All processes send at the same time. `dist.send` waits until the other side receives: if all do so, nobody
ever receives. `dist.isend` does not wait. The process group is there already. From torch.distributed, take
functions that talk to one process (send, recv, isend, irecv, batch_isend_irecv); the collectives, such as
all_reduce, are taken away. Give nothing of your own the name of a collective: those names are refused.

The judge counts from outside how many bytes and messages each process sends to which other one. It allows
for what the network adds to each message.

    03a.1 (2 points)  cut a tensor into chunks
    03a.2 (3 points)  send to the right and receive from the left
    03a.3 (3 points)  first half: every rank has the sum of one chunk
    03a.4 (6 points)  the whole: every rank has the sum of all chunks
"""

import torch
import torch.distributed as dist


def chunks_of(flat, world_size):
    """Cut a tensor of one dimension into a list of `world_size` chunks, in order.

    Their sizes differ by one at most, the larger ones first: 8 numbers for 3 processes are 3, 3 and 2. If
    there are fewer numbers than processes, the last chunks are empty. Chunks are views: who writes into one
    writes into `flat`.
    """
    raise NotImplementedError("03a.1: cut a tensor into chunks")


def pass_on(outgoing, incoming):
    """Send the tensor `outgoing` to the right, and receive from the left into `incoming`.

    All ranks call this at the same time; there are at least two. The two tensors may differ in size. When it
    returns, both ways are done: the caller may write into `outgoing` at once.
    """
    raise NotImplementedError("03a.2: send to the right and receive from the left")


def sum_chunks(chunks):
    """The first half of the ring: `chunks` is a list of as many tensors as there are processes.

    Afterwards chunks[rank + 1] (on the last rank chunks[0]) holds, in place, its sum over all ranks. The
    others may hold anything. Each rank sends N - 1 messages of one chunk, to the right. With one process
    there is nothing to do.
    """
    raise NotImplementedError("03a.3: first half: every rank has the sum of one chunk")


def ring_all_reduce(tensor):
    """Replace a tensor by its sum over all ranks, in place, with messages to the right only.

    The tensor is contiguous, of any shape (a single number without a dimension, too) and any type of numbers,
    and may be a part of a larger one. It may have fewer numbers than there are processes, or none.
    """
    raise NotImplementedError("03a.4: the whole: every rank has the sum of all chunks")
