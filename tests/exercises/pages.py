"""What a graded submission looks like: for Gradescope, as a page, and the tables and the item analysis of a
class. All that a student wrote is escaped before it gets into a page."""

import html
import json
import re
from collections import Counter
from statistics import correlation

from course import write, write_lists
from grader import wording
from grader.exercises import exercise, manifest, points_of
from grader.results import Result
from grader.settings import RUN_SECONDS, SUBMISSION_SECONDS

STYLE = """
:root { color-scheme: light dark; --line: #8884; --good: #1a7f37; --bad: #cf222e; --dim: #8a8f98 }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60em; margin: 2em auto; padding: 0 1em }
table { border-collapse: collapse; width: 100%; margin: 1em 0 2em }
th, td { text-align: left; vertical-align: top; padding: .35em .6em; border-bottom: 1px solid var(--line) }
td:last-child { overflow-wrap: anywhere }
th, td:first-child, .not-reached { white-space: nowrap }
.matrix { max-width: 90em } .matrix td:nth-child(2) { white-space: nowrap }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap }
.passed { color: var(--good) } .failed, .error, .timeout { color: var(--bad) }
.not-reached, .infrastructure, .dim { color: var(--dim) }
pre { white-space: pre-wrap; overflow-wrap: anywhere; background: #8881; padding: .5em; font-size: .85em }
"""


def page(title, parts, kind=""):
    body = "\n".join(filter(None, parts))
    return f"""<!doctype html><html lang="en"><meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>{html.escape(title)}</title><style>{STYLE}</style>
<body class="{kind}">
{body}
</body></html>
"""


def row(cells, tag, numbers):
    words = (f"<{tag}{' class=n' if n in numbers else ''}>{cell}</{tag}>" for n, cell in enumerate(cells))
    return f"<tr>{''.join(words)}</tr>"


def table(head, lines, numbers):
    """`numbers` are the columns of numbers."""
    rows = [row(head, "th", numbers), *(row(cells, "td", numbers) for cells in lines)]
    return "\n".join(["<table>", *rows, "</table>"])


def every(record):
    return [result for results in record["exercises"].values() for result in results]


def points(results):
    """The points that a student may see now: a sum with a hidden check in it would tell its result."""
    return sum(result["score"] for result in results if result["visibility"] == "visible")


def comments(record, name):
    return record.get("comments", {}).get(name, [])


def commented(record, name):
    return "".join(f"<p><b>Comment:</b> {html.escape(words)}</p>" for words in comments(record, name))


def report(record):
    student, results = record["student"], every(record)
    most = wording.number(sum(result["points"] for result in results))
    hidden = ", ".join(result["id"] for result in results if result["visibility"] != "visible")
    parts = [
        f"<h1>{html.escape(student)}: {wording.number(points(results))} of {most} points</h1>",
        f"<p class=dim>{html.escape(terms(record))}</p>",
        f"<p class=failed>{html.escape(record['trouble'])}</p>" * bool(record["trouble"]),
        f"<p>Hidden for now, and in no sum on this page: {hidden}.</p>" * bool(hidden),
        commented(record, ""),
    ]
    return page(f"{student}: exercises", parts + [of_exercise(record, name) for name in record["exercises"]])


def of_exercise(record, identity):
    """The part of a student's page about one exercise."""
    one, results, lines = exercise(identity), record["exercises"][identity], []
    for result in results:
        status, score = result["status"], wording.number(result["score"])
        if result["corrected_from"] is not None:
            status, score = "corrected", f"{score} (was {wording.number(result['corrected_from'])})"
        words = html.escape(result["title"])
        if result["visibility"] == "visible":
            why = "\n".join(said(result)[1:])
            words += f"<pre>{html.escape(why)}</pre>" * bool(why) + commented(record, result["id"])
        else:
            status, score = "hidden", "?"
        mark = f'<span class="{status.replace(" ", "-")}">{status}</span>'
        lines.append((result["id"], words, f"{score} of {wording.number(result['points'])}", mark))
    earned = f"{wording.number(points(results))} of {wording.number(points_of(one))}"
    head = f"<h2>{identity} {html.escape(one['title'])}: {earned}</h2>"
    return f"{head}\n{commented(record, identity)}\n{table(('check', '', 'points', ''), lines, {2})}"


def terms(record):
    """Under which a submission was graded."""
    words = f"Contained at {record['containment']}. Seed {record['seed']}. "
    return words + f"Limits: {RUN_SECONDS} s per run, {SUBMISSION_SECONDS} s per submission."


def said(result):
    """Why a check was not passed: a line of its status, and others."""
    hints = 0 if result["hints_later"] else 1
    return [] if result["status"] == "passed" else wording.detail(Result(**result), hints)


def gradescope(record):
    """results.json. The maximum of each test is that of exercise.toml, whatever ran."""
    tests = []
    for result in every(record):
        detail = said(result)
        if result["corrected_from"] is not None:
            detail.append(f"corrected by hand: {wording.number(result['corrected_from'])} points before")
        detail += [f"comment: {words}" for words in comments(record, result["id"])]
        facts = {
            "number": result["id"],
            "name": result["title"],
            "visibility": result["visibility"],
            "output": "\n".join(detail),
            "output_format": "text",
        }
        # Points that were given by hand decide more than the grader does.
        status = "passed" if result["score"] >= result["points"] else "failed"
        tests.append(facts | {"score": result["score"], "max_score": result["points"], "status": status})
        # Gradescope hides whole tests: a hint that comes later is one of its own, without points.
        for hint in wording.helpful(Result(**result), 1) if result["hints_later"] else []:
            name = f"hint for {result['title']}"
            tests.append(facts | {"name": name, "visibility": "after_due_date", "output": hint})
    about = [
        f"comment{name and ' on '}{name}: {words}"
        for name in ("", *record["exercises"])
        for words in comments(record, name)
    ]
    return {
        "score": sum(result["score"] for result in every(record)),
        "output": "\n".join([terms(record), *about]),
        "output_format": "text",
        "stdout_visibility": "hidden",
        "tests": tests,
    }


def write_student(record, folder, broken=False):
    """report.html and results.json. A machine that failed must not become a student's zero."""
    (folder / "report.html").write_text(report(record))
    (folder / "results.json").unlink(missing_ok=True)
    if not broken:
        (folder / "results.json").write_text(json.dumps(gradescope(record), indent=1))


# ---- the class --------------------------------------------------------------------------------


OF_CLASS = ("status", "not handed in", "days late", "corrected", "comments")


def write_class(records, out, seed, course):
    """The tables have what counts, after corrections, late days and weights; the item analysis has what the
    grader has found. Returns words about students who are in one list only."""
    graded = [record for record in records if not record["infrastructure"]]
    there = {identity for record in records for identity in record["exercises"]}
    exercises = [one for one in manifest() if one["id"] in there]
    corrected = {record["student"]: course.applied(record) for record in graded}
    grades = {student: course.grades(record, exercises) for student, record in corrected.items()}
    weights = course.grades({"student": "", "exercises": {}}, exercises)
    maximum = wording.number(sum(one["of"] for one in weights.values()))
    names = [one["id"] for one in exercises]
    class_rows = [["student", *names, "total", "maximum", *OF_CLASS]]
    nbgrader = [["assignment", "student_id", "score", "max_score"]]
    for record in records:
        student, empty = safe(record["student"]), [""] * (len(names) + 1)
        if record["infrastructure"]:
            class_rows.append([student, *empty, maximum, "infrastructure: not graded", *[""] * 4])
            continue
        after, found = corrected[record["student"]], grades[record["student"]]
        scores = [wording.number(found[name]["counts"]) for name in names]
        total = wording.number(sum(found[name]["counts"] for name in names))
        status = safe(f"unreadable: {record['trouble']}") if record["trouble"] else "graded"
        absent = " ".join(record["absent"])
        late = " ".join(f"{name}:{one['late']}" for name, one in found.items() if one["late"])
        # What an instructor has decided by hand.
        changed = " ".join(result["id"] for result in every(after) if result["corrected_from"] is not None)
        by_hand = [
            f"{name}{name and ': '}{words}" for name, some in after["comments"].items() for words in some
        ]
        said_by_hand = safe("; ".join(by_hand))
        class_rows.append([student, *scores, total, maximum, status, absent, late, changed, said_by_hand])
        for one, score in zip(exercises, scores, strict=True):
            nbgrader.append([one["stem"], student, score, wording.number(found[one["id"]]["of"])])
        write_student(after, out / record["student"])
    write(out / "grades.csv", class_rows)
    write(out / "nbgrader.csv", nbgrader)
    (out / "items.html").write_text(items(graded, exercises, seed, len(records) - len(graded)))
    return write_lists(course, grades, weights, exercises, out, safe)


def safe(word):
    """A spreadsheet runs what begins like a formula, in wide letters too."""
    return f"'{word}" if word.lstrip()[:1] in tuple("=+-@\uff1d\uff0b\uff0d\uff20") else word


def common(words):
    """A failure without its numbers: two students rarely fail with the same ones."""
    return re.sub(r"-?\d+(\.\d+)?(e[+-]?\d+)?", "#", words)


def kind(record, result):
    """What the item analysis counts. A file that was not handed in, or is still the starter, says nothing
    about a check. One with a syntax error was tried: its first check failed, the others are not reached."""
    if result["id"] in record["untouched"] or result["came"].startswith("not written yet"):
        return "not tried"
    return "failed" if result["status"] in ("error", "timeout") else result["status"]


def of(record, identity):
    results = record["exercises"][identity.partition(".")[0]]
    return next(result for result in results if result["id"] == identity)


def discrimination(records, one, identity):
    """How well a check tells good students from others: the correlation of its points with the sum of all
    other checks. No words where all have the same, or there are too few to say anything."""
    points = [of(record, identity)["score"] for record in records]
    wholes = [sum(result["score"] for result in every(record)) for record in records]
    rest = [whole - mine for whole, mine in zip(wholes, points, strict=True)]
    if len(records) < FEWEST or len(set(points)) < 2 or len(set(rest)) < 2:
        return ""
    return f"{correlation(points, rest):.2f}"


FEWEST = 5
KINDS = ("passed", "failed", "not reached", "not tried")


def items(records, exercises, seed, missing):
    """The page about the checks: who passed each, and what most of the others did wrong."""
    where = "; ".join(sorted({record["containment"] for record in records}))
    parts = [
        f"<h1>Item analysis: {len(records)} submissions</h1>",
        f"<p class=dim>Seed {html.escape(str(seed))}. Contained at {html.escape(where)}.</p>",
        f"<p><b>{missing} not graded, because the machine failed.</b></p>" * bool(missing),
        "<p>Not tried: the file is missing or still the starter, or the function is not written. "
        "Discrimination: the correlation of a check's points with those of all other checks. "
        "Near 1, the students who pass it have most points elsewhere. Near 0 or below, look at the check "
        f"before you trust it. It needs at least {FEWEST} submissions that differ.</p>",
    ]
    for one in exercises:
        graded = [record for record in records if one["id"] in record["exercises"]]
        lines = [facts_of(graded, one, entry) for entry in one["check"]]
        parts.append(f"<h2>{one['id']} {html.escape(one['title'])}</h2>")
        head = ("check", "", *KINDS, "discrimination", "most common failure")
        parts.append(table(head, lines, range(2, 7)))
    return page("Item analysis", parts, "matrix")


def facts_of(records, one, entry):
    """What the item analysis says of a check: a word for each of its columns."""
    results = [of(record, entry["id"]) for record in records]
    kinds = [kind(record, result) for record, result in zip(records, results, strict=True)]
    failed = [result["came"] for result, kind in zip(results, kinds, strict=True) if kind == "failed"]
    ((cause, times),) = Counter(map(common, failed)).most_common(1) or [("", 0)]
    example = next((came for came in failed if common(came) == cause), "")
    words = f"{times} times, for example: {html.escape(example[:200])}" if times else ""
    counts = map(Counter(kinds).__getitem__, KINDS)
    return [
        entry["id"],
        html.escape(entry["title"]),
        *counts,
        discrimination(records, one, entry["id"]),
        words,
    ]
