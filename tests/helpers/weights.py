"""What weights and curves are worth that a run has left behind."""

import importlib
import shutil

import torch

import launcher
import workload

LESSONS = launcher.ROOT / "lessons"


def recount(weights, test_size):
    """The accuracy of these weights on the test images, counted in one process, in lesson 01's model."""
    model = importlib.import_module("01_single_gpu").workload.ConvNet((1, 28, 28))
    model.load_state_dict(torch.load(weights, weights_only=True))
    digits = workload.draw_digits(test_size, seed=2)
    with torch.no_grad():
        return (model(digits.images).argmax(dim=1) == digits.labels).sum().item() / test_size


def curve_of(out, stem):
    """What must not depend on a crash: the epochs, their losses and accuracies."""
    return [(row["epoch"], row["loss"], row["accuracy"]) for row in launcher.read_curve(out, stem)]


def copy_lessons(folder):
    """The scripts and what they import, for a test that changes a line of them."""
    shutil.copytree(LESSONS, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))


def run_changed(forks, tmp_path, stem, processes, text, instead, *options, folder, **environment):
    """Run a copy of a lesson in which one text is replaced, with the model of victim.py, which has all that
    a snapshot could forget. Returns the bytes of its weights, and its curve."""
    changed = tmp_path / folder / "lessons"
    copy_lessons(changed)
    lesson = (changed / f"{stem}.py").read_text()
    assert lesson.count(text) == 1, "the lesson has changed: change this test with it"
    (changed / f"{stem}.py").write_text(lesson.replace(text, instead))
    # One agent, which starts all again after a crash.
    words, more = launcher.command("05_snapshots", processes, *options)
    victim = launcher.ROOT / "tests/helpers/victim.py"
    words = [str(victim) if word.endswith("05_snapshots.py") else word for word in words]
    environment |= more | {"LESSON": str(changed / f"{stem}.py")}
    code, left = forks.run(words, tmp_path / folder, environment, limit=120)
    assert (code, left) == (0, []), (tmp_path / folder / ".err").read_text()
    out = tmp_path / folder / "out"
    return (out / f"{stem}.pt").read_bytes(), curve_of(out, stem)
