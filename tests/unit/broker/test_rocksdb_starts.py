"""Predicted starts over queues in RocksDB: what brokers were seen to do, and what follows."""

from __future__ import annotations

import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rmqtool.broker.combined import StartFileSearch
from rmqtool.broker.predict import StartSettings, predict, predict_all
from rmqtool.broker.prediction import Prediction
from rmqtool.cli import main
from rmqtool.errors import UnsupportedStoreError
from rmqtool.formats.rocksdb_queue import CHECKPOINT_TOPIC, EndKey, end_key, unit_key
from rmqtool.read.store import Store
from tests.support.build_store import patch
from tests.support.rocksdb_databases import write_ahead_log
from tests.support.stores import Library
from tests.support.trees import unchanged
from tests.support.two_sides import (
    begin_of_record,
    cut_database,
    cut_log,
    lose_database,
    lose_files,
    lose_log,
    with_batches,
)
from tests.support.whole_store import findings_of

ONE = "kind_rocksdb_540"
FILES = "kind_rocksdb_540_files"
TWICE = "kind_combine_index_timer_540"


def starts(root: Path, **options: Any) -> dict[str, Prediction]:
    with unchanged(root), Store.open(root) as store:
        return {found.broker: found for found in predict_all(store, **options)}


def without_queues(cases: Library, name: str, target: Path, *, abort: bool) -> Path:
    root = cases.copy(name, target)
    shutil.rmtree(root / "consumequeue")
    if abort:
        (root / "abort").write_text("1")
    return root


@pytest.mark.parametrize("name", [ONE, "kind_rocksdb_533", FILES])
def test_a_sound_store_stays_as_it_is(name: str, cases: Library) -> None:
    """4.9 has no queues in RocksDB, so there is no prediction for it."""
    for found in starts(cases.path(name)).values():
        assert found.loads and not found.units_added and not found.messages_unreachable
        assert all((q.min_before, q.max_before) == (q.min_after, q.max_after) for q in found.queues.values())
    assert set(starts(cases.path(name))) == {"5.3", "5.4"}
    with Store.open(cases.path(name)) as store, pytest.raises(UnsupportedStoreError, match=r"4\.9"):
        predict(store, "4.9")


def test_a_clean_start_without_queues_never_dispatches_the_first_record(
    cases: Library, tmp_path: Path
) -> None:
    """A broker was seen to begin the queue at 1."""
    root = without_queues(cases, ONE, tmp_path / "store", abort=False)
    for found in starts(root).values():
        assert (found.units_added, found.never_dispatched, found.messages_unreachable) == (94, 1, 1)
        assert [(q.min_after, q.unreachable) for q in found.queues.values() if q.unreachable] == [(1, 1)]
        assert any("after a clean stop only records after" in note for note in found.notes)


def test_an_end_far_after_the_last_unit(cases: Library, tmp_path: Path) -> None:
    """A damaged end does not make the prediction look at every number before it."""
    root = cases.copy(ONE, tmp_path / "store")
    end = struct.pack(">qq", 26, 1 << 57)
    log = write_ahead_log([(1, end_key(EndKey("TopicA", True, 0)), end)])
    (root / "consumequeue/000900.log").write_bytes(log)
    for found in starts(root).values():
        assert found.queues["TopicA", 0].max_after == (1 << 57) + 1


def test_a_start_after_a_crash_dispatches_all(cases: Library, tmp_path: Path) -> None:
    root = without_queues(cases, ONE, tmp_path / "store", abort=True)
    for found in starts(root).values():
        assert (found.units_added, found.messages_unreachable) == (95, 0)


def test_5_4_looks_at_ten_files(cases: Library, tmp_path: Path) -> None:
    """A broker was seen to make 805 of the 1,300 units of a topic, and to begin at 495."""
    root = without_queues(cases, FILES, tmp_path / "store", abort=True)
    found = starts(root)
    assert found["5.3"].messages_unreachable == 0
    queues = [queue for queue in found["5.4"].queues.values() if queue.unreachable]
    assert [(q.min_after, q.max_after, q.unreachable) for q in queues] == [(495, 1300, 495), (494, 1300, 494)]
    assert any("at most 10 files" in note for note in found["5.4"].notes)


def test_units_that_are_missing_in_the_middle_stay_so(cases: Library, tmp_path: Path) -> None:
    root = cases.copy(ONE, tmp_path / "store")
    log = write_ahead_log([(0, unit_key("TopicA", 0, number), None) for number in (5, 6, 9)])
    (root / "consumequeue/000900.log").write_bytes(log)
    for found in starts(root).values():
        queue = found.queues["TopicA", 0]
        assert (queue.min_after, queue.max_after, queue.unreachable) == (0, 30, 3)


def test_the_first_unit_is_searched_by_bisection(cases: Library, tmp_path: Path) -> None:
    """A broker was seen to take a missing unit for an expired one: units before the gap are not served."""
    root = cases.copy(ONE, tmp_path / "store")
    gone = [(0, unit_key("TopicA", 0, number), None) for number in (14, 15, 20)]
    log = write_ahead_log([*gone, (1, end_key(EndKey("TopicA", False, 0)), None)])
    (root / "consumequeue/000900.log").write_bytes(log)
    for found in starts(root).values():
        queue = found.queues["TopicA", 0]
        assert (queue.min_after, queue.max_after, queue.unreachable) == (16, 30, 17)
        assert any("1, for example TopicA/0" in note and "never passes it" in note for note in found.notes)
    log = write_ahead_log([*gone, (1, end_key(EndKey("TopicA", False, 0)), struct.pack(">qq", 26, 3))])
    (root / "consumequeue/000900.log").write_bytes(log)
    for found in starts(root).values():  # a noted one counts
        queue = found.queues["TopicA", 0]
        assert (queue.min_after, queue.max_after, queue.unreachable) == (3, 30, 6)


@pytest.mark.parametrize(("abort", "lost"), [(False, 1), (True, 0)])
def test_a_log_ahead_of_the_noted_end(abort: bool, lost: int, cases: Library, tmp_path: Path) -> None:
    """After a clean stop, which another tool's append may precede, one record is not dispatched."""
    root = cases.copy(ONE, tmp_path / "store")
    with Store.open(root) as store:
        unit = store.queue("TopicB", 0).by_number(9)
        assert unit is not None
    noted = struct.pack(">q", unit.physical_offset)
    ends = [
        (1, end_key(EndKey(CHECKPOINT_TOPIC, True, 0)), noted),
        (1, end_key(EndKey("TopicB", True, 0)), struct.pack(">qq", 0, 8)),
    ]
    gone = [(0, unit_key("TopicB", 0, number), None) for number in range(9, 14)]
    (root / "consumequeue/000900.log").write_bytes(write_ahead_log([*ends, *gone]))
    if abort:
        (root / "abort").write_text("1")
    for found in starts(root).values():
        queue = found.queues["TopicB", 0]
        assert (queue.max_before, queue.max_after, queue.unreachable) == (9, 14, lost)
        assert found.units_added == 5 - lost


def test_a_log_that_was_cut(cases: Library, tmp_path: Path) -> None:
    """The ends are lowered to the newest unit in the log; a queue without any keeps its end."""
    root = cases.copy(ONE, tmp_path / "store")
    path = sorted((root / "commitlog").iterdir())[0]
    with path.open("r+b") as file:
        file.seek(20_000)
        file.write(bytes(path.stat().st_size - 20_000))
    for found in starts(root).values():
        assert found.queues["TopicA", 0].max_after == 26 and found.queues["TopicB", 0].max_after == 14
        assert found.messages_unreachable == 0
        assert any("keep units of lost records, 10, for example" in note for note in found.notes)


def test_an_end_before_the_last_unit(cases: Library, tmp_path: Path) -> None:
    """A broker takes the next queue offset from `max`, whatever units and log say."""
    root = cases.copy(ONE, tmp_path / "store")
    with Store.open(root) as store:
        unit = store.queue("TopicB", 0).by_number(8)
        assert unit is not None
    behind = [(1, end_key(EndKey("TopicB", True, 0)), struct.pack(">qq", unit.physical_offset, 8))]
    (root / "consumequeue/000900.log").write_bytes(write_ahead_log(behind))
    for found in starts(root).values():
        queue = found.queues["TopicB", 0]
        assert (queue.max_after, queue.log_max, queue.unreachable) == (9, 14, 5)
        assert any("that messages in the log have, 1, for example TopicB/0" in note for note in found.notes)


def test_a_database_that_cannot_be_opened(cases: Library, tmp_path: Path) -> None:
    root = cases.copy(ONE, tmp_path / "store")
    (root / "consumequeue/CURRENT").write_text("MANIFEST-99\n")
    for found in starts(root).values():
        assert not found.loads and "cannot open" in (found.load_error or "")


@pytest.mark.parametrize("abort", [False, True])
def test_a_damaged_block_of_units(abort: bool, cases: Library, tmp_path: Path) -> None:
    """5.4.0 was seen to start and to send nothing of these queues; after a crash it wrote all units again."""
    root = cases.copy(ONE, tmp_path / "store")
    patch(root / "consumequeue/000011.sst", 20, b"\xff")
    if abort:
        (root / "abort").write_text("1")
    for found in starts(root).values():
        assert found.loads and found.messages_unreachable == (0 if abort else 95)
        queue = found.queues["TopicA", 0]
        assert (queue.max_after, queue.unreachable) == (30, 0 if abort else 30)
        assert any("the first in consumequeue/000011.sst at 0:" in note for note in found.notes)
    cut_log(root, begin_of_record(root, 60))
    for found in starts(root).values():  # a search that meets the block ends, and the end stays
        assert found.loads and found.queues["TopicB", 0].max_after == 14


@pytest.mark.parametrize("abort", [False, True])
def test_a_scan_that_begins_inside_a_file(abort: bool, cases: Library, tmp_path: Path) -> None:
    """enableAcceleratedRecovery: 5.4.0 was seen not to notice damage before the noted end of dispatch."""
    root, conf = cases.copy(ONE, tmp_path / "store"), tmp_path / "broker.conf"
    damaged = begin_of_record(root, 10)
    log = min((root / "commitlog").iterdir())
    patch(log, damaged + 100, b"\xff\xff")
    if abort:
        (root / "abort").write_text("1")
    ends = []
    for setting in ("", "enableAcceleratedRecovery=true"):
        conf.write_text(f"storeType=defaultRocksDB\n{setting}\n")
        with Store.open(root, broker_conf=conf) as store:
            old, new = (predict(store, broker) for broker in ("5.3", "5.4"))
        assert old.end_offset == damaged and old.messages_abandoned == 84
        ends.append((new.end_offset, new.messages_abandoned, new.messages_unreachable, new.units_added))
    assert ends == [(damaged, 84, 0, ends[0][3]), (34816, 0, 0, 0)]
    noted = begin_of_record(root, 50)
    for place, end in ((noted, 34816), (noted + 7, noted + 7), (1 << 20, 1 << 20), (1 << 21, None)):
        entry = (1, end_key(EndKey(CHECKPOINT_TOPIC, True, 0)), struct.pack(">q", place))
        (root / "consumequeue/000900.log").write_bytes(write_ahead_log([entry]))
        with Store.open(root, broker_conf=conf) as store:
            new = predict(store, "5.4")
        assert (new.end_offset if new.loads else None) == end
        assert new.loads or "is not in the file" in (new.load_error or "")


@pytest.mark.parametrize(
    ("damage", "ending", "ends"),
    [
        (lambda topics: (topics / "CURRENT").write_text("x"), "it does not name a MANIFEST", "5.3 5.4"),
        (lambda topics: (topics / "000014.sst").unlink(), "the MANIFEST names this table, which", "5.3 5.4"),
        (lambda topics: patch(topics / "000015.sst", 20, b"\xff"), "a block does not match its", "5.3 5.4"),
        (lambda topics: patch(topics / "000012.sst", 20, b"\xff"), "", ""),  # an older version
        (lambda topics: patch(topics / "000014.sst", 20, b"\xff"), "a block does not match its", "5.4"),
    ],
    ids=["current", "table", "version", "older version", "topics"],
)
def test_a_configuration_that_cannot_be_read(
    damage: Callable[[Path], object],
    ending: str,
    ends: str,
    cases: Library,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """5.4 ends unless it is a table that it does not read; 5.3 does not notice a damaged block of topics."""
    root = cases.copy(ONE, tmp_path / "store")
    damage(root / "config/topics")
    fails, lacks = f"RocksDB cannot read config/topics ({ending}", "a part of config/topics cannot be read"
    for broker, found in starts(root).items():
        (part,) = found.unread_config
        assert (part.path, part.problem, part.ends) == ("config/topics", "RD10", broker in ends)
        assert part.reason.startswith(fails if part.ends else lacks)
        assert any("the broker starts without it" in note for note in found.notes) != part.ends
    start = f"fails: {fails}" if ends else "does not read a part of config/topics"
    for command in ("recover", "doctor", "verify"):
        capfd.readouterr()
        main([command, str(root)])
        out, err = capfd.readouterr()
        text = " ".join((out + err).split())
        assert f"Do not start the broker yet. A start of 5.4 {start}" in text and "start_fails" not in text
        assert "Copy config/topics from a backup, the old host or a slave while the broker is stopped" in text
        assert "rmqtool problems RD10" in text and "loses nothing" not in text


def test_a_broker_without_databases_does_not_read_them(cases: Library, tmp_path: Path) -> None:
    """A configuration of the form v2 beside queues in files: 4.9 starts with its files."""
    root = cases.copy("kind_config_v2_540", tmp_path / "store")
    patch(root / "config/rdb/CURRENT", 0, b"x")
    ends = {broker: [each.ends for each in found.unread_config] for broker, found in starts(root).items()}
    assert ends.pop("5.4") == [True] and not any(ends.get("4.9", ()))


def twice(cases: Library, target: Path, damage: Callable[[Path], object], *settings: str) -> list[Prediction]:
    """The starts of 5.4 after the damage, with clients served from files and from RocksDB."""
    root = cases.copy(TWICE, target)
    damage(root)
    found = []
    for side in ("default", "defaultRocksDB"):
        lines = ["rocksdbCQDoubleWriteEnable=true", f"combineCQPreferCQType={side}", *settings]
        conf = target.with_suffix(".conf")
        conf.write_text("\n".join(lines))
        with unchanged(root), Store.open(root, broker_conf=conf) as store:
            found.append(predict(store, "5.4"))
    files, database = found
    if database.loads:
        assert (files.queues, files.second_queues) == (database.second_queues, database.queues)
    return found


def begins_after_a_crash(root: Path) -> None:
    lose_database(root)
    (root / "abort").write_text("1")


@pytest.mark.parametrize(
    ("damage", "expected"),
    [
        (lambda root: None, (0, 0, 0)),
        (lose_files, (99, 0, 0)),
        (lose_database, (98, 0, 1)),  # the record at 0 is not after the end of RocksDB
        (begins_after_a_crash, (99, 0, 0)),
        (lambda root: cut_database(root, 0, only="TopicB"), (0, 0, 14)),
    ],
)
def test_queues_that_are_written_twice(
    damage: Callable[[Path], object], expected: tuple[int, int, int], cases: Library, tmp_path: Path
) -> None:
    """Real starts of 5.4.0 did all this (interop_rocksdb.py)."""
    files, database = twice(cases, tmp_path / "store", damage)
    counts = files.units_added, files.messages_unreachable, database.messages_unreachable
    assert files.loads and database.loads and counts == expected


def test_a_start_from_rocksdb_fails_if_queues_end_elsewhere_than_in_files(
    cases: Library, tmp_path: Path
) -> None:
    """Clients of the files notice nothing, but RocksDB loses the older units of that queue."""
    files, database = twice(
        cases, tmp_path / "store", lambda root: cut_database(root, begin_of_record(root, 66), only="TopicB")
    )
    assert files.loads and not files.messages_unreachable
    queue = files.second_queues["TopicB", 0]
    assert (queue.min_after, queue.max_after, queue.unreachable) == (14, 14, 14)
    assert any("lose their older units" in note for note in files.notes)
    assert "queue 0 of TopicB" in (database.load_error or "")


def test_a_log_of_queues_that_are_written_twice_ends_earlier(cases: Library, tmp_path: Path) -> None:
    """RocksDB keeps the ends of queues without older units, until the files set them."""
    files, database = twice(cases, tmp_path / "store", lambda root: cut_log(root, begin_of_record(root, 60)))
    assert files.loads and not files.messages_unreachable and files.end_offset < 36413
    for key in (("TopicA", 0), ("TopicB", 0)):
        assert files.queues[key].max_after == files.second_queues[key].max_after
    assert "end elsewhere than in files" in (database.load_error or "")


def test_the_log_is_searched_only_a_few_files_further_for_rocksdb(cases: Library, tmp_path: Path) -> None:
    """RocksDB is gone: the scan begins so many files before the one that suffices for the queue files.

    If RocksDB gives the queue offsets, it decides, and so many files are read for the queue files.
    """
    root = cases.copy(FILES, tmp_path / "store")
    with Store.open(root) as store:
        log = [file.file_from_offset for file in store.layout.commit_log]
    for extra, is_served in ((0, False), (3, False), (3, True)):
        search = StartFileSearch(0, StartSettings(files_for_rocksdb=extra, serves_from_rocksdb=is_served))
        found = next(at for at in reversed(log) if search.accepts(at, completes_files=True))
        assert found == log[-1 - extra] and search.fails == is_served
        settings = StartSettings(
            files_for_rocksdb=extra, serves_from_rocksdb=is_served, assigns_from_rocksdb=True
        )
        search = StartFileSearch(log[-3], settings)
        found = next(at for at in reversed(log) if search.accepts(at, completes_files=False))
        assert found == log[-3 - extra] and search.fails != is_served


def test_rocksdb_gives_the_queue_offsets(cases: Library, tmp_path: Path) -> None:
    """Queues in files that end elsewhere stay so: a start does not compare them, and serves either side."""
    setting = "combineAssignOffsetCQType=defaultRocksDB"

    def cut(root: Path) -> None:
        cut_database(root, begin_of_record(root, 66), only="TopicB")

    files, database = twice(cases, tmp_path / "store", cut, setting)
    assert files.loads and database.loads
    spans = [
        (queue.min_after, queue.max_after, queue.unreachable)
        for queue in (files.queues["TopicB", 0], files.second_queues["TopicB", 0])
    ]
    assert spans == [(0, 14, 0), (0, 6, 8)]
    for found in (files, database):
        assert any("end elsewhere in files, 1, for example TopicB/0" in note for note in found.notes)
    sound, _ = twice(cases, tmp_path / "sound", lambda root: None, setting)
    assert sound.loads and not any("RocksDB gives" in note for note in sound.notes)


ONLY_ROCKSDB = (
    "rocksdbCQDoubleWriteEnable=true",
    "combineCQLoadingCQTypes=defaultRocksDB",
    "combineCQPreferCQType=defaultRocksDB",
    "combineAssignOffsetCQType=defaultRocksDB",
)


def test_files_that_are_not_loaded_do_not_count(cases: Library, tmp_path: Path) -> None:
    """5.4 starts as with storeType=defaultRocksDB, and all commands read RocksDB; others have no queues."""
    root, conf = cases.copy(TWICE, tmp_path / "store"), tmp_path / "broker.conf"
    cut_database(root, 0, only="TopicB")
    found = []
    for lines in (ONLY_ROCKSDB, ("storeType=defaultRocksDB",)):
        conf.write_text("\n".join(lines))
        with unchanged(root), Store.open(root, broker_conf=conf) as store:
            assert store.layout.has_queues_in_rocksdb and ("TopicB", 0) not in store.queues
            found.append(predict(store, "5.4"))
    assert found[0] == found[1] and found[0].queues["TopicB", 0].unreachable == 14
    conf.write_text("\n".join(ONLY_ROCKSDB))
    with Store.open(root, broker_conf=conf) as store:
        assert [each.broker for each in predict_all(store)] == ["5.4"]
        with pytest.raises(UnsupportedStoreError, match=r"where 4\.9 and 5\.3 with these settings cannot"):
            predict_all(store, ("4.9", "5.3"))
    lose_database(root)
    assert "RD06" in {each.problem.code for each in findings_of(root, broker_conf=conf)}


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("combineCQLoadingCQTypes=defaultRocksDB", "combineAssignOffsetCQType is 'default'"),
        ("combineCQLoadingCQTypes=default\ncombineCQPreferCQType=defaultRocksDB", "combineCQPreferCQType is"),
        ("combineCQLoadingCQTypes=", "names no type"),
        ("combineCQLoadingCQTypes=x;y", "names no type"),
        ("combineCQPreferCQType=x", "combineCQPreferCQType is 'x'"),
        ("combineCQLoadingCQTypes= DEFAULT ; defaultrocksdb", None),
        ("combineCQLoadingCQTypes=default", None),
        ("storeType=defaultRocksDB\ncombineCQLoadingCQTypes=", None),
    ],
)
def test_types_of_queues_that_cannot_be_combined(
    line: str, reason: str | None, cases: Library, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """A broker of 5.4.0 was seen to end before it changes anything; others do not know the settings."""
    root, conf = cases.path(TWICE), tmp_path / "broker.conf"
    conf.write_text(f"rocksdbCQDoubleWriteEnable=true\n{line}\n")
    with Store.open(root, broker_conf=conf) as store:
        found = {each.broker: each for each in predict_all(store)}
    error = found.pop("5.4").load_error
    assert error is None if reason is None else reason in (error or "")
    assert all(each.loads for each in found.values())
    words = ["recover", str(root), "--broker-conf", str(conf), "--broker", "5.4"]
    main([*words, "--format", "text"])
    said = " ".join(capfd.readouterr().out.split())
    assert (f"A start of 5.4 fails: {error}." in said) == (error is not None)
    main([*words, "--mode", "broker"])
    assert (f"a start of 5.4 would fail: {error}\n" in capfd.readouterr().err) == (error is not None)


def test_a_log_without_files(cases: Library, tmp_path: Path) -> None:
    """Brokers were seen to delete all units; they keep the ends of queues in RocksDB as long as they run."""
    root = cases.copy(ONE, tmp_path / "store")
    lose_log(root)
    for found in starts(root).values():
        queue = found.queues["TopicA", 0]
        assert (queue.min_after, queue.max_after, queue.cut_to) == (0, 30, None) and found.loads
        assert any("12, for example %RETRY%cg1/0: their next messages" in note for note in found.notes)
    files, database = twice(cases, tmp_path / "files", lose_log)
    queue, other = files.queues["TopicA", 0], files.second_queues["TopicA", 0]
    assert files.loads and queue.max_after == other.max_after == 0 and not files.notes
    assert len(files.files_deleted) == 12 and "queue 0 of" in (database.load_error or "")
    files, database = twice(
        cases, tmp_path / "database", lose_log, "combineAssignOffsetCQType=defaultRocksDB"
    )
    queue, other = files.queues["TopicA", 0], files.second_queues["TopicA", 0]
    assert database.loads and (queue.max_after, other.max_after) == (0, 30)
    assert any("in memory" in note for note in database.notes)


def test_batch_records_in_rocksdb(tmp_path: Path) -> None:
    """Each has one unit, at its queue offset; the next message gets the one after that of the last."""
    root, conf = tmp_path / "store", tmp_path / "broker.conf"
    offsets = with_batches(root)
    shutil.rmtree(root / "consumequeue")
    (root / "abort").write_text("1")
    conf.write_text("storeType=defaultRocksDB\nmappedFileSizeCommitLog=65536\n")
    with Store.open(root, broker_conf=conf) as store:
        for found in predict_all(store):
            queue = found.queues["Inner", 0]
            assert found.loads and found.units_added == 8 and not found.files_made
            assert queue.max_after == offsets[-1] + 1
            assert (queue.min_after, queue.unreachable) == (9, 3)  # bisection meets no other unit


@pytest.mark.parametrize("types", ["", "combineCQLoadingCQTypes=default"])
@pytest.mark.parametrize("has_files", [True, False])
def test_5_4_fails_on_batch_queues_that_it_would_write_twice(
    has_files: bool, types: str, tmp_path: Path
) -> None:
    """Its library was seen to throw: on their files, or on a record that it dispatches."""
    root, conf = tmp_path / "store", tmp_path / "broker.conf"
    with_batches(root)
    conf.write_text(f"rocksdbCQDoubleWriteEnable=true\nmappedFileSizeCommitLog=65536\n{types}\n")
    if not has_files:
        shutil.rmtree(root / "batchconsumequeue")
        (root / "abort").write_text("1")
    with unchanged(root), Store.open(root, broker_conf=conf) as store:
        _, old, new = predict_all(store)
    assert old.loads and not new.loads and "fails on every batch queue" in (new.load_error or "")
    assert new.load_path == ("batchconsumequeue/Inner/0" if has_files else None)
    assert has_files or "messages of Inner" in (new.load_error or "")


@pytest.mark.parametrize(
    "lines",
    [
        "rocksdbCQDoubleWriteEnable=true",
        "rocksdbCQDoubleWriteEnable=true\ncombineCQLoadingCQTypes=default",
        "storeType=defaultRocksDB",
    ],
)
def test_5_4_fails_on_compacted_topics_with_queues_in_rocksdb(
    lines: str, cases: Library, tmp_path: Path
) -> None:
    """Its library was seen to throw; that of 5.3.3 opens the store."""
    root, conf = cases.path("kind_compaction_540"), tmp_path / "broker.conf"
    for setting, fails in (("", True), ("enableCompaction=false", False)):
        conf.write_text(f"{lines}\n{setting}\n")
        with Store.open(root, broker_conf=conf) as store:
            old, new = (predict(store, broker) for broker in ("5.3", "5.4"))
        assert old.loads and new.loads != fails
        if fails:
            assert "fails on every compacted topic" in (new.load_error or "")
            assert new.load_path == "compaction/compactionLog/TopicCompact/0"
    with Store.open(root) as store:
        assert predict(store, "5.4").loads


def test_brokers_that_do_not_write_twice_ignore_the_database(cases: Library) -> None:
    """4.9, 5.3, and 5.4 without the setting."""
    for found in starts(cases.path(TWICE)).values():
        assert found.loads and bool(found.second_queues) == (found.broker == "5.4")
    with Store.open(cases.path(TWICE)) as store:
        assert not predict(store, "5.4", settings=StartSettings(combines=False)).second_queues
