"""The pages, the sizes and the commands are what they say they are."""

import itertools
import json
import os
import re
import subprocess
import sys

import pytest
import torch

import workload
from tests.helpers.patches import patched
from tools import copies, diffs, launcher, lessons
from tools import run_lessons as make_run

ROOT = launcher.ROOT
README = (ROOT / "README.md").read_text()


def call(*words, environment=None, cwd=ROOT):
    words = list(map(str, words))
    return subprocess.run(
        words, cwd=cwd, env=os.environ | (environment or {}), capture_output=True, text=True, timeout=300
    )


def test_the_pages_say_what_the_lessons_say():
    diffs.main(check=True)


def test_the_diffs_on_the_pages_turn_each_lesson_into_the_next(tmp_path):
    """git reads them off the page: what a reader copies by hand arrives at the next lesson."""
    for lesson in lessons.LESSONS[1:]:
        page = lesson.page.read_text()
        block = page.split(f"<!-- {lesson.stem}: ")[1].split(f"<!-- end of {lesson.stem} -->")[0]
        (text,) = re.findall(r"```diff\n(.*?)```", block, re.S)
        before, after = diffs.before(lesson), lesson.path
        assert patched(before.read_text(), text, tmp_path) == after.read_text()


def test_a_lesson_has_the_number_the_title_and_the_origin_that_the_table_says():
    assert {path.stem for path in (ROOT / "lessons").glob("[0-9]*.py")} == set(lessons.STEMS)
    table = (ROOT / "lessons/README.md").read_text()
    for before, lesson in itertools.pairwise((None, *lessons.LESSONS)):
        (row,) = re.findall(rf"^\| .*\({re.escape(lesson.path.name)}\).*", table, re.M)
        for notebook in lesson.notebooks:
            assert f"(../notebooks/{notebook.path.name})" in row, row
        assert lesson.page.read_text().splitlines()[0] == f"# {lesson.number}. {lesson.title}"
        assert f"(lessons/pages/{lesson.page.name})" in README, lesson.stem
        named = re.search(r"grown from lesson (\d\d[a-z]?)", lesson.path.read_text().split('"""')[1])
        grown_from = lessons.get(lesson.grown_from) if lesson.grown_from else None
        if named:
            assert named[1] == grown_from.number, f"{lesson.path}: the docstring and its row differ"
        else:
            assert grown_from == before, f"{lesson.path}: the docstring must say 'grown from lesson NN'"


def test_the_readme_can_be_read_in_five_minutes():
    clone = "" if lessons.ADDRESS else diffs.clone("https://github.com/someone/rungs")
    prose = re.sub(r"(?m)^\| \[.*\n", "", README)  # without the rows of the lessons
    assert len((prose + clone).split()) <= 5 * 170, "170 words a minute, as `wc -w` counts them, code too"
    commands = []
    for block in re.findall(r"(?s)```sh\n(.*?)```", README):
        commands += block.splitlines()
    assert len(commands) >= 5
    assert max(map(len, commands)) <= 80


def test_the_readmes_table_is_the_one_that_make_run_prints():
    """Its rows are those of lessons 01 to 06 on a machine without a GPU, without the speed."""
    table = re.search(r"(?s)```\n(lesson .*?)```", README)[1]
    head, *shown = [re.split(r"  +", line) for line in table.splitlines()]
    columns = list(make_run.COLUMNS)
    columns.remove("images/s")
    columns.remove("seconds")
    assert head == columns
    for lesson, row in zip(lessons.LADDER, shown, strict=True):
        last = {"loss": 0.0155, "accuracy": 0.982, "images_per_second": 1}  # a run of `make run`
        climbed = make_run.Climbed(lesson, lesson.processes_for(0), 1, [last], "yes")
        cells = make_run.cells(climbed)
        assert row == [cells[column] for column in columns]


def test_the_command_in_a_docstring_is_the_one_that_is_tested(monkeypatch):
    monkeypatch.setattr(launcher, "local_address", list)  # as where this machine's own name resolves
    for lesson in lessons.LESSONS:
        path = lesson.path
        processes = re.search(r"--nproc-per-node (\d)", diffs.command(path))
        words, environment = launcher.command(path.stem, processes[1] if processes else 2)
        typed = launcher.as_typed(words, environment).removeprefix("PROCESSES=1 ")
        documented = " ".join(diffs.command(path).replace("\\\n", " ").split())
        documented = documented.removesuffix(" --crash-at 3").removesuffix(" --snapshot-every 30")
        assert documented == typed, f"{path}: its launcher is started without options of the lesson's own"


def test_a_python_without_torchrun_beside_it_starts_its_own(tmp_path, monkeypatch):
    """As on Colab, where python is in /usr/bin, and torchrun in /usr/local/bin."""
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python3"))
    monkeypatch.setattr(launcher, "local_address", list)
    words, environment = launcher.command("05_snapshots", 2)
    assert words[:3] == [str(tmp_path / "python3"), "-m", "torch.distributed.run"]
    typed = launcher.as_typed(words, environment).partition(" ")[2]
    expected = "python -m torch.distributed.run --standalone --nproc-per-node 2 --max-restarts 3"
    assert typed.startswith(expected)


def test_code_is_formatted_and_free_of_lint():
    for words in (("check",), ("format", "--check")):
        result = call(sys.executable, "-m", "ruff", *words, ".")
        assert result.returncode == 0, result.stdout + result.stderr


def test_make_lists_its_targets_and_uses_the_environment_one_is_in():
    listed = call("make").stdout
    for target in ("setup", "run", "test", "lab", "notebooks", "diffs", "bench", "gpu"):
        assert len(re.findall(rf"^  {target} +\w.+$", listed, re.M)) == 1
        shown = call("make", "-n", target, "PYTHON=python").stdout
        assert "pip install" not in shown and (target == "setup" or re.search(r"^@?python ", shown, re.M))
    # make hands on the settings that `make test PYTHON=python` was given.
    own = {"MAKEFLAGS": "", "MAKEOVERRIDES": ""}
    assert "pip install" in call("make", "-n", "-W", "requirements.txt", "run", environment=own).stdout


def test_each_environment_installs_what_the_readme_says():
    assert "- -r requirements.txt" in (ROOT / "environment.yml").read_text()
    command = json.loads((ROOT / ".devcontainer/devcontainer.json").read_text())["postCreateCommand"]
    typed = " ".join(README.replace("\\\n", " ").split())
    install = re.search(r"pip (install .*?/whl/cpu)", command)[1]
    assert install in typed and command.endswith(" && make setup")


PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")),
    *(ROOT / name / "README.md" for name in ("lessons", "lessons/older", "notebooks", "solutions")),
    *(ROOT / name / "README.md" for name in ("tests", "tests/exercises")),
    *(ROOT / "tools/makers" / name for name in ("README.md", "bench/README.md", "site/README.md")),
    *sorted([*(ROOT / "lessons/pages").glob("*.md"), *(ROOT / "lessons/launch").glob("*.md")]),
]


def anchors(path):
    """The places of a page that a link can name, as GitHub makes them of the headings."""
    found = set()
    for heading in re.findall(r"^#+ (.+)$", path.read_text(), re.M):
        letters = re.sub(r"[^\w\- ]", "", heading.lower())
        found.add(letters.replace(" ", "-"))
    return found


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_link_leads_to_a_file_and_a_heading(path):
    prose = re.sub(r"^```.*?^```", "", path.read_text(), flags=re.M | re.S)
    for target, anchor in re.findall(r"\]\(([^)#]*)#?([^)]*)\)", prose):
        if not target.startswith("http"):
            assert (path.parent / target).exists(), target
            assert not anchor or anchor in anchors(path.parent / target if target else path), anchor
    for source, words in re.findall(r'<img src="([^"]*)" width="\d+" alt="([^"]*)">', prose):
        assert (path.parent / source).exists() and len(words) > 20, source
    assert prose.count("<img") == len(re.findall(r'<img src="[^"]*" width="\d+" alt="', prose))


# ---- the ladder ----


@pytest.mark.night
def test_the_ladder_lets_processes_share_a_gpu(tmp_path, monkeypatch, capsys):
    """Only the count is replaced: the lessons find no GPU, and run on the CPU."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))  # torchrun leaves a folder there
    small = ["--epochs", "1", "--train-size", "240", "--test-size", "60"]
    monkeypatch.setattr(make_run.workload, "gpu_count", lambda: 1)
    for stem, processes in (("04_ddp_torchrun", 2), ("01_single_gpu", 1)):
        assert make_run.start(lessons.get(stem), processes, tmp_path, small)
        assert ("$ SHARE_GPU=1 torchrun" in capsys.readouterr().out) == (processes == 2)


@pytest.mark.parametrize(("speed", "slower"), [(90, "03_ddp_spawn"), (110, None)])
def test_make_run_says_why_two_processes_are_slower_only_if_they_are(speed, slower):
    one = make_run.Climbed(lessons.get("01_single_gpu"), 1, 1.0)
    one.curve = [{"images_per_second": 100}]
    two = make_run.Climbed(lessons.get("03_ddp_spawn"), 2, 1.0)
    two.curve = [{"images_per_second": speed}]
    found = make_run.find_slower([one, two])
    assert (found and found.lesson.stem) == slower


def test_make_run_says_no_if_a_curve_is_another(tmp_path):
    first = make_run.Climbed(lessons.get("01_single_gpu"), 1, 1.0)
    first.curve = [row(1, 1.0)]
    other = make_run.Climbed(lessons.get("04_ddp_torchrun"), 1, 1.0)
    other.curve = [row(1, 2.0)]
    assert make_run.judge(other, first, tmp_path).startswith("no: the loss")


def test_make_run_says_where_to_look_after_a_long_silence(tmp_path, monkeypatch, capsys):
    small = ["--epochs", "1", "--train-size", "240", "--test-size", "60"]
    monkeypatch.setattr(make_run, "SILENT_SECONDS", 0.5)  # importing torch takes longer
    assert make_run.start(lessons.get("01_single_gpu"), 1, tmp_path, small)
    assert capsys.readouterr().out.count("01_single_gpu has printed nothing for two minutes") == 1


@pytest.mark.parametrize(
    ("platform", "reason", "words"),
    [
        ("darwin", None, "Apple's GPU stays idle"),
        ("linux", "the driver is too old", "Its GPU stays idle: the driver is too old"),
        ("linux", None, "cores."),
    ],
)
def test_make_run_says_which_gpu_stays_idle_and_why(monkeypatch, platform, reason, words):
    monkeypatch.setattr(make_run.sys, "platform", platform)
    monkeypatch.setattr(make_run, "unseen_gpu", lambda: reason)
    text = make_run.describe_machine(0)
    assert text.startswith("This machine has no GPU that torch can use, and ") and words in text
    assert text.count("idle") == (platform == "darwin" or reason is not None)


@pytest.mark.parametrize(
    ("program", "words"),
    [
        ("", None),
        ("print('from GPU 0 to GPU 1'); print('from GPU 1 to GPU 0')", "changed from GPU 0 to GPU 1, from"),
        ("import time; time.sleep(60)", "has not ended in 5 s"),
    ],
)
def test_make_run_refuses_gpus_that_cannot_copy_to_each_other(tmp_path, monkeypatch, program, words):
    (tmp_path / "tools").mkdir()
    (tmp_path / "tools/copies.py").write_text(program)
    monkeypatch.setattr(make_run.lessons, "ROOT", tmp_path)
    monkeypatch.setattr(make_run, "COPY_SECONDS", 5 if program.startswith("import") else 60)
    if words is None:
        make_run.check_copies()
        return
    with pytest.raises(SystemExit, match=f"^error: a copy .*{words}.*CUDA_VISIBLE_DEVICES=0 in front"):
        make_run.check_copies()


def test_a_copy_that_arrives_as_zeros_is_seen(monkeypatch):
    cpu = torch.device("cpu")
    assert copies.arrives(cpu, cpu)
    monkeypatch.setattr(torch.Tensor, "to", lambda tensor, device: torch.zeros_like(tensor))
    assert not copies.arrives(cpu, cpu)


def run_ladder(folder, numbers, *more):
    sizes = ("--epochs", "1", "--train-size", "242", "--test-size", "30", *more)
    environment = {"CUDA_VISIBLE_DEVICES": "-1", "TMPDIR": str(folder), "PYTHONPATH": str(ROOT)}
    words = (sys.executable, "-m", "tools.run_lessons", "--lessons", numbers, *sizes)
    return call(*words, cwd=folder, environment=environment)


@pytest.mark.night
def test_the_ladder_ends_with_a_table_and_a_picture(tmp_path):
    result = run_ladder(tmp_path, "01,06", "--batch-size", "22")
    assert result.returncode == 0, result.stdout + result.stderr
    first, second = result.stdout.split("same curve\n")[1].splitlines()[:2]
    assert first.split()[0] == "01_single_gpu"
    assert second.split()[0] == "06_multinode"
    assert first.endswith(" yes")
    assert second.endswith(" yes")
    assert "<svg" in (tmp_path / "out/run/ladder.svg").read_text()


@pytest.mark.long
def test_the_ladder_names_the_lesson_that_fails_and_shows_its_log(tmp_path):
    result = run_ladder(tmp_path, "01,03", "--batch-size", "121")  # odd: lesson 01 runs, lesson 03 refuses
    assert result.returncode == 1
    assert result.stderr == "error: failed: 03_ddp_spawn\n"
    assert "03_ddp_spawn failed with status 2. Its log, out/run/03_ddp_spawn.log:" in result.stdout
    assert "  | error: --batch-size 121 does not divide by 2 processes" in result.stdout


def row(epoch, loss, accuracy=0.9):
    return {"epoch": epoch, "loss": loss, "accuracy": accuracy}


@pytest.mark.parametrize(
    ("curve", "words"),
    [
        ([row(1, 1.0 + 0.9e-5), row(4, 0.5 * (1 + 0.9e-3))], ""),
        ([row(1, 1.0 + 1.1e-5), row(4, 0.5)], "the loss of epoch 1 is off by 1.1e-05, more than 1e-05"),
        ([row(1, float("nan")), row(4, 0.5)], "the loss of epoch 1 is off by nan"),
        ([row(1, 1.0), row(4, 0.5, 0.9021)], "the accuracy is off by 0.21%, more than 0.2%"),
        ([row(1, 1.0)], "epochs [1], not [1, 4]"),
    ],
)
def test_what_the_same_curve_means(curve, words):
    found = launcher.difference(curve, [row(1, 1.0), row(4, 0.5)])
    assert found.startswith(words) and bool(found) == bool(words)


# ---- the images and the model ----


def test_the_same_seed_gives_the_same_bytes_on_any_number_of_threads():
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        one = workload.draw_digits(2500, seed=1)
        other = workload.draw_digits(2500, seed=2)
        torch.set_num_threads(2)
        two = workload.draw_digits(1200, seed=1)
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(one.images[:1200], two.images)
    assert torch.equal(one.labels[:1200], two.labels)
    assert not torch.equal(one.images, other.images)


def test_digits_are_digits():
    fonts, ink = workload.draw_fonts()
    assert fonts == 12
    pictures = ink.view(10, fonts, 1600)
    for font, digit in itertools.product(range(fonts), range(10)):
        others = list(range(10))
        others.remove(digit)
        gaps = (pictures[others, font] - pictures[digit, font]).abs().mean(dim=1)
        assert gaps.min() > 0.01, "two digits of a font look the same: boxes"
    images = workload.draw_digits(2000, seed=1)
    assert images.images.shape == (2000, 1, 28, 28)
    assert images.images.dtype == torch.uint8
    assert images.labels.bincount(minlength=10).min() > 150


def test_training_and_test_images_are_not_the_same():
    arguments = workload.parser("01.py", "").parse_args(["--train-size", "1000", "--test-size", "1000"])
    train_set, test_set = workload.load_images(arguments)
    both = torch.cat([train_set.images, test_set.images]).flatten(1)
    assert len(torch.unique(both, dim=0)) == 2000
