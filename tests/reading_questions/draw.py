"""Draw sentences at random from everything that readers read, for two people to label.

    python tests/reading_questions/draw.py --seed 1 --count 60

You will see numbered sentences, each with the file that it comes from: README, pages, the text of notebooks,
the READMEs of the folders, and the docstrings and comments of lessons and exercises. The same seed draws the
same sentences from the same text. Each reader, who does not know what has been changed, labels a sentence
(a) natural, (b) understandable but stilted, or (c) had to be read twice. labels.md has the counts.
"""

import argparse
import inspect
import json
import random
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = (
    "README.md",
    "lessons/README.md",
    "notebooks/README.md",
    "notebooks/*.ipynb",
    "tools/makers/bench/README.md",
)
PAGES += tuple(f"lessons/{name}" for name in ("pages/*.md", "launch/*.md", "*/README.md"))
PAGES += tuple(f"lessons/{name}*.py" for name in ("", "parts/", "recipes/", "exercises/"))
SHORTEST = 5  # words: less is a heading or the name of something


def prose(path):
    """The text of a file without what a tool writes, code, tables, headings and the addresses of links."""
    text = path.read_text()
    if path.suffix == ".ipynb":
        cells = [cell for cell in json.loads(text)["cells"] if cell["cell_type"] == "markdown"]
        text = "\n\n".join("".join(cell["source"]) for cell in cells)
    if path.suffix == ".py":
        found = re.findall(r'(?ms)"""(.*?)"""|((?:^ *# [^\n]*\n)+)|  # ([^\n]*)', text)
        found = [inspect.cleandoc(doc) or re.sub(r"(?m)^ *# ", "", lines) or end for doc, lines, end in found]
        text = "\n\n".join(found)
    text = re.sub(r"(?s)<!-- (.+?): written by .*?<!-- end of \1 -->|```.*?```|<[^>]+>", "", text)
    text = re.sub(r"!?\[([^]]*)\]\([^)]*\)", r"\1", text)
    lines = [line for line in text.splitlines() if not line.startswith(("|", "#", "    "))]
    return "\n".join(re.sub(r"^\s*(>|[-*]|\d+\.) +", "\n\n", line) for line in lines)


def sentences(text):
    for paragraph in re.split(r"\n\s*\n", text):
        flat = " ".join(paragraph.replace("**", "").split())
        for sentence in re.split(r"(?<=[.?!])[\"')]* +(?=[A-Z`\"(])", flat):
            if len(sentence.split()) >= SHORTEST:
                yield sentence


def main():
    more = {"description": __doc__, "formatter_class": argparse.RawDescriptionHelpFormatter}
    parser = argparse.ArgumentParser(**more)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--count", type=int, default=60, help="how many sentences (60)")
    arguments = parser.parse_args()
    paths = sorted({path for pattern in PAGES for path in ROOT.glob(pattern)})
    found = [(path.relative_to(ROOT), sentence) for path in paths for sentence in sentences(prose(path))]
    for number, (path, sentence) in enumerate(
        random.Random(arguments.seed).sample(found, arguments.count), 1
    ):
        print(f"{number}. [{path}] {sentence}")


if __name__ == "__main__":
    main()
