"""How many loader workers should a process have? Lesson 08, from the cost of its images.

    python tools/bench/workers.py               CPU time per image, which other programs do not affect
    python tools/bench/workers.py --rounds 2    and images per second, which they do affect: takes minutes

The first prints the cost of preparing an image and of training on it, and what follows from both. With
--rounds, a table follows: one process and two, each with no worker, one and two, on all cores of this
machine and bound to one core (as a scheduler binds a task that did not ask for more). Each number is the
best epoch of all rounds, because it was disturbed least.
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
    """The lowest CPU time of a call: time in which other programs use the core does not count."""
    found = []
    for _ in range(times):
        start = time.process_time()
        work()
        found.append(time.process_time() - start)
    return min(found)


def cost() -> tuple[float, float]:
    """CPU seconds to prepare an image of lesson 08, and to train on it."""
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
    """How many workers a process can use on its cores, and the speedup that they bring.

    Without workers, preparing and training alternate. With workers, they run in parallel and the slower one
    sets the speed. On one core nothing runs in parallel.
    """
    needed = math.ceil(prepare / train)
    if cores < 2:
        return 0, 1.0
    workers = min(needed, cores - 1)
    return workers, (prepare + train) / max(train, prepare / workers)


def images_per_second(processes: int, workers: int, cores: set[int], arguments: list[str]) -> float:
    """The best epoch of one run, without the first, in which workers start."""
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
    """Images per second by (processes, workers, cores). All take turns, so noise affects them alike."""
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
    print(f"CPU time per image: {1000 * prepare:.2f} ms to prepare it, {1000 * train:.2f} ms to train on it")
    for step, where in ((train, "as here"), (train / 20, "a GPU that trains 20 times as fast")):
        for cores in (1, 2, 4, 8):
            workers, faster = advice(prepare, step, cores)
            print(f"{where}, {cores} cores per process: {workers} workers make it {faster:.2f} times as fast")
    if not options.rounds:
        sys.exit()
    if len(os.sched_getaffinity(0)) < 2:
        sys.exit("error: this process may use only one core: give it two or more to compare")
    print(table(measure(options.workers, options.rounds, arguments)))
