"""Load a Python file by its path. The folder of an exercise begins with a digit: no import can name it."""

import importlib.util
import sys
from pathlib import Path

EXERCISES = Path(__file__).resolve().parent.parent


def load(path, name):
    """The module of this file, which is run once. `name` is what it is called in sys.modules."""
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, path)
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        try:
            spec.loader.exec_module(module)
        except BaseException:
            del sys.modules[name]  # or the next one would get half a module
            raise
    return sys.modules[name]


def drivers():
    """The driver of each exercise: all that workers see of the folders of exercises."""
    return sorted(EXERCISES.glob("*/drive.py"))


def driver(stem):
    return load(EXERCISES / stem / "drive.py", f"drive_{stem}")
