"""The lines to copy from a page are run in scripts that other people could have written.

Such a script stands behind the lines on their page, in a comment that neither GitHub nor our site shows:

    <!-- try: a frozen backbone; 2 processes; 2 GPUs
    model = FineTuned().to(device)
    connect()
    # the lines
    same_on_all_ranks(model)
    -->

`# the lines` is where the lines of the page go, with its indent; `# the lines before "# in the loop"` and
`# the lines from "# in the loop"` are two parts of them. Of a diff, they are the lines with a plus;
`# the old lines` are those with a minus. The first line says on how many processes (without that, python
starts the script) and simulated GPUs the script runs, and how often torchrun may restart it. With
`ends with ValueError`, it must fail with these words. tests/probes/their_models.py has all that a script
begins with. Sybil finds the comments and the lines before them.

A comment `<!-- provoke: ... -->` stands behind prose that says what happens, and has no lines: its script
makes it happen.
"""

import re
import shlex
import sys
import textwrap
from dataclasses import dataclass

import mistune  # nbconvert, which JupyterLab needs, installs it
import pytest
import sybil
from sybil.parsers.markdown.lexers import DirectiveInHTMLCommentLexer, FencedCodeBlockLexer

from tools import diffs, launcher, lessons
from tools.makers.site import deck, to_markdown

ROOT = launcher.ROOT
PATHS = [*sorted((ROOT / "lessons/pages").glob("*.md")), *sorted((ROOT / "lessons/launch").glob("*.md"))]
PLACE = re.compile(r'(?m)^(?P<indent> *)# the (?P<old>old )?lines( (?P<part>before|from) "(?P<mark>.+)")?$')
BEFORE = f"""\
import sys
sys.path += [{str(ROOT / "tests/probes")!r}, {str(ROOT / "lessons/port")!r}]
from their_models import *
"""
AFTER = "\nprint('end of the script', rank, flush=True)\n"


@dataclass
class Try:
    page: str
    name: str
    settings: dict  # the number of processes, GPUs and restarts
    error: str  # what the script must end with, if it must fail
    script: str
    lines: str = ""  # of the page
    is_diff: bool = False
    is_quick: bool = False  # the first of its page that needs no GPU

    def lines_for(self, is_old):
        if not self.is_diff:
            return self.lines
        sign = "-" if is_old else "+"
        chosen = [line[1:] for line in self.lines.splitlines() if line[:1] in (" ", sign)]
        return "\n".join(chosen)

    def whole_script(self):
        script, count = PLACE.subn(self.lines_at, self.script)
        assert bool(count) == bool(self.lines), f"{self.name}: no line `# the lines`, or one too many"
        return BEFORE + script + AFTER

    def lines_at(self, place):
        lines = self.lines_for(is_old=place["old"])
        if place["mark"]:
            before, mark, after = lines.partition(place["mark"])
            assert mark, f"{self.page}, {self.name}: the lines have no {place['mark']}"
            lines = before if place["part"] == "before" else mark + after
        return textwrap.indent(lines, place["indent"])


class Tries:
    """A parser for sybil, whose examples are the tries of a page."""

    fences = FencedCodeBlockLexer(language="python|diff")
    comments = DirectiveInHTMLCommentLexer(directive="try|provoke", arguments="[^\n]+?")

    def __call__(self, document):
        fences = list(self.fences(document))
        number = 0
        for region in self.comments(document):
            region.evaluator = run
            region.parsed = read_try(document.path, region)
            if region.lexemes["directive"] == "try":
                *_, fence = [fence for fence in fences if fence.end < region.start]
                region.parsed.lines = fence.lexemes["source"].rstrip("\n")
                region.parsed.is_diff = fence.lexemes["language"] == "diff"
                if "GPU" not in region.parsed.settings:
                    number += 1
                    region.parsed.is_quick = number == 1
            yield region


def read_try(path, region):
    name, *words = re.split(r"; ", region.lexemes["arguments"])
    error = ""
    if words and words[-1].startswith("ends with "):
        error = words.pop().removeprefix("ends with ")
    settings = {}
    for word in words:
        count, what = re.fullmatch(r"(\d+) (process|GPU|restart)e?s?", word).groups()
        settings[what] = int(count)
    page = path.removeprefix(f"{ROOT}/lessons/")
    return Try(page, name, settings, error, region.lexemes["source"])


def run(example):
    """Run a try. Its namespace has what the test has."""
    trial, forked = example.parsed, example.namespace["forked"]
    script = example.namespace["tmp_path"] / "their_script.py"
    script.write_text(trial.whole_script())
    words = [sys.executable, script]
    environment = {}
    if "process" in trial.settings:
        words, _ = launcher.command("04_ddp_torchrun", trial.settings["process"], script=script)
    if "restart" in trial.settings:
        words[1:1] = ["--max-restarts", trial.settings["restart"]]
        environment["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
    result = forked(words, environment, gpus=trial.settings.get("GPU", 0))
    printed = result.stdout + result.stderr
    if trial.error:
        assert result.code != 0, f"it did not fail:\n{printed}"
        assert trial.error in printed, printed
    else:
        assert result.code == 0, printed
        assert "end of the script" in printed, printed


def all_examples():
    parser = sybil.Sybil(parsers=[Tries()], pattern="*.md")
    examples = []
    for path in PATHS:
        examples += parser.parse(path).examples()
    return examples


def as_parameter(example):
    """The first script of a page that needs no GPU runs while you work, the others in CI."""
    trial = example.parsed
    mark = pytest.mark.quick if trial.is_quick else pytest.mark.long
    what = "" if trial.lines else " provoked"
    return pytest.param(example, id=f"{trial.page}{what}: {trial.name}", marks=mark)


EXAMPLES = all_examples()


@pytest.mark.parametrize("example", list(map(as_parameter, EXAMPLES)))
def test_the_lines_of_a_page_work_in_other_peoples_scripts(example, forked, tmp_path):
    if "optuna" in example.parsed.lines:
        pytest.importorskip("optuna", reason="needs lessons/parts/tuning.txt: make tools installs it")
    example.namespace.update(forked=forked, tmp_path=tmp_path)
    example.evaluate()


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_nobody_sees_the_scripts(path):
    """They are in comments of HTML: on GitHub, which shows Markdown by the same rules, and on our site."""
    shown = mistune.create_markdown(escape=False, plugins=["table"])(path.read_text())
    shown = re.sub(r"(?s)<!--.*?-->", "", shown)
    on_the_site = to_markdown.COMMENT.sub("", path.read_text())
    for text in (shown, on_the_site):
        assert "# the lines" not in text and "connect()" not in text


def test_all_lines_that_a_page_offers_are_tried():
    """Each block of Python or of a diff has one, except the diffs of lessons, which `make diffs` writes."""
    untried = []
    tried = {(example.parsed.page, example.parsed.lines) for example in EXAMPLES}
    for path in PATHS:
        text = re.sub(r"(?s)<!-- ([^\n]+): written by .*?<!-- end of \1 -->", "", path.read_text())
        document = sybil.Document(text, str(path))
        for fence in Tries.fences(document):
            page, lines = str(path.relative_to(ROOT / "lessons")), fence.lexemes["source"].rstrip("\n")
            if (page, lines) not in tried and "google.colab" not in lines:
                untried.append(f"{page}: {lines}")
    assert not untried


@pytest.mark.parametrize("stem", lessons.STEMS)
def test_a_card_comes_first_on_its_page_and_is_tried_in_three_other_scripts(stem):
    """The command is the lesson's, few ideas are new, and nothing in the lines to copy is ours."""
    lesson = lessons.get(stem)
    text = lesson.page.read_text()
    command, ideas, copied = deck.read(text)
    assert 5 <= len(copied) <= 28, f"{stem}: the card has {len(copied)} lines to copy, not 5 to 28"
    ours = r"\b(workload|arguments|shared_search|search_options|search_results|parts\.)\b"
    assert not re.search(ours, "\n".join(copied).replace("parts.items", ""))
    typed, documented = command.replace("\\\n", " "), diffs.command(lesson.path).replace("\\\n", " ")
    assert shlex.split(typed) == shlex.split(documented)
    assert 1 <= len(ideas) <= (8 if stem == "03_ddp_spawn" else 3)  # the step from one process to several
    page = re.sub(r"(?s)<!-- way: .*?<!-- end of way -->\n*", "", text)  # it may come before
    assert re.match(r"# .+\n\n<!-- card -->\n> \*\*Run it:\*\*", page)
    tries = 0
    for example in EXAMPLES:
        if example.parsed.lines == "\n".join(copied):
            tries += 1
    assert tries >= 3
