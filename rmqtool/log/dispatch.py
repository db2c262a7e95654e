"""The dispatch columns of records: tags codes, delay levels and index keys as a broker computes them.

`dispatch_columns` reads the property strings of one batch of the scan in compiled code, by Java's rules:
values of repeated names, empty values, hashes over UTF-16 units. Only records whose properties are not UTF-8
are decoded one by one, with `formats.properties`.

Source: CommitLog#checkMessageAndReturnSize, IndexService#buildIndex; spec 01 sections 5.2, 6.2, 6.6.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from rmqtool.formats import message as form
from rmqtool.formats import properties
from rmqtool.formats.index import key_text, tag_text
from rmqtool.formats.java import index_key_hash, java_utf8_decode, parse_integer, string_hash, tags_code
from rmqtool.lazy_dataclass import dataclass
from rmqtool.log.events import BAD_NUMBER, PROPERTIES_UNSOUND, PROPERTY_CRC_BAD
from rmqtool.log.frames import Frames
from rmqtool.storage.buffers import Array

if TYPE_CHECKING:
    from rmqtool.log.dispatch_kernel import Marks

HAS_TAGS = 1
"""The record has TAGS."""
MULTI_DISPATCH = 2
"""The record has INNER_MULTI_DISPATCH: it also belongs to light queues."""
PROPERTY_CRC_PRESENT = 4
"""The record ends with a property CRC."""
ENDS_IN_ZEROS = 64
"""See `Frames.ends_in_zeros`."""
# The other bits of `Dispatch.flags` are status bits of the record.
_LEFT_TO_PYTHON = 128

NO_DELAY = -1
BAD_DELAY = -2

KIND_UNIQ = 0
KIND_KEY = 1
KIND_TAG = 2

KEY = np.dtype([("row", "i4"), ("key_hash", "i4"), ("kind", "u1")], align=True)
"""One required index entry: the row, the hash as stored, and KIND_UNIQ, KIND_KEY or KIND_TAG."""

_COLUMNS = np.dtype(
    [
        ("tags_code", "i8"),
        ("inner_base", "i8"),
        ("delay_level", "i4"),
        ("inner_count", "i4"),
        ("flags", "u1"),
    ],
    align=True,
)
NAMES = (
    properties.TAGS, properties.KEYS, properties.UNIQ_KEY, properties.DELAY, properties.INNER_BASE,
    properties.INNER_NUM, properties.INNER_MULTI_DISPATCH, form.PROPERTY_CRC_NAME,
)  # fmt: skip
"""In the order of the name numbers in `dispatch_kernel`."""


@dataclass(frozen=True)
class Dispatch:
    """Per record of a batch, arrays of shape (rows,), and the index keys of all of them.

    Attributes:
        tags_code: i8, Java's hash of TAGS, 0 if none. In SCHEDULE_TOPIC_XXXX a delay level above 0 replaces
            it by store time + delay; the caller does that, because it has the table of delays.
        delay_level: i4, DELAY as a number, negative ones as 0; NO_DELAY if missing, BAD_DELAY if it is not a
            number.
        inner_base: i8, first queue offset of an inner batch, -1 for other records.
        inner_count: i4, messages in the inner batch, 0 for other records.
        flags: u1, the bits of this module, and the status bits PROPERTY_CRC_BAD, PROPERTIES_UNSOUND and
            BAD_NUMBER.
        keys: KEY rows in the order of the records, and per record in the order in which a broker indexes
            them: UNIQ_KEY, each of KEYS, TAGS (5.4 only). Rolled back records have none.
    """

    tags_code: Array
    delay_level: Array
    inner_base: Array
    inner_count: Array
    flags: Array
    keys: Array


def dispatch_columns(frames: Frames) -> Dispatch:
    """The dispatch columns of one batch; `frames.data` must still be valid."""
    from rmqtool.log import dispatch_kernel as key_kernel
    from rmqtool.log.crc import crc_address, crc_tables

    rows = frames.rows
    names, name_ends = name_table()
    starts = frames.starts()
    seeds = _seeds(frames.topics)
    columns = np.empty(len(rows), _COLUMNS)
    keys = np.empty(3 * len(rows) + 64, KEY)
    found = np.empty((key_kernel.NAME_COUNT, 2), np.int64)
    result = np.zeros(1, np.int64)
    done = 0
    while done < len(rows):
        done = key_kernel.read_properties(
            frames.data, starts, rows, done, seeds, names, name_ends, found, crc_address(), crc_tables(),
            marks(), columns, keys, result,
        )  # fmt: skip
        if done < len(rows):
            # a property string of n bytes has at most n / 2 + 2 keys
            more = max(len(keys), 2 + int(rows[done]["properties_length"]))
            keys = np.concatenate([keys[: result[0]], np.empty(more, KEY)])
    keys = keys[: result[0]]
    left = np.flatnonzero(columns["flags"] & _LEFT_TO_PYTHON)
    if len(left):
        more_keys = [key for row in left.tolist() for key in _plain(frames, row, columns)]
        keys = np.concatenate([keys, np.array(more_keys, KEY)])
        keys = keys[np.argsort(keys["row"], kind="stable")]
    for row in np.flatnonzero(columns["flags"] & BAD_NUMBER).tolist():
        _read_numbers(columns[row], _properties(frames, row))
    return Dispatch(
        columns["tags_code"],
        columns["delay_level"],
        columns["inner_base"],
        columns["inner_count"],
        columns["flags"],
        keys,
    )


def _plain(frames: Frames, row: int, columns: Array) -> list[tuple[int, int, int]]:
    """Fill one row of `columns` from properties that are not UTF-8, decoded as in Java; returns its keys."""
    record = frames.rows[row]
    found = _properties(frames, row)
    tags = found.get(properties.TAGS)
    columns[row]["tags_code"] = tags_code(tags)
    flags = HAS_TAGS if tags else 0
    if properties.INNER_MULTI_DISPATCH in found:
        flags |= MULTI_DISPATCH
    columns[row]["flags"] = (int(columns[row]["flags"]) & ~_LEFT_TO_PYTHON) | flags
    _read_numbers(columns[row], found)
    if int(record["sys_flag"]) & form.TRANSACTION_MASK == form.TRANSACTION_ROLLBACK:
        return []
    topic = java_utf8_decode(frames.topics[int(record["topic_id"])])
    uniq = found.get(properties.UNIQ_KEY)
    texts = [(key_text(topic, uniq), KIND_UNIQ)] if uniq else []
    texts += [(key_text(topic, key), KIND_KEY) for key in properties.keys_of(found)]
    texts += [(tag_text(topic, tags), KIND_TAG)] if tags else []
    return [(row, index_key_hash(text), kind) for text, kind in texts]


def _properties(frames: Frames, row: int) -> dict[str, str]:
    record = frames.rows[row]
    stop = int(frames.starts()[row]) + int(record["size"])
    return properties.decode(frames.data[stop - int(record["properties_length"]) : stop].tobytes())


def _read_numbers(column: np.void, found: dict[str, str]) -> None:
    """Set delay level and inner batch of one record; the kernel parses ASCII digits only."""
    bad = False
    if properties.DELAY in found:
        level = parse_integer(found[properties.DELAY], 1 << 31)
        column["delay_level"] = BAD_DELAY if level is None else max(level, 0)
        bad = level is None
    if properties.INNER_BASE in found and properties.INNER_NUM in found:
        base = parse_integer(found[properties.INNER_BASE], 1 << 63)
        count = parse_integer(found[properties.INNER_NUM], 1 << 15)
        if base is None or count is None:
            bad = True
        else:
            column["inner_base"], column["inner_count"] = base, count
    column["flags"] = (int(column["flags"]) & ~BAD_NUMBER) | (BAD_NUMBER if bad else 0)


def _seeds(topics: list[bytes]) -> Array:
    """The hashes of `topic#` and `topic#T#`, i4, shape (topics, 2): the start values for hashes of keys."""
    from rmqtool.log import dispatch_kernel as key_kernel

    ends = np.cumsum(np.fromiter(map(len, topics), np.int64, len(topics)))
    seeds, left = np.empty((len(topics), 2), np.int32), np.zeros(len(topics), np.bool_)
    key_kernel.hash_topics(np.frombuffer(b"".join(topics) + b"\0", np.uint8), ends, *_suffixes(), seeds, left)
    for number in np.flatnonzero(left).tolist():
        text = java_utf8_decode(topics[number])
        seeds[number] = string_hash(key_text(text, "")), string_hash(tag_text(text, ""))
    return seeds


@cache
def _suffixes() -> tuple[Array, Array]:
    """The texts between a topic and its keys, and between a topic and its tags, as u1."""
    key, tag = key_text("", "").encode(), tag_text("", "").encode()
    return np.frombuffer(key, np.uint8), np.frombuffer(tag, np.uint8)


@cache
def name_table() -> tuple[Array, Array]:
    """All names, concatenated, as u1, and the end of each."""
    names = np.frombuffer("".join(NAMES).encode(), np.uint8)
    return names, np.cumsum([len(name) for name in NAMES])


@cache
def marks() -> Marks:
    """The format numbers and flag bits for the kernels of property strings."""
    from rmqtool.log.dispatch_kernel import Marks

    return Marks(
        name_end=ord(properties.NAME_END),
        value_end=ord(properties.VALUE_END),
        separator=ord(properties.KEY_SEPARATOR),
        transaction_mask=form.TRANSACTION_MASK,
        rollback=form.TRANSACTION_ROLLBACK,
        crc_mask=form.CRC_MASK,
        property_crc_size=form.PROPERTY_CRC_SIZE,
        has_tags=HAS_TAGS,
        multi_dispatch=MULTI_DISPATCH,
        crc_present=PROPERTY_CRC_PRESENT,
        crc_bad=PROPERTY_CRC_BAD,
        unsound=PROPERTIES_UNSOUND,
        bad_number=BAD_NUMBER,
        ends_in_zeros=ENDS_IN_ZEROS,
        left_to_python=_LEFT_TO_PYTHON,
        no_delay=NO_DELAY,
        bad_delay=BAD_DELAY,
        uniq_kind=KIND_UNIQ,
        key_kind=KIND_KEY,
        tag_kind=KIND_TAG,
    )
