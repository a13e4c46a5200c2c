"""Clients for the server of notebook 08a: threads that send one picture after the other."""

import http.client
import json
import signal
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from types import SimpleNamespace


@contextmanager
def serving(words):
    """Start the server, yield its address, and stop it."""
    server = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    try:
        yield server.stdout.readline().strip().rpartition("/")[2]
    finally:
        server.send_signal(signal.SIGTERM)
        server.communicate()


def crowd(address, images, many, each):
    """`many` clients at once, with `each` images each: their answers, and how long they waited."""

    def client(number):
        connection = http.client.HTTPConnection(address, timeout=60)
        waits, digits = [], []
        for image in images[number * each : (number + 1) * each]:
            start = time.perf_counter()
            connection.request("POST", "/digit", image.numpy().tobytes())
            digits.append(json.loads(connection.getresponse().read())["digit"])
            waits.append(time.perf_counter() - start)
        connection.close()
        return waits, digits

    start = time.perf_counter()
    with ThreadPoolExecutor(many) as pool:
        waits, digits = zip(*pool.map(client, range(many)), strict=True)
    seconds = time.perf_counter() - start
    connection = http.client.HTTPConnection(address, timeout=60)
    connection.request("GET", "/")
    passes = json.loads(connection.getresponse().read())["forward passes"]
    connection.close()
    return SimpleNamespace(
        per_second=many * each / seconds,
        passes=passes,
        seconds=[wait for row in waits for wait in row],
        digits=[digit for row in digits for digit in row],
    )
