"""The condition that DuckDB pushes down, an Arrow expression -> its columns, and what need not be read.

Arrow shows nothing of an expression but its Substrait form, a protobuf message. The few kinds of nodes that
conditions consist of are decoded here. A node of any other kind is not used to read less; the expression as
a whole is still applied to every row.

Source: substrait-io/substrait, proto/substrait/algebra.proto and extended_expression.proto.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from rmqtool.read.pushed import Operator, Pushed

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.compute as pc

_OPERATORS: Final[dict[str, Operator]] = {"equal": "=", "gt": ">", "gte": ">=", "lt": "<", "lte": "<="}
_SWAPPED: Final[dict[Operator, Operator]] = {"=": "=", ">": "<", ">=": "<=", "<": ">", "<=": ">="}
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

# the numbers of fields
_EXTENSIONS, _REFERRED = 2, 3
_FUNCTION, _ANCHOR, _NAME = 3, 2, 3
_LITERAL, _SELECTION, _CALL, _IF_THEN, _LIST, _CAST = 1, 2, 3, 6, 8, 11
_INTEGERS = (2, 3, 5, 7)  # i8, i16, i32, i64 of a literal
_TEXT, _TIMESTAMP_TZ, _PRECISE_TIMESTAMP_TZ = 12, 27, 35

Fields = Mapping[int, Sequence[Any]]
"""The fields of a message by number: integers, or bytes of texts and messages."""


class Test(NamedTuple):
    """A comparison of one column with a value, or with the values of a list."""

    column: str
    operator: Operator
    value: Any


def columns_of(condition: pc.Expression, schema: pa.Schema) -> frozenset[str]:
    """The columns that a condition looks at."""
    return frozenset(_columns(_root(condition, schema)[0], schema.names))


def pushed_of(condition: pc.Expression, schema: pa.Schema, names: Mapping[str, str]) -> Pushed:
    """What a condition says of the rows to be read.

    Args:
        condition: over columns of the schema.
        schema: of the table.
        names: the engine's names of its columns.
    """
    root, functions = _root(condition, schema)
    pushed = Pushed()
    for test in _tests(root, functions, schema.names):
        pushed = pushed.and_where(names.get(test.column, ""), test.operator, test.value)
    return pushed


def _root(condition: pc.Expression, schema: pa.Schema) -> tuple[Fields, Mapping[int, str]]:
    """The expression as a message, and the names of its functions by their numbers."""
    whole = _decode(bytes(condition.to_substrait(schema)))
    functions = {}
    for extension in whole.get(_EXTENSIONS, ()):
        for function in map(_decode, _decode(extension).get(_FUNCTION, ())):
            functions[_last(function, _ANCHOR, 0)] = _last(function, _NAME, b"").decode()
    reference = _decode(whole[_REFERRED][0])
    return _decode(reference[1][0]), functions


def _columns(node: Fields, names: Sequence[str]) -> Iterator[str]:
    if _SELECTION in node:
        column = _column(node, names)
        if column is not None:
            yield column
        return
    for child in _children(node):
        yield from _columns(child, names)


def _children(node: Fields) -> Iterator[Fields]:
    """The expressions directly below one; raises LookupError for a kind that is not known here."""
    if _CALL in node:
        for argument in _decode(node[_CALL][-1]).get(4, ()):
            yield from map(_decode, _decode(argument).get(3, ()))
    elif _IF_THEN in node:
        found = _decode(node[_IF_THEN][-1])
        for clause in map(_decode, found.get(1, ())):
            yield from map(_decode, (*clause.get(1, ()), *clause.get(2, ())))
        yield from map(_decode, found.get(2, ()))
    elif _LIST in node:
        found = _decode(node[_LIST][-1])
        yield from map(_decode, (*found.get(1, ()), *found.get(2, ())))
    elif _CAST in node:
        yield from map(_decode, _decode(node[_CAST][-1]).get(2, ()))
    elif _LITERAL not in node:
        raise LookupError(f"an expression of kinds {sorted(node)}")


def _tests(node: Fields, functions: Mapping[int, str], names: Sequence[str]) -> Iterator[Test]:
    """Comparisons that all hold for every row that passes."""
    children = list(_children(node))
    if _LIST in node:
        column, values = _column(children[0], names), [_value(each) for each in children[1:]]
        if column is not None and None not in values:
            yield Test(column, "in", values)
    elif _IF_THEN in node and len(children) == 3 and _is_null(children[2]):  # noqa: PLR2004
        yield from _tests(children[1], functions, names)
    elif _CALL in node:
        name = functions.get(_last(_decode(node[_CALL][-1]), 1, 0), "")
        if name == "and":
            for child in children:
                yield from _tests(child, functions, names)
        elif name == "or":
            yield from _one_of([list(_tests(child, functions, names)) for child in children])
        elif name in _OPERATORS and len(children) == 2:  # noqa: PLR2004
            yield from _comparison(_OPERATORS[name], children[0], children[1], names)


def _comparison(operator: Operator, left: Fields, right: Fields, names: Sequence[str]) -> Iterator[Test]:
    if _LITERAL in left:
        operator, left, right = _SWAPPED[operator], right, left
    column, value = _column(left, names), _value(right)
    if column is not None and value is not None:
        yield Test(column, operator, value)


def _one_of(branches: Sequence[Sequence[Test]]) -> Iterator[Test]:
    """The test that the value of a column is in a list, if every branch of an OR says no more than that."""
    values: list[Any] = []
    columns = set()
    for tests in branches:
        if len(tests) != 1 or tests[0].operator not in ("=", "in"):
            return
        columns.add(tests[0].column)
        values += tests[0].value if tests[0].operator == "in" else [tests[0].value]
    if len(columns) == 1:
        yield Test(columns.pop(), "in", values)


def _column(node: Fields, names: Sequence[str]) -> str | None:
    """The name of a column that an expression consists of; None for another expression."""
    if _SELECTION not in node:
        return None
    segment = _decode(_last(_decode(node[_SELECTION][-1]), 1, b""))
    field = _decode(_last(segment, 2, b""))
    number: int = _last(field, 1, 0)
    return names[number]


def _value(node: Fields) -> Any:
    """The value of a literal as Python has it; None for null, and for types that reduce nothing."""
    if _LITERAL not in node:
        return None
    literal = _decode(node[_LITERAL][-1])
    for number in _INTEGERS:
        if number in literal:
            return _signed(literal[number][-1])
    if _TEXT in literal:
        return literal[_TEXT][-1].decode()
    if _TIMESTAMP_TZ in literal:
        return _time(_signed(literal[_TIMESTAMP_TZ][-1]), 6)
    if _PRECISE_TIMESTAMP_TZ in literal:
        found = _decode(literal[_PRECISE_TIMESTAMP_TZ][-1])
        return _time(_signed(_last(found, 2, 0)), _last(found, 1, 0))
    return None


def _time(count: int, digits: int) -> datetime | None:
    """The time so many units of a fraction of a second after 1970; None if that is not exact, or too far."""
    micros, rest = divmod(count * 10**6, 10**digits)
    try:
        return None if rest else _EPOCH + timedelta(microseconds=micros)
    except OverflowError:
        return None


def _is_null(node: Fields) -> bool:
    return _LITERAL in node and 29 in _decode(node[_LITERAL][-1])  # noqa: PLR2004


# protobuf


def _decode(data: bytes) -> Fields:
    """The fields of a message."""
    fields: dict[int, list[Any]] = {}
    place = 0
    while place < len(data):
        tag, place = _varint(data, place)
        number, kind = tag >> 3, tag & 7
        value: Any
        if kind == 0:
            value, place = _varint(data, place)
        else:
            size = {1: 8, 5: 4}.get(kind)
            if size is None:
                size, place = _varint(data, place)
            value, place = data[place : place + size], place + size
        fields.setdefault(number, []).append(value)
    return fields


def _varint(data: bytes, place: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[place]
        place += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:  # noqa: PLR2004
            return value, place


def _signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value


def _last(fields: Fields, number: int, default: Any) -> Any:
    """The value of a field; `default` if it is not there: protobuf leaves out zeros."""
    found = fields.get(number)
    return found[-1] if found else default
