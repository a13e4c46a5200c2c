"""Messages between the grader and its fork server: a line of JSON each, over a stream socket.

Descriptors ride on the first byte of a message. macOS has no sockets that keep messages apart
(SOCK_SEQPACKET), so the end of a line does it."""

import json
import socket
import time

MOST_DESCRIPTORS = 250


class Channel:
    def __init__(self, own):
        self.socket = own
        self.rest = b""

    def send(self, message, descriptors=()):
        data = json.dumps(message).encode() + b"\n"
        if descriptors:
            socket.send_fds(self.socket, [data[:1]], descriptors)
            data = data[1:]
        self.socket.sendall(data)

    def receive(self, seconds=None):
        """The next message and its descriptors. Raises EOFError if the other side has ended, and TimeoutError
        if nothing comes in so many seconds."""
        end = None if seconds is None else time.monotonic() + seconds
        descriptors = []
        while b"\n" not in self.rest:
            if end is not None:
                self.socket.settimeout(max(0.001, end - time.monotonic()))
            data, more, *_ = socket.recv_fds(self.socket, 1 << 16, MOST_DESCRIPTORS)
            descriptors += more
            if not data:
                raise EOFError("it has ended")
            self.rest += data
        self.socket.settimeout(None)
        line, _, self.rest = self.rest.partition(b"\n")
        return json.loads(line), descriptors

    def close(self):
        self.socket.close()
