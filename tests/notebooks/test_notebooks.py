"""Every notebook runs from top to bottom, and what is stored in it is what it shows."""

import copy
import os
import re
import shutil
import subprocess
import sys
import textwrap

import nbformat
import pytest

from tools import diffs, digests, lessons, measured, notebooks, words
from tools.lessons import ROOT
from tools.testbed import pretending
from tools.testbed.command_environment import python_path

STEMS = [path.stem for path in notebooks.NOTEBOOKS]


def test_there_is_one_for_each_lesson_and_one_on_planning():
    assert sorted(notebook.stem for notebook in lessons.NOTEBOOKS) == STEMS
    for lesson in lessons.LESSONS:
        assert lesson.notebooks[0].stem == lesson.stem
        for notebook in lesson.notebooks[1:]:
            assert re.fullmatch(rf"{lesson.number}[a-z]", notebook.number), notebook.stem
    (planning,) = lessons.OTHER_NOTEBOOKS  # it belongs to no lesson
    assert f"(notebooks/{planning.stem}.ipynb)" in (ROOT / "README.md").read_text()


def test_none_is_stale():
    """What it shows is what its code does now, or it is executed again."""
    stems = []
    lines = []
    for path in notebooks.NOTEBOOKS:
        notebook = notebooks.read(path)
        assert "used" in notebook.metadata["rungs"], f"{path.stem} was not executed"
        if changed := digests.stale(notebook):
            stems.append(path.stem)
            lines.append(f"{path.stem}: {', '.join(changed)}")
    assert not lines, "\n".join([*lines, f'make notebooks ARGUMENTS="{" ".join(stems)}"'])


def executed_afresh(path, **more):
    for row in (*lessons.LESSONS, *lessons.NOTEBOOKS):
        if row.stem == path.stem and row.is_missing():
            pytest.skip(f"needs {row.needs.split()[-1]}: make tools installs it")
    out = ROOT / "out" / f"test-{os.getpid()}"  # under the root, so that cells print a short name
    try:
        # One thread: two that wait for each other spin, and beside other tests lesson 01 takes minutes.
        return notebooks.execute(path, OUT=str(out.relative_to(ROOT)), OMP_NUM_THREADS="1", **more)
    finally:
        shutil.rmtree(out, ignore_errors=True)


@pytest.mark.night
@pytest.mark.parametrize("path", notebooks.NOTEBOOKS, ids=STEMS)
def test_it_runs_afresh_and_shows_what_is_stored(path):
    stored = notebooks.read(path)
    assert notebooks.complaints(path, stored) == []
    fresh = executed_afresh(path)
    assert notebooks.shown(path.name, fresh) == []
    assert notebooks.drift(stored, fresh) == []


@pytest.mark.night
@pytest.mark.skipif(bool(pretending.missing()), reason=pretending.missing())
@pytest.mark.parametrize("path", notebooks.NOTEBOOKS, ids=STEMS)
def test_it_runs_on_a_gpu(path, tmp_path):
    """On one, which its processes share: what it does where there is a GPU runs."""
    more = pretending.environment(1, tmp_path, os.environ)
    more["PYTHONPATH"] = python_path(pretending.AT_EXIT)
    fresh = executed_afresh(path, **more)
    for cell in fresh.cells:
        is_the_point = "stack-trace" in cell.metadata.get("tags", [])
        for text in notebooks.texts(cell):
            assert "pretended CUDA" not in text and (is_the_point or "Traceback" not in text), text
    code = notebooks.sources(fresh, "code")
    if not pretending.real() and "torch" in code and "CUDA_VISIBLE_DEVICES" not in code:
        pretending.waits(1, tmp_path)


# ---- rules --------------------------------------------------------------------------------------


def dead_links(row, notebook):
    found = []
    for link in re.findall(r"\]\(([^)#]+)[^)]*\)", notebooks.sources(notebook, "markdown")):
        if not link.startswith("https://") and not (row.path.parent / link).exists():
            found.append(link)
    return found


def unlinked_words(row, notebook):
    """Linked: to its place in words.md, or to PyTorch's documentation. Explained: the word, and nothing
    more, is bold or italic there; or words.md names the notebook as one that the word is first in. Plain
    text counts: code, headings and links to other pages do not. `python -m tools.words` links the others."""
    missing = words.missing(words.number(row), notebook)
    return [f"{word.name}, in cell {at + 1}: python -m tools.words {row.stem}" for word, (at, *_) in missing]


RULES = {
    "it has what a notebook must have": lambda row, notebook: notebooks.missing(row.stem, notebook),
    "its links lead somewhere": dead_links,
    "the first use of each word is linked or explained": unlinked_words,
    "its numbers are in what it shows": lambda row, notebook: measured.unfounded(row.path, notebook)[0],
}


@pytest.mark.parametrize("row", lessons.NOTEBOOKS, ids=lambda row: row.stem)
@pytest.mark.parametrize("rule", RULES)
def test_a_notebook_keeps_the_rules(rule, row):
    assert RULES[rule](row, notebooks.read(row.path)) == []


@pytest.mark.parametrize("name", notebooks.PICTURES)
def test_the_readme_shows_pictures_as_their_notebooks_do(name):
    assert (ROOT / "lessons/pictures" / name).read_bytes() == notebooks.picture(name), "run make notebooks"
    assert f'<img src="lessons/pictures/{name}"' in (ROOT / "README.md").read_text()


def test_the_list_of_notebooks_has_the_question_of_each():
    page = (notebooks.FOLDER / "README.md").read_text()
    for path in notebooks.NOTEBOOKS:
        name, question = notebooks.read(path).cells[0].source.splitlines()[0].removeprefix("# ").split(":", 1)
        assert f"- [{name}]({path.name}):{question}\n" in page


# ---- alone, as on Colab and Kaggle --------------------------------------------------------------


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory):
    """This repository, as git would clone it, with what has not been committed yet."""
    folder = tmp_path_factory.mktemp("elsewhere")
    for name in ("lessons", "notebooks", "tools"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    who = ("-c", "user.name=nobody", "-c", "user.email=nobody@example.com")
    for line in (("init", "--quiet"), ("add", "."), (*who, "commit", "--quiet", "--message", "all")):
        subprocess.run(["git", *line], cwd=folder, check=True)
    return folder


def fetching(stem):
    """A notebook as `make diffs` writes it when the table of lessons has an address."""
    return diffs.with_fetch(notebooks.read(notebooks.FOLDER / f"{stem}.ipynb"), "https://example.com/rungs")


def begin(stem, folder, address):
    """What the first two code cells of a notebook do in a Python that was started in this folder."""
    code = [cell.source for cell in fetching(stem).cells if cell.cell_type == "code"]
    environment = os.environ | {"RUNGS": str(address), "MPLBACKEND": "agg"}
    environment.pop("PYTHONPATH", None)
    environment.pop("OUT", None)
    line = [sys.executable, "-c", "\n".join([*code[:2], "print(out.resolve())"])]
    return subprocess.run(line, cwd=folder, env=environment, capture_output=True, text=True, timeout=120)


def test_alone_it_fetches_the_rest_once_and_in_the_repository_nothing(elsewhere, tmp_path):
    stem = "03_ddp_spawn"
    nowhere = tmp_path / "nowhere"
    wrong = begin(stem, tmp_path, nowhere)
    line = f"RuntimeError: cannot fetch {nowhere}: correct the address in this cell"
    assert wrong.returncode == 1 and wrong.stderr.splitlines()[-1] == line
    assert list(tmp_path.iterdir()) == []
    for address in (elsewhere, nowhere):  # the kernel is started again: nothing is fetched
        run = begin(stem, tmp_path, address)
        assert run.stdout == f"{tmp_path}/rungs/out/notebooks/{stem}\n", run.stderr
    assert os.listdir(tmp_path) == ["rungs"]
    run = begin(stem, elsewhere / "notebooks", nowhere)
    assert run.stdout == f"{elsewhere}/out/notebooks/{stem}\n", run.stderr


@pytest.mark.night
def test_alone_it_runs_to_its_end(elsewhere, tmp_path):
    notebook, path = fetching("05_snapshots"), tmp_path / "05_snapshots.ipynb"
    nbformat.write(notebook, path)
    fresh = notebooks.execute(path, tmp_path, RUNGS=str(elsewhere), OMP_NUM_THREADS="1")
    assert notebooks.drift(notebook, fresh) == []
    assert (tmp_path / "rungs/out/notebooks/05_snapshots").is_dir()


@pytest.mark.long
def test_with_an_address_all_notebooks_fetch_and_have_badges_and_without_none(tmp_path):
    """One setting, and one command that writes it everywhere, in a copy of the repository."""
    for name in ("lessons", "notebooks", "solutions", "tools", "tests"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("README.md", "CONTRIBUTING.md"):
        shutil.copy(ROOT / name, tmp_path)
    table = tmp_path / "tools/lessons.toml"
    address = "https://github.com/ada/rungs"
    paths = [tmp_path / path.relative_to(ROOT) for path in notebooks.NOTEBOOKS]
    before = [path.read_bytes() for path in paths]
    places = ("README.md", "lessons/launch/free_gpus.md")
    for written in (address, ""):
        text = table.read_text()
        table.write_text(re.sub(r'(?m)^address = ".*"$', f'address = "{written}"', text))
        subprocess.run([sys.executable, "-m", "tools.diffs"], cwd=tmp_path, check=True)
        for path in paths:
            notebook = notebooks.read(path)
            code = [cell for cell in notebook.cells if cell.cell_type == "code"]
            assert (code[0].id == "fetch") == bool(written)
            assert (f'"{address}"' in code[0].source) == bool(written)
            assert notebooks.missing(path.stem, notebook) == []
            colab = f"colab.research.google.com/github/ada/rungs/blob/main/notebooks/{path.name}"
            for place in (colab, f"src={address}/blob/main/notebooks/{path.name}"):
                assert (place in notebook.cells[0].source) == bool(written)
            code = digests.of_code(notebooks.read(notebooks.FOLDER / path.name))
            assert digests.of_code(notebook) == code, "nobody has to execute it for that"
        for place in places:
            clone = f"git clone --depth 1 {address} rungs\n"
            assert (clone in (tmp_path / place).read_text()) == bool(written), place
    assert [path.read_bytes() for path in paths] == before


# ---- stale or not -------------------------------------------------------------------------------


def test_code_that_changed_makes_a_notebook_stale_and_a_comment_does_not(tmp_path, monkeypatch):
    """Except in source that the notebook shows."""
    monkeypatch.setattr(digests, "ROOT", tmp_path)
    subprocess.run(["git", "init", "--quiet"], cwd=tmp_path, check=True)
    (tmp_path / "lessons").mkdir()
    text = 'def f():\n    """What f does."""\n    return "# 1"  # one\n'

    def stale_after(name, text):
        (tmp_path / name).write_text(text)
        digests.of_file.cache_clear()
        return digests.stale(notebook)

    notebook = made("x", source="a.f()  # one")
    stale_after("lessons/a.py", text)
    stale_after("lessons/b.txt", text)  # a new file counts before `git add`
    used = digests.used([f"{tmp_path}/lessons/{name}" for name in ("a.py", "b.txt")] + ["/usr/lib/x.py"])
    assert list(used) == ["lessons/a.py", "lessons/b.txt"]
    notebook.metadata["rungs"] |= {"code": digests.of_code(notebook), "used": used}
    more = '# First.\n\ndef f():\n    """More on f."""\n\n    return "# 1"\n'
    assert stale_after("lessons/a.py", more) == []
    data = {"text/plain": '    return "# 1"'}
    shown = nbformat.v4.new_output("display_data", data, metadata={"rungs": "source"})
    notebook.cells[0].outputs.append(shown)
    assert digests.stale(notebook) == []
    changed = ["lessons/a.py has changed", "cell 1 shows source that is nowhere"]
    assert stale_after("lessons/a.py", more.replace("# 1", "# 2")) == changed
    notebook.cells[0].source = "a.f() + 1"
    also = ["its code has changed", changed[0], "lessons/b.txt has changed", changed[1]]
    assert stale_after("lessons/b.txt", "# First.") == also
    digests.of_file.cache_clear()


def test_what_processes_open_and_start_is_noted(tmp_path):
    """Also by what they start in turn, and by a process that is killed."""
    code = """
        import os, signal, subprocess, sys
        import workload.options
        subprocess.run([sys.executable, "-c", "open('tools/ink.py'); import os; os.kill(os.getpid(), 9)"])
        subprocess.run(["true", "lessons/launch/two_terminals.sh"])
    """
    environment = {"PYTHONPATH": f"{ROOT}/tools/files_used:{ROOT}/lessons", "USED": str(tmp_path / "used")}
    line = [sys.executable, "-c", textwrap.dedent(code)]
    subprocess.run(line, cwd=ROOT, env=os.environ | environment, check=True)
    used = set(digests.used((tmp_path / "used").read_text().splitlines()))
    assert {"lessons/workload/options.py", "tools/ink.py", "lessons/launch/two_terminals.sh"} <= used


# ---- the checks themselves ----------------------------------------------------------------------


def made(text, source="print()"):
    cell = nbformat.v4.new_code_cell(source, execution_count=1)
    cell.outputs = [nbformat.v4.new_output("stream", text=text)]
    return nbformat.v4.new_notebook(cells=[cell], metadata={"rungs": {"seconds": 1}})


def test_what_no_output_may_hold_is_found():
    for text, what in (
        ("saved in /home/ada/rungs/out", "a path of the machine"),
        ("x.py:3: UserWarning: beware", "a warning"),
        ("exitcode: -9 (pid: 4711)", "a process id"),
        ("connect to 127.0.0.1:29500", "a port or an address"),
        ('Traceback (most recent call last):\n  File "x.py", line 3, in <module>', "a stack trace"),
    ):
        assert what in "".join(notebooks.shown("n.ipynb", made(text))), text
    plain = "out/notebooks/01/x.pt 3/4 N/A 12,000 images/s, of rank 1, pid: (its number), a warning sign"
    assert notebooks.shown("n.ipynb", made(plain)) == []


def test_code_that_nobody_would_read_is_found():
    prose, short, long = "Look at the loop.", "print()", "print()\n" * 26

    def complaints(*sources):
        notebook = nbformat.v4.new_notebook()
        for source in sources:
            is_prose = source == prose
            cell = nbformat.v4.new_markdown_cell(source) if is_prose else nbformat.v4.new_code_cell(source)
            notebook.cells.append(cell)
        return notebooks.hard_to_read(notebook)

    assert complaints(prose, short, short, short, prose, short, prose, long) == []
    (found,) = complaints(prose, *[short] * 6, prose)
    assert found == "cell 5: 4 code cells in a row: put a sentence before each"
    (found,) = complaints(prose, short, long, prose)
    assert found == "cell 3: more than 25 lines, and no sentence before it"


SHOWN = "ms of a step: 16.3\nspeedup 1.78, of a step 0.4389, 4,800,000 bytes, 9e-08"


@pytest.mark.parametrize(
    ("prose", "wrong"),
    [
        ("Here it was 44% and 1.8 times, in 16 ms, with 4.8 MB and at most 9e-08.", []),
        ("It was 43%, 1.88 times, in 15 ms, with 4.9 MB, and 44 s.", ["43%", "1.88", "15", "4.9", "44 s"]),
        ("Lesson 12 and lessons 13 to 17 of 2026 have `x = 99`, on PyTorch 2.13.\n\n## 99", []),
        ("It took 99 rows and 98.5 of them.", ["98.5"]),  # 99 stands in the code, 98.5 would round to it
        ("[They](https://arxiv.org/abs/1706.02677) had 8,192. Others had 8,193.", ["8,193"]),
        ("Of [12,282,282 rows](linked.md), 12.3 million are there.", []),
        ("A ring of 1,024 takes 2,046 messages. <!-- exact: 2,046 -->", ["1,024"]),
    ],
)
def test_numbers_that_prose_gets_wrong_are_found(tmp_path, prose, wrong):
    (tmp_path / "linked.md").write_text("| rows | 12282282 |")
    notebook = made(SHOWN, source="rows = 99")
    notebook.cells.append(nbformat.v4.new_markdown_cell(prose))
    found, count = measured.unfounded(tmp_path / "n.ipynb", notebook)
    assert count >= len(wrong) == len(found)
    for number, line in zip(wrong, found, strict=True):
        assert f"cell 2: {number}" in line


@pytest.fixture
def made_again(tmp_path, monkeypatch):
    """Make a copy of notebook 01 again. Its cells are not executed; `change` does something to it instead."""
    row = lessons.NOTEBOOKS[0]
    path = tmp_path / row.path.name
    (tmp_path / "out").mkdir()

    def made_again(change):
        path.write_text("as it was")
        notebook = notebooks.read(row.path)
        change(notebook)
        monkeypatch.setattr(notebooks, "ROOT", tmp_path)
        monkeypatch.setattr(notebooks, "execute", lambda path: notebook)
        monkeypatch.setattr(notebooks, "row_of", lambda path: row)
        found, _ = notebooks.make(path)
        return found, path.read_text()

    return made_again


def test_a_notebook_that_keeps_the_rules_is_written(made_again):
    found, text = made_again(lambda notebook: None)
    assert found == []
    assert text == lessons.NOTEBOOKS[0].path.read_text()


def test_a_notebook_that_breaks_a_rule_is_not_written(made_again, tmp_path):
    def no_sentences(notebook):
        for cell in notebook.cells:
            cell.source = cell.source.replace("## In five sentences", "## In sentences")

    def a_path(notebook):
        first = next(cell for cell in notebook.cells if cell.cell_type == "code")
        first.outputs = [nbformat.v4.new_output("stream", text="saved in /home/ada/rungs/out")]

    name = lessons.NOTEBOOKS[0].path.name
    for change, expected in (
        (no_sentences, "lacks '## In five sentences'"),
        (a_path, "shows a path of the machine: /home/a"),
    ):
        (line,), text = made_again(change)
        assert line.startswith(name) and expected in line
        assert text == "as it was"
        refused = tmp_path / "out" / name.replace(".ipynb", ".refused.ipynb")
        refused.unlink()


def test_a_cell_that_is_too_long_is_refused_before_anything_is_executed(monkeypatch):
    long = made("x")
    long.cells[0].source = "print()\n" * 41
    monkeypatch.setattr(notebooks, "read", lambda path: long)
    monkeypatch.setattr(notebooks, "make", lambda path: pytest.fail("it was executed"))
    line = "error: 05_snapshots.ipynb, cell 1 has 41 lines of code, more than 40"
    with pytest.raises(SystemExit, match=re.escape(line)):
        notebooks.main(["05_snapshots"])


def test_failed_cells_old_runs_and_what_drifted_are_found(tmp_path):
    path, notebook = tmp_path / "n.ipynb", made("x")
    nbformat.write(notebook, path)
    assert notebooks.complaints(path, notebook) == []
    failed, skipped = made("x"), made("x")
    failed.cells[0].outputs = [nbformat.v4.new_output("error", ename="E", evalue="no", traceback=["no"])]
    assert notebooks.shown("n", failed) == ["n, cell 1 failed"]
    skipped.cells[0].execution_count = 2
    assert "top to bottom" in notebooks.complaints(path, skipped)[0]
    diff = nbformat.v4.new_output("display_data", {"text/plain": "- a\n+ b"}, metadata={"rungs": "diff"})
    notebook.cells[0].outputs.append(diff)
    drifted, gone = copy.deepcopy(notebook), copy.deepcopy(notebook)
    drifted.cells[0].outputs[0].text = "y"
    assert notebooks.drift(notebook, drifted) == [], "only diffs must be the same"
    drifted.cells[0].outputs[1]["data"]["text/plain"] = "- a\n+ c"
    assert "make notebooks" in notebooks.drift(drifted, notebook)[0]
    gone.cells[0].outputs.clear()
    assert "missing" in notebooks.drift(gone, notebook)[0]
