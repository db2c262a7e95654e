"""The source in a real session: rows are the library's, and the sixteen traps of PySpark's sources.

The traps are those of Spark 4.x as its own code has them; each test says which one it is about.
"""

from __future__ import annotations

import inspect
import json
import os
import pickle
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import AnalysisException, PythonException
from pyspark.sql import datasource as filters
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxRows

from rmqtool import spark as rocketmq_spark
from rmqtool.spark.options import parse_options
from rmqtool.spark.reader import PushdownReader, StoreReader
from rmqtool.spark.schema import columns_by_options
from rmqtool.spark.source import RocketMQStoreSource
from rmqtool.spark.stream import StoreStreamReader
from rmqtool.spark.stream_batches import log_offset, queue_offset, read_log_offset, read_queue_offset
from tests import ROOT
from tests.spark.frames import Row, library_rows, read, struct
from tests.support.stores import Library
from tests.support.sweep import in_sweeps, paired

pytestmark = pytest.mark.sweep

CLEAN = "ok_540_clean"
PUSHDOWN = "spark.sql.python.filterPushdown.enabled"
MANY = (
    *in_sweeps([CLEAN, "ok_533_small_propcrc", "torn_497_killed_burst", "bad_cl03_body_crc",
                "gap_cl20_missing_file"]),
    "ok_497_small_ipv6", "ok_533_expired", "bad_cl04_wrong_length", "bad_cl14_bad_body", "gap_cl02_zero_hole",
)  # fmt: skip


@contextmanager
def conf(spark: Any, name: str, value: str) -> Iterator[None]:
    """A setting of the session for the length of a block."""
    before = spark.conf.get(name, None)
    spark.conf.set(name, value)
    try:
        yield
    finally:
        spark.conf.unset(name) if before is None else spark.conf.set(name, before)


def load(spark: Any, path: Path | str, **options: str) -> Any:
    return spark.read.format(rocketmq_spark.NAME).options(**options).load(str(path))


def reader_of(path: Path, wanted: type[StoreReader] = StoreReader, **options: str) -> Any:
    settings = parse_options({"path": str(path), **options})
    return wanted(settings, struct(columns_by_options(settings)))


# -- rows ------------------------------------------------------------------------------------------


def test_spark_has_the_librarys_rows(spark: Any, cases: Library) -> None:
    """Several stores in one read, sound and damaged, every column."""
    paths = [str(cases.path(name)) for name in MANY]
    frame = (
        spark.read.format("rocketmq-store")
        .option("columnSet", "full")
        .option("minPartitions", "12")
        .load(paths)
    )
    by_broker: dict[str, list[Row]] = {name: [] for name in MANY}
    for row in frame.toArrow().to_pylist():
        by_broker[row.pop("brokerName")].append(row)
    for name, rows in by_broker.items():
        expected, findings = library_rows(cases.path(name))
        records = sorted((row for row in rows if row["topic"]), key=lambda row: row["physicalOffset"])
        assert len(records) == len(expected)
        for found, known in zip(records, expected, strict=True):
            assert found | {"properties": dict(found["properties"])} == known | {
                "properties": dict(known["properties"])
            }
        places = {row["physicalOffset"] for row in expected}
        bad = [
            each for each in findings if each.problem.severity != "note" and each.physical_offset is not None
        ]
        assert {(row["physicalOffset"], *row["status"]) for row in rows if not row["topic"]} == {
            (each.physical_offset, each.problem.code) for each in bad if each.physical_offset not in places
        }


def test_queries_that_kafka_and_rocketmq_users_have(spark: Any, cases: Library) -> None:
    """Their columns and options as they are; counts are those of the library."""
    path = cases.path(CLEAN)
    expected, _ = library_rows(path)
    mine = [row for row in expected if row["topic"] == "pubTopicOne"]
    kafka = load(
        spark, path, columnSet="kafka", subscribe="pubTopicOne", includeHeaders="true",
        startingOffsets="earliest", endingOffsets="latest", **{"kafka.bootstrap.servers": "nowhere:9092"},
    )  # fmt: skip
    found = kafka.selectExpr(
        "CAST(key AS STRING) AS k", "octet_length(value) AS v", "partition", "offset", "timestampType AS t",
        "get(filter(headers, h -> h.key = 'TAGS'), 0).value AS tag",
    ).collect()  # fmt: skip
    assert sorted((row.partition, row.offset, row.k, row.v, row.t, row.tag) for row in found) == sorted(
        (row["queueId"], row["queueOffset"], dict(row["properties"]).get("KEYS"), len(row["body"]), 1,
         (row["tags"] or "").encode() or None)
        for row in mine
    )  # fmt: skip
    connector = load(spark, path, topic="pubTopicOne", nameServer="nowhere:9876", brokerName="b")
    rows = connector.selectExpr(
        "brokerName", "get_json_object(properties, '$.TAGS') AS tag", "queueId", "bornTimestamp", "flag"
    ).collect()
    assert {row.brokerName for row in rows} == {"b"}
    assert sorted(str(row.tag) for row in rows) == sorted(str(row["tags"]) for row in mine)
    assert [row.bornTimestamp.timestamp() for row in rows] == [row["bornTimestampMs"] / 1000 for row in mine]


# -- trap 1, 2, 3, 4: filters ----------------------------------------------------------------------


def test_trap_1_filters_work_with_pushdown_off_and_on(spark: Any, cases: Library) -> None:
    """Off is Spark's default, and a reader with pushFilters fails then: ours has it where it is asked for."""
    path = cases.path(CLEAN)
    options = {"columns": "topic,queueId,queueOffset,storeTimestamp,tags,physicalOffset"}
    with conf(spark, PUSHDOWN, "false"):
        rows = load(spark, path, **options).orderBy("physicalOffset").collect()
    middle = [row for row in rows if row.topic == "pubTopicOne"][19]
    wheres: list[tuple[str, Callable[[Any], bool]]] = [
        (
            f"topic = 'pubTopicOne' AND queueId = {middle.queueId}"
            f" AND queueOffset < {middle.queueOffset + 3}",
            lambda row: (
                (row.topic, row.queueId) == ("pubTopicOne", middle.queueId)
                and row.queueOffset < middle.queueOffset + 3
            ),
        ),
        (
            f"storeTimestamp >= timestamp_micros({int(middle.storeTimestamp.timestamp() * 1_000_000)})"
            " AND (topic = 'pubTx' OR topic = 'pubOrder')",
            lambda row: row.storeTimestamp >= middle.storeTimestamp and row.topic in ("pubTx", "pubOrder"),
        ),
        (
            f"physicalOffset BETWEEN 1000 AND {middle.physicalOffset}"
            " AND topic LIKE 'pub%' AND tags = 'TagC'",
            lambda row: 1000 <= row.physicalOffset <= middle.physicalOffset and row.tags == "TagC",
        ),
    ]
    for (where, test), (value, pushdown) in paired(
        wheres, (("false", "on"), ("true", "on"), ("true", "off"))
    ):
        expected = [row for row in rows if test(row)]
        assert expected
        with conf(spark, PUSHDOWN, value):
            found = load(spark, path, pushdown=pushdown, **options).where(where).collect()
        assert sorted(found, key=lambda row: row.physicalOffset) == expected


def test_spark_mixes_up_the_filters_of_two_scans(spark: Any, cases: Library) -> None:
    """Why push-down is not our default: the last filters win for all scans of a data frame.

    When the second half fails Spark has been mended: then `pushdown` can be on where Spark has it on.
    """
    path = cases.path(CLEAN)
    rows, _ = library_rows(path)
    counts = {topic: sum(row["topic"] == topic for row in rows) for topic in ("pubTx", "pubOrder")}

    def counted(frame: Any) -> dict[str, int]:
        both = frame.where("topic = 'pubOrder'").unionAll(frame.where("topic = 'pubTx'"))
        return {row.topic: row["count"] for row in both.groupBy("topic").count().collect()}

    with conf(spark, PUSHDOWN, "true"):
        assert counted(load(spark, path, columns="topic")) == counts
        assert counted(load(spark, path, columns="topic", pushdown="on")) != counts


def test_trap_2_filters_go_back_as_the_same_objects(cases: Library) -> None:
    """Spark knows them by identity, and tests every row again."""
    reader = reader_of(cases.path(CLEAN), PushdownReader)
    given = [filters.EqualTo(("topic",), "pubTx"), filters.Not(filters.EqualTo(("queueId",), 1)),
             filters.IsNotNull(("topic",))]  # fmt: skip
    returned = list(reader.pushFilters(given))
    assert [id(each) for each in returned] == [id(each) for each in given]
    whole = reader_of(cases.path(CLEAN)).partitions()
    assert sum(piece.value.access.bytes_read for piece in reader.partitions()) < sum(
        piece.value.access.bytes_read for piece in whole
    )


def test_trap_3_literals_are_python_objects() -> None:
    """Times come as datetime, in the worker's zone or with one; other values leave a filter alone."""
    from rmqtool.read.pushed import Pushed
    from rmqtool.spark.pushdown import pushed_of

    assert pushed_of([filters.EqualTo(("storeTimestamp",), "2026-01-01")], "") == Pushed()
    assert pushed_of([filters.EqualTo(("topic",), 7), filters.In(("queueId",), (True,))], "") == Pushed()


def test_trap_4_nothing_to_read_is_one_empty_partition(spark: Any, cases: Library) -> None:
    """A list, always; an empty one becomes a partition without a value."""
    path = cases.path(CLEAN)
    reader = reader_of(path, endingPhysicalOffset="0")
    assert reader.partitions() == []
    assert type(reader_of(path).partitions()) is list
    assert list(reader.read(InputPartition(None))) == []
    assert load(spark, path, endingPhysicalOffset="0").count() == 0
    frame = load(spark, path, columns="topic,queueId")
    assert frame.where("topic = 'pubTx' AND topic = 'pubOrder'").count() == 0
    assert frame.where("queueId < 0").collect() == []


# -- trap 5, 6, 7: batches -------------------------------------------------------------------------


def test_trap_5_batches_have_exactly_sparks_schema(spark: Any, cases: Library) -> None:
    """Only the first batch is compared: names, order, types, nullability; here every one is (see frames)."""
    path = cases.path(CLEAN)
    schema = (
        "queueId BIGINT, TOPIC STRING NOT NULL, body STRING, status STRING, properties MAP<STRING,STRING>"
    )
    frame = (
        spark.read.format("rocketmq-store").schema(schema).option("maxRowsPerBatch", "700").load(str(path))
    )
    assert frame.columns == ["queueId", "TOPIC", "body", "status", "properties"]
    found = frame.selectExpr(
        "sum(queueId)", "count(DISTINCT TOPIC)", "min(status)", "sum(size(properties))"
    ).first()
    rows, _ = library_rows(path)
    assert tuple(found) == (
        sum(row["queueId"] for row in rows), len({row["topic"] for row in rows}), "ok",
        sum(len(row["properties"]) for row in rows),
    )  # fmt: skip


def test_trap_6_batches_are_bounded_in_bytes(cases: Library) -> None:
    """Arrow's 2 GiB is far away: 16 MiB by default, and what the user says."""
    settings = parse_options({"path": str(cases.path(CLEAN))})
    assert (settings.batch_rows, settings.batch_bytes) == (1 << 16, 16 << 20)


def test_trap_7_what_is_not_asked_for_is_not_read(spark: Any, cases: Library) -> None:
    """Spark prunes no columns: `columns` and `.schema` do, down to what the workers decode."""
    from rmqtool.spark.convert import Converter
    from rmqtool.spark.schema import arrow_schema_of

    asked = columns_by_options(parse_options({"columnSet": "minimal"}))
    columns = Converter(asked, arrow_schema_of(struct(asked)), "b").columns
    assert columns == {"topic", "queue_id", "queue_offset", "physical_offset", "size", "store_time"}
    with pytest.raises(AnalysisException, match="topik.*did you mean topic"):
        load(spark, cases.path(CLEAN), columns="topik")


# -- trap 8, 9, 10: pickles, planning, names -------------------------------------------------------


def test_trap_8_readers_and_partitions_are_small_pickles(cases: Library) -> None:
    """What `pushFilters` learned travels along; no store is open in them."""
    reader = reader_of(cases.path(CLEAN), PushdownReader, maxBytesPerPartition="50K")
    reader.pushFilters([filters.EqualTo(("topic",), "pubTx")])
    again = pickle.loads(pickle.dumps(reader))
    assert len(pickle.dumps(reader)) < 5_000
    pieces = again.partitions()
    assert [piece.value.access for piece in pieces] == [piece.value.access for piece in reader.partitions()]
    assert max(len(pickle.dumps(piece)) for piece in pieces) < 2_000
    assert list(again.read(pieces[0]))


def test_trap_9_planning_is_light(cases: Library) -> None:
    """It is done in a worker of its own, before anything runs: no kernel is compiled for it."""
    code = (
        "import sys; from rmqtool.spark.options import parse_options;"
        "from rmqtool.spark.partitions import plan_scan;"
        f"plan = plan_scan(parse_options({{'path': {str(cases.path(CLEAN))!r}, 'minPartitions': '4'}}));"
        "print(len(plan.pieces), 'numba' in sys.modules, 'pyspark' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True, text=True,
        check=True,
    )  # fmt: skip
    pieces, *loaded = done.stdout.split()
    assert int(pieces) >= 4
    assert loaded == ["False", "False"]


def test_trap_10_the_name_is_our_own(spark: Any) -> None:
    """A built-in source of the same name would win; rocketmq-spark's is `rocketmq`."""
    assert RocketMQStoreSource.name() == rocketmq_spark.NAME == "rocketmq-store"
    with pytest.raises(AnalysisException, match="subscribee.*did you mean subscribe"):
        spark.read.format("RocketMQ-Store").option("subscribee", "a").load("/nowhere")
    with pytest.raises(AnalysisException, match="/nowhere"):
        load(spark, "/nowhere", columns="topic").count()


def test_auto_registration_costs_nothing(tmp_path: Path) -> None:
    """Every session of the machine imports the module: without pyarrow, numpy or pyspark it does no harm."""
    code = (
        "import sys, pyspark_rocketmq_store as module;"
        "names = {name.partition('.')[0] for name in sys.modules};"
        "heavy = {'pyspark', 'pyarrow', 'numpy', 'numba', 'rmqtool'} & names;"
        "assert not heavy, heavy;"
        "assert not hasattr(module, 'nothing');"
        "sys.modules['pyarrow'] = sys.modules['numpy'] = sys.modules['numba'] = None;"
        "print(module.DefaultSource.name())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": str(ROOT)}, cwd=tmp_path,
        capture_output=True, text=True,
    )  # fmt: skip
    assert (done.stdout, done.returncode) == ("rocketmq-store\n", 0), done.stderr


# -- trap 11, 12, 13, 14: streams ------------------------------------------------------------------


def stream_of(path: Path, **options: str) -> StoreStreamReader:
    settings = parse_options({"path": str(path), "columnSet": "minimal", **options})
    return StoreStreamReader(settings, struct(columns_by_options(settings)))


def test_trap_11_admission_control_in_every_version(cases: Library) -> None:
    """Parameters with defaults; the field is max_rows; ReadAllAvailable wins over the source's own limits."""
    stream = stream_of(
        cases.path(CLEAN), startingOffsets="earliest", maxOffsetsPerTrigger="10", maxBytesPerTrigger="9K"
    )
    parameters = inspect.signature(stream.latestOffset).parameters
    assert [each.default for each in parameters.values()] == [None, None]
    assert stream.getDefaultReadLimit() == ReadMaxRows(10)
    start = stream.initialOffset()
    end = stream.latestOffset()
    assert stream.latestOffset(start, ReadAllAvailable()) == stream.latestOffset(start) == end
    ten = stream.latestOffset(start, ReadMaxRows(10))
    assert start["commitlog"][CLEAN] < ten["commitlog"][CLEAN] <= 9 << 10
    assert stream.latestOffset(start, ReadMaxBytes(4 << 10))["commitlog"][CLEAN] <= 4 << 10
    assert stream_of(cases.path(CLEAN), maxBytesPerTrigger="9K").getDefaultReadLimit() == ReadMaxBytes(
        9 << 10
    )
    assert stream_of(cases.path(CLEAN)).getDefaultReadLimit() == ReadAllAvailable()


def test_trap_12_equal_offsets_are_equal_texts() -> None:
    assert json.dumps(log_offset({"b": 1, "a": 2})) == json.dumps(log_offset({"a": 2, "b": 1}))
    many = {("t", "b", queue): queue for queue in (10, 9, 2)} | {("a", "b", 0): 1}
    text = json.dumps(queue_offset(many))
    assert text == json.dumps(queue_offset(dict(reversed(many.items()))))
    assert read_queue_offset(json.loads(text)) == many
    assert read_log_offset(json.loads(json.dumps(log_offset({"b": 7})))) == {"b": 7}


def test_trap_13_no_simple_reader(cases: Library) -> None:
    """That one keeps batches in the driver's memory and takes no limits."""
    stream = stream_of(cases.path(CLEAN))
    assert isinstance(stream, DataSourceStreamReader)
    assert "simpleStreamReader" not in vars(RocketMQStoreSource)


def test_trap_14_streams_take_no_filters() -> None:
    """There is no such thing: options select, and Spark filters (`test_stream`)."""
    assert not hasattr(StoreStreamReader, "pushFilters")
    assert getattr(StoreReader, "pushFilters") is DataSourceReader.pushFilters  # noqa: B009 - as Spark asks


# -- trap 15, 16: workers --------------------------------------------------------------------------


def test_trap_15_the_path_must_be_there_for_every_worker(
    spark: Any, store_copy: Callable[[str], Path]
) -> None:
    """A task that finds the store gone says which, and does not give fewer rows."""
    path = store_copy("ok_540_small_ipv6")
    frame = load(spark, path, columns="topic")
    frame.schema  # noqa: B018 - asks Spark to make the source
    path.rename(path.with_name("moved"))
    with pytest.raises((PythonException, AnalysisException), match="ok_540_small_ipv6"):
        frame.collect()


def test_trap_16_a_limit_of_the_address_space(cases: Library, tmp_path: Path) -> None:
    """spark.executor.pyspark.memory is RLIMIT_AS: maps of whole logs would break; windows do not."""
    limit = 3 << 30
    code = (
        "import resource, sys; from tests.spark.frames import read;"
        f"resource.setrlimit(resource.RLIMIT_AS, ({limit}, {limit}));"
        f"print(len(read({{'path': {str(cases.path(CLEAN))!r}, 'columnSet': 'minimal'}})))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True, text=True,
    )  # fmt: skip
    assert resource.getrlimit(resource.RLIMIT_AS)[0] == resource.RLIM_INFINITY
    assert done.stdout.split() == [
        str(len(read({"path": str(cases.path(CLEAN)), "columnSet": "minimal"})))
    ], done.stderr


# -- what is shown ---------------------------------------------------------------------------------


def test_secrets_are_in_no_plan_and_no_error(
    spark: Any, cases: Library, capfd: pytest.CaptureFixture[str]
) -> None:
    secret = "HUNTER2"
    for table in ("messages", "units"):
        frame = load(spark, cases.path(CLEAN), table=table, columns="topic", **{"storage.secret_key": secret})
        for mode in ("extended", "formatted", "cost"):
            frame.where("topic = 'a'").explain(mode=mode)
    shown = capfd.readouterr().out
    assert "rocketmq-store" in shown
    assert secret not in shown
    with pytest.raises(AnalysisException) as error:
        load(
            spark,
            f"s3://key:{secret}@nowhere.invalid/store",
            columns="topic",
            oops="1",
            **{"storage.key": secret},
        )
    assert secret not in str(error.value)
