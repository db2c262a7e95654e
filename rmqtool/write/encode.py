"""Columns -> commit log records, at the speed of memory: the counterpart of `frames`.

A `Batch` holds the fixed fields of its rows as an array, texts and bodies by address, and for each
row the number of a template: how its property string is put together. `encode_rows` writes whole
records into a buffer until it is full, and assigns queue offsets. What a broker adds to messages, and
which rows it takes, is the caller's business.

The rows are encoded by `encode_kernel`, or by `formats.message.encode` (`encode_plain`): small batches, for
which loading the kernels would take longer; tests compare the two. Single messages are packed by
`records.prepared.pack`, or by `fast_path`, because a put must be as fast as a broker's.

Source: MessageExtEncoder#encode, CommitLog.DefaultAppendMessageCallback#doAppend; spec 01 3.2 to 3.6.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from ctypes import string_at
from dataclasses import field
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from rmqtool.formats import message as form
from rmqtool.formats import properties
from rmqtool.lazy_dataclass import dataclass
from rmqtool.storage.buffers import Array

if TYPE_CHECKING:
    from rmqtool.write.encode_kernel import Form, Templates, Topics, Values


ROW = np.dtype(
    [
        ("body_address", "i8"),
        ("born_timestamp", "i8"),
        ("store_timestamp", "i8"),
        ("prepared_transaction_offset", "i8"),
        ("values_start", "i8"),
        ("queue_offset", "i8"),
        ("physical_offset", "i8"),
        ("body_length", "i4"),
        ("queue_id", "i4"),
        ("flag", "i4"),
        ("sys_flag", "i4"),
        ("reconsume_times", "i4"),
        ("topic", "i4"),
        ("queue", "i4"),
        ("template", "i4"),
        ("born_host", "i4"),
        ("store_host", "i4"),
        ("properties_length", "i4"),
        ("size", "i4"),
    ],
    align=True,
)
"""One message. body_address: of its first byte, in memory; values_start: where the values of its map begin in
`Batch.value_addresses`; topic, template, born_host, store_host: numbers in the batch's tables; queue: index
into the array of next queue offsets. sys_flag has the bits of IPv6 hosts. properties_length and size are
filled by `measure_rows`, queue_offset and physical_offset by `encode_rows`."""

PART = np.dtype([("text_start", "i4"), ("text_length", "i4"), ("source", "i4")], align=True)
"""One step of a template: a piece of `Batch.texts`, then a value. See `Part` for source."""

NO_VALUE = -1
_PLAIN_ROWS = 1_000
"""Rows that plain Python encodes in the time that the kernels need to load."""


class Part(NamedTuple):
    """One step of a template: append `text`, then a value.

    source: NO_VALUE for none; n >= 0 for column n of the batch's values; `map_value(k)` for value k of
    the row's own map.
    """

    text: bytes
    source: int = NO_VALUE


def map_value(number: int) -> int:
    """The `Part.source` of value `number` (from 0) of a row's map."""
    return -2 - number


@dataclass(frozen=True)
class Batch:
    """Messages to encode.

    Attributes:
        rows: ROW array, shape (rows,).
        topics: the topics as UTF-8; `versions` has the record version, 1 or 2, of each.
        hosts: 8 or 20 bytes each.
        template_stops: i4, shape (templates,): where each template ends in `parts`.
        parts: PART array of all templates, end to end.
        texts: u1, the pieces of text of the parts.
        value_addresses, value_lengths: i8 and i4. Value of column n in row r is at n * rows + r; the
            values of maps follow.
        seals: whether records end with the property CRC. Every template then ends with 0x02 or is empty.
        owners: what the addresses point into.
    """

    rows: Array
    topics: Sequence[bytes]
    versions: Array
    hosts: Sequence[bytes]
    template_stops: Array
    parts: Array
    texts: Array
    value_addresses: Array
    value_lengths: Array
    seals: bool = False
    owners: Sequence[object] = ()
    _tables: tuple[Array, Array, Array] = field(init=False)

    def __post_init__(self) -> None:
        """Lay topics and hosts out as arrays."""
        stops = np.cumsum([len(topic) for topic in self.topics], dtype=np.int64)
        # never empty: an empty array has no address
        topics = np.frombuffer(b"".join(self.topics) + b"\0", np.uint8)
        hosts = np.frombuffer(
            b"".join(host.ljust(form.HOST_V6_SIZE, b"\0") for host in self.hosts) + b"\0", np.uint8
        )
        object.__setattr__(self, "_tables", (topics, stops, hosts))


def build_templates(templates: Sequence[Sequence[Part]]) -> tuple[Array, Array, Array]:
    """(template_stops, parts, texts) of a batch, from its templates."""
    texts = bytearray()
    parts: list[tuple[int, int, int]] = []
    stops: list[int] = []
    for template in templates:
        for part in template:
            parts.append((len(texts), len(part.text), part.source))
            texts += part.text
        stops.append(len(parts))
    return np.array(stops, np.int32), np.array(parts, PART), np.frombuffer(bytes(texts) + b"\0", np.uint8)


def is_for_plain(rows: int) -> bool:
    """Whether plain Python encodes this many rows before the kernels would be loaded."""
    return rows <= _PLAIN_ROWS and "llvmlite.binding" not in sys.modules


def measure_rows(batch: Batch, *, plain: bool) -> None:
    """Fill properties_length and size of every row. Neither is checked against a limit.

    `size` is the low 32 bits of the sum: bodies are below 2 GiB - 64 KiB.
    """
    if plain:
        _measure_plain(batch)
        return
    from rmqtool.write import encode_kernel

    topics, _, templates, values = _arguments(batch)
    encode_kernel.measure_rows(batch.rows, topics, templates, values, batch.seals, _form())


def encode_rows(
    batch: Batch,
    first: int,
    stop: int,
    next_offsets: Array,
    physical_offset: int,
    limit: int,
    out: Array,
    *,
    plain: bool,
) -> tuple[int, int]:
    """Write the records of `batch.rows[first:stop]` to `out` while they fit: (next row, bytes written).

    Args:
        batch: measured, every row within the limits of the format.
        first: the first row.
        stop: after the last row.
        next_offsets: i8 by `queue`: the queue offset of the next message; advanced. Prepared and rolled
            back messages have queue offset 0 and advance nothing.
        physical_offset: of out[0].
        limit: bytes that may be written, at most.
        out: writable u1 array.
        plain: whether plain Python does the work.
    """
    if plain:
        return encode_plain(batch, first, stop, next_offsets, physical_offset, limit, out)
    from rmqtool.log.crc import crc_address, crc_tables
    from rmqtool.write import encode_kernel

    topics, hosts, templates, values = _arguments(batch)
    result = np.zeros(1, np.int64)
    following = encode_kernel.encode_rows(
        batch.rows, first, stop, topics, hosts, templates, values, next_offsets,
        encode_kernel.EncodeBounds(limit, physical_offset), encode_kernel.Crc(crc_address(), batch.seals),
        crc_tables(), _crc_name(), _form(), out, result,
    )  # fmt: skip
    return int(following), int(result[0])


def _arguments(batch: Batch) -> tuple[Topics, Array, Templates, Values]:
    from rmqtool.write.encode_kernel import Templates, Topics, Values

    topics, stops, hosts = batch._tables
    return (
        Topics(topics, stops, batch.versions),
        hosts,
        Templates(batch.template_stops, batch.parts, batch.texts),
        Values(batch.value_addresses, batch.value_lengths),
    )


def load_kernels() -> None:
    """Compile or load the kernels, by encoding one record."""
    rows = np.zeros(1, ROW)
    one, no_lengths = np.ones(1, np.int64), np.zeros(1, np.int32)
    batch = Batch(
        rows, [b"T"], one, [bytes(form.HOST_V4_SIZE)], *build_templates([[Part(b"", 0)]]), one, no_lengths
    )
    measure_rows(batch, plain=False)
    size = int(rows["size"][0])
    encode_rows(batch, 0, 1, np.zeros(1, np.int64), 0, size, np.empty(size, np.uint8), plain=False)


def encode_plain(
    batch: Batch, first: int, stop: int, next_offsets: Array, physical_offset: int, limit: int, out: Array
) -> tuple[int, int]:
    """The plain-Python twin of the kernel."""
    position = 0
    limit = min(limit, len(out))
    for number in range(first, stop):
        row = batch.rows[number]
        size = int(row["size"])
        if position + size > limit:
            return number, position
        out[position : position + size] = np.frombuffer(
            _record(batch, number, next_offsets, physical_offset + position), np.uint8
        )
        position += size
    return stop, position


def _record(batch: Batch, number: int, next_offsets: Array, physical_offset: int) -> bytes:
    row = batch.rows[number]
    sys_flag, topic = int(row["sys_flag"]), int(row["topic"])
    queue_offset = 0
    if sys_flag & form.TRANSACTION_MASK not in (form.TRANSACTION_PREPARED, form.TRANSACTION_ROLLBACK):
        queue_offset = int(next_offsets[row["queue"]])
        next_offsets[row["queue"]] += 1
    row["queue_offset"], row["physical_offset"] = queue_offset, physical_offset
    body = string_at(int(row["body_address"]), int(row["body_length"])) if row["body_length"] else b""
    stored = _properties(batch, number)
    if batch.seals:
        stored += bytes(form.PROPERTY_CRC_SIZE)
    record = form.encode(
        form.Message(
            int(row["size"]), form.MAGIC_BY_VERSION[int(batch.versions[topic])], form.masked_crc(body),
            int(row["queue_id"]), int(row["flag"]), queue_offset, physical_offset, sys_flag,
            int(row["born_timestamp"]), batch.hosts[row["born_host"]], int(row["store_timestamp"]),
            batch.hosts[row["store_host"]], int(row["reconsume_times"]),
            int(row["prepared_transaction_offset"]), len(body), body, batch.topics[topic], len(stored),
            stored,
        )
    )  # fmt: skip
    return properties.seal_property_crc(record) if batch.seals else record


def _steps(batch: Batch, number: int) -> list[tuple[Any, int | None]]:
    """The template of a row: (PART, index of its value or None)."""
    row = batch.rows[number]
    template = int(row["template"])
    begin = int(batch.template_stops[template - 1]) if template else 0
    steps: list[tuple[Any, int | None]] = []
    for part in batch.parts[begin : batch.template_stops[template]]:
        source = int(part["source"])
        index: int | None = None
        if source >= 0:
            index = source * len(batch.rows) + number
        elif source != NO_VALUE:
            index = int(row["values_start"]) - 2 - source
        steps.append((part, index))
    return steps


def _properties(batch: Batch, number: int) -> bytes:
    pieces: list[bytes] = []
    for part, index in _steps(batch, number):
        pieces.append(batch.texts[part["text_start"] :][: part["text_length"]].tobytes())
        if index is not None and batch.value_lengths[index]:
            pieces.append(string_at(int(batch.value_addresses[index]), int(batch.value_lengths[index])))
    return b"".join(pieces)


def _measure_plain(batch: Batch) -> None:
    reserved = form.PROPERTY_CRC_SIZE if batch.seals else 0
    for number, row in enumerate(batch.rows):
        length = reserved
        for part, index in _steps(batch, number):
            length += int(part["text_length"]) + (0 if index is None else int(batch.value_lengths[index]))
        topic = int(row["topic"])
        row["properties_length"] = length
        row["size"] = form.record_size(
            int(batch.versions[topic]),
            int(row["sys_flag"]),
            int(row["body_length"]),
            len(batch.topics[topic]),
            length,
        )


@cache
def _crc_name() -> Array:
    return np.frombuffer(form.PROPERTY_CRC_NAME.encode(), np.uint8)


@cache
def _form() -> Form:
    from rmqtool.write.encode_kernel import Form

    head = form.HEADS[0]
    return Form(
        magic_v1=form.MAGIC_V1,
        magic_v2=form.MAGIC_V2,
        head=head.size,
        born_host_v6=form.BORN_HOST_V6,
        store_host_v6=form.STORE_HOST_V6,
        host_v4=form.HOST_V4_SIZE,
        host_v6=form.HOST_V6_SIZE,
        transaction_mask=form.TRANSACTION_MASK,
        prepared=form.TRANSACTION_PREPARED,
        rollback=form.TRANSACTION_ROLLBACK,
        crc_mask=form.CRC_MASK,
        value_end=ord(properties.VALUE_END),
        name_end=ord(properties.NAME_END),
        property_crc_size=form.PROPERTY_CRC_SIZE,
        **{
            name: head.offsets[name]
            for name in ("magic", "body_crc", "queue_id", "flag", "queue_offset", "physical_offset",
                         "sys_flag", "born_timestamp", "born_host")
        },
    )  # fmt: skip
