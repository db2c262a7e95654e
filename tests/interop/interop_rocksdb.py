"""Real brokers open queues in RocksDB that rmqtool has built: they serve every message, and go on writing.

The folder of the queues was deleted, or a table of it damaged. A broker of storeType defaultRocksDB would
build only a part of them again; the queues of a double write are read from RocksDB here.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rmqtool.broker.predict import Prediction, predict
from rmqtool.errors import EXIT_OK
from rmqtool.formats import config_json, properties
from rmqtool.formats.remoting_codes import Request
from rmqtool.net.broker_client import document
from rmqtool.net.ha_connection import Address
from rmqtool.read.consumer_offsets import known_offsets
from rmqtool.read.store import Store
from rmqtool.storage.config_files import read_config
from rmqtool.storage.rocksdb.database import Database
from tests.interop import verdicts
from tests.interop.after_repair import can_be_pulled, check_broker, conf_of, in_queues, run, verify_finds
from tests.interop.brokers import Broker, wait_for_topic
from tests.interop.processes import LabError
from tests.interop.verdicts import libraries
from tests.support.build_store import patch
from tests.support.stores import Library
from tests.support.trees import copy_tree, unchanged
from tests.support.two_sides import (
    begin_of_record,
    cut_database,
    cut_files,
    cut_log,
    lose_database,
    lose_files,
    lose_log,
)

SETTINGS = {
    "mappedFileSizeCommitLog": 1 << 20, "mappedFileSizeConsumeQueue": 20_000, "maxHashSlotNum": 1000,
    "maxIndexNum": 4000, "messageDelayLevel": "1s 3s 5s 1h", "mappedFileSizeTimerLog": 1 << 20,
}  # fmt: skip
ROCKSDB = SETTINGS | {"storeType": "defaultRocksDB"}
OF_FILES = ROCKSDB | {"mappedFileSizeCommitLog": 65536, "maxMessageSize": 16384}
TWICE = SETTINGS | {
    "rocksdbCQDoubleWriteEnable": "true", "combineCQPreferCQType": "defaultRocksDB",
    "timerRocksDBEnable": "true", "transRocksDBEnable": "true",
}  # fmt: skip


def is_gone(folder: Path) -> None:
    shutil.rmtree(folder)


def is_damaged(folder: Path) -> None:
    for path in folder.glob("*.sst"):
        path.write_bytes(path.read_bytes()[:-100])


@pytest.mark.parametrize(
    ("version", "name", "damage", "settings"),
    [
        ("5.3.3", "kind_rocksdb_533", is_gone, ROCKSDB),
        ("5.4.0", "kind_rocksdb_540", is_damaged, ROCKSDB),
        ("5.4.0", "kind_rocksdb_540_files", is_gone, OF_FILES),
        ("5.4.0", "kind_combine_index_timer_540", is_damaged, TWICE),
    ],
)
def test_brokers_serve_queues_that_were_built(
    version: str, name: str, damage: Callable[[Path], None], settings: dict[str, object], cases: Library,
    tmp_path: Path,
) -> None:  # fmt: skip
    root = cases.copy(name, tmp_path / "store")
    damage(root / "consumequeue")
    conf = conf_of(root, settings)
    assert run("rebuild", root, "--broker-conf", conf, "--apply", "--quiet") == EXIT_OK
    made = {path.name for path in (root / "consumequeue").glob("*.sst")}
    assert made and not list((root / "consumequeue").glob("OPTIONS*"))
    check_broker(version, tmp_path / "lab", root, settings)


def test_a_start_after_the_end_of_the_log_was_lost(cases: Library, tmp_path: Path) -> None:
    """A queue of which no unit is left keeps its end; the others end with the log."""
    root = cases.copy("kind_rocksdb_540", tmp_path / "store")
    cut_log(root, 20_000)
    with Store.open(root, broker_conf=conf_of(root, ROCKSDB)) as store:
        found = predict(store, "5.4")
    spans = _spans_of_broker("5.4.0", tmp_path / "lab", root, ROCKSDB, ["TopicA", "TopicB"])
    for (topic, queue_id), queue in found.queues.items():
        if topic in spans:
            span = spans[topic][str(queue_id)]
            assert (span["min"], span["max"]) == (queue.min_after, queue.max_after), (topic, queue_id)


def _spans_of_broker(
    version: str, folder: Path, root: Path, settings: dict[str, object], topics: list[str]
) -> dict[str, dict[str, dict[str, int]]]:
    text = {key: str(value) for key, value in settings.items()}
    with Broker(version, folder, root, text) as broker:
        broker.start()
        with broker.client() as client:
            wait_for_topic(client, topics)
            spans = {topic: client.call("queues", topic=topic) for topic in topics}
            client.call("close")
        broker.stop()
    return spans


@pytest.mark.parametrize(
    ("version", "name", "abort", "settings"),
    [
        ("5.3.3", "kind_rocksdb_533", False, ROCKSDB),
        ("5.4.0", "kind_rocksdb_540", False, ROCKSDB),
        ("5.4.0", "kind_rocksdb_540_files", True, OF_FILES),
    ],
)
def test_a_start_without_queues_makes_those_that_are_predicted(
    version: str, name: str, abort: bool, settings: dict[str, object], cases: Library, tmp_path: Path
) -> None:
    """The first record, or those of older files, get no unit: a consumer never receives them."""
    root = cases.copy(name, tmp_path / "store")
    is_gone(root / "consumequeue")
    if abort:
        (root / "abort").write_text("1")
    with Store.open(root, broker_conf=conf_of(root, settings)) as store:
        found = predict(store, "5.3" if version == "5.3.3" else "5.4")
    wanted = {key: queue for key, queue in found.queues.items() if can_be_pulled(key[0]) and queue.max_after}
    assert found.messages_unreachable and any(queue.min_after for queue in wanted.values())
    topics = sorted({topic for topic, _ in wanted})
    spans = _spans_of_broker(version, tmp_path / "lab", root, settings, topics)
    for (topic, queue_id), queue in wanted.items():
        span = spans[topic][str(queue_id)]
        assert span["min"] == queue.min_after and span["max"] >= queue.max_after, (topic, queue_id, span)


@pytest.mark.parametrize("version", ["5.3.3", "5.4.0"])
@pytest.mark.parametrize("is_lost", [False, True])
@pytest.mark.parametrize("is_newer", [False, True])
def test_committed_offsets_beside_a_file(
    version: str, is_newer: bool, is_lost: bool, cases: Library, tmp_path: Path
) -> None:
    """The offsets that rmqtool shows are those of the broker after its start, whichever of both wins.

    Beside a database that is lost a file of version 0 counts for nothing.
    """
    root = cases.copy(f"kind_rocksdb_{version.replace('.', '')}", tmp_path / "store")
    if is_lost:
        is_gone(root / "config/consumerOffsets")
    file = root / "config/consumerOffset.json"
    table = {"TopicA@cg1": {"0": 7}, "TopicB@another": {"0": 3}}
    counter = 1 << 30 if is_newer else 0  # 5.4.0 reads an int
    file.write_text(json.dumps({"dataVersion": {"counter": counter}, "offsetTable": table}))
    with Store.open(root) as store:
        shown = known_offsets(store)[0]
    with Broker(
        version, tmp_path / "lab", root, {key: str(value) for key, value in ROCKSDB.items()}
    ) as broker:
        broker.start()
        served = document(Address("127.0.0.1", broker.port), Request.GET_ALL_CONSUMER_OFFSET)
        broker.stop()
    assert config_json.consumer_offsets(served) == shown
    assert (("TopicB", "another") in shown) == is_newer


def test_topics_that_were_made_again(cases: Library, tmp_path: Path) -> None:
    """The broker takes them from topics.json into its new database."""
    root = cases.copy("kind_rocksdb_540", tmp_path / "store")
    is_gone(root / "config/topics")
    conf = conf_of(root, ROCKSDB)
    assert run("recover", root, "--broker-conf", conf, "--apply", "--yes", "--quiet") == EXIT_OK
    text = {key: str(value) for key, value in ROCKSDB.items()}
    with Broker("5.4.0", tmp_path / "lab", root, text) as broker:
        broker.start()
        served = document(Address("127.0.0.1", broker.port), Request.GET_ALL_TOPIC_CONFIG)
        broker.stop()
    assert {"TopicA", "TopicB", "%RETRY%cg1"} <= set(config_json.topics(served))
    (root / "config/topics.json").unlink()
    with Store.open(root) as store:
        assert store.layout.config_folder is not None
        kept = config_json.topics(read_config(store.layout.config_folder, "topics.json").document)
    assert {"TopicA", "TopicB", "%RETRY%cg1"} <= set(kept)


@pytest.mark.parametrize(
    ("name", "at"), [("CURRENT", 0), ("000015.sst", 20), ("000012.sst", 20), ("000014.sst", 20)]
)
def test_a_damaged_configuration(name: str, at: int, cases: Library, tmp_path: Path) -> None:
    """The broker ends, or starts without what it cannot read, as predicted."""
    root = cases.copy("kind_rocksdb_540", tmp_path / "store")
    patch(root / "config/topics" / name, at, b"\xff")
    with Store.open(root) as store:
        (part,) = predict(store, "5.4").unread_config
    text = {key: str(value) for key, value in ROCKSDB.items()}
    with Broker("5.4.0", tmp_path / "lab", root, text) as broker:
        if part.ends:
            with pytest.raises(LabError, match="did not start"):
                broker.start()
            return
        broker.start()
        served = document(Address("127.0.0.1", broker.port), Request.GET_ALL_TOPIC_CONFIG)
        broker.stop()
    assert ({"TopicA", "TopicB"} <= set(config_json.topics(served))) == (name == "000012.sst")


@pytest.mark.parametrize("version", ["5.3.3", "5.4.0"])
def test_reading_while_a_broker_runs(version: str, cases: Library, tmp_path: Path) -> None:
    """No file of the database changes, LOCK and write-ahead log included; new units are in memory only."""
    root = cases.copy(f"kind_rocksdb_{version.replace('.', '')}", tmp_path / "store")
    conf = conf_of(root, ROCKSDB)
    with libraries(version, tmp_path, 1) as pool, pool.one() as library:
        call = _opened(library, root, ROCKSDB)
        for _ in range(5):
            call("put", topic="TopicA", queue_id=0)
        with unchanged(root / "consumequeue"), unchanged(root / "config"), unchanged(root / "kvStore"):
            for command in ("verify", "info", "doctor", "stats"):
                assert run(command, root, "--broker-conf", conf) == EXIT_OK, command
            with Store.open(root, broker_conf=conf) as store:
                assert store.live and store.max_offset("TopicA", 0) == 30
                assert sum(found.message.topic == "TopicA" for found in store.messages()) == 65
        assert call("put", topic="TopicA", queue_id=0)["queueOffset"] == 35
        call("shutdown")
    assert verify_finds(root, conf) == []


def _log_ends_earlier(root: Path) -> None:
    cut_log(root, begin_of_record(root, 60))


DAMAGES: dict[str, Callable[[Path], None]] = {
    "sound": lambda root: None,
    "files lost": lose_files,
    "database lost": lose_database,
    "files cut": lambda root: cut_files(root, begin_of_record(root, 60)),
    "database cut": lambda root: cut_database(root, begin_of_record(root, 60)),
    "a queue of the database cut": lambda root: cut_database(root, begin_of_record(root, 66), only="TopicB"),
    "a queue of the database lost": lambda root: cut_database(root, 0, only="TopicB"),
    "log end zeroed": _log_ends_earlier,
    "log lost": lose_log,
}
"""What happens to a store whose queues are written twice."""
OF_MANY_FILES = ("database of many files lost", "files of many files lost")
SMALL_LOG = {"mappedFileSizeCommitLog": 4096, "maxMessageSize": 1024}


@pytest.mark.parametrize(
    ("name", "abort", "assigns"),
    [
        *((name, False, "default") for name in (*DAMAGES, *OF_MANY_FILES)),
        *((name, True, "default") for name in ("database lost", "log end zeroed", "log lost")),
        (OF_MANY_FILES[0], True, "default"),
        *((name, False, "defaultRocksDB") for name in (*DAMAGES, *OF_MANY_FILES)),
        *((name, True, "defaultRocksDB") for name in ("files lost", OF_MANY_FILES[1])),
    ],
)
def test_a_start_over_queues_that_are_written_twice(
    name: str, abort: bool, assigns: str, cases: Library, tmp_path: Path
) -> None:
    """Clients get what is predicted, from the files and from RocksDB; both predictions know both sides."""
    settings = SETTINGS | {"rocksdbCQDoubleWriteEnable": "true", "combineAssignOffsetCQType": assigns}
    with libraries("5.4.0", tmp_path, 1) as pool:
        if name in DAMAGES:
            root, damage = cases.copy("kind_combine_index_timer_540", tmp_path / "store"), DAMAGES[name]
        else:
            root, settings = tmp_path / "store", settings | SMALL_LOG
            damage = lose_database if name.startswith("database") else lose_files
            _fill(pool.all[0], root, settings)
        damage(root)
        if abort:
            (root / "abort").write_text("1")
        found = {}
        for side in ("default", "defaultRocksDB"):
            copy, of_side = copy_tree(root, tmp_path / side), settings | {"combineCQPreferCQType": side}
            with Store.open(copy, broker_conf=conf_of(copy, of_side)) as store:
                found[side] = predict(store, "5.4")
            with pool.one() as library:
                _check_start(library, copy, of_side, found[side])
    files, database = found["default"], found["defaultRocksDB"]
    if files.loads and database.loads:
        assert (files.second_queues, database.second_queues) == (database.queues, files.queues)


ONLY_ROCKSDB = SETTINGS | {
    "rocksdbCQDoubleWriteEnable": "true", "combineCQLoadingCQTypes": "defaultRocksDB",
    "combineCQPreferCQType": "defaultRocksDB", "combineAssignOffsetCQType": "defaultRocksDB",
}  # fmt: skip


@pytest.mark.parametrize("abort", [False, True])
@pytest.mark.parametrize("name", ["files lost", "files cut", "database lost", "database cut", "log lost"])
def test_a_broker_of_combined_queues_that_loads_only_rocksdb(
    name: str, abort: bool, cases: Library, tmp_path: Path
) -> None:
    """It starts as one of storeType=defaultRocksDB; the files of queues beside count for nothing."""
    root = cases.copy("kind_combine_index_timer_540", tmp_path / "store")
    DAMAGES[name](root)
    if abort:
        (root / "abort").write_text("1")
    with Store.open(root, broker_conf=conf_of(root, ONLY_ROCKSDB)) as store:
        found = predict(store, "5.4")
    with libraries("5.4.0", tmp_path, 1) as pool, pool.one() as library:
        _check_start(library, root, ONLY_ROCKSDB, found)


@pytest.mark.parametrize(
    ("types", "prefers", "assigns"),
    [("defaultRocksDB", "default", "defaultRocksDB"), ("default", "default", "defaultRocksDB"),
     ("default", "defaultRocksDB", "default"), ("", "default", "default"), ("x", "default", "default"),
     ("default;defaultRocksDB", "x", "default"), ("default", "default", "default")],
)  # fmt: skip
def test_types_of_queues_that_cannot_be_combined(
    types: str, prefers: str, assigns: str, cases: Library, tmp_path: Path
) -> None:
    """The message store is not even made: the broker ends before it changes anything."""
    root = cases.copy("kind_combine_index_timer_540", tmp_path / "store")
    settings = SETTINGS | {
        "rocksdbCQDoubleWriteEnable": "true", "combineCQLoadingCQTypes": types,
        "combineCQPreferCQType": prefers, "combineAssignOffsetCQType": assigns,
    }  # fmt: skip
    with Store.open(root, broker_conf=conf_of(root, settings)) as store:
        found = predict(store, "5.4")
    with libraries("5.4.0", tmp_path, 1) as pool, pool.one() as library:
        if found.loads:
            _check_start(library, root, settings, found)
        else:
            with pytest.raises(LabError, match="IllegalArgumentException"):
                library.program.call("open", store=str(root), settings=settings)
        library.close()
    assert found.loads == (types == prefers == assigns)


@pytest.mark.parametrize("version", ["5.3.3", "5.4.0"])
def test_queues_in_rocksdb_go_on_after_the_log_was_lost(version: str, cases: Library, tmp_path: Path) -> None:
    """As long as the broker runs; one that was stopped meanwhile begins at 0."""
    root = cases.copy(f"kind_rocksdb_{version.replace('.', '')}", tmp_path / "store")
    lose_log(root)
    with Store.open(root, broker_conf=conf_of(root, ROCKSDB)) as store:
        found = predict(store, "5.3" if version == "5.3.3" else "5.4")
    with libraries(version, tmp_path, 1) as pool, pool.one() as library:
        copy = copy_tree(root, tmp_path / "copy")
        _check_start(library, root, ROCKSDB, found)
        _opened(library, copy, ROCKSDB)("shutdown")
        call = _opened(library, copy, ROCKSDB)
        assert call("put", topic="TopicA", queue_id=0)["queueOffset"] == 0
        call("shutdown")


@pytest.mark.parametrize("abort", [False, True])
@pytest.mark.parametrize("accelerates", ["false", "true"])
def test_a_scan_that_begins_inside_a_file(
    accelerates: str, abort: bool, cases: Library, tmp_path: Path
) -> None:
    """enableAcceleratedRecovery: damage before the noted end of dispatch is not noticed."""
    root = cases.copy("kind_rocksdb_540", tmp_path / "store")
    patch(min((root / "commitlog").iterdir()), begin_of_record(root, 10) + 100, b"\xff\xff")
    if abort:
        (root / "abort").write_text("1")
    settings = ROCKSDB | {"enableAcceleratedRecovery": accelerates}
    with Store.open(root, broker_conf=conf_of(root, settings)) as store:
        found = predict(store, "5.4")
    assert (found.messages_abandoned > 0) == (accelerates == "false")
    with libraries("5.4.0", tmp_path, 1) as pool, pool.one() as library:
        call = _opened(library, root, settings)
        assert call("offsets")["max"] == found.end_offset
        # after a cut, with a dispatch, the ends depend on which thread of the broker is faster
        for key, queue in found.queues.items() if accelerates == "true" else ():
            assert _served(library, *key)[0] == (queue.min_after, queue.max_after), key
        call("shutdown")


def _opened(
    library: verdicts.Library, root: Path, settings: dict[str, object]
) -> Callable[..., dict[str, Any]]:
    """A store that the library has started over; what asks it."""
    call = library.program.call
    assert call("open", store=str(root), settings=settings) == {"load": True}
    call("start")
    return call


def _fill(library: verdicts.Library, root: Path, settings: dict[str, object]) -> None:
    """Make a store whose log has many files; one topic gets messages only at the beginning."""
    call = _opened(library, root, settings)
    for number in range(400):
        assert call("put", topic="Early" if number < 5 else "Late", queue_id=number % 2)["status"] == "PUT_OK"
    call("shutdown")


def _check_start(
    library: verdicts.Library, root: Path, settings: dict[str, object], found: Prediction
) -> None:
    places, _ = in_queues(root)
    if not found.loads:
        if library.program.call("open", store=str(root), settings=settings) == {"load": True}:
            with pytest.raises(LabError):
                library.program.call("start")
        library.close()
        return
    assert _start(library, root, settings, found) == found.end_offset
    for (topic, queue_id), queue in found.queues.items():
        span, got = _served(library, topic, queue_id)
        assert span == (queue.min_after, queue.max_after), (topic, queue_id)
        held = {
            place[2]: each.physical_offset for place, each in places.items() if place[:2] == (topic, queue_id)
        }
        held = {number: at for number, at in held.items() if at < found.end_offset}
        assert got <= set(held.values()) and len(held) - len(got) == queue.unreachable, (topic, queue_id)
        if not queue.shifted:
            assert got == {at for number, at in held.items() if queue.min_after <= number < queue.max_after}
    sides = settings.get("combineCQPreferCQType"), settings.get("combineAssignOffsetCQType")
    assigning = found.queues if sides[0] == sides[1] else found.second_queues
    for (topic, queue_id), queue in assigning.items():
        if can_be_pulled(topic):
            put = library.program.call("put", topic=topic, queue_id=queue_id)
            assert put["queueOffset"] == queue.max_after, (topic, queue_id)
    library.program.call("shutdown")


def _start(library: verdicts.Library, root: Path, settings: dict[str, object], found: Prediction) -> int:
    """Start over a store as a broker does, some time after it was opened; returns the end of its log.

    RocksGroupCommitService writes to RocksDB in a thread. If it has not finished, the start fails, or queues
    begin after their messages: on a busy machine the start is tried again, longer after the opening.
    """
    untouched = copy_tree(root, root.with_name(f"{root.name}-untouched"))
    pauses_s = [0, 1, 3, 9, 27]
    while True:
        assert library.program.call("open", store=str(root), settings=settings) == {"load": True}
        time.sleep(pauses_s.pop(0))
        try:
            end = int(library.program.call("start")["max"])
            wanted = {key: (each.min_after, each.max_after) for key, each in found.queues.items()}
            if not pauses_s or wanted == {key: _served(library, *key)[0] for key in wanted}:
                return end
        except LabError as error:
            if "currentReadStore not satisfied" not in str(error) or not pauses_s:
                raise
        library.close()
        shutil.rmtree(root)
        copy_tree(untouched, root)


def _served(library: verdicts.Library, topic: str, queue_id: int) -> tuple[tuple[int, int], set[int]]:
    """((min, max), physical offsets of what a pulling client gets) of a queue."""
    got: set[int] = set()
    offset = 0
    while True:
        answer = library.program.call("get", topic=topic, queue_id=queue_id, offset=offset, max=32)
        got |= set(answer["physicalOffsets"])
        if answer["next"] <= offset or answer["next"] >= answer["max"] and not answer["count"]:
            return (answer["min"], answer["max"]), got
        offset = answer["next"]


def test_a_queue_whose_records_have_expired_goes_on(tmp_path: Path) -> None:
    """Double writing begins late, the database is lost and built again: no queue offset is used twice."""
    root, settings = tmp_path / "store", SETTINGS | SMALL_LOG
    twice = settings | {"rocksdbCQDoubleWriteEnable": "true"}
    only = settings | {"storeType": "defaultRocksDB"}
    with libraries("5.4.0", tmp_path, 1) as pool, pool.one() as library:
        _fill(library, root, settings)
        sorted((root / "commitlog").iterdir())[0].unlink()
        _opened(library, root, twice)("shutdown")
        codes = {row.split()[0] for row in verify_finds(root, conf_of(root, twice))}
        assert not {code for code in codes if code.startswith(("RD", "CQ"))}
        for path in (root / "consumequeue").iterdir():
            if path.is_file() and path.name != "IDENTITY":
                path.unlink()
        run("rebuild", root, "--broker-conf", conf_of(root, twice), "--apply", "--quiet")
        with Store.open(root, broker_conf=conf_of(root, only)) as store:
            found = predict(store, "5.4")
        call = _opened(library, root, only)
        for topic, queue_id, end in (("Early", 0, 3), ("Early", 1, 2), ("Late", 0, 197)):
            queue = found.queues[topic, queue_id]
            assert _served(library, topic, queue_id)[0] == (queue.min_after, queue.max_after)
            assert call("put", topic=topic, queue_id=queue_id)["queueOffset"] == queue.max_after == end
        call("shutdown")


def test_a_queue_that_keeps_units_of_lost_records(tmp_path: Path) -> None:
    """The end of the log is lost, with all messages of a queue: its consumers get what then lies there."""
    root = tmp_path / "store"
    with libraries("5.4.0", tmp_path, 1) as pool, pool.one() as library:
        call = _opened(library, root, ROCKSDB)
        places = [call("put", topic="A" if number < 5 else "B", queue_id=0) for number in range(8)]
        call("shutdown")
        cut_log(root, places[5]["physicalOffset"])
        with Store.open(root, broker_conf=conf_of(root, ROCKSDB)) as store:
            found = predict(store, "5.4")
        assert any("lost records, 1, for example B/0" in note for note in found.notes)
        call = _opened(library, root, ROCKSDB)
        span, got = _served(library, "B", 0)
        assert span == (found.queues["B", 0].min_after, found.queues["B", 0].max_after) and not got
        again = call("put", topic="A", queue_id=0)
        assert again["physicalOffset"] == places[5]["physicalOffset"]
        assert _served(library, "B", 0)[1] == {again["physicalOffset"]}
        assert call("put", topic="B", queue_id=0)["queueOffset"] == found.queues["B", 0].max_after
        call("shutdown")


BATCH_TOPIC = {
    "topicName": "Inner", "readQueueNums": 1, "writeQueueNums": 1, "perm": 6,
    "attributes": {"queue.type": "BatchCQ"},
}  # fmt: skip


def _with_batch_topic(root: Path) -> Path:
    """The folder of a store that has no file but a topics.json with two topics, one of batch queues."""
    (root / "config").mkdir(parents=True)
    version = {"counter": 1, "stateVersion": 0, "timestamp": 1}
    table = {
        "dataVersion": version,
        "topicConfigTable": {"Inner": BATCH_TOPIC, "Plain": {"topicName": "Plain"}},
    }
    (root / "config/topics.json").write_text(json.dumps(table))
    return root


def test_5_3_writes_batch_queues_twice(tmp_path: Path) -> None:
    """RocksDB gets a unit for each batch record; a database that is built again has the same rows."""
    settings = SETTINGS | {"mapperFileSizeBatchConsumeQueue": 46_000, "rocksdbCQDoubleWriteEnable": "true"}
    root = _with_batch_topic(tmp_path / "store")
    with libraries("5.3.3", tmp_path, 1) as pool, pool.one() as library:
        call = _opened(library, root, settings)
        for number in range(4):
            call("put", topic="Plain", queue_id=0)
            call("put", topic="Inner", queue_id=0, inner=number + 2)
        call("shutdown")
        library.close()
    written, conf = _queue_rows(root), conf_of(root, settings)
    assert verify_finds(root, conf) == []
    for path in (root / "consumequeue").glob("*.sst"):
        path.write_bytes(path.read_bytes()[:-60])
    assert run("rebuild", root, "--broker-conf", conf, "--apply", "--quiet") == EXIT_OK
    assert _queue_rows(root) == written and verify_finds(root, conf) == []
    with Store.open(root, broker_conf=conf) as store:
        assert predict(store, "5.3").queues["Inner", 0].max_after == 2 + 3 + 4 + 5
        assert not predict(store, "5.4").loads


def _queue_rows(root: Path) -> set[tuple[bytes, bytes]]:
    database = Database(root / "consumequeue")
    try:
        return {row for family in ("default", "offset") for row in database.scan(family)}
    finally:
        database.close()


def test_5_4_does_not_write_batch_queues_twice(tmp_path: Path) -> None:
    """It fails: on such a message, on the files of such a queue, on a record that it dispatches."""
    settings = SETTINGS | {"mapperFileSizeBatchConsumeQueue": 46_000}
    twice = settings | {"rocksdbCQDoubleWriteEnable": "true"}
    with libraries("5.4.0", tmp_path, 1) as pool, pool.one() as library:
        call = _opened(library, _with_batch_topic(tmp_path / "twice"), twice)
        assert call("put", topic="Plain", queue_id=0)["status"] == "PUT_OK"
        with pytest.raises(LabError, match="ClassCastException"):
            call("put", topic="Inner", queue_id=0, inner=3)
        call("shutdown")
        root = _with_batch_topic(tmp_path / "files")
        call = _opened(library, root, settings)
        call("put", topic="Plain", queue_id=0)
        call("put", topic="Inner", queue_id=0, inner=3)
        call("shutdown")
        for number, of_start in enumerate((twice, twice | {"combineCQLoadingCQTypes": "default"}) * 2):
            conf = conf_of(root, of_start)
            with Store.open(root, broker_conf=conf) as store:
                found = predict(store, "5.4")
            copy = copy_tree(root, tmp_path / f"copy{number}")
            assert library.program.call("open", store=str(copy), settings=of_start) == {"load": False}
            assert not found.loads and "fails on every batch queue" in (found.load_error or "")
            library.close()
            if number:
                shutil.rmtree(root / "batchconsumequeue", ignore_errors=True)
                (root / "abort").write_text("1")


@pytest.mark.parametrize("version", ["5.3.3", "5.4.0"])
def test_batch_records_in_rocksdb_have_one_unit_each(version: str, tmp_path: Path) -> None:
    """The next message after a start gets the queue offset after that of the last record, a used one."""
    root, settings = _with_batch_topic(tmp_path / "store"), ROCKSDB
    with libraries(version, tmp_path, 1) as pool, pool.one() as library:
        call = _opened(library, root, settings)
        counts = 3, 2, 1, 4, 3
        places = [call("put", topic="Inner", queue_id=0, inner=count)["queueOffset"] for count in counts]
        assert places == [0, 3, 5, 6, 10]
        call("shutdown")
        assert verify_finds(root, conf_of(root, settings)) == []
        for is_lost in (False, True):
            if is_lost:
                is_gone(root / "consumequeue")
                assert run("rebuild", root, "--broker-conf", conf_of(root, settings), "--apply") == EXIT_OK
            with Store.open(root, broker_conf=conf_of(root, settings)) as store:
                queue = predict(store, "5.3" if version == "5.3.3" else "5.4").queues["Inner", 0]
            call = _opened(library, root, settings)
            assert _served(library, "Inner", 0)[0] == (queue.min_after, queue.max_after)
            assert (queue.min_after, queue.max_after) == (3, places[-1] + 1)
            gap = call("get", topic="Inner", queue_id=0, offset=4, max=32)
            assert (gap["status"], gap["next"]) == ("OFFSET_FOUND_NULL", 0)  # a consumer begins again
            places.append(call("put", topic="Inner", queue_id=0, inner=2)["queueOffset"])
            assert places[-1] == queue.max_after
            call("shutdown")
            assert verify_finds(root, conf_of(root, settings)) == []


def test_a_start_after_a_kill_leaves_a_gap(tmp_path: Path) -> None:
    """The units in memory are lost, and 5.4 reads ten files: what lies before the gap is out of reach too."""
    root, settings = tmp_path / "store", ROCKSDB | SMALL_LOG
    with libraries("5.4.0", tmp_path, 1) as pool, pool.one() as library:
        call = _opened(library, root, settings)
        for number in range(100):
            call("put", topic="A" if number else "Early", queue_id=0)
        call("shutdown")
        call = _opened(library, root, settings)
        for number in range(600):
            call("put", topic="A" if number else "Lost", queue_id=0)
        library.close()
        conf = conf_of(root, settings)
        with Store.open(root, broker_conf=conf) as store:
            found = predict(store, "5.4")
        copy = copy_tree(root, tmp_path / "copy")
        call = _opened(library, root, settings)
        for topic in ("A", "Early", "Lost"):
            queue = found.queues[topic, 0]
            assert _served(library, topic, 0)[0] == (queue.min_after, queue.max_after), topic
            assert call("put", topic=topic, queue_id=0)["queueOffset"] == queue.max_after
        assert found.queues["A", 0].min_after > 99 and found.queues["Lost", 0].lost
        library.close()
        assert run("recover", copy, "--broker-conf", conf_of(copy, settings), "--apply", "--yes") == EXIT_OK
        call = _opened(library, copy, settings)  # all of them are served if rmqtool comes first
        for topic, end in (("A", 698), ("Early", 1), ("Lost", 1)):
            assert _served(library, topic, 0)[0] == (0, end)
            assert call("put", topic=topic, queue_id=0)["queueOffset"] == end


@pytest.mark.parametrize(
    "setting",
    [{"rocksdbCQDoubleWriteEnable": "true"}, {"storeType": "defaultRocksDB"},
     {"rocksdbCQDoubleWriteEnable": "true", "combineCQLoadingCQTypes": "default"}],
)  # fmt: skip
@pytest.mark.parametrize("version", ["5.3.3", "5.4.0"])
def test_compacted_topics_with_queues_in_rocksdb(
    version: str, setting: dict[str, object], cases: Library, tmp_path: Path
) -> None:
    """5.4.0 does not load such a store."""
    root = cases.copy("kind_compaction_540", tmp_path / "store")
    settings = SETTINGS | setting | {"compactionMappedFileSize": 100_000, "compactionCqMappedFileSize": 4600}
    if "storeType" in setting:
        is_gone(root / "consumequeue")
    with Store.open(root, broker_conf=conf_of(root, settings)) as store:
        found = predict(store, "5.3" if version == "5.3.3" else "5.4")
    with libraries(version, tmp_path, 1) as pool, pool.one() as library:
        opened = library.program.call("open", store=str(root), settings=settings)
        assert opened == {"load": found.loads} == {"load": version == "5.3.3"}
        library.close()


def test_a_broker_answers_from_an_index_that_was_built(cases: Library, tmp_path: Path) -> None:
    """Every key and unique key of every message, without index files; and it goes on with the index."""
    root = cases.copy("kind_combine_index_timer_540", tmp_path / "store")
    wanted = _index_entries(root)
    shutil.rmtree(root / "rocksdbstore")
    settings = TWICE | {
        "indexRocksDBEnable": "true", "indexFileReadEnable": "false", "transRocksDBEnable": "false",
        "combineCQPreferCQType": "default",
    }  # fmt: skip
    conf = conf_of(root, settings)
    assert run("rebuild", root, "--broker-conf", conf, "--apply", "--quiet") == EXIT_OK
    assert _index_entries(root) == wanted
    with Store.open(root) as store:
        messages = [found.message for found in store.messages() if can_be_pulled(found.message.topic)]
    keys: dict[tuple[str, str], set[int]] = {}
    uniq_keys = set()
    for message in messages:
        held = properties.decode(message.properties_bytes)
        uniq_keys.add((message.topic, held[properties.UNIQ_KEY]))
        for key in properties.keys_of(held):
            keys.setdefault((message.topic, key), set()).add(message.physical_offset)
    times = [message.store_timestamp for message in messages]
    span = {"begin": min(times) - 1, "end": max(times) + 1, "max": len(messages)}
    text = {key: str(value) for key, value in settings.items()}
    with Broker("5.4.0", tmp_path / "lab", root, text) as broker:
        broker.start()
        with broker.client() as client:
            wait_for_topic(client, sorted({topic for topic, _ in keys}))
            for (topic, key), offsets in keys.items():
                got = client.call("query", topic=topic, key=key, **span)
                assert {row["physicalOffset"] for row in got} == offsets, (topic, key)
            for topic, key in uniq_keys:
                row = client.call("view", topic=topic, id=key)
                assert row["properties"][properties.UNIQ_KEY] == key
            client.call("send", topic="TopicA", body="bmV3", tags="", keys="key-after", properties={})
            client.call("close")
        broker.stop()
    assert wanted < _index_entries(root)
    assert verify_finds(root, conf) == []


def _index_entries(root: Path) -> set[tuple[bytes, bytes]]:
    database = Database(root / "rocksdbstore")
    try:
        return {row for row in database.scan("default") if row[0].startswith(b"\0")}
    finally:
        database.close()
