"""Consume queues compared by content, whatever their files look like."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from rmqtool.check.diff.queues import QueueDifference, QueuesDifference
from rmqtool.formats.consume_queue import (
    PRE_BLANK,
    UNIT_SIZE,
    BatchUnit,
    Unit,
    encode_batch_unit,
    encode_unit,
)
from rmqtool.formats.index import Shape
from rmqtool.queue.consume_queue import ConsumeQueue
from rmqtool.read.store import Store
from tests.support.build_store import file_name, patch, write_log, write_queue
from tests.support.diffs import Pair, diff_of, make_pair
from tests.support.stores import Library
from tests.support.trees import copy_tree
from tests.support.whole_store import keyed, write_whole

FILE_SIZE = 400  # 20 units


@pytest.fixture
def pair(tmp_path: Path) -> Pair:
    return make_pair(tmp_path)


def queues_of(a: Path, b: Path, **arguments: object) -> QueuesDifference:
    found = diff_of(a, b, **arguments).queues
    assert found is not None
    return found


def only(found: QueuesDifference) -> QueueDifference:
    (each,) = found.queues
    return each


def queue(root: Path, queue_id: int = 0) -> Path:
    return root / "consumequeue/TopicTest" / str(queue_id)


def units(root: Path, queue_id: int = 0) -> list[Unit]:
    with Store.open(root) as store:
        return [unit for _, unit in store.queues["TopicTest", queue_id].units()]  # type: ignore[misc]


def test_queues_of_a_copy(pair: Pair) -> None:
    found = queues_of(*pair)
    assert (found.compared, found.same, found.units, found.queues) == (2, 2, 100, [])


@pytest.mark.parametrize("unit", [Unit(1, 2, 3), PRE_BLANK])
def test_units_that_differ(pair: Pair, unit: Unit) -> None:
    """How many, and the first with its offset and both units."""
    files = sorted(queue(pair[1]).iterdir())
    wanted = units(pair[0])
    patch(files[1], 3 * UNIT_SIZE, encode_unit(unit))
    patch(files[1], 7 * UNIT_SIZE, encode_unit(unit))
    found = queues_of(*pair)
    each = only(found)
    assert (found.different, found.same) == (1, 1)
    assert (each.topic, each.queue_id, each.state, each.differing) == ("TopicTest", 0, "differs", 2)
    assert each.first == (23, wanted[23], unit)
    row = each.row()["first_difference"]
    assert (row["queue_offset"], row["a"]["physical_offset"]) == (23, wanted[23].physical_offset)


@pytest.mark.parametrize("unit", [Unit(0, 0, 0), Unit(-5, 100, 0)])
def test_a_unit_that_is_none(pair: Pair, unit: Unit) -> None:
    """There the queue ends for a broker, so its side lacks the rest."""
    patch(sorted(queue(pair[1]).iterdir())[1], 3 * UNIT_SIZE, encode_unit(unit))
    each = only(queues_of(*pair))
    assert (each.state, each.lacking, each.only_a, each.b) == ("lacks", "b", 27, (0, 23))


def test_files_of_another_size(pair: Pair) -> None:
    """The same units in files of other sizes: identical, and one that differs is found."""
    wanted = units(pair[1])
    shutil.rmtree(queue(pair[1]))
    write_queue(queue(pair[1]), wanted, file_size=34 * UNIT_SIZE)
    assert queues_of(*pair).same == 2
    patch(sorted(queue(pair[1]).iterdir())[1], 2 * UNIT_SIZE, encode_unit(Unit(1, 2, 3)))
    assert only(queues_of(*pair)).first == (36, wanted[36], Unit(1, 2, 3))


def test_a_slave_that_began_later(pair: Pair) -> None:
    """Its queues begin with fillers, or with a later file: what they lack, its log lacks too."""
    a, b = pair
    (b / "commitlog" / file_name(0)).unlink()
    missing = sum(unit.physical_offset < 8192 for unit in units(a))
    assert 0 < missing < 20
    for number in range(missing):
        patch(queue(b) / file_name(0), number * UNIT_SIZE, encode_unit(PRE_BLANK))
    found = queues_of(a, b)
    assert (found.different, found.behind, found.more) == (0, 0, 2)
    gone = missing + sum(unit.physical_offset < 8192 for unit in units(a, 1))
    assert found.by_topic == {"TopicTest": (gone, 0)}
    for number in range(missing, 20):  # as many again that its log has
        patch(queue(b) / file_name(0), number * UNIT_SIZE, encode_unit(PRE_BLANK))
    each = queues_of(a, b).queues[0]
    assert (each.state, each.first) == ("differs", (missing, units(a)[missing], PRE_BLANK))


def test_queues_of_logs_that_end_elsewhere(pair: Pair) -> None:
    """What the shorter log cannot have is only counted, by topic."""
    a, b = pair
    wanted = units(b), units(b, 1)
    end = wanted[0][-4].physical_offset
    for path in sorted((b / "commitlog").iterdir()):
        base = int(path.name)
        if base <= end < base + 8192:
            patch(path, end - base, bytes(base + 8192 - end))
        elif base > end:
            path.unlink()
    for queue_id, each in enumerate(wanted):
        shutil.rmtree(queue(b, queue_id))
        write_queue(queue(b, queue_id), [unit for unit in each if unit.physical_offset < end])
    found = queues_of(a, b)
    assert (found.different, found.more) == (0, 2)
    assert found.by_topic == {"TopicTest": (8, 0)}


@pytest.mark.parametrize("drop", [5, 20, 50])
def test_a_queue_that_lacks_its_end(pair: Pair, drop: int) -> None:
    """Its log has the records, so it differs; units of the other side's log alone would not."""
    a, b = pair
    wanted = units(b)
    shutil.rmtree(queue(b))
    if drop < 50:
        write_queue(queue(b), wanted[:-drop])
    each = only(queues_of(a, b))
    assert (each.state, each.lacking, each.only_a) == ("lacks", "b", drop)
    turned = only(queues_of(b, a))
    assert (turned.state, turned.lacking, turned.only_b) == ("lacks", "a", drop)


def test_a_queue_that_lacks_its_beginning(pair: Pair) -> None:
    (queue(pair[1]) / file_name(0)).unlink()
    each = only(queues_of(*pair))
    assert (each.state, each.lacking, each.only_a) == ("lacks", "b", 20)


def test_a_queue_that_lacks_a_file_inside(pair: Pair) -> None:
    (queue(pair[1]) / file_name(FILE_SIZE)).unlink()
    each = only(queues_of(*pair))
    assert (each.state, each.lacking) == ("lacks", "b")


def test_an_empty_queue_is_as_none(pair: Pair) -> None:
    for root, name in zip(pair, ("Empty", "Other"), strict=True):
        (root / "consumequeue" / name / "0").mkdir(parents=True)
    found = queues_of(*pair)
    assert (found.compared, found.same) == (4, 4)


def test_addresses_of_extension_units_are_each_brokers_own(pair: Pair) -> None:
    """Where they cannot be read, of such units offset and size count."""
    for root, address in zip(pair, (-(1 << 63), -(1 << 63) + 40), strict=True):
        unit = units(root)[3]
        patch(queue(root) / file_name(0), 3 * UNIT_SIZE, encode_unit(unit._replace(tags_code=address)))
    assert queues_of(*pair).same == 2
    patch(queue(pair[1]) / file_name(0), 3 * UNIT_SIZE + 8, b"\0\0\0\1")
    assert only(queues_of(*pair)).state == "differs"


def test_what_extension_units_say_is_compared(tmp_path: Path, cases: Library) -> None:
    """Plain units on one side and extended ones on the other are the same; another tag in one is not."""
    root = cases.path("ok_540_ext")
    other = cases.copy("ok_540_ext", tmp_path / "plain")
    with Store.open(root) as store:
        found = store.queue("ExtA", 1)
        assert isinstance(found, ConsumeQueue)
        codes = [found.tags_code(unit) for _, unit in found.units()]
    path = other / "consumequeue/ExtA/1" / f"{0:020}"
    data = bytearray(path.read_bytes())
    for number, code in enumerate(codes):
        assert code is not None
        data[20 * number + 12 : 20 * number + 20] = code.to_bytes(8, "big", signed=True)
    path.write_bytes(data)
    assert not queues_of(root, other).queues
    data[20 * 7 + 19] ^= 1
    path.write_bytes(data)
    difference = only(queues_of(root, other))
    assert (difference.topic, difference.queue_id, difference.differing) == ("ExtA", 1, 1)


def test_the_worst_queues_are_told_first(tmp_path: Path) -> None:
    """Up to a limit; all are counted."""
    a, b = make_pair(tmp_path)
    for root in (a, b):
        for number in range(8):
            write_queue(root / "consumequeue" / f"T{number}" / "0", units(root))
    write_queue(a / "consumequeue/A/0", units(a)[:3])
    patch(b / "consumequeue/T6/0" / file_name(0), 0, encode_unit(Unit(1, 2, 3)))
    patch(b / "consumequeue/T7/0" / file_name(0), 0, encode_unit(Unit(1, 2, 3)))
    found = queues_of(a, b, limit=2)
    assert [(each.topic, each.state) for each in found.queues] == [("T6", "differs"), ("T7", "differs")]
    assert (found.compared, found.different) == (11, 3)


# -- batch queues ----------------------------------------------------------------------------------


def batches(root: Path, count: int = 30, *, first: int = 0) -> list[BatchUnit]:
    """Batch units of the records of `keyed`, three messages each."""
    with Store.open(root) as store:
        stored = [each for each in store.messages() if each.message.queue_id == 0]
    return [
        BatchUnit(
            each.physical_offset, each.message.total_size, 0, each.message.store_timestamp, 3 * number, 3
        )
        for number, each in enumerate(stored[:count])
    ][first:]


@pytest.fixture
def batch_pair(tmp_path: Path) -> Pair:
    """Stores whose queue is a batch queue; that of B begins later, in files numbered anew."""
    a, b = make_pair(tmp_path)
    for root in (a, b):
        shutil.rmtree(root / "consumequeue")
        folder = root / "batchconsumequeue/TopicTest/0"
        write_queue(folder, batches(root), file_size=460)
    return a, b


def test_batch_queues(batch_pair: Pair) -> None:
    a, b = batch_pair
    found = queues_of(a, b)
    assert (found.compared, found.same, found.units) == (1, 1, 30)
    unit = batches(b)[12]
    patch(b / "batchconsumequeue/TopicTest/0" / file_name(460), 2 * 46,
          encode_batch_unit(unit._replace(tags_code=7)))  # fmt: skip
    each = only(queues_of(a, b))
    assert (each.state, each.differing) == ("differs", 1)
    assert each.first == (36, unit, unit._replace(tags_code=7))


def test_batch_queues_that_begin_elsewhere(batch_pair: Pair) -> None:
    """Files say nothing about offsets: the units of the common offsets are compared in their order."""
    a, b = batch_pair
    gone = batches(a)[8].physical_offset
    assert gone > 0
    folder = b / "batchconsumequeue/TopicTest/0"
    shutil.rmtree(folder)
    write_queue(folder, batches(b, first=8), file_size=920)
    each = only(queues_of(a, b))
    assert (each.state, each.lacking, each.compared, each.differing) == ("lacks", "b", 22, 0)
    shutil.rmtree(folder)
    write_queue(folder, [*batches(b)[:10], *batches(b)[11:]], file_size=920)
    each = only(queues_of(a, b))
    assert each.state == "differs" and each.first is not None and each.first[0] == 30


def test_a_queue_of_the_other_kind(batch_pair: Pair) -> None:
    shutil.rmtree(batch_pair[1] / "batchconsumequeue")
    with Store.open(batch_pair[0]) as store:
        stored = [each for each in store.messages() if each.message.queue_id == 0]
    plain = [Unit(each.physical_offset, each.message.total_size, 0) for each in stored]
    write_queue(queue(batch_pair[1]), plain)
    assert only(queues_of(*batch_pair)).state == "differs"


# -- anything --------------------------------------------------------------------------------------


def test_a_queue_far_away(pair: Pair) -> None:
    """A file name that claims a huge offset costs nothing, and is a difference."""
    files = sorted(queue(pair[1]).iterdir())
    files[-1].rename(files[-1].with_name(file_name(20 * 10**17)))
    assert queues_of(*pair).different == 1


def test_single_queues(pair: Pair) -> None:
    """Two queue folders, without their logs: all units count."""
    found = diff_of(queue(pair[0]), queue(pair[1]))
    assert found.log is None and found.queues is not None and found.queues.units == 50
    patch(queue(pair[1]) / file_name(0), 0, encode_unit(Unit(1, 2, 3)))
    assert diff_of(queue(pair[0]), queue(pair[1])).differs


def test_a_log_without_records_for_its_queues(tmp_path: Path) -> None:
    """Units of records that no log holds are not compared."""
    a, b = make_pair(tmp_path)
    shutil.rmtree(b / "commitlog")
    write_log(b / "commitlog", keyed(3), file_size=8192, start=10**6 // 8192 * 8192)
    patch(queue(b) / file_name(0), 0, encode_unit(Unit(1, 2, 3)))
    found = diff_of(a, b)
    assert found.queues is not None and found.queues.different == 0


def test_real_queues(cases: Library, tmp_path: Path) -> None:
    """Every queue of a real store differs when its newest unit does, and none else."""
    a = cases.path("ok_540_clean")
    b = copy_tree(a, tmp_path / "b")
    with Store.open(a) as store:
        keys = [
            key for key in store.queues if store.max_offset(*key) > 0 and store.layout.consume_queues.get(key)
        ]
        changed = keys[::5]
        for key in changed:
            number = store.max_offset(*key) - 1
            folder = b / "consumequeue" / key[0] / str(key[1])
            patch(folder / file_name(0), number * UNIT_SIZE + 19, b"\x55")
    found = queues_of(a, b, limit=100)
    assert [(each.topic, each.queue_id) for each in found.queues] == sorted(changed)
    assert {each.state for each in found.queues} == {"differs"}


@pytest.fixture
def parted(tmp_path: Path) -> Pair:
    """Two stores whose logs part after 60 records; then A has 20 of its own and B has 30."""
    for name, last, late in (("a", 80, 1), ("b", 90, 2)):
        own = [
            replace(
                item, born_timestamp=item.born_timestamp + late, store_timestamp=item.store_timestamp + late
            )
            for item in keyed(last - 60, first=60)
        ]
        write_whole(tmp_path / name, [*keyed(60), *own], log_file_size=8192, shape=Shape(50, 600))
    return tmp_path / "a", tmp_path / "b"


def test_queues_of_logs_that_parted(parted: Pair) -> None:
    """Neither side has units for the other's records: they are counted, and nothing is missing."""
    difference = diff_of(*parted)
    found = difference.queues
    assert found is not None and difference.log is not None and difference.log.diverged is not None
    assert (found.different, found.behind, found.more, found.units) == (0, 0, 2, 60)
    assert found.by_topic == {"TopicTest": (20, 30)}
    assert not found.differs


def test_a_queue_that_lacks_common_units_of_logs_that_parted(parted: Pair) -> None:
    """Below the parting point a missing unit is missing, whatever stands above it."""
    b = parted[1]
    wanted = units(b)
    shutil.rmtree(queue(b))
    write_queue(queue(b), wanted[:25])
    each = only(queues_of(*parted, limit=1))
    assert (each.queue_id, each.state, each.lacking) == (0, "lacks", "b")


def test_a_queue_that_lacks_its_own_units_of_logs_that_parted(parted: Pair) -> None:
    """Above the parting point a side is held against its own log; what a start dispatches waits."""
    a, b = parted
    wanted = units(b), units(b, 1)
    for queue_id, each in enumerate(wanted):
        shutil.rmtree(queue(b, queue_id))
        write_queue(queue(b, queue_id), each[:-5])
    found = queues_of(a, b)
    assert [(each.state, each.lacking) for each in found.queues if each.state != "more"] == [
        ("behind", "b")
    ] * 2
    write_queue(queue(b, 1), wanted[1])
    found = queues_of(a, b)
    assert [(each.queue_id, each.state) for each in found.queues if each.lacking] == [(0, "lacks")]
    shutil.rmtree(queue(b))
    assert only(queues_of(a, b, limit=1)).lacking == "b"


def test_real_stores_that_parted(cases: Library) -> None:
    """One broker's store, killed twice from the same state, the second time with its queues behind."""
    found = queues_of(cases.path("torn_540_killed"), cases.path("torn_540_killed_burst"), limit=100)
    assert found.different == 0
    assert {(each.topic, each.state, each.lacking) for each in found.queues if each.state != "more"} == {
        ("pubBurst", "behind", "b")
    }
    assert sum(a for a, _ in found.by_topic.values()) == 1126
