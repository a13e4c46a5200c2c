"""Serve the model that lesson 08 trained: one process answers HTTP requests in batches.

    python lessons/parts/server.py --weights out/08_real_training.pt

You will see the address at which the server listens. Send the 784 bytes of a picture to
/digit, and the server answers with the digit and its probability. Requests that arrive at
the same time share a forward pass, because one pass with 32 pictures takes much less time
than 32 passes with one picture each. Ctrl-C stops the server.
"""

import argparse
import json
import queue
import signal
import sys
import threading
from concurrent.futures import Future
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from parts import resnet

SIDE = 28


def load(path):
    """The model for inference. In one process, plain batch norm replaces synchronized batch norm."""
    weights = torch.load(path, map_location="cpu")
    width, channels = weights["0.weight"].shape[:2]
    if channels != 1:
        sys.exit(f"error: {path} is for pictures in colour, and this serves digits")
    model = resnet.ResNet18((1, SIDE, SIDE), width, torch.nn.BatchNorm2d)
    model.load_state_dict(weights)
    return model.eval()  # in training mode, an answer would depend on the rest of the batch


class Batcher:
    """One thread computes the answers. Each request waits in a thread of its own."""

    def __init__(self, model, largest):
        self.model, self.largest = model, largest
        self.waiting = queue.Queue()
        self.batches = []  # how many pictures were in each forward pass
        threading.Thread(target=self.compute, daemon=True).start()

    def ask(self, image):
        answer = Future()
        self.waiting.put((image, answer))
        return answer.result()

    def take(self):
        """Return all waiting requests, at least one. New requests queue up while a batch is computed."""
        batch = [self.waiting.get()]
        while len(batch) < self.largest and not self.waiting.empty():
            batch.append(self.waiting.get())
        return batch

    @torch.inference_mode()
    def compute(self):
        while True:
            images, answers = zip(*self.take(), strict=True)
            self.batches.append(len(images))
            sure, digits = self.model(torch.stack(images)).softmax(dim=1).max(dim=1)
            rows = zip(answers, digits.tolist(), sure.tolist(), strict=True)
            for answer, digit, probability in rows:
                answer.set_result({"digit": digit, "probability": round(probability, 4)})


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"  # HTTP/1.1 lets a client reuse its connection

    def do_POST(self):
        length = int(self.headers.get("Content-Length", 0))
        if self.path != "/digit":
            self.close_connection = True  # otherwise the body would be read as a new request
            self.reply(404, {"error": f"there is no {self.path}: send a picture to /digit"})
        elif length != SIDE * SIDE:
            self.close_connection = True
            self.reply(400, {"error": f"a picture has {SIDE * SIDE} bytes, not {length}"})
        else:
            pixels = torch.frombuffer(bytearray(self.rfile.read(length)), dtype=torch.uint8)
            self.reply(200, self.server.batcher.ask(pixels.view(1, SIDE, SIDE)))

    def do_GET(self):
        batches = self.server.batcher.batches
        self.reply(200, {"requests": sum(batches), "forward passes": len(batches)})

    def reply(self, status, words):
        body = json.dumps(words).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *words):
        pass  # by default, http.server prints a line for each request


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128  # the default, 5, would refuse some of 32 clients that connect at once


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    option = parser.add_argument
    option("--weights", type=Path, default=Path("out/08_real_training.pt"), help="what lesson 08 has left")
    option("--port", type=int, default=0, help="a free one, if not given")
    option("--batch", type=int, default=32, help="the most pictures of a forward pass (%(default)s)")
    arguments = parser.parse_args()
    if not arguments.weights.exists():
        sys.exit(f"error: there is no {arguments.weights}: run lesson 08 first")
    torch.set_num_threads(1)
    server = Server(("127.0.0.1", arguments.port), Handler)  # without a password, serve only this machine
    server.batcher = Batcher(load(arguments.weights), arguments.batch)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    print(f"listening at http://127.0.0.1:{server.server_port}", flush=True)
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        server.server_close()


if __name__ == "__main__":
    main()
