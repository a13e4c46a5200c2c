"""Probes: the programs in tests/probes, run as processes of one job, and what they all need.

A probe that looks at a run of a lesson changes or wraps something first, and then becomes the lesson.
"""

import sys
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parents[2]
PROBES = ROOT / "tests" / "probes"


def run_probe(forks, folder, name, command, *arguments, limit=240):
    """Start a probe by the command that starts a lesson (launcher.command): in the lesson's stead."""
    words, environment = command
    position = next(number for number, word in enumerate(words) if Path(word).parent == ROOT / "lessons")
    words = [*words[:position], PROBES / f"{name}.py", *arguments, *words[position + 1 :]]
    return forks.finish(words, folder, environment, limit)


def become(stem):
    """In a probe, last: run the lesson in this process, as if it had been started in the probe's stead."""
    path = ROOT / "lessons" / f"{stem}.py"
    main = ModuleType("__main__")  # a new one: the lesson's names may be the probe's too
    main.__file__ = str(path)
    sys.modules["__main__"] = main
    exec(compile(path.read_text(), path, "exec"), vars(main))


def limerick_arguments(test_size, train_size=704):
    """Lesson 13's arguments, without a command line."""
    import workload
    from parts import limericks

    parser = workload.parser("13_gpt.py", "")
    limericks.options(parser)
    return parser.parse_args(["--test-size", str(test_size), "--train-size", str(train_size)])


def total(rows, *names):
    """How often a probe of one_step.py sends, and how many bytes: for each value of these fields."""
    found = {}
    for row in rows:
        place = tuple(row[name] for name in names)
        if len(names) == 1:
            (place,) = place
        counts = found.setdefault(place, [0, 0])
        counts[0] += row["times"]
        counts[1] += row["times"] * row["bytes"]
    return found
