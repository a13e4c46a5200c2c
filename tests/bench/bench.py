"""Measure speed and start-up on this machine: `make bench`. Ends with a table and out/bench.png.

All rows are interleaved, so that a noisy moment hurts all of them alike; each is the median of the
repeats, with the least and the most beside it. Nothing here fails because it is slow.
"""

import argparse
import itertools
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import launcher

HERE = Path(__file__).resolve().parent
ENVIRONMENT = os.environ | {
    "OMP_NUM_THREADS": "1",
    "CUDA_VISIBLE_DEVICES": "",
    "PYTHONPATH": str(launcher.ROOT / "lessons"),
}


def start(words, out, **environment):
    out.mkdir(parents=True, exist_ok=True)
    return subprocess.Popen(
        [str(word) for word in words],
        cwd=out,
        env=ENVIRONMENT | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process):
    stdout, stderr = process.communicate()
    if process.returncode:
        sys.exit(f"error: {' '.join(process.args)} failed:\n{stderr}")
    return stdout, stderr


def lesson(stem, processes, out, *arguments, variant=None):
    words, environment = launcher.command(stem, processes, *arguments)
    if variant:
        script = str(launcher.ROOT / "lessons" / f"{stem}.py")
        environment |= {"VARIANT": variant, "LESSON": script}
        words = [str(HERE / "variant.py") if word == script else word for word in words]
    return start(words, out, **environment)


def speed(out, stem):
    """Images a second, without the first epoch, in which caches fill."""
    return statistics.median(row["images_per_second"] for row in launcher.read_curve(out / "out", stem)[1:])


def tutorial(folder):
    stdout, _ = finish(start([sys.executable, HERE / "tutorial_loop.py", 3], folder))
    return statistics.median(json.loads(line)["images_per_second"] for line in stdout.splitlines()[1:])


def single(folder):
    finish(lesson("01_single_gpu", 1, folder, "--epochs", 3))
    return speed(folder, "01_single_gpu")


def ddp(folder, processes, variant=None, *arguments):
    finish(lesson("04_ddp_torchrun", processes, folder, "--epochs", 3, *arguments, variant=variant))
    return speed(folder, "04_ddp_torchrun")


def snapshots(folder):
    finish(lesson("05_snapshots", 2, folder, "--epochs", 3))
    return speed(folder, "05_snapshots")


def apart(folder, variant=None, *arguments):
    """Two processes at once that do not talk, each with the batch that one of two has."""
    both = [
        lesson("04_ddp_torchrun", 1, folder / name, "--epochs", 3, *arguments, variant=variant)
        for name in ("a", "b")
    ]
    for process in both:
        finish(process)
    return sum(speed(folder / name, "04_ddp_torchrun") for name in ("a", "b"))


def startup(folder, stem, processes):
    """Seconds from the command to the end of the first step, by what they are spent on."""
    began = time.time()
    _, stderr = finish(lesson(stem, processes, folder, "--epochs", 1, "--test-size", 10, variant="clocked"))
    times = json.loads(next(line for line in stderr.splitlines() if line.startswith("{")))
    points = [began, *(times[name] for name in ("started", "imported", "met", "images", "built", "stepped"))]
    spent = [later - earlier for earlier, later in itertools.pairwise(points)]
    return dict(zip(STAGES, spent, strict=True))


def saving(folder):
    """The share of lesson 05's time that its snapshots take, one an epoch; and the time of one."""
    _, stderr = finish(lesson("05_snapshots", 2, folder, variant="saving"))
    times = json.loads(next(line for line in stderr.splitlines() if line.startswith("{")))
    return {"share": times["saving"] / times["whole"], "seconds": times["saving"] / times["saves"]}


def recovery(folder):
    """Seconds from the death of one of two processes to the next step, with torchrun's real restart."""
    words, environment = launcher.command("05_snapshots", 2, "--epochs", 2, "--crash-at", 1)
    script = next(word for word in words if word.endswith(".py"))
    words[words.index(script)] = HERE.parent / "victim.py"
    finish(start(words, folder, **environment, LESSON=script))
    steps = [line.split() for line in (folder / ".steps").read_text().splitlines()]
    again = next(number for number, step in enumerate(steps) if step[1] != steps[0][1])
    return float(steps[again][0]) - float(steps[again - 1][0])


STAGES = ("launcher", "import torch", "processes meet", "images", "model, DDP, optimizer", "first step")
LARGE = ("--train-size", 1800)
SPEEDS = {
    "usual tutorial loop": tutorial,
    "lesson 01": single,
    "lesson 04, 1 process": lambda folder: ddp(folder, 1),
    "lesson 04, 2 processes": lambda folder: ddp(folder, 2),
    "2 that do not talk": lambda folder: apart(folder, None, "--batch-size", 60),
    "large model, 1 process": lambda folder: ddp(folder, 1, "large", *LARGE),
    "large model, 2 processes": lambda folder: ddp(folder, 2, "large", *LARGE),
    "large model, 2 that do not talk": lambda folder: apart(folder, "large", *LARGE, "--batch-size", 60),
    "lesson 05, 2 processes": lambda folder: snapshots(folder),
    "tiny model, 1 process": lambda folder: ddp(folder, 1, "tiny"),
    "tiny model, 2 processes": lambda folder: ddp(folder, 2, "tiny"),
}
STARTS = {
    "lesson 01": ("01_single_gpu", 1),
    "lesson 03": ("03_ddp_spawn", 2),
    "lesson 04": ("04_ddp_torchrun", 2),
}


def measure(repeats):
    speeds, starts = {name: [] for name in SPEEDS}, {name: [] for name in STARTS}
    faults = {"saving": [], "recovery": []}
    for repeat in range(repeats):
        for name, run in SPEEDS.items():
            with tempfile.TemporaryDirectory() as folder:
                speeds[name].append(run(Path(folder)))
            print(
                f"repeat {repeat + 1} of {repeats} | {name:32} {speeds[name][-1]:8,.0f} images/s", flush=True
            )
        for name, (stem, processes) in STARTS.items():
            with tempfile.TemporaryDirectory() as folder:
                starts[name].append(startup(Path(folder), stem, processes))
            seconds = sum(starts[name][-1].values())
            print(f"repeat {repeat + 1} of {repeats} | start of {name:23} {seconds:8.1f} seconds", flush=True)
        for name, run in (("saving", saving), ("recovery", recovery)):
            with tempfile.TemporaryDirectory() as folder:
                faults[name].append(run(Path(folder)))
            last = faults[name][-1]
            last = f"{last['share']:8.1%} of the run" if name == "saving" else f"{last:8.1f} seconds"
            print(f"repeat {repeat + 1} of {repeats} | {name:32} {last}", flush=True)
    return speeds, starts, faults


def show(speeds, starts, faults):
    middle = {name: statistics.median(values) for name, values in speeds.items()}
    against = {
        "lesson 01": ("usual tutorial loop", 1, "times the usual loop (aim: 1.5)"),
        "lesson 04, 2 processes": ("lesson 04, 1 process", 2, "of ideal (aim: 0.75)"),
        "lesson 05, 2 processes": ("lesson 04, 2 processes", 1, "times lesson 04"),
        "2 that do not talk": ("lesson 04, 1 process", 2, "of ideal: the machine's own limit"),
        "large model, 2 processes": ("large model, 1 process", 2, "of ideal (aim: 0.85)"),
        "large model, 2 that do not talk": ("large model, 1 process", 2, "of ideal: the machine's own limit"),
        "tiny model, 2 processes": ("tiny model, 1 process", 2, "of ideal"),
    }
    print(f"\n{'':32} images/s      least       most")
    for name, values in speeds.items():
        note = ""
        if name in against:
            other, ideal, words = against[name]
            note = f"  {middle[name] / middle[other] / ideal:.2f} {words}"
        print(f"{name:32} {middle[name]:8,.0f} {min(values):10,.0f} {max(values):10,.0f}{note}")
    print(f"\n{'seconds to the end of step 1':32}" + "".join(f"{name:>12}" for name in starts))
    for stage in STAGES:
        row = [statistics.median(run[stage] for run in runs) for runs in starts.values()]
        print(f"{stage:32}" + "".join(f"{seconds:12.2f}" for seconds in row))
    totals = [statistics.median(sum(run.values()) for run in runs) for runs in starts.values()]
    print(f"{'together':32}" + "".join(f"{seconds:12.2f}" for seconds in totals))
    shares = sorted(saved["share"] for saved in faults["saving"])
    one = statistics.median(saved["seconds"] for saved in faults["saving"])
    seconds = sorted(faults["recovery"])
    print(f"\n{'lesson 05, 2 processes':32}     median      least       most")
    print(
        f"{'saving, one snapshot an epoch':32} {statistics.median(shares):10.1%} {shares[0]:10.1%} "
        f"{shares[-1]:10.1%}  of the run (aim: 2%); one snapshot takes {1000 * one:.0f} ms"
    )
    print(
        f"{'from a kill to the next step':32} {statistics.median(seconds):8.1f} s {seconds[0]:8.1f} s "
        f"{seconds[-1]:8.1f} s  (aim: 10 s)"
    )


def picture(speeds, starts, path):
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(12, 4.6), layout="constrained", width_ratios=(3, 2))
    names = list(speeds)
    middle = [statistics.median(speeds[name]) for name in names]
    reach = [
        [value - min(speeds[name]) for name, value in zip(names, middle, strict=True)],
        [max(speeds[name]) - value for name, value in zip(names, middle, strict=True)],
    ]
    kinds = {"usual": "#999999", "2 tha": "#999999", "large": "#E69F00", "tiny ": "#009E73"}
    colours = ["#999999" if "talk" in name else kinds.get(name[:5], "#0072B2") for name in names]
    bars = left.barh(names, middle, xerr=reach, color=colours, ecolor="#444444")
    left.bar_label(bars, [f" {value:,.0f}" for value in middle], padding=6)
    left.set_xscale("log")
    left.set_xlim(min(middle) / 2, max(middle) * 3)
    left.invert_yaxis()
    left.set(title="images a second, one thread a process", xlabel="images/s (logarithmic)")
    base = [0.0] * len(starts)
    stages = ("#56B4E9", "#0072B2", "#999999", "#009E73", "#E69F00", "#D55E00")
    for stage, colour in zip(STAGES, stages, strict=True):
        part = [statistics.median(run[stage] for run in runs) for runs in starts.values()]
        right.bar(list(starts), part, bottom=base, color=colour, label=stage, width=0.6)
        base = [below + height for below, height in zip(base, part, strict=True)]
    right.set(title="from the command to the first step", ylabel="seconds")
    right.set_ylim(0, max(base) * 1.1)
    right.legend(frameon=False, reverse=True, loc="center left", bbox_to_anchor=(1, 0.5))
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=150)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("out"))
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    speeds, starts, faults = measure(arguments.repeats)
    show(speeds, starts, faults)
    picture(speeds, starts, arguments.out / "bench.png")
    machine = {"machine": platform.platform(), "cores": os.cpu_count(), "python": platform.python_version()}
    text = json.dumps(
        machine | {"images_per_second": speeds, "seconds_to_first_step": starts} | faults, indent=1
    )
    (arguments.out / "bench.json").write_text(text + "\n")
    print(
        f"\nThe same as a picture and as data: {arguments.out / 'bench.png'}, {arguments.out / 'bench.json'}"
    )


if __name__ == "__main__":
    main()
