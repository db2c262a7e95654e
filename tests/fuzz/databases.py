"""RocksDB databases: inputs of their decoders, and mutations that the checksums do not reveal."""

from __future__ import annotations

import gzip
import tarfile
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from io import BytesIO
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from rmqtool.errors import FormatError
from rmqtool.formats import pop_record, rocksdb_config, rocksdb_queue, rocksdb_timer
from rmqtool.formats import rocksdb as format_
from rmqtool.formats.rocksdb import KEY_TAIL_SIZE, LOG_HEAD, TableFile
from rmqtool.index.rocksdb_entries import ENTRY
from rmqtool.index.rocksdb_entries_kernel import entries_of_block
from rmqtool.queue.rocksdb_units_kernel import units_of_block
from rmqtool.storage.rocksdb.table import Table, split_key
from tests.fuzz.mutate import mutate
from tests.support.stores import case

Input = np.ndarray[Any, np.dtype[np.uint8]]

STORES = (
    "kind_rocksdb_540", "kind_rocksdb_540_running", "kind_config_v2_540", "kind_combine_index_timer_540",
)  # fmt: skip
_CHECKSUM_TYPE = -format_.FOOTER.size  # the byte of a table that says how its blocks are checked
_KEYS = (b"\0" * KEY_TAIL_SIZE, b"\xff" * (64 + KEY_TAIL_SIZE))
_COUNT = 50


@cache
def _files() -> dict[str, bytes]:
    """The files of the databases of a real store, by path."""
    archive = case(STORES[0]).archive
    assert archive is not None
    with tarfile.open(fileobj=BytesIO(gzip.decompress(archive.read_bytes()))) as tar:
        members = [each for each in tar.getmembers() if each.isfile() and is_of_database(each.name)]
        return {each.name: tar.extractfile(each).read() for each in members}  # type: ignore[union-attr]


def is_of_database(path: str) -> bool:
    """Whether a file is one of those that say what a database holds."""
    name = Path(path).name
    return name.endswith((".sst", ".log")) or name.startswith("MANIFEST-") or name == "CURRENT"


def _of(suffix: str) -> tuple[bytes, ...]:
    return tuple(data for name, data in sorted(_files().items()) if suffix in name and data)


# -- samples -----------------------------------------------------------------------------------------


def tables() -> tuple[bytes, ...]:
    """Tables without checksums of their blocks, so that a changed byte reaches the decoders."""
    return tuple(_unchecked(data) for data in _of(".sst") if len(data) < 1 << 14)


def logs() -> tuple[bytes, ...]:
    """MANIFESTs and write-ahead logs."""
    return (*_of("MANIFEST-"), *_of(".log"))


@cache
def records() -> tuple[bytes, ...]:
    """Version edits and write batches."""
    return tuple(record for data in logs() for _, record in _records(data))[:_COUNT]


@cache
def blocks() -> tuple[bytes, ...]:
    """Data blocks, decompressed."""
    opened = [_opened(data) for data in tables()]
    return tuple(table.block(number) for table in opened for number in range(table.block_count))[:_COUNT]


@cache
def entries() -> tuple[bytes, ...]:
    """Keys and values: the length of the key, the key, the value."""
    found = [pair for block in blocks() for pair in format_.block_entries(block)]
    chosen = found[:: max(len(found) // _COUNT, 1)]
    return tuple(bytes((len(key) - 8,)) + key[:-8] + value for key, value in chosen if len(key) < 256)


def _unchecked(table: bytes) -> bytes:
    return table[:_CHECKSUM_TYPE] + b"\0" + table[_CHECKSUM_TYPE + 1 :]


def _records(data: bytes) -> list[tuple[int, bytes]]:
    return list(format_.log_records(lambda at, length: data[at : at + length], len(data)))


def _opened(data: bytes) -> Table:
    file = TableFile(1, len(data), *_KEYS)
    return Table(Path("000001.sst"), file, lambda path, at, length: data[at : at + length])


# -- what decoders do with them ----------------------------------------------------------------------


def read_table(data: Input, random: Random) -> None:
    """Every block of a table, its index and its range deletes."""
    table = _opened(data.tobytes())
    for number in range(table.block_count):
        with suppress(FormatError):
            table.check(number)
            table.entries(number)


def read_log(data: Input, random: Random) -> None:
    """The records of a log, as version edits and as write batches."""
    for _, record in _records(data.tobytes()):
        read_record(record)


def read_record(record: bytes) -> None:
    """A record as both kinds."""
    for decode in (format_.version_edit, lambda data: list(format_.changes(data))):
        with suppress(FormatError):
            decode(record)


def read_block(data: Input, random: Random) -> None:
    """Compiled = plain: the units of a queue that the block may hold."""
    raw = data.tobytes()
    for has_deltas in (True, False):
        with suppress(FormatError):
            list(format_.index_entries(raw, has_deltas=has_deltas))
    end = format_.entries_end(raw)
    prefix = rocksdb_queue.queue_prefix(random.choice(("TopicA", "TopicB", "")), 0)
    units = np.zeros((_COUNT, 28), np.uint8)
    deletes = np.array([format_.DELETE, format_.SINGLE_DELETE], np.int64)
    taken = units_of_block(
        data, end, np.frombuffer(prefix, np.uint8), 0, np.empty(format_.NAMES_MAX, np.uint8), 28, format_.PUT,
        deletes, np.full(_COUNT, -1, np.int64), units,
    )  # fmt: skip
    _read_entries(data, end)
    try:
        expected = _units(raw, prefix)
    except FormatError:
        assert taken < 0
    else:
        assert taken >= 0 and (units == expected).all()


def _read_entries(data: Input, end: int) -> None:
    """Compiled = plain: the entries of an index that the block may hold."""
    entries = np.zeros(end // 3 + 1, ENTRY)
    none = np.zeros(0, np.uint8)
    deletes = np.array([format_.DELETE, format_.SINGLE_DELETE], np.int64)
    count = entries_of_block(
        data, end, none, none, np.empty(len(data), np.uint8), format_.PUT, deletes, entries
    )
    try:
        keys = [split_key(key) for key, _ in format_.block_entries(data.tobytes())]
    except FormatError:
        assert count < 0
        return
    if any(kind not in (format_.DELETE, format_.PUT, format_.SINGLE_DELETE) for _, _, kind in keys):
        assert count < 0
        return
    offsets = [int.from_bytes(key[-8:], "big", signed=True) if len(key) >= 16 else -1 for key, _, _ in keys]
    assert entries["physical_offset"][:count].tolist() == offsets
    assert entries["sequence"][:count].tolist() == [sequence for _, sequence, _ in keys]


def _units(block: bytes, prefix: bytes) -> Input:
    found = np.zeros((_COUNT, 28), np.uint8)
    newest = [-1] * _COUNT
    for key, value in format_.block_entries(block):
        user_key, sequence, kind = split_key(key)
        number = int.from_bytes(user_key[len(prefix) :], "big", signed=True)
        is_key = user_key.startswith(prefix) and len(user_key) == len(prefix) + 8
        if not is_key or not 0 <= number < _COUNT or sequence <= newest[number]:
            continue
        if kind not in (format_.DELETE, format_.PUT, format_.SINGLE_DELETE):
            raise FormatError("an unknown kind")
        newest[number] = sequence
        is_unit = kind == format_.PUT and len(value) == 28
        found[number] = np.frombuffer(value, np.uint8) if is_unit else 0
    return found


def read_entry(data: bytes) -> None:
    """A key and a value as each kind of row that brokers write."""
    length = data[0] if data else 0
    key, value = data[1 : 1 + length], data[1 + length :]
    decoders: tuple[Callable[[], object], ...] = (
        lambda: rocksdb_queue.decode_unit_key(key),
        lambda: rocksdb_queue.decode_end_key(key),
        lambda: rocksdb_queue.decode_end(value),
        lambda: rocksdb_queue.decode_checkpoint(value),
        lambda: pop_record.decode(key, value),
        lambda: rocksdb_timer.decode(key, value),
        lambda: rocksdb_timer.decode_number(value),
        lambda: rocksdb_config.documents_v2([(key, value)]),
        lambda: [
            rocksdb_config.document_v1(name, [(key, value)], value, [(key, value)])
            for name in rocksdb_config.NAMES
        ],
    )
    for decode in decoders:
        with suppress(FormatError):
            decode()


# -- mutations of stores -----------------------------------------------------------------------------


def edits(root: Path, random: Random) -> list[dict[str, Any]]:
    """One mutation of a database below `root` that no checksum reveals."""
    paths = (path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file())
    path = random.choice(sorted(each for each in paths if is_of_database(each)))
    data = (root / path).read_bytes()
    if path.endswith(".sst"):
        changed = mutate(_unchecked(data)[: 1 << 16], random)
    elif path.endswith("CURRENT"):
        changed = mutate(data, random)
    else:
        changed = _resealed(data, random)
    return [{"op": "create", "path": path, "hex": changed.hex(), "why": "mutated, checksums are right"}]


def _resealed(log: bytes, random: Random) -> bytes:
    """A log of which one record is mutated."""
    found = [record for _, record in _records(log)] or [bytes(12)]
    place = random.randrange(len(found))
    found[place] = mutate(found[place], random)[: format_.BLOCK_SIZE - LOG_HEAD.size]
    made = bytearray()
    for record in found:
        left = -len(made) % format_.BLOCK_SIZE
        if left < LOG_HEAD.size + len(record):
            made += bytes(left)
        checksum = format_.masked(format_.crc32c(b"\1" + record))
        made += LOG_HEAD.pack(checksum, len(record), 1) + record
    return bytes(made)
