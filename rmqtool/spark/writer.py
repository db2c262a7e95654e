"""Writing: rows of a data frame become a new, sound store.

    df.orderBy("storeTimestamp").write.format("rocketmq-store").mode("append").save("/data/new-store")

A log has one order, so the order of rows is fixed: partition by partition, as Spark numbers them, and
within each as it comes. `orderBy` sorts a whole data frame that way, `coalesce(1)` makes one partition
of it. Where rows have store times these must not fall; `order=storeTimestamp` sorts the rows instead,
in the memory of the driver.

Each task writes its rows to a file next to the new store; the commit makes the store of these, with
`put_table` as `append` does, and moves it to its place with one rename. A failed write leaves
nothing. The driver and all workers must reach the folder.

A data frame has the columns of an input of `rmqtool append`. Names are the engine's, Spark's, or those of the
Kafka sink (`key`, `value`, `partition`, `headers`, `timestamp`). Columns that a store computes (offsets,
sizes, CRC, status) are taken, as a row that was read has them: a data frame that was read can be written as
it is.
"""

from __future__ import annotations

import difflib
import shutil
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from rmqtool.errors import InputError, RefusedError, RmqtoolError, UnwritableError, UsageError
from rmqtool.formats.config_json import BATCH_ATTRIBUTES
from rmqtool.formats.message import INNER_BATCH
from rmqtool.lazy_dataclass import dataclass
from rmqtool.message.columns import COLUMNS as MESSAGE_COLUMNS
from rmqtool.spark.errors import explain_errors
from rmqtool.spark.schema import FIELDS, HEADERS_TYPE, INTEGERS
from rmqtool.spark.write_options import write_arguments
from rmqtool.write.ingest.rows import COLUMNS

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from rmqtool.spark.options import SourceOptions
    from rmqtool.write.store_writer import StoreWriter


_MAP: Final = pa.map_(pa.string(), pa.string())
_OTHERS: Final = {
    **{each.spark_name.lower(): each.name for each in MESSAGE_COLUMNS},
    "key": "keys",
    "value": "body",
    "partition": "queue_id",
    "timestamp": "store_time",
    "headers": "properties",
    "propertiesjson": "properties",
    "delaylevel": "delay_level",
}
_LEFT_OUT: Final = ("brokername", "offset", "timestamptype", "_corrupt_record")
_JSON_OBJECT: Final = msgspec.json.Decoder(dict[str, str])
_NEEDED: Final = ("topic", "body")


_ALSO: Final = {
    "binary": ("binary", "string"),
    "timestamp": ("timestamp", "timestamp_ntz", "string"),
    "array<string>": ("array<string>", "string", "binary"),
    "map<string,string>": ("map<string,string>", "string", HEADERS_TYPE),
    **dict.fromkeys(INTEGERS, INTEGERS),
}
_TYPES: Final[dict[str, tuple[str, ...]]] = {
    column.name: _ALSO.get(field.types[0], (field.types[0],))
    for column, field in zip(MESSAGE_COLUMNS, FIELDS, strict=False)
}
"""The Spark types that a column of the input can be made of, the usual ones first."""


@dataclass(frozen=True)
class WriteColumns:
    """The conversion of the columns of a data frame to input columns; picklable.

    `places` are (place in the data frame, name of the input's column, Spark type).
    """

    places: tuple[tuple[int, str, str], ...]

    def of(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The columns of one batch.

        Raises:
            InputError: properties that are not a JSON object of strings.
        """
        arrays = [_CHANGES.get((name, kind), _same)(batch.column(at)) for at, name, kind in self.places]
        return pa.RecordBatch.from_arrays(arrays, [name for _, name, _ in self.places])


def write_columns(schema: Sequence[tuple[str, str]]) -> WriteColumns:
    """Return the conversions of columns of these names and Spark types.

    Raises:
        UsageError: a column that no message has or of a type that it cannot have, two for the same, or
            none for topic or body.
    """
    places: dict[str, tuple[int, str, str]] = {}
    for at, (name, kind) in enumerate(schema):
        low = name.lower()
        if low in _LEFT_OUT:
            continue
        found = low if low in COLUMNS else _OTHERS.get(low)
        if found is None:
            near = difflib.get_close_matches(low, (*_OTHERS, *COLUMNS), 1)
            hint = f"did you mean {near[0]}?" if near else "df.drop removes it"
            raise UsageError(f"column {name}: no message has such a column", hint=hint)
        plain = "string" if kind.startswith(("varchar(", "char(")) else kind
        if plain != "void" and plain not in _TYPES.get(found, (plain,)):
            wanted = " or ".join(_TYPES[found])
            raise UsageError(f"column {name} is of the type {kind}", hint=f"CAST makes it {wanted}")
        if found == "properties" and found in places:
            if "propertiesjson" in (low, schema[places[found][0]][0].lower()):
                places[found] = max(places[found], (at, found, kind), key=lambda each: each[2] != "string")
                continue
        if found in places:
            raise UsageError(f"columns {schema[places[found][0]][0]} and {name} are the same one")
        places[found] = (at, found, kind)
    for name in _NEEDED:
        if name not in places:
            raise UsageError(f"column {name} is missing: a message needs it")
    return WriteColumns(tuple(places.values()))


def _same(array: pa.Array) -> pa.Array:
    return array


def _from_json(array: pa.Array) -> pa.Array:
    found: list[list[tuple[str, str]] | None] = []
    for text in array.to_pylist():
        try:
            found.append(None if text is None else list(_JSON_OBJECT.decode(text).items()))
        except (msgspec.DecodeError, UnicodeEncodeError) as error:
            raise InputError(f"column properties: no JSON object of texts: {error}") from None
    return pa.array(found, _MAP)


def _from_headers(array: pa.Array) -> pa.Array:
    return pa.array(
        [
            None
            if row is None
            else [(pair["key"], (pair["value"] or b"").decode("utf-8", "replace")) for pair in row]
            for row in array.to_pylist()
        ],
        _MAP,
    )


def _as_text(array: pa.Array) -> pa.Array:
    return array.cast(pa.string())


_CHANGES: Final[dict[tuple[str, str], Callable[[pa.Array], pa.Array]]] = {
    ("properties", "string"): _from_json,
    ("properties", HEADERS_TYPE): _from_headers,
    ("keys", "binary"): _as_text,
}


_ROWS: Final = "rows"
_NEW: Final = "store"
_OLD: Final = "replaced"


@dataclass(frozen=True)
class Part(WriterCommitMessage):
    """The output of one task.

    Attributes:
        partition: its number; parts are put together in this order.
        name: of the file of rows; None for a task without rows.
        rows: how many.
        times: the first and the last store time, ms, and whether they rise; None without store times.
        queues: how many queues each topic needs for its rows; 0 where no row names one.
        batch_topics: those with inner batches, which need queues of another kind.
    """

    partition: int
    name: str | None = None
    rows: int = 0
    times: tuple[int, int, bool] | None = None
    queues: Mapping[str, int] = field(default_factory=dict)
    batch_topics: frozenset[str] = frozenset()


class NewStoreWriter(DataSourceArrowWriter):
    """Builds a store at the path, which must be free, or with `overwrite` hold a store."""

    def __init__(self, options: SourceOptions, schema: StructType, overwrite: bool) -> None:
        if len(options.paths) != 1:
            raise UsageError(
                "option path: one new store is written" if options.paths else "option path is missing"
            )
        if "://" in options.paths[0]:
            raise UsageError("option path: a store is written to a folder that is mounted, not to a URL")
        self._path = Path(options.paths[0]).absolute()
        self._options = options
        self._overwrite = overwrite
        self._columns: WriteColumns = write_columns(
            [(each.name, each.dataType.simpleString()) for each in schema.fields]
        )
        self._arguments = write_arguments(options)
        with _unwritable(self._path):
            self._check_target()
        self._folder = self._path.parent / f".{self._path.name}.rmqtool-spark-{uuid.uuid4().hex}"

    def _check_target(self) -> None:
        """Raises RefusedError where the path is not free for the store."""
        if not self._path.exists():
            return
        if self._path.is_dir() and not any(self._path.iterdir()):
            return
        if not self._overwrite:
            raise RefusedError(
                "something is at the path of the new store",
                path=self._path,
                hint="mode('overwrite') replaces a store; rmqtool append adds to one",
            )
        from rmqtool.read.store import Store

        store = Store.open(self._path)
        if store.layout.root is None:
            raise RefusedError(
                "overwrite replaces only whole stores, and this is part of one", path=self._path
            )
        if store.live:
            raise RefusedError("the store is in use", path=self._path)

    # in a task

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Part:
        """Write the rows of one partition to a file next to the new store.

        Raises:
            InputError: rows that no message can be made of.
            UnwritableError: it could not be written.
        """
        with explain_errors(), _unwritable(self._folder):
            return self._write(iterator)

    def _write(self, iterator: Iterator[pa.RecordBatch]) -> Part:
        from pyspark import TaskContext

        context = TaskContext.get()
        partition = 0 if context is None else context.partitionId()
        attempt = 0 if context is None else context.taskAttemptId()
        folder = self._folder / _ROWS
        folder.mkdir(parents=True, exist_ok=True)
        name = f"{partition:08}-{attempt}.arrow"
        rows, times, queues = 0, _Times(), _Queues()
        sink: pa.ipc.RecordBatchStreamWriter | None = None
        with pa.OSFile(str(folder / name), "wb") as file:
            for batch in iterator:
                found = self._columns.of(batch)
                times.see(found)
                queues.see(found)
                if sink is None:
                    sink = pa.ipc.new_stream(file, found.schema)
                sink.write_batch(found)
                rows += len(found)
            if sink is not None:
                sink.close()
        if not rows:
            (folder / name).unlink()
            return Part(partition)
        return Part(partition, name, rows, times.seen, queues.needed, frozenset(queues.batch_topics))

    # on the driver

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Make the store of all parts and put it in its place.

        Raises:
            InputError: rows that no store can have, or store times that fall.
            RefusedError: something was created at the path meanwhile.
            UnwritableError: it could not be written.
        """
        with explain_errors(), _unwritable(self._folder):
            self._commit(messages)

    def _commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        parts = sorted((each for each in messages if isinstance(each, Part)), key=lambda part: part.partition)
        try:
            if self._options.order == "given":
                _check_order(parts)
            self._folder.mkdir(parents=True, exist_ok=True)
            self._build(parts)
            self._check_target()
            if self._path.exists():
                self._path.rename(self._folder / _OLD)
            (self._folder / _NEW).rename(self._path)
        finally:
            self._clean()

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Delete the files that the tasks wrote."""
        self._clean()

    def _clean(self) -> None:
        old = self._folder / _OLD
        if old.exists() and not self._path.exists():
            old.rename(self._path)  # the new store did not get its place: the old one keeps it
        shutil.rmtree(self._folder, ignore_errors=True)

    def _build(self, parts: Sequence[Part]) -> None:
        from rmqtool.write.store_writer import StoreWriter

        target = self._folder / _NEW
        profile, arguments = self._options.profile, dict(self._arguments)
        queues = arguments.pop("auto_create_queues")
        with StoreWriter.create(target, profile, auto_create_queues=queues, **arguments) as writer:
            _make_topics(writer, parts, queues)
            if self._options.order == "storeTimestamp":
                sorted_name = self._sorted(parts)
                names = [sorted_name] if sorted_name is not None else []
            else:
                names = [part.name for part in parts if part.name is not None]
            for name in names:
                self._append(writer, self._folder / _ROWS / name)
            writer.flush()

    def _sorted(self, parts: Sequence[Part]) -> str | None:
        """The rows of all parts in one file, by store time; rows of one time keep their order."""
        tables = []
        for part in parts:
            if part.name is not None:
                with pa.memory_map(str(self._folder / _ROWS / part.name)) as file:
                    tables.append(pa.ipc.open_stream(file).read_all())
        if not tables:
            return None
        table = pa.concat_tables(tables)
        times = [name for name in ("store_timestamp_ms", "store_time") if name in table.schema.names]
        if not times:
            raise InputError("option order: there is no column storeTimestamp to sort by")
        order = pc.sort_indices(table.column(times[0]))
        with pa.OSFile(str(self._folder / _ROWS / "sorted.arrow"), "wb") as file:
            with pa.ipc.new_stream(file, table.schema) as sink:
                sink.write_table(table.take(order), max_chunksize=1 << 15)
        return "sorted.arrow"

    def _append(self, writer: StoreWriter, path: Path) -> None:
        from datetime import UTC

        from rmqtool.write.ingest.append import InputAppender
        from rmqtool.write.ingest.reader import Input, open_input
        from rmqtool.write.ingest.rows import RowRules

        with open_input(path) as file:
            source = Input(file, "arrow", RowRules(profile=writer.options.profile, zone=UTC))
            InputAppender(writer, source, "stop", lambda wrong: None).append()


@contextmanager
def _unwritable(path: Path) -> Iterator[None]:
    """An error of the system, as of a full disk, as one of ours; Spark would show it without a path."""
    try:
        yield
    except RmqtoolError:
        raise
    except OSError as error:
        raise UnwritableError(f"cannot write: {error.strerror or error}", path=path) from error


class _Times:
    """The store times of a part: first, last, and whether they rise."""

    def __init__(self) -> None:
        self.seen: tuple[int, int, bool] | None = None

    def see(self, batch: pa.RecordBatch) -> None:
        import numpy as np

        name = next(
            (each for each in ("store_timestamp_ms", "store_time") if each in batch.schema.names), None
        )
        column = None if name is None else batch.column(name).drop_null()
        if column is None or not len(column):
            return
        values = column.cast(pa.timestamp("ms", "UTC"), safe=False).cast(pa.int64()).to_numpy()
        first, last = int(values[0]), int(values[-1])
        rises = bool((np.diff(values) >= 0).all())
        if self.seen is not None:
            rises = rises and self.seen[2] and first >= self.seen[1]
            first = self.seen[0]
        self.seen = (first, last, rises)


class _Queues:
    """How many queues the topics of a part need."""

    def __init__(self) -> None:
        self.needed: dict[str, int] = {}
        self.batch_topics: set[str] = set()

    def see(self, batch: pa.RecordBatch) -> None:
        if "sys_flag" in batch.schema.names:
            bits = pc.bit_wise_and(pc.fill_null(batch.column("sys_flag"), 0), INNER_BATCH)
            self.batch_topics |= set(
                pc.unique(batch.column("topic").filter(pc.not_equal(bits, 0))).to_pylist()
            )
        table = pa.table({"topic": batch.column("topic")})
        ids = (
            batch.column("queue_id") if "queue_id" in batch.schema.names else pa.nulls(len(batch), pa.int32())
        )
        found = (
            table.append_column("queue_id", ids.cast(pa.int64()))
            .group_by("topic")
            .aggregate([("queue_id", "max")])
        )
        for row in found.to_pylist():
            if row["topic"] is not None:
                needed = -1 if row["queue_id_max"] is None else row["queue_id_max"]
                self.needed[row["topic"]] = max(self.needed.get(row["topic"], 0), needed + 1)


def _make_topics(writer: StoreWriter, parts: Sequence[Part], queues: int) -> None:
    """Make the topics that are the users' own, with as many queues as their rows name."""
    needed: dict[str, int] = {}
    batch_topics = {topic for part in parts for topic in part.batch_topics}
    for part in parts:
        for topic, count in part.queues.items():
            needed[topic] = max(needed.get(topic, 0), count)
    for topic, count in sorted(needed.items()):
        if not writer.topics.is_known(topic):
            attributes = BATCH_ATTRIBUTES if topic in batch_topics else None
            writer.topics.add(topic, count or queues, attributes=attributes)


def _check_order(parts: Sequence[Part]) -> None:
    """Raises InputError where store times fall within a part, or from one to the next."""
    last: int | None = None
    for part in parts:
        if part.times is None:
            continue
        first, end, rises = part.times
        if not rises or (last is not None and first < last):
            raise InputError(
                "the store times of the rows decrease: a log is in the order of its store times",
                hint="df.orderBy('storeTimestamp'), or option order=storeTimestamp",
            )
        last = end
