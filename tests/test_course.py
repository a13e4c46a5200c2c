"""What an instructor adds to the grades: weights, delays, corrections by hand, and the files of a roster."""

import csv
import json
import subprocess
import sys

import pytest

from lessons import ROOT

sys.path.insert(0, str(ROOT / "tests" / "exercises"))
import course
import judge

import pages

RULES = """
free_late_days = 2
penalty = 0.25
[weights]
"03" = 0.5
[deadlines]
"02" = 2026-12-01T12:00:00+01:00
"03" = 2026-12-01T12:00:00+01:00
[handed_in.ada]
"02" = 2026-12-02T11:00:00+01:00
"03" = 2026-12-03T18:00:00+01:00
[corrections.ada]
"03.2a" = { points = 1, comment = "=the idea is <right>" }
"03.1a" = { comment = "well said" }
"""


def read(tmp_path, text=RULES):
    path = tmp_path / "course.toml"
    path.write_text(text)
    return course.read(path, judge.manifest())


def record_of(student="ada"):
    """Of one who has passed all checks of 02, and none of 03."""
    exercises = {}
    for identity, status in (("02", "passed"), ("03", "failed")):
        exercises[identity] = []
        for entry in judge.exercise(identity)["check"]:
            result = judge.Result(entry["id"], entry["title"], entry["points"], status=status)
            result.score = entry["points"] * (status == "passed")
            exercises[identity].append(result.as_dict())
    common = {"containment": "level 3", "seed": "1", "trouble": "", "infrastructure": False, "absent": []}
    return {"student": student, "exercises": exercises} | common


def test_free_days_go_to_the_earliest_and_the_others_cost(tmp_path):
    """A day that has begun counts: 03 is 3 days late, and one free day is left for it."""
    assert course.days_late(read(tmp_path), "ada") == {"02": (1, 0), "03": (3, 2)}
    assert course.days_late(read(tmp_path), "bo") == {}


def test_a_correction_changes_the_points_in_all_that_is_written(tmp_path):
    before = record_of()
    record = course.apply(read(tmp_path), before)
    assert before == record_of()  # what the judge has written stays
    of_02 = judge.points_of(judge.exercise("02"))
    assert pages.points_in(record, "02") == of_02
    assert pages.points_in(record, "03") == 1 * 0.5 * (1 - 2 * 0.25)
    assert pages.most(record) == of_02 + 0.5 * judge.points_of(judge.exercise("03"))
    page = pages.report(record)
    assert "=the idea is &lt;right&gt;" in page and "3 days late, of which 2 cost points" in page
    given = pages.gradescope(record)
    assert given["score"] == of_02 + 0.25
    (test,) = (test for test in given["tests"] if test["number"] == "03.2a")
    assert test["score"] == 1 and "comment:  =the idea is <right>" in test["output"]
    pages.write_class([record], tmp_path, "1")
    with (tmp_path / "grades.csv").open() as file:
        (row,) = csv.DictReader(file)
    assert (row["03"], row["total"]) == ("0.25", judge.number(of_02 + 0.25))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("late = 3", "there is no late; a course has"),
        ('[weights]\n"99" = 1', "there is no exercise 99"),
        ('[deadlines]\n"03" = 2026-12-01T12:00:00', "is no time with its zone"),
        ('[corrections.ada]\n"03.9" = { points = 1 }', "there is no check 03.9"),
        ('[corrections.ada]\n"03.2a" = { points = 99 }', "03.2a has 0 to "),
        ('[corrections.ada]\n"03.2a" = { point = 1 }', "may have points and a comment"),
        ("weights = {", "is not valid TOML"),
    ],
)
def test_a_mistake_is_told_in_one_line(tmp_path, text, words):
    with pytest.raises(course.Mistake, match=words) as raised:
        read(tmp_path, text)
    assert "\n" not in str(raised.value)


CANVAS = """Student,ID,SIS User ID,SIS Login ID,Section
    Points Possible,,,,
"Lovelace, Ada",17,u17,Ada,A
"Babbage, Charles",18,u18,charles,A
"""
MOODLE = "First name,Email address\nAda,ada@example.org\n"


@pytest.mark.parametrize(("text", "name"), [(CANVAS, "canvas.csv"), (MOODLE, "moodle.csv")])
def test_a_roster_gives_the_file_that_its_system_reads(tmp_path, text, name):
    (tmp_path / "roster.csv").write_text("\ufeff" + text)
    rows, made = course.read_roster(tmp_path / "roster.csv")
    assert made == name
    records = [course.apply({}, record_of("ada")), course.apply({}, record_of("eve"))]
    strangers, nothing = pages.write_for_a_system((rows, made), records, tmp_path)
    assert strangers == ["eve"] and nothing == ["charles"] * (name == "canvas.csv")
    with (tmp_path / name).open() as file:
        written = list(csv.DictReader(file))
    title = f"02 {judge.exercise('02')['title']}"
    ada = written[1] if name == "canvas.csv" else written[0]
    assert ada[title] == judge.number(judge.points_of(judge.exercise("02")))
    if name == "canvas.csv":
        assert written[0]["Student"] == "    Points Possible" and written[0][title] == ada[title]
        assert (ada["ID"], ada["SIS User ID"], written[2][title]) == ("17", "u17", "")


def test_a_file_that_is_no_roster_is_refused(tmp_path):
    (tmp_path / "roster.csv").write_text("name,grade\nada,1\n")
    with pytest.raises(course.Mistake, match="has no column of Canvas or Moodle"):
        course.read_roster(tmp_path / "roster.csv")


@pytest.mark.long
def test_a_correction_survives_a_regrade(tmp_path):
    """By the command. The starter has no point in 05; the correction gives one, each time."""
    folder = tmp_path / "class" / "ada"
    folder.mkdir(parents=True)
    name = judge.exercise("05")["files"][0]
    (folder / name).write_text((judge.STARTERS / name).read_text())
    check = judge.exercise("05")["check"][0]["id"]
    (tmp_path / "course.toml").write_text(
        f'[corrections.ada]\n"{check}" = {{ points = 1, comment = "so" }}\n'
    )
    (tmp_path / "roster.csv").write_text(CANVAS)
    words = [sys.executable, "tests/exercises/grade.py", tmp_path / "class", "--out", tmp_path / "out"]
    words += ["--only", "05", "--course", tmp_path / "course.toml", "--roster", tmp_path / "roster.csv"]
    for attempt in ("# a first\n", "# a second\n"):
        with (folder / name).open("a") as file:
            file.write(attempt)
        run = subprocess.run(list(map(str, words)), cwd=ROOT, capture_output=True, text=True, timeout=200)
        assert run.returncode == 0, run.stderr
        assert "1 graded, 0 kept" in run.stdout
        assert "in the roster, and handed in nothing: charles" in run.stdout
        assert json.loads((tmp_path / "out/ada/results.json").read_text())["score"] == 1
        assert "so</dd>" in (tmp_path / "out/ada/report.html").read_text()
    assert (tmp_path / "out/canvas.csv").read_text().count("\n") == 4
