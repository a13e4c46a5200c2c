"""Copies of the lessons, for tests that change lines of them."""

import shutil

from tools.lessons import ROOT


def copy_lessons(folder):
    """The scripts and what they import, for a test that changes a line of them."""
    shutil.copytree(
        ROOT / "lessons", folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__")
    )


def copy_scripts(folder):
    """The lessons, the tools, and the notebooks' copy of a lesson: all scripts that lessons.toml names."""
    copy_lessons(folder / "lessons")
    for name in ("tools", "notebooks/show"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))


def lesson_with_a_bug(folder, stem, where, bug):
    """A copy of a lesson that does this before a step of epoch 2, on the ranks for which `where` holds."""
    copy_lessons(folder)
    script = folder / f"{stem}.py"
    lesson = script.read_text()
    loss = "            loss = cross_entropy(model(images), labels)\n"
    assert lesson.count(loss) == 1
    script.write_text(lesson.replace(loss, f"            if epoch == 2 and {where}: {bug}\n{loss}"))
    return script
