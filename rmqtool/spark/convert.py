"""Batches of message columns -> batches with exactly the schema that Spark wants, column by column.

Everything works on whole columns. Spark compares the first batch's schema with its own, names, types
and nullability included, and reads the later ones without a look: each is made with that schema.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rmqtool.message.rows import OK
from rmqtool.problems import Finding
from rmqtool.spark.schema import CORRUPT, RequestedColumn, sources_of
from rmqtool.storage.single_file import offset_of_name

KAFKA_LOG_APPEND_TIME = 1
"""Kafka's timestampType of a time that the broker set, as the store timestamp is."""
_INT32_MAX = (1 << 31) - 1
_ESCAPES = {'"': '\\"', "\\": "\\\\"}


_OF_BODY = frozenset({"body", "stored_body"})


class Converter:
    """Makes Spark's batches of the engine's; one per partition."""

    def __init__(
        self, asked: Sequence[RequestedColumn], schema: pa.Schema, broker_name: str, body: bool = True
    ) -> None:
        """Prepare.

        Args:
            asked: the columns, in order.
            schema: Spark's, of the same columns.
            broker_name: of the store that is read.
            body: whether bodies are wanted; without them the column is null and is not read.
        """
        self._asked = tuple(asked)
        self._schema = schema
        self._broker_name = broker_name
        self._body = body
        sources = set(sources_of(asked))
        if any(each.field == CORRUPT for each in asked):
            sources |= {"status", "physical_offset"}
        if any(each.field.name == "position" for each in asked):
            sources.add("physical_offset")
        if not body:
            sources -= _OF_BODY
        self.columns = frozenset(sources)
        """The engine columns that a batch must have."""

    def batch(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The rows of a batch that has `columns`."""
        arrays = [
            self._column(batch, each, field.type)
            for each, field in zip(self._asked, self._schema, strict=True)
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def damage(self, findings: Sequence[Finding]) -> pa.RecordBatch:
        """A row for each range that holds no sound record: where, how long, and what is wrong."""
        nothing: Callable[[Finding], Any] = lambda each: None  # noqa: E731
        values: dict[str, Callable[[Finding], Any]] = {
            "physicalOffset": lambda each: each.physical_offset,
            "size": lambda each: each.length if (each.length or 0) <= _INT32_MAX else None,
            "status": lambda each: [each.problem.code],
            "file": lambda each: each.path,
            "position": lambda each: _position(each.physical_offset, each.path),
            "brokerName": lambda each: self._broker_name,
            CORRUPT.name: lambda each: json.dumps(each.row(), default=str),
        }
        arrays = []
        for asked, field in zip(self._asked, self._schema, strict=True):
            value = values.get(asked.field.name, nothing)
            found = [value(each) for each in findings]
            if asked.field.name == "status" and asked.type == "string":
                found = [" ".join(codes) for codes in found]
            arrays.append(pa.array(found, field.type))
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _column(self, batch: pa.RecordBatch, asked: RequestedColumn, kind: pa.DataType) -> pa.Array:
        name, source, count = asked.field.name, asked.field.source, len(batch)
        if name == "brokerName":
            return pa.repeat(pa.scalar(self._broker_name, kind), count)
        if name == "timestampType":
            return pa.repeat(pa.scalar(KAFKA_LOG_APPEND_TIME, kind), count)
        if asked.field == CORRUPT:
            return _corrupt(batch)
        if source is None or (source in _OF_BODY and not self._body):
            return pa.nulls(count, kind)
        array = batch.column(source)
        if name == "position":
            return positions(batch.column("physical_offset"), array)
        if name == "key":
            array = pc.map_lookup(array, "KEYS", "first")
        elif name == "headers":
            return headers(array, kind)
        elif pa.types.is_map(array.type) and pa.types.is_string(kind):
            return json_objects(array)
        elif pa.types.is_list(array.type) and pa.types.is_string(kind):
            return _joined(array)
        if pa.types.is_binary(array.type) and pa.types.is_string(kind):
            return texts(array)
        return array if array.type.equals(kind, check_metadata=True) else array.cast(kind)


def positions(offsets: pa.Array, files: pa.Array) -> pa.Array:
    """Where records begin in their files: the files of a log have the names of their first offsets."""
    named = files.dictionary_encode()
    starts = pa.array([_first_offset(name) for name in named.dictionary.to_pylist()], pa.int64())
    return pc.subtract(offsets, starts.take(named.indices))


def _position(offset: int | None, file: str) -> int | None:
    start = _first_offset(file)
    return None if offset is None or start is None else offset - start


def _first_offset(file: str) -> int | None:
    """The number that a path of a log file ends with, but for a suffix; None for other files."""
    return offset_of_name(file.rpartition("/")[2].partition(".")[0])


def _joined(array: pa.Array) -> pa.Array:
    """Lists of texts with spaces between; null for an empty list."""
    found = pc.binary_join(array, " ")
    return pc.if_else(pc.equal(pc.list_value_length(array), 0), pa.scalar(None, found.type), found)


def _corrupt(batch: pa.RecordBatch) -> pa.Array:
    """The codes of records that are not as they should be, as JSON; null for sound ones."""
    status = batch.column("status")
    bad = np.flatnonzero(~sound(status))
    if not len(bad):
        return pa.nulls(len(batch), pa.string())
    places = batch.column("physical_offset")
    found: list[str | None] = [None] * len(batch)
    for row in bad.tolist():
        found[row] = json.dumps({"status": status[row].as_py(), "physical_offset": places[row].as_py()})
    return pa.array(found, pa.string())


def sound(status: pa.Array) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Which records are as they should be; shape (rows,)."""
    first = pc.list_element(status, 0) if len(status) else pa.nulls(0, pa.string())
    mask: np.ndarray[Any, np.dtype[np.bool_]] = pc.equal(first, OK).to_numpy(zero_copy_only=False)
    return mask.astype(np.bool_)


def texts(array: pa.Array) -> pa.Array:
    """Bytes as text; what is not UTF-8 becomes U+FFFD."""
    try:
        return array.cast(pa.string())
    except pa.ArrowInvalid:
        decoded = (None if data is None else data.decode("utf-8", "replace") for data in array.to_pylist())
        return pa.array(decoded, pa.string())


def headers(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """Maps as Kafka's headers: pairs of a name and bytes; null for a map without entries."""
    starts = array.offsets
    low, high = starts[0].as_py(), starts[len(array)].as_py()
    pairs = pa.StructArray.from_arrays(
        [array.keys[low:high], array.items[low:high].cast(pa.binary())], fields=list(kind.value_type)
    )
    offsets = pc.subtract(starts, low).cast(pa.int32())
    empty = pc.equal(pc.subtract(starts[1:], starts[:-1]), 0)
    if array.null_count:
        empty = pc.or_(empty, array.is_null())
    return pa.ListArray.from_arrays(offsets, pairs, type=kind, mask=empty)


def json_objects(array: pa.Array) -> pa.Array:
    """Maps of texts as JSON objects, in their order; null stays null."""
    starts = array.offsets
    low, high = starts[0].as_py(), starts[len(array)].as_py()
    names = _escaped(array.keys[low:high])
    values = _escaped(array.items[low:high])
    pairs = pc.binary_join_element_wise('"', names, '":"', values, '"', "")
    lists = pa.ListArray.from_arrays(pc.subtract(starts, low).cast(pa.int32()), pairs)
    if array.null_count:
        lists = pc.if_else(array.is_valid(), lists, pa.scalar(None, lists.type))
    return pc.binary_join_element_wise("{", pc.binary_join(lists, ","), "}", "")


def _escaped(array: pa.Array) -> pa.Array:
    """Texts as they stand between the quotes of a JSON text."""
    _, offsets, data = array.buffers()
    if data is None or not len(array):
        return array
    places = np.frombuffer(offsets, np.int32, len(array) + 1, array.offset * 4)
    used = np.frombuffer(data, np.uint8, int(places[-1] - places[0]), int(places[0]))
    escaped = np.unique(used[(used < 0x20) | (used == ord('"')) | (used == ord("\\"))])
    # The backslash comes first, before those that are put in here.
    for code in sorted(escaped.tolist(), key=lambda code: code != ord("\\")):
        char = chr(code)
        array = pc.replace_substring(array, char, _ESCAPES.get(char, f"\\u{code:04x}"))
    return array
