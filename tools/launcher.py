"""How each lesson is started, for `make run`, the tests and the bench: by the command its docstring gives."""

import json
import os
import re
import shutil
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LESSONS = sorted((ROOT / "lessons").glob("[0-9][0-9]_*.py"))
STEMS = [path.stem for path in LESSONS]
LADDER = [stem for stem in STEMS if stem[:2] <= "06"]  # those that train one job to one curve


def grown_from(path):
    """The lesson that this one's diff is taken against: the one its docstring names, or the one before."""
    named = re.search(r"grown from lesson (\d\d)", path.read_text().split('"""')[1])
    before = [other for other in LESSONS if other.name < path.name]
    if named:
        return next(other for other in before if other.name.startswith(named[1]))
    return before[-1] if before else None


# What "the same curve" means. See the README for why it is not "the same bytes".
EARLY_EPOCHS, EARLY, LATE, ACCURACY = 3, 1e-5, 1e-3, 0.002
LIMITS = (EARLY, LATE, ACCURACY)
# Lessons with another precision or another model: whose curve theirs must be, and how close. The limits
# follow from what was measured; lessons/README.md says what that was. "itself": on one process.
OTHER_CURVES = {
    "07": ("01", 1e-2, 5e-2, 0.005),  # bf16
    # ReLU's kinks, at a learning rate that makes much of them: even another number of threads changes its
    # losses by half, later on. Its tests compare the curves in 64 bits; here it is only the end that counts.
    "08": ("itself", 2.0, 2.0, 0.03),
    "11": ("itself", *LIMITS),
    "12": ("itself", *LIMITS),
    "13": ("itself", *LIMITS),
}


def command(stem, processes, *arguments):
    """The command that starts a lesson on this many processes, and what it adds to the environment."""
    script = ROOT / "lessons" / f"{stem}.py"
    # torchrun lies beside the python that runs this; a PATH may lead to another environment's.
    beside = Path(sys.executable).parent
    torchrun = shutil.which("torchrun", path=f"{beside}{os.pathsep}{os.environ.get('PATH', '')}")
    number = int(stem[:2])
    environment = {}
    if number <= 2:
        words = [sys.executable, script]
    elif number == 3:
        words = [sys.executable, script, "--world-size", processes]
    elif number != 6 or processes % 2:  # two agents have two, four, six processes
        words = [torchrun, "--standalone", "--nproc-per-node", processes]
        if number in (5, 8):
            words += ["--max-restarts", 3]
            environment["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
        words += [script]
    else:
        words = ["bash", ROOT / "lessons/launch/two_terminals.sh"]
        environment["PATH"] = f"{beside}{os.pathsep}{os.environ.get('PATH', '')}"
        environment["PROCESSES"] = str(processes // 2)
    return [str(word) for word in [*words, *arguments]], environment


def as_typed(words, environment):
    """The command as a reader would type it in the repository's root."""
    shown = {name: value for name, value in environment.items() if name != "PATH"}
    short = []
    for word in words:
        path = Path(word)
        if path.suffix in (".py", ".sh"):
            word = str(path.relative_to(ROOT))
        elif path.parent == Path(sys.executable).parent:
            word = "python" if path.name.startswith("python") else path.name
        short.append(word)
    return " ".join([f"{name}={value}" for name, value in shown.items()] + short)


def read_curve(out, stem):
    return [json.loads(line) for line in (Path(out) / f"{stem}.jsonl").read_text().splitlines()]


def difference(curve, reference, limits=LIMITS):
    """What is different about this curve, in words; an empty string if it is the same."""
    early, late, accuracy = limits
    if [row["epoch"] for row in curve] != [row["epoch"] for row in reference]:
        return f"epochs {[row['epoch'] for row in curve]}, not {[row['epoch'] for row in reference]}"
    for row, expected in zip(curve, reference, strict=True):
        limit = early if row["epoch"] <= EARLY_EPOCHS else late
        off = abs(row["loss"] - expected["loss"]) / expected["loss"]
        if not off <= limit:
            return f"the loss of epoch {row['epoch']} is off by {off:.1e}, more than {limit:.0e}"
    off = abs(curve[-1]["accuracy"] - reference[-1]["accuracy"])
    if not off <= accuracy + 1e-12:
        return f"the accuracy is off by {off:.2%}, more than {accuracy:.1%}"
    return ""
