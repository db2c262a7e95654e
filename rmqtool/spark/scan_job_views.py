"""The views consume_queue and index_entries of `--sql`.

Columns have Spark's names. The files are read by the kernels on the executors, a task for some files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rmqtool.formats.consume_queue import BATCH_UNIT_SIZE
from rmqtool.spark.scan_job import ScanRequest

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.datasource import DataSource
    from pyspark.sql.types import StructType

    from rmqtool.read.store import Store
    from rmqtool.storage.layout import IndexFilePath, StoreFile

UNIT_SCHEMA = (
    "brokerName string, topic string, queueId int, queueOffset bigint, physicalOffset bigint, size int, "
    "tagsCode bigint, batchSize smallint, storeTimestampMs bigint, file string"
)
"""Of `consume_queue`: units that are present. The last two numbers are those of batch queues only."""
ENTRY_SCHEMA = (
    "brokerName string, entry int, keyHash int, physicalOffset bigint, timeDiffSeconds int, "
    "storeTimestampMs bigint, previous int, file string"
)
"""Of `index_entries`: entries in use; the time is the header's first and the difference."""

_TASK_BYTES = 64 << 20
_TASK_FILES = 200
_BLOCK = 1 << 18  # entries

_Read = Callable[[Any], Iterator[Any]]


@dataclass(frozen=True, slots=True)
class QueueFile:
    """A consume queue file, as it travels to an executor."""

    broker_name: str
    topic: str
    queue_id: int
    file: StoreFile
    name: str
    unit_size: int


@dataclass(frozen=True, slots=True)
class IndexFile:
    """An index file, as it travels to an executor."""

    broker_name: str
    file: IndexFilePath
    name: str
    slots: int
    entries: int


def units_frame(
    session: SparkSession, stores: Iterable[tuple[str, Store]], request: ScanRequest
) -> DataFrame:
    """The units of the queues that are asked for, as UNIT_SCHEMA; `stores` are (broker name, store)."""
    files: list[Any] = [file for name, store in stores for file in _queue_files(name, store, request)]
    return _frame(session, "units", files, unit_columns, UNIT_SCHEMA)


def entries_frame(session: SparkSession, stores: Iterable[tuple[str, Store]]) -> DataFrame:
    """The entries of all index files, as ENTRY_SCHEMA; `stores` as for `units_frame`."""
    files: list[Any] = [file for name, store in stores for file in _index_files(name, store)]
    return _frame(session, "entries", files, entry_columns, ENTRY_SCHEMA)


def _queue_files(name: str, store: Store, request: ScanRequest) -> Iterator[QueueFile]:
    layout, chosen = store.layout, request.selection
    for queue in layout.unit_queues:
        if chosen.matches_topic(queue.topic) and (not chosen.queues or queue.queue_id in chosen.queues):
            for file in queue.files:
                yield QueueFile(name, *queue.key, file, layout.relative(file.path), queue.unit_size)


def _index_files(name: str, store: Store) -> Iterator[IndexFile]:
    layout = store.layout
    for file in layout.index_files:
        if file.size == layout.index_file_size:
            yield IndexFile(name, file, layout.relative(file.path), layout.index_slots, layout.index_entries)


def _frame(session: SparkSession, name: str, files: list[Any], read: _Read, schema: str) -> DataFrame:
    """A DataFrame of what `read` makes of files, some of them a task.

    `mapInArrow` would do, but it wants pandas.
    """
    pieces: list[list[Any]] = []
    size = 0
    for each in files:
        if not pieces or size + each.file.size > _TASK_BYTES or len(pieces[-1]) >= _TASK_FILES:
            pieces.append([])
            size = 0
        pieces[-1].append(each)
        size += each.file.size
    source = _source(f"rmqtool-{name}", pieces, read, schema)
    session.dataSource.register(source)
    return session.read.format(source.name()).load()


def _source(source_name: str, pieces: list[list[Any]], read: _Read, source_schema: str) -> type[DataSource]:
    """A data source of one use: Spark takes the class with what it closes over to where it is needed."""
    from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
    from pyspark.sql.pandas.types import to_arrow_schema

    class Reader(DataSourceReader):
        def __init__(self, schema: StructType) -> None:
            self.schema = schema

        def partitions(self) -> Sequence[InputPartition]:
            return [InputPartition(piece) for piece in pieces]

        def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
            import pyarrow

            exact = to_arrow_schema(self.schema, timezone="UTC")
            for columns in read(partition.value or []):
                yield pyarrow.RecordBatch.from_arrays(list(columns), schema=exact)

    class Source(DataSource):
        @classmethod
        def name(cls) -> str:
            return source_name

        def schema(self) -> str:
            return source_schema

        def reader(self, schema: StructType) -> DataSourceReader:
            return Reader(schema)

    return Source


def unit_columns(tasks: Iterable[QueueFile]) -> Iterator[list[pa.Array]]:
    """The columns of UNIT_SCHEMA of the units in queue files, block by block."""
    from rmqtool.queue.units import UnitReader, live

    for task in tasks:
        with UnitReader() as reader:
            for first, block in reader.blocks(task.file, task.unit_size):
                chosen = live(block)
                if chosen.any():
                    yield _units(task, first, block, chosen)


def _units(task: QueueFile, first: int, block: np.ndarray, chosen: np.ndarray) -> list[pa.Array]:
    import numpy as np
    import pyarrow as pa

    from rmqtool.queue.units import queue_offsets

    rows, count = block[chosen], int(chosen.sum())
    if task.unit_size == BATCH_UNIT_SIZE:
        sizes = pa.array(rows["batch_size"].astype(np.int16))
        times = pa.array(rows["store_timestamp"].astype(np.int64))
    else:
        sizes, times = pa.nulls(count, pa.int16()), pa.nulls(count, pa.int64())
    return [
        _repeated(task.broker_name, count),
        _repeated(task.topic, count),
        pa.array(np.full(count, task.queue_id, np.int32)),
        pa.array(queue_offsets(block, first)[chosen]),
        pa.array(rows["physical_offset"].astype(np.int64)),
        pa.array(rows["size"].astype(np.int32)),
        pa.array(rows["tags_code"].astype(np.int64)),
        sizes,
        times,
        _repeated(task.name, count),
    ]


def entry_columns(tasks: Iterable[IndexFile]) -> Iterator[list[pa.Array]]:
    """The columns of ENTRY_SCHEMA of the entries in use in index files, block by block."""
    import numpy as np
    import pyarrow as pa

    from rmqtool.formats.index import Shape
    from rmqtool.index.index_file import IndexFile as Reader
    from rmqtool.storage.source import open_source

    for task in tasks:
        source = open_source(task.file.path)
        try:
            reader = Reader(source, Shape(task.slots, task.entries))
            begin = reader.header.begin_timestamp
            for first in range(1, reader.used, _BLOCK):
                rows = reader.entries(first, min(first + _BLOCK, reader.used))
                count, wait = len(rows), rows["time_diff"].astype(np.int32)
                yield [
                    _repeated(task.broker_name, count),
                    pa.array(np.arange(first, first + count, dtype=np.int32)),
                    pa.array(rows["key_hash"].astype(np.int32)),
                    pa.array(rows["physical_offset"].astype(np.int64)),
                    pa.array(wait),
                    pa.array(begin + wait.astype(np.int64) * 1000),
                    pa.array(rows["previous"].astype(np.int32)),
                    _repeated(task.name, count),
                ]
        finally:
            source.close()


def _repeated(text: str, count: int) -> pa.Array:
    import pyarrow as pa

    return pa.repeat(pa.scalar(text, pa.string()), count)
