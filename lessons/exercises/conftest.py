"""The checks of the exercises are not in this folder. `pytest lessons/exercises` fails with a message that
says where they are."""

from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent


def pytest_configure(config):
    for word in config.args:
        path = (config.invocation_params.dir / word.partition("::")[0]).resolve()
        if path.is_relative_to(HERE):
            name = path.stem if path != HERE else "03"
            raise pytest.UsageError(
                f"the checks of these exercises are in tests/exercises: run `make check EX={name}`, or "
                f"`pytest tests/exercises --only {name}`, in {HERE.parent.parent}"
            )
