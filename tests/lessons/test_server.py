"""The server of notebook 08a, which asserts what many clients get. Here: what a wrong client is told."""

import http.client
import json
import signal
import subprocess
import sys

import pytest
import torch
from torch import nn

from parts import resnet
from tools.lessons import ROOT

SERVER = ROOT / "lessons/parts/server.py"


@pytest.fixture
def address(tmp_path):
    path = tmp_path / "08_real_training.pt"
    torch.save(resnet.ResNet18((1, 28, 28), 4, nn.BatchNorm2d).state_dict(), path)
    words = [sys.executable, SERVER, "--weights", path, "--batch", "16"]
    server = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        words = server.stdout.readline()
        assert words.startswith("listening at http://127.0.0.1:"), server.stderr.read()
        yield words.strip().rpartition("/")[2]
        server.send_signal(signal.SIGTERM)
        assert server.wait(20) == 0 and server.stderr.read() == ""
    finally:
        server.kill()
        server.communicate()


def ask(address, path, body=None):
    connection = http.client.HTTPConnection(address, timeout=60)
    try:
        connection.request("GET" if body is None else "POST", path, body)
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())
    finally:
        connection.close()


def test_a_client_that_is_wrong_is_told_so(address):
    assert ask(address, "/digit", b"abc") == (400, {"error": "a picture has 784 bytes, not 3"})
    status, answer = ask(address, "/letter", b"abc")
    assert (status, answer["error"]) == (404, "there is no /letter: send a picture to /digit")
    assert ask(address, "/digit", bytes(784))[0] == 200, "the server must go on"


def test_without_weights_it_says_what_to_run(tmp_path):
    words = [sys.executable, SERVER, "--weights", tmp_path / "x.pt"]
    run = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert run.returncode == 1 and f"there is no {tmp_path}/x.pt: run lesson 08 first" in run.stderr
    assert "Traceback" not in run.stderr
