"""From the files of a submission to the results of all checks of an exercise."""

import ast
import functools
import time
import traceback
import warnings
from pathlib import Path
from typing import Any

from judge import forbidden, hints, printed, waits
from judge.connection import Gone, Nursery
from judge.exercises import Entry, Exercise, check_function
from judge.results import Result, Verdict
from judge.settings import LARGEST_FILE, SOLUTIONS, SUBMISSION_SECONDS
from judge.trial import Trial
from judge.wording import visible

# What a check raises that gets something else than it asked for. Where there is a solution, it is asked.
OF_VALUES = (TypeError, AttributeError, LookupError, ValueError)


def grade(
    one: Exercise,
    folder: str | Path,
    nursery: Nursery,
    seed: Any = 0,
    left: float = SUBMISSION_SECONDS,
) -> list[Result]:
    """All checks of one exercise, in order. `left` are the seconds that the submission still has; when they
    are over, no check is begun."""
    results, passed = [], set()
    for entry in one["check"]:
        if left > 0:
            results.append(grade_one(one, entry, folder, nursery, seed, passed))
            left -= results[-1].seconds
        else:
            results.append(result_of(entry))
            results[-1].status = "timeout"
            results[-1].came = f"the time limit of {SUBMISSION_SECONDS} s for a submission was reached"
        said_before(results)
        if results[-1].status == "passed":
            passed.add(entry["id"])
    return results


def said_before(results: list[Result]) -> None:
    """A file that is not there, or is no Python, is said once."""
    last = results[-1]
    for result in results[:-1]:
        if last.about_file and result.about_file and result.came == last.came:
            last.status, last.came, last.expected = "not reached", f"see {result.id}", ""
            return


def result_of(entry: Entry) -> Result:
    visibility = entry.get("visibility", "visible")
    return Result(entry["id"], entry["title"], entry["points"], hints=entry["hints"], visibility=visibility)


def grade_one(
    one: Exercise, entry: Entry, folder: str | Path, nursery: Nursery, seed: Any, passed: set[str]
) -> Result:
    """One check. `passed` holds the names of those that have been passed before."""
    result = result_of(entry)
    missing = [need for need in entry.get("needs", []) if need not in passed]
    if missing:
        result.came = f"{' and '.join(missing)} must pass first"
        return result
    try:
        files = read_files(of_check(one, entry), folder)
    except Verdict as verdict:
        result.status, result.came, result.expected = verdict.status, verdict.came, verdict.expected
        result.about_file = True
        return result
    one_check(one, entry, files, nursery, seed, result)
    if result.status != "passed":
        result.hints = hints.fitting(entry, result.came, result.expected)
    return result


def one_check(
    one: Exercise, entry: Entry, files: dict[str, str], nursery: Nursery, seed: Any, result: Result
) -> None:
    """Run a check, and put into the result what came of it. That the machine fails is believed only if the
    recorded solution fails then as well, in a new nursery: no submission can cause it."""
    began = time.monotonic()
    one_try(one, entry, files, nursery, seed, result)
    if result.status == "infrastructure" and SOLUTIONS.exists():
        nursery.close()
        solved = Result(entry["id"], entry["title"], entry["points"])
        one_try(one, entry, read_files(of_check(one, entry), SOLUTIONS), nursery, seed, solved)
        if solved.status == "passed":
            # It may have been for a moment only: the submission is not to pay for that.
            one_try(one, entry, files, nursery, seed, result)
            result.left += 1  # whatever it has done to its nursery, the next submission gets a new one
            if result.status == "infrastructure":
                result.status = "error"
                result.came = f"with your code, {result.came}; with the recorded solution, the check passes"
    result.seconds = round(time.monotonic() - began, 3)


def one_try(
    one: Exercise, entry: Entry, files: dict[str, str], nursery: Nursery, seed: Any, result: Result
) -> None:
    """Run a check once; twice if the nursery has ended."""
    result.status, result.score, result.came, result.expected = "not reached", 0, "", ""
    result.output = result.printed = ""
    for attempt in (1, 2):
        trial = Trial(nursery, one, entry["id"], files, seed)
        try:
            check_function(entry["id"])(trial)
            if not trial.runs:
                raise RuntimeError(f"check {entry['id']} has run nothing")
            result.status, result.score = "passed", entry["points"]
        except Verdict as verdict:
            result.status, result.came, result.expected = verdict.status, verdict.came, verdict.expected
            more = waits.different_roots(dict(enumerate(trial.answer["ranks"]))) if trial.answer else ""
            result.came += f"; {more}" if more else ""
        except Gone as gone:
            nursery.close()
            # Nothing of a student runs in the nursery. If it ends twice in the same check, it was ended.
            result.status, result.came = "infrastructure", "the process that runs your code did not start"
            if trial.runs:
                result.status = "error"
                result.came = "the process that runs your code was killed while your code ran"
            result.output = str(gone)
            if attempt == 1:
                continue
        except Exception as error:
            # A fault of a check must never become a student's zero.
            result.status = "infrastructure"
            words = f"{type(error).__name__}: {error}"
            result.came = f"the check itself failed: {words}"
            if trial.runs and isinstance(error, OF_VALUES) and not SOLUTIONS.exists():
                result.status = "error"
                result.came = f"your code sent something that the check cannot read ({words})"
            result.output = traceback.format_exc()[-3000:]
        finally:
            nursery.forget(trial.folders)
        break
    came = printed.fewer(visible(result.came).split("\n"), *printed.RAISED)
    result.came, result.expected = "\n".join(came), visible(result.expected)
    result.tried = " ".join(trial.words)
    result.output = visible(result.output or printed.some(trial.printed, result.status == "passed"))
    result.printed = visible(printed.whole(trial.printed))
    result.left += trial.left


def of_check(one: Exercise, entry: Entry) -> Exercise:
    """The exercise with the files of this check: one of one script of several has nothing to do with the
    others."""
    return one | {"files": entry.get("files", one["files"])}


def read_files(one: Exercise, folder: str | Path) -> dict[str, str]:
    """The declared files of a submission as text, and nothing else. Raises Verdict."""
    files = {}
    for name in one["files"]:
        path = Path(folder) / name
        try:
            if not path.is_file():
                raise Verdict("error", f"there is no file {name}")
            if path.stat().st_size > LARGEST_FILE:
                raise Verdict("error", f"{name} is larger than {LARGEST_FILE // 1000} kB")
            files[name] = path.read_text(encoding="utf-8-sig")  # some editors put a mark in front
        except UnicodeDecodeError:
            came = f"{name} is not encoded in UTF-8: save it as UTF-8 in your editor"
            raise Verdict("error", came) from None
        except OSError as error:
            raise Verdict("error", f"{name} cannot be read: {error}") from None
        refuse_names(one, name, files[name])
    return files


def refuse_names(one: Exercise, name: str, text: str) -> None:
    """What an exercise does without, found by reading. Reading is not enough: workers take it away, too."""
    refused = what_is_refused(tuple(one.get("forbidden", [])), name, text)
    if refused:
        raise Verdict(*refused)


# Each check of an exercise reads its files, and they do not change meanwhile.
@functools.lru_cache(maxsize=64)
def what_is_refused(names: tuple[str, ...], name: str, text: str) -> tuple[str, ...]:
    """Status, result and expectation for a file that is no Python, or uses one of these names."""
    try:
        with warnings.catch_warnings():  # a "\\d" is a warning, and pytest makes errors of them
            warnings.simplefilter("ignore")
            tree = ast.parse(text, name)
    except SyntaxError as error:
        return "error", f"{name} has a syntax error in line {error.lineno}: {error.msg}"
    except (RecursionError, MemoryError, ValueError):
        return "error", f"{name} is not valid Python"
    found = forbidden.used(tree, list(names))
    if not found:
        return ()
    came = f"line {found[0]} of {name} uses {found[1]}"
    return "failed", came, "this exercise must be solved without it"
