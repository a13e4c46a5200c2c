"""The server of notebook 08a: real clients, many at once, get what the model says alone."""

import http.client
import json
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn

import workload
from lessons import ROOT
from parts import resnet

SERVER = ROOT / "lessons/parts/server.py"


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    """Not those that a model begins with: with running statistics of 0 and 1, eval() would change little."""
    torch.manual_seed(0)
    model = resnet.ResNet18((1, 28, 28), 4, nn.BatchNorm2d)
    with torch.no_grad():
        for _ in range(3):
            model(workload.draw_digits(60, seed=5).images)
    path = tmp_path_factory.mktemp("weights") / "08_real_training.pt"
    torch.save(model.state_dict(), path)
    return path


@pytest.fixture(scope="module")
def address(weights):
    words = [sys.executable, SERVER, "--weights", weights, "--batch", "16"]
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


def test_many_clients_get_what_the_model_says_alone_in_fewer_passes(address, weights):
    images = workload.draw_digits(200, seed=2).images
    model = resnet.ResNet18((1, 28, 28), 4, nn.BatchNorm2d)
    model.load_state_dict(torch.load(weights))
    with torch.no_grad():
        sure, digits = model.eval()(images).softmax(dim=1).max(dim=1)
    assert sure.std() > 0.01, "answers that are all the same cannot be mixed up"
    _, before = ask(address, "/")
    with ThreadPoolExecutor(32) as pool:
        found = list(pool.map(lambda image: ask(address, "/digit", image.numpy().tobytes()), images))
    assert all(status == 200 for status, _ in found)
    assert [answer["digit"] for _, answer in found] == digits.tolist()
    assert [answer["probability"] for _, answer in found] == pytest.approx(sure.tolist(), abs=2e-4)
    _, after = ask(address, "/")
    passes = after["forward passes"] - before["forward passes"]
    assert after["requests"] - before["requests"] == 200
    assert 200 / 16 <= passes < 150, "each request had a pass of its own, or a pass had more than 16"


def test_a_client_that_is_wrong_is_told_so(address):
    assert ask(address, "/digit", b"abc") == (400, {"error": "a picture has 784 bytes, not 3"})
    status, answer = ask(address, "/letter", b"abc")
    assert (status, answer["error"]) == (404, "there is no /letter: send a picture to /digit")
    assert ask(address, "/digit", bytes(784))[0] == 200, "the server must go on"


@pytest.mark.quick("missing")
@pytest.mark.long
@pytest.mark.parametrize("kind", ["missing", "colour"])
def test_weights_that_it_cannot_serve(tmp_path, kind):
    path = tmp_path / "x.pt"
    if kind == "colour":
        torch.save(resnet.ResNet18((3, 32, 32), 2, nn.BatchNorm2d).state_dict(), path)
    words = [sys.executable, SERVER, "--weights", path]
    run = subprocess.run(words, capture_output=True, text=True, timeout=60)
    expected = {"missing": f"there is no {path}: run lesson 08 first", "colour": "is for pictures in colour"}
    assert run.returncode == 1 and expected[kind] in run.stderr and "Traceback" not in run.stderr
