"""Random filters and properties, for the broker's own classes and for ours."""

from __future__ import annotations

import random
from typing import Any

from rmqtool.read.filter import EvaluationError, FilterError, parse

NAMES = ("a", "b", "size", "Color", "_x$1", "contains", "TAGS")
TEXTS = (
    "red", "blue", "", "it''s", "5", "-5", "5.0", " 5 ", "+5", "05", "2147483648", "9223372036854775807",
    "1e3", "true", "TRUE", "NaN", "Infinity", "-0.0", "0", "0x1p3", "5d", "5L", "颜色", "😀", "ed", "r",
    "１２", "\t7\n",
)  # fmt: skip
NUMBERS = (
    "0", "1", "5", "10", "5l", "5L", "2147483647", "2147483648", "9223372036854775807", "9223372036854775808",
    "5.0", "5.", ".5", "1e3", "1E-3", "5.e1", "0.0", "1e999", "1e-999", "007", "123456789.25", "0L",
)  # fmt: skip
ODD = ("#", "'", "--", "-- no\n", "/* c */", "/*", "!=", "==", ";", "(", ")", ",", "+", "IS", "LIKE 'a'", "é")


def _operand(rng: random.Random) -> str:
    kind = rng.random()
    if kind < 0.45:
        return rng.choice(NAMES)
    if kind < 0.68:
        return rng.choice(NUMBERS)
    if kind < 0.86:
        return f"'{rng.choice(TEXTS)}'"
    return rng.choice(
        ("TRUE", "false", "NULL", "-5", "+a", "- -5", "-b", "- 2147483648", "-'5'", "-TRUE", "+5.5")
    )


def _simple(rng: random.Random, depth: int) -> str:
    left = _operand(rng) if rng.random() < 0.9 or depth <= 0 else f"({expression(rng, depth - 1)})"
    name = rng.choice(NAMES)
    text = f"'{rng.choice(TEXTS)}'"
    word = rng.choice(("CONTAINS", "startswith", "EndsWith"))
    negated = rng.choice(("", "NOT "))
    match rng.randrange(8):
        case 0 | 1:
            return f"{left} {rng.choice(('=', '<>'))} {_operand(rng)}"
        case 2 | 3:
            return (
                f"{name if rng.random() < 0.7 else left}{rng.choice(('<', '<=', '>', '>='))}{_operand(rng)}"
            )
        case 4:
            low, high = (_operand(rng) if rng.random() < 0.3 else rng.choice(NUMBERS) for _ in range(2))
            return f"{name} {negated}BETWEEN {low} AND {high}"
        case 5:
            texts = ", ".join(f"'{rng.choice(TEXTS)}'" for _ in range(rng.randint(1, 7)))
            return f"{name if rng.random() < 0.9 else left} {negated}in ({texts})"
        case 6:
            return f"{left} is {negated}NULL"
    return f"{name if rng.random() < 0.9 else left} {negated}{word} {text}"


def expression(rng: random.Random, depth: int = 3) -> str:
    """A filter; mostly one that a broker takes."""
    kind = rng.random()
    if depth <= 0 or kind < 0.4:
        return _simple(rng, depth)
    if kind < 0.75:
        words = (" AND ", " or ", "\tOR\n", " and ")
        return rng.choice(words).join(expression(rng, depth - 1) for _ in range(rng.randint(2, 3)))
    if kind < 0.9:
        return f"NOT ({expression(rng, depth - 1)})"
    if kind < 0.95:
        return f"({expression(rng, depth - 1)}) {rng.choice(('=', '<>'))} {_operand(rng)}"
    return rng.choice(
        (f"NOT {rng.choice(NAMES)}", rng.choice(NAMES), "TRUE", "NULL", f"+({expression(rng, depth - 1)})")
    )


def case(rng: random.Random, properties: int = 6) -> dict[str, Any]:
    """A filter and some properties; one filter in eight has something odd in it."""
    text = expression(rng)
    if rng.random() < 0.12:
        at = rng.randint(0, len(text))
        text = f"{text[:at]}{rng.choice((' ', ''))}{rng.choice(ODD)}{text[at:]}"
    rows = []
    for _ in range(properties):
        names = rng.sample(NAMES, rng.randint(0, len(NAMES)))
        rows.append({name: rng.choice(TEXTS).replace("''", "'") for name in names})
    return {"text": text, "properties": rows}


def ours(one: dict[str, Any], broker: str) -> Any:
    """Our answer in the words of java/Filters.java."""
    try:
        found = parse(one["text"], broker=broker, ignore_rest=True)
    except FilterError:
        return "refused"
    answers: list[Any] = []
    for properties in one["properties"]:
        try:
            answers.append(found.evaluate(properties))
        except EvaluationError:
            answers.append("thrown")
    return answers
