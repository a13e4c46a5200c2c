"""The files of a submission: read as text, and nothing else of it."""

import ast
import functools
import warnings
from pathlib import Path

from grader.results import Verdict
from grader.settings import LARGEST_FILE


def read_files(one, folder: str | Path) -> dict[str, str]:
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
        if why := no_python(name, files[name]):
            raise Verdict("error", why)
    return files


# Each check of an exercise reads its files, and they do not change meanwhile.
@functools.lru_cache(maxsize=64)
def no_python(name: str, text: str) -> str:
    """Why a file is not valid Python; no words if it is."""
    try:
        with warnings.catch_warnings():  # a "\\d" is a warning, and pytest makes errors of them
            warnings.simplefilter("ignore")
            ast.parse(text, name)
    except SyntaxError as error:
        return f"{name} has a syntax error in line {error.lineno}: {error.msg}"
    except (RecursionError, MemoryError, ValueError):
        return f"{name} is not valid Python"
    return ""
