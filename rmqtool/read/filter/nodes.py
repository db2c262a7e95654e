"""The nodes of an expression: the operands that an operator accepts, and its evaluation.

Evaluation is a function from properties to a value; None is null, which means unknown. It raises
EvaluationError if the broker's evaluation throws; no enclosing operator catches that.

Values compare as in Java. A String is `str`, a Boolean `bool`, a Double `float`; Integer and Long are both
`int`: a constant outside of Integer's range is a Long, and so is -2147483648, which is the negative of one.

Source: PropertyExpression, ConstantExpression, UnaryExpression, UnaryInExpression,
ComparisonExpression, LogicExpression; ComparisonExpression#__compare, Double#valueOf, Double#compareTo.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Literal

from rmqtool.formats.java import TRIMMED, parse_integer
from rmqtool.lazy_dataclass import dataclass
from rmqtool.lazy_pattern import pattern

Value = str | int | float | bool | None

_INTEGER_LIMIT = 1 << 31
LONG_LIMIT = 1 << 63
_DOUBLE = pattern(
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


__all__ = ["EvaluationError", "Node", "NodeError"]

Properties = Mapping[str, str]
Evaluate = Callable[[Properties], Value]
Comparison = Literal[">", ">=", "<", "<="]


class NodeError(ValueError):
    """Operands that the broker rejects when it parses the expression."""


@dataclass(frozen=True, slots=True)
class Node:
    """One part of an expression.

    `is_boolean` is whether it can be used as a truth value. `name` is that of a property, `value` that of a
    constant. `depth` counts the nodes from here to the furthest leaf.
    """

    evaluate: Evaluate
    is_boolean: bool = False
    is_constant: bool = False
    value: Value = None
    name: str | None = None
    depth: int = 1


def property_of(name: str) -> Node:
    """The value of a property; null if the message lacks it."""
    return Node(lambda properties: properties.get(name), name=name)


def constant(value: Value) -> Node:
    """A string, a number, TRUE, FALSE or NULL; the last three are truth values."""
    is_boolean = value is None or isinstance(value, bool)
    return Node(lambda _: value, is_boolean=is_boolean, is_constant=True, value=value)


def decimal(text: str) -> Node:
    """An integer of at most 63 bits, with or without a trailing L. Raises NodeError."""
    digits = text.rstrip("lL")
    value = int(digits) if len(digits) < 20 else LONG_LIMIT
    if value >= LONG_LIMIT:
        raise NodeError(f"{text[:40]} is more than {LONG_LIMIT - 1}")
    return constant(value)


def floating(text: str) -> Node:
    """A number with a point or an exponent. Raises NodeError, also for 0.0, which the broker rejects."""
    value = java_double(text)
    if math.isinf(value) or value == 0:
        raise NodeError(
            f"{text[:40]} is not above 0, or too large" if value == 0 else f"{text[:40]} is too large"
        )
    return constant(value)


def boolean(node: Node) -> Node:
    """`node` as a truth value: an existing property is false, a missing one unknown. Raises NodeError."""
    if node.is_boolean:
        return node
    if node.name is None:
        raise NodeError("this has no truth value")
    evaluate = node.evaluate
    return Node(lambda each: None if evaluate(each) is None else False, is_boolean=True, depth=node.depth + 1)


def negate(node: Node) -> Node:
    """The negative of a number; null for anything else."""

    def evaluate(properties: Properties) -> Value:
        value = node.evaluate(properties)
        return None if value is None or isinstance(value, bool | str) else -value

    return Node(evaluate, depth=node.depth + 1)


def negation(node: Node) -> Node:
    """NOT."""
    operand = boolean(node)

    def evaluate(properties: Properties) -> Value:
        value = operand.evaluate(properties)
        return None if value is None else not value

    return Node(evaluate, is_boolean=True, depth=operand.depth + 1)


def logic(nodes: Sequence[Node], *, decisive: bool) -> Node:
    """AND (`decisive` is False) or OR (True) of two or more parts, evaluated until one decides."""
    parts = [node.evaluate for node in map(boolean, nodes)]

    def evaluate(properties: Properties) -> Value:
        unknown = False
        for part in parts:
            value = part(properties)
            if value is decisive:
                return decisive
            unknown = unknown or value is None
        return None if unknown else not decisive

    return Node(evaluate, is_boolean=True, depth=1 + max(boolean(node).depth for node in nodes))


def _equal(left: Node, right: Node) -> Node:
    def evaluate(properties: Properties) -> Value:
        first, second = left.evaluate(properties), right.evaluate(properties)
        if first is None:
            return True if second is None else None
        return second is not None and compare(first, second) == 0

    return Node(evaluate, is_boolean=True, depth=1 + max(left.depth, right.depth))


def equal(left: Node, right: Node) -> Node:
    """`=`: unknown if only the left side is null, false if only the right side is, true if both are."""
    for node in (left, right):
        if node.is_constant and node.value is None:
            raise NodeError("NULL cannot be compared; use IS NULL")
    if left.is_constant and right.is_constant and left.is_boolean and not right.is_boolean:
        raise NodeError("TRUE and FALSE cannot be compared with this")
    return _equal(left, right)


def is_null(node: Node) -> Node:
    """IS NULL."""
    return _equal(node, constant(None))


def _check_ordered(node: Node) -> None:
    if node.is_boolean or (node.is_constant and not isinstance(node.value, int | float)):
        raise NodeError("only properties and numbers can be compared so")


_TESTS: dict[str, Callable[[int], bool]] = {
    ">": lambda order: order > 0,
    ">=": lambda order: order >= 0,
    "<": lambda order: order < 0,
    "<=": lambda order: order <= 0,
}


def ordered(left: Node, sign: Comparison, right: Node) -> Node:
    """One of > >= < <=; two strings are compared as numbers."""
    _check_ordered(left)
    _check_ordered(right)
    test = _TESTS[sign]

    def evaluate(properties: Properties) -> Value:
        first = left.evaluate(properties)
        if first is None:
            return None
        second = right.evaluate(properties)
        if second is None:
            return None
        if isinstance(first, str) and isinstance(second, str):
            return test(compare_doubles(java_double(first), java_double(second)))
        return test(compare(first, second))

    return Node(evaluate, is_boolean=True, depth=1 + max(left.depth, right.depth))


def between(node: Node, low: Node, high: Node, *, negated: bool) -> Node:
    """BETWEEN, which rejects constants in the wrong order, and NOT BETWEEN, which accepts them."""
    if negated:
        return logic([ordered(node, "<", low), ordered(node, ">", high)], decisive=True)
    if low.is_constant and high.is_constant:
        if low.value is None or high.value is None:
            raise NodeError("the ends of BETWEEN cannot be NULL")
        both_numbers = not (isinstance(low.value, bool | str) or isinstance(high.value, bool | str))
        if both_numbers and compare(high.value, low.value) < 0:
            raise NodeError("the first end of BETWEEN is above the second")
    return logic([ordered(node, ">=", low), ordered(node, "<=", high)], decisive=False)


def is_in(node: Node, texts: Sequence[str], *, negated: bool) -> Node:
    """IN and NOT IN: a property among strings."""
    if node.name is None:
        raise NodeError("IN can test only a property")
    wanted = frozenset(texts)

    def evaluate(properties: Properties) -> Value:
        value = node.evaluate(properties)
        return None if value is None else (value in wanted) is not negated

    return Node(evaluate, is_boolean=True, depth=node.depth + 1)


_SEARCHES: dict[str, Callable[[str, str], bool]] = {
    "CONTAINS": lambda text, search: search in text,
    "STARTSWITH": str.startswith,
    "ENDSWITH": str.endswith,
}


def search(node: Node, word: str, text: str, *, negated: bool) -> Node:
    """CONTAINS, STARTSWITH, ENDSWITH: even if negated, false for an empty text or a non-string value."""
    found = _SEARCHES[word]

    def evaluate(properties: Properties) -> Value:
        value = node.evaluate(properties) if text else None
        return isinstance(value, str) and found(value, text) is not negated

    return Node(evaluate, is_boolean=True, depth=node.depth + 1)
