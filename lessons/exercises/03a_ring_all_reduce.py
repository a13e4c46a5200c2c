"""Exercise 03a: a ring all-reduce, from send and recv only. 14 points, about 90 minutes.

There are N processes, each with its own tensor, and all of them need the sum of these tensors. If all
processes sent their tensors to rank 0, rank 0 would have to receive N - 1 tensors and send the sum N - 1
times, while the other processes wait. In a ring, all processes do the same work, and each process talks
only to its two neighbors: it sends to the right (rank + 1; the last rank sends to rank 0) and receives from
the left (rank - 1).

Cut the tensor into N chunks. The algorithm has two halves of N - 1 steps each. In each step, every process
sends one chunk and receives one chunk:

    First half: add the incoming chunk to your own chunk of the same number, and send the sum on in the next
    step. Rank r starts by sending chunk r. At the end, it holds the complete sum of chunk r + 1.
    Second half: the complete chunks travel around the ring. Each incoming chunk replaces your own chunk of
    the same number.

Chunk numbers go around the ring, too: chunk 0 follows the last chunk. Each process sends 2 (N - 1) messages.
Together, these messages contain 2 (N - 1) / N times as many bytes as the tensor, which is less than twice as
many for any number of processes. The notebook "How gradients travel" shows these steps in pictures. Draw
three processes with three chunks on paper before you write the third part.

All processes send at the same time. `dist.send` waits until the other side receives. If all processes wait in
`dist.send`, none of them ever receives. `dist.isend` does not wait. The process group already exists. From
torch.distributed, use only functions that communicate with a single process (send, recv, isend, irecv,
batch_isend_irecv). The collectives, such as all_reduce, are blocked, and your own functions cannot have the
names of collectives.

The checks count how many messages and bytes each process sends to every other process.

    03a.1 (2 points)  cut a tensor into chunks
    03a.2 (3 points)  send to the right and receive from the left
    03a.3 (3 points)  first half: every rank has the sum of one chunk
    03a.4 (6 points)  the whole all-reduce: every rank has the sums of all chunks
"""

import torch
import torch.distributed as dist


def chunks_of(flat, world_size):
    """Cut a contiguous, one-dimensional tensor into `world_size` chunks, in order: a list or a tuple.

    The sizes differ by at most one, and the larger chunks come first: 8 numbers for 3 processes make chunks
    of 3, 3 and 2 numbers. If there are fewer numbers than processes, the last chunks are empty. Chunks are
    views: writing into a chunk writes into `flat`.
    """
    raise NotImplementedError("03a.1: cut a tensor into chunks")


def pass_on(outgoing, incoming):
    """Send the tensor `outgoing` to the right, and receive from the left into `incoming`.

    All ranks call this at the same time, and there are at least two ranks. The two tensors may differ in
    size. When the function returns, `incoming` contains the received data, and the caller may write into
    `outgoing` at once.
    """
    raise NotImplementedError("03a.2: send to the right and receive from the left")


def sum_chunks(chunks):
    """The first half of the ring all-reduce. `chunks` is a list or a tuple with one tensor per process.

    Afterwards, chunks[rank + 1] (chunks[0] on the last rank) holds the sum of this chunk over all ranks, in
    place. The other chunks may hold anything. Each rank sends N - 1 messages of one chunk each to the
    right. With one process there is nothing to do.
    """
    raise NotImplementedError("03a.3: first half: every rank has the sum of one chunk")


def ring_all_reduce(tensor):
    """Replace a tensor by its sum over all ranks, in place, with messages to the right only.

    The tensor is contiguous and may have any shape (even zero dimensions) and any numeric dtype. The tensor
    may be a part of a larger tensor, and may have fewer numbers than there are processes, or none: whether
    you send empty chunks is up to you.
    """
    raise NotImplementedError("03a.4: the whole: every rank has the sum of all chunks")
