"""How long something was at work, from the beginnings and ends that a profiler notes."""


def covered(spans):
    """The time in which at least one of these (begin, end) was at work, each moment counted once."""
    total = 0.0
    reached = float("-inf")
    for begin, end in sorted(spans):
        total += max(0.0, end - max(begin, reached))
        reached = max(reached, end)
    return total
