"""What a graded submission looks like: for Gradescope, as a page, and the tables and the item analysis of a
class. All that a student wrote is escaped before it gets into a page."""

import base64
import html
import io
import json
import re
from collections import Counter
from statistics import correlation, mean, median

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
dd, td:last-child { overflow-wrap: anywhere }
th, td:first-child, .not-reached { white-space: nowrap }
.matrix { max-width: 90em } .matrix td:nth-child(2), .matrix td:nth-child(4) { white-space: nowrap }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap }
.passed { color: var(--good) } .failed, .error, .timeout { color: var(--bad) }
.not-reached, .infrastructure, .dim { color: var(--dim) }
pre { white-space: pre-wrap; overflow-wrap: anywhere; background: #8881; padding: .5em; font-size: .85em }
img { max-width: 100%; background: white }
dt { float: left; width: 6em; color: var(--dim) } dd { margin-left: 6em }
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


def result_of(result):
    """The Result of a check, without what a course has added to it (course.py)."""
    more = ("corrected_from", "hints_later")
    return Result(**{name: value for name, value in result.items() if name not in more})


def passes(result):
    """Points that were given by hand decide more than the grader does."""
    if "corrected_from" in result:
        return result["score"] >= result["points"]
    return result["status"] == "passed"


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
    if len(record["exercises"]) > 1:
        lines = [
            (identity, html.escape(exercise(identity)["title"]), earned(exercise(identity), some))
            for identity, some in record["exercises"].items()
        ]
        parts.append(table(("exercise", "", "points"), lines, {2}))
    return page(f"{student}: exercises", parts + [of_exercise(record, name) for name in record["exercises"]])


def of_exercise(record, identity):
    """The part of a student's page about one exercise: a line alone if its file could not be read."""
    one, results = exercise(identity), record["exercises"][identity]
    head = f"<h2>{identity} {html.escape(one['title'])}: {earned(one, results)}</h2>"
    comment = commented(record, identity)
    decided = comment or any("corrected_from" in r or comments(record, r["id"]) for r in results)
    if not decided and all(result["about_file"] or result["status"] == "not reached" for result in results):
        head = f"{identity} {html.escape(one['title'])}: 0 of {wording.number(points_of(one))}"
        return f"<h2>{head}</h2><p>{html.escape(results[0]['came'])}</p>"
    lines = []
    for result in results:
        status, score = result["status"], wording.number(result["score"])
        if "corrected_from" in result:
            status, score = "corrected", f"{score} (was {wording.number(result['corrected_from'])})"
        words = html.escape(result["title"]) + details(result)
        if result["visibility"] == "visible":
            words += commented(record, result["id"])
        else:
            status, score = "hidden", "?"
        mark = f'<span class="{status.replace(" ", "-")}">{status}</span>'
        lines.append((result["id"], words, f"{score} of {wording.number(result['points'])}", mark))
    return f"{head}\n{comment}\n{table(('check', '', 'points', ''), lines, {2})}"


def earned(one, results):
    return f"{wording.number(points(results))} of {wording.number(points_of(one))}"


def terms(record):
    """Under which a submission was graded."""
    words = f"Contained at {record['containment']}. Seed {record['seed']}. "
    return words + f"Limits: {RUN_SECONDS} s per run, {SUBMISSION_SECONDS} s per submission."


def details(result):
    if result["status"] == "passed" or result["visibility"] != "visible":
        return ""
    if result["status"] == "not reached":
        return f" <span class=dim>{html.escape(result['came'])}</span>"
    said = [("tried", result["tried"]), ("result", result["came"]), ("expected", result["expected"])]
    hints = wording.helpful(result_of(result), 0 if result.get("hints_later") else 1)
    said += [("hint", hint) for hint in hints]
    words = "".join(f"<dt>{label}</dt><dd>{html.escape(text)}</dd>" for label, text in said if text)
    printed = f"<pre>{html.escape(result['output'])}</pre>" if result["output"].strip() else ""
    return f"<dl>{words}</dl>" * bool(words) + printed


def gradescope(record):
    """results.json. The maximum of each test is that of exercise.toml, whatever ran."""
    tests = []

    def test(result, name, visibility, output, **more):
        facts = {"number": result["id"], "name": name, "visibility": visibility, "output": output}
        tests.append(facts | {"output_format": "text"} | more)

    for result in every(record):
        one, later = result_of(result), result.get("hints_later")
        detail = wording.detail(one, 0 if later else 1) if result["status"] != "passed" else []
        if "corrected_from" in result:
            detail.append(f"corrected by hand: {wording.number(result['corrected_from'])} points before")
        detail += [f"comment: {words}" for words in comments(record, result["id"])]
        score = {"score": result["score"], "max_score": result["points"]}
        score["status"] = "passed" if passes(result) else "failed"
        test(result, result["title"], result["visibility"], "\n".join(detail), **score)
        # Gradescope hides whole tests: a hint that comes later is one of its own, without points.
        for hint in wording.helpful(one, 1) if later else []:
            test(result, f"hint for {result['title']}", "after_due_date", hint)
    said = [
        f"comment{name and ' on '}{name}: {words}"
        for name in ("", *record["exercises"])
        for words in comments(record, name)
    ]
    return {
        "score": sum(result["score"] for result in every(record)),
        "output": "\n".join([terms(record), *said]),
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
        changed = " ".join(result["id"] for result in every(after) if "corrected_from" in result)
        said = [f"{name}{name and ': '}{words}" for name, some in after["comments"].items() for words in some]
        by_hand = changed, safe("; ".join(said))
        class_rows.append([student, *scores, total, maximum, status, absent, late, *by_hand])
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
    untouched = result["id"] in record.get("untouched", [])
    if untouched or result["came"].startswith("not written yet") or is_missing(record, result):
        return "not tried"
    return "failed" if result["status"] in ("error", "timeout") else result["status"]


def is_missing(record, result):
    """Whether a check has no result because its file is not there."""
    if result["status"] != "not reached":
        return result["came"].startswith("there is no file ")
    # "see 03.1a", or "03.1a and 03.1b must pass first"
    names = result["came"].removeprefix("see ").removesuffix(" must pass first").split(" and ")
    return any(is_missing(record, of(record, name)) for name in names)


def of(record, identity):
    results = record["exercises"][identity.partition(".")[0]]
    return next(result for result in results if result["id"] == identity)


def graded_in(records, one):
    return [record for record in records if one["id"] in record["exercises"]]


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
KINDS = {"passed": "#228833", "failed": "#ee6677", "not reached": "#bbbbbb", "not tried": "#e8e8e8"}
OF_A_CHECK = ("check", "", *KINDS, "points", "seconds", "discrimination", "most common failure")
FIGURES = range(2, 9)  # columns of numbers


def items(records, exercises, seed, missing):
    """The page about the checks: who passed each, and what most of the others did wrong."""
    kinds = Counter(record["containment"] for record in records)
    where = "; ".join(f"{count} at {kind}" if len(kinds) > 1 else kind for kind, count in kinds.items())
    parts = [
        f"<h1>Item analysis: {len(records)} submissions</h1>",
        f"<p class=dim>Seed {html.escape(str(seed))}. Contained at {html.escape(where)}.</p>",
    ]
    if missing:
        words = f"{missing} not graded, because the machine failed. The figures leave them out."
        parts.append(f"<p><b>{words}</b></p>")
    if records:
        parts.append(f'<img alt="Points, and who passed each check" src="{plots(records, exercises)}">')
    parts.append(
        "<p>Not tried: the file is missing or still the starter, or the function is not written. Seconds: "
        "the median. Discrimination: the correlation of a check's points with those of all other checks. "
        "Near 1, the students who pass it have most points elsewhere. Near 0 or below, look at the check "
        f"before you trust it. It needs at least {FEWEST} submissions that differ.</p>"
    )
    for one in exercises:
        lines = [facts_of(graded_in(records, one), one, entry) for entry in one["check"]]
        parts.append(f"<h2>{one['id']} {html.escape(one['title'])}</h2>")
        parts.append(table(OF_A_CHECK, lines, FIGURES))
    return page("Item analysis", parts, "matrix")


def facts_of(records, one, entry):
    """What the item analysis says of a check: a word for each of its columns."""
    results = [of(record, entry["id"]) for record in records]
    kinds = [kind(record, result) for record, result in zip(records, results, strict=True)]
    failed = [result["came"] for result, kind in zip(results, kinds, strict=True) if kind == "failed"]
    cause, times = next(iter(Counter(map(common, failed)).most_common(1)), ("", 0))
    example = next((came for came in failed if common(came) == cause), "")
    ran = [result["seconds"] for result in results if result["seconds"] > 0]
    points = f"{mean(result['score'] for result in results):.2f}" if results else ""
    yield from (entry["id"], html.escape(entry["title"]), *map(Counter(kinds).__getitem__, KINDS))
    yield points and f"{points} of {wording.number(entry['points'])}"
    yield f"{median(ran):.2f}" if ran else ""
    yield discrimination(records, one, entry["id"])
    yield f"{times} times, for example: {html.escape(example[:200])}" if times else ""


def plots(records, exercises):
    """A picture as a data address: the spread of the totals, and the share that passes each check."""
    from matplotlib.figure import Figure

    by_check = {
        entry["id"]: Counter(kind(record, of(record, entry["id"])) for record in graded_in(records, one))
        for one in exercises
        for entry in one["check"]
    }
    names = list(by_check)
    figure = Figure(figsize=(9, 2.4 + 0.17 * len(names)), layout="constrained")
    above, below = figure.subplots(2, 1, height_ratios=[2, 0.17 * len(names) + 0.4])
    maximum = sum(points_of(one) for one in exercises)
    totals = [points(every(record)) for record in records]
    above.hist(totals, bins=min(20, maximum), range=(0, maximum), color="#4477aa")
    above.set(xlabel="points", ylabel="students", xlim=(0, maximum))
    above.yaxis.get_major_locator().set_params(integer=True)
    left = [0.0] * len(names)
    for label, color in KINDS.items():
        share = [100 * by_check[name][label] / max(1, by_check[name].total()) for name in names]
        below.barh(names, share, left=left, color=color, label=label)
        left = [a + b for a, b in zip(left, share, strict=True)]
    below.invert_yaxis()
    below.set(xlabel="percent of students", xlim=(0, 100), ylim=(len(names) - 0.4, -0.6))
    below.tick_params(axis="y", labelsize=7)
    below.legend(loc="lower center", bbox_to_anchor=(0.5, 1), ncols=4, frameon=False)
    for axes in (above, below):
        axes.spines[["top", "right"]].set_visible(False)
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=110)
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()
