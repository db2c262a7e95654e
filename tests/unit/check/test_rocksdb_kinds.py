"""Stores of real brokers with queues in RocksDB: every answer of the broker, field by field."""

from __future__ import annotations

import json
import lzma
import shutil
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rmqtool.formats import rocksdb_queue
from rmqtool.formats.rocksdb_queue import EndKey, end_key, unit_key
from rmqtool.message.rows import message_row
from rmqtool.read.store import Store
from rmqtool.storage.rocksdb.queues import RocksdbQueues
from tests.support.rocksdb_databases import write_ahead_log
from tests.support.stores import Library, case
from tests.support.trees import unchanged
from tests.support.whole_store import codes_of, findings_of, report_of

ANSWERED = ("kind_rocksdb_540", "kind_rocksdb_533", "kind_rocksdb_540_files", "kind_config_v2_540")
COMBINED = "kind_combine_index_timer_540"
RUNNING = "kind_rocksdb_540_running"
QUEUE_CODES = {"CQ02", "CQ05", "CQ08", "CQ13", "CQ14", "RD01", "RD02", "RD03", "RD04", "RD05"}
HALF = "RMQ_SYS_TRANS_HALF_TOPIC"  # it grew between the answers and the stop


def answers_of(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(lzma.decompress((case(name).folder / "answers.json.xz").read_bytes()))
    return found


def topics_of(name: str) -> Iterator[tuple[str, int, dict[str, Any]]]:
    for key, found in answers_of(name)["topics"].items():
        topic, _, queue_id = key.rpartition("-")
        yield topic, int(queue_id), found


@pytest.mark.parametrize("name", ANSWERED)
def test_queues_are_as_the_broker_serves_them(name: str, cases: Library) -> None:
    """Minimum, maximum and every unit of every queue."""
    count = 0
    with unchanged(cases.path(name)), Store.open(cases.path(name)) as store:
        for topic, queue_id, expected in topics_of(name):
            low, high = expected["min"], expected["max"]
            if (topic, queue_id) not in store.queues:
                assert high in (0, -1) or topic == HALF, (topic, queue_id, expected)
                continue
            queue = store.queues[topic, queue_id]
            if topic != HALF:
                assert (store.min_offset(topic, queue_id), store.max_offset(topic, queue_id)) == (low, high)
            units = [list(unit) for _, unit in queue.units(low, high)]
            assert units == expected["units"], (topic, queue_id)
            count += len(units)
    assert count > 80


@pytest.mark.parametrize("name", ANSWERED)
def test_messages_are_as_the_broker_sends_them(name: str, cases: Library) -> None:
    count = 0
    with Store.open(cases.path(name)) as store:
        for topic, queue_id, expected in topics_of(name):
            for offset, physical, size, time, tags, keys, crc, _ in expected["messages"]:
                stored = store.get_by_queue_offset(topic, queue_id, offset)
                assert stored is not None
                row = message_row(stored.message, stored.physical_offset, stored.file)
                assert (row["physical_offset"], row["size"]) == (physical, size)
                assert row["store_timestamp_ms"] == time and row["body_crc"] == crc
                assert (row["tags"] or "", " ".join(row["keys"])) == (tags or "", keys or "")
                count += 1
    assert count > 50


@pytest.mark.parametrize("name", [*ANSWERED, COMBINED])
def test_verify_says_that_they_are_sound(name: str, cases: Library) -> None:
    store = cases.path(name)
    with unchanged(store):
        report = report_of(store)
        codes = codes_of(store)
    assert report.records == report.units > 90
    assert set(codes) <= {"UN01"}


def test_a_log_ahead_of_the_queues_is_normal(cases: Library) -> None:
    """A copy of a running broker's store has no unit on disk: the next start dispatches all records."""
    codes = codes_of(cases.path(RUNNING))
    assert "CQ01" in codes and not QUEUE_CODES & set(codes)


def test_a_clean_stop_does_not_dispatch_again(cases: Library, tmp_path: Path) -> None:
    """Without `abort` the record at the noted end is never dispatched, so its unit is missing for good."""
    store = cases.copy(RUNNING, tmp_path / "store")
    (store / "abort").unlink()
    rows = [row for row in rows_of(store) if row["problem"] in ("CQ02", "CQ13")]
    assert [row["detail"]["record"] for row in rows] == [0]


def rows_of(store: Path) -> list[dict[str, Any]]:
    return [item.row() for item in findings_of(store)]


def queues_of(store: Path) -> RocksdbQueues:
    return RocksdbQueues(store / "consumequeue")


def test_units_above_the_end_are_not_served(cases: Library, tmp_path: Path) -> None:
    """A broker that cuts its log lowers `max` and leaves the units."""
    store = cases.copy(ANSWERED[0], tmp_path / "store")
    queues = queues_of(store)
    unit = queues.database.get("default", unit_key("TopicB", 0, 12))
    assert unit is not None
    end = unit[:8] + struct.pack(">q", 12)
    log = write_ahead_log([(1, end_key(EndKey("TopicB", True, 0)), end)])
    (store / "consumequeue/000900.log").write_bytes(log)
    with Store.open(store) as opened:
        assert opened.max_offset("TopicB", 0) == 13 and opened.queue("TopicB", 0) is not None
        assert opened.get_by_queue_offset("TopicB", 0, 13) is None
    assert "RD02" not in codes_of(store)


def test_a_deleted_topic(cases: Library, tmp_path: Path) -> None:
    """A `max` that is deleted takes the queue away; its records remain in the log."""
    store = cases.copy(ANSWERED[0], tmp_path / "store")
    log = write_ahead_log([(1, end_key(EndKey("TopicB", True, 0)), None)])
    (store / "consumequeue/000900.log").write_bytes(log)
    with Store.open(store) as opened:
        assert ("TopicB", 0) not in opened.queues
    assert "CQ13" in codes_of(store)


def test_the_second_queues_are_compared(cases: Library, tmp_path: Path) -> None:
    """They may begin later and end earlier than the files; where both have units they are the same."""
    store = cases.copy(COMBINED, tmp_path / "store")
    folder = store / "consumequeue"
    log = write_ahead_log([(0, unit_key("TopicA", 1, number), None) for number in (0, 1, 2)])
    (folder / "000900.log").write_bytes(log)
    assert "RD05" not in codes_of(store)
    log = write_ahead_log([(0, unit_key("TopicA", 1, number), None) for number in (10, 11, 20)])
    (folder / "000900.log").write_bytes(log)
    rows = [row["detail"] for row in rows_of(store) if row["problem"] == "RD05"]
    assert [(row["queue_offset"], row["last_queue_offset"]) for row in rows] == [(10, 11), (20, 20)]


def test_damage_of_one_block_leaves_the_other_units(cases: Library, tmp_path: Path) -> None:
    """`verify` goes on: units of other queues are compared, and those of this one are not blamed."""
    store = cases.copy("kind_rocksdb_540_files", tmp_path / "store")
    table = store / "consumequeue/000011.sst"
    content = bytearray(table.read_bytes())
    content[len(content) // 2] ^= 1
    table.write_bytes(content)
    rows = [row for row in rows_of(store) if row["problem"] != "UN01"]
    assert [row["problem"] for row in rows] == ["RD01"]
    assert rows[0]["path"] == "consumequeue/000011.sst" and rows[0]["physical_offset"] > 0
    assert report_of(store).units >= 18


def test_a_database_that_cannot_be_opened(cases: Library, tmp_path: Path) -> None:
    """The rest of the store is checked; the queues are named as not read, with the reason."""
    store = cases.copy(ANSWERED[0], tmp_path / "store")
    (store / "consumequeue/CURRENT").write_text("MANIFEST-99\n")
    rows = {row["problem"]: row for row in rows_of(store)}
    assert rows["RD01"]["path"] == "consumequeue/CURRENT"
    with Store.open(store) as opened:
        part = opened.layout.unsupported[0]
        assert (part.what, part.reason) == ("consume queues", "it does not name a MANIFEST")
        assert not opened.layout.has_files_of_queues


def test_archives_and_copies_of_a_queue_folder(cases: Library, tmp_path: Path) -> None:
    """Read through the same storage as files: from a tar, too."""
    shutil.make_archive(str(tmp_path / "store"), "tar", cases.path(ANSWERED[0]))
    with Store.open(tmp_path / "store.tar") as store, Store.open(cases.path(ANSWERED[0])) as plain:
        assert dict.fromkeys(store.queues) == dict.fromkeys(plain.queues)
        for key, queue in store.queues.items():
            assert list(queue.units()) == list(plain.queues[key].units())


def test_names_of_topics_become_folders(tmp_path: Path) -> None:
    """No topic leads out of the folder of queues, and no two share one."""
    from tests.support.rocksdb_databases import write_rows

    topics = ["a/b", "a%2Fb", "..", ".", "", "%", "%LMQ%x", "../../etc/passwd"]
    ends = {end_key(EndKey(topic, True, 0)): struct.pack(">qq", 0, 0) for topic in topics}
    units = {unit_key(topic, 0, 0): struct.pack(">qiqq", 0, 9, 0, 0) for topic in topics}
    write_rows(tmp_path / "db", {"default": units, "offset": ends})
    queues = RocksdbQueues(tmp_path / "db")
    folders = [queue.folder for queue in queues.queues.values()]
    assert len(set(folders)) == len(topics) and all(folder.count("/") == 1 for folder in folders)
    for queue in queues.queues.values():
        assert (
            queues.open(f"{queue.folder}/{queue.file}").read(0, 20) == units[unit_key(queue.topic, 0, 0)][:20]
        )
    assert rocksdb_queue.CHECKPOINT_TOPIC not in {topic for topic, _ in queues.queues}
    queues.close()
