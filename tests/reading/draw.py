"""Draw sentences at random from everything that readers read, for two people to label.

    python tests/reading/draw.py --seed 1 --count 60

You will see numbered sentences, each with the file that it comes from: README, pages, the text of notebooks,
the READMEs of the folders, and the docstrings and comments of lessons and exercises. The same seed draws the
same sentences from the same text. Each reader, who does not know what has been changed, labels a sentence
(a) natural, (b) understandable but stilted, or (c) had to be read twice. labels.md has the counts.
"""

import argparse
import ast
import io
import random
import re
import tokenize
from pathlib import Path

import nbformat

ROOT = Path(__file__).resolve().parents[2]
MARKDOWN = (
    "README.md",
    "lessons/README.md",
    "lessons/pages/*.md",
    "lessons/launch/*.md",
    "lessons/frameworks/README.md",
    "lessons/older/README.md",
    "lessons/exercises/README.md",
    "notebooks/README.md",
    "tools/bench/README.md",
)
PYTHON = ("lessons/*.py", "lessons/parts/*.py", "lessons/recipes/*.py", "lessons/exercises/*.py")
SHORTEST = 5  # words: less is a heading or the name of something


def prose(markdown):
    """Markdown without what a tool writes, code, tables, headings and the addresses of links."""
    markdown = re.sub(r"(?s)<!-- (.+?): written by .*?<!-- end of \1 -->", "", markdown)
    markdown = re.sub(r"(?s)```.*?```", "", markdown)
    markdown = re.sub(r"(?s)<[^>]+>", "", markdown)
    markdown = re.sub(r"!?\[([^]]*)\]\([^)]*\)", r"\1", markdown)
    lines = [line for line in markdown.splitlines() if not line.lstrip().startswith(("|", "#", "    "))]
    return "\n".join(re.sub(r"^\s*(>|[-*]|\d+\.) +", "\n\n", line) for line in lines)


def of_python(text):
    """The docstrings and comments of a file, as paragraphs."""
    found = [
        ast.get_docstring(node)
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
    ]
    found = [prose(docstring) for docstring in found if docstring]
    row = -2
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            comment = token.string.lstrip("# ")
            if token.start[0] == row + 1:  # goes on from the line above
                found[-1] += " " + comment
            else:
                found.append(comment)
            row = token.start[0]
    return "\n\n".join(found)


def sentences(text):
    for paragraph in re.split(r"\n\s*\n", text):
        flat = " ".join(paragraph.replace("**", "").split())
        for sentence in re.split(r"(?<=[.?!])[\"')]* +(?=[A-Z`\"(])", flat):
            if len(sentence.split()) >= SHORTEST:
                yield sentence


def everything():
    """Every sentence, with its file."""
    found = []
    for pattern in MARKDOWN:
        for path in sorted(ROOT.glob(pattern)):
            found += [(path, sentence) for sentence in sentences(prose(path.read_text()))]
    for path in sorted(ROOT.glob("notebooks/*.ipynb")):
        for cell in nbformat.read(path, as_version=4).cells:
            if cell.cell_type == "markdown":
                found += [(path, sentence) for sentence in sentences(prose(cell.source))]
    for pattern in PYTHON:
        for path in sorted(ROOT.glob(pattern)):
            found += [(path, sentence) for sentence in sentences(of_python(path.read_text()))]
    return found


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--count", type=int, default=60, help="how many sentences (60)")
    parser.add_argument("--only", default="", help="only files whose path has these letters")
    arguments = parser.parse_args()
    found = [row for row in everything() if arguments.only in str(row[0])]
    drawn = random.Random(arguments.seed).sample(found, min(arguments.count, len(found)))
    for number, (path, sentence) in enumerate(drawn, 1):
        print(f"{number}. [{path.relative_to(ROOT)}] {sentence}")


if __name__ == "__main__":
    main()
