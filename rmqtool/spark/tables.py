"""The tables `units` and `index_entries`: a row for each unit of consume queues and entry of index files.

The driver lists the files and groups them into partitions; a task reads its files block by block and
makes the requested columns. Units that are not present (zeros, fillers before a queue's first
message) and entries that the header does not count are not rows. Whether a unit or an entry is right is
not judged here but by `verify`.

The columns are those of `schema.TABLE_FIELDS`; a `Block` has their values by `Field.source`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from rmqtool.formats.consume_queue import BATCH_UNIT_SIZE
from rmqtool.formats.index import Shape
from rmqtool.lazy_dataclass import dataclass
from rmqtool.spark.bounds import check_names, queue_test
from rmqtool.spark.errors import explain_errors
from rmqtool.spark.stores import find_places, open_place

if TYPE_CHECKING:
    import pyarrow as pa

    from rmqtool.read.store import Store
    from rmqtool.spark.options import SourceOptions
    from rmqtool.spark.schema import RequestedColumn
    from rmqtool.storage.layout import IndexFilePath, StoreFile

_TASK_BYTES: Final = 64 << 20
_TASK_FILES: Final = 200
_BLOCK: Final = 1 << 18  # entries

Block = tuple[int, dict[str, Any]]
"""(rows, values by source): an array of shape (rows,), or one value for all of them."""


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


def plan_files(options: SourceOptions) -> list[list[TableFile]]:
    """The files that a read of a table reads, in the order of stores and files, by task.

    Raises:
        DataLossError: a topic that options name is not there, unless `failOnDataLoss` is false.
        UsageError, InputError: a store cannot be found or read.
    """
    stores, files = [], list[TableFile]()
    for place in find_places(options):
        with open_place(place, options) as store:
            stores.append((place, store))
            if options.table == "units":
                files += _queue_files(place.broker_name, store, queue_test(options))
            else:
                files += _index_files(place.broker_name, store)
    check_names(options, stores)
    tasks: list[list[TableFile]] = []
    size, size_max = 0, options.max_bytes_per_partition or _TASK_BYTES
    for each in files:
        if not tasks or size + each.file.size > size_max or len(tasks[-1]) >= _TASK_FILES:
            tasks.append([])
            size = 0
        tasks[-1].append(each)
        size += each.file.size
    return tasks


def _queue_files(broker_name: str, store: Store, wanted: Callable[[str, int], bool]) -> Iterator[QueueFile]:
    """The files of all queues, of a topic and with an id, that are wanted."""
    for queue in store.layout.unit_queues:
        for file in queue.files if wanted(*queue.key) else ():
            name = store.layout.relative(file.path)
            yield QueueFile(broker_name, name, file, *queue.key, queue.unit_size)


def _index_files(broker_name: str, store: Store) -> Iterator[IndexFile]:
    """The index files of the configured size."""
    layout = store.layout
    shape = Shape(layout.index_slots, layout.index_entries)
    for file in layout.index_files:
        if file.size == layout.index_file_size:
            name = layout.relative(file.path)
            yield IndexFile(broker_name, name, file, shape)


def read_files(
    files: Sequence[TableFile], columns: Sequence[RequestedColumn], schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """The rows of files with the columns `columns`, of which `schema` is Spark's. Raises InputError."""
    import pyarrow as pa

    sources = [each.field.source for each in columns]  # only the broker has none
    with explain_errors():
        for file in files:
            for rows, values in file.blocks():
                if rows:
                    arrays = [
                        _column(values[source] if source else file.broker_name, rows, field.type)
                        for source, field in zip(sources, schema, strict=True)
                    ]
                    yield pa.RecordBatch.from_arrays(arrays, schema=schema)


def _column(value: Any, rows: int, kind: pa.DataType) -> pa.Array:
    import numpy as np
    import pyarrow as pa

    if isinstance(value, np.ndarray):
        return pa.array(value.astype(kind.to_pandas_dtype()))
    return pa.repeat(pa.scalar(value, kind), rows)
