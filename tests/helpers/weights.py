"""What weights and curves are worth that a run has left behind."""

import importlib
import shutil

import torch

import launcher
import workload

LESSONS = launcher.ROOT / "lessons"
# A text of lessons 05 and 06a, and what stands there where a snapshot forgets something.
FORGETS = {
    "nothing": ("import workload\n", "import workload\n"),
    "momentum": (' "optimizer": optimizer,', ""),
    "scheduler": (', "scheduler": scheduler}', "}"),
    "buffers": (
        '"model": model.module,',
        '"model": nn.ParameterDict({k.replace(".", "_"): p for k, p in model.module.named_parameters()}),',
    ),
}


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


def run_changed(forks, tmp_path, stem, processes, text, instead, *options, folder, **environment):
    """Run a copy of a lesson in which one text is replaced, with the model of victim.py, which has all that
    a snapshot could forget. Returns the bytes of its weights, and its curve."""
    changed = tmp_path / folder / "lessons"
    copy_lessons(changed)
    lesson = (changed / f"{stem}.py").read_text()
    assert lesson.count(text) == 1, "the lesson has changed: change this test with it"
    (changed / f"{stem}.py").write_text(lesson.replace(text, instead))
    # One agent, which starts all again after a crash.
    victim = launcher.ROOT / "tests/helpers/victim.py"
    words, more = launcher.command("05_snapshots", processes, *options, script=victim)
    environment |= more | {"LESSON": str(changed / f"{stem}.py")}
    result = forks.finish(words, tmp_path / folder, environment)
    assert result.code == 0, result.stderr
    return (result.out / f"{stem}.pt").read_bytes(), curve_of(result.out, stem)
