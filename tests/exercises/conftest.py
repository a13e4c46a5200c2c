"""`pytest tests/exercises --only 03` grades the exercises in lessons/exercises: see grader/plugin.py."""

from grader.plugin import (  # noqa: F401 (pytest looks for them here)
    pytest_addoption,
    pytest_collection_modifyitems,
    pytest_configure,
    pytest_ignore_collect,
    pytest_pyfunc_call,
    pytest_runtest_makereport,
    pytest_terminal_summary,
    pytest_unconfigure,
)
