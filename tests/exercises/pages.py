"""What a graded submission looks like: for Gradescope, as a page, and the tables and the item analysis of a
class. All that a student wrote is escaped before it gets into a page."""

import base64
import csv
import html
import io
import json
import re
from collections import Counter
from statistics import correlation, mean, median

import judge
from course import write_lists

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


def page(title, body, kind=""):
    head = '<!doctype html><html lang="en"><meta charset="utf-8">'
    head += '<meta name="viewport" content="width=device-width">'
    head += f"<title>{html.escape(title)}</title><style>{STYLE}</style>"
    return f'{head}\n<body class="{kind}">\n{body}\n</body></html>\n'


def row(*cells, tag="td", numbers=()):
    words = (f"<{tag}{' class=n' if n in numbers else ''}>{cell}</{tag}>" for n, cell in enumerate(cells))
    return f"<tr>{''.join(words)}</tr>"


def total(record):
    return points(result for results in record["exercises"].values() for result in results)


def most(record):
    return sum(result["points"] for results in record["exercises"].values() for result in results)


def points(results):
    """The points that a student may see now: a sum with a hidden check in it would tell its result."""
    return sum(result["score"] for result in results if result["visibility"] == "visible")


def result_of(result):
    """The Result of a check, without what a course has added to it (course.py)."""
    more = ("corrected_from", "hints_later")
    return judge.Result(**{name: value for name, value in result.items() if name not in more})


def passes(result):
    """Points that were given by hand decide more than the judge does."""
    if "corrected_from" in result:
        return result["score"] >= result["points"]
    return result["status"] == "passed"


def comments(record, name):
    return record.get("comments", {}).get(name, [])


def report(record):
    """The page of one student."""
    escape, number = html.escape, judge.number
    parts = [
        f"<h1>{escape(record['student'])}: {number(total(record))} of {number(most(record))} points</h1>"
    ]
    parts.append(f"<p class=dim>{escape(terms(record))}</p>")
    if record["trouble"]:
        parts.append(f"<p class=failed>{escape(record['trouble'])}</p>")
    hidden = [r["id"] for some in record["exercises"].values() for r in some if r["visibility"] != "visible"]
    if hidden:
        parts.append(f"<p>Hidden for now, and in no sum on this page: {', '.join(hidden)}.</p>")
    parts += [f"<p><b>Comment:</b> {escape(words)}</p>" for words in comments(record, "")]
    if len(record["exercises"]) > 1:
        parts.append(overview(record))
    for identity, results in record["exercises"].items():
        one = judge.exercise(identity)
        decided = any("corrected_from" in r or comments(record, r["id"]) for r in results)
        nothing = all(result["about_file"] or result["status"] == "not reached" for result in results)
        if nothing and not decided and not comments(record, identity):
            head = f"{identity} {escape(one['title'])}: 0 of {number(judge.points_of(one))}"
            parts.append(f"<h2>{head}</h2><p>{escape(results[0]['came'])}</p>")
            continue
        head = (
            f"{identity} {escape(one['title'])}: {number(points(results))} of {number(judge.points_of(one))}"
        )
        parts.append(f"<h2>{head}</h2>")
        parts += [f"<p><b>Comment:</b> {escape(words)}</p>" for words in comments(record, identity)]
        parts.append("<table>")
        parts.append(row("check", "", "points", "", tag="th", numbers=(2,)))
        for result in results:
            status, score = result["status"], number(result["score"])
            if "corrected_from" in result:
                status, score = "corrected", f"{score} (was {number(result['corrected_from'])})"
            said = "".join(f"<p><b>Comment:</b> {escape(one)}</p>" for one in comments(record, result["id"]))
            if result["visibility"] != "visible":
                status, score, said = "hidden", "?", ""
            parts.append(
                row(
                    result["id"],
                    escape(result["title"]) + details(result) + said,
                    f"{score} of {number(result['points'])}",
                    f'<span class="{status.replace(" ", "-")}">{status}</span>',
                    numbers=(2,),
                )
            )
        parts.append("</table>")
    return page(f"{record['student']}: exercises", "\n".join(parts))


def terms(record):
    """Under which a submission was graded."""
    words = f"Contained at {record['containment']}. Seed {record['seed']}. "
    return words + f"Limits: {judge.CHECK_SECONDS} s per check, {judge.SUBMISSION_SECONDS} s per submission."


def overview(record):
    """A line for each exercise."""
    lines = [row("exercise", "", "points", tag="th", numbers=(2,))]
    for identity, results in record["exercises"].items():
        one = judge.exercise(identity)
        earned = f"{judge.number(points(results))} of {judge.number(judge.points_of(one))}"
        lines.append(row(identity, html.escape(one["title"]), earned, numbers=(2,)))
    return f"<table>{''.join(lines)}</table>"


def details(result):
    if result["status"] == "passed" or result["visibility"] != "visible":
        return ""
    if result["status"] == "not reached":
        return f" <span class=dim>{html.escape(result['came'])}</span>"
    words = []
    for name in ("tried", "came", "expected"):
        if result[name]:
            label = "result" if name == "came" else name
            words.append(f"<dt>{label}</dt><dd>{html.escape(result[name])}</dd>")
    for hint in judge.helpful(result_of(result), 0 if result.get("hints_later") else 1):
        words.append(f"<dt>hint</dt><dd>{html.escape(hint)}</dd>")
    printed = f"<pre>{html.escape(result['output'])}</pre>" if result["output"].strip() else ""
    return (f"<dl>{''.join(words)}</dl>" if words else "") + printed


def gradescope(record):
    """results.json. The maximum of each test is that of exercise.toml, whatever ran."""
    tests = []
    for results in record["exercises"].values():
        for result in results:
            one, later = result_of(result), result.get("hints_later")
            detail = judge.detail(one, 0 if later else 1) if result["status"] != "passed" else []
            if "corrected_from" in result:
                detail.append(f"corrected by hand: {judge.number(result['corrected_from'])} points before")
            detail += [f"comment: {words}" for words in comments(record, result["id"])]
            tests.append(
                {
                    "number": result["id"],
                    "name": result["title"],
                    "score": result["score"],
                    "max_score": result["points"],
                    "status": "passed" if passes(result) else "failed",
                    "visibility": result["visibility"],
                    "output": "\n".join(detail),
                    "output_format": "text",
                }
            )
            # Gradescope hides whole tests: a hint that comes later is one of its own, without points.
            for hint in judge.helpful(one, 1) if later else []:
                name = {"number": result["id"], "name": f"hint for {result['title']}"}
                tests.append(name | {"visibility": "after_due_date", "output": hint, "output_format": "text"})
    said = [
        f"comment{name and ' on '}{name}: {words}"
        for name in ("", *record["exercises"])
        for words in comments(record, name)
    ]
    return {
        "score": sum(result["score"] for results in record["exercises"].values() for result in results),
        "output": "\n".join([terms(record), *said]),
        "output_format": "text",
        "stdout_visibility": "hidden",
        "tests": tests,
    }


def matrix(rows, level):
    """The page of the selftest: every submission that the grader was graded with."""
    escape, number = html.escape, judge.number
    right = sum(row["right"] for row in rows)
    parts = [f"<h1>Test of the grader: {right} of {len(rows)} submissions graded as required</h1>"]
    parts.append(f"<p class=dim>Contained at {escape(level)}.</p><table>")
    head = ("", "", "submission", "required", "points", "seconds", "what the student reads")
    parts.append(row(*head, tag="th", numbers=(4, 5)))
    for one in rows:
        words = f"{one['fell_at']} {one['status']}: {one['came']}" if one["fell_at"] else ""
        if one["expected"]:
            words += f" (expected: {one['expected']})"
        mark = "passed" if one["right"] else "failed"
        parts.append(
            row(
                one["exercise"],
                f'<span class="{mark}">{one["kind"]}</span>',
                escape(one["name"].replace("_", " ")) + ("" if one["right"] else " <b>(BAD)</b>"),
                escape(one["wanted"]),
                f"{number(one['score'])} of {number(one['of'])}",
                f"{one['seconds']:.1f}",
                escape(words[:400]),
                numbers=(4, 5),
            )
        )
    parts.append("</table>")
    return page("Test of the grader", "\n".join(parts), "matrix")


# ---- the class --------------------------------------------------------------------------------


def write_class(records, out, seed, course):
    """The tables have what counts, after corrections, late days and weights; the item analysis has what the
    judge has found. Returns words about students who are in one list only."""
    graded = [record for record in records if not record["infrastructure"]]
    there = {identity for record in records for identity in record["exercises"]}
    exercises = [one for one in judge.manifest() if one["id"] in there]
    corrected = {record["student"]: course.applied(record) for record in graded}
    grades = {student: course.grades(record, exercises) for student, record in corrected.items()}
    weights = course.grades({"student": "", "exercises": {}}, exercises)
    maximum = judge.number(sum(one["of"] for one in weights.values()))
    with (out / "grades.csv").open("w", newline="") as file:
        write = csv.writer(file)
        names = [one["id"] for one in exercises]
        head = [
            "student",
            *names,
            "total",
            "maximum",
            "status",
            "not handed in",
            "days late",
            "corrected",
            "comments",
        ]
        write.writerow(head)
        for record in records:
            if record["infrastructure"]:
                empty = [""] * (len(exercises) + 1)
                write.writerow(
                    [safe(record["student"]), *empty, maximum, "infrastructure: not graded", *[""] * 4]
                )
                continue
            of_student = grades[record["student"]]
            scores = [of_student[name]["counts"] for name in names]
            late = " ".join(f"{name}:{one['late']}" for name, one in of_student.items() if one["late"])
            status = safe(f"unreadable: {record['trouble']}") if record["trouble"] else "graded"
            cells = map(judge.number, (*scores, sum(scores)))
            absent = " ".join(record["absent"])
            by_hand = decided_by_hand(corrected[record["student"]])
            write.writerow([safe(record["student"]), *cells, maximum, status, absent, late, *by_hand])
    with (out / "nbgrader.csv").open("w", newline="") as file:
        write = csv.writer(file)
        write.writerow(["assignment", "student_id", "score", "max_score"])
        for record in graded:
            for one in exercises:
                found = grades[record["student"]][one["id"]]
                score, of = judge.number(found["counts"]), judge.number(found["of"])
                write.writerow([one["stem"], safe(record["student"]), score, of])
    for record in graded:
        shown, folder = corrected[record["student"]], out / record["student"]
        (folder / "report.html").write_text(report(shown))
        (folder / "results.json").write_text(json.dumps(gradescope(shown), indent=1))
    (out / "items.html").write_text(items(graded, exercises, seed, len(records) - len(graded)))
    return write_lists(course, list(corrected.values()), exercises, out, safe)


def decided_by_hand(record):
    """The checks whose points an instructor has changed, and all comments, for a table."""
    every = [result for results in record["exercises"].values() for result in results]
    changed = " ".join(result["id"] for result in every if "corrected_from" in result)
    said = [
        f"{name}: {words}" if name else words for name, some in record["comments"].items() for words in some
    ]
    return changed, safe("; ".join(said))


def safe(word):
    """A spreadsheet runs what begins like a formula, in wide letters too."""
    return f"'{word}" if word.lstrip()[:1] in tuple("=+-@\uff1d\uff0b\uff0d\uff20") else word


def common(words):
    """A failure without its numbers: two students rarely fail with the same ones."""
    return re.sub(r"-?\d+(\.\d+)?(e[+-]?\d+)?", "#", words)


KIND_OF = {"failed": "failed", "error": "failed", "timeout": "failed"}


def kind(record, result):
    """What the item analysis counts. A file that was not handed in, or is still the starter, says nothing
    about a check. One with a syntax error was tried: its first check failed, the others are not reached."""
    untouched = result["id"] in record.get("untouched", [])
    if untouched or result["came"].startswith(("not written yet", "there is no file ")):
        return "not tried"
    if result["status"] == "not reached":
        return "not tried" if any(is_missing(record, name) for name in before(result)) else "not reached"
    return KIND_OF.get(result["status"], result["status"])


def before(result):
    """The checks that a result points to: "see 03.1a", or "03.1a and 03.1b must pass first"."""
    return result["came"].removeprefix("see ").removesuffix(" must pass first").split(" and ")


def is_missing(record, identity):
    """Whether a check has no result because its file is not there."""
    result = of(record, identity)
    if result["status"] == "not reached":
        return any(is_missing(record, name) for name in before(result))
    return result["came"].startswith("there is no file ")


def of(record, identity):
    """The result of a check in the record of a student."""
    results = record["exercises"][identity.partition(".")[0]]
    return next(result for result in results if result["id"] == identity)


def graded_in(records, one):
    """The records of all who have been graded in an exercise."""
    return [record for record in records if one["id"] in record["exercises"]]


def discrimination(records, one, identity):
    """How well a check tells good students from others: the correlation of its points with the sum of all
    other checks. No words where all have the same, or there are too few to say anything."""
    points = [of(record, identity)["score"] for record in records]
    rest = [sum(r["score"] for rs in record["exercises"].values() for r in rs) for record in records]
    rest = [whole - mine for whole, mine in zip(rest, points, strict=True)]
    if len(records) < FEWEST or len(set(points)) < 2 or len(set(rest)) < 2:
        return ""
    return f"{correlation(points, rest):.2f}"


FEWEST = 5


def items(records, exercises, seed, missing):
    escape, number = html.escape, judge.number
    parts = [f"<h1>Item analysis: {len(records)} submissions</h1>"]
    kinds = Counter(record["containment"] for record in records)
    where = "; ".join(f"{count} at {kind}" if len(kinds) > 1 else kind for kind, count in kinds.items())
    parts.append(f"<p class=dim>Seed {escape(str(seed))}. Contained at {escape(where)}.</p>")
    if missing:
        parts.append(
            f"<p><b>{missing} not graded, because the machine failed. The figures leave them out.</b></p>"
        )
    if records:
        parts.append(f'<img alt="Points, and who passed each check" src="{plots(records, exercises)}">')
    parts.append(
        "<p>Not tried: the file is missing or still the starter, or the function is not written. Seconds: "
        "the median. Discrimination: the correlation of a check's points with those of all other checks. "
        "Near 1, the students who pass it have most points elsewhere. Near 0 or below, look at the check "
        f"before you trust it. It needs at least {FEWEST} submissions that differ.</p>"
    )
    for one in exercises:
        parts.append(f"<h2>{one['id']} {escape(one['title'])}</h2><table class=wide>")
        head = (
            "check",
            "",
            "passed",
            "failed",
            "not reached",
            "not tried",
            "points",
            "seconds",
            "discrimination",
            "most common failure",
        )
        parts.append(row(*head, tag="th", numbers=(2, 3, 4, 5, 6, 7, 8)))
        there = graded_in(records, one)
        for entry in one["check"]:
            results = [of(record, entry["id"]) for record in there]
            kinds = [kind(record, result) for record, result in zip(there, results, strict=True)]
            counts = Counter(kinds)
            failed = [r["came"] for r, kind in zip(results, kinds, strict=True) if kind == "failed"]
            cause, times = next(iter(Counter(map(common, failed)).most_common(1)), ("", 0))
            example = next((came for came in failed if common(came) == cause), "")
            ran = [result["seconds"] for result in results if result["seconds"] > 0]
            parts.append(
                row(
                    entry["id"],
                    escape(entry["title"]),
                    *(counts[name] for name in ("passed", "failed", "not reached", "not tried")),
                    f"{mean(r['score'] for r in results):.2f} of {number(entry['points'])}"
                    if results
                    else "",
                    f"{median(ran):.2f}" if ran else "",
                    discrimination(there, one, entry["id"]),
                    f"{times} times, for example: {escape(example[:200])}" if times else "",
                    numbers=(2, 3, 4, 5, 6, 7, 8),
                )
            )
        parts.append("</table>")
    return page("Item analysis", "\n".join(parts), "matrix")


def plots(records, exercises):
    """A picture as a data address: the spread of the totals, and the share that passes each check."""
    from matplotlib.figure import Figure

    names = [entry["id"] for one in exercises for entry in one["check"]]
    by_check = {
        entry["id"]: Counter(kind(record, of(record, entry["id"])) for record in graded_in(records, one))
        for one in exercises
        for entry in one["check"]
    }
    figure = Figure(figsize=(9, 2.4 + 0.17 * len(names)), layout="constrained")
    above, below = figure.subplots(2, 1, height_ratios=[2, 0.17 * len(names) + 0.4])
    maximum = sum(judge.points_of(one) for one in exercises)
    above.hist(
        [total(record) for record in records], bins=min(20, maximum), range=(0, maximum), color="#4477aa"
    )
    above.set(xlabel="points", ylabel="students", xlim=(0, maximum))
    above.yaxis.get_major_locator().set_params(integer=True)
    left = [0.0] * len(names)
    for label, color in (
        ("passed", "#228833"),
        ("failed", "#ee6677"),
        ("not reached", "#bbbbbb"),
        ("not tried", "#e8e8e8"),
    ):
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
