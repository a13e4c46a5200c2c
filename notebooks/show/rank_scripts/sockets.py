"""What Linux has counted on the TCP connections of this process. Elsewhere there is nothing to read."""

import os
import socket
import struct


def connections():
    """(own port, the other's port, bytes sent, bytes received) of each connection."""
    if not hasattr(socket, "TCP_INFO") or not os.path.isdir("/proc/self/fd"):
        return
    for number in os.listdir("/proc/self/fd"):
        try:
            if not os.readlink(f"/proc/self/fd/{number}").startswith("socket:"):
                continue
            with socket.socket(fileno=os.dup(int(number))) as wire:
                facts = wire.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
                # tcpi_bytes_sent, less tcpi_bytes_retrans; what is acknowledged may lag behind
                sent, again = struct.unpack_from("QQ", facts, 200)
                received = struct.unpack_from("Q", facts, 128)[0]  # tcpi_bytes_received
                yield wire.getsockname()[1], wire.getpeername()[1], sent - again, received
        except (OSError, struct.error):  # closed meanwhile, or no connection
            continue


def count_bytes():
    """[sent, received] over all connections together; None where nothing counts them."""
    found = list(connections())
    if not found:
        return None
    total_sent = 0
    total_received = 0
    for _, _, sent, received in found:
        total_sent += sent
        total_received += received
    return [total_sent, total_received]
