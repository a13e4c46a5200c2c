"""Take each `.to(device)`, `device=` and gloo group out of the lessons in turn: do the tests notice?

    python -m tests.lessons.device_mutants               all lessons; about an hour on two cores
    python -m tests.lessons.device_mutants 04 snapshot   some of them, or of the files that they share

You will see a line for each mutant: noticed, and by what, or not noticed. The tests are those of a lesson on
two simulated GPUs, once as it is and once with its data left on the CPU, where most calls of `.to(device)`
would do nothing otherwise. The exit status is 1 if a mutant is not noticed that is not known for it.
"""

import ast
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tools import lessons
from tools.lessons import ROOT

# What is not noticed, and why.
FSDP_INPUT = "fully_shard moves a model's inputs to the GPU by itself"
FSDP_MODEL = "fully_shard moves the parameters to the GPU by itself"
KNOWN = {
    ("08_real_training.py", "train_set.images[:size]"): "only with --compile, which needs a real GPU",
    ("09_fsdp.py", "images"): FSDP_INPUT,
    ("12_mesh.py", "ImageTransformer"): FSDP_MODEL,
    ("12_mesh.py", "images"): FSDP_INPUT,
    ("13_gpt.py", "build_model"): FSDP_MODEL,
    ("13_gpt.py", "texts"): FSDP_INPUT,
}
WITHOUT_DEVICE = re.compile(r"(load_images|limericks\.load)\(arguments, device\)")


def places(path):
    """(line, what, text of the file without it) for each mutant of a file."""
    text = path.read_text()
    starts = [0]
    for line in text.splitlines(keepends=True):
        starts.append(starts[-1] + len(line.encode()))
    raw = text.encode()

    def span(node):
        return starts[node.lineno - 1] + node.col_offset, starts[node.end_lineno - 1] + node.end_col_offset

    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.Call):
            continue
        begin, end = span(node)
        whole = raw[begin:end].decode()
        is_to = isinstance(node.func, ast.Attribute) and node.func.attr == "to"
        if is_to and "device" in whole.rpartition(".to(")[2]:
            inner = raw[slice(*span(node.func.value))]
            yield node.lineno, whole, (raw[:begin] + inner + raw[end:]).decode()
        for keyword in node.keywords:
            value = ast.unparse(keyword.value)
            is_group = keyword.arg == "backend" and value == "'gloo'"
            if is_group or (keyword.arg == "device" and value not in ("None", "'cpu'")):
                first, last = span(keyword)
                before, after = re.sub(rb",\s*$", b"", raw[:first]), raw[last:]
                if before.endswith(b"("):  # it is the first
                    after = re.sub(rb"^,\s*", b"", after)
                yield node.lineno, whole, (before + after).decode()


def cases(path):
    """What -k chooses for a file: the tests of a lesson, or of the first two that import a part."""
    if path.parent.name == "workload":
        users = [lessons.get(stem) for stem in ("04_ddp_torchrun", "08_real_training", "14_tuning")]
    elif path.stem == "fp16":
        return "test_fp16"
    else:
        name = re.compile(rf"^(from|import) .*\b{path.stem}\b", re.M)
        users = [each for each in lessons.LESSONS if each.path == path or name.search(each.path.read_text())]
    ids = (f"[{each.number}-2] or [{each.number}] or [{each.stem}] or -{each.stem}]" for each in users[:2])
    return f"({' or '.join(ids)}) and not documented"


def noticed_by(tree, path, text, more=""):
    """The first test that fails where this file has this text, or nothing."""
    (tree / path.relative_to(ROOT)).write_text(text)
    words = [sys.executable, "-m", "pytest", "-xq", "-p", "no:cacheprovider"]
    words += ["tests/lessons/test_on_gpus.py", "-k", cases(path) + more]
    run = subprocess.run(words, cwd=tree, capture_output=True, text=True)
    assert run.returncode in (0, 1), run.stdout + run.stderr
    return (re.findall(r"^FAILED \S+::test_(.*)$", run.stdout, re.M) or [""])[0][:110]


def main():
    def stay_on_the_cpu(text):
        return WITHOUT_DEVICE.sub(r"\1(arguments)", text)

    room, total, missed, unknown = Path(tempfile.mkdtemp(prefix="mutants-")), 0, 0, 0
    trees = {room / "gpu": str, room / "cpu": stay_on_the_cpu}
    folders = [ROOT / "lessons", ROOT / "lessons/parts", ROOT / "lessons/workload"]
    paths = [path for folder in folders for path in sorted(folder.glob("*.py"))]
    for tree, change in trees.items():
        files = subprocess.check_output(["git", "ls-files"], cwd=ROOT, text=True).splitlines()
        for name in files:
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, tree / name)
        for path in paths:
            (tree / path.relative_to(ROOT)).write_text(change(path.read_text()))
    for path in paths:
        if sys.argv[1:] and not path.stem.startswith(tuple(sys.argv[1:])):
            continue
        for line, what, text in places(path):
            what = " ".join(what.split())
            by = noticed_by(room / "gpu", path, text)
            by = by or noticed_by(room / "cpu", path, stay_on_the_cpu(text), " and not waits")
            known = KNOWN.get((path.name, re.split(r"\.to\(|\(", what)[0]))
            total, missed, unknown = total + 1, missed + (not by), unknown + (not by and not known)
            print(f"{path.name}:{line} {what[:60]}: {by or f'NOT NOTICED: {known}'}", flush=True)
        for tree, change in trees.items():
            (tree / path.relative_to(ROOT)).write_text(change(path.read_text()))
    shutil.rmtree(room)
    print(f"{total - missed} of {total} noticed")
    return int(unknown > 0)


if __name__ == "__main__":
    sys.exit(main())
