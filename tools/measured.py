"""The numbers in the prose of notebooks that nothing there shows and that no link leads to.

    python -m tools.measured

You will see each such number with its sentence, and how many numbers there are. A number counts if it has a
decimal point or a unit or is above 12, and is not in code, a heading or a name like "lesson 13". It must be

- in an output of the same notebook, where it may be less rounded: 0.4389 for 44%, 4,800,000 for 4.8 MB;
- or exactly in the notebook's code, or in source that it shows;
- or in a file of this repository that its paragraph links, where it may be less rounded, too;
- or in a sentence that links the page on the web from which it is quoted;
- or in a comment in its paragraph, <!-- exact: 2,047 -->, because it follows from arithmetic or a definition.
"""

import re
from decimal import Decimal

import nbformat

from tools import lessons

KINDS = {  # of units, and how many basic units each is
    "": {"times": 1, "points": 1, "thousand": 1e3, "million": 1e6, "billion": 1e9, "trillion": 1e12},
    "share": {"%": 0.01},
    "time": {
        "microseconds": 1e-6,
        "ms": 1e-3,
        "milliseconds": 1e-3,
        "s": 1,
        "seconds": 1,
        "minutes": 60,
        "hours": 3600,
        "days": 86400,
    },
    "size": {
        "bytes": 1,
        "kB": 1e3,
        "KB": 1e3,
        "MB": 1e6,
        "GB": 1e9,
        "KiB": 2**10,
        "MiB": 2**20,
        "GiB": 2**30,
    },
}
UNITS = {}
for kind, units in KINDS.items():
    for unit, factor in units.items():
        UNITS[unit] = (kind, factor)
UNIT = rf"(?P<unit>{'|'.join(UNITS)})(?!\w)"
NUMBER = re.compile(
    r"(?<![\w.])(?<!\d,)(?<![A-Za-z]-)(?P<digits>\d{1,3}(?:[,_]\d{3})+(?:\.\d+)?|\d+(?:\.\d+)?(?:e-?\d+)?)"
    rf"(?: ?{UNIT})?(?![.,]?\d|\.?[A-Za-z_])"
)
NAMED = re.compile(rf"(?<![A-Za-z_'/]){UNIT}")
NOT_PROSE = re.compile(
    r"(?ms)<!-- (?P<name>[^>]*?): written by.*?<!-- end of (?P=name) -->|^```.*?^```|^#+ .*?$"
)
PARAGRAPH = re.compile(r"\n\n+|\n(?=- |\d\. |\|)")
SENTENCE = re.compile(r"(?<=[.!?])\s+(?=[A-Z*\[`(0-9])")
LINK = re.compile(r"\]\(([^)\s]*)\)")
EXACT = re.compile(r"<!-- exact: (.*?) -->")
# Code, HTML, where links lead, years, names of lessons and versions.
NO_NUMBER = re.compile(
    r"`+[^`]+`+|<[^>]+>|\]\([^)\s]*\)|\b(?:19|20)\d\d\b(?!,\d)"
    r"|(?i:\b(?:lessons?|notebooks?|pages?|(?:py)?torch|python|version) )\d[\w.]*(?:(?:,| to| and) \d\w*)*"
)


def numbers(text):
    for match in NUMBER.finditer(text):
        yield match, Decimal(re.sub("[,_]", "", match["digits"])), match["unit"]


def values(texts) -> set[tuple[str, float]]:
    """All numbers of these texts in basic units. One without a unit may have any that its text names, as in
    a table, or if it names none, the basic one: 0.44 may be 44%.
    """
    found = set()
    for text in filter(None, texts):
        possible = possible_units(text)
        for _, number, unit in numbers(text):
            value = float(number)
            found.add(("", value))
            for kind, factor in [UNITS[unit]] if unit else possible:
                found.add((kind, value * factor))
    return found


def possible_units(text) -> set[tuple[str, float]]:
    """The units that a text names; of each kind of which it names none, the basic unit."""
    found = {UNITS[match["unit"]] for match in NAMED.finditer(text)}
    named = {kind for kind, _ in found}
    for kind in KINDS:
        if kind not in named:
            found.add((kind, 1))
    return found


def is_among(number, unit, found, is_rounded=True) -> bool:
    kind, factor = UNITS[unit] if unit else ("", 1)
    wanted = float(number)
    half_of_the_last_digit = 0.5000001 * 10.0 ** number.as_tuple().exponent
    margin = half_of_the_last_digit if is_rounded else 1e-9 * wanted
    return any(other == kind and abs(value / factor - wanted) <= margin for other, value in found)


def shown(notebook) -> tuple[list[str], list[str]]:
    """What a notebook shows, of pictures the alt texts; and its code, with source that it shows."""
    results = []
    code = []
    for cell in notebook.cells:
        if cell.cell_type == "code":
            code.append(re.sub(r":[^{}\s]*\}", "}", cell.source))  # a format has no number
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            metadata = output.get("metadata", {})
            texts = code if metadata.get("rungs") in ("diff", "source") else results
            texts.append(output.get("text"))
            texts.append(output.get("data", {}).get("text/plain"))
            texts.append(metadata.get("image/png", {}).get("alt"))
    return results, code


def texts_of(path) -> list[str]:
    """A file that a paragraph links; a folder and what is on the web have no text here."""
    if path.suffix == ".ipynb":
        notebook = nbformat.read(path, as_version=4)
        results, _ = shown(notebook)
        return [cell.source for cell in notebook.cells] + results
    if path.is_file():
        return [path.read_text()]
    return []


def unfounded(path, notebook) -> tuple[list[str], int]:
    """A line for each number of a notebook's prose that is nowhere, and how many were looked for."""
    results, code = shown(notebook)
    results = values(results)
    code = values(code)
    found = []
    count = 0
    for at, cell in enumerate(notebook.cells, 1):
        if cell.cell_type != "markdown":
            continue
        for paragraph in PARAGRAPH.split(NOT_PROSE.sub("\n\n", cell.source)):
            exact = exact_numbers(paragraph)
            for sentence in SENTENCE.split(paragraph):
                is_quoted = any(link.startswith("https://") for link in LINK.findall(sentence))
                for match, number, unit in numbers(NO_NUMBER.sub(" ", sentence)):
                    if number <= 12 and match["digits"].isdigit() and not unit:
                        continue
                    count += 1
                    if number in exact or is_quoted or is_among(number, unit, results):
                        continue
                    if is_among(number, unit, code, is_rounded=False):
                        continue
                    if not is_among(number, unit, linked_values(path, paragraph)):
                        found.append(f"cell {at}: {match[0]} in: {' '.join(sentence.split())}")
    return found, count


def exact_numbers(paragraph) -> set[Decimal]:
    """Those of the comments that say of a number that it is exact."""
    found = set()
    for text in EXACT.findall(paragraph):
        for _, number, _ in numbers(text):
            found.add(number)
    return found


def linked_values(path, paragraph) -> set[tuple[str, float]]:
    """The numbers of the files that a paragraph of this notebook links."""
    texts = []
    for link in LINK.findall(paragraph):
        texts += texts_of(path.parent / link.partition("#")[0])
    return values(texts)


def main():
    for row in lessons.NOTEBOOKS:
        found, count = unfounded(row.path, nbformat.read(row.path, as_version=4))
        print(f"{row.stem}: {count} numbers, {len(found)} of them nowhere", *found, sep="\n    ")


if __name__ == "__main__":
    main()
