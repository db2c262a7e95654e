"""Columns of a data frame -> columns of an input of messages, as `rmqtool append` reads them.

Names are the engine's, Spark's, or those of the Kafka sink (`key`, `value`, `partition`, `headers`,
`timestamp`). Columns that a store computes (offsets, sizes, CRC, status) are taken, as a row that was
read has them: a data frame that was read can be written as it is.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec
import pyarrow as pa

from rmqtool.errors import InputError, UsageError
from rmqtool.message.columns import COLUMNS as MESSAGE_COLUMNS
from rmqtool.spark.schema import FIELDS, HEADERS_TYPE, INTEGERS
from rmqtool.write.ingest.rows import COLUMNS

_MAP: Final = pa.map_(pa.string(), pa.string())
_OTHERS: Final = {
    **{each.spark_name.lower(): each.name for each in MESSAGE_COLUMNS},
    "key": "keys",
    "value": "body",
    "partition": "queue_id",
    "timestamp": "store_time",
    "headers": "properties",
    "propertiesjson": "properties",
    "delaylevel": "delay_level",
}
_LEFT_OUT: Final = ("brokername", "offset", "timestamptype", "_corrupt_record")
_JSON_OBJECT: Final = msgspec.json.Decoder(dict[str, str])
_NEEDED: Final = ("topic", "body")


_ALSO: Final = {
    "binary": ("binary", "string"),
    "timestamp": ("timestamp", "timestamp_ntz", "string"),
    "array<string>": ("array<string>", "string", "binary"),
    "map<string,string>": ("map<string,string>", "string", HEADERS_TYPE),
    **dict.fromkeys(INTEGERS, INTEGERS),
}
_TYPES: Final[dict[str, tuple[str, ...]]] = {
    column.name: _ALSO.get(field.types[0], (field.types[0],))
    for column, field in zip(MESSAGE_COLUMNS, FIELDS, strict=False)
}
"""The Spark types that a column of the input can be made of, the usual ones first."""


@dataclass(frozen=True)
class WriteColumns:
    """How the columns of a data frame become input columns; picklable.

    `places` are (place in the data frame, name of the input's column, Spark type).
    """

    places: tuple[tuple[int, str, str], ...]

    def of(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The columns of one batch.

        Raises:
            InputError: properties that are not a JSON object of strings.
        """
        arrays = [_CHANGES.get((name, kind), _same)(batch.column(at)) for at, name, kind in self.places]
        return pa.RecordBatch.from_arrays(arrays, [name for _, name, _ in self.places])


def write_columns(schema: Sequence[tuple[str, str]]) -> WriteColumns:
    """What columns of these names and Spark types are made to.

    Raises:
        UsageError: a column that no message has or of a type that it cannot have, two for the same, or
            none for topic or body.
    """
    places: dict[str, tuple[int, str, str]] = {}
    for at, (name, kind) in enumerate(schema):
        low = name.lower()
        if low in _LEFT_OUT:
            continue
        found = low if low in COLUMNS else _OTHERS.get(low)
        if found is None:
            near = difflib.get_close_matches(low, (*_OTHERS, *COLUMNS), 1)
            hint = f"did you mean {near[0]}?" if near else "df.drop removes it"
            raise UsageError(f"column {name}: no message has such a column", hint=hint)
        plain = "string" if kind.startswith(("varchar(", "char(")) else kind
        if plain != "void" and plain not in _TYPES.get(found, (plain,)):
            wanted = " or ".join(_TYPES[found])
            raise UsageError(f"column {name} is of the type {kind}", hint=f"CAST makes it {wanted}")
        if found == "properties" and found in places:
            if "propertiesjson" in (low, schema[places[found][0]][0].lower()):
                places[found] = max(places[found], (at, found, kind), key=lambda each: each[2] != "string")
                continue
        if found in places:
            raise UsageError(f"columns {schema[places[found][0]][0]} and {name} are the same one")
        places[found] = (at, found, kind)
    for name in _NEEDED:
        if name not in places:
            raise UsageError(f"column {name} is missing: a message needs it")
    return WriteColumns(tuple(places.values()))


def _same(array: pa.Array) -> pa.Array:
    return array


def _from_json(array: pa.Array) -> pa.Array:
    found: list[list[tuple[str, str]] | None] = []
    for text in array.to_pylist():
        try:
            found.append(None if text is None else list(_JSON_OBJECT.decode(text).items()))
        except (msgspec.DecodeError, UnicodeEncodeError) as error:
            raise InputError(f"column properties: no JSON object of texts: {error}") from None
    return pa.array(found, _MAP)


def _from_headers(array: pa.Array) -> pa.Array:
    return pa.array(
        [
            None
            if row is None
            else [(pair["key"], (pair["value"] or b"").decode("utf-8", "replace")) for pair in row]
            for row in array.to_pylist()
        ],
        _MAP,
    )


def _as_text(array: pa.Array) -> pa.Array:
    return array.cast(pa.string())


_CHANGES: Final[dict[tuple[str, str], Callable[[pa.Array], pa.Array]]] = {
    ("properties", "string"): _from_json,
    ("properties", HEADERS_TYPE): _from_headers,
    ("keys", "binary"): _as_text,
}
