"""What a graded submission looks like: for Gradescope, as a page, and the tables and the item analysis of a
class. All that a student wrote is escaped before it gets into a page."""

import csv
import html
import json
import re
from collections import Counter

import corrections
from grader import wording
from grader.exercises import exercise, manifest, points_of
from grader.results import Result
from grader.settings import RUN_SECONDS, SUBMISSION_SECONDS

STYLE = """
:root { color-scheme: light dark; --line: #8884; --good: #1a7f37; --bad: #cf222e; --dim: #8a8f98 }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60em; margin: 2em auto; padding: 0 1em }
table { border-collapse: collapse; width: 100%; margin: 1em 0 2em }
th, td { text-align: left; vertical-align: top; padding: .35em .6em; border-bottom: 1px solid var(--line) }
th, td:first-child, td:last-child { white-space: nowrap }
.matrix { max-width: 90em }
.matrix td:last-child { white-space: normal; overflow-wrap: anywhere; min-width: 20em }
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
    words = ""
    for number, cell in enumerate(cells):
        words += f"<{tag} class=n>{cell}</{tag}>" if number in numbers else f"<{tag}>{cell}</{tag}>"
    return f"<tr>{words}</tr>"


def table(head, lines, numbers):
    """`numbers` are the columns of numbers."""
    rows = ["<table>", row(head, "th", numbers)]
    for cells in lines:
        rows.append(row(cells, "td", numbers))
    return "\n".join([*rows, "</table>"])


def every(record):
    found = []
    for results in record["exercises"].values():
        found += results
    return found


def total(results, name):
    """The sum of the scores or of the points."""
    return sum(result[name] for result in results)


def points(results):
    return wording.number(total(results, "score"))


def is_broken(results):
    """Whether the machine has failed: then there are no points, and no zero."""
    return any(result["status"] == "infrastructure" for result in results)


def earned(results):
    """`9 of 12 points`"""
    if is_broken(results):
        return "not graded, because this machine failed"
    most = wording.number(total(results, "points"))
    return f"{points(results)} of {most} points"


def comments(record, name):
    return record.get("comments", {}).get(name, [])


def commented(record, name):
    words = ""
    for comment in comments(record, name):
        words += f"<p><b>Comment:</b> {html.escape(comment)}</p>"
    return words


def report(record):
    student = html.escape(record["student"])
    parts = [
        f"<h1>{student}: {earned(every(record))}</h1>",
        f"<p class=dim>{html.escape(terms(record))}</p>",
    ]
    if record["trouble"]:
        parts.append(f"<p class=failed>{html.escape(record['trouble'])}</p>")
    for identity, guess in record["absent"].items():
        if guess:
            parts.append(f"<p class=failed>Not handed in: {identity} ({html.escape(guess)})</p>")
    parts.append(commented(record, ""))
    for identity in record["exercises"]:
        parts.append(of_exercise(record, identity))
    return page(f"{record['student']}: exercises", parts)


def of_exercise(record, identity):
    """The part of a student's page about one exercise."""
    results = record["exercises"][identity]
    lines = []
    for result in results:
        status = result["status"]
        score = wording.number(result["score"])
        if result["corrected_from"] is not None:
            status = "corrected"
            score = f"{score} (was {wording.number(result['corrected_from'])})"
        elif status == "infrastructure":
            score = "?"
        words = html.escape(result["title"])
        why = "\n".join(said(result)[1:])
        if why:
            words += f"<pre>{html.escape(why)}</pre>"
        words += commented(record, result["id"])
        mark = f'<span class="{status.replace(" ", "-")}">{status}</span>'
        lines.append((result["id"], words, f"{score} of {wording.number(result['points'])}", mark))
    head = f"<h2>{identity} {html.escape(exercise(identity)['title'])}: {earned(results)}</h2>"
    return f"{head}\n{commented(record, identity)}\n{table(('check', '', 'points', ''), lines, {2})}"


def terms(record):
    """Under which a submission was graded."""
    words = f"Contained at {record['containment']}. Seed {record['seed']}. "
    for identity, seed in record["seeds"].items():
        words += f"Seed of exercise {identity}: {seed}. "
    return words + f"Limits: {RUN_SECONDS} s per run, {SUBMISSION_SECONDS} s per submission."


def said(result):
    """Why a check was not passed: a line of its status, and others."""
    if result["status"] == "passed":
        return []
    return wording.detail(Result(**result), 1)


def gradescope(record):
    """results.json. The maximum of each test is that of exercise.toml, whatever ran."""
    tests = []
    for result in every(record):
        lines = said(result)
        if result["corrected_from"] is not None:
            lines.append(f"corrected by hand: {wording.number(result['corrected_from'])} points before")
        for words in comments(record, result["id"]):
            lines.append(f"comment: {words}")
        test = {
            "number": result["id"],
            "name": result["title"],
            "score": result["score"],
            "max_score": result["points"],
            # Points that were given by hand decide more than the grader does.
            "status": "passed" if result["score"] >= result["points"] else "failed",
            "output": "\n".join(lines),
            "output_format": "text",
        }
        tests.append(test)
    about = [terms(record)]
    for name in ("", *record["exercises"]):
        for words in comments(record, name):
            about.append(f"comment on {name}: {words}" if name else f"comment: {words}")
    return {
        "score": total(every(record), "score"),
        "output": "\n".join(about),
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


OF_CLASS = ("status", "not handed in", "corrected", "comments")


def exercises_of(records):
    """The exercises for which any student has a grade, in their order."""
    there = set()
    for record in records:
        there.update(record["exercises"])
    return [one for one in manifest() if one["id"] in there]


def corrected_checks(record):
    found = []
    for result in every(record):
        if result["corrected_from"] is not None:
            found.append(result["id"])
    return found


def all_comments(record):
    """Each with the name of its exercise or check, if it is about one."""
    found = []
    for name, some in record["comments"].items():
        for words in some:
            found.append(f"{name}: {words}" if name else words)
    return found


def write_class(records, out, seed, by_hand):
    """The tables have the points after the corrections by hand; the item analysis has what the grader has
    found."""
    graded = [record for record in records if not record["infrastructure"]]
    ours = exercises_of(records)
    names = [one["id"] for one in ours]
    maximum = wording.number(sum(map(points_of, ours)))

    class_rows = [["student", *names, "total", "maximum", *OF_CLASS]]
    nbgrader = [["assignment", "student_id", "score", "max_score"]]
    for record in records:
        student = safe(record["student"])
        if record["infrastructure"]:
            status = safe(f"not graded, because this machine failed: {record['trouble']}")
            class_rows.append([student, *[""] * len(names), "", maximum, status, "", "", ""])
            continue
        after = corrections.applied(record, by_hand)
        write_student(after, out / record["student"])
        scores = [points(after["exercises"].get(name, [])) for name in names]
        status = safe(f"unreadable: {record['trouble']}") if record["trouble"] else "graded"
        absent = []
        for name, guess in record["absent"].items():
            absent.append(f"{name} ({guess})" if guess else name)
        absent = safe(", ".join(absent))
        corrected = " ".join(corrected_checks(after))
        said_by_hand = safe("; ".join(all_comments(after)))
        of_all = points(every(after))
        class_rows.append([student, *scores, of_all, maximum, status, absent, corrected, said_by_hand])
        for one, score in zip(ours, scores, strict=True):
            nbgrader.append([one["stem"], student, score, wording.number(points_of(one))])
    write(out / "grades.csv", class_rows)
    write(out / "nbgrader.csv", nbgrader)
    (out / "items.html").write_text(items(graded, ours, seed, len(records) - len(graded)))


def write(path, lines):
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows(lines)


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
    for result in record["exercises"][identity.partition(".")[0]]:
        if result["id"] == identity:
            return result
    raise KeyError(identity)


KINDS = ("passed", "failed", "not reached", "not tried")


def items(records, exercises, seed, missing):
    """The page about the checks: who passed each, and what most of the others did wrong."""
    containments = {record["containment"] for record in records}
    where = "; ".join(sorted(containments))
    parts = [
        f"<h1>Item analysis: {wording.so_many(len(records), 'submission')}</h1>",
        f"<p class=dim>Seed {html.escape(str(seed))}. Contained at {html.escape(where)}.</p>",
    ]
    if missing:
        parts.append(f"<p><b>{missing} not graded, because the machine failed.</b></p>")
    parts.append(
        "<p>Not tried: the file is missing or still the starter, or the function is not written.</p>"
    )
    for one in exercises:
        graded = [record for record in records if one["id"] in record["exercises"]]
        lines = [facts_of(graded, entry) for entry in one["check"]]
        parts.append(f"<h2>{one['id']} {html.escape(one['title'])}</h2>")
        parts.append(table(("check", "", *KINDS, "most common failure"), lines, range(2, 6)))
    return page("Item analysis", parts, "matrix")


def facts_of(records, entry):
    """What the item analysis says of a check: a word for each of its columns."""
    counts = Counter()
    failed = []
    for record in records:
        result = of(record, entry["id"])
        counts[kind(record, result)] += 1
        if kind(record, result) == "failed":
            failed.append(result["came"])
    words = ""
    if failed:
        causes = list(map(common, failed))
        ((cause, times),) = Counter(causes).most_common(1)
        example = failed[causes.index(cause)]
        words = f"{wording.so_many(times, 'time')}, for example: {html.escape(example[:200])}"
    numbers = [counts[name] for name in KINDS]
    return [entry["id"], html.escape(entry["title"]), *numbers, words]
