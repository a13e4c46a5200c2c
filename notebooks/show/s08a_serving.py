"""Notebook 08a: clients for the server, what a picture costs, and how long clients wait."""

import http.client
import json
import signal
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from types import SimpleNamespace

import matplotlib.pyplot as plt

from show.pictures import BLUE, ORANGE, picture


@contextmanager
def running(words):
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

    all_waits, all_digits = [], []
    start = time.perf_counter()
    with ThreadPoolExecutor(many) as pool:
        for waits, digits in pool.map(client, range(many)):  # in the order of the clients
            all_waits.extend(waits)
            all_digits.extend(digits)
    seconds = time.perf_counter() - start

    connection = http.client.HTTPConnection(address, timeout=60)
    connection.request("GET", "/")
    passes = json.loads(connection.getresponse().read())["forward passes"]
    connection.close()
    return SimpleNamespace(
        per_second=many * each / seconds, passes=passes, seconds=all_waits, digits=all_digits
    )


def draw_cost(cost):
    """Milliseconds for each picture, by the number of pictures in a forward pass."""
    axes = plt.subplots(figsize=(5, 2.4))[1]
    axes.bar([str(size) for size in cost], list(cost.values()), color=BLUE, width=0.6)
    axes.set(xlabel="pictures in a forward pass", ylabel="ms for each", title="What a picture costs")
    picture(f"The cost of a picture: {cost[1]:.2f} ms alone, {cost[32]:.2f} ms in a pass of 32.")


def draw_waits(seconds):
    """For each largest batch, the share of the requests that are answered after so many milliseconds."""
    axes = plt.subplots(figsize=(5, 2.8))[1]
    medians = {}
    for (largest, waits), colour in zip(seconds.items(), (ORANGE, BLUE), strict=True):
        times, shares = [], []
        for number, wait in enumerate(sorted(waits), 1):
            times.append(1000 * wait)
            shares.append(100 * number / len(waits))
        medians[largest] = times[len(times) // 2]
        axes.plot(times, shares, color=colour, lw=2, label=f"at most {largest} in a batch")
    axes.set(xlabel="ms until the answer", ylabel="% of the requests", title="How long clients wait")
    axes.set(xlim=(0, None), ylim=(0, 100))
    axes.legend()
    picture(
        f"The share of requests answered after so many milliseconds. Half have it after {medians[1]:.0f} ms "
        f"with one picture per pass, and after {medians[32]:.0f} ms with up to 32."
    )
