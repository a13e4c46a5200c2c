"""Probes: the programs in tests/probes, run as processes of one job, and what they all need.

A probe that looks at a run of a lesson changes or wraps something first, and then becomes the lesson.
"""

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

ROOT = Path(__file__).resolve().parents[2]
PROBES = ROOT / "tests" / "probes"


def run_probe(forks, folder, name, command, *arguments, limit=240):
    """Start a probe by the command that starts a lesson (launcher.command): in the lesson's stead."""
    words, environment = command
    script = next(word for word in words if Path(word).parent == ROOT / "lessons")
    position = words.index(script)
    words = [*words[:position], PROBES / f"{name}.py", *arguments, *words[position + 1 :]]
    code, left = forks.run([str(word) for word in words], folder, environment, limit)
    stdout, stderr = ((folder / name).read_text() for name in (".out", ".err"))
    assert not left, f"still alive after the run: {left}"
    return SimpleNamespace(code=code, stdout=stdout, stderr=stderr, out=folder / "out")


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
