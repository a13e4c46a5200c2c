"""How the bench shows what it has measured: medians, ranges, ratios and tables."""

import statistics


def middle(values, scale=1, digits=0):
    return f"{scale * statistics.median(values):,.{digits}f}"


def spread(values, scale=1, digits=0):
    """The range. A star marks one that a single repeat stretched to more than twice the median."""
    shown = f"{scale * min(values):,.{digits}f} to {scale * max(values):,.{digits}f}"
    if max(values) > 2 * statistics.median(values):
        shown += " *"
    return shown


def ratio(above, below):
    """Of the medians, which the page shows: a reader can compute it again."""
    return statistics.median(above) / statistics.median(below)


def sums(parts):
    """For each repeat, the sum of the parts of a time."""
    return list(map(sum, zip(*parts.values(), strict=True)))


def table(head, rows):
    """A Markdown table whose columns are aligned in the file: the first to the left, others to the right."""
    columns = []
    for number, column in enumerate(zip(head, *rows, strict=True)):
        width = max(len(str(cell)) for cell in column)
        cells = []
        for cell in column:
            text = str(cell)
            cells.append(text.ljust(width) if number == 0 else text.rjust(width))
        cells.insert(1, "-" * width if number == 0 else "-" * (width - 1) + ":")
        columns.append(cells)
    lines = []
    for cells in zip(*columns, strict=True):
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)
