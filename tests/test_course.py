"""What an instructor decides: course.toml and its tables, and the lists for Canvas and Moodle. Nothing is run
here: records stand for what the grader has found."""

import csv
import json
import subprocess
import sys

import course
import grade
import pytest
from grader.exercises import exercise, points_of
from grader.results import Result
from grader.settings import HERE, SOLUTIONS, STARTERS

import pages
from tools.lessons import ROOT

THIRD, BOTH = "03_average_gradients.py", ("03", "04a")


def nothing(entry):
    return 0


def everything(entry):
    return entry["points"]


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
                result.status, result.came = (
                    ("not reached", f"see {identity}.1a") if found else ("failed", about)
                )
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


# ---- what was tried ---------------------------------------------------------------------------


def test_what_needs_a_check_whose_file_is_missing_was_not_tried_either():
    """As grade.py says it: 03.1b needs 03.1a, 03.2a needs nothing, 03.2e needs 03.2d, and that 03.2a."""
    kinds = []
    for words in (f"there is no file {THIRD}", "it has a syntax error in line 3"):
        record = a_record("ada", about=words)
        for entry, result in zip(exercise("03")["check"], record["exercises"]["03"], strict=True):
            if "needs" in entry:
                result["came"] = f"{' and '.join(entry['needs'])} must pass first"
        kinds.append([pages.kind(record, result) for result in record["exercises"]["03"]])
    assert kinds == [["not tried"] * 8, ["failed"] + ["not reached"] * 7]
    # A function that is not written: whoever has written the next one has tried it.
    record = a_record("part", passing("03.2a"))
    record["exercises"]["03"][0]["came"] = "not written yet: 03.1: start alike"
    kinds = [pages.kind(record, pages.of(record, name)) for name in ("03.1a", "03.1b")]
    assert kinds == ["not tried", "not reached"]


def test_the_item_analysis_knows_what_was_tried():
    """A script that is as students got it was not."""
    hunt, first, third = exercise("04a"), "04a_bug_hunt/bug_01.py", "04a_bug_hunt/bug_03.py"
    every = [entry["id"] for entry in hunt["check"]]
    starters = {name: (STARTERS / name).read_bytes() for name in hunt["files"]}
    # What a student hands in instead of a starter, and whether that counts: an editor's line ends are no
    # answer. How far a line is indented can be the whole repair.
    indented = starters[third].replace(b"        accuracy = measure(", b"    accuracy = measure(")
    for name, text, is_tried in (
        (first, starters[first], False),
        (first, starters[first].replace(b"\n", b"\r\n"), False),
        (first, starters[first] + b"x = 1\n", True),
        (third, indented, True),
    ):
        tried = {entry["id"] for entry in hunt["check"] if is_tried and name in entry["files"]}
        untouched = grade.untouched_of(hunt, starters | {name: text})
        assert untouched == [check for check in every if check not in tried]
    solution = (SOLUTIONS / THIRD).read_bytes()
    assert grade.untouched_of(exercise("03"), {THIRD: solution}) == []

    record = a_record("ada", untouched=every, of=BOTH)
    assert pages.kind(record, pages.of(record, "04a.1a")) == "not tried"
    assert pages.kind(record, pages.of(record, "03.1a")) == "failed"


def test_a_check_that_tells_good_students_from_others_says_so():
    """03.1a is passed by the better three of six, 03.1b by the worse, 03.2a by all."""
    third = exercise("03")

    def scores(place):
        own = {"03.1a": 2 * (place > 2), "03.1b": place < 3, "03.2a": 3}
        return lambda entry: own.get(entry["id"], entry["points"] * place / 6)

    records = [a_record(str(place), scores(place), of=BOTH) for place in range(6)]
    found = {name: pages.discrimination(records, third, name) for name in ("03.1a", "03.1b", "03.2a")}
    assert float(found["03.1a"]) > 0.8 and float(found["03.1b"]) < -0.8 and found["03.2a"] == ""
    assert pages.discrimination(records[:4], third, "03.1a") == ""
    # A check's own points are not among those that it is compared with.
    alone = [a_record(str(place), lambda e, p=place: p * (e["id"] == "03.2a")) for place in range(6)]
    assert pages.discrimination(alone, third, "03.2a") == ""
    assert f"<td class=n>{found['03.1a']}</td>" in pages.items(records, [third], "s", 0)


# ---- what is refused --------------------------------------------------------------------------

ZONE = "with a time zone, such as 2027-03-01T23:59:00+01:00"
SLIPS = {
    "no such word": ("late_dayz = 3", "late_dayz"),
    "no such word of one": ("[exercises.03]\ndu = 1", "has du, which means nothing"),
    "no such exercise": ("[exercises.77]\nweight = 1", "there is no exercise 77"),
    "no such file": ('roster = "nowhere.csv"', "roster cannot be read"),
    "late days in words": ('late_days = "3"', "late_days is '3', but must be a whole number"),
    "late days that are true": ("late_days = true", "late_days is True, but must be a whole number"),
    "late days below 0": ("late_days = -1", "late_days must be 0 or more"),
    "a penalty in percent": ("penalty_per_day = 20", "penalty_per_day must be between 0 and 1"),
    "hints": ('hints = "after_deadline"', 'hints must be "visible" or "after_due_date"'),
    "no check": ('hidden = ["03.9z"]', "there is no check 03.9z"),
    "a number": ("hidden = [77]", "there is no exercise 77"),
    "no table": ("exercises.03 = 5", "exercise 03: write it as a table, [exercises.03]"),
    "a day": ("[exercises.03]\ndue = 2027-03-01", f"but must be a time {ZONE}"),
    "a text": ('[exercises.03]\ndue = "2027-03-01"', f"due is '2027-03-01', but must be a time {ZONE}"),
    "no zone": ("[exercises.03]\ndue = 2027-03-01T12:00:00", f"exercise 03: write due {ZONE}"),
    "no number": ("[exercises.03]\nweight = nan", "exercise 03: weight must be 0 or more"),
}
CORRECTIONS, SUBMITTED = "student,check,points,comment", "student,exercise,time"
ROWS = {
    "no columns": ("corrections", "student,check", "ada,03", "has no column points and no column comment"),
    "points in words": ("corrections", CORRECTIONS, "ada,03.1a,two,", "'two' of ada is no number"),
    "a comment on no check": ("corrections", CORRECTIONS, "ada,03.9z,,oh", "ada has no check 03.9z"),
    "points for nothing": ("corrections", CORRECTIONS, "ada,,3,", "3 points of ada need a check or an"),
    "no number of points": ("corrections", CORRECTIONS, "ada,03,nan,", "'nan' of ada is no number of points"),
    "points below 0": ("corrections", CORRECTIONS, "ada,03,-1,", "'-1' of ada is no number of points"),
    "no exercise": ("submitted", SUBMITTED, "ada,77,2027-03-01T12:00Z", "there is no exercise 77"),
    "no time": ("submitted", SUBMITTED, "ada,03,soon", f"'soon' of ada is no time {ZONE}"),
    "no time zone": ("submitted", SUBMITTED, "ada,03,2027-03-01T12:00", "the time of ada with a time zone"),
    "no column": ("roster", "Student;ID", "Ada;17", "roster: separate columns by commas, and name one"),
    "nobody, corrected": ("corrections", CORRECTIONS, "adda,03,1,", "there is no submission of 'adda'"),
    "nobody, in time": ("submitted", SUBMITTED, "adda,,2027-03-01T12:00Z", "no submission of 'adda'"),
}


@pytest.mark.parametrize("name", [*SLIPS, *ROWS])
def test_what_would_decide_nothing_is_refused_in_one_line_before_anything_is_graded(name, tmp_path):
    with pytest.raises(SystemExit) as refused:
        if name in SLIPS:
            a_course(tmp_path, SLIPS[name][0])
        else:
            file, head, row, _ = ROWS[name]
            a_course(tmp_path, **{file: [head, row]}).refuse_strangers(["ada", "ben"])
    words = str(refused.value)
    assert (SLIPS | ROWS)[name][-1] in words and words.startswith("error: ") and "\n" not in words


def test_a_file_that_is_no_text_is_refused_in_one_line(tmp_path):
    (tmp_path / "course.toml").write_bytes(b'roster = "\xff"')
    with pytest.raises(SystemExit, match=r"error: .*course\.toml cannot be read: "):
        course.Course(tmp_path / "course.toml")
    (tmp_path / "roster.csv").write_bytes(b"ID\n\xff\n")
    (tmp_path / "course.toml").write_text('roster = "roster.csv"')
    with pytest.raises(SystemExit, match="error: roster cannot be read: "):
        course.Course(tmp_path / "course.toml")


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
    """Two free days: 03, two days late, uses them. 04a is a day and a minute late: two begun days."""
    text = """late_days = 2
penalty_per_day = 0.25
[exercises.04a]
due = 2027-03-10T12:00:00+01:00
weight = 10
[exercises.03]
due = 2027-03-01T12:00:00+01:00
"""
    times = [SUBMITTED, "ada,03,2027-03-03T12:00:00+01:00", "ada,04a,2027-03-11T12:01:00+01:00"]
    times += ["ben,,2027-03-01T12:00:00+01:00", "eve,04a,2028-01-01T00:00:00Z"]
    records = [a_record(name, everything, of=BOTH) for name in ("ada", "ben", "eve")]
    written(records, a_course(tmp_path / "c", text, submitted=times), tmp_path)
    rows = {row["student"]: row for row in table(tmp_path / "grades.csv")}
    assert [rows["ada"][name] for name in ("03", "04a", "total", "maximum")] == ["12", "5", "17", "22"]
    assert rows["ada"]["days late"] == "03:2 04a:2"
    assert (rows["ben"]["total"], rows["ben"]["days late"]) == ("22", "")
    assert rows["eve"]["04a"] == "0"  # never less
    nbgrader = [row for row in table(tmp_path / "nbgrader.csv") if row["student_id"] == "ada"]
    assert [(row["score"], row["max_score"]) for row in nbgrader] == [("12", "12"), ("5", "10")]


def test_free_late_days_go_to_the_earliest_deadline_wherever_its_clock_is(tmp_path):
    """As texts, the deadline of 03 would come first. A line for one exercise goes before one for all."""
    text = "late_days = 1\npenalty_per_day = 0.5\n[exercises.04]\ndue = 2027-03-02T06:00:00+14:00\n"
    text += "[exercises.03]\ndue = 2027-03-01T23:00:00Z\n"
    times = [SUBMITTED, "ada,4,2027-03-02T12:00:00+14:00", "ada,03,2027-03-02T12:00:00Z"]
    times += ["ada,,2029-01-01T00:00:00Z"]
    exercises = [exercise("03"), exercise("04")]
    record = a_record("ada", everything, of=("03", "04"))
    grades = a_course(tmp_path, text, submitted=times).grades(record, exercises)
    assert {name: one["late"] for name, one in grades.items()} == {"03": 1, "04": 1}
    assert grades["04"]["counts"] == points_of(exercises[1]) and grades["03"]["counts"] == 6


def test_a_correction_by_hand_survives_a_regrade(tmp_path):
    """It is in a file of its own. grade.json, which a regrade writes, has only what the grader has found."""
    rows = [CORRECTIONS, "ada,03.2a,2.5,forgot <b>one</b> line", "ada,,,well explained", "ada,04a,7,"]
    of = a_course(tmp_path / "c", corrections=[*rows, "ben,03,,see me"])
    for _ in ("graded", "graded again"):
        records = [a_record(name, of=BOTH) for name in ("ada", "ben")]
        written(records, of, tmp_path)
        assert records[0] == a_record("ada", of=BOTH)
        row = table(tmp_path / "grades.csv")[0]
        assert [row[name] for name in ("03", "04a", "total")] == ["2.5", "7", "9.5"]
        report = (tmp_path / "ada" / "report.html").read_text()
        assert "2.5 (was 0) of 3" in report and "<b>Comment:</b> forgot &lt;b&gt;one" in report
        assert "<b>Comment:</b> well explained" in report
        results = json.loads((tmp_path / "ada" / "results.json").read_text())
        (test,) = (test for test in results["tests"] if test["number"] == "03.2a")
        assert test["score"] == 2.5 and "corrected by hand: 0 points before" in test["output"]
        assert "comment: forgot <b>one</b> line" in test["output"] and results["score"] == 9.5
        assert "comment: well explained" in results["output"]
        assert "comment on 03: see me" in (tmp_path / "ben" / "results.json").read_text()


def test_a_correction_is_in_every_list_also_where_the_file_was_missing(tmp_path):
    rows = [CORRECTIONS, "ada,03.2a,3,=sent by mail", "ada,03.1a,1,", "ben,03,,", "ben,04,5,not graded yet"]
    records = [a_record(name, about=f"there is no file {THIRD}") for name in ("ada", "ben")]
    written(records, a_course(tmp_path / "c", corrections=rows), tmp_path)
    ada, ben = table(tmp_path / "grades.csv")
    assert (ada["03"], ada["corrected"], ada["comments"]) == ("4", "03.1a 03.2a", "03.2a: =sent by mail")
    assert (ben["03"], ben["corrected"], ben["comments"]) == ("0", "", "04: not graded yet")
    assert [row["score"] for row in table(tmp_path / "nbgrader.csv")] == ["4", "0"]
    report = (tmp_path / "ada" / "report.html").read_text()
    assert "4 of 12" in report and "3 (was 0) of 3" in report and "=sent by mail" in report
    tests = json.loads((tmp_path / "ada" / "results.json").read_text())["tests"]
    assert {t["number"]: t["status"] for t in tests if t["score"]} == {"03.1a": "failed", "03.2a": "passed"}


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
    said = written(records, a_course(tmp_path / "c", roster=CANVAS), tmp_path)
    words = "several submissions of one student in the roster, so no points in the lists: ada and s17"
    assert said == [words]
    assert [line[-1] for line in lines_of(tmp_path / "canvas.csv")[2:]] == ["", "0", "0"]
    assert {row["student"] for row in table(tmp_path / "grades.csv")} == {"ada", "s17", "alan", "emmy"}


# A roster as Moodle exports it, and the list that it imports, but for the exercise's name.
MOODLE = {
    "a user name": (
        ["First name,Last name,Username,ID number,Email address", "Ada,Lovelace,al,17,ada@x.org"],
        ["Username,ID number,Email address", "al,17,ada@x.org,3"],
    ),
    "no user name": (
        ["First name,ID number,Email address", "Mal,8,mallory", "Ada,7,ada@x.org"],
        ["ID number,Email address", "8,mallory,", "7,ada@x.org,3"],
    ),
}


@pytest.mark.parametrize("which", MOODLE)
def test_moodle_gets_the_columns_that_it_knows(which, tmp_path):
    roster, (head, *lines) = MOODLE[which]
    of = a_course(tmp_path / "c", roster=roster)
    written([a_record("ada@x.org", passing("03.2a"))], of, tmp_path)
    found = (tmp_path / "moodle.csv").read_text().splitlines()
    assert found == [f"{head},03 DDP in its simplest form", *lines]
    assert not (tmp_path / "canvas.csv").exists()


# ---- hidden until the deadline ----------------------------------------------------------------


@pytest.mark.parametrize("due", ["2020-01-01T00:00:00Z", "2920-01-01T00:00:00Z", None])
def test_what_is_hidden_until_the_deadline_is_hidden_everywhere(due, tmp_path):
    """On Gradescope and in the report: a check, the hints of all, and each sum that would tell."""
    text = 'hidden = ["03.2a"]\nhints = "after_due_date"\n'
    of = a_course(tmp_path / "c", text + (f"[exercises.03]\ndue = {due}\n" if due else ""))
    record = a_record("ada", lambda e: e["points"] * (e["id"] not in ("03.2b", "03.1a")), of=BOTH)
    written([record], of, tmp_path)
    report, visible = seen(tmp_path, "ada")
    tests = json.loads((tmp_path / "ada" / "results.json").read_text())["tests"]
    numbers, hint = [test["number"] for test in visible], exercise("03")["check"][0]["hints"][0]
    if due and due.startswith("2020"):
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


def test_what_an_instructor_says_about_a_hidden_check_is_hidden_too(tmp_path):
    rows = [CORRECTIONS, "ada,03.2a,3,you are right"]
    of = a_course(tmp_path / "c", 'hidden = ["03.2a"]', corrections=rows)
    written([a_record("ada")], of, tmp_path)
    report, tests = seen(tmp_path, "ada")
    assert "you are right" not in report + json.dumps(tests) and "was 0" not in report
    assert table(tmp_path / "grades.csv")[0]["comments"] == "03.2a: you are right"


def test_a_syntax_error_is_said_also_if_the_first_check_is_hidden(tmp_path):
    came = "03_average_gradients.py has a syntax error in line 3"
    written([a_record("ada", about=came)], a_course(tmp_path / "c", 'hidden = ["03.1a"]'), tmp_path)
    _, tests = seen(tmp_path, "ada")
    assert [t["number"] for t in tests] == ["03.2a", "03.2b", "03.2c", "03.2d", "03.2e"]
    assert all(came in t["output"] and "see 03.1a" not in t["output"] for t in tests)


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
