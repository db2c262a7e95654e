"""The tables of units and index entries: a row for each unit of consume queues and entry of index files.

Files are read block by block; a `Block` has the values of the columns by their names in `COLUMNS`. Units
that are not present (zeros, fillers before a queue's first message) and entries that the header does not
count are not rows. Whether a unit or an entry is right is not judged here but by `verify`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from rmqtool.formats.consume_queue import BATCH_UNIT_SIZE
from rmqtool.formats.index import Shape
from rmqtool.lazy_dataclass import dataclass
from rmqtool.message.columns import BY_NAME, Column
from rmqtool.read.pushed import BROKER

if TYPE_CHECKING:
    import pyarrow as pa

    from rmqtool.read.store import Store
    from rmqtool.storage.layout import IndexFilePath, StoreFile

_BLOCK: Final = 1 << 18  # entries

BROKER_COLUMN: Final = Column(BROKER, "brokerName", "string", "", "name of the store's broker")
_STORE_TIME = BY_NAME["store_timestamp_ms"]
COLUMNS: Final[Mapping[str, tuple[Column, ...]]] = {
    "units": (
        BROKER_COLUMN, BY_NAME["topic"], BY_NAME["queue_id"], BY_NAME["queue_offset"],
        BY_NAME["physical_offset"], BY_NAME["size"],
        Column("tags_code", "tagsCode", "int64", "",
               "the hash of the tag, the address of an extension unit, or a delivery time"),
        Column("batch_size", "batchSize", "int16", "",
               "messages of the record; only in batch queues, which also have `storeTimestampMs`"),
        _STORE_TIME, BY_NAME["file"],
    ),
    "index_entries": (
        BROKER_COLUMN, Column("entry", "entry", "int32", "index", "number of the entry in its file, from 1"),
        Column("key_hash", "keyHash", "int32", "", "hash of topic and key"),
        BY_NAME["physical_offset"],
        Column("time_diff", "timeDiffSeconds", "int32", "s",
               "seconds since the first time of the file; `storeTimestampMs` is the sum of both"),
        _STORE_TIME,
        Column("previous", "previous", "int32", "index",
               "number of the previous entry in the same slot; 0 if there is none"),
        BY_NAME["file"],
    ),
}  # fmt: skip
"""The columns of the tables, in their order; `Column.spark_name` is the name in Spark and SQL."""

VIEWS: Final = {"messages": "messages", "consume_queue": "units", "index_entries": "index_entries"}
"""The tables of SQL by the names that queries use."""

Block = tuple[int, dict[str, Any]]
"""(rows, values by name): an array of shape (rows,), or one value for all of them."""


@dataclass(frozen=True, slots=True)
class QueueFile:
    """A consume queue file, as it travels to a task; `name` is its path in the store."""

    broker_name: str
    name: str
    file: StoreFile
    topic: str
    queue_id: int
    unit_size: int

    def blocks(self) -> Iterator[Block]:
        """The units that name a record; only those of batch queues have a batch size and a store time."""
        from rmqtool.queue.units import UnitReader, live, queue_offsets

        with UnitReader() as reader:
            for first, block in reader.blocks(self.file, self.unit_size):
                chosen = live(block)
                units = block[chosen]
                values: dict[str, Any] = {
                    name: units[name] for name in ("physical_offset", "size", "tags_code")
                }
                values |= {"queue_offset": queue_offsets(block, first)[chosen], "file": self.name}
                values |= {"topic": self.topic, "queue_id": self.queue_id}
                has_times = self.unit_size == BATCH_UNIT_SIZE
                values["batch_size"] = units["batch_size"] if has_times else None
                values["store_timestamp_ms"] = units["store_timestamp"] if has_times else None
                yield len(units), values
            reader.must_be_read(self.file)


@dataclass(frozen=True, slots=True)
class IndexFile:
    """An index file, as it travels to a task; `name` is its path in the store."""

    broker_name: str
    name: str
    file: IndexFilePath
    shape: Shape

    def blocks(self) -> Iterator[Block]:
        """The entries in use; their time is that of the header and the difference."""
        import numpy as np

        from rmqtool.index.index_file import IndexFile as IndexReader
        from rmqtool.storage.source import open_source

        source = open_source(self.file.path)
        try:
            reader = IndexReader(source, self.shape)
            for first in range(1, reader.used, _BLOCK):
                entries = reader.entries(first, min(first + _BLOCK, reader.used))
                waits = entries["time_diff"].astype(np.int64)
                values = {name: entries[name] for name in ("key_hash", "physical_offset", "previous")}
                yield len(entries), {
                    **values, "entry": np.arange(first, first + len(entries)), "time_diff": waits,
                    "store_timestamp_ms": reader.header.begin_timestamp + waits * 1000, "file": self.name,
                }  # fmt: skip
        finally:
            source.close()


TableFile = QueueFile | IndexFile


def queue_files(broker_name: str, store: Store, wanted: Callable[[str, int], bool]) -> Iterator[QueueFile]:
    """The files of all queues, of a topic and with an id, that are wanted."""
    for queue in store.layout.unit_queues:
        for file in queue.files if wanted(*queue.key) else ():
            name = store.layout.relative(file.path)
            yield QueueFile(broker_name, name, file, *queue.key, queue.unit_size)


def index_files(broker_name: str, store: Store) -> Iterator[IndexFile]:
    """The index files of the configured size."""
    layout = store.layout
    shape = Shape(layout.index_slots, layout.index_entries)
    for file in layout.index_files:
        if file.size == layout.index_file_size:
            name = layout.relative(file.path)
            yield IndexFile(broker_name, name, file, shape)


def column_array(value: Any, rows: int, kind: pa.DataType) -> pa.Array:
    """A column of a block as Arrow has it."""
    import numpy as np
    import pyarrow as pa

    if isinstance(value, np.ndarray):
        return pa.array(value.astype(kind.to_pandas_dtype()))
    return pa.repeat(pa.scalar(value, kind), rows)
