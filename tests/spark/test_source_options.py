"""Options without Spark: what they mean, and what is wrong with them; every error names the option."""

from __future__ import annotations

import json
import pickle
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import datasource as spark

from rmqtool.errors import NotAStoreError, UsageError
from rmqtool.read.pushed import NOTHING_PUSHED, Pushed
from rmqtool.read.selection import Selection
from rmqtool.spark.offsets import Bound, QueueName
from rmqtool.spark.options import OPTION_NAMES, SourceOptions, check_read, check_write, parse_options
from rmqtool.spark.pushdown import pushed_of
from rmqtool.spark.request import QueueRange, build_request, globs_of_pattern
from rmqtool.spark.schema import COLUMN_SETS, columns_by_options, columns_by_schema, ddl, requested_columns
from rmqtool.spark.stores import find_places
from tests.spark.frames import struct
from tests.support.stores import Library


def options(**given: str) -> SourceOptions:
    return parse_options({"path": "/data/store", **given})


# -- options ---------------------------------------------------------------------------------------


def test_names_are_of_any_case_and_values_are_typed() -> None:
    """Spark hands names on in lower case."""
    found = parse_options({
        "PATH": "/data/store", "SUBSCRIBE": "a, b", "maxbytesperpartition": "64M", "FailOnDataLoss": "FALSE",
        "mode": "failfast", "QUEUEID": "0-2,7", "startingTimestamp": "1700000000000", "columns": "topic,body",
        "keys": '["a,b"]', "includeBody": "false", "startingPhysicalOffset": "12", "subExpression": "A || B",
    })  # fmt: skip
    assert found.paths == ("/data/store",)
    assert found.topics == ("a", "b")
    assert found.max_bytes_per_partition == 64 << 20
    assert (found.fail_on_data_loss, found.mode, found.queues) == (False, "FAILFAST", (0, 1, 2, 7))
    assert (found.since, found.from_offset, found.keys) == (1_700_000_000_000, 12, ("a,b",))
    assert (found.columns, found.include_body, found.tags) == (("topic", "body"), False, ("A", "B"))
    assert pickle.loads(pickle.dumps(found)) == found
    assert len({name.lower() for name in OPTION_NAMES}) == len(OPTION_NAMES)


def test_options_of_a_cluster_are_taken_and_do_nothing() -> None:
    """A Kafka query, or one of rocketmq-spark, runs unchanged."""
    given = {
        "kafka.bootstrap.servers": "h:1",
        "nameServer": "h:2",
        "groupIdPrefix": "g",
        "pullBatchSize": "3",
    }
    assert options(**given) == options()


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"subscribee": "a"}, ["subscribee"]),
        ({"subscribe": "a", "assign": '{"a":[0]}'}, ["subscribe", "assign"]),
        ({"subscribe": "a", "topics": "a*"}, ["subscribe", "topics"]),
        ({"tags": "a", "subExpression": "a"}, ["tags", "subExpression"]),
        ({"startingTimestamp": "5", "endingTimestamp": "4"}, ["startingTimestamp", "endingTimestamp"]),
        ({"startingPhysicalOffset": "5", "endingPhysicalOffset": "4"}, ["startingPhysicalOffset"]),
        ({"startingOffsets": '{"a":{"0":1}}'}, ["startingOffsets"]),
        ({"endingOffsets": "earliest"}, ["endingOffsets"]),
        ({"subscribe": "a", "endingOffsets": '{"a":{"0":-2}}'}, ["endingOffsets"]),
        ({"subscribe": "a", "startingOffsets": '{"a":{"0":"x"}}'}, ["startingOffsets"]),
        ({"subscribe": "a", "startingOffsets": "soon"}, ["startingOffsets"]),
        ({"subscribe": "a", "startingOffsets": '{"a":{"b":{"0":1},"0":1}}'}, ["startingOffsets"]),
        ({"assign": '{"a":[0,0]}'}, ["assign"]),
        ({"assign": '{"a":0}'}, ["assign"]),
        ({"assign": "[" * 100_000}, ["assign"]),
        ({"includeHeaders": "true"}, ["includeHeaders", "columnSet"]),
        ({"minOffsetsPerTrigger": "9", "maxOffsetsPerTrigger": "8"}, ["minOffsets", "maxOffsetsPerTrigger"]),
        ({"minOffsetsPerTrigger": "zzz"}, ["minOffsetsPerTrigger"]),
        ({"maxTriggerDelay": "soon"}, ["maxTriggerDelay", "15m"]),
        ({"filter": "a ="}, ["filter"]),
        ({"mode": "LOOSE"}, ["mode", "PERMISSIVE"]),
        ({"columnSet": "parquet"}, ["columnSet", "rocketmq"]),
        ({"minPartitions": "0"}, ["minPartitions"]),
        ({"startingPhysicalOffset": "9" * 23}, ["startingPhysicalOffset", "from 0 to 9223372036854775807"]),
        ({"columnSet": "kafka", "columns": "key,value"}, ["columnSet", "columns"]),
        ({"maxBytesPerPartition": "many"}, ["maxBytesPerPartition"]),
        ({"failOnDataLoss": "1"}, ["failOnDataLoss"]),
        ({"queueId": "5-2"}, ["queueId"]),
        ({"queueId": "0-999999999"}, ["queueId"]),
        ({"subscribePattern": "a("}, ["subscribePattern"]),
        ({"startingTimestamp": "tomorrow"}, ["startingTimestamp"]),
        ({"subscribe": " , "}, ["subscribe"]),
        ({"keys": "[1]"}, ["keys"]),
        ({"paths": '["/a"]'}, ["path", "paths"]),
        ({"path": "[]"}, ["path"]),
        ({"brokerName": "a,a"}, ["brokerName"]),
        ({"via": "guess"}, ["via"]),
        ({"table": "queues"}, ["table", "units", "index_entries"]),
        ({"table": "units", "tags": "a"}, ["table=units", "tags"]),
        ({"table": "units", "columnSet": "full"}, ["table=units", "columnSet"]),
        ({"table": "index_entries", "SUBSCRIBE": "a"}, ["table=index_entries", "subscribe"]),
    ],
)  # fmt: skip
def test_what_makes_no_sense_is_named(given: dict[str, str], words: list[str]) -> None:
    with pytest.raises(UsageError) as error:
        options(**given)
    for word in words:
        assert word.lower() in error.value.message.lower()


def test_kafkas_precedence() -> None:
    """A time wins over times by queue, those win over offsets; what is not looked at is not judged."""
    found = options(startingTimestamp="7", startingOffsetsByTimestamp="?", startingOffsets="?")
    assert (found.since, found.starting) == (7, None)
    found = options(subscribe="a", endingOffsetsByTimestamp='{"a":{"0":9}}', endingOffsets="?")
    assert found.ending == Bound("times", ((QueueName("a", None, 0), 9),))
    found = options(subscribe="a", startingOffsets='{"a":{"broker-a":{"0":23,"1":-2}}}')
    assert found.starting == Bound(
        "offsets", ((QueueName("a", "broker-a", 0), 23), (QueueName("a", "broker-a", 1), -2))
    )


def test_what_opens_a_storage_is_not_shown() -> None:
    """Not by the options, and not by the source, whose text Spark puts into its messages."""
    from rmqtool.spark.source import RocketMQStoreSource

    given = {"path": "s3://bucket/store", "storage.secret_key": "HUNTER2"}
    assert parse_options(given).storage == (("secret_key", "HUNTER2"),)
    assert "HUNTER2" not in repr(parse_options(given)) + repr(RocketMQStoreSource(given))


# -- places ----------------------------------------------------------------------------------------


def test_stores_are_a_path_a_list_or_a_glob(tmp_path: Path, cases: Library) -> None:
    """A glob takes the stores among what it matches; names tell them apart."""
    for broker, name in (("broker-a", "ok_540_small_ipv6"), ("broker-b", "ok_540_small_propcrc")):
        (tmp_path / broker).mkdir()
        (tmp_path / broker / "store").symlink_to(cases.path(name))
    (tmp_path / "broker-c" / "store").mkdir(parents=True)
    (tmp_path / "broker-c" / "store" / "notes.txt").write_text("no store")
    found = find_places(parse_options({"path": str(tmp_path / "broker-*" / "store")}))
    assert [place.broker_name for place in found] == ["broker-a", "broker-b"]
    paths = [str(tmp_path / broker / "store") for broker in ("broker-b", "broker-a")]
    found = find_places(parse_options({"path": json.dumps(paths), "brokerName": "x,y"}))
    assert [(place.path, place.broker_name) for place in found] == list(zip(paths, "xy", strict=True))
    named = {"path": json.dumps(paths), "brokerName": json.dumps({paths[0]: "x"})}
    assert [place.broker_name for place in find_places(parse_options(named))] == ["x", "broker-a"]
    assert [place.broker_name for place in find_places(parse_options({"path": paths[0]}))] == ["broker-b"]
    twice = json.dumps([paths[0], str(cases.path("ok_540_small_propcrc"))])
    with pytest.raises(UsageError, match="named twice"):
        find_places(parse_options({"path": twice}))
    for wrong in ({"brokerName": "x"}, {"brokerName": '{"/nowhere":"x"}'}):
        with pytest.raises(UsageError, match="brokerName"):
            find_places(parse_options({"path": json.dumps(paths), **wrong}))
    for pattern in ("nothing-*", "broker-c/*"):
        with pytest.raises(NotAStoreError):
            find_places(parse_options({"path": str(tmp_path / pattern)}))
    with pytest.raises(UsageError, match="path"):
        find_places(parse_options({}))


def test_the_name_of_a_url_holds_no_user() -> None:
    found = find_places(
        parse_options({"path": '["s3://key:secret@one/store?k=v", "s3://key:secret@two/store"]'})
    )
    assert [place.broker_name for place in found] == ["one", "two"]


# -- columns ---------------------------------------------------------------------------------------


def test_column_sets() -> None:
    """Those of RocketMQ's connector come first, with its types; Kafka's are Kafka's."""
    nine = ("`topic` string, `flag` int, `body` binary, `properties` string, `brokerName` string, "
            "`queueId` int, `queueOffset` bigint, `bornTimestamp` timestamp, "
            "`storeTimestamp` timestamp")  # fmt: skip
    assert ddl(columns_by_options(options())).startswith(nine)
    kafka = ("`key` binary, `value` binary, `topic` string, `partition` int, `offset` bigint, `timestamp` "
             "timestamp, `timestampType` int")  # fmt: skip
    assert ddl(columns_by_options(options(columnSet="kafka"))) == kafka
    assert ddl(columns_by_options(options(columnSet="kafka", includeHeaders="true"))).endswith(
        "`headers` array<struct<key:string,value:binary>>"
    )
    assert "`properties` map<string,string>" in ddl(columns_by_options(options(columnSet="full")))
    assert ddl(columns_by_options(options(columns="QUEUEID,physical_offset,_corrupt_record"))) == (
        "`queueId` int, `physicalOffset` bigint, `_corrupt_record` string"
    )
    assert {"rocketmq", "kafka", "minimal", "full"} == set(COLUMN_SETS)


@pytest.mark.parametrize(
    ("schema", "word"),
    [
        ([("topik", "string")], "topik"),
        ([("queueId", "string")], "queueId"),
        ([("topic", "string"), ("TOPIC", "string")], "TOPIC"),
        ([("storeTimestamp", "timestamp_ntz")], "storeTimestamp"),
        ([("size", "smallint")], "size"),
        ([], "column"),
    ],
)  # fmt: skip
def test_wrong_schemas_name_the_column(schema: list[tuple[str, str]], word: str) -> None:
    with pytest.raises(UsageError, match=word):
        columns_by_schema(schema, "_corrupt_record")
    asked = columns_by_schema([("Queue_Id", "bigint"), ("body", "string"), ("_bad", "string")], "_bad")
    assert [each.name for each in asked] == ["Queue_Id", "body", "_bad"]


# -- what is wanted --------------------------------------------------------------------------------


def test_options_are_of_reading_or_of_writing() -> None:
    """One for the other is an error that names it, and so is a schema beside `columns`."""
    wrong: dict[str, str]
    for wrong in ({"write.cluster": "x"}, {"order": "storeTimestamp"}):
        with pytest.raises(UsageError, match=next(iter(wrong))):
            check_read(options(**wrong))
    for wrong in ({"subscribe": "a"}, {"keys": "k"}, {"filter": "a = 1"}, {"startingTimestamp": "5"},
                  {"endingOffsets": "latest"}, {"table": "units"}):  # fmt: skip
        with pytest.raises(UsageError, match=next(iter(wrong))):
            check_write(options(**wrong))
    check_read(options(subscribe="a"))
    check_write(options(order="storeTimestamp"))
    topic = struct(columns_by_schema([("topic", "string")], "_corrupt_record"))
    assert requested_columns(topic, options(columns="topic"))
    with pytest.raises(UsageError, match="contradict"):
        requested_columns(topic, options(columns="size,topic"))


def test_a_column_is_named_once() -> None:
    """Whatever the case of its name."""
    for names in ("topic,topic", "topic,TOPIC", '["topic", "topic"]'):
        with pytest.raises(UsageError, match=r"option columns: column topic appears twice"):
            columns_by_options(parse_options({"columns": names}))


def test_the_corrupt_column_has_a_name_of_its_own() -> None:
    for name in ("topic", "TOPIC", "queue_id"):
        with pytest.raises(UsageError, match="columnNameOfCorruptRecord"):
            columns_by_options(options(columnNameOfCorruptRecord=name))


def test_patterns_become_globs_where_they_can() -> None:
    assert globs_of_pattern("order-.*|pay.") == {"order-*", "pay?"}
    assert globs_of_pattern("%RETRY%group") == {"%RETRY%group"}
    for pattern in ("a+", "a*", "[ab]", "(a|b)", "a\\.b", "^a", "a.*?"):
        assert globs_of_pattern(pattern) is None


def test_options_and_filters_are_joined() -> None:
    """Sets are cut with each other, ranges too; what cannot be is no request at all."""
    found = build_request(options(subscribe="a,b,c[1]"), Pushed(topics=frozenset(("b", "c[1]", "d"))))
    assert found is not None
    assert found.selection.topics == {"b", "c[[]1]"}
    assert build_request(options(subscribe="a"), Pushed(topics=frozenset("b"))) is None
    assert build_request(options(queueId="1"), Pushed(queues=frozenset((2,)))) is None
    assert build_request(options(tags="a"), Pushed(tags=frozenset("b"))) is None
    assert build_request(options(startingTimestamp="10"), Pushed(store_times=(None, 10))) is None
    assert build_request(options(), Pushed(physical_offsets=(None, 0))) is None
    found = build_request(
        options(startingTimestamp="10", endingPhysicalOffset="100"),
        Pushed(store_times=(5, 20), physical_offsets=(-5, None)),
    )
    assert found is not None
    assert found.selection == Selection(since=10, until=20, from_offset=0, to_offset=100)
    found = build_request(options(subscribePattern="a+"), Pushed(topics=frozenset(("aa", "b"))))
    assert found is not None
    assert (found.selection.topics, found.rest.topic_pattern) == ({"aa"}, "a+")
    found = build_request(options(), Pushed(topic_prefix="or*"))
    assert found is not None
    assert found.selection.topics == {"or[*]*"}
    ranges = (QueueRange("a", 0, 5, 9), QueueRange("b", 1, 7, 7), QueueRange("c", 2))
    found = build_request(options(), Pushed(topics=frozenset(("a", "b"))), ranges)
    assert found is not None
    assert found.rest.queues == (QueueRange("a", 0, 5, 9),)
    assert build_request(options(queueId="9"), NOTHING_PUSHED, ranges) is None


UTC_TIME = datetime(2026, 1, 2, 3, 4, 5, 678_000, tzinfo=UTC)
MS = 1_767_323_045_678


def pushed(*filters: Any) -> Pushed:
    return pushed_of(filters, "_corrupt_record")


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        (
            [spark.EqualTo(("topic",), "a"), spark.In(("topic",), ("a", None, "b"))],
            Pushed(topics=frozenset("a")),
        ),
        ([spark.EqualNullSafe(("PARTITION",), 3)], Pushed(queues=frozenset((3,)))),
        (
            [spark.GreaterThan(("queueOffset",), 3), spark.LessThanOrEqual(("offset",), 9)],
            Pushed(queue_offsets=(4, 10)),
        ),
        ([spark.In(("physicalOffset",), (7, 3))], Pushed(physical_offsets=(3, 8))),
        ([spark.GreaterThanOrEqual(("timestamp",), UTC_TIME)], Pushed(store_times=(MS, None))),
        ([spark.LessThan(("storeTimestamp",), UTC_TIME)], Pushed(store_times=(None, MS))),
        (
            [spark.LessThan(("storeTimestamp",), UTC_TIME + timedelta(microseconds=1))],
            Pushed(store_times=(None, MS + 1)),
        ),
        (
            [spark.GreaterThanOrEqual(("storeTimestamp",), UTC_TIME + timedelta(microseconds=1))],
            Pushed(store_times=(MS + 1, None)),
        ),
        (
            [spark.EqualTo(("storeTimestamp",), UTC_TIME.astimezone(timezone(timedelta(hours=8))))],
            Pushed(store_times=(MS, MS + 1)),
        ),
        ([spark.EqualTo(("storeTimestampMs",), MS)], Pushed(store_times=(MS, MS + 1))),
        (
            [spark.StringStartsWith(("topic",), "or"), spark.StringStartsWith(("topic",), "order")],
            Pushed(topic_prefix="order"),
        ),
        (
            [spark.EqualTo(("tags",), "a"), spark.EqualTo(("uniqKey",), "u")],
            Pushed(tags=frozenset("a"), keys=frozenset("u")),
        ),
        ([spark.EqualTo(("key",), b"k1")], Pushed(keys=frozenset(("k1",)))),
        ([spark.EqualTo(("brokerName",), "b")], Pushed(brokers=frozenset("b"))),
        # What says nothing about reading less:
        (
            [
                spark.EqualTo(("key",), b"k1 k2"),
                spark.EqualTo(("key",), b"\xff"),
                spark.EqualTo(("key",), b""),
            ],
            Pushed(),
        ),
        (
            [
                spark.Not(spark.EqualTo(("topic",), "a")),
                spark.IsNull(("topic",)),
                spark.IsNotNull(("topic",)),
            ],
            Pushed(),
        ),
        (
            [
                spark.EqualNullSafe(("topic",), None),
                spark.EqualTo(("size",), 4),
                spark.StringContains(("topic",), "a"),
            ],
            Pushed(),
        ),
        ([spark.EqualTo(("bornTimestamp",), UTC_TIME), spark.EqualTo(("no", "where"), 1)], Pushed()),
    ],
)
def test_filters_say_what_need_not_be_read(filters: list[Any], expected: Pushed) -> None:
    assert pushed(*filters) == expected
