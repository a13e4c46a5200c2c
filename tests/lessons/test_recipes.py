"""The recipes: what the page quotes is what the scripts print, and the cures have one process's numbers."""

import re

import pytest

from lessons import ROOT

PAGE = (ROOT / "lessons/pages/recipes.md").read_text()


@pytest.fixture
def recipe(forked):
    """Run a recipe by torchrun; answers with the lines that it printed."""

    def recipe(name, processes, *arguments, folder="run"):
        words = ["torchrun", "--standalone", "--nproc-per-node", processes]
        words += [ROOT / f"lessons/recipes/{name}.py", *arguments]
        result = forked(words, folder=folder)
        assert result.code == 0, f"status {result.code}\n{result.stdout}\n{result.stderr}"
        return result.stdout.splitlines()

    return recipe


def quoted(name):
    """The blocks of output that follow a recipe's command on the page."""
    after = PAGE[PAGE.index(f"lessons/recipes/{name}.py\n```") :]
    return re.search(r"```text\n(.*?)```", after, re.S)[1].splitlines()


@pytest.mark.quick("2")
@pytest.mark.night
@pytest.mark.parametrize("processes", [2, 3, 4])
def test_each_model_fails_as_the_page_says_and_its_cure_has_one_processs_gradients(recipe, processes):
    lines = recipe("your_model", processes)
    if processes == 2:
        assert lines == quoted("your_model")
    results = [line.partition(" | ")[2] for line in lines]
    mistakes, cures = results[0::2], results[1::2]
    mistakes[1], cures[1] = cures[1], mistakes[1]  # in torch 2.13, two forward passes are no mistake
    assert cures == ["same"] * 6
    assert not any(result == "same" for result in mistakes)
