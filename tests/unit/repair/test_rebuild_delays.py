"""Delivery times of delayed messages, which only units and the broker's configuration show."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from rmqtool import NewMessage
from rmqtool.formats.consume_queue import Unit, decode_units
from rmqtool.message.system_topics import SCHEDULE_TOPIC
from rmqtool.read.delay_levels import delay_levels
from rmqtool.read.store import Store
from rmqtool.storage.layout import detect
from rmqtool.write.store_writer import StoreWriter
from tests.support.build_store import patch, write_log, write_queue
from tests.support.rebuild_checks import planned, rebuilt
from tests.support.records import STORE_TIMESTAMP, record
from tests.support.stores import Library
from tests.support.whole_store import codes_of
from tests.unit.repair.test_rebuild_rules import WAYS, conf, of_broker, read_by

HOUR = 3_600_000
COUNT = 8
Waits = dict[int, Sequence[int]]


def delayed(tmp_path: Path, waits: Waits, *, apart_ms: int = 100) -> Path:
    """A store with delayed messages: by level, how long each waits by its unit, ms; 0 without a unit."""
    root = of_broker(tmp_path / "store", "5.4")
    stored = write_log(root / "commitlog", [
        record(SCHEDULE_TOPIC, b"x" * 40, {"DELAY": str(level), "REAL_TOPIC": "A", "REAL_QID": "0"},
               queue_id=level - 1, queue_offset=number, store_timestamp=STORE_TIMESTAMP + number * apart_ms)
        for level, of_level in waits.items() for number in range(len(of_level))
    ], file_size=16384)  # fmt: skip
    records = iter(stored)
    for level, of_level in waits.items():
        units = [
            Unit(item.physical_offset, item.total_size, item.store_timestamp + wait) if wait else None
            for wait, item in zip(of_level, records, strict=False)
        ] if of_level else []  # fmt: skip
        kept = [unit for unit in units if unit is not None]
        if kept:
            write_queue(root / "consumequeue" / SCHEDULE_TOPIC / str(level - 1), kept, file_size=400)
    return root


def waits_of(root: Path, level: int) -> list[int]:
    """How long the messages of a level wait by their units, ms."""
    folder = root / "consumequeue" / SCHEDULE_TOPIC / str(level - 1)
    units = [unit for path in sorted(folder.iterdir()) for unit in decode_units(path.read_bytes())]
    with Store(detect(root)) as store:
        found = [(store.find(unit.physical_offset), unit.tags_code) for unit in units if unit.is_present]
    assert all(item is not None for item, _ in found)
    return [code - item.message.store_timestamp for item, code in found if item is not None]


@WAYS
def test_units_that_are_left_keep_their_delivery_times(tmp_path: Path, way: str) -> None:
    """Also where they differ, as after a change of the broker's levels; new ones get what most have."""
    of_units = [5000, 5000, 9000, 9000, 9000]
    root = delayed(tmp_path, {2: [*of_units, 0, 0]}, apart_ms=60_000)
    with read_by(way):
        found = rebuilt(root, conf(tmp_path, mappedFileSizeCommitLog=16384))
    assert waits_of(root, 2) == [*of_units, 9000, 9000]
    assert len(found.warnings) == 1 and "2 delayed messages of level 2" in found.warnings[0]
    assert not planned(root, conf(tmp_path, mappedFileSizeCommitLog=16384)).actions


@WAYS
@pytest.mark.parametrize("shift", [0, 1])
def test_units_in_the_wrong_place_show_the_delay_too(tmp_path: Path, way: str, shift: int) -> None:
    root = delayed(tmp_path, {4: [HOUR] * COUNT})
    path = root / "consumequeue" / SCHEDULE_TOPIC / "3" / f"{0:020}"
    units = path.read_bytes()[: COUNT * 20]
    path.write_bytes((units[20:] if shift else units[:-20]).ljust(400, b"\0"))
    with read_by(way):
        found = rebuilt(root, conf(tmp_path, mappedFileSizeCommitLog=16384))
    assert waits_of(root, 4) == [HOUR] * COUNT
    assert not found.warnings


@pytest.mark.parametrize(
    ("levels", "wait", "warning"),
    [("1s 2s 4s 1h", HOUR, ""), (None, 30_000, "default delay of 30s, and other levels of this store")],
)
def test_a_level_without_units(tmp_path: Path, levels: str | None, wait: int, warning: str) -> None:
    """broker.conf says it; else the plan says how many messages get an assumed time."""
    root = delayed(tmp_path, {2: [2000] * 2, 4: [0] * COUNT})
    more = {} if levels is None else {"messageDelayLevel": levels}
    found = rebuilt(root, conf(tmp_path, mappedFileSizeCommitLog=16384, **more))
    assert waits_of(root, 4) == [wait] * COUNT
    assert len(found.warnings) == bool(warning)
    assert all(f"{COUNT} delayed messages of level 4" in text and warning in text for text in found.warnings)


@pytest.mark.parametrize(
    ("odd", "apart_ms", "levels", "is_wrong"),
    [
        (7000, 100, None, True),
        (7000, 100, "1s 5s", True),
        (7000, 60_000, "1s 5s", True),
        (7000, 60_000, None, False),  # a broker could have been started with other levels, twice
        (7000, 60_000, "1s 7s", False),
        (5001, 60_000, None, True),  # no level is that long
    ],
)
def test_a_delivery_time_that_contradicts_its_level(
    tmp_path: Path, odd: int, apart_ms: int, levels: str | None, is_wrong: bool
) -> None:
    of_units = [5000, 5000, 5000, odd, 5000, 5000]
    root = delayed(tmp_path, {2: of_units}, apart_ms=apart_ms)
    more = {} if levels is None else {"messageDelayLevel": levels}
    file = conf(tmp_path, mappedFileSizeCommitLog=16384, **more)
    assert ("CQ07" in codes_of(root, broker_conf=file)) == is_wrong
    rebuilt(root, file)
    assert waits_of(root, 2) == ([5000] * 6 if is_wrong else of_units)
    assert "CQ07" not in codes_of(root, broker_conf=file)


def test_a_changed_table_is_no_contradiction(tmp_path: Path) -> None:
    root = delayed(tmp_path, {2: [5000] * 4 + [9000] * 4, 3: [9000] * 2 + [7000] * 3 + [9000] * 2})
    assert "CQ07" not in codes_of(root)


def test_append_takes_the_delays_of_the_store(tmp_path: Path) -> None:
    root = tmp_path / "store"
    with StoreWriter.create(root, delays_ms=(1000, 7000)) as writer:
        writer.topics.add("A", 1)
        writer.put(NewMessage("A", b"x", delay_level=2))
    with StoreWriter.open(root) as writer:
        writer.put(NewMessage("A", b"x", delay_level=2))
    assert waits_of(root, 2) == [7000, 7000]
    with Store(detect(root)) as store:
        levels = delay_levels(store)
    assert levels.delays_ms[:3] == (1000, 7000, 10_000) and levels.known == {2} and levels.unusual
    patch(root / "consumequeue" / SCHEDULE_TOPIC / "1" / f"{0:020}", 0, bytes(40))
    with Store(detect(root)) as store:
        assert not delay_levels(store).known


def test_units_of_a_database_keep_their_delivery_times(cases: Library, tmp_path: Path) -> None:
    """A broker with its own levels: an hour is not the default of level 4."""
    pytest.importorskip("rocksdict")
    root = cases.copy("gap_cq02_in_rocksdb", tmp_path / "store")

    def due() -> list[tuple[int, int]]:
        with Store.open(root) as store:
            keys = sorted(key for key in store.queues if key[0] == SCHEDULE_TOPIC)
            return [(unit.physical_offset, unit.tags_code) for key in keys
                    for _, unit in store.queues[key].units()]  # fmt: skip

    before = due()
    assert before and rebuilt(root).database is not None
    assert due() == before
