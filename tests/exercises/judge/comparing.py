"""Whether what came is what was expected, and words for it if not."""

from typing import Any

import numpy

from judge.results import Verdict


def require(condition: Any, came: str, expected: str = "") -> None:
    if not condition:
        raise Verdict("failed", came, expected)


def same(what: str, got: Any, expected: Any) -> None:
    """Equal things: whole numbers, words, None, lists of them."""
    got, expected = plain(got), plain(expected)
    require(type(got) is type(expected) and got == expected, f"{what} is {short(got)}", short(expected))


def close(what: str, got: Any, expected: Any, relative: float = 2e-5, scale: float | None = None) -> None:
    """Equal but for rounding: the tolerance grows with the largest number expected (or with `scale`). A
    number that is small by chance, 1.0002 - 1, keeps the rounding of what it came from: hence the floor.
    NaN is never close to a number."""
    require(got is not None, f"{what} is None", "numbers")
    require(
        isinstance(got, numpy.ndarray | float | int) and not isinstance(got, bool),
        f"{what} is {short(got)}",
        "numbers",
    )
    expected = numpy.asarray(expected, dtype="float64")
    got = numpy.asarray(got, dtype="float64")
    require(got.shape == expected.shape, f"{what} has the shape {shape(got)}", shape(expected))
    if not expected.size:
        return
    if not numpy.isfinite(expected).all():
        raise RuntimeError(f"the judge's own {what} is not finite")
    allowed = relative * max(float(numpy.abs(expected).max()), scale or 0.05)
    with numpy.errstate(all="ignore"):
        wrong = ~(numpy.abs(got - expected) <= allowed)
    if wrong.any():
        place = tuple(int(index) for index in numpy.argwhere(wrong)[0])
        where = f" at {list(place)}" if place else ""
        more = f" ({int(wrong.sum())} of {wrong.size} numbers are wrong)" if wrong.size > 1 else ""
        came = f"{what}: {got[place]:.6g}{where}{more}{factor(got, expected, allowed)}"
        raise Verdict("failed", came, f"{expected[place]:.6g}")


def plain(value: Any) -> Any:
    """Arrays as lists, so that they can be compared."""
    if isinstance(value, numpy.ndarray):
        return value.tolist()
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, tuple | list):
        return [plain(item) for item in value]
    return value


def shape(array: numpy.ndarray) -> str:
    return " x ".join(map(str, array.shape)) or "one number"


def short(value: Any) -> str:
    text = repr(value)
    return text if len(text) < 160 else text[:150] + " ..."


def factor(got: numpy.ndarray, expected: numpy.ndarray, allowed: float) -> str:
    """If all numbers are wrong by one factor, say so: it names the mistake."""
    with numpy.errstate(all="ignore"):
        ratio = got[numpy.abs(expected) > 100 * allowed] / expected[numpy.abs(expected) > 100 * allowed]
    if ratio.size < 3 or not numpy.isfinite(ratio).all() or numpy.ptp(ratio) > 1e-3 * abs(ratio.mean()):
        return ""
    if abs(ratio.mean() - 1) < 0.01:
        return "; all numbers are nearly right: is this more than rounding?"
    return f"; every number is {ratio.mean():.4g} times what it should be"
