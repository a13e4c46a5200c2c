"""The pages, the sizes and the commands are what they say they are."""

import os
import re
import subprocess
import sys

import pytest
import torch

import diffs
import launcher
import workload

ROOT = launcher.ROOT


def call(*words, environment=None, cwd=ROOT):
    words = [str(word) for word in words]
    return subprocess.run(
        words, cwd=cwd, env=os.environ | (environment or {}), capture_output=True, text=True, timeout=300
    )


def test_the_diff_page_says_what_the_lessons_say():
    result = call(sys.executable, "tools/diffs.py", "--check")
    assert result.returncode == 0, result.stderr


def test_the_diff_page_is_noticed_when_it_drifts(tmp_path, monkeypatch):
    page = tmp_path / "README.md"
    page.write_text(diffs.PAGE.read_text().replace("+import gc", "+import  gc", 1))
    monkeypatch.setattr(diffs, "PAGE", page)
    monkeypatch.setattr(sys, "argv", ["diffs.py", "--check"])
    with pytest.raises(SystemExit, match="run make diffs"):
        diffs.main()
    monkeypatch.setattr(sys, "argv", ["diffs.py"])
    diffs.main()
    assert page.read_text() == diffs.PAGE.read_text() == (ROOT / "lessons/README.md").read_text()


def test_the_diffs_on_the_page_turn_each_lesson_into_the_next(tmp_path):
    """`patch` reads them off the page: what a reader copies by hand arrives at the next lesson."""
    page = (ROOT / "lessons/README.md").read_text()
    found = re.findall(r"```diff\n(.*?)```", page, re.S)
    assert len(found) == len(launcher.LESSONS) - 1
    for after, text in zip(launcher.LESSONS[1:], found, strict=True):
        before = launcher.grown_from(after)
        copy = tmp_path / before.name
        copy.write_text(before.read_text())
        subprocess.run(["patch", "-s", copy], input=text, text=True, check=True)
        assert copy.read_text() == after.read_text()


def test_lessons_are_short():
    for path in launcher.LESSONS:
        on_the_ladder = path.stem in launcher.LADDER
        # From lesson 07 on, test_calm.py counts what a lesson adds.
        assert len(path.read_text().splitlines()) <= 130 or not on_the_ladder, path
        if on_the_ladder and path != launcher.LESSONS[0]:
            # Lesson 05 has two faces: a snapshot, and a run that can be stopped at any step.
            limit = 55 if path.stem.startswith("05") else 45
            assert diffs.added(launcher.grown_from(path), path) <= limit, path
    assert len((launcher.ROOT / "lessons/parts/snapshot.py").read_text().splitlines()) <= 160


def test_the_command_in_a_docstring_is_the_one_that_is_tested():
    for path in launcher.LESSONS:
        processes = re.search(r"--nproc-per-node (\d)", diffs.command(path))
        words, environment = launcher.command(path.stem, processes[1] if processes else 2)
        typed = launcher.as_typed(words, environment).removeprefix("PROCESSES=1 ")
        documented = " ".join(diffs.command(path).replace("\\\n", " ").split())
        documented = documented.removesuffix(" --snapshot-every 30 --crash-at 3")
        assert documented == typed


def test_code_is_formatted_and_free_of_lint():
    for words in (("check",), ("format", "--check")):
        result = call(sys.executable, "-m", "ruff", *words, ".")
        assert result.returncode == 0, result.stdout + result.stderr


def test_make_lists_its_targets():
    for target in ((), ("help",)):
        result = call("make", *target)
        assert result.returncode == 0
        for name in ("setup", "run", "test", "lab", "notebooks", "diffs", "bench", "help"):
            assert len(re.findall(rf"^{name} +\w.+$", result.stdout, re.M)) == 1


def test_make_uses_the_environment_one_is_in():
    for target in ("run", "test", "setup", "lab", "notebooks", "bench", "diffs", "pictures", "format"):
        assert "pip install" not in call("make", "-n", target, "PYTHON=python").stdout
        if target != "setup":
            assert re.search(r"^@?python ", call("make", "-n", target, "PYTHON=python").stdout, re.M)
    assert "pip install" in call("make", "-n", "-W", "requirements.txt", "run").stdout


@pytest.mark.parametrize(("allowed", "code"), [("needs a moon", 0), ("needs a sun", 1)])
def test_a_skip_is_listed_last_and_must_be_allowed(tmp_path, allowed, code):
    (tmp_path / "allowed.txt").write_text(f"# a comment\n{allowed}\n")
    body = "import pytest\ndef test_a(): pytest.skip('needs a moon')\ndef test_b(): pass\n"
    (tmp_path / "test_it.py").write_text(body)
    words = (
        "-m",
        "pytest",
        "-q",
        "-c",
        os.devnull,
        "-p",
        "conftest",
        "--allowed-skips",
        "allowed.txt",
        "test_it.py",
    )
    result = call(
        sys.executable,
        *words,
        cwd=tmp_path,
        environment={
            "PYTHONPATH": os.pathsep.join(str(ROOT / name) for name in ("tests", "tests/helpers", "tools"))
        },
    )
    assert result.returncode == code
    lines = result.stdout.splitlines()
    assert "   1  needs a moon" in lines[-3:]
    assert any("no test may be skipped because: needs a moon" in line for line in lines) == bool(code)


def test_there_is_one_list_of_requirements():
    assert "- -r requirements.txt" in (ROOT / "environment.yml").read_text()
    lines = (ROOT / "requirements.txt").read_text().splitlines()
    assert all(re.fullmatch(r"#.*|[\w-]+==[\d.]+", line) for line in lines)


def test_nothing_stands_at_the_top_that_a_newcomer_would_wonder_at():
    listed = call("git", "ls-files", "--cached", "--others", "--exclude-standard").stdout.splitlines()
    assert {name.split("/")[0] for name in listed} == {
        *("README.md", "LICENSE", "Makefile", "environment.yml", "requirements.txt", "pyproject.toml"),
        *("lessons", "notebooks", "solutions", "tools", "tests", ".ci", ".gitignore"),
    }


@pytest.mark.parametrize(
    "page", ["README.md", "lessons/README.md", "notebooks/README.md", "solutions/README.md"]
)
def test_every_link_leads_to_a_file(page):
    path = ROOT / page
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", path.read_text()):
        if not target.startswith("http"):
            assert (path.parent / target).exists(), target


# ---- the ladder ----


def test_the_ladder_ends_with_a_table_and_a_picture(tmp_path):
    sizes = ("--epochs", "1", "--train-size", "240", "--test-size", "30")
    result = call(sys.executable, ROOT / "tools/ladder.py", "--lessons", "01,06", *sizes, cwd=tmp_path)
    assert result.returncode == 0, result.stdout + result.stderr
    table = result.stdout.split("same curve\n")[1].splitlines()
    assert [line.split()[0] for line in table[:2]] == ["01_single_gpu", "06_multinode"]
    assert all(line.endswith(" yes") for line in table[:2])
    assert (tmp_path / "out/ladder.png").read_bytes().startswith(b"\x89PNG")


def test_the_ladder_names_the_lesson_that_fails_and_shows_its_log(tmp_path):
    # 121 does not divide by two: lesson 01 climbs on, lesson 03 refuses.
    sizes = ("--epochs", "1", "--train-size", "242", "--test-size", "30", "--batch-size", "121")
    words = (sys.executable, ROOT / "tools/ladder.py", "--lessons", "01,03", *sizes)
    result = call(*words, cwd=tmp_path, environment={"CUDA_VISIBLE_DEVICES": ""})
    assert result.returncode == 1
    assert result.stderr == "error: failed: 03_ddp_spawn\n"
    assert "03_ddp_spawn failed with status 2. Its log, out/03_ddp_spawn.log:" in result.stdout
    assert "  | error: --batch-size 121 does not divide by 2 processes" in result.stdout


def row(epoch, loss, accuracy=0.9):
    return {"epoch": epoch, "loss": loss, "accuracy": accuracy}


@pytest.mark.parametrize(
    ("curve", "words"),
    [
        ([row(1, 1.0), row(4, 0.5)], ""),
        ([row(1, 1.0 + 0.9e-5), row(4, 0.5 * (1 + 0.9e-3))], ""),
        ([row(1, 1.0 + 1.1e-5), row(4, 0.5)], "the loss of epoch 1 is off by 1.1e-05, more than 1e-05"),
        ([row(1, 1.0), row(4, 0.5 * (1 - 1.1e-3))], "the loss of epoch 4 is off by 1.1e-03, more than 1e-03"),
        ([row(1, float("nan")), row(4, 0.5)], "the loss of epoch 1 is off by nan"),
        ([row(1, 1.0), row(4, 0.5, 0.9021)], "the accuracy is off by 0.21%, more than 0.2%"),
        ([row(1, 1.0)], "epochs [1], not [1, 4]"),
    ],
)
def test_what_the_same_curve_means(curve, words):
    assert launcher.difference(curve, [row(1, 1.0), row(4, 0.5)]).startswith(words)
    assert bool(launcher.difference(curve, [row(1, 1.0), row(4, 0.5)])) == bool(words)


# ---- the images and the model ----


def test_the_same_seed_gives_the_same_bytes():
    first, again, other = (workload.draw_digits(1500, seed) for seed in (1, 1, 2))
    assert torch.equal(first.images, again.images)
    assert torch.equal(first.labels, again.labels)
    assert not torch.equal(first.images, other.images)


def test_the_bytes_depend_neither_on_the_threads_nor_on_how_many_are_asked_for():
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        one = workload.draw_digits(2500, seed=1)
        torch.set_num_threads(2)
        two = workload.draw_digits(1200, seed=1)
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(one.images[:1200], two.images)
    assert torch.equal(one.labels[:1200], two.labels)


def test_digits_are_digits():
    fonts, ink = workload.draw_fonts()
    assert fonts == 12
    pictures = ink.view(10, fonts, 1600)
    for font in range(fonts):
        for digit in range(10):
            others = [other for other in range(10) if other != digit]
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


def test_the_model_is_small_and_smooth():
    model = workload.ConvNet((1, 28, 28))
    assert 27_000 < sum(parameter.numel() for parameter in model.parameters()) < 33_000
    kinds = {type(part).__name__ for part in model.modules()}
    assert not kinds & {"ReLU", "MaxPool2d", "BatchNorm2d"}
    assert {"GELU", "AvgPool2d"} <= kinds


def test_no_lesson_imports_torchvision_without_need(tmp_path):
    script = (
        "import sys, runpy; sys.argv = ['01', '--epochs', '1', '--train-size', '240', '--test-size', '10'];"
        f"sys.path.insert(0, {str(ROOT / 'lessons')!r});"
        f"runpy.run_path({str(launcher.LESSONS[0])!r}, run_name='__main__');"
        "assert 'torchvision' not in sys.modules and 'matplotlib' not in sys.modules"
    )
    result = call(sys.executable, "-c", script, cwd=tmp_path)
    assert result.returncode == 0, result.stderr


def test_torchvision_can_be_imported_twice():
    assert workload.import_torchvision() is workload.import_torchvision()
