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
"""

import copy
import csv
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
