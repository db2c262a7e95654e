"""The Spark source in one warm session, beside what bounds it; and `spark-scan` as a command."""

from __future__ import annotations

import json
import shutil
import struct
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from rmqtool.errors import InputError
from rmqtool.formats import consume_queue, message
from rmqtool.spark.options import parse_options
from rmqtool.spark.partitions import plan_scan
from rmqtool.spark.session import require_spark, spark_session
from tests.benchmarks import messages, topic_store
from tests.benchmarks.harness import Call, Program, Row, rmqtool
from tests.benchmarks.machine import drop_from_cache, has_page_cache, remove_store
from tests.benchmarks.scale import Bench

SIX = "topic,queueId,queueOffset,physicalOffset,size,storeTimestamp"
SIX_TYPES = (
    "topic string, queueId int, queueOffset bigint, physicalOffset bigint, size int, storeTimestamp timestamp"
)
CONF = ("spark.ui.enabled=false", "spark.driver.host=127.0.0.1", "spark.driver.bindAddress=127.0.0.1",
        "spark.sql.shuffle.partitions=2", "spark.rpc.message.maxSize=512")  # fmt: skip
_PARTS = 4
_FEW = 3_400
_READY_ROWS = 1 << 16
_SOURCE = """
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader
class Reader(DataSourceReader):
    def read(self, partition):
        yield from ((number,) for number in range(1000))
class Source(DataSource):
    @classmethod
    def name(cls):
        return "numbers"
    def schema(self):
        return "number int"
    def reader(self, schema):
        return Reader()
session = SparkSession.builder.config("spark.ui.enabled", "false").getOrCreate()
session.dataSource.register(Source)
print(session.read.format("numbers").load().count())
session.stop()
"""


def is_ready() -> bool:
    """Whether pyspark and a Java for it are installed."""
    if find_spec("pyspark") is None:
        return False
    with suppress(InputError):
        require_spark()
        return True
    return False


def rows(bench: Bench) -> Iterator[Row]:
    """The command first: its session is another one."""
    if not is_ready():
        return
    tiny, store, count = bench.folder / "tiny", bench.folder / "spark", bench.scale.log_messages
    messages.make_store(tiny, _FEW, log_file_bytes=4 << 20)
    yield Row(
        name="start, spark-scan of 4 MiB",
        contenders=[spark_scan(tiny, _FEW), bare_session()],
    )  # fmt: skip
    remove_store(tiny)
    messages.make_store(store, count, log_file_bytes=bench.scale.log_file_bytes)
    with spark_session(master="local[2]", conf=CONF, driver_memory="2g") as spark:
        yield _count_by_topic(spark, store, count)
        yield _six_columns(bench, spark, store, count)
        if has_page_cache(bench.folder):
            yield _cold(spark, store, count)
        remove_store(store)
        yield from _selective(bench, spark)
        yield _plan(bench)


def bare_session() -> Program:
    """A program that starts a session, counts 1,000 rows of a Python source, and ends."""
    return Program(
        name="bare PySpark", kind="limit", line=[sys.executable, "-c", _SOURCE],
        shown="a session that counts 1,000 rows of a source in Python", answer=lambda text: "1000" in text,
        environment={"PYSPARK_PYTHON": sys.executable},
    )  # fmt: skip


def spark_scan(store: Path, count: int) -> Program:
    """`spark-scan --count` as a command."""
    conf = [word for each in CONF[:3] for word in ("--conf", each)]
    return rmqtool(
        "spark-scan", store, "--count", *conf, shown="rmqtool spark-scan STORE --count",
        answer=lambda text: str(count) in text,
    )  # fmt: skip


def _to_nowhere(frame: Any) -> None:
    frame.write.format("noop").mode("overwrite").save()


def _ready_batch(schema: str) -> pa.RecordBatch:
    """A batch with the columns of a schema of Spark: texts are the topic, everything else is numbers."""
    (topic,) = messages.topic_names(1)
    kinds = {"int": pa.int32(), "bigint": pa.int64(), "timestamp": pa.timestamp("us", "UTC")}
    numbers = pa.array(np.arange(_READY_ROWS, dtype=np.int64))
    columns = {}
    for name, kind in (field.split() for field in schema.split(", ")):
        text = kind == "string"
        columns[name] = pa.repeat(pa.scalar(topic), _READY_ROWS) if text else numbers.cast(kinds[kind])
    return pa.RecordBatch.from_pydict(columns)


def _memory_source(
    partitions: int, rows: int, schema: str = "topic string", files: Sequence[Path] = ()
) -> type:
    """A source of one batch that is made once and yielded again and again; rows of 0: empty.

    With `files` each partition first reads its share of their bytes, and does nothing with them.
    """
    from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

    whole, window = _ready_batch(schema), 16 << 20
    places = [(str(path), start) for path in files for start in range(0, path.stat().st_size, window)]

    class Reader(DataSourceReader):
        def partitions(self) -> list[InputPartition]:
            return [InputPartition(number) for number in range(partitions)]

        def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
            buffer = bytearray(window)
            share = -(-len(places) // partitions)
            for path, start in places[partition.value * share : (partition.value + 1) * share]:
                with open(path, "rb", buffering=0) as file:  # noqa: PTH123
                    file.seek(start)
                    file.readinto(buffer)
            left = rows // partitions + (partition.value < rows % partitions)
            while left > 0:
                yield whole.slice(0, min(left, len(whole)))
                left -= len(whole)

    class Memory(DataSource):
        @classmethod
        def name(cls) -> str:
            return f"memory-{rows}-{len(whole.columns)}-{len(files)}"

        def schema(self) -> str:
            return schema

        def reader(self, schema: Any) -> DataSourceReader:
            return Reader()

    return Memory


def _loaded(spark: Any, source: Any) -> Any:
    """The frame of a source, which is registered first."""
    spark.dataSource.register(source)
    return spark.read.format(source.name()).load()


def _count_by_topic(spark: Any, store: Path, count: int) -> Row:
    """The source against one that has the same column in memory, and one that is empty."""
    frame = spark.read.format("rocketmq-store").option("columns", "topic").load(str(store))
    partitions = frame.rdd.getNumPartitions()
    memory, empty = (_loaded(spark, _memory_source(partitions, rows_)) for rows_ in (count, 0))

    def counted(each: Any, expected: list[tuple[str, int]]) -> None:
        found = [(row["topic"], row["count"]) for row in each.groupBy("topic").count().collect()]
        assert found == expected

    (topic,) = messages.topic_names(1)
    return Row(
        name="Spark: count by topic", unit="rows", amount=count, in_process=True,
        contenders=[
            Call(name="rocketmq-store", kind="rmqtool", work=partial(counted, frame, [(topic, count)])),
            Call(name="from memory", kind="limit",
                 shown="a source in Python that has the column",
                 work=partial(counted, memory, [(topic, count)])),
            Call(name="an empty source", kind="limit",
                 shown="a source in Python without rows", work=partial(counted, empty, [])),
        ],
    )  # fmt: skip


def _parse_with_struct(parts: Iterator[tuple[str, int, int]]) -> Iterator[tuple[Any, ...]]:
    """What a PySpark job without this package does: walk records of version 1 with struct."""
    from datetime import UTC, datetime

    head = struct.Struct(">iIiiiqqiq8sq8siqi")
    for path, start, stop in parts:
        with open(path, "rb") as file:  # noqa: PTH123
            file.seek(start)
            data = file.read(stop - start)
        position = 0
        while position + head.size <= len(data):
            values = head.unpack_from(data, position)
            size, magic = values[0], values[1]
            if magic != message.MAGIC_V1 & 0xFFFFFFFF or size <= 0:
                break
            topic_at = position + head.size + values[14]
            length = data[topic_at]
            topic = data[topic_at + 1 : topic_at + 1 + length].decode()
            stored = datetime.fromtimestamp(values[10] / 1000, UTC)
            yield topic, values[3], values[5], values[6], size, stored
            position += size


def _parts(store: Path, most: int) -> tuple[list[tuple[str, int, int]], int]:
    """Ranges of the first log file that start and end between records, and their records, at most `most`."""
    first = sorted((store / "commitlog").iterdir())[0]
    units = [np.fromfile(path, consume_queue.UNIT.dtype) for path in (store / "consumequeue").rglob("0" * 20)]
    offsets = np.concatenate([each["physical_offset"][each["size"] > 0] for each in units])
    offsets = np.sort(offsets[offsets < first.stat().st_size])[: most + 1]
    records = (len(offsets) - 1) // _PARTS
    edges = offsets[: _PARTS * records + 1 : records].tolist()
    return [(str(first), start, stop) for start, stop in pairwise(edges)], _PARTS * records


def _six_columns(bench: Bench, spark: Any, store: Path, count: int) -> Row:
    """All rows into Spark's `noop` sink, against struct in mapPartitions over a part of the log.

    The limits are sources in Python that yield ready-made batches, without and with reading the log: what
    Spark takes for the rows, and what the bytes take besides.
    """
    frame = spark.read.format("rocketmq-store").option("columns", SIX).load(str(store))
    parts, records = _parts(store, bench.scale.part_records)
    by_hand = spark.createDataFrame(
        spark.sparkContext.parallelize(parts, len(parts)).mapPartitions(_parse_with_struct), SIX_TYPES
    )
    partitions, files = frame.rdd.getNumPartitions(), sorted((store / "commitlog").iterdir())
    memory, reading = (
        _loaded(spark, _memory_source(partitions, count, SIX_TYPES, each)) for each in ((), files)
    )
    ordered = frame.orderBy("physicalOffset").limit(3).collect()
    assert by_hand.orderBy("physicalOffset").limit(3).collect() == ordered
    assert by_hand.count() == records
    return Row(
        name="Spark: rows of six columns", unit="rows", amount=count, in_process=True,
        contenders=[
            Call(name="rocketmq-store", kind="rmqtool", work=partial(_to_nowhere, frame)),
            Call(name="from memory", kind="limit",
                 shown="a source in Python that has the columns",
                 work=partial(_to_nowhere, memory)),
            Call(name="from memory, log read", kind="limit",
                 shown="a source in Python that has the columns, and reads the bytes of the log",
                 work=partial(_to_nowhere, reading)),
            Call(name="struct in mapPartitions",
                 shown="a PySpark job that parses records",
                 amount=records, work=partial(_to_nowhere, by_hand)),
        ],
    )  # fmt: skip


def _cold(spark: Any, store: Path, count: int) -> Row:
    """The same rows when the files are not in the page cache, against the device."""
    frame = spark.read.format("rocketmq-store").option("columns", SIX).load(str(store))
    cold, paths = partial(drop_from_cache, store), sorted((store / "commitlog").iterdir())
    cat = Program(
        name="cat", kind="limit", line=["cat", *paths], shown="`cat commitlog/* > /dev/null`", before=cold
    )
    return Row(
        name="Spark: rows of six columns, cold cache", unit="rows", amount=count, in_process=True,
        goals={cat.name: 0.9},
        contenders=[
            Call(name="rocketmq-store", kind="rmqtool", work=partial(_to_nowhere, frame), before=cold), cat
        ],
    )  # fmt: skip


def _selective(bench: Bench, spark: Any) -> Iterator[Row]:
    """One topic of many, one hour of a week, one key, against a scan of everything."""
    root, topics, total = bench.folder / "topics", bench.scale.spark_topics, bench.scale.log_messages
    topic_store.make_store(root, total, messages.BODY_BYTES, topics, bench.scale.log_file_bytes)
    frame = spark.read.format("rocketmq-store").option("columns", f"{SIX},uniqKey").load(str(root))
    number = total // 2
    first = topic_store.START_MS + 3 * 86_400_000
    topic, key = topic_store.topic_name(number % topics), topic_store.key_of(number)
    last = first + 3_600_000
    hour = f"storeTimestamp >= timestamp_millis({first}) AND storeTimestamp < timestamp_millis({last})"
    cases: dict[str, tuple[str, dict[str, str]]] = {
        "one topic": (f"topic = '{topic}'", {"subscribe": topic}),
        "one hour": (hour, {"startingTimestamp": str(first), "endingTimestamp": str(last)}),
        "one key": (f"topic = '{topic}' AND uniqKey = '{key}'", {"subscribe": topic, "keys": key}),
    }
    everything = Call(name="a scan of all messages", kind="other", work=partial(_to_nowhere, frame))
    for name, (condition, options) in cases.items():
        chosen = spark.read.format("rocketmq-store").option("columns", f"{SIX},uniqKey")
        chosen = chosen.options(**options).load(str(root))
        assert chosen.count() == frame.where(condition).count() > 0
        yield Row(
            name=f"Spark: {name} of {topics:,} topics" if name == "one topic" else f"Spark: {name}",
            in_process=True, goals={everything.name: 10},
            contenders=[
                Call(name="rocketmq-store", kind="rmqtool", work=partial(_to_nowhere, chosen)), everything
            ],
        )  # fmt: skip
    remove_store(root)


def _plan(bench: Bench) -> Row:
    """What the driver needs to plan a scan of many brokers: sparse files with one record each."""
    root, (brokers, files) = bench.folder / "spark-plan", bench.scale.spark_plan
    shutil.rmtree(root, ignore_errors=True)
    file_size = 2 << 30
    one = topic_store.template(16)[0]
    at = message.HEADS[0].offsets["physical_offset"]
    for broker in range(brokers):
        folder = root / f"broker-{broker}" / "commitlog"
        folder.mkdir(parents=True)
        for number in range(files):
            record = bytearray(one.tobytes())
            record[at : at + 8] = struct.pack(">q", number * file_size)
            with (folder / f"{number * file_size:020}").open("wb") as file:
                file.write(record)
                file.truncate(file_size)
    paths = json.dumps([str(root / f"broker-{broker}") for broker in range(brokers)])

    def plan() -> None:
        found = plan_scan(parse_options({"path": paths, "columns": "topic", "maxBytesPerPartition": "2G"}))
        assert len(found.pieces) >= brokers * files

    def heads() -> None:
        for path in root.rglob("0*"):
            with path.open("rb", buffering=0) as file:
                file.read(message.HEAD_SIZE_V4)

    return Row(
        name=f"Spark: plan of {brokers * files:,} files", unit="files", amount=brokers * files,
        in_process=True,
        contenders=[
            Call(name="plan_scan", kind="rmqtool", work=plan),
            Call(name="reading the heads", kind="limit", work=heads, shown="one read from every file"),
        ],
    )  # fmt: skip
