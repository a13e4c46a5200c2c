"""What weights and curves are worth that a run has left behind."""

import importlib
import shutil

import torch

import workload
from tools import launcher

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


def lesson_with_a_bug(folder, stem, where, bug):
    """A copy of a lesson that does this before a step of epoch 2, on the ranks for which `where` holds."""
    copy_lessons(folder)
    script = folder / f"{stem}.py"
    lesson, loss = script.read_text(), "            loss = cross_entropy(model(images), labels)\n"
    assert lesson.count(loss) == 1
    script.write_text(lesson.replace(loss, f"            if epoch == 2 and {where}: {bug}\n{loss}"))
    return script
