"""The options of the source `rocketmq-store`: one table of them, and what a set of them means.

Names are those of the Kafka source where it has one with that meaning, and of rocketmq-spark; case
does not matter. What only speaks to a broker or a Kafka cluster (`kafka.*`, `nameServer`, ...) is taken
and does nothing, so that such queries run unchanged. Any other unknown name is an error that names
it, and so are two options that contradict each other.

This module needs no pyspark: a test, or a command, can read options without it.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import field
from typing import TYPE_CHECKING, Any, Final, Literal

from rmqtool.errors import UsageError
from rmqtool.formats.versions import NEWEST
from rmqtool.lazy_dataclass import dataclass
from rmqtool.spark.offsets import Bound, QueueName, parse_assign, parse_offsets, parse_times
from rmqtool.spark.stores import BrokerNames, parse_broker_names, parse_paths
from rmqtool.spark.values import (
    one_of,
    parse_bool,
    parse_count,
    parse_delay,
    parse_filter,
    parse_ids,
    parse_list,
    parse_moment,
    parse_names,
    parse_number,
    parse_partitions,
    parse_regex,
    parse_single,
    parse_size,
    parse_switch,
    parse_tags,
    parse_text,
)

if TYPE_CHECKING:
    from rmqtool.read.filter import Expression

Table = Literal["messages", "units", "index_entries"]
ColumnSet = Literal["rocketmq", "kafka", "minimal", "full"]
Mode = Literal["PERMISSIVE", "DROPMALFORMED", "FAILFAST"]
Via = Literal["auto", "commitlog", "consumequeue", "index"]
Strategy = Literal["error", "latest"]
StreamOffsets = Literal["commitlog", "queue"]
Order = Literal["given", "storeTimestamp"]

STORAGE_PREFIX: Final = "storage."
"""Options that go to the place a store lies in (an endpoint, a key), without the prefix."""
WRITE_PREFIX: Final = "write."
"""Options of the store that is written: the names of `WriteOptions` in camelCase."""

OF_EVERY_TABLE: Final = (
    "path", "table", "columns", "brokerName", "brokerConf", "commitlogPaths", "readOnlyCommitlogPaths",
    "maxBytesPerPartition",
)  # fmt: skip
OF_UNITS: Final = (
    "topic",
    "subscribe",
    "topics",
    "subscribePattern",
    "excludeTopics",
    "queueId",
    "failOnDataLoss",
)
"""The options of the table `units` besides OF_EVERY_TABLE. All other options are for messages."""

IGNORED: Final = ("nameServer", "groupIdPrefix", "pullTimeoutMs", "pullBatchSize")
IGNORED_PREFIXES: Final = ("kafka.", "kafkaConsumer.", "fetchOffset.", "consumer.")


@dataclass(frozen=True)
class SourceOptions:
    """The options of a read, a stream or a write; frozen and picklable.

    Attributes:
        paths: stores: folders, globs or URLs.
        broker_names: in the order of `paths`, or by path.
        table: what a row is: a message, a unit of a consume queue, or an entry of an index file.
        column_set: which columns there are without `.schema(...)` and `columns`.
        columns: single columns, in their order.
        corrupt_column: name of the column that says what is wrong with a bad range.
        include_headers: whether the column set `kafka` has `headers`.
        include_body: False: bodies are null, and nothing is read of them.
        decompress: False: bodies are as stored.
        mode: what damage does: rows with a status, left out, or an error.
        verify_crc: whether body and property CRC are checked, where something shows it.
        topics: names of `subscribe` or `topic`; empty is all.
        topic_globs: globs of `topics`, one must match.
        exclude_topics: globs.
        topic_pattern: `subscribePattern`.
        assign: queues of `assign`.
        queues: queue ids.
        tags, keys: values, one must match.
        filter: what properties must match, in the broker's filter language.
        starting, ending: bounds by queue offset; None where a time bounds it instead.
        since, until: store times, ms since 1970, half-open.
        from_offset, to_offset: physical offsets, half-open.
        timestamp_strategy: what happens to a queue that ends before its start time.
        fail_on_data_loss: whether missing offsets, files and stores are errors.
        min_partitions, max_records_per_partition, max_bytes_per_partition: how a read is divided.
        via: the way to the messages.
        pushdown: whether filters of the query are taken where Spark offers them; see `pushdown`.
        batch_rows, batch_bytes: what an Arrow batch holds at most.
        stream_offsets: what a stream counts by; None: what fits the other options.
        max_offsets_per_trigger, max_bytes_per_trigger: of a stream.
        min_offsets_per_trigger: a batch waits until there are this many.
        max_trigger_delay_ms: it waits no longer than this.
        broker_conf, commitlog_paths, read_only_paths: see `Store.open`.
        profile, queue_by, write: of the store that is written.
        storage: of the place a store lies in; secrets, never shown.
    """

    paths: tuple[str, ...] = ()
    broker_names: BrokerNames = field(default_factory=BrokerNames)
    table: Table = "messages"
    column_set: ColumnSet = "rocketmq"
    columns: tuple[str, ...] | None = None
    corrupt_column: str = "_corrupt_record"
    include_headers: bool = False
    include_body: bool = True
    decompress: bool = True
    mode: Mode = "PERMISSIVE"
    verify_crc: bool = True
    topics: tuple[str, ...] = ()
    topic_globs: tuple[str, ...] = ()
    exclude_topics: tuple[str, ...] = ()
    topic_pattern: str | None = None
    assign: tuple[QueueName, ...] = ()
    queues: tuple[int, ...] = ()
    tags: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()
    filter: Expression | None = None
    starting: Bound | None = None
    ending: Bound | None = None
    since: int | None = None
    until: int | None = None
    from_offset: int | None = None
    to_offset: int | None = None
    timestamp_strategy: Strategy = "latest"
    fail_on_data_loss: bool = True
    min_partitions: int | None = None
    max_records_per_partition: int | None = None
    max_bytes_per_partition: int | None = None
    via: Via = "auto"
    pushdown: bool = False
    batch_rows: int = 1 << 16
    batch_bytes: int = 16 << 20
    stream_offsets: StreamOffsets | None = None
    max_offsets_per_trigger: int | None = None
    max_bytes_per_trigger: int | None = None
    min_offsets_per_trigger: int | None = None
    max_trigger_delay_ms: int = 15 * 60_000
    broker_conf: str | None = None
    commitlog_paths: tuple[str, ...] = ()
    read_only_paths: tuple[str, ...] = ()
    profile: str = NEWEST
    order: Order = "given"
    write: tuple[tuple[str, str], ...] = ()
    storage: tuple[tuple[str, str], ...] = field(default=(), repr=False)

    @property
    def names_topics(self) -> bool:
        """Whether the user said which topics, as Kafka wants it of every query."""
        return bool(self.topics or self.topic_globs or self.topic_pattern or self.assign)


_Parser = Callable[[str, str], Any]
TABLE: Final[tuple[tuple[str, str, _Parser], ...]] = (
    ("brokerName", "broker_names", parse_broker_names),
    ("table", "table", one_of(Table)),
    ("columnSet", "column_set", one_of(ColumnSet)),
    ("columns", "columns", parse_names),
    ("columnNameOfCorruptRecord", "corrupt_column", parse_text),
    ("includeHeaders", "include_headers", parse_bool),
    ("includeBody", "include_body", parse_bool),
    ("decompress", "decompress", parse_bool),
    ("mode", "mode", one_of(Mode)),
    ("verifyCrc", "verify_crc", parse_bool),
    ("topic", "topics", parse_single),
    ("subscribe", "topics", parse_list),
    ("topics", "topic_globs", parse_list),
    ("subscribePattern", "topic_pattern", parse_regex),
    ("assign", "assign", parse_assign),
    ("excludeTopics", "exclude_topics", parse_list),
    ("queueId", "queues", parse_ids),
    ("tags", "tags", parse_list),
    ("subExpression", "tags", parse_tags),
    ("keys", "keys", parse_list),
    ("filter", "filter", parse_filter),
    ("startingOffsets", "starting", parse_offsets),
    ("startingOffsetsByTimestamp", "starting", parse_times),
    ("startingTimestamp", "since", parse_moment),
    ("endingOffsets", "ending", parse_offsets),
    ("endingOffsetsByTimestamp", "ending", parse_times),
    ("endingTimestamp", "until", parse_moment),
    ("startingPhysicalOffset", "from_offset", parse_number),
    ("endingPhysicalOffset", "to_offset", parse_number),
    ("startingOffsetsByTimestampStrategy", "timestamp_strategy", one_of(Strategy)),
    ("failOnDataLoss", "fail_on_data_loss", parse_bool),
    ("minPartitions", "min_partitions", parse_partitions),
    ("maxRecordsPerPartition", "max_records_per_partition", parse_count),
    ("maxBytesPerPartition", "max_bytes_per_partition", parse_size),
    ("via", "via", one_of(Via)),
    ("pushdown", "pushdown", parse_switch),
    ("maxRowsPerBatch", "batch_rows", parse_count),
    ("maxBytesPerBatch", "batch_bytes", parse_size),
    ("streamOffsets", "stream_offsets", one_of(StreamOffsets)),
    ("maxOffsetsPerTrigger", "max_offsets_per_trigger", parse_count),
    ("maxBytesPerTrigger", "max_bytes_per_trigger", parse_size),
    ("minOffsetsPerTrigger", "min_offsets_per_trigger", parse_count),
    ("maxTriggerDelay", "max_trigger_delay_ms", parse_delay),
    ("brokerConf", "broker_conf", parse_text),
    ("commitlogPaths", "commitlog_paths", parse_paths),
    ("readOnlyCommitlogPaths", "read_only_paths", parse_paths),
    ("profile", "profile", parse_text),
    ("order", "order", one_of(Order)),
)  # fmt: skip
OPTION_NAMES: Final = ("path", *(name for name, _, _ in TABLE))
ONE_OF: Final[tuple[tuple[str, ...], ...]] = (
    ("topic", "subscribe", "topics", "subscribePattern", "assign"),
    ("tags", "subExpression"),
)  # fmt: skip
# Kafka's precedence: the first that is there counts, the others are ignored.
PRECEDENCE: Final = (
    ("startingTimestamp", "startingOffsetsByTimestamp", "startingOffsets"),
    ("endingTimestamp", "endingOffsetsByTimestamp", "endingOffsets"),
)  # fmt: skip


def parse_options(given: Mapping[str, str]) -> SourceOptions:
    """Parse the options of a reader or writer.

    Args:
        given: names (any case) and texts, as Spark passes them on; `path`, or `paths` as a JSON list.

    Raises:
        UsageError: an unknown option, a value that makes no sense, or two that contradict each
            other; the message names them.
    """
    texts = {name.lower(): text for name, text in given.items()}
    values: dict[str, Any] = {"paths": _paths(texts)}
    values["storage"] = _with_prefix(given, STORAGE_PREFIX)
    values["write"] = _with_prefix(given, WRITE_PREFIX)
    known = {name.lower(): name for name in OPTION_NAMES}
    for low, name in ((name.lower(), name) for name in given):
        if low not in known and not low.startswith((STORAGE_PREFIX, WRITE_PREFIX)) and not _is_ignored(low):
            near = difflib.get_close_matches(low, known, 1)
            raise UsageError(
                f"unknown option {name}",
                hint=f"did you mean {known[near[0]]}?" if near else f"there are {', '.join(OPTION_NAMES)}",
            )
    for group in ONE_OF:
        there = [name for name in group if name.lower() in texts]
        if len(there) > 1:
            raise UsageError(f"options {' and '.join(there)} contradict each other", hint="give one of them")
    for group in PRECEDENCE:
        there = [name for name in group if name.lower() in texts]
        for name in there[1:]:
            del texts[name.lower()]
    for name, attribute, parse in TABLE:
        if name.lower() in texts:
            values[attribute] = parse(name, texts[name.lower()])
    options = SourceOptions(**values)
    _check_table(options.table, given)
    _check(options)
    return options


def _check_table(table: Table, given: Mapping[str, str]) -> None:
    """Raises UsageError for an option that says nothing to the table."""
    if table == "messages":
        return
    known = {name.lower() for name in (*OF_EVERY_TABLE, *(OF_UNITS if table == "units" else ()))}
    for name in given:
        low = name.lower()
        if low not in known and not low.startswith((STORAGE_PREFIX, WRITE_PREFIX)) and not _is_ignored(low):
            raise UsageError(f"options table={table} and {name} contradict each other")


def _check(options: SourceOptions) -> None:
    for first, last, names in (
        (options.since, options.until, "startingTimestamp and endingTimestamp"),
        (options.from_offset, options.to_offset, "startingPhysicalOffset and endingPhysicalOffset"),
    ):
        if first is not None and last is not None and last < first:
            raise UsageError(f"options {names} contradict each other: {last} is before {first}")
    for bound, name in ((options.starting, "startingOffsets"), (options.ending, "endingOffsets")):
        if bound is not None and bound.names_queues and not options.names_topics:
            raise UsageError(
                f"option {name} names queues, but not all of what is read",
                hint="name topics with subscribe, subscribePattern or assign",
            )
    if options.ending is not None:
        if options.ending.kind == "earliest" or any(value == -2 for _, value in options.ending.values):
            raise UsageError("option endingOffsets: earliest (-2) is not a valid end")
    if options.columns is not None and options.column_set == "kafka":
        raise UsageError(
            "options columnSet=kafka and columns contradict each other",
            hint="give one of them: the columns of the set can be named in columns",
        )
    if options.include_headers and options.column_set != "kafka":
        raise UsageError("option includeHeaders needs columnSet=kafka")
    low, high = options.min_offsets_per_trigger, options.max_offsets_per_trigger
    if low is not None and high is not None and low > high:
        raise UsageError(
            "options minOffsetsPerTrigger and maxOffsetsPerTrigger contradict each other:"
            f" {low} is more than {high}"
        )
    if len(options.paths) > 1 and (options.from_offset, options.to_offset) != (None, None):
        raise UsageError("options startingPhysicalOffset and endingPhysicalOffset are for one store")


def check_read(options: SourceOptions) -> None:
    """Raises UsageError for options that say how a store is written."""
    if options.write or options.order != "given":
        name = f"{WRITE_PREFIX}{options.write[0][0]}" if options.write else "order"
        raise UsageError(f"option {name} is for writing")


def check_write(options: SourceOptions) -> None:
    """Raises UsageError for options that choose what is read."""
    if options.table != "messages":
        raise UsageError("option table is for reading")
    chosen = {
        "subscribe, topic, topics, subscribePattern and assign": options.names_topics,
        "tags, keys and filter": options.tags or options.keys or options.filter,
        "startingOffsets and endingOffsets": options.starting or options.ending,
        "startingTimestamp and endingTimestamp": (options.since, options.until) != (None, None),
    }
    for names, given in chosen.items():
        if given:
            raise UsageError(f"options {names} are for reading", hint="choose the rows of the DataFrame")


def _paths(texts: Mapping[str, str]) -> tuple[str, ...]:
    if "path" in texts and "paths" in texts:
        raise UsageError("options path and paths contradict each other", hint="give one of them")
    if "paths" in texts:
        return parse_paths("paths", texts["paths"])
    return parse_paths("path", texts["path"]) if "path" in texts else ()


def _with_prefix(given: Mapping[str, str], prefix: str) -> tuple[tuple[str, str], ...]:
    found = {name[len(prefix) :]: text for name, text in given.items() if name.lower().startswith(prefix)}
    return tuple(sorted(found.items()))


def _is_ignored(low: str) -> bool:
    prefixes = tuple(prefix.lower() for prefix in IGNORED_PREFIXES)
    return low == "paths" or low in map(str.lower, IGNORED) or low.startswith(prefixes)
