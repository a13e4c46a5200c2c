"""Tables and pages of a class: corrections by hand, and the item analysis. Nothing is run here: records stand
for what the grader has found."""

import csv
import json
import os
import re
import subprocess
import sys

import corrections
import grade
import pytest
from grader.exercises import exercise
from grader.results import Result
from grader.settings import STARTERS

import pages
from tests.helpers.lines import column
from tools.lessons import ROOT

THIRD = "03_average_gradients.py"
BOTH = ("03", "04a")
COLUMNS = "student,check,points,comment"


def everything(entry):
    return entry["points"]


def nothing(entry):
    return 0


def passing(*names):
    return lambda entry: entry["points"] if entry["id"] in names else 0


def a_record(student, score_of=nothing, about="", of=("03",), untouched=()):
    """What the grader has found of these exercises for one student, without any run. `about` is what it says
    of a file that it could not read."""
    exercises = {}
    for identity in of:
        found = []
        points = {}
        for entry in exercise(identity)["check"]:
            points[entry["id"]] = score_of(entry)
        for entry in exercise(identity)["check"]:
            result = Result(entry["id"], entry["title"], entry["points"], hints=entry["hints"])
            result.status = "failed"
            result.came = "a wrong number"
            result.score = points[entry["id"]]
            lacking = [need for need in entry.get("needs", []) if not points[need]]
            if result.score:
                result.status = "passed"
                result.came = ""
            elif about:
                result.about_file = not found
                result.status = "not reached" if found else "failed"
                result.came = about
            elif lacking:
                result.status = "not reached"
                result.came = f"{lacking[0]} must pass first"
            found.append(result.as_dict())
        exercises[identity] = found
    facts = {"student": student, "seed": "s", "containment": "level 3", "seconds": 1, "infrastructure": False}
    facts |= {"trouble": "", "absent": {}, "untouched": untouched, "seeds": {}}
    return facts | {"exercises": exercises}


def by_hand(folder, students, *lines):
    (folder / "corrections.csv").write_text("\n".join(lines) + "\n")
    return corrections.read(folder / "corrections.csv", students)


def written(records, rows, out):
    for record in records:
        (out / record["student"]).mkdir(parents=True, exist_ok=True)
    pages.write_class(records, out, "s", rows)


def table(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def seen(out, student):
    """What a student sees: report.html, and the tests of results.json."""
    tests = json.loads((out / student / "results.json").read_text())["tests"]
    return (out / student / "report.html").read_text(), tests


def test_a_script_that_is_as_students_got_it_was_not_tried():
    """An editor's line ends are no answer. How far a line is indented can be the whole repair."""
    hunt, first, third = exercise("04a"), "04a_bug_hunt/bug_01.py", "04a_bug_hunt/bug_03.py"
    starters = {}
    for name in hunt["files"]:
        starters[name] = (STARTERS / name).read_bytes()
    every = column(hunt["check"], "id")
    other_ends = starters | {first: starters[first].replace(b"\n", b"\r\n")}
    assert grade.untouched_of(hunt, other_ends) == every
    indented = starters[third].replace(b"        accuracy = measure(", b"    accuracy = measure(")
    others = []
    for entry in hunt["check"]:
        if third not in entry["files"]:
            others.append(entry["id"])
    assert grade.untouched_of(hunt, starters | {third: indented}) == others != every


def test_the_item_analysis_knows_who_tried_a_check(tmp_path):
    """03.1a is passed by three of six, 03.2a by all. Three more have handed in a starter, a file without that
    function, and a syntax error."""

    def scores(place):
        own = {"03.1a": 2 if place > 2 else 0, "03.2a": 3}
        return lambda entry: own.get(entry["id"], 0)

    records = []
    for place in range(6):
        records.append(a_record(str(place), scores(place)))
    records.append(a_record("starter", untouched=column(exercise("03")["check"], "id")))
    records.append(a_record("part", passing("03.2a")))
    records[-1]["exercises"]["03"][0]["came"] = "not written yet: 03.1: start alike"
    records.append(a_record("typo", about="it has a syntax error in line 3"))
    written(records, [], tmp_path)
    rows = re.findall(r"<tr>(<td>03\..*?)</tr>", (tmp_path / "items.html").read_text())
    found = {}
    for row in rows:
        cells = re.findall(r"<td.*?>(.*?)</td>", row)
        found[cells[0]] = cells
    # Passed, failed, not reached, not tried. Of a file with a syntax error, the first check has failed.
    assert found["03.1a"][2:6] == ["3", "4", "0", "2"] and found["03.2a"][2:6] == ["7", "0", "1", "1"]
    assert found["03.1a"][-1] == "3 times, for example: a wrong number"


REFUSED = {
    ("student,check", "ada,03"): "has no column points and no column comment",
    (COLUMNS, "ada,03.1a,two,"): "'two' of ada is no number of points",
    (COLUMNS, "ada,03.1a,-1,"): "'-1' of ada is no number of points",
    (COLUMNS, "ada,03.9z,,oh"): "ada has no check 03.9z",
    (COLUMNS, "ada,,3,"): "3 points of ada need a check or an exercise",
    (COLUMNS, "adda,03,1,"): "there is no submission of 'adda'",
}


@pytest.mark.parametrize("lines", REFUSED)
def test_a_correction_that_would_decide_nothing_is_refused_in_one_line(lines, tmp_path):
    with pytest.raises(SystemExit) as refused:
        by_hand(tmp_path, ["ada", "ben"], *lines)
    words = str(refused.value)
    assert REFUSED[lines] in words and words.startswith("error: ") and "\n" not in words


def test_corrections_beside_the_submissions_are_found(tmp_path):
    """They are refused here, so that nothing has to be graded. With a named file, they are not read."""
    (tmp_path / "submissions" / "ada").mkdir(parents=True)
    (tmp_path / "corrections.csv").write_text(f"{COLUMNS}\nadda,03,1,\n")
    (tmp_path / "other.csv").write_text(f"{COLUMNS}\nben,03,1,\n")
    words = [sys.executable, "tests/exercises/grade.py", str(tmp_path / "submissions"), "--force"]
    for more, name in (([], "'adda'"), (["--corrections", str(tmp_path / "other.csv")], "'ben'")):
        run = subprocess.run([*words, *more], cwd=ROOT, capture_output=True, text=True)
        assert run.returncode == 1 and f"there is no submission of {name}" in run.stderr
        assert run.stderr.count("\n") == 1


def test_a_correction_by_hand_is_in_every_list_and_survives_a_regrade(tmp_path):
    """It is in a file of its own. grade.json, which a regrade writes, has only what the grader has found.
    Ben's file was missing."""
    lines = [COLUMNS, "ada,03.2a,2.5,forgot <b>one</b> line", "ada,,,well explained", "ada,04a,7,"]
    lines += ["ben,03.1a,2,=sent by mail", "ben,03,,see me"]
    rows = by_hand(tmp_path, ["ada", "ben"], *lines)
    for _ in ("graded", "graded again"):
        records = [a_record("ada", of=BOTH), a_record("ben", about=f"there is no file {THIRD}", of=BOTH)]
        written(records, rows, tmp_path)
        assert records[0] == a_record("ada", of=BOTH)
        ada, ben = table(tmp_path / "grades.csv")
        assert (ada["03"], ada["04a"], ada["total"], ada["maximum"]) == ("2.5", "7", "9.5", "42")
        assert (ben["03"], ben["corrected"]) == ("2", "03.1a")
        assert ben["comments"] == "03.1a: =sent by mail; 03: see me"
        nbgrader = table(tmp_path / "nbgrader.csv")
        assert column(nbgrader, "score") == ["2.5", "7", "2", "0"]
        assert nbgrader[0]["max_score"] == "12"
        report, results = seen(tmp_path, "ada")
        # The number that a student reads is the number that counts.
        assert "ada: 9.5 of 42 points" in report
        assert "2.5 (was 0) of 3" in report and "<b>Comment:</b> forgot &lt;b&gt;one" in report
        assert "<b>Comment:</b> well explained" in report
        (test,) = [test for test in results if test["number"] == "03.2a"]
        assert test["score"] == 2.5 and "corrected by hand: 0 points before" in test["output"]
        assert "comment: forgot <b>one</b> line" in test["output"]
        report, results = seen(tmp_path, "ben")
        assert "2 of 12" in report and "=sent by mail" in report and results[0]["status"] == "passed"
        assert "comment on 03: see me" in (tmp_path / "ben" / "results.json").read_text()


def test_a_machine_that_fails_leaves_no_result_of_before(tmp_path):
    """Gradescope would show it as today's; and a page with 10 of 12 points would give a zero for the rest."""
    record = a_record("ada", everything)
    written([record], [], tmp_path)
    assert "ada: 12 of 12 points" in (tmp_path / "ada/report.html").read_text()
    record["exercises"]["03"][0] |= {"status": "infrastructure", "score": 0}
    pages.write_student(record, tmp_path / "ada", broken=True)
    assert set(os.listdir(tmp_path / "ada")) == {"report.html"}
    report = (tmp_path / "ada/report.html").read_text()
    assert "ada: not graded, because this machine failed" in report and "of 12" not in report
