"""The views of `--sql`: messages, consume_queue, index_entries.

Columns have Spark's names. Of `messages` only those columns are read that the query can mean: a column
is meant by its name or by a star, so those whose names the text holds are enough. Queue and index files
are read by the kernels on the executors, a task for some files.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rmqtool.errors import UsageError
from rmqtool.formats.consume_queue import UNIT_SIZE
from rmqtool.spark.scan_job import DAMAGE, ScanRequest, messages
from rmqtool.spark.schema import COLUMN_SETS

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.datasource import DataSource
    from pyspark.sql.types import StructType

    from rmqtool.store import Store
    from rmqtool.store.layout import IndexFilePath, StoreFile

VIEWS = ("messages", "consume_queue", "index_entries")
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

_COUNT_STAR = re.compile(r"count\s*\(\s*\*\s*\)", re.IGNORECASE)
_ANY_COLUMN = re.compile(
    r"\*|\bnatural\b|\btable\b|\bidentifier\b|\bexcept\b\s*\(|\|>|(?:^|\()\s*(?:describe|desc|show)\b",
    re.IGNORECASE,
)
_QUOTED_OR_COMMENT = re.compile(
    r"""('(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*"|`[^`]*`)|--[^\n]*|/\*.*?\*/""", re.DOTALL
)
_LOGICAL = "org.apache.spark.sql.catalyst.plans.logical"
_WRITES = ("Command", "ParsedStatement", "InsertIntoDir")
_RUNS = ("UnresolvedExecuteImmediate", "ScriptTransformation")
"""Nodes that run a statement in a text, or a program."""
_CALLS = re.compile(r"\b(reflect|java_method|try_reflect)\(", re.IGNORECASE)
_PLAN_FIELDS = "spark.sql.debug.maxToStringFields"
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
    is_batch: bool


@dataclass(frozen=True, slots=True)
class IndexFile:
    """An index file, as it travels to an executor."""

    broker_name: str
    file: IndexFilePath
    name: str
    slots: int
    entries: int


def message_columns(sql: str) -> list[str]:
    """The Spark columns of `messages` that a query can mean: those that its text names, or all."""
    text = _COUNT_STAR.sub(" ", sql)
    every = (*COLUMN_SETS["full"], DAMAGE)
    bare = _without_comments(text).strip()
    words = [word.lower() for word in re.findall(r"\w+", text)]
    # A FROM without a SELECT gives all columns; others, as in EXTRACT(... FROM ...), cost nothing but time.
    if _ANY_COLUMN.search(text) or _ANY_COLUMN.search(bare) or words.count("from") > words.count("select"):
        return [name for name in every if name != DAMAGE]
    return [name for name in every if name.lower() in words] or ["physicalOffset"]


def _without_comments(sql: str) -> str:
    return _QUOTED_OR_COMMENT.sub(lambda found: found[1] or " ", sql)


def make_views(
    session: SparkSession, request: ScanRequest, stores: Iterable[tuple[str, Store]], sql: str
) -> None:
    """Register those of the views that the query names; `stores` are (broker name, store)."""
    words = {word.lower() for word in re.findall(r"\w+", sql)}
    if "messages" in words:
        options = {"pushdown": "on"} if scans_once(sql) else {}
        frame = messages(session, request, message_columns(sql), options=options)
        frame.createOrReplaceTempView("messages")
    opened = list(stores)
    if "consume_queue" in words:
        files: list[Any] = [file for name, store in opened for file in _queue_files(name, store, request)]
        _frame(session, "units", files, unit_columns, UNIT_SCHEMA).createOrReplaceTempView("consume_queue")
    if "index_entries" in words:
        files = [file for name, store in opened for file in _index_files(name, store)]
        _frame(session, "entries", files, entry_columns, ENTRY_SCHEMA).createOrReplaceTempView(
            "index_entries"
        )


def scans_once(sql: str) -> bool:
    """Whether a query surely scans `messages` at one place only: else its filters are not pushed down.

    See `pushdown`: two scans of a view would be read by the filters of one. The parts of a WITH may be
    used more than once.
    """
    words = [word.lower() for word in re.findall(r"\w+", sql)]
    return words.count("messages") == 1 and not {"with", "identifier"} & set(words)


def check_query(session: SparkSession, sql: str) -> None:
    """Only what reads: a query, or SHOW, DESCRIBE and EXPLAIN.

    Raises:
        UsageError: a statement that would write, change the session, or run something else.
        ParseException: of Spark, for text that is no statement.
    """
    from py4j.java_gateway import is_instance_of

    inner: Any = session
    gateway = inner.sparkContext._gateway
    parsed = [inner._jsparkSession.sessionState().sqlParser().parsePlan(sql)]
    told = re.match(r"\s*(show|describe|desc|explain)\b", _without_comments(sql), re.IGNORECASE) is not None
    text = _whole_text(session, parsed[0])
    _check_calls(text)
    for name in _RUNS:  # in a WITH or a subquery too, which are no children of a node
        if name in text:
            raise UsageError(f"--sql takes queries, and this is {name}")
    while parsed:
        node = parsed.pop()
        if any(is_instance_of(gateway, node, f"{_LOGICAL}.{name}") for name in _WRITES):
            if not told:
                raise UsageError(
                    f"--sql takes queries, and this is {node.nodeName()}",
                    hint="SELECT ..., or --output to write what is selected; settings go with --conf",
                )
            return
        children = node.children()
        parsed += [children.apply(number) for number in range(children.size())]


def checked_frame(session: SparkSession, sql: str) -> DataFrame:
    """The frame of a query that `check_query` has let pass, whose views are made; nothing has run yet.

    Raises:
        UsageError: a function, named by IDENTIFIER, that runs something else.
        AnalysisException: of Spark.
    """
    frame = session.sql(sql)
    inner: Any = frame
    _check_calls(_whole_text(session, inner._jdf.queryExecution().analyzed()))
    return frame


def _check_calls(text: str) -> None:
    call = _CALLS.search(text)
    if call is not None:
        raise UsageError(f"--sql takes queries, and {call[1]} runs what it is given")


def _whole_text(session: SparkSession, plan: Any) -> str:
    """A plan as text: functions by their names, however the query quotes them."""
    before = session.conf.get(_PLAN_FIELDS, None)
    session.conf.set(_PLAN_FIELDS, str((1 << 31) - 1))
    try:
        return str(plan.toString())
    finally:
        if before is None:
            session.conf.unset(_PLAN_FIELDS)
        else:
            session.conf.set(_PLAN_FIELDS, before)


def _queue_files(name: str, store: Store, request: ScanRequest) -> Iterator[QueueFile]:
    layout, chosen = store.layout, request.selection
    for is_batch, queues in ((False, layout.consume_queues), (True, layout.batch_queues)):
        for (topic, queue_id), queue in queues.items():
            if chosen.matches_topic(topic) and (not chosen.queues or queue_id in chosen.queues):
                for file in queue.files:
                    yield QueueFile(name, topic, queue_id, file, layout.relative(file.path), is_batch)


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
    from rmqtool.scan.queues import BATCH_UNIT_DTYPE, UNIT_DTYPE, UnitReader, pre_blank, present
    from rmqtool.scan.source import open_source

    for task in tasks:
        with UnitReader(open_source, BATCH_UNIT_DTYPE if task.is_batch else UNIT_DTYPE) as reader:
            for first, block in reader.blocks(task.file):
                chosen = present(block) if task.is_batch else present(block) & ~pre_blank(block)
                if chosen.any():
                    yield _units(task, first, block, chosen)


def _units(task: QueueFile, first: int, block: np.ndarray, chosen: np.ndarray) -> list[pa.Array]:
    import numpy as np
    import pyarrow as pa

    rows, count = block[chosen], int(chosen.sum())
    if task.is_batch:
        offsets = rows["base_offset"].astype(np.int64)
        sizes = pa.array(rows["batch_size"].astype(np.int16))
        times = pa.array(rows["store_timestamp"].astype(np.int64))
    else:
        offsets = np.flatnonzero(chosen) + first + task.file.file_from_offset // UNIT_SIZE
        sizes, times = pa.nulls(count, pa.int16()), pa.nulls(count, pa.int64())
    return [
        _repeated(task.broker_name, count),
        _repeated(task.topic, count),
        pa.array(np.full(count, task.queue_id, np.int32)),
        pa.array(offsets.astype(np.int64)),
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

    from rmqtool.scan.index import IndexReader
    from rmqtool.scan.source import open_source

    for task in tasks:
        source = open_source(task.file.path)
        try:
            reader = IndexReader(source, task.slots, task.entries)
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
