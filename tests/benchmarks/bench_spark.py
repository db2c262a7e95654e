"""The Spark source against what bounds it, in the same run and the same warm session, two cores.

    count by topic                 time beyond an empty source <= 2 x that of the same column from memory
    rows of six columns            >= 1.5 million rows/s, >= 5 x struct in mapPartitions
    one topic, one hour, one key   < 2 % of the bytes, >= 10 x faster than the full scan
    100,000 partitions             planning time and memory of the driver: figures, no target

Figures are printed, not asserted; what is asserted is that the answers are right.
"""

from __future__ import annotations

import json
import pickle
import shutil
import statistics
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from rmqtool.formats import message
from rmqtool.spark.options import parse_options
from rmqtool.spark.partitions import plan_scan
from rmqtool.spark.session import spark_session
from tests.benchmarks import big_store, topic_store
from tests.benchmarks.machine import SMALL, STORES, anonymous_bytes, report

LOG_BYTES = (48 << 20) if SMALL else (4 << 30)
BODY_BYTES = 1024
TOPICS = 50 if SMALL else 1000
TOPIC_MESSAGES = 40_000 if SMALL else 3_700_000
TOPIC_FILE = (8 << 20) if SMALL else (1 << 30)
RUNS = 1 if SMALL else 5
BROKERS, FILES = (2, 50) if SMALL else (100, 1000)
SIX = "topic,queueId,queueOffset,physicalOffset,size,storeTimestamp"
CONF = ("spark.ui.enabled=false", "spark.driver.host=127.0.0.1", "spark.driver.bindAddress=127.0.0.1",
        "spark.sql.shuffle.partitions=2", "spark.rpc.message.maxSize=512")  # fmt: skip


@pytest.fixture(scope="module")
def spark() -> Iterator[Any]:
    with spark_session(master="local[2]", conf=CONF, driver_memory="512m" if SMALL else "2g") as session:
        yield session


@pytest.fixture(scope="module")
def store() -> Iterator[tuple[Path, int]]:
    """(a store of one topic with queues and index, its messages)."""
    root = STORES / "spark"
    shutil.rmtree(root, ignore_errors=True)
    made = big_store.make_store(root, LOG_BYTES, BODY_BYTES)
    yield root, made
    shutil.rmtree(root)


def memory_source(partitions: int, rows: int, batch_rows: int = 1 << 16) -> type:
    """A source of one column `topic` that is made once and yielded again and again; rows of 0: empty."""
    from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

    topic = big_store.TOPIC

    class Reader(DataSourceReader):
        def partitions(self) -> list[InputPartition]:
            return [InputPartition(number) for number in range(partitions)]

        def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
            import pyarrow

            left = rows // partitions + (partition.value < rows % partitions)
            whole = pyarrow.RecordBatch.from_pydict(
                {"topic": pyarrow.repeat(pyarrow.scalar(topic), batch_rows)}
            )
            while left > 0:
                yield whole.slice(0, min(left, batch_rows))
                left -= batch_rows

    class Memory(DataSource):
        @classmethod
        def name(cls) -> str:
            return f"memory-{rows}"

        def schema(self) -> str:
            return "topic string"

        def reader(self, schema: Any) -> DataSourceReader:
            return Reader()

    return Memory


def seconds_of(work: Callable[[], Any], runs: int = RUNS) -> float:
    """The median of some runs after a first one that warms up."""
    work()
    taken = []
    for _ in range(runs):
        start = time.perf_counter()
        work()
        taken.append(time.perf_counter() - start)
    return statistics.median(taken)


def test_count_by_topic(spark: Any, store: tuple[Path, int]) -> None:
    """The source against one that has the same column in memory."""
    root, made = store
    frame = spark.read.format("rocketmq-store").option("columns", "topic").load(str(root))
    partitions = frame.rdd.getNumPartitions()
    for rows in (0, made):
        spark.dataSource.register(memory_source(partitions, rows))
    count = {
        name: (lambda each=each: each.groupBy("topic").count().collect())
        for name, each in (
            ("ours", frame),
            ("memory", spark.read.format(f"memory-{made}").load()),
            ("empty", spark.read.format("memory-0").load()),
        )
    }
    assert [(row["topic"], row["count"]) for row in count["ours"]()] == [(big_store.TOPIC, made)]
    assert count["memory"]() == count["ours"]()
    taken = {name: seconds_of(work) for name, work in count.items()}
    ours, memory = taken["ours"] - taken["empty"], taken["memory"] - taken["empty"]
    report(
        f"count by topic of {made:,} messages ({LOG_BYTES >> 20} MiB) in {partitions} partitions",
        f"rmqtool {taken['ours']:.2f} s, from memory {taken['memory']:.2f} s, empty {taken['empty']:.2f} s",
        f"beyond the empty one: {ours:.2f} s and {memory:.2f} s:"
        f" {ours / max(memory, 1e-3):.2f} x (target <= 2)",
    )


def parse_with_struct(parts: Iterator[tuple[str, int, int]]) -> Iterator[tuple[Any, ...]]:
    """What a PySpark job without this package does: walk records of version 1 with struct."""
    from datetime import UTC, datetime

    head = struct.Struct(">iIiiiqqi q8sq8s iqi".replace(" ", ""))
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


def test_rows_of_six_columns(spark: Any, store: tuple[Path, int]) -> None:
    """All rows into Spark's `noop` sink, against struct in mapPartitions over a part of the log."""
    root, made = store
    frame = spark.read.format("rocketmq-store").option("columns", SIX).load(str(root))
    seconds = seconds_of(lambda: frame.write.format("noop").mode("overwrite").save())
    size = len(big_store.template(BODY_BYTES)[0])
    file = sorted((root / "commitlog").iterdir())[0]
    records = min(file.stat().st_size, 256 << 20) // size // 4
    parts = [(str(file), number * records * size, (number + 1) * records * size) for number in range(4)]
    schema = (
        "topic string, queueId int, queueOffset bigint, physicalOffset bigint, size int,"
        " storeTimestamp timestamp"
    )
    by_hand = spark.createDataFrame(
        spark.sparkContext.parallelize(parts, 4).mapPartitions(parse_with_struct), schema
    )
    assert by_hand.orderBy("physicalOffset").limit(3).collect() == frame.limit(3).collect()
    assert by_hand.count() == 4 * records
    hand = seconds_of(lambda: by_hand.write.format("noop").mode("overwrite").save(), min(RUNS, 3))
    ours, theirs = made / seconds, 4 * records / hand
    report(
        "rows of six columns",
        f"rmqtool {ours:,.0f} rows/s in {seconds:.2f} s (target 1,500,000)",
        f"struct in mapPartitions {theirs:,.0f} rows/s: {ours / theirs:.1f} x (target >= 5)",
    )


def test_selective_queries(spark: Any) -> None:
    """One topic of many, one hour of a week, one key: by options, which select whatever Spark pushes down."""
    root = STORES / "spark-topics"
    shutil.rmtree(root, ignore_errors=True)
    topic_store.make_store(root, TOPIC_MESSAGES, BODY_BYTES, TOPICS, TOPIC_FILE)
    frame = spark.read.format("rocketmq-store").option("columns", f"{SIX},uniqKey").load(str(root))
    number = TOPIC_MESSAGES // 2
    first = topic_store.START_MS + 3 * 86_400_000
    topic, key = topic_store.topic_name(number % TOPICS), topic_store.key_of(number)
    last = first + 3_600_000
    hour = f"storeTimestamp >= timestamp_millis({first}) AND storeTimestamp < timestamp_millis({last})"
    cases: dict[str, tuple[str, dict[str, str]]] = {
        "one topic": (f"topic = '{topic}'", {"subscribe": topic}),
        "one hour": (hour, {"startingTimestamp": str(first), "endingTimestamp": str(last)}),
        "one key": (f"topic = '{topic}' AND uniqKey = '{key}'", {"subscribe": topic, "keys": key}),
    }
    # Before the scans: on tmpfs a hole that was mapped once is one no more.
    plans = {name: plan_scan(parse_options({"path": str(root), **each})) for name, (_, each) in cases.items()}
    try:
        full = seconds_of(lambda: frame.write.format("noop").mode("overwrite").save(), min(RUNS, 3))
        lines = [f"full scan {full:.2f} s"]
        for name, (condition, options) in cases.items():
            chosen = spark.read.format("rocketmq-store").option("columns", f"{SIX},uniqKey")
            chosen = chosen.options(**options).load(str(root))
            assert chosen.count() == frame.where(condition).count() > 0
            seconds = seconds_of(lambda chosen=chosen: chosen.write.format("noop").mode("overwrite").save())
            plan = plans[name]
            share = plan.bytes_read / plan.bytes_total
            lines.append(
                f"{name}: {seconds:.2f} s, {full / seconds:.1f} x (target >= 10);"
                f" {share:.2%} of the bytes (target < 2 %), by {plan.stores[0].access.kind}"
            )
        report(f"selective queries of {TOPIC_MESSAGES:,} messages in {TOPICS} topics over a week", *lines)
    finally:
        shutil.rmtree(root)


def test_planning_of_many_partitions(spark: Any) -> None:
    """Brokers of 2 TB each, as sparse files with one record: what the driver needs to plan."""
    root = STORES / "spark-plan"
    shutil.rmtree(root, ignore_errors=True)
    file_size = 2 << 30
    one = big_store.template(16)[0]
    at = message.HEADS[0].offsets["physical_offset"]
    for broker in range(BROKERS):
        folder = root / f"broker-{broker}" / "commitlog"
        folder.mkdir(parents=True)
        for number in range(FILES):
            record = bytearray(one.tobytes())
            record[at : at + 8] = struct.pack(">q", number * file_size)
            with (folder / f"{number * file_size:020}").open("wb") as file:
                file.write(record)
                file.truncate(file_size)
    paths = [str(root / f"broker-{broker}") for broker in range(BROKERS)]
    try:
        before, start = anonymous_bytes(), time.perf_counter()
        plan = plan_scan(
            parse_options({"path": json.dumps(paths), "columns": "topic", "maxBytesPerPartition": "2G"})
        )
        taken, memory = time.perf_counter() - start, anonymous_bytes() - before
        pickled = sum(len(pickle.dumps(piece)) for piece in plan.pieces)
        assert len(plan.pieces) >= BROKERS * FILES
        frame = (
            spark.read.format("rocketmq-store")
            .options(columns="topic", maxBytesPerPartition="2G")
            .load(paths)
        )
        start = time.perf_counter()
        partitions = frame.rdd.getNumPartitions()
        spark_taken = time.perf_counter() - start
        process = spark.sparkContext._gateway.proc
        report(
            f"{BROKERS} brokers of {FILES * file_size / 1e12:.1f} TB: {len(plan.pieces):,} partitions",
            f"plan_scan {taken:.1f} s, {memory >> 20} MiB; {pickled // len(plan.pieces)} bytes a partition",
            f"Spark has {partitions:,} partitions after {spark_taken:.1f} s; its driver's JVM"
            f" {peak_mib(process.pid)} MiB at most",
        )
    finally:
        shutil.rmtree(root)


def peak_mib(pid: int) -> int:
    """The most memory that a process has had, MiB."""
    for line in Path(f"/proc/{pid}/status").read_text("ascii").splitlines():
        if line.startswith("VmHWM"):
            return int(line.split()[1]) >> 10
    return 0
