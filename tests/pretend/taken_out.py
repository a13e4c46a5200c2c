"""Take each `.to(device)`, each `device=` and each gloo group out of the lessons in turn: who notices?

    python tests/pretend/taken_out.py               all lessons; about 25 minutes on two cores
    python tests/pretend/taken_out.py 04 snapshot   some of them, or of the files that they share

You will see a line for each mutant: noticed, and by what, or not noticed. A lesson runs on two simulated GPUs
(17 on eight ranks that share them), is killed and resumes where it can, once as it is and once with its data
left on the CPU, where most calls of `.to(device)` would do nothing otherwise. The last line is the share that
was noticed.
"""

import ast
import os
import re
import shutil
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / name) for name in ("tools", "lessons")]
import launcher
import lessons
import pretending
from forks import Forks

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
MORE = {"08_real_training": "--double --peak-tflops 1", "16_experts": "--double"}
FP16 = ROOT / "lessons/parts/fp16.py"  # a script, started as lesson 07
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


def users(path):
    """The lessons that a file is looked at with: a lesson itself, or the first two that import a part."""
    if path == FP16:
        return [lessons.get("07_mixed_precision")]
    if path.parent == ROOT / "lessons":
        return [lesson for lesson in lessons.LESSONS if lesson.path == path]
    if path.parent.name == "workload":
        return [lessons.get(stem) for stem in ("04_ddp_torchrun", "08_real_training", "14_tuning")]
    name = re.compile(rf"^(from|import) .*\b{path.stem}\b", re.M)
    return [each for each in lessons.LESSONS if name.search(each.path.read_text())][:2]


def outcome(server, lesson, tree, folder, script):
    """What a run of a script in this tree, as this lesson, comes to: everything that a mutant may change."""
    options = lesson.path.read_text()
    words = [*lesson.small.split(), *MORE.get(lesson.stem, "").split()]
    if lesson.curve.of != "nothing":
        words += ["--epochs", "2"]
    if '"--crash-at"' in options:
        words += ["--crash-at", "2"]
    if '"--snapshot-every"' in options:
        words += ["--snapshot-every", "2"]
    processes = 1 if lesson.is_one_process() else max(2, lesson.processes)
    words, environment = launcher.in_one_agent(lesson.stem, processes, *words)
    if lesson.launcher == "two agents":
        words[words.index("--standalone") : words.index("--standalone")] = ["--max-restarts", "3"]
    words = [word.replace(str(lesson.path), str(script)) for word in words]
    words = [word.replace(str(ROOT / "lessons"), str(tree)) for word in words]
    shutil.rmtree(folder, ignore_errors=True)
    reports = folder / ".reports"
    reports.mkdir(parents=True)
    environment["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"  # for a restart
    environment |= {"PRETEND_GPUS": "2", "PRETEND_REPORT": str(reports), "SHARE_GPU": str(int(processes > 2))}
    code, _ = server.run(words, folder, environment, limit=180)
    if code != 0:
        said = (folder / ".err").read_text().splitlines()
        errors = [line for line in said if re.search(r"Error: |error: ", line)]
        errors = [line for line in errors if "ChildFailed" not in line] or [f"status {code}"]
        return {"error": re.sub(r"^E\d+ \S+ \d+ \S+\] +", "", errors[0])}
    out = folder / "out"
    weights, printed = out / f"{script.stem}.pt", (folder / ".out").read_text()
    return {
        "curve": [(row["loss"], row["accuracy"]) for row in launcher.read_curve(out, script.stem)],
        "weights": weights.exists() and weights.read_bytes(),
        "output": re.sub(r"[\d,.]+ (images|texts)/s|\d+\.\d+ s\b|MFU [\d.]+%", "", printed),
        "waits": sum(pretending.waits(2, reports).values()),
    }


def differs(found, expected):
    if "error" in found:
        return found["error"][:110]
    if found["waits"] > expected["waits"]:
        return f"{found['waits']} waits instead of {expected['waits']}"
    return next((name for name in ("curve", "weights", "output") if found[name] != expected[name]), "")


def stay_on_the_cpu(text):
    return WITHOUT_DEVICE.sub(r"\1(arguments)", text)


class Trees:
    """Two copies of the lessons: as they are, and with their data left on the CPU."""

    def __init__(self, server, room):
        self.server, self.room, self.expected = server, room, {}
        self.changes = {room / "gpu/lessons": str, room / "cpu/lessons": stay_on_the_cpu}
        for tree, change in self.changes.items():
            shutil.copytree(ROOT / "lessons", tree, ignore=shutil.ignore_patterns("pictures", "__pycache__"))
            for path in tree.rglob("*.py"):
                path.write_text(change(path.read_text()))

    def noticed_by(self, path, text):
        """What notices that this file has this text; nothing if nobody does."""
        for lesson in users(path):
            script = FP16 if path == FP16 else lesson.path
            for tree, change in self.changes.items():
                if (script, tree) not in self.expected:
                    self.expected[script, tree] = self.run(lesson, tree, script)
                    assert "error" not in self.expected[script, tree], self.expected[script, tree]
                target = tree / path.relative_to(ROOT / "lessons")
                target.write_text(change(text))
                found = differs(self.run(lesson, tree, script), self.expected[script, tree])
                target.write_text(change(path.read_text()))
                if found:
                    return found
        return ""

    def run(self, lesson, tree, script):
        return outcome(self.server, lesson, tree, self.room / "run", script)


def main():
    names = sys.argv[1:]
    more = pretending.environment(2, "", os.environ) | {"PYTHONPATH": str(pretending.WITNESS)}
    server, room = Forks(more), Path(tempfile.mkdtemp(prefix="mutants-"))
    trees, noticed, missed, unknown = Trees(server, room), 0, 0, 0
    folders = [ROOT / "lessons", ROOT / "lessons/parts", ROOT / "lessons/workload"]
    for path in [path for folder in folders for path in sorted(folder.glob("*.py"))]:
        if names and not any(path.stem.startswith(name) for name in names):
            continue
        for line, what, text in places(path):
            what = " ".join(what.split())
            by = trees.noticed_by(path, text)
            known = KNOWN.get((path.name, re.split(r"\.to\(|\(", what)[0]))
            noticed, missed, unknown = noticed + bool(by), missed + (not by), unknown + (not by and not known)
            print(f"{path.name}:{line} {what[:60]}: {by or f'NOT NOTICED: {known}'}", flush=True)
    server.close()
    shutil.rmtree(room)
    print(f"{noticed} of {noticed + missed} noticed ({noticed / max(1, noticed + missed):.1%})")
    return 1 if unknown or noticed < 0.95 * (noticed + missed) else 0


if __name__ == "__main__":
    sys.exit(main())
