"""From the files of a submission to the results of all checks of an exercise."""

import ast
import time
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from judge.exercises import Entry, Exercise, check_function
from judge.nursery import Gone, Nursery
from judge.results import Result, Verdict
from judge.settings import LARGEST_FILE
from judge.trial import Trial
from judge.words import visible


def grade(
    one: Exercise,
    folder: str | Path,
    nursery: Nursery,
    seed: Any = 0,
    told: Callable[[Result], None] | None = None,
) -> list[Result]:
    """All checks of one exercise, in order. `told` is called with each Result as soon as it is there."""
    results, passed = [], set()
    for entry in one["check"]:
        results.append(grade_one(one, entry, folder, nursery, seed, passed))
        said_before(results)
        if results[-1].status == "passed":
            passed.add(entry["id"])
        if told:
            told(results[-1])
    return results


def said_before(results: list[Result]) -> None:
    """A file that is not there, or is no Python, is said once."""
    last = results[-1]
    for result in results[:-1]:
        if last.about_file and result.about_file and result.came == last.came:
            last.status, last.came, last.expected = "not reached", f"see {result.id}", ""
            return


def grade_one(
    one: Exercise, entry: Entry, folder: str | Path, nursery: Nursery, seed: Any, passed: set[str]
) -> Result:
    """One check. `passed` holds the names of those that have been passed before."""
    result = Result(
        entry["id"],
        entry["title"],
        entry["points"],
        hints=entry["hints"],
        visibility=entry.get("visibility", "visible"),
    )
    missing = [need for need in entry.get("needs", []) if need not in passed]
    if missing:
        result.came = f"comes after {' and '.join(missing)}"
        return result
    try:
        # A check of one script of several has nothing to do with the others.
        files = read_files(one | {"files": entry.get("files", one["files"])}, folder)
    except Verdict as verdict:
        result.status, result.came, result.expected = verdict.status, verdict.came, verdict.expected
        result.about_file = True
        return result
    one_check(one, entry, files, nursery, seed, result)
    return result


def one_check(
    one: Exercise, entry: Entry, files: dict[str, str], nursery: Nursery, seed: Any, result: Result
) -> None:
    """Run a check, and put into the result what came of it."""
    began = time.monotonic()
    for attempt in (1, 2):
        trial = Trial(nursery, one, entry["id"], files, seed)
        try:
            check_function(entry["id"])(trial)
            result.status, result.score = "passed", entry["points"]
            if not trial.runs:
                raise RuntimeError(f"check {entry['id']} has run nothing")
        except Verdict as verdict:
            result.status, result.came, result.expected = verdict.status, verdict.came, verdict.expected
        except Gone as gone:
            nursery.close()
            # Nothing of a student runs in the nursery. If it ends twice in the same check, it was ended.
            result.status, result.came = "infrastructure", "the process around your code did not start"
            if trial.runs:
                result.status = "error"
                result.came = "the process around your code was ended while your code ran"
            result.output = str(gone)
            if attempt == 1:
                continue
        except Exception as error:
            # A fault of a check must never become a student's zero.
            result.status = "infrastructure"
            result.came = f"the check itself failed: {type(error).__name__}: {error}"
            result.output = traceback.format_exc()[-3000:]
        finally:
            nursery.forget(trial.folders)
        break
    if result.status != "passed":
        result.score = 0
    result.came, result.expected = visible(result.came), visible(result.expected)
    result.tried = " ".join(trial.words)
    result.output = visible(result.output or trial.output)
    result.left = trial.left
    result.seconds = round(time.monotonic() - began, 3)


def read_files(one: Exercise, folder: str | Path) -> dict[str, str]:
    """The declared files of a submission as text, and nothing else. Raises Verdict."""
    files = {}
    for name in one["files"]:
        path = Path(folder) / name
        try:
            if not path.is_file():
                raise Verdict("error", f"{name} is not there")
            if path.stat().st_size > LARGEST_FILE:
                raise Verdict("error", f"{name} is larger than {LARGEST_FILE // 1000} kB")
            files[name] = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise Verdict("error", f"{name} cannot be read: {error}") from None
        refuse_names(one, name, files[name])
    return files


def refuse_names(one: Exercise, name: str, text: str) -> None:
    """What an exercise does without, found by reading. Reading is not enough: workers take it away, too."""
    words = {path.rpartition(".")[2] for path in one.get("forbidden", [])}
    try:
        with warnings.catch_warnings():  # a "\\d" is a warning, and pytest makes errors of them
            warnings.simplefilter("ignore")
            tree = ast.parse(text, name)
    except SyntaxError as error:
        raise Verdict("error", f"{name} has a syntax error in line {error.lineno}: {error.msg}") from None
    except (RecursionError, MemoryError, ValueError):
        raise Verdict("error", f"{name} cannot be read as Python") from None
    for node in ast.walk(tree):
        found = {getattr(node, "id", None), getattr(node, "attr", None)}
        if isinstance(node, ast.Import | ast.ImportFrom):
            found |= {alias.name.rpartition(".")[2] for alias in node.names}
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and len(node.value) < 80:
            found.add(node.value)
        for word in sorted(words & found):
            raise Verdict(
                "failed", f"line {node.lineno} of {name} uses {word}", "this exercise is to be done without"
            )
