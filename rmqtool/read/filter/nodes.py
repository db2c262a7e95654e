"""The parts of an expression: which operands an operator accepts, and how it is evaluated.

Evaluation is a function from properties to a value; None is null, which means unknown. It raises
EvaluationError if the broker's evaluation throws; no enclosing operator catches that.

Source: PropertyExpression, ConstantExpression, UnaryExpression, UnaryInExpression,
ComparisonExpression, LogicExpression.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from rmqtool.read.filter.values import (
    LONG_LIMIT,
    EvaluationError,
    Value,
    compare,
    compare_doubles,
    java_double,
)

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
