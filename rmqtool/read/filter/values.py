"""Java's comparison of the values that an expression may have.

A String is `str`, a Boolean `bool`, a Double `float`; Integer and Long are both `int`: a constant
outside of Integer's range is a Long, and so is -2147483648, which is the negative of one.

Source: ComparisonExpression#__compare, Double#valueOf, Double#compareTo.
"""

from __future__ import annotations

import math
import re

from rmqtool.formats.java import TRIMMED, parse_integer

Value = str | int | float | bool | None

_INTEGER_LIMIT = 1 << 31
LONG_LIMIT = 1 << 63
_DOUBLE = re.compile(
    r"""(?P<sign>[+-]?)(?:(?P<word>NaN|Infinity)
      | (?:(?P<decimal>(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)
      |    (?P<hex>0[xX](?:[0-9a-fA-F]+\.?|[0-9a-fA-F]*\.[0-9a-fA-F]+)[pP][+-]?[0-9]+))[fFdD]?)""",
    re.ASCII | re.VERBOSE,
)


class EvaluationError(ValueError):
    """Evaluation fails in the broker, so the message does not match."""


def java_double(text: str) -> float:
    """`Double.valueOf(text)`. Raises EvaluationError if that throws."""
    match = _DOUBLE.fullmatch(text.strip(TRIMMED))
    if match is None:
        raise EvaluationError(f"{text[:40]!r} is not a number")
    if match["word"] is not None:
        value = math.nan if match["word"] == "NaN" else math.inf
    elif match["decimal"] is not None:
        value = float(match["decimal"])
    else:
        try:
            value = float.fromhex(match["hex"])
        except OverflowError:
            value = math.inf
    return -value if match["sign"] == "-" else value


def _integer(text: str, other: int) -> int:
    """`text` parsed as the class of the number `other`, Integer or Long. Raises EvaluationError."""
    is_long = not -_INTEGER_LIMIT < other < _INTEGER_LIMIT
    value = parse_integer(text, LONG_LIMIT if is_long else _INTEGER_LIMIT)
    if value is None:
        raise EvaluationError(f"{text[:40]!r} is not {'a long' if is_long else 'an integer'}")
    return value


def _order(left: int | float, right: int | float) -> int:
    return (left > right) - (left < right)


def compare_doubles(left: float, right: float) -> int:
    """Negative, 0 or positive: -0.0 is below 0.0, NaN equals itself and is above all."""
    if left != left or right != right:  # NaN
        return _order(left != left, right != right)
    return _order(left, right) or _order(math.copysign(1, left), math.copysign(1, right))


def compare(left: str | int | float | bool, right: str | int | float | bool) -> int:
    """Negative, 0 or positive, after the broker's conversion of one value to the class of the other.

    Values that cannot be compared give -1 in both orders. Raises EvaluationError for a string that does not
    parse as the other's class, and for TRUE or FALSE to the left of a string.
    """
    if isinstance(left, bool):
        if isinstance(right, str):
            raise EvaluationError("a boolean on the left cannot be compared with a string")
        return _order(left, right) if isinstance(right, bool) else -1
    if isinstance(right, bool):
        return _order(left.lower() == "true", right) if isinstance(left, str) else -1
    if isinstance(left, str):
        if isinstance(right, str):
            return 0 if left == right else _order_of_text(left, right)
        left = java_double(left) if isinstance(right, float) else _integer(left, right)
    elif isinstance(right, str):
        right = java_double(right) if isinstance(left, float) else _integer(right, left)
    if isinstance(left, float) or isinstance(right, float):
        return compare_doubles(float(left), float(right))
    return _order(left, right)


def _order_of_text(left: str, right: str) -> int:
    first, second = (text.encode("utf-16-be", "surrogatepass") for text in (left, right))
    return 1 if first > second else -1
