"""How many bytes this process has received from each rank, by Linux's counters. Other systems: None."""

import torch.distributed as dist
from sockets import connections
from wires import world_size


def bytes_from_each_rank(owner):
    received = [0] * world_size
    for _, port, _, count in connections():
        if port in owner:
            received[owner[port]] += count
    return received


def find_owners():
    """Which rank has which port; None if the system has no counters."""
    own = [port for port, *_ in connections()]
    ports = [None] * world_size
    dist.all_gather_object(ports, own)
    owners = {}
    for rank, ports_of_rank in enumerate(ports):
        for port in ports_of_rank:
            owners[port] = rank
    return owners or None
