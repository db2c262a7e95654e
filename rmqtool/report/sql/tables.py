"""The tables of a query: stores read as DuckDB asks, with the columns and the rows that it needs.

DuckDB passes the columns and the condition of each scan to `scanner`, and relies on the condition being
applied. What can be found by queues, the index or bounds of the log becomes a Selection; Arrow applies the
whole condition to the rows that are read.

A range of the log without a record is a row of its own if the scan reads `status`, as in Spark.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field, replace
from typing import Any, Final

import pyarrow as pa
import pyarrow.dataset

from rmqtool.findings import BatchRecords, Progress, Report
from rmqtool.lazy_dataclass import dataclass
from rmqtool.log.damage import CODE_BY_STATUS
from rmqtool.message.columns import COLUMNS
from rmqtool.message.schema import TYPES
from rmqtool.problems import Finding
from rmqtool.read.messages import message_batches
from rmqtool.read.pushed import NOTHING_PUSHED, Pushed, narrowed
from rmqtool.read.selection import Selection
from rmqtool.read.store import Store
from rmqtool.read.table_files import BROKER_COLUMN, VIEWS, column_array, index_files, queue_files
from rmqtool.read.table_files import COLUMNS as TABLE_COLUMNS
from rmqtool.report.sql.expression import columns_of, pushed_of

_OF_RECORDS: Final = frozenset(CODE_BY_STATUS.values())
"""The codes of damage of a record, which is still a row, with the code in `status`."""
_INT32_MAX: Final = (1 << 31) - 1

COLUMNS_OF: Final = {
    "messages": (*COLUMNS, BROKER_COLUMN),
    **{view: TABLE_COLUMNS[table] for view, table in VIEWS.items() if table != "messages"},
}
"""The columns of the tables by name."""
ROWS: Final = {
    "messages": "a record of the commit log",
    "consume_queue": "a unit of a consume queue file",
    "index_entries": "an entry of an index file",
}
"""What a row of each table is."""
SCHEMAS: Final[Mapping[str, pa.Schema]] = {
    view: pa.schema([(each.spark_name, TYPES[each.arrow_type]) for each in columns])
    for view, columns in COLUMNS_OF.items()
}
"""The Arrow schemas of the tables by name; columns have Spark's names."""
OTHER_NAMES: Final = {
    each.name.lower(): each.spark_name
    for columns in COLUMNS_OF.values()
    for each in columns
    if each.name.lower() != each.spark_name.lower()
}
"""The names that other commands give to columns, with those of the tables: body_length is bodyLength."""
_ENGINE_NAMES: Final = {
    view: {each.spark_name: each.name for each in columns} for view, columns in COLUMNS_OF.items()
}


@dataclass
class Scans:
    """What the scans of one query have in common, and what became of them.

    Attributes:
        stores: (name of the broker, store), in the order of the rows.
        selection: which messages; units are selected by its topics and queues. Its limit is ignored.
        report: called once for each damaged place.
        progress: called with the bytes of log that were read.
        jobs: threads that read.
        error: the error that ended a scan.
        has_rows: whether a scan gave a row.
        views: the tables that were scanned.
        pushed: what the condition of each scan said.
        batch_records: (name of the broker, the batch records that were read) of each scan of messages.
    """

    stores: Sequence[tuple[str, Store]]
    selection: Selection
    report: Report
    progress: Progress | None = None
    jobs: int = 1
    error: BaseException | None = None
    has_rows: bool = False
    views: set[str] = field(default_factory=set)
    pushed: list[Pushed] = field(default_factory=list)
    batch_records: list[tuple[str, BatchRecords]] = field(default_factory=list)
    _open: list[Any] = field(default_factory=list)
    _seen: set[tuple[Any, ...]] = field(default_factory=set)

    def tables(self) -> dict[str, StoreTable]:
        """The tables of the query by name."""
        return {view: StoreTable(view, self) for view in VIEWS}

    def close(self) -> None:
        """End scans that DuckDB left unfinished, as for a LIMIT."""
        for scan in self._open:
            scan.close()

    def reader(self, schema: pa.Schema, batches: Iterator[pa.RecordBatch]) -> pa.RecordBatchReader:
        """The batches of a scan as DuckDB takes them; an error is kept, for DuckDB only shows its text."""
        kept = self._kept(batches)
        self._open.append(kept)
        return pa.RecordBatchReader.from_batches(schema, kept)

    def most_batch_records(self) -> BatchRecords:
        """The batch records and fillers that the query read: for each store of the scan that met the most."""
        scans: dict[str, list[BatchRecords]] = {}
        for name, met in self.batch_records:
            scans.setdefault(name, []).append(met)
        total = BatchRecords()
        for each in scans.values():
            most = max(each, key=lambda met: met.fillers + met.fillers_of_no_queue)
            total.add(
                replace(
                    max(each, key=lambda met: met.records),
                    fillers=most.fillers,
                    fillers_of_no_queue=most.fillers_of_no_queue,
                )
            )
        return total

    def found(self, each: Finding) -> None:
        """Report damage; a second scan meets it again."""
        key = (each.problem.code, each.path, each.physical_offset)
        if key not in self._seen:
            self._seen.add(key)
            self.report(each)

    def _kept(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        try:
            for batch in batches:
                self.has_rows = True
                yield batch
        except BaseException as error:
            if not isinstance(error, GeneratorExit):
                self.error = error
            raise


class StoreTable(pyarrow.dataset.Dataset):  # type: ignore[misc]  # pyarrow has no types
    """A table as DuckDB scans it: a data set whose scanner reads stores."""

    def __init__(self, view: str, scans: Scans) -> None:
        self._view = view
        self._scans = scans

    @property
    def schema(self) -> pa.Schema:
        """All columns of the table."""
        return SCHEMAS[self._view]

    def scanner(self, columns: Sequence[str] | None = None, filter: Any = None, **_: Any) -> _Scanner:
        """A scan of these columns (None: all) of the rows for which the expression `filter` is true."""
        names = self.schema.names if columns is None else list(columns)
        read, pushed = set(names), NOTHING_PUSHED
        if filter is not None:
            try:
                read |= columns_of(filter, self.schema)
                pushed = pushed_of(filter, self.schema, _ENGINE_NAMES[self._view])
            except (LookupError, pa.ArrowException):  # a condition of a kind that is not known: all is read
                read = set(self.schema.names)
        self._scans.views.add(self._view)
        self._scans.pushed.append(pushed)
        wanted = [name for name in self.schema.names if name in read]
        rows = _messages if self._view == "messages" else _table
        batches = rows(self._scans, self._view, wanted, pushed)
        return _Scanner(self._scans, pa.schema([self.schema.field(name) for name in names]), batches, filter)


class _Scanner:
    """One scan; DuckDB calls `to_reader` once."""

    def __init__(
        self, scans: Scans, schema: pa.Schema, batches: Iterator[pa.RecordBatch], condition: Any
    ) -> None:
        self.projected_schema = schema
        self._scans = scans
        self._batches = batches
        self._condition = condition

    def to_reader(self) -> pa.RecordBatchReader:
        """The rows that pass."""
        return self._scans.reader(self.projected_schema, self._chosen())

    def _chosen(self) -> Iterator[pa.RecordBatch]:
        names = self.projected_schema.names
        for batch in self._batches:
            if self._condition is not None:
                batch = batch.filter(self._condition)
            if len(batch):
                yield batch.select(names)


def _messages(scans: Scans, view: str, names: Sequence[str], pushed: Pushed) -> Iterator[pa.RecordBatch]:
    schema = pa.schema([SCHEMAS[view].field(name) for name in names])
    engine = [_ENGINE_NAMES[view][name] for name in names if name != BROKER_COLUMN.spark_name]
    for broker_name, store in scans.stores:
        selection = narrowed(replace(scans.selection, limit=None), pushed)
        if selection is None or not pushed.lets_broker(broker_name):
            continue
        damage, batch_records = _Damage(scans, selection, shown="status" in names), BatchRecords()
        scans.batch_records.append((broker_name, batch_records))
        batches = message_batches(
            store,
            selection,
            columns=engine or ["size"],
            names="spark",
            jobs=scans.jobs,
            crc="status" in names,
            report=damage.report,
            progress=scans.progress,
            batch_records=batch_records,
        )
        for batch in batches:
            yield from damage.batches(schema, broker_name)
            arrays = [
                pa.repeat(pa.scalar(broker_name), len(batch))
                if each.name == BROKER_COLUMN.spark_name
                else batch.column(each.name)
                for each in schema
            ]
            yield pa.RecordBatch.from_arrays(arrays, schema=schema)
        yield from damage.batches(schema, broker_name)


class _Damage:
    """The damage that the scan of a store meets: reported, and as rows if the scan shows it."""

    def __init__(self, scans: Scans, selection: Selection, *, shown: bool) -> None:
        self._scans = scans
        self._selection = selection
        self._shown = shown
        self._rows: list[Finding] = []

    def report(self, found: Finding) -> None:
        """Report a finding of the walk, or of a record."""
        self._scans.found(found)
        problem, start = found.problem, found.physical_offset
        is_record = problem.code in _OF_RECORDS and start is not None
        if not self._shown or problem.severity == "note" or is_record:
            return
        if start is None or self._selection.matches_offset(start):
            self._rows.append(found)

    def batches(self, schema: pa.Schema, broker_name: str) -> Iterator[pa.RecordBatch]:
        """The rows for what was met since the last call."""
        rows, self._rows = self._rows, []
        if rows:
            values = [
                {
                    "physicalOffset": each.physical_offset,
                    "size": each.length if (each.length or 0) <= _INT32_MAX else None,
                    "status": [each.problem.code],
                    "file": each.path,
                    BROKER_COLUMN.spark_name: broker_name,
                }
                for each in rows
            ]
            yield pa.RecordBatch.from_pylist(values, schema=schema)


def _table(scans: Scans, view: str, names: Sequence[str], pushed: Pushed) -> Iterator[pa.RecordBatch]:
    """Units, or index entries."""
    schema = pa.schema([SCHEMAS[view].field(name) for name in names])
    wanted = narrowed(Selection(
        topics=scans.selection.topics, exclude_topics=scans.selection.exclude_topics,
        queues=scans.selection.queues,
    ), Pushed(topics=pushed.topics, topic_prefix=pushed.topic_prefix, queues=pushed.queues))  # fmt: skip
    if wanted is None:
        return

    def chosen(topic: str, queue_id: int) -> bool:
        return wanted.matches_topic(topic) and (not wanted.queues or queue_id in wanted.queues)

    engine = [_ENGINE_NAMES[view][name] for name in names]
    for broker_name, store in scans.stores:
        if not pushed.lets_broker(broker_name):
            continue
        is_queue = VIEWS[view] == "units"
        files = queue_files(broker_name, store, chosen) if is_queue else index_files(broker_name, store)
        for file in files:
            for rows, values in file.blocks():
                known = {**values, BROKER_COLUMN.name: broker_name}
                if rows:
                    arrays = [
                        column_array(known[name], rows, each.type)
                        for name, each in zip(engine, schema, strict=True)
                    ]
                    yield pa.RecordBatch.from_arrays(arrays, schema=schema)
