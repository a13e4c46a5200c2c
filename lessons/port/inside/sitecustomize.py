"""Python imports this file at the start of every process of a run that check.py has started.

It loads record_process.py when the script has imported torch, and not before, because the script may first
set environment variables. A sitecustomize that the reader has is imported, too.
"""

import importlib.machinery
import importlib.util
import os
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent


def load(name, path):
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


class AfterTorch:
    """Finds torch as Python would have found it, and begins to watch when it has been imported."""

    def find_spec(self, name, path, target=None):
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec("torch")
        execute = spec.loader.exec_module

        def execute_and_watch(module):
            execute(module)
            load("port_record_process", HERE.parent / "record_process.py").begin()

        spec.loader.exec_module = execute_and_watch
        return spec


if "RANK" in os.environ or "PORT_ALONE" in os.environ:  # and not in the launcher
    sys.meta_path.insert(0, AfterTorch())

other_paths = [path for path in sys.path if Path(path).resolve() != HERE]
if spec := importlib.machinery.PathFinder.find_spec("sitecustomize", other_paths):
    load("sitecustomize", spec.origin)
