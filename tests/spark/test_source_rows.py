"""Rows as tasks give them are the library's, field by field; without a session, so on many stores."""

from __future__ import annotations

import json
import math
import pickle
import re
from pathlib import Path
from typing import Any

import pytest

from rmqtool.errors import InputError, UsageError
from rmqtool.read.pushed import Pushed
from rmqtool.read.selection import Selection
from rmqtool.read.store import Store
from rmqtool.spark.bounds import DataLossError
from rmqtool.spark.options import parse_options
from rmqtool.spark.partitions import plan_scan, unit_places
from rmqtool.spark.pushdown import pushed_of
from tests.spark.frames import Row, library_rows, read, read_pieces, read_table
from tests.support.stores import Library, case_names
from tests.support.sweep import in_sweeps

pytestmark = pytest.mark.sweep

CLEAN = "ok_540_clean"
STORES = (
    *in_sweeps([CLEAN, "torn_540_killed_burst"]),  # the messages of CLEAN are in stores with damage too
    "ok_497_small_ipv6", "ok_533_small_propcrc", "ok_540_expired", "torn_533_killed",
    "bad_cl03_body_crc", "bad_cl06_foreign_record", "bad_cl09_property_crc", "bad_cl13_bad_properties",
    "bad_cl14_bad_body", "bad_cl04_wrong_length", "bad_cl05_unknown_magic", "gap_cl02_zero_hole",
    "gap_cl20_missing_file", "bad_cl10_bad_blank", "old_un01_tiered", "kind_tiered_540/tiered",
    "kind_compaction_540/compaction", "kind_dledger_540", "kind_rocksdb_540", "bad_dl01_entry_header",
)  # fmt: skip
SMALL = {"columnSet": "minimal"}


def plain(row: Row) -> Row:
    """A row that can be compared: nothing in it is a list that could be in another order."""
    return {name: tuple(value) if isinstance(value, list) else value for name, value in row.items()}


def test_the_stores_are_there() -> None:
    assert {name.partition("/")[0] for name in STORES} <= set(case_names())


@pytest.mark.parametrize("name", STORES)
def test_every_column_of_every_record(cases: Library, name: str) -> None:
    """`full` in pieces: records, damaged ones with their status, and a row for each bad range."""
    folder, _, inner = name.partition("/")
    path = cases.path(folder) / inner
    expected, findings = library_rows(path)
    found = read({"path": str(path), "columnSet": "full", "minPartitions": "7", "brokerName": "b"})
    assert {row.pop("brokerName") for row in found} == {"b"}
    records = [row for row in found if row["topic"] is not None]
    assert records == expected
    places = {row["physicalOffset"] for row in expected}
    bad = [each for each in findings if each.problem.severity != "note" and each.physical_offset is not None]
    ranges = [each for each in bad if each.physical_offset not in places]
    assert {(row["physicalOffset"], *row["status"]) for row in found if row["topic"] is None} == {
        (each.physical_offset, each.problem.code) for each in ranges
    }


def test_the_other_column_sets(cases: Library) -> None:
    """RocketMQ's connector, Kafka's and the minimal columns hold the same values under their names."""
    path = str(cases.path(CLEAN))
    full = read({"path": path, "columnSet": "full"})
    rocketmq = read({"path": path, "brokerName": "b"})
    for row, expected in zip(rocketmq, full, strict=True):
        assert json.loads(row.pop("properties")) == dict(expected["properties"])
        assert row.pop("brokerName") == "b"
        assert row == {name: expected[name] for name in row}
    kafka = read({"path": path, "columnSet": "kafka", "includeHeaders": "true"})
    for row, expected in zip(kafka, full, strict=True):
        properties = dict(expected["properties"])
        keys = properties.get("KEYS")
        assert row == {
            "key": None if keys is None else keys.encode(), "value": expected["body"],
            "topic": expected["topic"], "partition": expected["queueId"], "offset": expected["queueOffset"],
            "timestamp": expected["storeTimestamp"], "timestampType": 1,
            "headers": [{"key": key, "value": value.encode()} for key, value in properties.items()] or None,
        }  # fmt: skip
    for row, expected in zip(read({"path": path, **SMALL}), full, strict=True):
        assert row == {name: expected[name] for name in row}


def test_a_schema_of_the_users(cases: Library) -> None:
    """Names in any case, wider numbers, texts for bytes and lists; nothing else is read."""
    path = cases.path(CLEAN)
    schema = [("TOPIC", "string"), ("queueid", "bigint"), ("Body", "string"), ("keys", "string"),
              ("status", "string"), ("propertiesJson", "string"),
              ("properties", "map<string,string>"), ("position", "bigint"),
              ("physicalOffset", "bigint"), ("file", "string")]  # fmt: skip
    expected, _ = library_rows(path)
    for row, known in zip(read({"path": str(path)}, schema), expected, strict=True):
        assert row["TOPIC"] == known["topic"]
        assert row["Body"] == (known["body"] or b"").decode("utf-8", "replace")
        assert row["keys"] == (" ".join(known["keys"]) or None)
        assert (row["status"], row["queueid"]) == ("ok", known["queueId"])
        assert row["position"] == row["physicalOffset"] - int(row["file"].rpartition("/")[2])
        assert json.loads(row["propertiesJson"]) == dict(row["properties"]) == dict(known["properties"])


def test_bodies_as_stored_and_none(cases: Library) -> None:
    path = cases.path(CLEAN)
    with Store.open(path) as store:
        stored = [each.message.body for each in store.messages()]
    columns = {"columns": "body,bodyLength,bodyCompression"}
    found = read({"path": str(path), "decompress": "false", **columns})
    assert [row["body"] for row in found] == stored
    assert {row["bodyCompression"] for row in found} > {"none"}
    assert {row["body"] for row in read({"path": str(path), "includeBody": "false", **columns})} == {None}


def test_batches_are_bounded(cases: Library) -> None:
    path = str(cases.path(CLEAN))
    table = read_table({"path": path, "columns": "topic,body", "maxRowsPerBatch": "100"})
    assert max(len(batch) for batch in table.to_batches()) <= 100
    table = read_table({"path": path, "columns": "topic,body", "maxBytesPerBatch": "64K"})
    assert all(batch.nbytes <= 70_000 or len(batch) == 1 for batch in table.to_batches())
    assert len(table) == 4099


# -- partitions ------------------------------------------------------------------------------------


def test_pieces_cover_the_log_once(cases: Library) -> None:
    """However it is divided the rows are the same ones, and a piece is a small pickle."""
    path = cases.path(CLEAN)
    whole = read({"path": str(path), **SMALL})
    for given in (
        {"minPartitions": "13"},
        {"maxBytesPerPartition": "100K"},
        {"maxRecordsPerPartition": "97"},
    ):
        settings = parse_options({"path": str(path), **SMALL, **given})
        plan = plan_scan(settings)
        assert read_pieces(plan, settings).to_pylist() == whole
        assert max(len(pickle.dumps(piece)) for piece in plan.pieces) < 1500
        with Store.open(path) as store:
            places = unit_places(store)
        sizes = [piece.access.bytes_read for piece in plan.pieces]
        if "minPartitions" in given:
            assert 13 <= len(plan.pieces) <= 26
        elif "maxBytesPerPartition" in given:
            largest = max(row["size"] for row in whole)
            assert sorted(sizes)[-2] <= (100 << 10) * 3 // 2 + largest  # the last has the zeros
        else:
            counts = [
                sum(1 for place in places if any(r.start <= place < r.stop for r in piece.access.ranges))
                for piece in plan.pieces
            ]
            assert max(counts) <= 97
            assert len(counts) <= 3 * math.ceil(sum(counts) / 97)


def test_several_stores_are_one_read(cases: Library) -> None:
    """Rows name their broker; a filter on it leaves the other stores alone."""
    names = ("ok_540_small_ipv6", "ok_497_small_ipv6")
    paths = [str(cases.path(name)) for name in names]
    given = {"path": json.dumps(paths), "columns": "brokerName,topic,physicalOffset"}
    found = read(given)
    for name, path in zip(names, paths, strict=True):
        mine = [(row["topic"], row["physicalOffset"]) for row in found if row["brokerName"] == name]
        expected, _ = library_rows(Path(path))
        assert mine == [(row["topic"], row["physicalOffset"]) for row in expected]
    plan = plan_scan(parse_options(given), Pushed(brokers=frozenset(names[1:])))
    assert [store.access is None for store in plan.stores] == [True, False]
    assert {piece.place.broker_name for piece in plan.pieces} == {names[1]}
    with pytest.raises(UsageError, match="startingPhysicalOffset"):
        plan_scan(
            parse_options(
                {"path": str(Path(paths[0]).parent / "ok_*_small_ipv6"), "startingPhysicalOffset": "1"}
            )
        )


# -- selections ------------------------------------------------------------------------------------


def selections(path: Path) -> list[tuple[dict[str, str], Selection | Any]]:
    """Options and what they select: a Selection, or a test of library rows."""
    rows, _ = library_rows(path)
    topic = "pubTopicOne"
    mine = [row for row in rows if row["topic"] == topic]
    middle = rows[len(rows) // 2]
    uniq = next(row["uniqKey"] for row in rows if row["uniqKey"])
    key = next(row["keys"][0] for row in mine if row["keys"])
    tag = next(row["tags"] for row in mine if row["tags"])
    ms, until = middle["storeTimestampMs"], middle["storeTimestampMs"] + 5_000
    queue = {row["queueId"] for row in mine}.pop()
    return [
        ({"subscribe": topic}, Selection(topics=(topic,))),
        ({"subscribe": "pubTopicOne,pub-Topic_Four"}, Selection(topics=(topic, "pub-Topic_Four"))),
        ({"topics": "pub*", "excludeTopics": "pubTopic*"},
         Selection(topics=("pub*",), exclude_topics=("pubTopic*",))),
        ({"subscribePattern": "pub-?Topic.*"}, lambda row: re.fullmatch("pub-?Topic.*", row["topic"])),
        ({"subscribePattern": "pubTopic.*|pubTx"}, Selection(topics=("pubTopic*", "pubTx"))),
        ({"queueId": "0,2"}, Selection(queues=(0, 2))),
        ({"tags": tag}, Selection(tags=(tag,))),
        ({"keys": key}, Selection(keys=(key,))),
        ({"keys": json.dumps([uniq])}, Selection(keys=(uniq,))),
        ({"subscribe": topic, "keys": key}, Selection(topics=(topic,), keys=(key,))),
        ({"startingTimestamp": str(ms), "endingTimestamp": str(until)}, Selection(since=ms, until=until)),
        ({"startingPhysicalOffset": str(middle["physicalOffset"] - 1)},
         Selection(from_offset=middle["physicalOffset"] - 1)),
        ({"endingPhysicalOffset": str(middle["physicalOffset"] + 1)},
         Selection(to_offset=middle["physicalOffset"] + 1)),
        ({"assign": json.dumps({topic: [queue], "pubTx": [0]})},
         lambda row: (row["topic"], row["queueId"]) in ((topic, queue), ("pubTx", 0))),
    ]  # fmt: skip


def test_every_selection_by_every_way(cases: Library) -> None:
    """Log, queues, index, or what the planner takes: the same rows, those of the library's selection."""
    path = cases.path(CLEAN)
    everything, _ = library_rows(path)
    given = {"path": str(path), "columns": "physicalOffset,topic", "minPartitions": "2"}
    kinds = set()
    for options, wanted in selections(path):
        if isinstance(wanted, Selection):
            with Store.open(path) as store:
                expected = [each.physical_offset for each in store.messages(wanted)]
        else:
            expected = [row["physicalOffset"] for row in everything if wanted(row)]
        assert expected
        others = ("commitlog", "consumequeue", "index") if set(options) <= {"subscribe", "keys"} else ()
        for via in ("auto", *others):
            settings = parse_options({**given, **options, "via": via})
            plan = plan_scan(settings)
            kinds.add(plan.stores[0].access and plan.stores[0].access.kind)
            found = read_pieces(plan, settings).column("physicalOffset").to_pylist()
            assert found == expected, (options, via)
            if via == "commitlog":
                assert plan.stores[0].access is not None
                assert plan.stores[0].access.kind == "log"
    assert kinds >= {"log", "queue"}


def test_queue_offsets_bound_a_read(cases: Library) -> None:
    """Offsets by queue, with -2 and -1, two levels or three; half-open."""
    path = cases.path(CLEAN)
    rows, _ = library_rows(path)
    with Store.open(path) as store:
        queues = [queue for topic, queue in store.queues if topic == "pubTopicOne"]
        ends = {queue: store.max_offset("pubTopicOne", queue) for queue in queues}
    starts = {queue: (3 if place % 2 else -2) for place, queue in enumerate(queues)}
    stops = {queue: (ends[queue] - 2 if place % 3 else -1) for place, queue in enumerate(queues)}
    for levels in (2, 3):

        def spelled(values: dict[int, int], levels: int = levels) -> str:
            inner: Any = {str(queue): value for queue, value in values.items()}
            return json.dumps({"pubTopicOne": inner if levels == 2 else {"b": inner}})

        found = read({
            "path": str(path), "brokerName": "b", "subscribe": "pubTopicOne", **SMALL,
            "startingOffsets": spelled(starts), "endingOffsets": spelled(stops),
        })  # fmt: skip
        expected = [
            (row["queueId"], row["queueOffset"])
            for row in rows
            if row["topic"] == "pubTopicOne"
            and max(starts[row["queueId"]], 0) <= row["queueOffset"]
            and (stops[row["queueId"]] < 0 or row["queueOffset"] < stops[row["queueId"]])
        ]
        assert [(row["queueId"], row["queueOffset"]) for row in found] == expected


def test_times_by_queue_bound_a_read(cases: Library) -> None:
    path = cases.path(CLEAN)
    rows = [row for row in library_rows(path)[0] if row["topic"] == "pubTx"]
    middle = sorted(row["storeTimestampMs"] for row in rows)[len(rows) // 2]
    queues = {str(row["queueId"]) for row in rows}
    with Store.open(path) as store:
        queues |= {str(queue) for topic, queue in store.queues if topic == "pubTx"}
    given = {"path": str(path), "subscribe": "pubTx", **SMALL}
    times = json.dumps({"pubTx": dict.fromkeys(queues, middle)})
    since = read({**given, "startingOffsetsByTimestamp": times})
    until = read({**given, "endingOffsetsByTimestamp": times})
    assert [row["physicalOffset"] for row in since] == [
        row["physicalOffset"] for row in rows if row["storeTimestampMs"] >= middle
    ]
    assert len(since) + len(until) == len(rows)
    late = json.dumps({"pubTx": dict.fromkeys(queues, 1 << 50)})
    assert read({**given, "startingOffsetsByTimestamp": late}) == []
    with pytest.raises(UsageError, match="startingOffsetsByTimestamp"):
        read({**given, "startingOffsetsByTimestamp": late, "startingOffsetsByTimestampStrategy": "error"})


@pytest.mark.parametrize(
    ("offsets", "error"),
    [
        ({"startingOffsets": '{"pubTx":{"0":0}}'}, UsageError),  # lacks the others
        ({"startingOffsets": '{"pubTx":{"0":0,"1":0,"2":0,"3":0,"9":0}}'}, UsageError),
        ({"startingOffsets": '{"pubTx":{"0":-1,"1":0,"2":0,"3":0}}'}, UsageError),
        ({"startingOffsets": "latest"}, UsageError),
        ({"startingOffsets": '{"pubTx":{"0":99,"1":0,"2":0,"3":0}}'}, DataLossError),
        ({"startingOffsets": '{"pubTx":{"c":{"0":0}}}'}, UsageError),
    ],
)  # fmt: skip
def test_offsets_that_do_not_fit_are_errors(
    cases: Library, offsets: dict[str, str], error: type[InputError]
) -> None:
    """As Kafka has it: every queue that is read, no other, and only offsets that are there."""
    path = cases.path(CLEAN)
    with Store.open(path) as store:
        queues = [queue for topic, queue in store.queues if topic == "pubTx"]
    given = {"path": str(path), "subscribe": "pubTx", **SMALL}
    if queues != [0, 1, 2, 3]:
        offsets = {name: re.sub(r',"[123]":0', "", text) for name, text in offsets.items()}
        if offsets["startingOffsets"] == '{"pubTx":{"0":0}}':
            offsets = {"startingOffsets": '{"pubTx":{"8":0}}'}
    with pytest.raises(error):
        read({**given, **offsets})


def test_what_has_expired_is_data_loss(cases: Library) -> None:
    """An error, or the rest with a warning."""
    path = cases.path("ok_540_expired")
    with Store.open(path) as store:
        topic, queue = next(key for key in store.queues if store.min_offset(*key) > 0)
        low, high = store.min_offset(topic, queue), store.max_offset(topic, queue)
        others = {str(other): -2 for name, other in store.queues if name == topic and other != queue}
    given = {"path": str(path), "subscribe": topic, "columns": "queueId,queueOffset",
             "startingOffsets": json.dumps({topic: {str(queue): 0, **others}})}  # fmt: skip
    with pytest.raises(DataLossError, match="startingOffsets"):
        read(given)
    with pytest.warns(UserWarning, match="startingOffsets"):
        found = read({**given, "failOnDataLoss": "false"})
    assert sorted(row["queueOffset"] for row in found if row["queueId"] == queue) == list(range(low, high))


# -- filters ---------------------------------------------------------------------------------------


def test_filters_change_nothing_but_what_is_read(cases: Library) -> None:
    """Rows after Spark's own test are the same with filters pushed or not, also on damaged stores."""
    from pyspark.sql import datasource as spark

    for name in (CLEAN, "bad_cl04_wrong_length", "gap_cl02_zero_hole", "ok_540_expired"):
        path = cases.path(name)
        settings = parse_options({"path": str(path), "columnSet": "full", "minPartitions": "2"})
        rows = read_pieces(plan_scan(settings), settings).to_pylist()
        records = [row for row in rows if row["topic"] is not None]
        middle = records[len(records) // 2]
        bad = [row for row in rows if row["topic"] is None]
        offsets = [middle["physicalOffset"], *(row["physicalOffset"] + 1 for row in bad)]
        filters: list[list[Any]] = [
            [spark.EqualTo(("topic",), middle["topic"])],
            [spark.EqualTo(("topic",), middle["topic"]), spark.EqualTo(("queueId",), middle["queueId"]),
             spark.LessThanOrEqual(("queueOffset",), middle["queueOffset"])],
            [spark.GreaterThan(("queueOffset",), 4)],
            [spark.GreaterThanOrEqual(("storeTimestamp",), middle["storeTimestamp"])],
            [spark.LessThan(("storeTimestamp",), middle["storeTimestamp"])],
            [spark.EqualTo(("tags",), middle["tags"] or "none")],
            [spark.EqualTo(("uniqKey",), middle["uniqKey"] or "none")],
            *([spark.GreaterThanOrEqual(("physicalOffset",), at)] for at in offsets),
            *([spark.LessThan(("physicalOffset",), at)] for at in offsets),
        ]  # fmt: skip
        for each in filters:
            pieces = plan_scan(settings, pushed_of(each, "_corrupt_record"))
            found = read_pieces(pieces, settings).to_pylist()
            expected = [plain(row) for row in rows if all(passes(one, row) for one in each)]
            got = [plain(row) for row in found if all(passes(one, row) for one in each)]
            assert sorted(got, key=str) == sorted(expected, key=str), (name, each)


def passes(each: Any, row: Row) -> bool:
    """Spark's own test of a row."""
    value = row[each.attribute[0]]
    if value is None:
        return False
    kind = type(each).__name__
    tests = {"EqualTo": value == each.value, "GreaterThan": value > each.value,
             "LessThan": value < each.value,
             "GreaterThanOrEqual": value >= each.value, "LessThanOrEqual": value <= each.value}  # fmt: skip
    return bool(tests[kind])


# -- damage ----------------------------------------------------------------------------------------


def test_modes(cases: Library, capfd: pytest.CaptureFixture[str]) -> None:
    """Damage is rows that say so, or no rows, or an error that names it."""
    bad = {"path": str(cases.path("bad_cl04_wrong_length"))}
    record = {"path": str(cases.path("bad_cl03_body_crc"))}
    full = read({**bad, "columns": "physicalOffset,size,status,file,_corrupt_record,topic"})
    row = next(row for row in full if row["topic"] is None)
    assert row["status"] == ["CL04"]
    told = json.loads(row["_corrupt_record"])
    assert (told["problem"], told["physical_offset"], told["path"]) == (
        "CL04",
        row["physicalOffset"],
        row["file"],
    )
    named = read({**bad, "columns": "topic,oops", "columnNameOfCorruptRecord": "oops"})
    assert [json.loads(row["oops"])["problem"] for row in named if row["oops"]] == ["CL04"]
    assert "CL04" not in capfd.readouterr().err
    # Where no column can say it the task's log does, and the rows are the messages.
    assert len(read({**bad, **SMALL})) == len(full) - 1
    assert "CL04" in capfd.readouterr().err
    assert len(read({**bad, "columns": "topic,status", "subscribe": "pubipv6B"})) < len(full)
    # It may be what is asked for: options that select by topic do not hide it.
    chosen = read({**bad, "columns": "topic,_corrupt_record", "subscribe": "pubipv6B", "via": "commitlog"})
    assert [json.loads(row["_corrupt_record"])["problem"] for row in chosen if not row["topic"]] == ["CL04"]
    crc = read({**record, "columns": "status,_corrupt_record"})
    assert [json.loads(row["_corrupt_record"])["status"] for row in crc if row["status"] != ["ok"]] == [
        ["CL03"]
    ]
    assert len(read({**record, "columns": "topic", "mode": "DROPMALFORMED"})) == len(crc) - 1
    assert len(read({**bad, "columns": "topic,status", "mode": "DROPMALFORMED"})) == len(full) - 1
    for given, code in ((bad, "CL04"), (record, "CL03")):
        with pytest.raises(InputError, match=code):
            read({**given, "columns": "topic", "mode": "FAILFAST"})
    unchecked = read({**record, "columns": "status", "verifyCrc": "false"})
    assert {tuple(row["status"]) for row in unchecked} == {("ok",)}


def test_a_file_that_goes_while_it_is_read(store_copy: Any) -> None:
    """Between the plan and the task: an error, unless the rest will do."""
    path = store_copy("ok_540_expired")
    given = {"path": str(path), **SMALL, "minPartitions": "2"}
    settings = parse_options(given)
    plan = plan_scan(settings)
    with Store.open(path) as store:
        first = store.layout.commit_log[0]
    first.path.unlink()
    with pytest.raises(DataLossError, match="gone"):
        read_pieces(plan, settings)
    loose = parse_options({**given, "failOnDataLoss": "false"})
    left = read_pieces(plan, loose).column("physicalOffset").to_pylist()
    assert left
    assert min(left) >= first.end
