"""The tests. Start them from the root of the repository, with pytest."""

import pytest

# Else a failed assertion in a helper says nothing but "AssertionError".
pytest.register_assert_rewrite("tests.helpers")
