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
    return [sum(of_repeat) for of_repeat in zip(*parts.values(), strict=True)]


def table(head, rows):
    """A Markdown table whose columns are aligned in the file."""
    rows = [[str(cell) for cell in row] for row in (head, *rows)]
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = [row[0].ljust(widths[0])]
        for cell, width in zip(row[1:], widths[1:], strict=True):
            cells.append(cell.rjust(width))
        lines.append(f"| {' | '.join(cells)} |")
    rule = ["-" * widths[0]]
    for width in widths[1:]:
        rule.append("-" * (width - 1) + ":")
    lines.insert(1, f"| {' | '.join(rule)} |")
    return "\n".join(lines)
