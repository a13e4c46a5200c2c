"""The workflows are what GitHub takes, and start what there is."""

import json
import re
from importlib.util import find_spec
from pathlib import Path

import jsonschema
import pytest
import yaml

import workload
from tools import lessons
from tools.lessons import ROOT

WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))
RECIPES = sorted((ROOT / "tests/exercises/recipes").glob("*.yml"))
FORMS = sorted((ROOT / ".github/ISSUE_TEMPLATE").glob("*.yml"))


def read(name):
    return yaml.load((ROOT / ".github/workflows" / name).read_text(), yaml.BaseLoader)


def commands(name):
    found = []
    for job in read(name)["jobs"].values():
        for step in job["steps"]:
            if "run" in step:
                found.append(step["run"])
    return found


@pytest.mark.skipif(
    find_spec("check_jsonschema") is None,
    reason="needs lessons/launch/requirements.txt: make tools installs it",
)
@pytest.mark.parametrize(("kind", "paths"), [("workflows", [*WORKFLOWS, *RECIPES]), ("issue-forms", FORMS)])
def test_github_takes_them(kind, paths):
    schemas = Path(find_spec("check_jsonschema").submodule_search_locations[0]) / "builtin_schemas/vendor"
    schema = jsonschema.Draft7Validator(json.loads((schemas / f"github-{kind}.json").read_text()))
    for path in paths:
        found = yaml.safe_load(path.read_text())
        if True in found:
            found["on"] = found.pop(True)  # to YAML, `on` is a truth value
        schema.validate(found)
        for page in re.findall(r"lessons/[\w/.]+md", path.read_text()):
            assert (ROOT / page).exists(), page


def test_they_start_what_there_is_and_install_what_is_tested():
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M)
    requirements = (ROOT / "requirements.txt").read_text().split()
    started = ""
    for path in WORKFLOWS:
        started += "\n".join(commands(path.name)) + "\n"
    assert set(re.findall(r"\bmake (\S+)", started)) <= set(targets)
    for script in re.findall(r"(?m)^\./?\S+|^\.\w+/\S+", started):
        assert (ROOT / script).is_file(), script
    assert set(re.findall(r"\S+==\S+", started)) <= set(requirements)


def test_all_tests_run_every_night_and_by_hand():
    assert {"schedule", "workflow_dispatch"} <= set(read("night.yml")["on"])
    whole = [command for command in commands("night.yml") if command.startswith("make test-all")]
    assert whole


def test_lessons_are_run_with_the_oldest_torch_with_ours_and_with_the_newest():
    rows = read("tests.yml")["jobs"]["torch"]["strategy"]["matrix"]["include"]
    (ours,) = re.findall("^torch==.*", (ROOT / "requirements.txt").read_text(), re.M)
    oldest, middle, newest = rows
    assert oldest["torch"] == f"torch=={workload.options.OLDEST_TORCH}.0"
    assert middle["torch"] == ours
    assert newest["torch"] == "torch"
    numbers = {lesson.number for lesson in lessons.LESSONS}
    expected = numbers - {"10", "17"}  # these two refuse that torch
    assert set(oldest["lessons"].split(",")) == expected, "the lessons of the oldest torch, in tests.yml"
    assert middle["lessons"] == newest["lessons"] == "all"
