"""Whether what came is what was expected, and words for it if not."""

import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy
import torch

from grader.results import Verdict


def require(condition: Any, came: str, expected: str = "") -> None:
    if not condition:
        raise Verdict("failed", came, expected)


def same(what: str, got: Any, expected: Any) -> None:
    """Equal things: whole numbers, words, None, lists of them."""
    many = numbers(got)
    if many > 10_000 and many != numbers(expected):  # as words, they would take minutes
        raise Verdict("failed", f"{what} has {many} numbers", short(plain(expected)))
    got, expected = plain(got), plain(expected)
    # Words are made only where they are needed: for a large array they take longer than the comparison.
    if type(got) is not type(expected) or got != expected:
        raise Verdict("failed", f"{what} is {short(got)}{apart_from(got, expected)}", short(expected))


def counted(some: list | dict | set) -> Counter:
    """How often each item is there, in words; an item of a dict with its name."""
    counts = Counter()
    for item in some:
        words = repr(item)
        if isinstance(some, dict):
            words += f": {some[item]!r}"
        counts[words] += 1
    return counts


def apart_from(got: Any, expected: Any) -> str:
    """Of two lists, two dicts or two sets: which items are missing, and which are too much."""
    if type(got) is not type(expected) or not isinstance(got, list | dict | set) or not (got and expected):
        return ""
    came, wanted = counted(got), counted(expected)
    missing = cut(", ".join((wanted - came).elements()))
    too_much = cut(", ".join((came - wanted).elements()))
    words = ""
    if wanted - came:
        words += f"; missing: {missing}"
    if came - wanted:
        words += f"; not expected: {too_much}"
    if not words and isinstance(got, list):
        words = "; the items are right, but in a different order"
    return words


def close(
    what: str,
    got: Any,
    expected: Any,
    relative: float = 2e-5,
    scale: float | None = None,
    given: Sequence[Any] = (),
    dtype: torch.dtype | None = None,
) -> None:
    """Equal but for rounding: the tolerance grows with the largest number expected (or with `scale`). A
    number that is small by chance, 1.0002 - 1, keeps the rounding of what it came from: hence the floor.
    NaN is never close to a number. `given` is what each rank was given: to name what came instead.
    `dtype`: what the tensor must be."""
    require(got is not None, f"{what} is None", "numbers")
    if not isinstance(got, torch.Tensor | float | int) or isinstance(got, bool):
        raise Verdict("failed", f"{what} is {short(got)}", "numbers")
    if dtype is not None and (isinstance(got, torch.Tensor) or dtype != torch.float64):
        came = str(getattr(got, "dtype", type(got).__name__)).removeprefix("torch.")
        require(getattr(got, "dtype", None) == dtype, f"{what} is {came}", str(dtype).removeprefix("torch."))
    expected, got = array(expected), array(got)
    require(got.shape == expected.shape, f"{what} has the shape {shape(got)}", shape(expected))
    if not expected.size:
        return
    if not numpy.isfinite(expected).all():
        raise RuntimeError(f"the grader's own {what} is not finite")
    allowed = tolerance(expected, relative, scale)
    with numpy.errstate(all="ignore"):
        wrong = ~(numpy.abs(got - expected) <= allowed)
    if wrong.any():
        place = tuple(int(index) for index in numpy.argwhere(wrong)[0])
        where = f" at {list(place)}" if place else ""
        are = "is" if wrong.sum() == 1 else "are"
        more = f" ({int(wrong.sum())} of {wrong.size} numbers {are} wrong)" if wrong.size > 1 else ""
        one, right = apart(float(got[place]), float(expected[place]))
        had = before(what, got, given)
        times = factor(got, expected, allowed, len(given))
        # A sum to which one rank alone has added is what that rank was given: then both are said.
        words = times + had if had and "there are" in times else had or times
        raise Verdict("failed", f"{what}: {one}{where}{more}{words}", right)


def tolerance(expected: numpy.ndarray, relative: float, scale: float | None) -> float:
    """How far a number may be from the expected one."""
    return relative * max(float(numpy.abs(expected).max()), scale or 0.05)


def array(value: Any) -> numpy.ndarray:
    value = value.detach().double().numpy() if isinstance(value, torch.Tensor) else value
    return numpy.asarray(value, dtype="float64")


def numbers(value: Any) -> int:
    """How many there are in arrays, and in lists of them."""
    if isinstance(value, tuple | list):
        return sum(map(numbers, value))
    return int(numpy.prod(value.shape)) if hasattr(value, "shape") else 0


def plain(value: Any) -> Any:
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, tuple | list):
        return [plain(item) for item in value]
    return value


def shape(array: numpy.ndarray) -> str:
    return " x ".join(map(str, array.shape)) or "one number"


def short(value: Any) -> str:
    return cut(repr(value))


def cut(text: str) -> str:
    return text if len(text) < 160 else text[:150] + " ..."


def apart(got: float, expected: float) -> tuple[str, str]:
    """Two numbers with as many digits as it takes to see that they differ."""
    for digits in (6, 9, 12, 17):
        words = f"{got:.{digits}g}", f"{expected:.{digits}g}"
        if words[0] != words[1]:
            break
    return words


def factor(got: numpy.ndarray, expected: numpy.ndarray, allowed: float, ranks: int) -> str:
    """If all numbers are wrong by one factor, say so: it names the mistake."""
    if got.size > 1 and not got.any():
        return "; all numbers are 0"
    with numpy.errstate(all="ignore"):
        if numpy.abs(got - expected).max() <= 1e-5 * numpy.abs(expected).max():
            return "; nearly right, but the difference is more than rounding"
        ratio = got[numpy.abs(expected) > 100 * allowed] / expected[numpy.abs(expected) > 100 * allowed]
    if ratio.size < 3 or not numpy.isfinite(ratio).all() or numpy.ptp(ratio) > 1e-3 * abs(ratio.mean()):
        return ""
    times = ratio.mean()
    if not numpy.abs(got - times * expected).max() <= 1e-3 * numpy.abs(got).max():
        return ""  # a number that is to be small is not
    if abs(times - 1) < 0.01:
        return "; all numbers are nearly right: is the difference more than rounding?"
    if abs(times + 1) < 1e-3:
        return "; every number has the wrong sign"
    as_many = ranks > 1 and min(abs(times / ranks - 1), abs(times * ranks - 1)) < 1e-3
    words = f", and there are {ranks} processes" if as_many else ""
    return f"; every number is {times:.4g} times what it should be{words}"


def before(what: str, got: numpy.ndarray, given: Sequence[Any]) -> str:
    """If these are the very numbers that a rank was given, say so: perhaps nothing was done with them."""
    owners = [rank for rank, value in enumerate(given) if holds(value, got)] if got.size > 1 else []
    if not owners:
        return ""
    if len(given) == 1:
        return "; these are numbers that your code was given"
    named = re.search(r"\brank (\d+)", what)
    own = named and int(named[1]) in owners
    return f"; these are numbers that {'it' if own else f'rank {owners[0]}'} was given"


def holds(value: Any, array: numpy.ndarray) -> bool:
    """Whether this array is somewhere in what a rank was given."""
    if isinstance(value, dict):
        return any(holds(item, array) for item in value.values())
    if isinstance(value, tuple | list):
        return any(holds(item, array) for item in value)
    value = value.detach().double().numpy() if hasattr(value, "detach") else value
    alike = isinstance(value, numpy.ndarray) and value.size == array.size and value.dtype.kind in "fiu"
    return alike and bool((value.reshape(array.shape) == array).all())
