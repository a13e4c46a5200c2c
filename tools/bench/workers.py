"""How many loader workers should a process have? Lesson 08, by what its images cost.

    python tools/bench/workers.py            seconds of a core: they do not depend on what else is running
    python tools/bench/workers.py --rounds 2       and images a second, which do: it takes minutes

The first says what preparing an image costs and what training on it costs, and what follows from the two.
With rounds, a table comes after it: one process and two, each with no worker, one and two, on all cores
of this machine and bound to one of them (as a scheduler binds a task that did not ask for more). Each of
its numbers is the best epoch of all rounds: the one that was disturbed least.
"""

import argparse
import math
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import launcher

LESSON = "08_real_training"
BATCH = 120


def seconds_of_a_core(work, times: int = 5) -> float:
    """What a call costs one core, at best: the time in which other programs have the core does not count."""
    found = []
    for _ in range(times):
        start = time.process_time()
        work()
        found.append(time.process_time() - start)
    return min(found)


def cost() -> tuple[float, float]:
    """Seconds of a core to prepare an image of lesson 08, and to train on it, on a CPU."""
    sys.path.insert(0, str(launcher.ROOT / "lessons"))
    import torch

    import workload
    from parts import loading, resnet

    torch.set_num_threads(1)
    arguments = SimpleNamespace(seed=0, data="digits", train_size=10 * BATCH, test_size=60)
    images, _ = workload.load_images(arguments)
    augmented = loading.Augmented(images, arguments.seed, arguments.data)
    batch = [(1, index) for index in range(BATCH)]
    model = resnet.ResNet18(images.images.shape[1:], 8, torch.nn.BatchNorm2d)
    model = model.to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    prepared, labels = augmented.__getitems__(batch)

    def step():
        loss = torch.nn.functional.cross_entropy(model(prepared), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return seconds_of_a_core(lambda: augmented.__getitems__(batch)) / BATCH, seconds_of_a_core(step) / BATCH


def advice(prepare: float, train: float, cores: int) -> tuple[int, float]:
    """Workers that a process can use on so many cores of its own, and how many times as fast they make it.

    Without workers it does one after the other. With them, the slower side says how fast it is. On one core
    there is no side by side.
    """
    needed = math.ceil(prepare / train)
    if cores < 2:
        return 0, 1.0
    workers = min(needed, cores - 1)
    return workers, (prepare + train) / max(train, prepare / workers)


def images_per_second(processes: int, workers: int, cores: set[int], arguments: list[str]) -> float:
    """The best epoch of one run; the first is left out, in which workers start."""
    with tempfile.TemporaryDirectory() as folder:
        options = ("--workers", workers, "--patience", 9, "--out", folder, *arguments)
        words, environment = launcher.command(LESSON, processes, *options)
        subprocess.run(
            words,
            env=os.environ | environment | {"OMP_NUM_THREADS": "1"},
            # All that the command starts inherits the cores that it may run on.
            preexec_fn=lambda: os.sched_setaffinity(0, cores),
            check=True,
            capture_output=True,
            timeout=300,
        )
        curve = launcher.read_curve(Path(folder), LESSON)
    return max(row["images_per_second"] for row in curve[1:])


def measure(most_workers: int, rounds: int, arguments: list[str]) -> dict[tuple[int, int, int], float]:
    """The images a second of (processes, workers, cores). All take turns, so that noise hurts them alike."""
    all_cores = os.sched_getaffinity(0)
    found = {}
    for _ in range(rounds):
        for cores in (all_cores, {min(all_cores)}):
            for processes in (1, 2):
                for workers in range(most_workers + 1):
                    speed = images_per_second(processes, workers, cores, arguments)
                    key = processes, workers, len(cores)
                    found[key] = max(found.get(key, 0), speed)
                    print(f"{processes} processes, {workers} workers: {speed:,.0f}", file=sys.stderr)
    return found


def table(found: dict[tuple[int, int, int], float]) -> str:
    workers = sorted({key[1] for key in found})
    most = max(key[2] for key in found)
    lines = [
        f"| images/s | {' | '.join(f'{count} workers each' for count in workers)} |",
        f"| --- | {' | '.join('---:' for _ in workers)} |",
    ]
    for cores in (most, 1):
        for processes in (1, 2):
            name = f"{processes} process{'es' * (processes > 1)} on {cores} core{'s' * (cores > 1)}"
            speeds = (f"{found[processes, count, cores]:,.0f}" for count in workers)
            lines.append(f"| {name} | {' | '.join(speeds)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--workers", type=int, default=2, help="most workers of a process (2)")
    parser.add_argument("--rounds", type=int, default=0, help="of images a second (0)")
    options, arguments = parser.parse_known_args()
    prepare, train = cost()
    print(f"to prepare an image costs {1000 * prepare:.2f} ms of a core, to train on it {1000 * train:.2f}")
    for step, where in ((train, "as here"), (train / 20, "a GPU that trains 20 times as fast")):
        for cores in (1, 2, 4, 8):
            workers, faster = advice(prepare, step, cores)
            print(f"{where}, {cores} cores for a process: {workers} workers, {faster:.2f} times as fast")
    if not options.rounds:
        sys.exit()
    if len(os.sched_getaffinity(0)) < 2:
        sys.exit("error: this may run on one core only, and has nothing to compare it with")
    print(table(measure(options.workers, options.rounds, arguments)))
