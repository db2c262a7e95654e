"""Databases that a RocksDB library writes: random ones of many shapes, and queues as a broker keeps them."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from rocksdict import (
    BlockBasedOptions,
    ChecksumType,
    DataBlockIndexType,
    DBCompressionType,
    Options,
    Rdict,
    WriteOptions,
)

from rmqtool.formats import rocksdb as format_

Rows = dict[str, dict[bytes, bytes]]

COMPRESSIONS = ("none", "snappy", "zlib", "lz4", "lz4hc", "zstd")


def options(
    *,
    compression: str = "lz4",
    block_size: int = 4096,
    format_version: int = 5,
    checksum: str = "crc32c",
    hash_index: bool = True,
    restart_interval: int = 16,
    index_restart_interval: int = 1,
    write_buffer_size: int = 64 << 20,
    compaction: bool = True,
) -> Options:
    """Options as a broker's, or others that a reader meets as well."""
    tables = BlockBasedOptions()
    tables.set_format_version(format_version)
    tables.set_checksum_type(getattr(ChecksumType, checksum)())
    tables.set_block_size(block_size)
    tables.set_block_restart_interval(restart_interval)
    tables.set_index_block_restart_interval(index_restart_interval)
    if hash_index:
        tables.set_data_block_index_type(DataBlockIndexType.binary_and_hash())
        tables.set_data_block_hash_ratio(0.75)
    made = Options(raw_mode=True)
    made.set_block_based_table_factory(tables)
    made.set_compression_type(getattr(DBCompressionType, compression)())
    made.set_write_buffer_size(write_buffer_size)
    made.set_disable_auto_compactions(not compaction)
    made.set_level_zero_file_num_compaction_trigger(2)
    made.set_target_file_size_base(32 << 10)
    made.set_max_bytes_for_level_base(64 << 10)
    return made


def random_database(folder: Path, rng: random.Random, steps: int = 40) -> Rows:
    """A database of random puts, deletes, range deletes, flushes and compactions; what it holds, by family.

    Half of them are copies made while the database was open, with changes in a write-ahead log only.
    """
    place = folder.with_name(f"{folder.name}.open")
    is_open = rng.random() < 0.5  # then nothing runs in the background that deletes files
    opts = options(
        compression=rng.choice(COMPRESSIONS),
        block_size=rng.choice((64, 512, 4096)),
        format_version=rng.choice((3, 4, 5)),
        hash_index=rng.random() < 0.5,
        restart_interval=rng.choice((1, 4, 16)),
        index_restart_interval=rng.choice((1, 3)),
        compaction=not is_open,
    )
    names = ("default", "other")
    first = Rdict(str(place), options=opts)
    first.create_column_family("other", options=opts)
    first.close()
    opened = Rdict(str(place), options=opts, column_families=dict.fromkeys(names, opts))
    families = {"default": opened, "other": opened.get_column_family("other")}
    for _ in range(steps):
        _step(families[rng.choice(names)], rng)
    rows = {name: dict(family.items()) for name, family in families.items()}
    if is_open:
        opened.flush_wal(True)
        shutil.copytree(place, folder)
    for family in reversed(families.values()):
        family.close()
    if is_open:
        shutil.rmtree(place)
    else:
        place.rename(folder)
    return rows


def _step(family: Rdict, rng: random.Random) -> None:
    what = rng.random()
    if what < 0.6:
        for _ in range(rng.randrange(1, 200)):
            family[_key(rng)] = rng.randbytes(rng.choice((0, 1, 28, 28, 300)))
    elif what < 0.7:
        for _ in range(rng.randrange(1, 50)):
            del family[_key(rng)]
    elif what < 0.8:
        family.delete_range(*sorted((_key(rng), _key(rng))))
    elif what < 0.95:
        family.flush()
    else:
        family.compact_range(None, None)


def _key(rng: random.Random) -> bytes:
    number = rng.randrange(3000).to_bytes(rng.choice((2, 2, 4)), "big")
    return b"key" + number + b"x" * rng.choice((0, 0, 150))


def write_rows(folder: Path, rows: Mapping[str, Mapping[bytes, bytes]], **chosen: Any) -> None:
    """A database of these rows by family, without a write-ahead log, flushed: as a broker stops."""
    opts, names = options(**chosen), tuple(rows)
    first = Rdict(str(folder), options=opts)
    for name in names:
        if name != "default":
            first.create_column_family(name, options=opts)
    first.close()
    opened = Rdict(str(folder), options=opts, column_families=dict.fromkeys(names, opts))
    quiet = WriteOptions()
    quiet.disable_wal = True
    for name in names:
        family = opened if name == "default" else opened.get_column_family(name)
        for key, value in rows[name].items():
            family.put(key, value, write_opt=quiet)
        family.flush()
        if name != "default":
            family.close()
    opened.close()


def write_ahead_log(changes: Iterable[tuple[int, bytes, bytes | None]], sequence: int = 1 << 40) -> bytes:
    """A write-ahead log of one batch: (column family, key, value), None for a delete."""
    content, count = bytearray(), 0
    for family, key, value in changes:
        content += bytes((4 if value is None else 5, family)) + _text(key)
        content += b"" if value is None else _text(value)
        count += 1
    return log_of([format_.BATCH_HEAD.pack(sequence, count) + bytes(content)])


def log_of(records: list[bytes]) -> bytes:
    """A log, with its checksums, of records of any size."""
    made = bytearray()
    for record in records:
        at, is_first = 0, True
        while is_first or at < len(record):
            left = -len(made) % format_.BLOCK_SIZE or format_.BLOCK_SIZE
            if left < format_.LOG_HEAD.size:
                made += bytes(left)
                continue
            part = record[at : at + left - format_.LOG_HEAD.size]
            is_last = at + len(part) == len(record)
            kind = {(True, True): 1, (True, False): 2, (False, False): 3, (False, True): 4}[is_first, is_last]
            checksum = format_.masked(format_.crc32c(bytes((kind,)) + part))
            made += format_.LOG_HEAD.pack(checksum, len(part), kind) + part
            at, is_first = at + len(part), False
    return bytes(made)


def _text(data: bytes) -> bytes:
    assert len(data) < 128
    return bytes((len(data),)) + data
