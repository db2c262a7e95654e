"""The columns of a batch of records as Arrow arrays: the values of `rmqtool.message.rows`, for whole batches.

Only requested columns are computed. Texts are always UTF-8: as in Java, invalid bytes on disk become U+FFFD.
Texts and bodies that were gathered into one buffer become Arrow arrays without a copy. Compressed bodies are
decompressed one by one, and a batch ends before they exceed its budget: a few bytes may become megabytes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from rmqtool.errors import FormatError
from rmqtool.formats import body as body_form
from rmqtool.formats import message
from rmqtool.formats.body import is_reproduced
from rmqtool.formats.java import java_utf8_decode
from rmqtool.formats.message import COMPRESSED
from rmqtool.formats.message_id import host_text
from rmqtool.lazy_dataclass import dataclass
from rmqtool.log.damage import codes_of
from rmqtool.log.events import PROPERTIES_UNSOUND
from rmqtool.log.frames import Frames
from rmqtool.log.properties import Pairs, read_pairs, split_keys, status_of_ends, stored_properties
from rmqtool.log.string_ranges import (
    Gathered,
    Ranges,
    are_utf8,
    bodies,
    distinct,
    from_table,
    gather,
    hosts,
    offset_message_ids,
)
from rmqtool.message import rows as row_form
from rmqtool.message.columns import BY_NAME
from rmqtool.message.system_topics import DueOf
from rmqtool.storage.buffers import Array


@dataclass(frozen=True)
class Bodies:
    """The bodies of the first `len(ranges)` records; a body that cannot be unpacked has no value.

    `status` (u1, shape (rows,)) gives the reason, UNPACKABLE or CODEC_MISSING; None if all bodies can be
    unpacked.
    """

    ranges: Ranges
    status: Array | None = None


def stored_bodies(frames: Frames) -> Bodies:
    """The bodies as stored."""
    return Bodies(bodies(frames))


def plain_bodies(frames: Frames, budget: int) -> Bodies:
    """The unpacked bodies of as many records as fit into `budget` bytes, but at least one."""
    stored = bodies(frames)
    compressed = np.flatnonzero(frames.rows["sys_flag"] & COMPRESSED)
    if not len(compressed):
        return Bodies(stored)
    lengths = stored.lengths.astype(np.int64)
    lengths[compressed] = 0
    used = np.cumsum(lengths)  # bytes of uncompressed bodies up to each record
    count = len(stored)
    unpacked_bytes = 0
    values: list[bytes | None] = []
    status = np.zeros(count, np.uint8)
    for row in compressed.tolist():
        value, status[row] = row_form.unpacked(stored.bytes_of(row), int(frames.rows["sys_flag"][row]))
        unpacked_bytes += len(value or b"")
        if int(used[row]) + unpacked_bytes > budget and row > 0:
            count = row
            break
        values.append(value)
    if count < len(stored):
        stored = Ranges(stored.data, stored.starts[:count], stored.lengths[:count])
    ranges = stored.replaced(compressed[: len(values)].tolist(), values)
    return Bodies(ranges, status[:count] if status.any() else None)


def binary_array(found: Gathered, kind: pa.DataType) -> pa.Array:
    """The column as an array of `kind`, string or binary; rows without a value are null."""
    count = len(found.offsets) - 1
    valid, nulls = None, 0
    if found.present is not None:
        valid = pa.py_buffer(np.packbits(found.present, bitorder="little"))
        nulls = count - int(np.count_nonzero(found.present))
    buffers = [valid, pa.py_buffer(found.offsets), pa.py_buffer(found.data)]
    return pa.Array.from_buffers(kind, count, buffers, nulls)


def ranges_of(array: pa.Array) -> Ranges:
    """Where the values of an array of strings or binaries with 32-bit offsets lie; null is an empty one."""
    _, offsets, data = array.buffers()
    count = len(array)
    if not count or data is None or not data.size:
        return Ranges(np.zeros(1, np.uint8), np.zeros(count, np.int64), np.zeros(count, np.int32))
    places = np.frombuffer(offsets, np.int32, count + 1, 4 * array.offset)
    lengths = np.diff(places)
    if array.null_count:
        lengths = np.where(array.is_valid().to_numpy(zero_copy_only=False), lengths, 0)
    return Ranges(np.frombuffer(data, np.uint8), places[:-1].astype(np.int64), lengths)


BodyKind = Literal["plain", "stored"]

_NUMBERS = {
    "physical_offset": "physical_offset", "size": "size", "version": "version", "queue_id": "queue_id",
    "queue_offset": "queue_offset", "flag": "flag", "sys_flag": "sys_flag", "body_crc": "body_crc",
    "born_timestamp_ms": "born_timestamp", "store_timestamp_ms": "store_timestamp",
    "reconsume_times": "reconsume_times", "prepared_transaction_offset": "prepared_transaction_offset",
    "body_length": "body_length",
}  # fmt: skip
"""Columns that are fields of a frame: column to field."""
BINARY = "binary"
"""The value of `body_encoding` for a body that is not text, in a column that has the bytes themselves."""
BODY_COLUMNS = frozenset({"body", "body_encoding", "stored_body"})
_MIN_MS, _MAX_MS = -62_135_596_800_000, 253_402_300_799_999  # years 1 to 9999


class Chunk:
    """Records of one file that become one batch; `frames.data` is valid as long as the chunk lives.

    `due_of` gives the delivery time of delayed messages, for `system`.
    """

    def __init__(
        self, frames: Frames, file: str, bodies: Bodies | None, due_of: DueOf | None = None
    ) -> None:  # fmt: skip
        self.frames = frames
        self.rows: Any = frames.rows
        self.file = file
        self.bodies = bodies
        self.due_of = due_of

    def __len__(self) -> int:
        return len(self.rows)

    @cached_property
    def pairs(self) -> Pairs:
        """The properties of the records."""
        return read_pairs(self.frames)

    @cached_property
    def topics(self) -> list[str]:
        """The topics that the rows' topic ids name."""
        return [java_utf8_decode(topic) for topic in self.frames.topics]

    @cached_property
    def status(self) -> Array:
        """Per row the status bits, u1."""
        status: Array = self.rows["status"].copy()
        status |= status_of_ends(self.frames)
        status[~self.pairs.sound] |= PROPERTIES_UNSOUND
        if self.bodies is not None and self.bodies.status is not None:
            status |= self.bodies.status
        return status


def column(name: str, chunk: Chunk) -> pa.Array:
    """One column of a chunk, by its engine name."""
    field = _NUMBERS.get(name)
    if field is None:
        return _MAKERS[name](chunk)
    values = np.ascontiguousarray(chunk.rows[field])
    return pa.array(values.view(np.int8) if values.dtype == np.uint8 else values)


def _text(ranges: Ranges) -> pa.Array:
    return binary_array(gather(ranges), pa.string())


def _spelled(numbers: Array, texts: Sequence[str | None]) -> pa.Array:
    """Row k is texts[numbers[k]]."""
    return _text(from_table(numbers, [None if text is None else utf8(text) for text in texts]))


def _constant(text: str, count: int) -> pa.Array:
    """The same text in every row."""
    data = utf8(text)
    offsets = np.arange(count + 1, dtype=np.int32) * np.int32(len(data))
    return binary_array(Gathered(offsets, np.frombuffer(data * count, np.uint8), None), pa.string())


def utf8(text: str) -> bytes:
    """The UTF-8 of a text that may come from a file name: lone surrogates become `?`."""
    return text.encode("utf-8", "replace")


def _time(chunk: Chunk, field: str) -> pa.Array:
    found = np.ascontiguousarray(chunk.rows[field])
    outside = (found < _MIN_MS) | (found > _MAX_MS)
    kind = pa.timestamp("us", "UTC")
    if not outside.any():
        return pa.array(found * 1000).view(kind)
    return pa.array(np.where(outside, 0, found) * 1000, mask=outside).view(kind)


def _host(chunk: Chunk, *, born: bool) -> pa.Array:
    numbers, values = distinct(hosts(chunk.frames, born=born))
    return _spelled(numbers, [host_text(value) for value in values])


def _compression(chunk: Chunk) -> pa.Array:
    if not (chunk.rows["sys_flag"] & message.COMPRESSED).any():
        return _constant("none", len(chunk))
    bits = chunk.rows["sys_flag"] & (message.COMPRESSED | message.COMPRESSION_TYPE_MASK)
    values, numbers = np.unique(bits, return_inverse=True)
    return _spelled(numbers, [_compression_of(value) for value in values.tolist()])


def _compression_of(sys_flag: int) -> str | None:
    try:
        return body_form.compression_of(sys_flag)
    except FormatError:
        return None


def _bodies(chunk: Chunk) -> Ranges:
    assert chunk.bodies is not None, "a batch with a body column is made with its bodies"
    return chunk.bodies.ranges


def _body_encoding(chunk: Chunk) -> pa.Array:
    found = _bodies(chunk)
    numbers = np.where(found.lengths < 0, 2, np.where(are_utf8(found), 0, 1))
    return _spelled(numbers, ["utf-8", BINARY, None])


def _stored_body(chunk: Chunk) -> pa.Array:
    """Null if `body` is the stored bytes or reproduces them when compressed, or cannot be unpacked."""
    plain, stored = _bodies(chunk), stored_bodies(chunk.frames).ranges
    flags = chunk.rows["sys_flag"]
    found: list[bytes | None] = [None] * len(chunk)
    for row in np.flatnonzero((flags & message.COMPRESSED != 0) & (plain.lengths >= 0)).tolist():
        kept, value = stored.bytes_of(row), plain.bytes_of(row)
        if value != kept and not is_reproduced(kept, value, int(flags[row])):
            found[row] = kept
    return pa.array(found, pa.binary())


def _keys(chunk: Chunk) -> pa.Array:
    stops, keys = split_keys(chunk.pairs.keys)
    return pa.ListArray.from_arrays(pa.array(stops), _text(keys))


def _properties(chunk: Chunk) -> pa.Array:
    pairs = chunk.pairs
    return pa.MapArray.from_arrays(pa.array(pairs.stops), _text(pairs.names), _text(pairs.values))


def _properties_base64(chunk: Chunk) -> pa.Array:
    import base64

    stored = stored_properties(chunk.frames)
    inexact = np.flatnonzero(~chunk.pairs.exact)
    texts = [base64.b64encode(stored.bytes_of(row)) for row in inexact.tolist()]
    numbers = np.zeros(len(chunk), np.int64)
    numbers[inexact] = np.arange(1, len(texts) + 1)
    return _text(from_table(numbers, [None, *texts]))


def _status(chunk: Chunk) -> pa.Array:
    if not chunk.status.any():
        each = np.arange(len(chunk) + 1, dtype=np.int32)
        return pa.ListArray.from_arrays(pa.array(each), _constant(row_form.OK, len(chunk)))
    values, numbers = np.unique(chunk.status, return_inverse=True)
    lists = [codes_of(value) or [row_form.OK] for value in values.tolist()]
    sizes = np.array([len(codes) for codes in lists], np.int64)
    stops = np.zeros(len(chunk) + 1, np.int32)
    np.cumsum(sizes[numbers], out=stops[1:])
    # the index of each code: where its list begins, plus its place in the list
    begins = (np.cumsum(sizes) - sizes)[numbers]
    places = np.arange(int(stops[-1])) - np.repeat(stops[:-1] - begins, sizes[numbers])
    texts = _spelled(places, [code for codes in lists for code in codes])
    return pa.ListArray.from_arrays(pa.array(stops), texts)


def _system(chunk: Chunk) -> pa.Array:
    """Computed record by record: system records are few, and the column is rarely requested."""
    body: row_form.BodyForm = "none" if chunk.bodies is None else "text"
    form = row_form.RowFormat(body=body, names=("system",), due_of=chunk.due_of)
    texts: list[str | None] = []
    data: Any = chunk.frames.data
    places = zip(chunk.frames.starts().tolist(), chunk.rows["physical_offset"].tolist(), strict=True)
    for start, physical_offset in places:
        record = message.decode(data.data, start)
        found = row_form.message_row(record, physical_offset, chunk.file, form)["system"]
        texts.append(None if found is None else json.dumps(found))
    return pa.array(texts, pa.string())


_MAKERS: dict[str, Callable[[Chunk], pa.Array]] = {
    "topic": lambda chunk: _spelled(chunk.rows["topic_id"], chunk.topics),
    "born_time": lambda chunk: _time(chunk, "born_timestamp"),
    "born_host": lambda chunk: _host(chunk, born=True),
    "store_time": lambda chunk: _time(chunk, "store_timestamp"),
    "store_host": lambda chunk: _host(chunk, born=False),
    "body": lambda chunk: binary_array(gather(_bodies(chunk)), pa.binary()),
    "body_encoding": _body_encoding,
    "body_compression": _compression,
    "stored_body": _stored_body,
    "tags": lambda chunk: _text(chunk.pairs.tags),
    "keys": _keys,
    "uniq_key": lambda chunk: _text(chunk.pairs.uniq_key),
    "offset_msg_id": lambda chunk: binary_array(offset_message_ids(chunk.frames), pa.string()),
    "properties": _properties,
    "properties_base64": _properties_base64,
    "status": _status,
    "file": lambda chunk: _constant(chunk.file, len(chunk)),
    "system": _system,
}

assert {*_NUMBERS, *_MAKERS} == set(BY_NAME)
