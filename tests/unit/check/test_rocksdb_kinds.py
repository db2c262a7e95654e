"""Stores of real brokers with queues in RocksDB: every answer of the broker, field by field."""

from __future__ import annotations

import json
import lzma
import re
import shutil
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rmqtool.broker.predict import predict_all
from rmqtool.cli import main
from rmqtool.errors import EXIT_OK
from rmqtool.formats import config_json, properties, rocksdb_queue
from rmqtool.formats.rocksdb_queue import EndKey, end_key, unit_key
from rmqtool.message.rows import message_row
from rmqtool.read.consumer_offsets import known_offsets
from rmqtool.read.op_records import op_of, open_half
from rmqtool.read.selection import Selection
from rmqtool.read.store import Store
from rmqtool.repair.recover.assemble import plan_recover
from rmqtool.repair.recover.request import Request as RecoverRequest
from rmqtool.report.dump.pop import pop_rows
from rmqtool.report.dump.timer import timer_rows
from rmqtool.report.info import store_info
from rmqtool.report.stats import pending
from rmqtool.report.stats.overview import Request, overview
from rmqtool.report.trace.outcome import message_fate
from rmqtool.storage.config_files import read_config
from rmqtool.storage.rocksdb.database import Database
from rmqtool.storage.rocksdb.queues import RocksdbQueues
from tests.support.build_store import patch
from tests.support.rocksdb_databases import write_ahead_log, write_rows
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
    assert not codes


CONFIG = ("kind_rocksdb_540", "kind_rocksdb_533", "kind_rocksdb_540_running", "kind_rocksdb_540_files")
LATER = {"%RETRY%askg", "askg"}  # made after the broker was asked
BY_THE_BROKER = {"rmq_sys_wheel_timer"}  # it adds this topic itself


def document(store: Store, name: str) -> Any:
    assert store.layout.config_folder is not None
    return config_json.resolve(read_config(store.layout.config_folder, name).document)


@pytest.mark.parametrize("name", [*CONFIG, "kind_config_v2_540"])
def test_config_is_as_the_broker_has_it(name: str, cases: Library) -> None:
    """Topics, groups and committed offsets; v2 does not hold those that a broker makes by itself."""
    answers = answers_of(name)
    with unchanged(cases.path(name)), Store.open(cases.path(name)) as store:
        topics = document(store, "topics.json")["topicConfigTable"]
        groups = document(store, "subscriptionGroup.json")["subscriptionGroupTable"]
        offsets = config_json.consumer_offsets(document(store, "consumerOffset.json"))
    if name in CONFIG:
        assert set(topics) - LATER == set(answers["topicConfig"]) - BY_THE_BROKER
        assert set(groups) - LATER == set(answers["groups"])
    for mine, theirs in ((topics, answers["topicConfig"]), (groups, answers["groups"])):
        both = set(mine) & set(theirs)
        assert both
        for each in both:
            assert {"attributes": {}, **mine[each]} == {"attributes": {}, **theirs[each]}
    count = 0
    for key, queues in answers.items():
        for place, (_, committed) in queues.items() if key == "offsets.cg1" else ():
            topic, _, queue_id = place.rpartition("-")
            assert offsets[topic, "cg1"][int(queue_id)] == committed
            count += 1
    assert count or "offsets.cg1" not in answers


def test_a_json_file_with_a_larger_version_wins(cases: Library, tmp_path: Path) -> None:
    """It is written over the database; an older one is ignored."""
    store = cases.copy("kind_rocksdb_540", tmp_path / "store")
    for counter, has_it in ((1, False), (1000, True)):
        version = {"counter": counter, "stateVersion": 0, "timestamp": 1}
        made = {"dataVersion": version, "topicConfigTable": {"New": {"topicName": "New"}}}
        (store / "config/topics.json").write_text(json.dumps(made))
        with Store.open(store) as opened:
            topics = config_json.topics(document(opened, "topics.json"))
            assert ("New" in topics) is has_it and "TopicA" in topics


def test_a_json_file_that_cannot_be_parsed(cases: Library, tmp_path: Path) -> None:
    """A broker of v1 reads the file before it compares the versions; one of v2 reads none."""
    for name, codes in (("kind_rocksdb_540", {"CF02"}), ("kind_config_v2_540", set())):
        store = cases.copy(name, tmp_path / name)
        (store / "config/topics.json").write_text("{")
        assert set(codes_of(store)) == codes
        with Store.open(store) as opened:
            assert "TopicA" in config_json.topics(document(opened, "topics.json"))


def test_config_that_changes(cases: Library, tmp_path: Path) -> None:
    """An open store sees what a running broker has added to a write-ahead log."""
    store = cases.copy("kind_rocksdb_540", tmp_path / "store")
    folder = store / "config/topics"
    with Store.open(store) as opened:
        assert "New" not in config_json.topics(document(opened, "topics.json"))
        new = [(0, b"New", json.dumps({"topicName": "New"}).encode())]
        (folder / "000099.log").write_bytes(write_ahead_log(new))
        assert "New" in config_json.topics(document(opened, "topics.json"))


POP = ("kind_rocksdb_540", "kind_rocksdb_533", RUNNING)


@pytest.mark.parametrize("name", POP)
def test_pop_records(name: str, cases: Library) -> None:
    """16 messages were popped, two of them acknowledged; in the running store only its log has them."""
    reported: list[Any] = []
    with unchanged(cases.path(name)), Store.open(cases.path(name)) as store:
        rows = list(pop_rows(store.layout, reported.append))
        assert len(rows) == 14 and not reported
        assert {(row["group"], row["topic"]) for row in rows} == {("popg", "TopicA")}
        assert {row["due_timestamp_ms"] - row["pop_timestamp_ms"] for row in rows} == {600_000}
        places = {(row["queue_id"], row["queue_offset"]) for row in rows}
        assert len(places) == 14
        if name != RUNNING:  # it has no units on disk
            assert all(store.get_by_queue_offset("TopicA", *place) for place in places)
        assert [row["due_timestamp_ms"] for row in rows] == sorted(row["due_timestamp_ms"] for row in rows)


def test_timer_messages(cases: Library, tmp_path: Path) -> None:
    """All that the broker kept, and of these what waits: four timers, four checks and acks of POP."""
    store = cases.copy(COMBINED, tmp_path / "store")
    reported: list[Any] = []
    with unchanged(store), Store.open(store) as opened:
        rows = list(timer_rows(opened, Selection(), reported.append))
        later = list(timer_rows(opened, Selection(since=1_795_420_462_000, limit=2), reported.append))
        waiting = list(pending.timers(opened))
        for row in rows:
            found = opened.find(row["physical_offset"])
            assert found is not None and found.message.topic == "rmq_sys_wheel_timer"
            assert found.end - found.physical_offset == row["size"]
            values = properties.decode(found.message.properties_bytes)
            assert row["deliver_timestamp_ms"] - int(values["TIMER_OUT_MS"]) in range(1000)
    assert len(rows) == 11 and not reported and later == rows[7:9]
    assert [row["real_topic"] for row in rows].count("TopicTimer") == 7
    assert [row["delivered"] for row in rows] == [True] * 3 + [False] * 8
    assert [each.kind for each in waiting] == ["timer", "pop"]
    for each, part in zip(waiting, (rows[7:], rows[3:7]), strict=True):
        assert each.due.tolist() == [row["deliver_timestamp_ms"] for row in part]
        assert each.sizes.tolist() == [row["size"] for row in part]
    (table,) = (path for path in (store / "rocksdbstore").glob("*.sst") if b"timeline" in path.read_bytes())
    patch(table, table.read_bytes().index(b"timeline"), b"x")
    assert "RD10" in codes_of(store)
    with Store.open(store) as opened:
        assert not list(timer_rows(opened, Selection(), reported.append))
    assert {each.problem.code for each in reported} <= {"RD10"}


QUEUES, SIDE = "in RocksDB (consumequeue)", "in RocksDB (rocksdbstore)"
TIMER = f"{SIDE}: 11 entries, 8 pending"


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        (COMBINED, {"queues": f"in files and {QUEUES}", "index": f"in files and {SIDE}", "timer": TIMER}),
        (
            "kind_rocksdb_540",
            {"queues": QUEUES, "POP records": "in RocksDB (kvStore)", "config": "in RocksDB (config)"},
        ),
        ("kind_trans_540", {"transactions": SIDE}),
        ("ok_540_small_ipv6", {}),
    ],
)
def test_which_parts_are_in_rocksdb(
    name: str, parts: dict[str, str], cases: Library, capfd: pytest.CaptureFixture[str]
) -> None:
    """In info, in doctor, and in JSON; the index files are named beside the index in RocksDB."""
    store = cases.path(name)
    main(["info", str(store)])
    lines = capfd.readouterr().out.splitlines()
    assert [line for line in lines if "in RocksDB" in line] == [f"{k:<12} {v}" for k, v in parts.items()]
    assert ("index files  1 file, 301 entries" in "\n".join(lines)) == (name == COMBINED)
    main(["info", str(store), "--json"])
    rows = json.loads(capfd.readouterr().out)["in_rocksdb"]
    timers = [(row["entries"], row["pending"]) for row in rows if row["what"] == "timer messages"]
    assert timers == [(11, 8)] * (name == COMBINED) and bool(rows) == bool(parts)
    main(["doctor", str(store)])
    out = " ".join(capfd.readouterr().out.split())
    assert ("; ".join(f"{k} {v}" for k, v in parts.items()) in out) and ("RocksDB" in out) == bool(parts)


@pytest.mark.parametrize(
    ("name", "passes", "text"),
    [
        (COMBINED, ["timer"], "checked 11 timer entries: sound"),
        ("kind_tiered_540", ["timer"], "checked 7 timer entries: sound"),
        ("ok_497_small_ipv6", ["timer"], "checked 0 timer entries: sound"),
        (COMBINED, ["index"], "601 index entries (300 in RocksDB)"),
    ],
)
def test_what_verify_checked(
    name: str, passes: list[str], text: str, cases: Library, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["verify", str(cases.path(name)), *(f"--pass={each}" for each in passes)]) == EXIT_OK
    assert text in capfd.readouterr().err


def test_traces_of_timer_messages(cases: Library, tmp_path: Path) -> None:
    """The database says what waits, without the timer's checkpoint in a file."""
    store = cases.copy(COMBINED, tmp_path / "store")
    (store / "config/timercheck").unlink()
    with Store.open(store) as opened:
        states = []
        for row in timer_rows(opened, Selection(), print):
            stored = opened.get(row["physical_offset"])
            assert stored is not None
            step = message_fate(opened, stored).steps[0]
            states.append((step.kind, step.state))
    assert states == [("timer", "delivered")] * 3 + [("timer", "waiting")] * 8


def test_open_transactions(cases: Library) -> None:
    """The log gives those that the broker has in RocksDB: op records name a half message by its offset."""
    path = cases.path("kind_trans_540")
    database = Database(path / "rocksdbstore")
    kept = [int.from_bytes(key[:8], "big") for key, _ in database.scan("trans") if b"@" in key]
    database.close()
    with unchanged(path), Store.open(path) as store:
        halves = [
            each for each in store.messages() if each.message.topic == "RMQ_SYS_ROCKSDB_TRANS_HALF_TOPIC"
        ]
        finished = {each.physical_offset: op_of(store, each.message) for each in halves}
        found = open_half(store, kept[0])
        found_stats = {row["state"]: row for row in transaction_rows(store)}
    assert [place for place, op in finished.items() if op is None] == kept
    assert found.physical_offset == kept[0] and len(halves) == 3
    counts = {state: row["count"] for state, row in found_stats.items()}
    assert counts == {"open": 1, "committed": 1, "rolled_back": 1, "put_back": 0}
    assert found_stats["open"]["first_physical_offset"] == kept[0]


def transaction_rows(store: Store) -> list[dict[str, Any]]:
    """The rows of `stats --transactions`."""
    (section,) = overview(store, Request(Selection(), transactions=True), lambda finding: None).sections
    return list(section.rows)


def test_damaged_pop_records(cases: Library, tmp_path: Path) -> None:
    store = cases.copy("kind_rocksdb_540", tmp_path / "store")
    (table,) = (path for path in (store / "kvStore").glob("*.sst") if b"groupId" in path.read_bytes())
    patch(table, table.read_bytes().index(b"groupId"), b"x")
    assert set(codes_of(store)) == {"RD10"}
    reported: list[Any] = []
    with Store.open(store) as opened:
        assert not list(pop_rows(opened.layout, reported.append))
    assert [each.problem.code for each in reported] == ["RD10"]
    (store / "kvStore/CURRENT").write_text("x")
    assert codes_of(store) == ["RD10"]


CONFIGS = "consumequeue config/topics config/subscriptionGroups config/consumerOffsets"
GONE, REST = "", r"LOCK|IDENTITY|OPTIONS-.*"
"""Which files of a database are left."""


@pytest.mark.parametrize(
    ("name", "folders", "left", "wanted"),
    [
        ("kind_rocksdb_540", "consumequeue", GONE, {"consumequeue": "RD06"}),
        ("kind_config_v2_540", "consumequeue config/rdb", GONE, {"consumequeue": "RD06"}),
        ("kind_rocksdb_533", CONFIGS, GONE, {"consumequeue": "RD06"}),
        ("kind_rocksdb_540_running", "consumequeue", r"\d+\.sst", {"consumequeue": "RD06"}),
        (COMBINED, "consumequeue", REST, {"consumequeue": "RD06"}),
        (COMBINED, "rocksdbstore", GONE, {"rocksdbstore": "RD13"}),
        ("kind_rocksdb_540", "kvStore rocksdbstore", REST, {"kvStore": "RD14", "rocksdbstore": "RD13"}),
        ("kind_trans_540", "rocksdbstore", GONE, {"rocksdbstore": "RD13"}),
    ],
)  # fmt: skip
def test_databases_that_are_gone(
    name: str, folders: str, left: str, wanted: dict[str, str], cases: Library, tmp_path: Path
) -> None:
    """Without broker.conf, what is left of the store shows that there was one: one finding for each."""
    store = cases.copy(name, tmp_path / "store")
    for folder in folders.split():
        for path in (store / folder).iterdir():
            if path.is_file() and re.fullmatch(left, path.name) is None:
                path.unlink()
        if left == GONE and not list((store / folder).iterdir()):
            (store / folder).rmdir()
    rows = [(row["path"], row["problem"]) for row in rows_of(store)]
    assert {path: code for path, code in rows if code in ("RD06", "RD13", "RD14")} == wanted
    assert not {"UN01", "CQ01", "CQ11", "CQ13"} & {code for _, code in rows}
    with Store.open(store) as opened:
        shown = {row["path"]: row["problem"] for row in store_info(opened)["problems"]}
    assert shown.items() >= wanted.items()


@pytest.mark.parametrize(
    ("setting", "folder", "code"),
    [("popConsumerKVServiceInit", "kvStore", "RD14"), ("indexRocksDBEnable", "rocksdbstore", "RD13")],
)
def test_a_database_that_broker_conf_names(
    setting: str, folder: str, code: str, cases: Library, tmp_path: Path
) -> None:
    conf = tmp_path / "broker.conf"
    conf.write_text(f"{setting}=true\n")
    found = findings_of(cases.path("ok_540_small_ipv6"), broker_conf=conf)
    assert [(item.path, item.problem.code) for item in found] == [(folder, code)]


@pytest.mark.parametrize("lost", ["*.sst", "CURRENT", "MANIFEST-*", "*.log"])
@pytest.mark.parametrize(
    ("name", "folder"),
    [
        ("kind_combine_index_timer_540", "consumequeue"), ("kind_combine_index_timer_540", "rocksdbstore"),
        ("kind_rocksdb_540", "kvStore"), ("kind_rocksdb_540", "config/consumerOffsets"),
        ("kind_config_v2_540", "config/rdb"),
    ],
)  # fmt: skip
def test_lost_files_of_a_database(name: str, folder: str, lost: str, cases: Library, tmp_path: Path) -> None:
    """Each loss is one finding that names the database, and `info` and `recover` say the same.

    Only that of the write-ahead log of queues is none: a broker writes queues without it.
    """
    store = cases.copy(name, tmp_path / "store")
    files = list((store / folder).glob(lost))
    for path in files:
        path.unlink()
    of_queues = folder == "consumequeue"
    wanted = ("" if of_queues else "RD11") if lost == "*.log" else "RD01" if of_queues else "RD10"
    with Store.open(store) as opened:
        shown = [row for row in store_info(opened)["problems"] if row["problem"].startswith("RD")]
        plan = plan_recover(opened, RecoverRequest())
    assert files and [row["problem"] for row in shown] == [wanted][: len(wanted)]
    assert all(row["path"].startswith(folder) for row in shown)
    of_timer = {"TM04"} if folder == "rocksdbstore" and wanted == "RD10" else set()
    assert {row["problem"] for row in rows_of(store)} == {wanted, *of_timer} - {""}
    said = [*plan.plan.summary["warnings"], *(each.reason for each in plan.refusals)]
    assert any(action.database for action in plan.plan.actions) == (wanted == "RD01")
    assert any("which rmqtool cannot repair" in each or "RD10" in each for each in said) == (wanted == "RD10")


@pytest.mark.parametrize(
    ("name", "folder"),
    [
        (COMBINED, "consumequeue"), (COMBINED, "rocksdbstore"), ("kind_trans_540", "rocksdbstore"),
        ("kind_rocksdb_540", "kvStore"), ("kind_rocksdb_540", "config/topics"),
        ("kind_rocksdb_540", "config/consumerOffsets"), ("kind_config_v2_540", "config/rdb"),
    ],
)  # fmt: skip
def test_a_manifest_that_lost_its_end(name: str, folder: str, cases: Library, tmp_path: Path) -> None:
    """RocksDB opens the rest, and deletes the tables; a start is said to lose what is in them.

    After a crash tables that are not named are normal, as long as the write-ahead log before them is there.
    """
    store = cases.copy(name, tmp_path / "store")
    (manifest,) = (store / folder).glob("MANIFEST-*")
    content, tables = manifest.read_bytes(), [path.name for path in (store / folder).glob("*.sst")]
    manifest.write_bytes(content[: len(content) // 2])
    (row,) = (row for row in rows_of(store) if row["problem"] == "RD15")
    assert row["path"] == folder and set(row["detail"]["tables"]) <= set(tables)
    if folder != "consumequeue":
        with Store.open(store) as opened:
            (found,) = predict_all(opened, ["5.4"])
        assert [(each.path, each.problem, each.ends) for each in found.unread_config] == [
            (folder, "RD15", False)
        ]
    (store / "abort").touch()
    assert ("RD15" in codes_of(store)) == (folder != "consumequeue")  # its log is empty, and stays
    manifest.write_bytes(content)
    (store / folder / "000900.sst").write_bytes(b"a flush that a crash ended")
    assert "RD15" not in codes_of(store)
    (store / "abort").unlink()
    assert "RD15" in codes_of(store)


def flip_the_last_byte(folder: Path) -> None:
    (manifest,) = folder.glob("MANIFEST-*")
    content = manifest.read_bytes()
    manifest.write_bytes(content[:-1] + bytes((content[-1] ^ 1,)))


def cut_the_line(folder: Path) -> None:
    (folder / "CURRENT").write_text((folder / "CURRENT").read_text().rstrip("\n"))


def lengthen_a_table(folder: Path) -> None:
    with max(folder.glob("*.sst")).open("ab") as file:
        file.write(b"garbage!garbage!")


@pytest.mark.parametrize("damage", [flip_the_last_byte, cut_the_line, lengthen_a_table])
@pytest.mark.parametrize(
    ("name", "folder"),
    [
        (COMBINED, "consumequeue"), (COMBINED, "rocksdbstore"), ("kind_rocksdb_540", "consumequeue"),
        ("kind_rocksdb_540", "kvStore"), ("kind_rocksdb_540", "config/topics"),
        ("kind_config_v2_540", "config/rdb"),
    ],
)  # fmt: skip
def test_what_rocksdb_does_not_open(
    name: str, folder: str, damage: Callable[[Path], None], cases: Library, tmp_path: Path
) -> None:
    """A broker of 5.4.0 was seen not to start with such queues, or such a configuration."""
    store = cases.copy(name, tmp_path / "store")
    damage(store / folder)
    code = "RD01" if folder == "consumequeue" else "RD10"
    assert [row["path"] for row in rows_of(store) if row["problem"] == code] == [
        path for path in files_that_differ(cases.path(name) / folder, store / folder, folder)
    ]
    with Store.open(store) as opened:
        (found,) = predict_all(opened, ["5.4"])
    assert found.loads == (folder != "consumequeue")
    assert [each.ends for each in found.unread_config] == [True] * folder.startswith("config")


def files_that_differ(before: Path, after: Path, folder: str) -> list[str]:
    return [
        f"{folder}/{path.name}"
        for path in sorted(after.iterdir())
        if path.is_file() and path.read_bytes() != (before / path.name).read_bytes()
    ]


def test_config_in_one_database(tmp_path: Path, cases: Library) -> None:
    """useSingleRocksDBForAllConfigs: the same rows in column families of one folder."""
    store = cases.copy("kind_rocksdb_540", tmp_path / "store")
    rows: dict[str, dict[bytes, bytes]] = {"default": {}}
    for folder, family in (("topics", "topic"), ("subscriptionGroups", "subscriptionGroup"),
                           ("consumerOffsets", "consumerOffset")):  # fmt: skip
        database = Database(store / "config" / folder)
        rows[family] = dict(database.scan("default"))
        rows[f"{family}Version"] = dict(database.scan("kvDataVersion"))
        database.close()
    write_rows(store / "config/metadata", rows)
    with Store.open(cases.path("kind_rocksdb_540")) as three, Store.open(store) as one:
        for name in ("topics.json", "subscriptionGroup.json", "consumerOffset.json"):
            mine, theirs = document(one, name), document(three, name)
            assert {**mine, "forbiddenTable": 0} == {**theirs, "forbiddenTable": 0}


def test_config_that_cannot_be_read(cases: Library, tmp_path: Path) -> None:
    """The parts are named as not read; everything else is."""
    store = cases.copy("kind_rocksdb_540", tmp_path / "store")
    (store / "config/topics/CURRENT").write_text("x")
    with Store.open(store) as opened:
        reasons = {part.reason for part in opened.layout.unsupported if part.what == "config"}
        assert reasons == {"it does not name a MANIFEST"}
        assert "topics.json" not in opened.layout.config and opened.max_offset("TopicA", 0) == 30


def test_one_of_three_databases_cannot_be_read(cases: Library, tmp_path: Path) -> None:
    """The others are read, so that the committed offsets are known without the topics, and the reverse."""
    store = cases.copy("kind_rocksdb_540", tmp_path / "store")
    (store / "config/topics/CURRENT").write_text("x")
    with Store.open(store) as opened:
        assert known_offsets(opened) == known_offsets_of(cases.path("kind_rocksdb_540"))
    rows = {row["problem"]: row for row in rows_of(store)}
    assert set(rows) == {"RD10"} and rows["RD10"]["path"] == "config/topics/CURRENT"
    only_config = {item.problem.code: item.path for item in findings_of(store, passes=("config",))}
    assert only_config == {"CF02": "config/topics"}
    topics = store / "config/topics.json"  # from before the database: it does not show which topics there are
    topics.write_text('{"topicConfigTable":{}}')
    assert [item.problem.code for item in findings_of(store, passes=("config",))] == ["CF02"]
    topics.unlink()
    shutil.rmtree(store / "config/consumerOffsets")
    (store / "config/topics/CURRENT").write_bytes(
        (cases.path("kind_rocksdb_540") / "config/topics/CURRENT").read_bytes()
    )
    rows = {row["problem"]: row for row in rows_of(store)}
    assert set(rows) == {"CF08"} and rows["CF08"]["path"] == "config/consumerOffsets"
    assert "config/consumerOffsets is missing" in rows["CF08"]["message"]
    with Store.open(store) as opened:
        assert "config/consumerOffsets" in known_offsets(opened, needed=True)[1][0]


FOLDERS = {"CF06": "topics", "CF08": "consumerOffsets", "CF09": "subscriptionGroups"}
REFUSED = "reset-offset does not write RocksDB"


def test_lost_configuration_names_the_folders(
    cases: Library, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With one database lost reset-offset is refused; with all of them a broker takes its file over."""
    monkeypatch.setenv("COLUMNS", "10000")
    store = cases.copy("kind_rocksdb_540", tmp_path / "store")
    reset = ["reset-offset", str(store), "--group", "cg1", "--topic", "TopicA", "--from", "earliest"]
    shutil.rmtree(store / "config/consumerOffsets")
    (lost,) = rows_of(store)
    assert "the folder config/consumerOffsets from" in lost["repair"] and REFUSED in lost["repair"]
    assert main(reset) == 4
    for folder in FOLDERS.values():
        shutil.rmtree(store / "config" / folder, ignore_errors=True)
    rows = {row["problem"]: row for row in rows_of(store)}
    assert rows.keys() == FOLDERS.keys()
    for code, folder in FOLDERS.items():
        assert f"{folder} (RocksDB) and " in rows[code]["message"]
        assert f"the folder config/{folder} (config/metadata with" in rows[code]["repair"]
    for code in ("CF06", "CF08"):
        assert "into RocksDB" in rows[code]["repair"] and REFUSED not in rows[code]["repair"]
        assert "except with configManagerVersion=v2" in rows[code]["repair"]
    capfd.readouterr()
    for command in (["doctor"], ["verify"], ["recover"]):
        main([command[0], str(store)])
        shown = " ".join("".join(capfd.readouterr()).split())
        assert "Copy the folder config/consumerOffsets (RocksDB) from a backup" in shown, command
        assert command != ["doctor"] or "CF09 groups missing" in shown
    assert main([*reset, "--apply"]) == EXIT_OK
    written = config_json.parse((store / "config/consumerOffset.json").read_bytes())
    assert config_json.version_counter(written) > 0  # larger than that of a new database


def test_lost_files_of_config_name_no_folders(cases: Library, tmp_path: Path) -> None:
    """A broker with queues in files has its configuration in files."""
    store = cases.copy("ok_540_clean", tmp_path / "store")
    for path in (store / "config").glob("consumerOffset.json*"):
        path.unlink()
    (lost,) = (row for row in rows_of(store) if row["problem"] == "CF08")
    assert "RocksDB" not in lost["message"] + lost["repair"]


def test_topics_that_are_lost_are_made_again(cases: Library, tmp_path: Path) -> None:
    """In topics.json, which a broker takes into a new database."""
    store = cases.copy("kind_rocksdb_540", tmp_path / "store")
    shutil.rmtree(store / "config/topics")
    rows = {row["problem"]: row for row in rows_of(store)}
    assert set(rows) == {"CF06"} and rows["CF06"]["path"] == "config/topics"
    assert "the RocksDB database config/topics is missing: all" in rows["CF06"]["message"]
    assert main(["recover", str(store), "--apply", "--yes", "--quiet"]) == EXIT_OK
    assert not rows_of(store)
    with Store.open(store) as opened, Store.open(cases.path("kind_rocksdb_540")) as before:
        mine, theirs = (config_json.topics(document(each, "topics.json")) for each in (opened, before))
    assert {"TopicA", "TopicB", "%RETRY%cg1"} <= set(mine) <= set(theirs)
    assert mine["TopicA"].write_queue_nums == 2 <= theirs["TopicA"].write_queue_nums


def test_a_file_of_version_0_beside_a_lost_database(cases: Library, tmp_path: Path) -> None:
    """5.4.0 was seen not to read it: the new database has the same version."""
    store = cases.copy("kind_rocksdb_540", tmp_path / "store")
    for name in ("topics", "consumerOffsets"):
        shutil.rmtree(store / "config" / name)
    file, other = store / "config/consumerOffset.json", store / "config/topics.json"
    for version in ({}, {"dataVersion": {"counter": 0}}, {"dataVersion": {"counter": 1}}):
        counts = version.get("dataVersion", {}).get("counter", 0)
        file.write_text(json.dumps({**version, "offsetTable": {"TopicA@cg1": {"0": 7}}}))
        other.write_text(json.dumps({**version, "topicConfigTable": {"TopicA": {"topicName": "TopicA"}}}))
        rows = {row["problem"]: row["message"] for row in rows_of(store)}
        assert {"CF06", "CF08"} & rows.keys() == (set() if counts else {"CF06", "CF08"})
        assert all("counter of its dataVersion is 0" in rows[code] for code in ("CF06", "CF08") if not counts)
        assert known_offsets_of(store)[0] == ({("TopicA", "cg1"): {0: 7}} if counts else {})
    other.write_text(json.dumps({"topicConfigTable": {}}))
    assert main(["recover", str(store), "--apply", "--yes", "--quiet"]) == EXIT_OK
    with Store.open(store) as opened:
        assert "TopicB" in config_json.topics(document(opened, "topics.json"))


def known_offsets_of(path: Path) -> tuple[Any, list[str]]:
    with Store.open(path) as opened:
        return known_offsets(opened)


@pytest.mark.parametrize("name", ["kind_rocksdb_540", "kind_config_v2_540"])
def test_a_file_beside_committed_offsets(name: str, cases: Library, tmp_path: Path) -> None:
    """One with a larger version replaces them when a broker of v1 starts; one of v2 reads no file."""
    store = cases.copy(name, tmp_path / "store")
    before = known_offsets_of(store)
    file = store / "config/consumerOffset.json"
    table = {"TopicA@cg1": {"0": 7}, "TopicB@another": {"0": 3}}
    for counter, wins in ((0, False), (1 << 30, "v2" not in name)):
        file.write_text(json.dumps({"dataVersion": {"counter": counter}, "offsetTable": table}))
        now = {("TopicA", "cg1"): {0: 7}, ("TopicB", "another"): {0: 3}}
        assert known_offsets_of(store) == ((now, []) if wins else before)
        rows = [row for row in rows_of(store) if row["problem"] not in ("CF04", "CF14")]
        assert [row["problem"] for row in rows] == (["CF10"] if wins else [])
        with Store.open(store) as opened:  # `expire` then refuses to delete what groups may need
            assert len(known_offsets(opened, needed=True)[1]) == wins
        if wins:
            assert rows[0]["detail"]["groups"] == 1 and rows[0]["detail"]["offsets"] >= 2


def test_a_missing_unit_does_not_end_a_queue(cases: Library) -> None:
    """A broker takes the end from the entry `max`."""
    with Store.open(cases.path("gap_cq02_in_rocksdb")) as store:
        assert store.max_offset("TopicA", 0) == 30
        assert store.get_by_queue_offset("TopicA", 0, 5) is None
        assert store.get_by_queue_offset("TopicA", 0, 6) is not None


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


def test_the_ends_of_an_initialized_queue(cases: Library, tmp_path: Path) -> None:
    """5.4 was seen to set both ends so when it begins to write twice: no unit is missing."""
    store = cases.copy(COMBINED, tmp_path / "store")
    gone = [(0, unit_key("TopicB", 0, number), None) for number in range(14)]
    ends = [(1, end_key(EndKey("TopicB", True, 0)), struct.pack(">qq", 0, 13))]
    for first, is_wrong in ((14, False), (13, True)):
        least = (1, end_key(EndKey("TopicB", False, 0)), struct.pack(">qq", 0, first))
        (store / "consumequeue/000900.log").write_bytes(write_ahead_log([*gone, *ends, least]))
        assert ("RD02" in codes_of(store)) == is_wrong


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
    rows = rows_of(store)
    assert [row["problem"] for row in rows] == ["RD01"]
    assert rows[0]["path"] == "consumequeue/000011.sst" and rows[0]["physical_offset"] > 0
    assert report_of(store).units >= 18
    queues = queues_of(store)
    wrong = [
        (1, end_key(key), struct.pack(">qq", end.physical_offset + 1, end.queue_offset))
        for key, end in queues.ends.items()
        if key.is_max
    ]
    queues.database.close()
    wrong.append((1, end_key(EndKey(rocksdb_queue.CHECKPOINT_TOPIC, True, 0)), struct.pack(">q", 5)))
    (store / "consumequeue/000900.log").write_bytes(write_ahead_log(wrong))
    assert {"RD01", "RD02", "RD04"} <= set(codes_of(store))


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
