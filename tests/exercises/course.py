"""What an instructor decides about a course, in one small file: `grade.py SUBMISSIONS --course course.toml`.

recipes/course.toml explains each line of it. The grader knows nothing of all this: what it has found stays in
grade.json as it was, and a correction by hand, a deadline or a weight is applied whenever tables and reports
are written. So they survive a regrade, and a changed course.toml needs no new grading.
"""

import contextlib
import copy
import csv
import datetime
import math
import tomllib
from collections import Counter

from grader.exercises import exercise, manifest, points_of, wanted
from grader.wording import number, visible

# By these columns of a roster Canvas and Moodle know their students, each by one of them.
CANVAS, MOODLE = ("ID", "SIS User ID", "SIS Login ID"), ("Username", "ID number", "Email address")
STUDENT = ("student", *CANVAS, *MOODLE)
# What may stand in course.toml, and what it has to be, in words and for Python.
WITH_ZONE = "with a time zone, such as 2027-03-01T23:59:00+01:00"
TEXT = ("a text", lambda it: isinstance(it, str))
KNOWN = {
    "roster": TEXT,
    "corrections": TEXT,
    "submitted": TEXT,
    "late_days": ("a whole number, 0 or more", lambda it: type(it) is int and it >= 0),
    "penalty_per_day": ("a number between 0 and 1", lambda it: is_number(it) and it <= 1),
    "hints": ('"visible" or "after_due_date"', lambda it: it in ("visible", "after_due_date")),
    "hidden": ("a list of names", lambda it: isinstance(it, list)),
    "exercises": ("a table", lambda it: isinstance(it, dict)),
}
KNOWN_OF_ONE = {
    "due": (f"a time {WITH_ZONE}", lambda it: isinstance(it, datetime.datetime) and it.tzinfo is not None),
    "weight": ("a number, 0 or more", lambda it: is_number(it)),
    "hidden": ("true or false", lambda it: isinstance(it, bool)),
}
DAY = datetime.timedelta(days=1)
NEVER = datetime.datetime.max.replace(tzinfo=datetime.UTC)


class Course:
    """A course.toml, with the tables that it names. Without a file, a course that decides nothing."""

    def __init__(self, path=None):
        self.facts, self.folder = {}, None
        if path is not None:
            try:
                self.facts, self.folder = tomllib.loads(path.read_text()), path.parent
            except (OSError, ValueError) as error:
                refuse(f"{path} cannot be read: {error}")
        self.path = path
        refuse_slips(self.facts, KNOWN, path)
        for name, one in self.get("exercises", {}).items():
            refuse_slips({"exercises": one}, KNOWN, f"{path}, exercise {name}")
            refuse_slips(one, KNOWN_OF_ONE, f"{path}, exercise {name}")
        self.exercises = {exercise(name)["id"]: one for name, one in self.get("exercises", {}).items()}
        # The export of Canvas begins with a line of points, which is no student.
        rows = self.table("roster")
        if rows and not set(STUDENT) & set(rows[0]):
            refuse(f"roster: separate columns by commas, and name one of them {' or '.join(STUDENT)}")
        self.roster = [row for row in rows if any(map(row.get, STUDENT))]
        self.corrections = self.table("corrections", "student", "check", "points", "comment")
        self.submitted = self.table("submitted", "student", "exercise", "time")
        for row in self.corrections:
            refuse_correction(row)
        for row in self.submitted:
            row["exercise"] = exercise(row["exercise"])["id"] if row["exercise"] else ""
            row["time"] = time_of(row)
        self.hidden = checks_of(self.get("hidden", []))
        for name, one in self.exercises.items():
            if one.get("hidden"):
                self.hidden |= checks_of([name])
        # A check that is not reached tells that one it needs has failed.
        for one in manifest():
            for entry in one["check"]:
                if self.hidden & set(entry.get("needs", [])):
                    self.hidden.add(entry["id"])

    def get(self, name, default):
        return self.facts.get(name, default)

    def refuse_strangers(self, students):
        """A correction for `adda` would help nobody, and Ada would be on time if her row said so."""
        for name in ("corrections", "submitted"):
            strange = {row["student"] for row in getattr(self, name)} - set(students)
            if strange:
                refuse(f"{name}: there is no submission of {' or '.join(map(repr, sorted(strange)))}")

    def table(self, name, *columns):
        """The rows of a CSV file that lies beside course.toml; none if course.toml names no such file."""
        file = self.get(name, None)
        if file is None:
            return []
        try:
            with (self.folder / file).open(newline="", encoding="utf-8-sig") as opened:
                rows = list(csv.DictReader(opened))
        except (OSError, ValueError, csv.Error) as error:
            refuse(f"{name} cannot be read: {error}")
        missing = [column for column in columns if rows and column not in rows[0]]
        if missing:
            refuse(f"{self.folder / file} has no column {' and no column '.join(missing)}")
        return [{key: (value or "").strip() for key, value in row.items() if key} for row in rows]

    # -- one student

    def applied(self, record):
        """The record of a student with the corrections by hand, and what is hidden now."""
        record = copy.deepcopy(record)
        record["comments"], later = {}, self.get("hints", "visible") == "after_due_date"
        for result in (result for results in record["exercises"].values() for result in results):
            if result["id"] in self.hidden:
                result["visibility"] = "after_due_date" if self.is_before(result["id"]) else "visible"
            if result["status"] != "passed" and later and self.is_before(result["id"]):
                result["hints_later"] = True
        for row in self.corrections:
            if row["student"] == record["student"]:
                correct(record, row)
        return record

    def is_before(self, identity):
        """Whether the deadline of this check's exercise is still to come. Without one, it never comes."""
        due = self.due(identity.partition(".")[0])
        return due is None or datetime.datetime.now(datetime.UTC) < due

    def grades(self, record, exercises):
        """For each exercise: points of the checks, days late, and points that count. Free late days go to the
        exercises in the order of their deadlines."""
        found, left = {}, self.get("late_days", 0)
        for one in sorted(exercises, key=lambda one: self.due(one["id"]) or NEVER):
            score = sum(result["score"] for result in record["exercises"].get(one["id"], []))
            late = self.days_late(record["student"], one["id"]) if score else 0
            used = min(left, late)
            left -= used
            share = max(0.0, 1 - (late - used) * self.get("penalty_per_day", 1.0))
            weight = self.exercises.get(one["id"], {}).get("weight", points_of(one))
            counts = round(score / points_of(one) * weight * share, 3)
            found[one["id"]] = {"points": score, "late": late, "counts": counts, "of": weight}
        return {one["id"]: found[one["id"]] for one in exercises}

    def due(self, identity):
        return self.exercises.get(identity, {}).get("due")

    def days_late(self, student, identity):
        """Begun days after the deadline; 0 without a deadline, or if nothing says when it was submitted. A
        line for this exercise goes before one for all of them."""
        times = {row["exercise"]: row["time"] for row in self.submitted if row["student"] == student}
        due, when = self.due(identity), times.get(identity, times.get(""))
        return max(0, math.ceil((when - due) / DAY)) if due and when else 0


def refuse(words):
    raise SystemExit(f"error: {words}")


def is_number(value):
    return type(value) in (int, float) and 0 <= value < math.inf


def refuse_slips(facts, known, where):
    """A word that is spelled in another way would decide nothing, and nobody would see it."""
    for name, value in facts.items():
        if name not in known:
            refuse(f"{where} has {name}, which means nothing")
        words, is_right = known[name]
        if not is_right(value):
            refuse(f"{where}: {name} is {value!r}, but must be {words}")


def checks_of(names):
    return set().union(*(wanted(str(name)) for name in names))


def refuse_correction(row):
    """One that names no check, or no points, would be there and count for nothing."""
    student, name = row["student"], row["check"]
    there = {entry["id"] for one in manifest() for entry in one["check"]}
    if name and name not in there | {one["id"] for one in manifest()}:
        refuse(f"corrections: {student} has no check {name}")
    if row["points"] and not name:
        refuse(f"corrections: {row['points']} points of {student} need a check or an exercise")
    good = False
    with contextlib.suppress(ValueError):
        good = 0 <= float(row["points"] or 0) < math.inf
    if not good:
        refuse(f"corrections: {row['points']!r} of {student} is no number of points")


def time_of(row):
    try:
        when = datetime.datetime.fromisoformat(row["time"])
    except ValueError:
        refuse(f"submitted: {row['time']!r} of {row['student']} is no time {WITH_ZONE}")
    if when.tzinfo is None:
        refuse(f"submitted: write the time of {row['student']} with a time zone: {row['time']}")
    return when


def correct(record, row):
    """One row of corrections.csv: other points for a check or an exercise, a comment, or both."""
    name, points = row["check"], row["points"]
    record["comments"].setdefault(name, [])
    if row["comment"]:
        record["comments"][name].append(row["comment"])
    results = record["exercises"].get(name.partition(".")[0], [])
    meant = [result for result in results if name in (result["id"], result["id"].partition(".")[0])]
    if not points or not meant:  # no points, or the exercise has not been graded yet
        return
    left = float(points)
    # Points for a whole exercise go to its checks in order: their sum is what counts.
    for result in meant:
        result["corrected_from"] = result["score"]
        result["score"] = min(left, result["points"]) if len(meant) > 1 else left
        left -= result["score"]
        result["score"] = int(result["score"]) if result["score"] == int(result["score"]) else result["score"]
    if len(meant) > 1 and left:
        meant[-1]["score"] += left


def write_lists(course, grades, weights, exercises, out, safe):
    """canvas.csv and moodle.csv, as far as the roster has what they need. Says who is in one list only."""
    if not course.roster:
        return []
    # The students who have the name of their folder in one of the columns of a row.
    mine = [grades.keys() & {row.get(column) for column in STUDENT} for row in course.roster]
    times = Counter(student for some in mine for student in some)
    strangers = [student for student in grades if times[student] != 1]
    said = [f"not in the roster, or there more than once: {student}" for student in strangers]
    rows, absent = [], []
    for row, some in zip(course.roster, mine, strict=True):
        # Of two folders, one named by a login and one by an id, the grader cannot know which one counts.
        if len(some) == 1 and not some & {*strangers}:
            counts = grades[some.pop()]
            rows.append((row, [number(counts[one["id"]]["counts"]) for one in exercises]))
        else:
            rows.append((row, [""] * len(exercises)))
            absent.append(name_of(row))
    if absent:
        said.append(f"in the roster, but without a grade: {len(absent)} ({'; '.join(absent)})")
    names = [f"{one['id']} {one['title']}" for one in exercises]
    most = [number(weights[one["id"]]["of"]) for one in exercises]
    columns = course.roster[0].keys()
    for file, own, known, first in (
        ("canvas.csv", CANVAS, ["Student", *CANVAS, "Section"], [["    Points Possible", *[""] * 4, *most]]),
        ("moodle.csv", MOODLE, [column for column in MOODLE if column in columns], []),
    ):
        if any(column in columns for column in own):
            lines = [[*(safe(row.get(name, "")) for name in known), *points] for row, points in rows]
            write(out / file, [[*known, *names], *first, *lines])
    return said


def name_of(row):
    """As a person finds the student in the roster. Canvas lets students choose the name that is shown."""
    columns = ("Student", *STUDENT)
    return visible(next(row[column] for column in columns if row.get(column)))


def write(path, lines):
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows(lines)
