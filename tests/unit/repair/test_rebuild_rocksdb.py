"""`rebuild` of consume queues in RocksDB: a new database from the log, with all units, and the way back."""

from __future__ import annotations

import json
import os
import shutil
import signal
import struct
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

from rmqtool.broker.predict import predict
from rmqtool.cli import main
from rmqtool.errors import EXIT_FINDINGS, EXIT_IN_USE, EXIT_INPUT, EXIT_OK, EXIT_REFUSED
from rmqtool.formats.rocksdb_queue import CHECKPOINT_TOPIC, ENDS, UNIT_VALUE, UNITS, EndKey, end_key, unit_key
from rmqtool.read.store import Store
from rmqtool.repair.recover.assemble import plan_recover
from rmqtool.repair.recover.request import Request
from rmqtool.storage.rocksdb.database import Database
from rmqtool.storage.unsupported import is_rocksdb_file
from rmqtool.write.records.message import NewMessage
from rmqtool.write.store_writer import StoreWriter
from tests.support.build_store import patch, write_store
from tests.support.hard_limits import mounted
from tests.support.programs import PATIENCE_S, started
from tests.support.records import record
from tests.support.recover_checks import recovered
from tests.support.rocksdb_databases import write_ahead_log
from tests.support.stores import Library, case
from tests.support.sweep import IS_WHOLE
from tests.support.trees import copy_tree, tree_rows, unchanged
from tests.support.two_sides import begin_of_record, cut_database, cut_log, lose_database, with_batches
from tests.support.whole_store import codes_of, findings_of, report_of

pytestmark = pytest.mark.usefixtures("json_lines")

Capture = pytest.CaptureFixture[str]
Rows = dict[str, dict[bytes, bytes]]
NAME = "kind_rocksdb_540"
COMBINED = "kind_combine_index_timer_540"
DELAYED = "SCHEDULE_TOPIC_XXXX"


def rows_of(root: Path) -> Rows:
    """What the database of queues holds."""
    database = Database(root / "consumequeue")
    try:
        return {family: dict(database.scan(family)) for family in (UNITS, ENDS)}
    finally:
        database.close()


def without_minima(rows: Rows) -> Rows:
    """Without the entries that a broker makes when it is asked for the minimum of a queue."""
    return {**rows, ENDS: {key: value for key, value in rows[ENDS].items() if b"\1min\1" not in key}}


def conf_of(name: str, folder: Path) -> Path:
    path = folder / f"{name}.conf"
    lines = (case(name).folder / "broker.conf").read_text().splitlines()
    path.write_text("\n".join(line for line in lines if not line.startswith("storePath")))
    return path


def rebuild(root: Path, *words: object) -> int:
    return main(["rebuild", str(root), *map(str, words)])


def is_gone(folder: Path) -> None:
    shutil.rmtree(folder)


def has_no_current(folder: Path) -> None:
    (folder / "CURRENT").unlink()


def has_a_damaged_block(folder: Path) -> None:
    patch(folder / "000010.sst", 5000, b"\xff" * 8)


def lacks_a_unit(folder: Path) -> None:
    """A change of a write-ahead log, as another tool may leave it."""
    log = write_ahead_log([(0, unit_key("TopicA", 0, 5), None)])
    (folder / "000900.log").write_bytes(log)


def has_a_wrong_end(folder: Path) -> None:
    log = write_ahead_log([(1, end_key(EndKey("TopicA", True, 0)), struct.pack(">qq", 22816, 29))])
    (folder / "000900.log").write_bytes(log)


DAMAGE: tuple[Callable[[Path], None], ...] = (
    is_gone, has_no_current, has_a_damaged_block, lacks_a_unit, has_a_wrong_end,
)  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_is_repaired_and_can_be_undone(
    damage: Callable[[Path], None], cases: Library, tmp_path: Path, capfd: Capture
) -> None:
    """The database holds the rows of the broker's; the plan changes nothing; undone, every byte is back."""
    store, conf = cases.copy(NAME, tmp_path / "store"), conf_of(NAME, tmp_path)
    wanted = without_minima(rows_of(store))
    damage(store / "consumequeue")
    before = [row for row in tree_rows(store) if row[0] not in (".", "lock")]
    with unchanged(store):
        assert rebuild(store, "--broker-conf", conf) == EXIT_FINDINGS
        assert rebuild(store, "--broker-conf", conf, "--write-plan", tmp_path / "plan") == EXIT_FINDINGS
    arguments = (
        "--broker-conf",
        conf,
        "--apply",
        "--plan",
        tmp_path / "plan",
        "--backup-dir",
        tmp_path / "kept",
    )
    assert rebuild(store, *arguments) == EXIT_OK
    assert rows_of(store) == wanted and not codes_of(store)
    kept = {path.name for path in (store / "consumequeue").iterdir()}
    assert {name for name in kept if name in ("LOG", "LOCK", "rocksdict-config.json")} == set()
    assert rebuild(store, "--broker-conf", conf) == EXIT_OK
    assert main(["recover", str(store), "--undo", str(tmp_path / "kept")]) == EXIT_OK
    assert [row for row in tree_rows(store) if row[0] not in (".", "lock")] == before
    capfd.readouterr()


@pytest.mark.parametrize("name", ["kind_rocksdb_533", "kind_rocksdb_540_files", "kind_config_v2_540"])
def test_databases_of_brokers(name: str, cases: Library, tmp_path: Path) -> None:
    """All units: of 1,300 the broker's own rebuild of the store with 16 files makes 805."""
    store, conf = cases.copy(name, tmp_path / "store"), conf_of(name, tmp_path)
    wanted = without_minima(rows_of(store))
    shutil.rmtree(store / "consumequeue")
    assert codes_of(store) == ["RD06"]
    assert rebuild(store, "--broker-conf", conf, "--apply") == EXIT_OK
    assert rows_of(store) == wanted
    report = report_of(store)
    assert report.units == report.records and not codes_of(store)


def test_both_sides_of_a_double_write(cases: Library, tmp_path: Path) -> None:
    store, conf = cases.copy(COMBINED, tmp_path / "store"), conf_of(COMBINED, tmp_path)
    wanted = rows_of(store)
    for path in (store / "consumequeue").glob("*.sst"):
        path.write_bytes(b"x")
    patch(store / "consumequeue/TopicA/0/00000000000000000000", 0, bytes(7) + b"\7")
    assert {"CQ05", "RD01"} <= set(codes_of(store))
    assert rebuild(store, "--broker-conf", conf, "--topic", "TopicA", "--apply") == EXIT_OK  # only in files
    assert {"CQ05", "RD01"} & set(codes_of(store)) == {"RD01"}
    patch(store / "consumequeue/TopicA/0/00000000000000000000", 0, bytes(7) + b"\7")
    assert rebuild(store, "--broker-conf", conf, "--apply") == EXIT_OK
    assert rows_of(store) == wanted and not codes_of(store)
    assert rebuild(store, "--broker-conf", conf) == EXIT_OK


@pytest.mark.parametrize(
    ("damage", "code"),
    [
        (lambda root: cut_database(root, begin_of_record(root, 66), only="TopicB"), "RD12"),
        (lambda root: cut_database(root, begin_of_record(root, 60)), "RD12"),
        (lambda root: cut_log(root, begin_of_record(root, 60)), "RD12"),
        (lose_database, "RD06"),
    ],
)
def test_a_start_that_serves_from_rocksdb(
    damage: Callable[[Path], object], code: str, cases: Library, tmp_path: Path
) -> None:
    """Whatever one side has lost, `verify` finds it, and after `recover` a start serves every message."""
    store, conf = cases.copy(COMBINED, tmp_path / "store"), conf_of(COMBINED, tmp_path)
    conf.write_text(f"{conf.read_text()}\ncombineCQPreferCQType=defaultRocksDB\n")
    damage(store)
    assert code in {each.problem.code for each in findings_of(store, broker_conf=conf)}
    recovered(store, conf=conf, yes=True)
    with Store.open(store, broker_conf=conf) as opened:
        found = predict(opened, "5.4")
    assert found.loads and not found.messages_unreachable
    served, others = (
        {key: (queue.min_after, queue.max_after) for key, queue in side.items() if queue.max_after}
        for side in (found.queues, found.second_queues)
    )
    assert served == others
    assert not {"CQ02", "CQ03", "CQ13", "RD05", "RD06", "RD12"} & set(codes_of(store))


def index_rows(root: Path) -> Rows:
    """What the database of index, timer messages and open transactions holds."""
    database = Database(root / "rocksdbstore")
    try:
        return {family: dict(database.scan(family)) for family in ("default", "timer", "trans")}
    finally:
        database.close()


def index_is_gone(root: Path) -> None:
    shutil.rmtree(root / "rocksdbstore")


def index_has_a_damaged_block(root: Path) -> None:
    (table,) = (path for path in (root / "rocksdbstore").glob("*.sst") if b"@U@" in path.read_bytes())
    patch(table, 500, b"\xff")


def index_lacks_a_file(root: Path) -> None:
    (root / "rocksdbstore/CURRENT").unlink()


@pytest.mark.parametrize(
    ("damage", "codes", "is_left"),
    [
        (index_is_gone, {"RD13", "TM04"}, False),
        (index_has_a_damaged_block, {"RD10", "TM04"}, True),
        ("bad_rd07_entry_missing", {"RD07"}, True),
        ("bad_rd09_end_of_index", {"RD09"}, True),
    ],
)
def test_an_index_in_rocksdb(
    damage: Callable[[Path], None] | str, codes: set[str], is_left: bool, cases: Library, tmp_path: Path,
    capfd: Capture,
) -> None:  # fmt: skip
    """It holds the rows of the broker's, and timer messages as before; undone, every byte is back."""
    wanted = index_rows(cases.path(COMBINED))
    if isinstance(damage, str):
        store = cases.copy(damage, tmp_path / "store")
    else:
        store = cases.copy(COMBINED, tmp_path / "store")
        damage(store)
    words = ("--broker-conf", conf_of(COMBINED, tmp_path), "--only", "index")
    before = [row for row in tree_rows(store) if row[0] not in (".", "lock")]
    found = findings_of(store, broker_conf=words[1])
    assert {each.problem.code for each in found} == codes
    with unchanged(store):
        assert rebuild(store, *words) == EXIT_FINDINGS
        assert rebuild(store, "--only", "queues", *words[:2]) == EXIT_OK
    assert rebuild(store, *words, "--apply", "--backup-dir", tmp_path / "kept") == EXIT_OK
    assert ("are lost, only the index is made again" in capfd.readouterr().err) != is_left
    assert index_rows(store) == (wanted if is_left else wanted | {"timer": {}})
    assert not findings_of(store, broker_conf=words[1]) and rebuild(store, *words) == EXIT_OK
    assert main(["recover", str(store), "--undo", str(tmp_path / "kept")]) == EXIT_OK
    assert [row for row in tree_rows(store) if row[0] not in (".", "lock")] == before
    capfd.readouterr()
    expected = EXIT_INPUT if "RD10" in codes else EXIT_FINDINGS
    assert main(["recover", str(store), *map(str, words[:2])]) == expected
    assert ("stays as it is" in capfd.readouterr().out) == ("TM04" in codes)


def test_a_queue_that_is_written_twice_changes_twice(cases: Library, tmp_path: Path) -> None:
    """A filler has another tags code than the message that it replaces, in files and in RocksDB."""
    store = cases.copy(COMBINED, tmp_path / "store")
    log = sorted((store / "commitlog").iterdir())[0]
    patch(log, log.read_bytes().index(b"UNIQ_KEY") - 40, b"\0\xff\0")
    assert codes_of(store)
    assert (
        main(["recover", str(store), "--apply", "--yes", "--backup-dir", str(tmp_path / "kept")]) == EXIT_OK
    )
    assert set(codes_of(store)) <= {"CL13"}


def test_an_index_next_to_what_cannot_be_read(cases: Library, tmp_path: Path, capfd: Capture) -> None:
    """Timer messages are in the same database: it stays, and the reason is shown."""
    store, conf = cases.copy(COMBINED, tmp_path / "store"), conf_of(COMBINED, tmp_path)
    index_lacks_a_file(store)
    with unchanged(store):
        assert rebuild(store, "--broker-conf", conf, "--apply") == EXIT_REFUSED
    assert "timer messages or open transactions next to the index cannot be read" in capfd.readouterr().out


def test_index_files_are_not_made_next_to_an_index_in_rocksdb(cases: Library, tmp_path: Path) -> None:
    """A broker that writes no index files has none; `verify` misses none either."""
    store = cases.copy(COMBINED, tmp_path / "store")
    for path in (store / "index").iterdir():
        path.unlink()
    assert not codes_of(store) and rebuild(store) == EXIT_OK


def test_single_queues_are_refused(cases: Library, tmp_path: Path, capfd: Capture) -> None:
    store = cases.copy(NAME, tmp_path / "store")
    lacks_a_unit(store / "consumequeue")
    with unchanged(store):
        assert rebuild(store, "--topic", "TopicA") == EXIT_REFUSED
    assert "leave out --topic" in capfd.readouterr().err


def test_without_the_library(
    cases: Library, tmp_path: Path, capfd: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The plan is shown; it is not begun, and the error names the extra."""
    store = cases.copy(NAME, tmp_path / "store")
    lacks_a_unit(store / "consumequeue")
    monkeypatch.setitem(sys.modules, "rocksdict", None)
    with unchanged(store):
        assert rebuild(store) == EXIT_FINDINGS
    before = [row for row in tree_rows(store) if row[0] not in (".", "lock")]
    for command in (["rebuild"], ["recover"]):
        capfd.readouterr()
        assert main([command[0], str(store), "--apply"]) == EXIT_INPUT
        assert "pip install 'rmqtool[rocksdb]'" in capfd.readouterr().err
    assert [row for row in tree_rows(store) if row[0] not in (".", "lock")] == before


# stores of any content


OF_ROCKSDB = "storeType=defaultRocksDB\nmappedFileSizeCommitLog=65536\n"


def written(root: Path, seed: int, count: int = 1500) -> tuple[dict[bytes, bytes], Path]:
    """A store of several kinds of messages; the units that a database of its queues has; broker.conf."""
    rng = Random(seed)
    with StoreWriter.create(root, "5.4", auto_create_queues=4, commit_log_file_size=65536) as writer:
        for number in range(count):
            topic = rng.choice(("TopicA", "TopicB", "C", "T" * 120))
            message = NewMessage(
                topic=topic, body=rng.randbytes(rng.randrange(60)), tags=rng.choice(("", "a", "b")),
                queue_id=rng.randrange(4), born_timestamp=1_700_000_000_000 + number,
            )  # fmt: skip
            if number % 7 == 0:
                message = replace(message, delay_level=rng.randrange(1, 5))
            writer.put(message)
    units = {}
    with Store.open(root) as store:
        for (topic, queue_id), queue in store.queues.items():
            for number, unit in queue.units():
                found = store.find(unit.physical_offset)
                assert found is not None
                value = UNIT_VALUE.pack(*unit[:3], found.message.store_timestamp)
                units[unit_key(topic, queue_id, number)] = value
        end = store.end_offset()
    ends = {end_key(EndKey(CHECKPOINT_TOPIC, True, 0)): struct.pack(">q", end)}
    conf = root.with_name("broker.conf")
    conf.write_text(OF_ROCKSDB)
    shutil.rmtree(root / "consumequeue")
    return units | ends, conf


@pytest.mark.parametrize("seed", range(2))
def test_any_store(seed: int, tmp_path: Path) -> None:
    """Every unit of the queues in files, with its store time, and the end of dispatch."""
    root = tmp_path / "store"
    wanted, conf = written(root, seed)
    assert rebuild(root, "--broker-conf", conf, "--apply") == EXIT_OK
    rows = rows_of(root)
    assert len(rows[UNITS]) == 1500
    assert {**rows[UNITS], **{k: v for k, v in rows[ENDS].items() if k in wanted}} == wanted
    with Store.open(root, broker_conf=conf) as store:
        assert store.layout.has_queues_in_rocksdb
        for key in store.queues:
            assert store.min_offset(*key) == 0 and store.max_offset(*key) > 0
    assert not set(codes_of(root)) - {"CF03"}


def with_an_expired_queue(root: Path) -> None:
    """A store whose first log file, with all messages of the topic Old, can be deleted."""
    with StoreWriter.create(root, "5.4", auto_create_queues=1, commit_log_file_size=65536) as writer:
        for number in range(900):
            writer.put(NewMessage(topic="Old" if number < 20 else "New", body=b"x" * 100, queue_id=0))


def test_a_queue_whose_records_have_expired(tmp_path: Path) -> None:
    """Its next message gets the queue offset after the last one; the database alone knows it."""
    root = tmp_path / "store"
    with_an_expired_queue(root)
    conf = tmp_path / "broker.conf"
    conf.write_text(OF_ROCKSDB)
    shutil.rmtree(root / "consumequeue")
    assert rebuild(root, "--broker-conf", conf, "--apply") == EXIT_OK
    before = rows_of(root)
    sorted((root / "commitlog").iterdir())[0].unlink()
    assert "CQ14" not in codes_of(root)
    with Store.open(
        root, broker_conf=conf
    ) as store:  # units of expired records were not served before, either
        for queue in predict(store, "5.4").queues.values():
            assert (queue.min_before, queue.max_before) == (queue.min_after, queue.max_after)
            assert queue.min_after == (20 if queue.topic == "Old" else queue.log_min)
    log = write_ahead_log([(0, unit_key("New", 0, 800), None)])
    (root / "consumequeue/000900.log").write_bytes(log)
    assert rebuild(root, "--broker-conf", conf, "--apply") == EXIT_OK
    after = rows_of(root)
    assert after[ENDS] == before[ENDS]
    assert unit_key("Old", 0, 19) in after[UNITS] and unit_key("Old", 0, 18) not in after[UNITS]
    first = min(number for number in range(900) if unit_key("New", 0, number) in after[UNITS])
    assert 100 < first < 800 and {key: before[UNITS][key] for key in after[UNITS]} == after[UNITS]
    assert not codes_of(root) and rebuild(root, "--broker-conf", conf) == EXIT_OK
    log = write_ahead_log([(0, unit_key("Old", 0, 19), None)])
    (root / "consumequeue/000900.log").write_bytes(log)
    table = {"offsetTable": {"Old@a": {"0": 20}, "New@a": {"0": 880}}}
    (root / "config/consumerOffset.json").write_text(json.dumps(table))
    for gone in (b"", write_ahead_log([(0, unit_key("New", 0, 800), None)], 1 << 41)):
        (root / "consumequeue/000901.log").write_bytes(gone)
        assert set(codes_of(root)) == ({"CF09", "CQ02"} if gone else {"CF09"})
        with Store.open(root) as store:  # no offset is past the end of its queue
            actions = plan_recover(store, Request()).plan.actions
        assert not [action.path for action in actions if action.path.startswith("config")]
        assert bool(actions) == bool(gone)


def test_recover_of_a_damaged_block_of_units(cases: Library, tmp_path: Path, capfd: Capture) -> None:
    """It had ended with the error instead of a plan."""
    root, conf = cases.copy(NAME, tmp_path / "store"), conf_of(NAME, tmp_path)
    wanted = without_minima(rows_of(root))
    patch(root / "consumequeue/000011.sst", 20, b"\xff")
    assert main(["recover", str(root), "--broker-conf", str(conf)]) == EXIT_FINDINGS
    assert main(["recover", str(root), "--broker-conf", str(conf), "--apply", "--yes"]) == EXIT_OK
    assert rows_of(root) == wanted and not codes_of(root)
    capfd.readouterr()


def test_a_queue_that_lost_all_messages(cases: Library, tmp_path: Path) -> None:
    """With the end of the log: its next message gets 0, so groups go back to there."""
    root, conf = cases.copy(NAME, tmp_path / "store"), conf_of(NAME, tmp_path)
    shutil.rmtree(root / "config")
    (root / "config").mkdir()
    table = {"TopicB@g": {"0": 9}, "TopicA@g": {"0": 30}}
    (root / "config/consumerOffset.json").write_text(json.dumps({"offsetTable": table}))
    cut_log(root, 20_000)
    recovered(root, conf=conf, yes=True)
    with Store.open(root, broker_conf=conf) as store:
        ends = [store.max_offset("TopicA", 0), predict(store, "5.4").queues["TopicA", 0].max_after]
        assert ("TopicB", 0) not in store.queues
    offsets = json.loads((root / "config/consumerOffset.json").read_text())["offsetTable"]
    assert ends == [26, 26]
    assert offsets == {"TopicB@g": {"0": 0}, "TopicA@g": {"0": 26}}


INITIALIZED = {
    end_key(EndKey("Old", is_max, 0)): struct.pack(">qq", 0, number)
    for is_max, number in ((True, 19), (False, 20))
}
"""The ends of a queue without units whose next message gets 20, as 5.4 writes them."""


def test_an_expired_queue_whose_end_only_files_know(tmp_path: Path) -> None:
    """A lost database of a double write gets it, or the next messages would use its numbers again."""
    root, conf = tmp_path / "store", tmp_path / "broker.conf"
    with_an_expired_queue(root)
    sorted((root / "commitlog").iterdir())[0].unlink()
    conf.write_text("rocksdbCQDoubleWriteEnable=true\nmappedFileSizeCommitLog=65536\n")
    (root / "consumequeue/IDENTITY").write_text("x")
    assert "RD06" in {each.problem.code for each in findings_of(root, broker_conf=conf)}
    assert rebuild(root, "--broker-conf", conf, "--apply") == EXIT_OK
    assert rows_of(root)[ENDS].items() >= INITIALIZED.items()
    assert not findings_of(root, broker_conf=conf) and rebuild(root, "--broker-conf", conf) == EXIT_OK
    conf.write_text(OF_ROCKSDB)
    with Store.open(root, broker_conf=conf) as store:
        for broker in ("5.3", "5.4"):
            assert predict(store, broker).queues["Old", 0].max_after == 20


def test_an_expired_queue_whose_end_only_groups_know(tmp_path: Path, capfd: Capture) -> None:
    """The largest committed offset: with a smaller queue offset, that group would miss the message."""
    root, conf = tmp_path / "store", tmp_path / "broker.conf"
    with_an_expired_queue(root)
    sorted((root / "commitlog").iterdir())[0].unlink()
    shutil.rmtree(root / "consumequeue")
    conf.write_text(OF_ROCKSDB)
    table = {"Old@a": {"0": 20}, "Old@b": {"0": 7}, "Gone@a": {"0": 9}, "New@a": {"0": 5}}
    (root / "config/consumerOffset.json").write_text(json.dumps({"offsetTable": table}))
    assert rebuild(root, "--broker-conf", conf, "--apply") == EXIT_OK
    assert "1, for example Old/0: only committed offsets" in capfd.readouterr().err
    ends = rows_of(root)[ENDS]
    assert ends.items() >= INITIALIZED.items() and not any(b"Gone" in key for key in ends)
    assert rebuild(root, "--broker-conf", conf) == EXIT_OK
    with Store.open(root, broker_conf=conf) as store:
        assert predict(store, "5.4").queues["Old", 0].max_after == 20
    lacks_a_row = write_ahead_log([(0, unit_key("New", 0, 800), None)])
    (root / "consumequeue/000900.log").write_bytes(lacks_a_row)
    (root / "config/consumerOffset.json").unlink()
    assert rebuild(root, "--broker-conf", conf, "--apply") == EXIT_OK
    assert rows_of(root)[ENDS].items() >= INITIALIZED.items()


def test_queue_offsets_that_repeat_or_are_left_out(tmp_path: Path, capfd: Capture) -> None:
    """One such queue does not leave the whole database damaged; the plan says what consumers miss."""
    root, conf = tmp_path / "store", tmp_path / "broker.conf"
    offsets = {"Again": (0, 1, 2, 3, 2, 3), "Gap": (0, 1, 7, 8), "Plain": (0, 1)}
    records = [record(topic, b"x", queue_offset=n) for topic, found in offsets.items() for n in found]
    write_store(root, [replace(each, queue_id=0) for each in records])
    shutil.rmtree(root / "consumequeue")
    conf.write_text("storeType=defaultRocksDB\nmappedFileSizeCommitLog=4096\n")
    for _ in range(2):
        assert rebuild(root, "--broker-conf", conf, "--apply") in (EXIT_OK, EXIT_FINDINGS)
        said = capfd.readouterr().err
        assert "the 5 queue offsets from 2 on of Gap/0" in said and "until its group is set to 7" in said
        assert "messages of Again/0 have queue offsets that earlier ones have, at 1 places" in said
        with Store.open(root, broker_conf=conf) as store:
            numbers = {topic: [n for n, _ in store.queues[topic, 0].units()] for topic in offsets}
            assert {topic: store.max_offset(topic, 0) for topic in offsets} == {
                "Again": 4,
                "Gap": 9,
                "Plain": 2,
            }
        assert numbers == {"Again": [0, 1, 2, 3], "Gap": [0, 1, 7, 8], "Plain": [0, 1]}
        log = write_ahead_log([(0, unit_key("Plain", 0, 1), None)])
        (root / "consumequeue/000900.log").write_bytes(log)


def test_batch_records(tmp_path: Path) -> None:
    """As brokers write them: one unit each, at their queue offsets, which leave out numbers."""
    root, conf = tmp_path / "store", tmp_path / "broker.conf"
    offsets = with_batches(root)
    conf.write_text(OF_ROCKSDB)
    for name in ("consumequeue", "batchconsumequeue"):
        shutil.rmtree(root / name)
    assert rebuild(root, "--broker-conf", conf, "--apply") == EXIT_OK
    with Store.open(root, broker_conf=conf) as store:
        assert [number for number, _ in store.queues["Inner", 0].units()] == offsets
        assert store.max_offset("Inner", 0) == offsets[-1] + 1
    assert not codes_of(root) and rebuild(root, "--broker-conf", conf) == EXIT_OK
    log = write_ahead_log([(0, unit_key("Inner", 0, 6), None)])
    (root / "consumequeue/000900.log").write_bytes(log)
    found = [each.row() for each in findings_of(root)]
    assert [(row["problem"], row["detail"]["queue_offset"]) for row in found] == [("CQ02", 6)]


def test_batch_queues_that_are_written_twice(tmp_path: Path) -> None:
    """5.3 was seen to write a unit for each batch record; where RocksDB has another one, it is found."""
    root, conf = tmp_path / "store", tmp_path / "broker.conf"
    offsets = with_batches(root)
    conf.write_text("rocksdbCQDoubleWriteEnable=true\nmappedFileSizeCommitLog=65536\n")
    (root / "consumequeue/IDENTITY").write_text("x")
    assert rebuild(root, "--broker-conf", conf, "--apply") == EXIT_OK
    assert not findings_of(root, broker_conf=conf)
    rows = rows_of(root)
    assert {unit_key("Inner", 0, number) for number in offsets} < rows[UNITS].keys()
    value = bytearray(rows[UNITS][unit_key("Inner", 0, 6)])
    value[7] ^= 1
    log = write_ahead_log([(0, unit_key("Inner", 0, 6), bytes(value))])
    (root / "consumequeue/000900.log").write_bytes(log)
    found = [each.row() for each in findings_of(root, broker_conf=conf)]
    assert [(row["problem"], row["detail"]["queue_offset"]) for row in found] == [("RD05", 6)]
    assert rebuild(root, "--broker-conf", conf, "--apply") == EXIT_OK
    assert rows_of(root) == rows


LOCK_HOLDER = """
import fcntl, sys
file = open(sys.argv[1], "r+")
fcntl.lockf(file, fcntl.LOCK_EX)
print(flush=True)
sys.stdin.read()
"""


def test_a_database_that_is_in_use(cases: Library, tmp_path: Path, capfd: Capture) -> None:
    """Its own lock counts too: nothing changes while another process holds it."""
    root = cases.copy("bad_rd01_damaged_manifest", tmp_path / "store")
    held = root / "consumequeue/LOCK"
    held.touch()
    with started([sys.executable, "-c", LOCK_HOLDER, held], stdin=subprocess.PIPE) as program:
        assert program.stdout.readline()
        with unchanged(root / "consumequeue"):
            assert rebuild(root, "--apply", "--force") == EXIT_IN_USE
        program.stdin.close()
    assert "holds its lock" in capfd.readouterr().err
    assert rebuild(root, "--apply", "--force") == EXIT_OK


# killed


CHILD = """
import sys
from pathlib import Path
from rmqtool.repair.rebuild.run import Request, rebuild_store
from tests.support.disk_calls import Stop, watched
from tests.support.recover_checks import opener
root, conf, backup, number = Path(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4])
stop = Stop(number, "before") if number else None
with watched(root.parent, stop=stop) as calls:
    rebuild_store(opener(root, conf), Request(), backup_dir=backup, force=True, jobs=1)
print(len(calls.done))
"""


def child(root: Path, conf: Path, backup: Path, number: int) -> tuple[int, str]:
    """A run in a process of its own, for a forked one has no threads of the library. (exit code, output)."""
    with started([sys.executable, "-c", CHILD, root, conf, backup, number]) as program:
        out, err = program.communicate(timeout=PATIENCE_S)
        assert program.returncode in (0, -signal.SIGKILL), err
        return program.returncode, out.decode()


def other_rows(root: Path) -> list[Any]:
    """The store without the database and times: two runs give the library's files other names of sessions."""
    return [
        (name, kind, size, digest)
        for name, kind, size, _, digest in tree_rows(root)
        if name not in (".", "lock", "consumequeue") and not is_rocksdb_file(Path(name).name)
    ]


def all_rows(root: Path) -> list[Any]:
    """The store with the times of files: a run killed at its guard has not recorded those of folders."""
    return [
        (name, kind, size, mtime_ns if kind == "file" else None, digest)
        for name, kind, size, mtime_ns, digest in tree_rows(root)
        if name not in (".", "lock")
    ]


@pytest.mark.sweep
@pytest.mark.parametrize("name", [NAME, COMBINED] if IS_WHOLE else [COMBINED])
def test_killed_and_run_again(name: str, cases: Library, tmp_path: Path) -> None:
    """The result is that of a run that nothing disturbs; undone, the store is that of before, every byte."""
    folder = tmp_path / "run"
    folder.mkdir()
    root, conf = cases.copy(name, folder / "store"), conf_of(name, folder)
    for path in (root / "consumequeue").glob("*.sst"):
        path.write_bytes(path.read_bytes()[:-60])
    if name == COMBINED:
        index_has_a_damaged_block(root)
    start = copy_tree(folder, tmp_path / "start")
    before = all_rows(root)
    code, out = child(root, conf, folder / "kept", 0)
    assert code == 0
    wanted, others, count = rows_of(root), other_rows(root), int(out)
    index = index_rows(root)
    numbers = range(1, count + 1) if IS_WHOLE else sorted(Random(name).sample(range(count // 2, count), 3))
    for number in numbers:
        shutil.rmtree(folder)
        copy_tree(start, folder)
        assert child(root, conf, folder / "kept", number)[0] == -signal.SIGKILL, number
        words = ("--broker-conf", conf, "--apply", "--force", "--backup-dir", folder / "kept-again")
        assert rebuild(root, *words) == EXIT_OK
        assert (rows_of(root), index_rows(root), other_rows(root)) == (wanted, index, others), number
        again = folder / "kept-again"
        backup = again if again.exists() else folder / "kept"
        assert main(["recover", str(root), "--undo", str(backup)]) == EXIT_OK
        assert all_rows(root) == before, number


def a_link(path: Path) -> None:
    path.symlink_to(path.parent / "IDENTITY")


def a_folder(path: Path) -> None:
    path.mkdir()


@pytest.mark.parametrize("make", [a_link, a_folder, os.mkfifo])
def test_what_only_has_the_name_of_a_file(
    make: Callable[[Path], None], cases: Library, tmp_path: Path, capfd: Capture
) -> None:
    """It would be a part of the new database: nothing is changed."""
    root = cases.copy(NAME, tmp_path / "store")
    has_no_current(root / "consumequeue")
    make(root / "consumequeue/000099.log")
    for command in ("rebuild", "recover"):
        with unchanged(root):
            assert main([command, str(root), "--apply"]) == EXIT_REFUSED
        assert "consumequeue/000099.log" in capfd.readouterr().err


def test_a_read_only_mount_is_noticed_before_anything_changes(cases: Library, tmp_path: Path) -> None:
    root = cases.copy(NAME, tmp_path / "store")
    has_no_current(root / "consumequeue")
    moved = (root / "consumequeue").rename(tmp_path / "queues")
    (root / "consumequeue").mkdir()
    with mounted(root / "consumequeue", "size=1m"):
        shutil.copytree(moved, root / "consumequeue", dirs_exist_ok=True)
        subprocess.run(["mount", "-o", "remount,ro", str(root / "consumequeue")], check=True)
        with unchanged(root):
            assert rebuild(root, "--apply", "--backup-dir", tmp_path / "backup") == EXIT_INPUT
    assert not (tmp_path / "backup").exists()
