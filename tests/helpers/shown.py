"""What the stored cells of a notebook print and show, for tests of what its prose says about them."""

from tools import notebooks


def outputs(stem):
    for cell in notebooks.read(notebooks.FOLDER / f"{stem}.ipynb").cells:
        yield from cell.get("outputs", [])


def printed(stem):
    """What the cells of a notebook print."""
    texts = [output["text"] for output in outputs(stem) if output["output_type"] == "stream"]
    return "\n".join(texts)


def table(stem, head):
    """The rows of the table with this head: by their first column, the others as a list."""
    for output in outputs(stem):
        lines = output.get("data", {}).get("text/markdown", "").splitlines()
        if lines and lines[0].startswith(f"| {head} |"):
            rows = {}
            for line in lines[2:]:
                first, *others = line.strip("| ").split(" | ")
                rows[first.replace("\\", "")] = others
            return rows
    raise AssertionError(f"{stem} shows no table whose head begins with {head}")


def alts(stem):
    """The alt texts of its pictures."""
    return [output["metadata"]["image/png"]["alt"] for output in outputs(stem) if notebooks.png(output)]


def percent(text):
    return float(text.removesuffix("%")) / 100
