"""Another solution of exercise 03a."""

import numpy as np
import torch
import torch.distributed as dist


def without_helpers():
    """Uses batch_isend_irecv and numpy arrays: rank r ends with chunk r; empty chunks are not sent."""

    def pass_on(outgoing, incoming):
        rank, world_size = dist.get_rank(), dist.get_world_size()
        both = [
            (dist.isend, outgoing, (rank + 1) % world_size),
            (dist.irecv, incoming, (rank - 1) % world_size),
        ]
        for work in dist.batch_isend_irecv([dist.P2POp(*one) for one in both]):
            work.wait()

    def ring_all_reduce(tensor):
        rank, world_size = dist.get_rank(), dist.get_world_size()
        right, left = (rank + 1) % world_size, (rank - 1) % world_size
        parts = np.array_split(tensor.view(-1).numpy(), world_size)
        for step in range(2 * world_size - 2):
            outgoing, own = parts[(rank - 1 - step) % world_size], parts[(rank - 2 - step) % world_size]
            arrived = torch.from_numpy(np.empty_like(own))
            both = []
            if outgoing.size:
                both.append(dist.P2POp(dist.isend, torch.from_numpy(outgoing), right))
            if own.size:
                both.append(dist.P2POp(dist.irecv, arrived, left))
            for work in dist.batch_isend_irecv(both) if both else []:
                work.wait()
            if step < world_size - 1:
                own += arrived.numpy()
            else:
                own[:] = arrived.numpy()
