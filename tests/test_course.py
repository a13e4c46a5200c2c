"""What an instructor decides: course.toml and its tables, and the lists for Canvas and Moodle. Nothing is run
here: records stand for what the judge has found. The first tests of these are in test_judge.py."""

import sys

from lessons import ROOT

sys.path.insert(0, str(ROOT / "tests" / "exercises"))
import grade
import judge


def test_a_line_that_is_only_indented_in_another_way_is_an_answer():
    """In bug_03 of 04a, that can be the whole repair."""
    hunt, name = judge.exercise("04a"), "04a_bug_hunt/bug_03.py"
    files = {one: (judge.STARTERS / one).read_bytes() for one in hunt["files"]}
    checks = {entry["id"] for entry in hunt["check"] if name in entry["files"]}
    assert checks <= set(grade.untouched_of(hunt, files))
    indented = b"        accuracy = measure("
    assert files[name].count(indented) == 1
    files[name] = files[name].replace(indented, indented[4:])
    assert not checks & set(grade.untouched_of(hunt, files))
