"""What an instructor decides: course.toml and its tables, and the lists for Canvas and Moodle. Nothing is run
here: records stand for what the grader has found."""

import csv
import json
import re
import subprocess
import sys

import course
import grade
import pytest
from grader.exercises import exercise
from grader.results import Result
from grader.settings import HERE, STARTERS

import pages
from tools.lessons import ROOT

THIRD, BOTH = "03_average_gradients.py", ("03", "04a")


def everything(entry):
    return entry["points"]


def nothing(entry):
    return 0


def passing(*names):
    return lambda entry: entry["points"] * (entry["id"] in names)


def a_record(student, score_of=nothing, about="", of=("03",), untouched=()):
    """What the grader has found of these exercises for one student, without any run. `about` is what it says
    of a file that it could not read."""
    exercises = {}
    for identity in of:
        found, points = [], {one["id"]: score_of(one) for one in exercise(identity)["check"]}
        for entry in exercise(identity)["check"]:
            result = Result(entry["id"], entry["title"], entry["points"], hints=entry["hints"])
            result.status, result.came, result.score = "failed", "a wrong number", points[entry["id"]]
            lacking = [need for need in entry.get("needs", []) if not points[need]]
            if result.score:
                result.status, result.came = "passed", ""
            elif about:
                result.about_file = not found
                result.status, result.came = "not reached" if found else "failed", about
            elif lacking:
                result.status, result.came = "not reached", f"{lacking[0]} must pass first"
            found.append(result.as_dict())
        exercises[identity] = found
    facts = {"student": student, "seed": "s", "containment": "level 3", "seconds": 1, "infrastructure": False}
    return facts | {"trouble": "", "absent": [], "untouched": untouched, "exercises": exercises}


def a_course(folder, text="", **tables):
    folder.mkdir(exist_ok=True)
    for name, lines in tables.items():
        (folder / f"{name}.csv").write_text("\n".join(lines) + "\n")
        text = f'{name} = "{name}.csv"\n{text}'
    (folder / "course.toml").write_text(text)
    return course.Course(folder / "course.toml")


def written(records, of, out):
    for record in records:
        (out / record["student"]).mkdir(parents=True, exist_ok=True)
    return pages.write_class(records, out, "s", of)


def table(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def lines_of(path):
    return list(csv.reader(path.read_text().splitlines()))


def seen(out, student):
    """What a student can see now: of report.html all, of results.json what Gradescope shows."""
    tests = json.loads((out / student / "results.json").read_text())["tests"]
    return (out / student / "report.html").read_text(), [t for t in tests if t["visibility"] == "visible"]


# ---- the item analysis ------------------------------------------------------------------------


def test_a_script_that_is_as_students_got_it_was_not_tried():
    """An editor's line ends are no answer. How far a line is indented can be the whole repair."""
    hunt, first, third = exercise("04a"), "04a_bug_hunt/bug_01.py", "04a_bug_hunt/bug_03.py"
    starters = {name: (STARTERS / name).read_bytes() for name in hunt["files"]}
    every = [entry["id"] for entry in hunt["check"]]
    other_ends = starters | {first: starters[first].replace(b"\n", b"\r\n")}
    assert grade.untouched_of(hunt, other_ends) == every
    indented = starters[third].replace(b"        accuracy = measure(", b"    accuracy = measure(")
    tried = {entry["id"] for entry in hunt["check"] if third in entry["files"]}
    untouched = grade.untouched_of(hunt, starters | {third: indented})
    assert untouched == [check for check in every if check not in tried] != every


def test_the_item_analysis_knows_who_tried_a_check_and_which_check_tells_good_students_from_others(tmp_path):
    """03.1a is passed by the better three of six, 03.1b by the worse, 03.2a by all. Three more have handed
    in a starter, a file without that function, and a syntax error."""

    def scores(place):
        own = {"03.1a": 2 * (place > 2), "03.1b": place < 3, "03.2a": 3}
        return lambda entry: own.get(entry["id"], entry["points"] * place / 6)

    records = [a_record(str(place), scores(place), of=BOTH) for place in range(6)]
    records.append(a_record("starter", untouched=[entry["id"] for entry in exercise("03")["check"]]))
    records.append(a_record("part", passing("03.2a")))
    records[-1]["exercises"]["03"][0]["came"] = "not written yet: 03.1: start alike"
    records.append(a_record("typo", about="it has a syntax error in line 3"))
    written(records, course.Course(), tmp_path)
    rows = re.findall(r"<tr>(<td>03\..*?)</tr>", (tmp_path / "items.html").read_text())
    found = {cells[0]: cells for cells in (re.findall(r"<td.*?>(.*?)</td>", row) for row in rows)}
    # Passed, failed, not reached, not tried. Of a file with a syntax error, the first check has failed.
    assert found["03.1a"][2:6] == ["3", "4", "0", "2"] and found["03.2a"][2:6] == ["7", "0", "1", "1"]
    assert "3 times, for example: a wrong number" in found["03.1a"][-1]
    telling = [pages.discrimination(records[:6], exercise("03"), f"03.{name}") for name in ("1a", "1b", "2a")]
    assert float(telling[0]) > 0.8 and float(telling[1]) < -0.8 and telling[2] == ""
    # Of too few, nothing is said; and a check's own points are not among those that it is compared with.
    alone = [a_record(str(place), lambda e, p=place: p * (e["id"] == "03.2a")) for place in range(6)]
    for some, name in ((records[:4], "03.1a"), (alone, "03.2a")):
        assert pages.discrimination(some, exercise("03"), name) == ""


# ---- what is refused --------------------------------------------------------------------------

ZONE = "with a time zone, such as 2027-03-01T23:59:00+01:00"
SLIPS = {
    "late_dayz = 3": "late_dayz",
    "[exercises.03]\ndu = 1": "has du, which means nothing",
    "[exercises.77]\nweight = 1": "there is no exercise 77",
    'roster = "nowhere.csv"': "roster cannot be read",
    'late_days = "3"': "late_days is '3', but must be a whole number",
    "penalty_per_day = 20": "between 0 and 1",
    'hidden = ["03.9z"]': "there is no check 03.9z",
    "[exercises.03]\ndue = 2027-03-01T12:00:00": ZONE,
}
CORRECTIONS, SUBMITTED = "student,check,points,comment", "student,exercise,time"
ROWS = {
    ("corrections", "student,check", "ada,03"): "has no column points and no column comment",
    ("corrections", CORRECTIONS, "ada,03.1a,two,"): "'two' of ada is no number",
    ("corrections", CORRECTIONS, "ada,03.9z,,oh"): "ada has no check 03.9z",
    ("corrections", CORRECTIONS, "adda,03,1,"): "there is no submission of 'adda'",
    ("submitted", SUBMITTED, "ada,03,soon"): f"'soon' of ada is no time {ZONE}",
    ("submitted", SUBMITTED, "ada,03,2027-03-01T12:00"): "the time of ada with a time zone",
    ("roster", "Student;ID", "Ada;17"): "roster: separate columns by commas, and name one",
}


@pytest.mark.parametrize("slip", [*SLIPS, *ROWS])
def test_what_would_decide_nothing_is_refused_in_one_line_before_anything_is_graded(slip, tmp_path):
    with pytest.raises(SystemExit) as refused:
        if slip in SLIPS:
            a_course(tmp_path, slip)
        else:
            file, *lines = slip
            a_course(tmp_path, **{file: lines}).refuse_strangers(["ada", "ben"])
    words = str(refused.value)
    assert (SLIPS | ROWS)[slip] in words and words.startswith("error: ") and "\n" not in words


# ---- what counts ------------------------------------------------------------------------------


def test_a_course_beside_the_submissions_is_found(tmp_path):
    """It is refused here, so that nothing has to be graded; with a file that is named, it is not read."""
    (tmp_path / "submissions" / "ada").mkdir(parents=True)
    (tmp_path / "course.toml").write_text("late_dayz = 3")
    (tmp_path / "other.toml").write_text("late_dayss = 3")
    words = [sys.executable, "tests/exercises/grade.py", str(tmp_path / "submissions"), "--force"]
    for more, name in ((), "course.toml has late_dayz,"), (["--course", "other.toml"], "late_dayss"):
        more = [str(tmp_path / word) if word.endswith(".toml") else word for word in more]
        run = subprocess.run([*words, *more], cwd=ROOT, capture_output=True, text=True)
        assert run.returncode == 1 and name in run.stderr and run.stderr.count("\n") == 1


def test_late_days_are_free_until_they_are_used_up_and_weights_count(tmp_path):
    """One free day, which goes to the earliest deadline wherever its clock is: to 04a. A line for an exercise
    goes before one for all."""
    text = """late_days = 1
penalty_per_day = 0.5
[exercises.04a]
due = 2027-03-02T06:00:00+14:00
weight = 10
[exercises.03]
due = 2027-03-01T23:00:00Z
"""
    times = [SUBMITTED, "ada,4a,2027-03-02T12:00:00+14:00", "ada,03,2027-03-02T12:00:00Z"]
    times += ["ada,,2029-01-01T00:00:00Z", "ben,,2027-03-01T12:00:00+01:00", "eve,04a,2028-01-01T00:00:00Z"]
    records = [a_record(name, everything, of=BOTH) for name in ("ada", "ben", "eve")]
    written(records, a_course(tmp_path / "c", text, submitted=times), tmp_path)
    rows = {row["student"]: row for row in table(tmp_path / "grades.csv")}
    assert [rows["ada"][name] for name in ("03", "04a", "total", "maximum")] == ["6", "10", "16", "22"]
    assert rows["ada"]["days late"] == "03:1 04a:1"
    assert (rows["ben"]["total"], rows["ben"]["days late"]) == ("22", "")
    assert rows["eve"]["04a"] == "0"  # never less
    nbgrader = [row for row in table(tmp_path / "nbgrader.csv") if row["student_id"] == "ada"]
    assert [(row["score"], row["max_score"]) for row in nbgrader] == [("6", "12"), ("10", "10")]


def test_a_correction_by_hand_is_in_every_list_and_survives_a_regrade(tmp_path):
    """It is in a file of its own. grade.json, which a regrade writes, has only what the grader has found.
    Ben's file was missing."""
    rows = [CORRECTIONS, "ada,03.2a,2.5,forgot <b>one</b> line", "ada,,,well explained", "ada,04a,7,"]
    of = a_course(tmp_path / "c", corrections=[*rows, "ben,03.1a,2,=sent by mail", "ben,03,,see me"])
    for _ in ("graded", "graded again"):
        records = [a_record("ada", of=BOTH), a_record("ben", about=f"there is no file {THIRD}", of=BOTH)]
        written(records, of, tmp_path)
        assert records[0] == a_record("ada", of=BOTH)
        ada, ben = table(tmp_path / "grades.csv")
        assert [ada[name] for name in ("03", "04a", "total")] == ["2.5", "7", "9.5"]
        assert (ben["03"], ben["corrected"]) == ("2", "03.1a")
        assert ben["comments"] == "03.1a: =sent by mail; 03: see me"
        assert [row["score"] for row in table(tmp_path / "nbgrader.csv")] == ["2.5", "7", "2", "0"]
        report, results = seen(tmp_path, "ada")
        assert "2.5 (was 0) of 3" in report and "<b>Comment:</b> forgot &lt;b&gt;one" in report
        assert "<b>Comment:</b> well explained" in report
        (test,) = (test for test in results if test["number"] == "03.2a")
        assert test["score"] == 2.5 and "corrected by hand: 0 points before" in test["output"]
        assert "comment: forgot <b>one</b> line" in test["output"]
        report, results = seen(tmp_path, "ben")
        assert "2 of 12" in report and "=sent by mail" in report and results[0]["status"] == "passed"
        assert "comment on 03: see me" in (tmp_path / "ben" / "results.json").read_text()


def test_a_machine_that_fails_leaves_no_result_of_before(tmp_path):
    """Gradescope would show it as today's."""
    record = a_record("ada")
    written([record], course.Course(), tmp_path)
    pages.write_student(record, tmp_path / "ada", broken=True)
    assert {path.name for path in (tmp_path / "ada").iterdir()} == {"report.html"}


# ---- Canvas and Moodle ------------------------------------------------------------------------

# The gradebook as Canvas exports it, with its line of points.
CANVAS = ["Student,ID,SIS User ID,SIS Login ID,Section,Old", "    Points Possible,,,,,10"]
CANVAS += [
    '"Lovelace, Ada",17,s17,ada,A,9',
    '"Turing, Alan",18,s18,alan,A,8',
    '"Noether, Emmy",19,s19,emmy,B,7',
]


def test_canvas_finds_its_students_by_a_roster(tmp_path):
    records = [a_record("ada", everything, of=BOTH), a_record("mallory", of=BOTH)]
    said = written(records, a_course(tmp_path / "c", roster=CANVAS), tmp_path)
    head, *lines = lines_of(tmp_path / "canvas.csv")
    assert head[:6] == [*CANVAS[0].split(",")[:5], "03 DDP in its simplest form"]
    assert lines == [
        ["    Points Possible", "", "", "", "", "12", "30"],
        ["Lovelace, Ada", "17", "s17", "ada", "A", "12", "30"],
        ["Turing, Alan", "18", "s18", "alan", "A", "", ""],
        ["Noether, Emmy", "19", "s19", "emmy", "B", "", ""],
    ]
    assert said == [
        "not in the roster, or there more than once: mallory",
        "in the roster, but without a grade: 2 (Turing, Alan; Noether, Emmy)",
    ]


def test_two_submissions_of_one_student_get_no_points_by_chance(tmp_path):
    """One folder is named by a login, the other one by an id."""
    records = [a_record(name, passing("03.1a")) for name in ("ada", "s17")]
    records += [a_record("alan"), a_record("emmy")]
    assert written(records, a_course(tmp_path / "c", roster=CANVAS), tmp_path) != []
    assert [line[-1] for line in lines_of(tmp_path / "canvas.csv")[2:]] == ["", "0", "0"]
    assert {row["student"] for row in table(tmp_path / "grades.csv")} == {"ada", "s17", "alan", "emmy"}


def test_moodle_gets_the_columns_that_it_knows(tmp_path):
    roster = ["First name,ID number,Email address", "Mal,8,mallory", "Ada,7,ada@x.org"]
    written([a_record("ada@x.org", passing("03.2a"))], a_course(tmp_path / "c", roster=roster), tmp_path)
    head, *lines = lines_of(tmp_path / "moodle.csv")
    assert head == ["ID number", "Email address", "03 DDP in its simplest form"]
    assert lines == [["8", "mallory", ""], ["7", "ada@x.org", "3"]]
    assert not (tmp_path / "canvas.csv").exists()


# ---- hidden until the deadline ----------------------------------------------------------------


@pytest.mark.parametrize("due", ["2020-01-01T00:00:00Z", "2920-01-01T00:00:00Z"])
def test_what_is_hidden_until_the_deadline_is_hidden_everywhere(due, tmp_path):
    """On Gradescope and in the report: a check, the hints of all, and each sum that would tell."""
    text = 'hidden = ["03.2a"]\nhints = "after_due_date"\n'
    of = a_course(tmp_path / "c", f"{text}[exercises.03]\ndue = {due}\n")
    record = a_record("ada", lambda e: e["points"] * (e["id"] not in ("03.2b", "03.1a")), of=BOTH)
    written([record], of, tmp_path)
    report, visible = seen(tmp_path, "ada")
    tests = json.loads((tmp_path / "ada" / "results.json").read_text())["tests"]
    numbers, hint = [test["number"] for test in visible], exercise("03")["check"][0]["hints"][0]
    if due.startswith("2020"):
        assert numbers.count("03.2a") == 1 and len(visible) == len(tests)
        assert "Hidden for now" not in report and pages.html.escape(hint) in report
        assert f"hint:     {hint}" in next(t["output"] for t in tests if t["number"] == "03.1a")
        return
    assert "03.2a" not in numbers and "hint" not in "".join(test["output"] + test["name"] for test in visible)
    hints = [test for test in tests if test["name"].startswith("hint for ")]
    assert [test["output"] for test in hints if test["number"] == "03.1a"] == [hint]
    assert {test["visibility"] for test in hints} == {"after_due_date"}
    # With it, those that need it: one that is not reached would tell that it has failed.
    hidden = [entry["id"] for entry in exercise("03")["check"] if entry["id"].startswith("03.2")]
    assert f"Hidden for now, and in no sum on this page: {', '.join(hidden)}." in report
    assert "? of 3" in report and not set(hidden) & set(numbers) and pages.html.escape(hint) not in report
    assert f"03 DDP in its simplest form: {12 - 8 - 2} of 12" in report  # 8 are hidden, 2 failed


def test_no_other_check_tells_the_result_of_a_hidden_one(tmp_path):
    """Whoever fails 03.2a and whoever passes it see the same of all checks that are not hidden."""
    of = a_course(tmp_path / "c", 'hidden = ["03.2a"]\nhints = "after_due_date"')
    every = [entry["id"] for entry in exercise("03")["check"]]
    records = [a_record("ada", passing("03.1a", "03.1b"))]
    records += [a_record("ben", passing(*set(every) - {"03.1c"}))]
    written(records, of, tmp_path)
    (ada, tests_of_ada), (ben, tests_of_ben) = (seen(tmp_path, name) for name in ("ada", "ben"))
    assert tests_of_ada == tests_of_ben and {t["number"] for t in tests_of_ada} == set(every[:3])
    assert ada.replace("ada", "") == ben.replace("ben", "")


def test_what_is_said_about_a_hidden_check_and_what_is_not(tmp_path):
    """An instructor's comment is hidden too. A syntax error is said at a check that is not hidden."""
    came = "03_average_gradients.py has a syntax error in line 3"
    rows = [CORRECTIONS, "ada,03.1b,1,you are right"]
    of = a_course(tmp_path / "c", 'hidden = ["03.1a"]', corrections=rows)
    written([a_record("ada", about=came)], of, tmp_path)
    report, tests = seen(tmp_path, "ada")
    assert "you are right" not in report + json.dumps(tests) and "was 0" not in report
    assert table(tmp_path / "grades.csv")[0]["comments"] == "03.1b: you are right"
    assert [t["number"] for t in tests] == ["03.2a", "03.2b", "03.2c", "03.2d", "03.2e"]
    assert all(came in t["output"] for t in tests)


# ---- the recipe -------------------------------------------------------------------------------


def test_the_recipe_can_be_read_with_the_tables_that_it_names(tmp_path):
    text = (HERE / "recipes" / "course.toml").read_text()
    with pytest.raises(SystemExit, match="error: roster cannot be read"):
        a_course(tmp_path, text)
    for name, lines in {
        "roster": CANVAS,
        "corrections": [CORRECTIONS, "ada,08,20,"],
        "submitted": [SUBMITTED, "ada,08,2027-03-20T00:00:00+01:00"],
    }.items():
        (tmp_path / f"{name}.csv").write_text("\n".join(lines))
    of = a_course(tmp_path, text)
    of.refuse_strangers(["ada"])
    assert {"03.2c", "08.1a"} <= of.hidden and set(of.facts) == set(course.KNOWN)
    assert {word for one in of.exercises.values() for word in one} | {"hidden"} == set(course.KNOWN_OF_ONE)
