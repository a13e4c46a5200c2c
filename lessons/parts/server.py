"""Answers requests for pictures with the weights that lesson 08 has left: one process, batches.

    python lessons/parts/server.py --weights out/08_real_training.pt

You will see the address at which it listens. A request is the 784 bytes of one picture, sent to /digit; the
answer is the digit, and how sure the model is. Requests that come at the same time share a forward pass:
one of 32 pictures costs much less than 32 of one. Ctrl-C ends it.
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
    """The model for inference: on one process, plain batch norm does what the synchronized one did."""
    weights = torch.load(path, map_location="cpu")
    width, channels = weights["0.weight"].shape[:2]
    if channels != 1:
        sys.exit(f"error: {path} is for pictures in colour, and this serves digits")
    model = resnet.ResNet18((1, SIDE, SIDE), width, torch.nn.BatchNorm2d)
    model.load_state_dict(weights)
    return model.eval()  # or else an image's answer would depend on those beside it


class Batcher:
    """One thread that computes, for all the threads that have a request each."""

    def __init__(self, model, largest):
        self.model, self.largest = model, largest
        self.waiting = queue.Queue()
        self.batches = []  # how many pictures each forward pass had
        threading.Thread(target=self.compute, daemon=True).start()

    def ask(self, image):
        answer = Future()
        self.waiting.put((image, answer))
        return answer.result()

    def take(self):
        """All that wait, but at least one. While it computes, the next ones gather."""
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
    protocol_version = "HTTP/1.1"  # a client may send its next request on the same connection

    def do_POST(self):
        length = int(self.headers.get("Content-Length", 0))
        if self.path != "/digit":
            self.reply(404, {"error": f"there is no {self.path}: send a picture to /digit"})
        elif length != SIDE * SIDE:
            self.close_connection = True  # what it still sends would be taken for the next request
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
        pass  # a line for each request


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128  # by default 5: of 32 clients that come at once, some would be turned away


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
    server = Server(("127.0.0.1", arguments.port), Handler)  # for this machine only: it asks no password
    server.batcher = Batcher(load(arguments.weights), arguments.batch)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    print(f"listening at http://127.0.0.1:{server.server_port}", flush=True)
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        server.server_close()


if __name__ == "__main__":
    main()
