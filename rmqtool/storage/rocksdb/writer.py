"""Writes a new RocksDB database with the options of a broker's queues, by the library rocksdict.

Only files that a database needs remain: CURRENT, IDENTITY, the MANIFEST and the tables. The library also
leaves its own settings, a log, an OPTIONS file with absolute paths and an empty write-ahead log; a broker
makes the last three when it opens the database. The write-ahead log of a database stays if brokers write
it with one: without it, it could have been lost.

Source: RocksDBOptionsFactory#createCQCFOptions, #createOffsetCFOptions; spec 06 2.1, 12.2.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rmqtool.errors import InputError, UnwritableError
from rmqtool.lazy_pattern import pattern
from rmqtool.storage import durable as disk

CURRENT_SIZE = len("MANIFEST-000000\n")
"""Bytes of the file CURRENT."""
_KEPT = pattern(r"CURRENT|IDENTITY|MANIFEST-\d{6}|\d{6,}\.sst")
_MEMORY_BYTES = 64 << 20  # of rows that wait, for each column family
_BATCH_ROWS = 1 << 14
_BLOCK_BYTES = 32 << 10  # as brokers: RocksDBOptionsFactory#createCQCFOptions
_HASH_RATIO = 0.75
_FORMAT_VERSION = 5


def library() -> Any:
    """The module rocksdict. Raises InputError, which names the extra, if it is not installed."""
    try:
        import rocksdict
    except ImportError as error:
        raise InputError("rocksdict is not installed", hint="pip install 'rmqtool[rocksdb]'") from error
    return rocksdict


class DatabaseWriter:
    """A new database in a folder that has none; rows may be put in any order.

    `has_log`: it keeps a write-ahead log, which is empty.

    Raises InputError without rocksdict, UnwritableError if the database cannot be written.
    """

    def __init__(self, folder: Path, families: Sequence[str], *, has_log: bool = False) -> None:
        self.folder = folder
        self._has_log = has_log
        self._library = library()
        options = self._options()
        self._opened: list[Any] = []
        disk.make_folder(folder)
        with self._writing():
            made = self._library.Rdict(str(folder), options=options)
            for name in families:
                if name != "default":
                    made.create_column_family(name, options=options)
            made.close()
            opened = self._library.Rdict(
                str(folder), options=options, column_families=dict.fromkeys(families, options)
            )
            self._opened.append(opened)
            self._families = {
                name: opened if name == "default" else opened.get_column_family(name) for name in families
            }
            self._opened += (family for family in self._families.values() if family is not opened)
            self._handles = {name: opened.get_column_family_handle(name) for name in families}
        self._quick = self._library.WriteOptions()
        self._quick.disable_wal = True

    def _options(self) -> Any:
        found = self._library
        tables = found.BlockBasedOptions()
        tables.set_format_version(_FORMAT_VERSION)
        tables.set_block_size(_BLOCK_BYTES)
        tables.set_checksum_type(found.ChecksumType.crc32c())
        tables.set_data_block_index_type(found.DataBlockIndexType.binary_and_hash())
        tables.set_data_block_hash_ratio(_HASH_RATIO)
        options = found.Options(raw_mode=True)
        options.set_block_based_table_factory(tables)
        options.set_compression_type(found.DBCompressionType.lz4())
        options.set_compaction_style(found.DBCompactionStyle.universal())
        options.set_write_buffer_size(_MEMORY_BYTES)
        return options

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # the library raises nothing narrower
            raise UnwritableError(f"cannot write: {error}", path=self.folder) from error

    def put(self, family: str, rows: Iterable[tuple[bytes, bytes]]) -> None:
        """Put rows (key, value); a later row replaces an earlier one with its key."""
        handle = self._handles[family]
        batch = self._library.WriteBatch(raw_mode=True)
        put, waiting = batch.put, 0
        with self._writing():
            for key, value in rows:
                put(key, value, handle)
                waiting += 1
                if waiting == _BATCH_ROWS:
                    self._opened[0].write(batch, self._quick)
                    waiting = 0
                    batch = self._library.WriteBatch(raw_mode=True)
                    put = batch.put
            if waiting:
                self._opened[0].write(batch, self._quick)

    def finish(self) -> None:
        """Write all rows into tables, as few as there can be, and close the database."""
        with self._writing():
            for family in self._families.values():
                family.flush()
                family.compact_range(None, None)
        self.close()
        log = max(self.folder.glob("*.log"), default=None) if self._has_log else None
        for path in self.folder.iterdir():
            if path.is_file() and path != log and _KEPT.fullmatch(path.name) is None:
                disk.remove(path)

    def close(self) -> None:
        """Close the database; rows that were not written are lost."""
        with self._writing():
            while self._opened:
                self._opened.pop().close()
