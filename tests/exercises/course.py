<<<<<<< HEAD
"""What only the instructor knows: weights, deadlines, corrections by hand, and who is in the class.

`grade.py SUBMISSIONS --course course.toml --roster roster.csv`. All of it is optional:

    free_late_days = 2            # of each student, over all exercises
    penalty = 0.1                 # the share of an exercise's points that each further day costs

    [weights]                     # 1 for an exercise that is not named
    "03b" = 0.5

    [deadlines]
    "03" = 2026-12-01T23:59:00+01:00

    [handed_in.ada]               # only those who were late: no file says when it was handed in
    "03" = 2026-12-03T10:00:00+01:00

    [corrections.ada]             # kept in here, so they are not lost when a submission is graded again
    "03.2a" = { points = 1, comment = "The idea is right." }

The roster is a CSV file that Canvas or Moodle has exported. A submission has the name of a student's login,
ID or email address in it.
=======
"""What an instructor decides about a course, in one small file: `grade.py SUBMISSIONS --course course.toml`.

recipes/course.toml explains each line of it. The judge knows nothing of all this: what it has found stays in
grade.json as it was, and a correction by hand, a deadline or a weight is applied whenever tables and reports
are written. So they survive a regrade, and a changed course.toml needs no new grading.
>>>>>>> e790a1539b07cfa2c128c699116c461312bdc1a3
"""

import copy
import csv
<<<<<<< HEAD
import math
import tomllib
from datetime import datetime

KEYS = ("free_late_days", "penalty", "weights", "deadlines", "handed_in", "corrections")
SECONDS = 24 * 60 * 60
# The columns that a system needs to know a student, and the name of the file that it can read then.
SYSTEMS = {
    "canvas.csv": ("Student", "ID", "SIS User ID", "SIS Login ID", "Section"),
    "moodle.csv": ("ID number", "Username", "Email address"),
}

NAMES = ("SIS Login ID", "Username", "Email address", "ID number", "Student", "ID", "SIS User ID")


class Mistake(Exception):
    """Something that the instructor has to change, in one line."""


def read(path, exercises):
    """The course of this file, looked through for names that do not exist."""
    try:
        course = tomllib.loads(path.read_text())
    except OSError as error:
        raise Mistake(f"{path} cannot be read: {error.strerror}") from None
    except tomllib.TOMLDecodeError as error:
        raise Mistake(f"{path} is not valid TOML: {error}") from None
    for key in course:
        if key not in KEYS:
            raise Mistake(f"{path}: there is no {key}; a course has {', '.join(KEYS)}")
    identities = {one["id"] for one in exercises}
    points = {entry["id"]: entry["points"] for one in exercises for entry in one["check"]}
    handed_in = course.get("handed_in", {})
    for table in (course.get("weights", {}), course.get("deadlines", {}), *handed_in.values()):
        for identity in table:
            if identity not in identities:
                raise Mistake(f"{path}: there is no exercise {identity}")
    for table in (course.get("deadlines", {}), *handed_in.values()):
        for moment in table.values():
            if not isinstance(moment, datetime) or moment.tzinfo is None:
                raise Mistake(f"{path}: {moment} is no time with its zone, such as 2026-12-01T23:59:00+01:00")
    for student, corrections in course.get("corrections", {}).items():
        for identity, correction in corrections.items():
            where = f"{path}, corrections of {student}"
            if identity not in points:
                raise Mistake(f"{where}: there is no check {identity}")
            if not set(correction) <= {"points", "comment"}:
                raise Mistake(f"{where}: {identity} may have points and a comment")
            if not 0 <= correction.get("points", 0) <= points[identity]:
                raise Mistake(f"{where}: {identity} has 0 to {points[identity]} points")
    return course


def days_late(course, student):
    """For each exercise that came late: the days, and how many of them cost points."""
    free, found = course.get("free_late_days", 0), {}
    times = course.get("handed_in", {}).get(student, {})
    deadlines = sorted((moment, identity) for identity, moment in course.get("deadlines", {}).items())
    for deadline, identity in deadlines:  # the free days go to the earliest
        days = math.ceil((times.get(identity, deadline) - deadline).total_seconds() / SECONDS)
        if days > 0:
            found[identity] = (days, max(0, days - free))
            free = max(0, free - days)
    return found


def apply(course, record):
    """A record with its corrections, and with what each exercise is worth. The record itself stays as the
    judge has written it."""
    record = copy.deepcopy(record)
    student = record["student"]
    for identity, correction in course.get("corrections", {}).get(student, {}).items():
        for result in record["exercises"].get(identity.partition(".")[0], []):
            if result["id"] == identity:
                result["score"] = correction.get("points", result["score"])
                result["comment"] = correction.get("comment", "corrected by hand")
    late = days_late(course, student)
    record["weights"] = {name: course.get("weights", {}).get(name, 1) for name in record["exercises"]}
    record["late"] = {name: days for name, days in late.items() if name in record["exercises"]}
    record["worth"] = {
        name: weight * max(0, 1 - course.get("penalty", 0) * late.get(name, (0, 0))[1])
        for name, weight in record["weights"].items()
    }
    return record


def read_roster(path):
    """The rows of the file, and the name of the file that the same system can read."""
    with path.open(newline="", encoding="utf-8-sig") as file:
        rows = list(csv.DictReader(file))
    header = set(rows[0]) if rows else set()
    for name, columns in SYSTEMS.items():
        if header & set(columns[1:]):
            rows = [row for row in rows if any((row.get(column) or "").strip() for column in columns[1:])]
            return rows, name
    raise Mistake(f"{path} has no column of Canvas or Moodle: {', '.join(sum(SYSTEMS.values(), ()))}")


def write_roster(rows, name, scores, exercises, maxima, out, safe):
    """The file for Canvas or Moodle. `scores` has the points of each exercise, by student. Returns who is not
    in the roster, and who of the roster has handed in nothing."""
    columns = [column for column in SYSTEMS[name] if column in rows[0]]
    titles = [f"{one['id']} {one['title']}" for one in exercises]
    by_name = {student.casefold(): student for student in scores}
    known, nothing = set(), []
    with (out / name).open("w", newline="") as file:
        write = csv.writer(file)
        write.writerow([*columns, *titles])
        if name == "canvas.csv":
            write.writerow(["    Points Possible", *[""] * (len(columns) - 1), *maxima])
        for row in rows:
            names = [(row[column] or "").strip().casefold() for column in columns]
            names += [each.partition("@")[0] for each in names]
            student = next((by_name[each] for each in names if each in by_name), None)
            points = scores[student] if student else [""] * len(titles)
            write.writerow([*(safe(row[column] or "") for column in columns), *points])
            if student:
                known.add(student)
            else:
                nothing.append(next(row[column] for column in NAMES if row.get(column)))
    return sorted(scores.keys() - known), nothing
=======
import datetime
import math
import tomllib

import judge

# By these columns of a roster Canvas and Moodle know their students, each by one of them.
CANVAS, MOODLE = ("ID", "SIS User ID", "SIS Login ID"), ("Username", "ID number", "Email address")
KNOWN = {"roster", "corrections", "submitted", "late_days", "penalty_per_day", "hints", "hidden", "exercises"}
KNOWN_OF_ONE = {"due", "weight", "hidden"}
DAY = datetime.timedelta(days=1)


class Course:
    """A course.toml, with the tables that it names. Without a file, a course that decides nothing."""

    def __init__(self, path=None):
        self.facts, self.folder = {}, None
        if path is not None:
            try:
                self.facts, self.folder = tomllib.loads(path.read_text()), path.parent
            except (OSError, tomllib.TOMLDecodeError) as error:
                refuse(f"{path} cannot be read: {error}")
        self.exercises = {judge.exercise(name)["id"]: one for name, one in self.get("exercises", {}).items()}
        self.refuse_slips(path)
        # The export of Canvas begins with a line of points, which is no student.
        self.roster = [
            row for row in self.table("roster") if any(map(row.get, ("student", *CANVAS, *MOODLE)))
        ]
        self.corrections = self.table("corrections", "student", "check", "points", "comment")
        self.submitted = self.table("submitted", "student", "exercise", "time")
        self.hidden = wanted(self.get("hidden", []))
        for name, one in self.exercises.items():
            if one.get("hidden"):
                self.hidden |= wanted([name])

    def get(self, name, default):
        return self.facts.get(name, default)

    def refuse_slips(self, path):
        """A word that is spelled in another way would decide nothing, and nobody would see it."""
        strange = self.facts.keys() - KNOWN
        for name, one in self.exercises.items():
            strange |= one.keys() - KNOWN_OF_ONE
            due = one.get("due")
            if due is not None and (not isinstance(due, datetime.datetime) or due.tzinfo is None):
                refuse(f"{path}: write due of {name} with a time zone, such as 2027-03-01T23:59:00+01:00")
        if strange:
            refuse(f"{path} has {' and '.join(sorted(strange))}, which means nothing")

    def table(self, name, *columns):
        """The rows of a CSV file that lies beside course.toml; none if course.toml names no such file."""
        file = self.get(name, None)
        if file is None:
            return []
        try:
            with (self.folder / file).open(newline="", encoding="utf-8-sig") as opened:
                rows = list(csv.DictReader(opened))
        except OSError as error:
            refuse(f"{name} cannot be read: {error}")
        missing = [column for column in columns if rows and column not in rows[0]]
        if missing:
            refuse(f"{self.folder / file} has no column {' and no column '.join(missing)}")
        return [{key: (value or "").strip() for key, value in row.items() if key} for row in rows]

    # -- one student

    def applied(self, record):
        """The record of a student with the corrections by hand, and what is hidden now."""
        record = copy.deepcopy(record)
        record["comments"] = {}
        for results in record["exercises"].values():
            for result in results:
                if result["id"] in self.hidden:
                    result["visibility"] = "after_due_date" if self.is_before(result["id"]) else "visible"
                if result["status"] != "passed" and self.hints_are_hidden(result["id"]):
                    result["hints_later"] = True
        for row in self.corrections:
            if row["student"] == record["student"]:
                correct(record, row)
        return record

    def is_before(self, identity):
        """Whether the deadline of this check's exercise is still to come. Without one, it never comes."""
        due = self.exercises.get(identity.partition(".")[0], {}).get("due")
        return due is None or datetime.datetime.now(datetime.UTC) < due

    def hints_are_hidden(self, identity):
        return self.get("hints", "visible") == "after_due_date" and self.is_before(identity)

    def grades(self, record, exercises):
        """For each exercise: points of the checks, days late, and points that count. Free late days go to the
        exercises in the order of their deadlines."""
        found, left = {}, self.get("late_days", 0)
        for one in sorted(exercises, key=lambda one: str(self.exercises.get(one["id"], {}).get("due", ""))):
            score = sum(result["score"] for result in record["exercises"].get(one["id"], []))
            late = self.days_late(record["student"], one["id"]) if score else 0
            used = min(left, late)
            left -= used
            share = max(0.0, 1 - (late - used) * self.get("penalty_per_day", 1.0))
            weight = self.exercises.get(one["id"], {}).get("weight", judge.points_of(one))
            counts = round(score / judge.points_of(one) * weight * share, 3)
            found[one["id"]] = {"points": score, "late": late, "counts": counts, "of": weight}
        return {one["id"]: found[one["id"]] for one in exercises}

    def days_late(self, student, identity):
        """Begun days after the deadline; 0 without a deadline, or if nothing says when it was submitted."""
        due, when = self.exercises.get(identity, {}).get("due"), None
        for row in self.submitted:
            if row["student"] == student and row["exercise"] in ("", identity):
                when = datetime.datetime.fromisoformat(row["time"])
                if when.tzinfo is None:
                    refuse(f"write the time of {student} with a time zone: {row['time']}")
        return max(0, math.ceil((when - due) / DAY)) if due and when else 0

    # -- the class

    def rows_of(self, student):
        """The rows of the roster that have the name of this student's folder in one of their columns."""
        columns = ("student", *CANVAS, *MOODLE)
        return [row for row in self.roster if student in (row.get(column) for column in columns)]


def refuse(words):
    raise SystemExit(f"error: {words}")


def wanted(names):
    return set().union(*map(judge.wanted, names))


def correct(record, row):
    """One row of corrections.csv: other points for a check or an exercise, a comment, or both."""
    name, points = row["check"], row["points"]
    record["comments"].setdefault(name, [])
    if row["comment"]:
        record["comments"][name].append(row["comment"])
    if not points:
        return
    results = record["exercises"].get(name.partition(".")[0], [])
    meant = [result for result in results if name in (result["id"], result["id"].partition(".")[0])]
    if not meant:
        refuse(f"corrections: {record['student']} has no check {name}")
    try:
        left = float(points)
    except ValueError:
        refuse(f"corrections: {points!r} of {record['student']} is no number of points")
    # Points for a whole exercise go to its checks in order: their sum is what counts.
    for result in meant:
        result["corrected_from"] = result["score"]
        result["score"] = min(left, result["points"]) if len(meant) > 1 else left
        left -= result["score"]
        result["score"] = int(result["score"]) if result["score"] == int(result["score"]) else result["score"]
    if len(meant) > 1 and left:
        meant[-1]["score"] += left


def write_lists(course, records, exercises, out, safe):
    """canvas.csv and moodle.csv, as far as the roster has what they need. Says who is in one list only."""
    if not course.roster:
        return []
    graded = {record["student"]: record for record in records if not record["infrastructure"]}
    rows = {student: course.rows_of(student) for student in graded}
    said = [
        f"not in the roster, or there more than once: {student}"
        for student, found in rows.items()
        if len(found) != 1
    ]
    by_row = {id(found[0]): student for student, found in rows.items() if len(found) == 1}
    absent = sum(id(row) not in by_row for row in course.roster)
    said += [f"in the roster, but without a grade: {absent}"] if absent else []

    def points(row):
        if id(row) not in by_row:
            return [""] * len(exercises)
        grades = course.grades(graded[by_row[id(row)]], exercises)
        return [judge.number(grades[one["id"]]["counts"]) for one in exercises]

    names = [f"{one['id']} {one['title']}" for one in exercises]
    most = [
        judge.number(course.exercises.get(o["id"], {}).get("weight", judge.points_of(o))) for o in exercises
    ]
    columns = course.roster[0].keys()
    if any(column in columns for column in CANVAS):
        known = ["Student", *CANVAS, "Section"]
        lines = [["    Points Possible", "", "", "", "", *most]]
        lines += [[*(safe(row.get(column, "")) for column in known), *points(row)] for row in course.roster]
        write(out / "canvas.csv", [[*known, *names], *lines])
    if any(column in columns for column in MOODLE):
        known = [column for column in MOODLE if column in columns]
        lines = [[*(safe(row[column]) for column in known), *points(row)] for row in course.roster]
        write(out / "moodle.csv", [[*known, *names], *lines])
    return said


def write(path, lines):
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows(lines)
>>>>>>> e790a1539b07cfa2c128c699116c461312bdc1a3
