"""`rmqtool dump --what`: queues, index, checkpoint and configuration."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rmqtool.cli import main
from rmqtool.formats import consume_queue, epoch, index, java
from tests.support.dumps import Dump, Row, facts_of
from tests.support.stores import Library

REAL = ("ok_497_clean", "ok_533_clean", "ok_540_clean", "ok_540_small_ipv6")


@pytest.fixture
def dump(capfdbinary: pytest.CaptureFixture[bytes]) -> Dump:
    """`rmqtool dump` with what it wrote."""
    return Dump(capfdbinary)


@pytest.mark.parametrize("name", REAL)
def test_queue_units_are_those_of_the_records(name: str, cases: Library, dump: Dump) -> None:
    """Every unit names a record of its topic, queue and queue offset."""
    store = cases.path(name)
    records = {fact["physicalOffset"]: fact for fact in facts_of(name)}
    rows = dump(store, "--what", "consumequeue").rows
    assert len(rows) == len(records)
    for row in rows:
        fact = records[row["physical_offset"]]
        assert (row["topic"], row["queue_id"], row["size"]) == (
            fact["topic"], fact["queueId"], fact["storeSize"],
        )  # fmt: skip
        assert row["queue_offset"] == fact["queueOffset"]
        if row["topic"] == "SCHEDULE_TOPIC_XXXX":
            assert row["deliver_timestamp_ms"] > fact["storeTimestamp"]
        else:
            assert row["tags_code"] == java.tags_code((fact["properties"] or {}).get("TAGS"))


def test_queue_selections(cases: Library, dump: Dump) -> None:
    """Topic, queue, queue offsets, tag by hash, limit, reverse."""
    store = cases.path("ok_540_clean")
    queue = ("--what", "consumequeue", "--topic", "pubTopicOne")
    rows = dump(store, *queue).rows
    assert [row["queue_offset"] for row in rows] == list(range(len(rows)))
    some = dump(store, *queue, "--from-offset", 10, "--to-offset", 20).rows
    assert some == rows[10:20]
    assert dump(store, *queue, "--reverse", "--limit", 3).rows == rows[:-4:-1]
    tagged = dump(store, *queue, "--tag", "TagA").rows
    assert tagged == [row for row in rows if row["tags_code"] == java.tags_code("TagA")] != []
    assert dump(store, *queue, "--key", "x").code == 2
    unit = dump(store, *queue, "--explain", 7)
    assert unit.rows[0]["value"] == str(rows[7]["physical_offset"])
    assert dump(store, "--what", "consumequeue", "--explain", 7).code == 2


def test_a_late_queue_shows_its_fillers_only_as_gaps(cases: Library, dump: Dump, tmp_path: Path) -> None:
    """A broker fills a queue's first file with fillers when the queue starts late."""
    units = consume_queue.encode_unit(consume_queue.PRE_BLANK) * 2
    units += consume_queue.encode_unit(consume_queue.Unit(500, 100, 0))
    (tmp_path / "commitlog").mkdir()
    folder = tmp_path / "consumequeue" / "T" / "0"
    folder.mkdir(parents=True)
    (folder / ("0" * 20)).write_bytes(units.ljust(200, b"\0"))
    assert [row["queue_offset"] for row in dump(tmp_path, "--what", "consumequeue").rows] == [2]
    rows = dump(tmp_path, "--what", "consumequeue", "--gaps").rows
    assert [row.get("blank") for row in rows] == [True, True, None]


@pytest.mark.parametrize("name", ["ok_497_clean", "ok_540_clean"])
def test_index_parts_fit_together(name: str, cases: Library, dump: Dump) -> None:
    """Headers count the entries; chains hold each entry once, in its slot, newest first."""
    store = cases.path(name)
    part = {
        each: dump(store, "--what", "index", "--part", each).rows
        for each in ("header", "entries", "slots", "chains")
    }
    assert sum(row["index_count"] - 1 for row in part["header"]) == len(part["entries"])
    assert sum(row["hash_slot_count"] for row in part["header"]) == len(part["slots"])

    def places(rows: list[Row]) -> list[tuple[str, int]]:
        return [(row["file"], row["entry"]) for row in rows]

    assert sorted(places(part["chains"])) == sorted(places(part["entries"]))
    assert [row["slot"] for row in part["chains"]] == [row["key_hash"] % 1000 for row in part["chains"]]
    for before, after in zip(part["chains"], part["chains"][1:], strict=False):
        if (before["file"], before["slot"]) == (after["file"], after["slot"]):
            assert before["previous"] == after["entry"] < before["entry"]


def test_a_key_is_found_by_its_hash(cases: Library, dump: Dump) -> None:
    """With the whole topic name, for the topic is part of what is hashed."""
    store = cases.path("ok_540_clean")
    fact = next(fact for fact in facts_of("ok_540_clean") if (fact["properties"] or {}).get("KEYS") == "tx3")
    rows = dump(store, "--what", "index", "--topic", fact["topic"], "--key", "tx3").rows
    assert fact["physicalOffset"] in [row["physical_offset"] for row in rows]
    wanted = java.index_key_hash(index.key_text(fact["topic"], "tx3"))
    assert {row["key_hash"] for row in rows} == {wanted}
    assert dump(store, "--what", "index", "--key", "tx3").code == 2
    assert dump(store, "--part", "chains").code == 2
    assert dump(store, "--what", "index", "--topic", "pub*", "--key", "tx3").code == 2
    assert dump(store, "--what", "index", "--tag", "tx0", "--topic", "pubTx").rows, "5.4 indexes tags"


def test_the_times_of_entries_are_those_of_whole_seconds(
    cases: Library, capsys: pytest.CaptureFixture[str]
) -> None:
    """Printed to the millisecond, such a time seemed to lie before that of the message."""
    store = str(cases.path("ok_540_clean"))
    for part, said in (("entries", True), ("chains", True), ("header", False), ("slots", False)):
        assert main(["dump", store, "--what", "index", "--part", part, "--limit", "1"]) == 0
        assert ("stored up to 1 s after store_time" in capsys.readouterr().err) == said


def test_the_checkpoint_is_one_row(cases: Library, dump: Dump) -> None:
    """Its times, and where they lie in the file."""
    store = cases.path("ok_540_clean")
    row = dump(store, "--what", "checkpoint").rows[0]
    data = (store / "checkpoint").read_bytes()
    assert row["physic_msg_timestamp_ms"] == int.from_bytes(data[:8])
    assert row["file"] == "checkpoint"
    assert len(dump(store, "--what", "checkpoint", "--explain", 0).rows) == 5


def test_config_is_what_a_broker_would_load(cases: Library, store_copy: Any, dump: Dump) -> None:
    """The file; its .bak where the file cannot be read, which is told."""
    store = store_copy("ok_540_clean")
    rows = {row["name"]: row for row in dump(store, "--what", "config").rows}
    assert set(rows) >= {"topics.json", "consumerOffset.json", "delayOffset.json"}
    assert "pubTx" in rows["topics.json"]["content"]["topicConfigTable"]
    (store / "config" / "topics.json").write_bytes(b"{torn")
    result = dump(store, "--what", "config")
    row = next(row for row in result.rows if row["name"] == "topics.json")
    assert (row["source"], row["status"]) == ("bak", ["CF01"])
    assert result.code == 1
    assert "CF01" in result.err


def test_timer_log_units_name_timer_messages(cases: Library, dump: Dump) -> None:
    """Each unit is of a record of rmq_sys_wheel_timer and due when that record says; which are delivered."""
    store = cases.path("ok_540_clean")
    records = {fact["physicalOffset"]: fact for fact in facts_of("ok_540_clean")}
    rows = dump(store, "--what", "timer").rows
    assert rows
    for row in rows:
        fact = records[row["physical_offset"]]
        assert (fact["topic"], row["size"]) == ("rmq_sys_wheel_timer", fact["storeSize"])
        assert row["real_topic"] == fact["properties"]["REAL_TOPIC"]
        assert row["topic_hash"] == java.string_hash(fact["properties"]["REAL_TOPIC"])
        assert abs(row["deliver_timestamp_ms"] - int(fact["properties"]["TIMER_OUT_MS"])) <= 2000
        assert row["delivered"] is not fact["properties"].get("KEYS", "").startswith("pendingTimer")
    middle = rows[len(rows) // 2]["deliver_timestamp_ms"]
    some = dump(store, "--what", "timer", "--since", middle, "--limit", 2).rows
    assert some == [row for row in rows if row["deliver_timestamp_ms"] >= middle][:2]


def test_without_timercheck_it_is_not_known_what_was_delivered(store_copy: Any, dump: Dump) -> None:
    store = store_copy("ok_540_clean")
    (store / "config" / "timercheck").unlink()
    assert {row["delivered"] for row in dump(store, "--what", "timer").rows} == {None}


def test_epochs_and_compaction_positions(store_copy: Any, dump: Dump) -> None:
    """Each epoch ends where the next begins; a compacted topic has a position per queue."""
    store = store_copy("ok_540_small_propcrc")
    (store / "epochFileCheckpoint").write_bytes(epoch.encode([epoch.Entry(1, 0), epoch.Entry(3, 5000)]))
    rows = dump(store, "--what", "epoch").rows
    assert [(row["epoch"], row["start_offset"], row["end_offset"]) for row in rows] == [
        (1, 0, 5000), (3, 5000, None),
    ]  # fmt: skip
    (store / "compaction").mkdir(exist_ok=True)
    path = store / "compaction" / "position-checkpoint"
    path.write_text('{"empty":false,"queueOffsetMap":{"a_b_2":7}}')
    assert dump(store, "--what", "compaction").rows == [
        {"topic": "a_b", "queue_id": 2, "queue_offset": 7, "file": "compaction/position-checkpoint"}
    ]
