"""corrections.csv: the points and comments that an instructor gives by hand.

It has the columns student, check, points and comment. A check is 03.2a, or 03 for a whole exercise, or empty
for a comment on the whole submission; points and comment may be empty. What the grader has found stays in
grade.json as it was, and corrections are applied whenever tables and reports are written. So they survive a
regrade, and a changed file needs no new grading.
"""

import copy
import csv
import math

from grader.exercises import manifest

COLUMNS = ("student", "check", "points", "comment")


def read(path, students):
    """The rows of a corrections.csv; none without a file. What would decide nothing is refused."""
    if path is None:
        return []
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            rows = list(csv.DictReader(file))
    except (OSError, ValueError, csv.Error) as error:
        raise SystemExit(f"error: {path} cannot be read: {error}") from None

    missing = [column for column in COLUMNS if rows and column not in rows[0]]
    if missing:
        raise SystemExit(f"error: {path} has no column {' and no column '.join(missing)}")

    found = []
    for row in rows:
        one = {column: (row[column] or "").strip() for column in COLUMNS}
        why = what_is_wrong(one, students)
        if why:
            raise SystemExit(f"error: {path}: {why}")
        found.append(one)
    return found


def what_is_wrong(row, students):
    """Why a row would count for nothing, in words: a name that is misspelled, or no number of points."""
    student, name, points = row["student"], row["check"], row["points"]
    if student not in students:
        why = f"there is no submission of {student!r}"
    elif name and name not in known_names():
        why = f"{student} has no check {name}"
    elif points and not name:
        why = f"{points} points of {student} need a check or an exercise"
    elif not is_number_of_points(points or "0"):
        why = f"{points!r} of {student} is no number of points"
    else:
        why = ""
    return why


def known_names():
    """Of all exercises, and of all checks."""
    known = set()
    for one in manifest():
        known.add(one["id"])
        for entry in one["check"]:
            known.add(entry["id"])
    return known


def is_number_of_points(word):
    try:
        return 0 <= float(word) < math.inf
    except ValueError:
        return False


def applied(record, rows):
    """The record of a student after the corrections."""
    record = copy.deepcopy(record)
    record["comments"] = {}
    for row in rows:
        if row["student"] == record["student"]:
            correct(record, row)
    return record


def correct(record, row):
    name = row["check"]
    if row["comment"]:
        record["comments"].setdefault(name, []).append(row["comment"])

    meant = []
    for result in record["exercises"].get(name.partition(".")[0], []):
        if name in (result["id"], result["id"].partition(".")[0]):
            meant.append(result)
    if not row["points"] or not meant:  # no points, or the exercise has not been graded yet
        return

    # Points for a whole exercise go to its checks in order: their sum is what counts.
    left = float(row["points"])
    for result in meant:
        result["corrected_from"] = result["score"]
        result["score"] = left if result is meant[-1] else min(left, result["points"])
        left -= result["score"]
        if result["score"] == int(result["score"]):
            result["score"] = int(result["score"])
