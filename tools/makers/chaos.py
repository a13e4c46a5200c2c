"""Kill a training run in every way there is, and see that it ends with the weights of an uninterrupted one.

    make chaos KILLS=300

You will see a line for each kill: what was killed, how many steps had to be taken again, and how long it
took until the next step. It ends with an error if a single byte of the weights, or a single digit of the
curve, is not that of the run without kills.
"""

import contextlib
import itertools
import os
import random
import signal
import sys
import tempfile
import threading
import time
from pathlib import Path

from tools import launcher, lessons
from tools.testbed.forks import start_server
from tools.testbed.processes import children

LESSON = "06b_preemption"
SIZES = ("--train-size", 480, "--test-size", 100, "--batch-size", 24, "--epochs", 20)
STEPS = 20  # in an epoch
HALVES = (".temporary", ".refused")  # which no run may leave
# How often each kind comes in 20 kills. A stopped process is the slow one: torchrun gives it 30 seconds.
KINDS = {
    "one process": 5,
    "all processes": 4,
    "in mid-save": 4,
    "the agent": 2,
    "SIGTERM": 2,
    "SIGTERM to one": 2,
    "SIGSTOP": 1,
}
OF_THE_AGENT = ("the agent", "SIGTERM")


class Run:
    """A run in a folder, which goes on after its agent was killed: the command is then given again."""

    def __init__(self, forks, folder, processes, arguments, lesson=LESSON):
        self.forks = forks
        self.folder = folder
        self.processes = processes
        self.lesson = lesson
        self.code = None
        self.left = []
        victim = launcher.ROOT / "tools/testbed/victim.py"
        self.words, self.environment = launcher.command(lesson, processes, *arguments, script=victim)
        self.words[self.words.index("--max-restarts") + 1] = "1000"
        self.environment["LESSON"] = str(lessons.get(lesson).path)
        if lesson != LESSON:
            self.environment["DROPOUT"] = "0"  # it does not save the random state
        self.begin()

    def begin(self):
        (self.folder / ".pid").unlink(missing_ok=True)
        self.code = None
        self.thread = threading.Thread(target=self.wait)
        self.thread.start()

    def wait(self):
        code, self.left = self.forks.run(self.words, self.folder, self.environment, limit=300)
        self.code = "killed" if code is None else code

    def ended(self):
        return not self.thread.is_alive()

    def end(self):
        """End what still runs: the next run is started by the same server."""
        while not self.ended():
            with contextlib.suppress(OSError, ValueError):  # it has only just begun, or ends by itself
                os.killpg(self.agent(), signal.SIGKILL)
            self.thread.join(0.1)

    def agent(self):
        return int((self.folder / ".pid").read_text())

    def ranks(self):
        return children(self.agent())

    def steps(self):
        """The steps that process 0 has taken: when, its pid, and the place in the run."""
        path = self.folder / ".steps"
        if not path.exists():
            return []
        found = []
        for line in path.read_text().split("\n")[:-1]:  # the last one may not be whole yet
            when, pid, epoch, step = line.split()
            found.append((float(when), int(pid), int(epoch), int(step)))
        return found

    def result(self):
        """The bytes of the weights, and the losses and accuracies."""
        out = self.folder / "out"
        curve = []
        for row in launcher.read_curve(out, self.lesson):
            curve.append((row["epoch"], row["loss"], row["accuracy"]))
        return (out / f"{self.lesson}.pt").read_bytes(), curve

    def log(self):
        return (self.folder / ".out").read_text() + (self.folder / ".err").read_text()


def wait_for(run, condition, what, seconds=120):
    """Wait until it holds. False if the run ended before that."""
    deadline = time.monotonic() + seconds
    while not condition():
        if run.ended():
            return bool(condition())
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {seconds} seconds for {what}\n{run.log()}")
        time.sleep(0.005)
    return True


def strike(run, kind):
    """Kill something, and wait until the run takes steps again. None if it was over before."""
    known = len(run.steps())
    if not wait_for(run, lambda: len(run.steps()) > known + 1, "a step"):
        return None
    time.sleep(random.uniform(0, 0.3))
    if run.ended():
        return None
    at_work = run.steps()[-1][1]  # on a busy machine the next one is at work right after the strike
    try:
        if kind == "in mid-save":
            (run.folder / ".die-in-save").write_text(str(min(1, random.uniform(0, 1.2))))
            if not wait_for(run, lambda: not (run.folder / ".die-in-save").exists(), "a save"):
                return None
        else:
            send_signal(run, kind)
    except (ProcessLookupError, FileNotFoundError, IndexError):
        return None  # it had just ended
    struck = time.time()

    if kind in OF_THE_AGENT:
        run.thread.join()
        if run.code == 0:
            return None
        assert not run.left, f"alive 20 seconds after {kind}: {run.left}"
        run.begin()
    if not wait_for(run, lambda: run.steps()[-1][1] != at_work, f"a step after {kind}"):
        return None
    return {"kind": kind, **loss_of(run.steps(), known, at_work, struck)}


def send_signal(run, kind):
    """Send the signal of this kind to torchrun, to a rank or to all ranks."""
    number = getattr(signal, kind.split()[0], signal.SIGKILL)
    pids = [run.agent()] if kind in OF_THE_AGENT else run.ranks()
    if kind != "all processes":
        pids = [random.choice(pids)]
    os.kill(pids[0], number)
    for pid in pids[1:]:
        with contextlib.suppress(ProcessLookupError):  # another one's death may have ended it
            os.kill(pid, number)


def loss_of(steps, known, at_work, struck):
    """What a strike cost: steps that were taken again, and seconds until the next step."""
    last = None  # of the process that was at work
    first = None  # of the process after it
    for step in steps:
        if step[1] == at_work:
            last = step
    for step in steps[known:]:
        if step[1] != at_work:
            first = step
            break
    _, _, last_epoch, last_step = last
    when, _, epoch, number = first
    lost = (last_epoch - epoch) * STEPS + last_step - number + 1
    assert lost >= 0, f"{-lost} steps were never taken: after {last[2:]} came {first[2:]}"
    return {"lost": lost, "seconds": when - struck}


def chaos(kills, folder, forks, processes=(2, 4), kinds=KINDS, limit=3, lesson=LESSON):
    """Returns a row for each kill; raises AssertionError as soon as something is not as it must be."""
    rows = []
    bag = []  # kinds that are still to come
    peace = {}  # the weights and the curve without kills, by the number of processes
    run = None

    def begun(name, count, every):
        options = SIZES  # lesson 05 saves at the end of an epoch, and waits as long as PyTorch does
        if lesson == LESSON:
            options = (*SIZES, "--snapshot-every", every, "--time-limit", limit)
        return Run(forks, folder / name, count, options, lesson)

    try:
        for count in processes:
            run = begun(f"peace-{count}", count, STEPS)
            run.thread.join()
            assert run.code == 0, run.log()
            peace[count] = run.result()

        for number, count in enumerate(itertools.cycle(processes)):
            if len(rows) >= kills:
                break
            every = random.choice([1, 3, 7, STEPS]) if lesson == LESSON else STEPS
            run = begun(f"{number}", count, every)
            strikes = []
            while len(strikes) < min(5, kills - len(rows)) and not run.ended():
                if not bag:
                    bag = full_bag(kinds)
                kind = bag.pop(random.randrange(len(bag)))
                row = strike(run, kind)
                if row is None:
                    bag.append(kind)
                    break
                strikes.append(row | {"processes": count})
                print(
                    f"{len(rows) + len(strikes):4}  {kind:14} of {count}, snapshot every {every:2} steps: "
                    f"{row['lost']:2} steps again, {row['seconds']:4.1f} s",
                    flush=True,
                )
                saves = lesson == LESSON and "SIGTERM" in kind
                longest = every + STEPS % every  # none is saved at the end of an epoch for its own sake
                most = 1 if saves else longest + 1  # process 0 may die before it has noted a step
                assert row["lost"] <= most, f"{row['lost']} steps lost, one snapshot every {every}"

            run.thread.join()
            check_the_end(run, strikes, *peace[count])
            rows += strikes
    finally:
        if run:  # all tests share one server: the next one would read the answer of a run that failed
            run.end()
    return rows


def full_bag(kinds):
    """Each kind as often as it comes in 20 kills."""
    bag = []
    for kind, times in kinds.items():
        bag += [kind] * times
    return bag


def check_the_end(run, strikes, weights_in_peace, curve_in_peace):
    """A run that was struck must end as one that was not, and leave nothing behind."""
    assert run.code == 0, f"status {run.code}\n{run.log()}"
    assert not run.left, f"left alive: {run.left}"
    struck = [row["kind"] for row in strikes]
    weights, curve = run.result()
    assert weights == weights_in_peace, f"other weights after {struck}"
    assert curve == curve_in_peace, f"another curve after {struck}"
    starts = len({pid for _, pid, _, _ in run.steps()})
    assert starts == 1 + len(strikes), f"started {starts} times after {struck}\n{run.log()[-3000:]}"
    left_over = [path for path in (run.folder / "out").iterdir() if path.suffix in HALVES]
    assert not left_over, f"left over: {left_over}"


if __name__ == "__main__":
    kills = int(sys.argv[1])
    forks = start_server()
    with tempfile.TemporaryDirectory(prefix="chaos-") as place:
        try:
            chaos(kills, Path(place), forks)
        except AssertionError as error:
            sys.exit(f"error: {error}")
        finally:
            forks.close()
    print(
        f"\n{kills} kills and resumes, one restart for each.\n"
        "Every run ended with the weights and the curve of the uninterrupted run, to the last byte."
    )
