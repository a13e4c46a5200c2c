"""Build the zip file for a Gradescope autograder: `make gradescope`. It contains no solutions."""

import argparse
import zipfile
from pathlib import Path

from grader.exercises import manifest
from grader.settings import HERE, ROOT

RECIPES = HERE / "recipes"
LEFT_OUT = ("bundle", "mutants", "starters", "sweep", "watch")


def contents():
    """Each file of the bundle, by its name in it."""
    found = {"setup.sh": RECIPES / "setup.sh", "run_autograder": RECIPES / "run_autograder"}
    files = [path for path in HERE.glob("*.py") if path.stem not in LEFT_OUT]
    files += [*HERE.glob("grader/*.py"), *HERE.glob("sandbox/*.py")]
    # By name: whatever else lies in the folder of an exercise is made of its solution.
    for one in manifest():
        files += [HERE / one["stem"] / "exercise.toml", *(HERE / one["stem"]).glob("test_*.py")]
    for path in sorted(files):
        found[f"grader/{path.relative_to(ROOT).as_posix()}"] = path
    return found


def requirements():
    """What the grader imports: torch, pytest and psutil as the lessons pin them, and numpy."""
    lines = (ROOT / "requirements.txt").read_text().splitlines()
    pinned = [line for line in lines if line.startswith(("torch==", "pytest==", "psutil=="))]
    return "\n".join([*pinned, "numpy", ""])


def build(path):
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as bundle:
        for name, file in contents().items():
            entry = zipfile.ZipInfo(name, date_time=(2026, 1, 1, 0, 0, 0))
            entry.external_attr = (0o755 if file.stat().st_mode & 0o100 else 0o644) << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            bundle.writestr(entry, file.read_bytes())
        bundle.writestr("grader/requirements.txt", requirements())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("out/gradescope.zip"), help="where to write it")
    arguments = parser.parse_args()
    build(arguments.out)
    print(f"{arguments.out}: upload this file as the autograder of a programming assignment")
