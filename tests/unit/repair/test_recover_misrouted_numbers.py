"""Records whose queue offset was damaged: no CRC covers it, but unit and neighbours tell what it was."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path
from random import Random

import pytest

from rmqtool.formats import index, properties
from rmqtool.formats.consume_queue import UNIT_SIZE, Unit, encode_unit
from rmqtool.formats.message import QUEUE_OFFSET_OFFSET
from rmqtool.log.events import StoredMessage
from rmqtool.read.store import Store
from rmqtool.repair.recover import Request, undo_recover
from rmqtool.storage.layout import detect
from tests.support.rebuild_checks import planned
from tests.support.recover_checks import codes, opener, recovered
from tests.support.sweep import paired, sample
from tests.support.whole_store import keyed, write_whole
from tests.unit.repair.test_recover_misrouted import STORES, Spoil, files, no_queue, queue_of, spoil

pytestmark = pytest.mark.sweep

PARTS = ("commitlog", "consumequeue", "index")
_LARGEST = (1 << 63) - 1


def numbered(change: Callable[[int], int]) -> Spoil:
    """Damage that makes another queue offset of the right one."""

    def how(stored: StoredMessage) -> tuple[int, bytes]:
        return QUEUE_OFFSET_OFFSET, change(stored.message.queue_offset).to_bytes(8, signed=True)

    return how


HOW = {
    "one more": numbered(lambda number: number + 1),
    "one less": numbered(lambda number: number - 1),
    "a high byte": numbered(lambda number: number ^ 1 << 57),
    "a low byte": numbered(lambda number: number ^ 0x5A),
    "none": numbered(lambda number: 0 if number else 3),
    "below 0": numbered(lambda number: -1 - number),
    "the largest": numbered(lambda number: _LARGEST),
}


def whole(root: Path, random: Random) -> Path:
    """A sound store with some plain queues, the numbers of which begin at 0 or later."""
    queues = random.randrange(1, 5)
    first = queues * random.choice([0, 400])
    records = keyed(random.randrange(20, 160), queues=queues, first=first, body=random.choice([50, 700]))
    write_whole(root, records, shape=index.Shape(50, 2000))
    return root


def wrong(random: Random, number: int) -> int:
    """Another queue offset."""
    data = bytearray(number.to_bytes(8, signed=True))
    data[random.randrange(8)] ^= random.randrange(1, 256)
    near = number + random.choice([-3, -2, -1, 1, 2, 3])
    found = random.choice(
        [int.from_bytes(data, signed=True), int.from_bytes(random.randbytes(8), signed=True), near, 0]
    )
    return found if found != number else number + 1


def damage(root: Path, random: Random) -> dict[int, int]:
    """Damage the queue offset of one to four records, of neighbours often; the right ones by place."""
    with Store.open(root) as store:
        records = list(store.messages())
    count = random.randint(1, 4)
    chosen = random.sample(records, count)
    if random.random() < 0.5:
        own = [item for item in records if item.message.queue_id == chosen[0].message.queue_id]
        start = random.choice([0, random.randrange(len(own)), len(own) - count])
        chosen = own[start : start + count]
    for stored in chosen:
        write(
            stored, QUEUE_OFFSET_OFFSET, wrong(random, stored.message.queue_offset).to_bytes(8, signed=True)
        )
    return {stored.physical_offset: stored.message.queue_offset for stored in chosen}


def write(stored: StoredMessage, position: int, data: bytes) -> None:
    """Change a record; its file keeps its times."""
    status = stored.path.stat()
    with stored.path.open("r+b") as file:
        file.seek(stored.physical_offset - int(stored.path.name) + position)
        file.write(data)
    os.utime(stored.path, ns=(status.st_atime_ns, status.st_mtime_ns))


def unit_file(root: Path) -> Path:
    """The first file of the queue with the most messages."""
    return detect(root).consume_queues[queue_of(root)].files[0].path


def is_left(root: Path, tmp_path: Path) -> bool:
    """Whether neither rebuild nor recover find out what the damaged records should say."""
    found = planned(root).misrouted
    return not found and recovered(root, backup=tmp_path / "left").recovery.plan.summary["corrected"] == []


@pytest.mark.parametrize(("name", "number", "how"), sample([*product(STORES, (0, 1, -1), HOW)], 10))
def test_the_record_gets_its_number_back(
    name: str, number: int, how: str, store_copy: Callable[[str], Path], tmp_path: Path
) -> None:
    """The store is what it was before the damage, byte for byte; the plan names the record."""
    root = store_copy(name)
    sound, before = codes(root), {part: files(root / part) for part in PARTS}
    key = queue_of(root)
    with Store.open(root) as store:
        right = number + (store.max_offset(*key) if number < 0 else store.min_offset(*key))
    place = spoil(root, number, HOW[how])
    damaged = files(root / "commitlog")
    found = planned(root)
    assert [record.physical_offset for record in found.misrouted] == [place]
    assert not found.actions
    outcome = recovered(root, backup=tmp_path / "backup")
    (row,) = outcome.recovery.plan.summary["corrected"]
    own = {"physical_offset": place, "topic": key[0], "queue_id": key[1], "queue_offset": right}
    assert own.items() <= row.items() and (row["said_topic"], row["said_queue_id"]) == key
    (action,) = outcome.recovery.plan.actions
    assert f"says queue offset {row['said_queue_offset']} in queue {key[1]} of {key[0]}" in action.reason
    assert action.reason.endswith(f"say {right}")
    assert {part: files(root / part) for part in PARTS} == before
    assert codes(root) == sound
    assert not recovered(root, backup=tmp_path / "second").recovery.is_needed
    undo_recover(opener(root), tmp_path / "backup")
    assert files(root / "commitlog") == damaged


@pytest.mark.parametrize(
    ("numbers", "how"), sample([*product([(0, 1, 2), (3, 4, 5, 6), (-3, -2, -1), (1, 3)], HOW)], 10)
)
def test_neighbours_are_judged_together(
    numbers: Sequence[int], how: str, store_copy: Callable[[str], Path], tmp_path: Path
) -> None:
    """Between them is no record that says what is right; the same damage in all of them makes a row."""
    root = store_copy("ok_540_clean")
    sound, before = codes(root), {part: files(root / part) for part in PARTS}
    key = queue_of(root)
    with Store.open(root) as store:
        low, high = store.min_offset(*key), store.max_offset(*key)
        records = [store.get_by_queue_offset(*key, (high if n < 0 else low) + n) for n in numbers]
    for stored in records:
        assert stored is not None
        write(stored, *HOW[how](stored))
    outcome = recovered(root, backup=tmp_path / "backup")
    assert len(outcome.recovery.plan.summary["corrected"]) == len(numbers)
    assert {part: files(root / part) for part in PARTS} == before and codes(root) == sound


@pytest.mark.parametrize("seed", sample(range(120), 40))
def test_random_damage_is_undone(seed: int, tmp_path: Path) -> None:
    """One to four queue offsets of a sound store: it is what it was."""
    random = Random(seed)
    root = whole(tmp_path / "store", random)
    before = {part: files(root / part) for part in PARTS}
    right = damage(root, random)
    outcome = recovered(root, backup=tmp_path / "backup")
    rows = outcome.recovery.plan.summary["corrected"]
    assert {row["physical_offset"]: row["queue_offset"] for row in rows} == right
    assert {part: files(root / part) for part in PARTS} == before and not codes(root)
    assert not recovered(root, backup=tmp_path / "second").recovery.is_needed


def test_beside_a_record_of_another_queue(store_copy: Callable[[str], Path], tmp_path: Path) -> None:
    """First that one gets its queue back, and is then the record before this one."""
    root = store_copy("ok_540_clean")
    before = {part: files(root / part) for part in PARTS}
    spoil(root, 2, no_queue)
    spoil(root, 4, HOW["a high byte"])
    assert len(recovered(root, backup=tmp_path / "backup").recovery.plan.summary["corrected"]) == 2
    assert {part: files(root / part) for part in PARTS} == before


def test_rebuild_leaves_the_queue_alone(store_copy: Callable[[str], Path], tmp_path: Path) -> None:
    """And says what comes first, where it would mend another unit of it."""
    root = store_copy("ok_540_clean")
    before = {part: files(root / part) for part in PARTS}
    key = queue_of(root)
    spoil(root, 1, HOW["a low byte"])
    path = unit_file(root)
    data = bytearray(path.read_bytes())
    data[3 * UNIT_SIZE + 11] ^= 1  # the size in unit 3
    path.write_bytes(data)
    found = planned(root)
    (item,) = (each for each in found.unmended if (each.topic, each.queue_id) == key)
    assert not found.actions and item.reason.endswith("(rmqtool recover)")
    recovered(root, backup=tmp_path / "backup")
    assert files(root / "commitlog") == before["commitlog"] and path.read_bytes() != bytes(data)


def test_a_broker_leaves_it_as_it_is(store_copy: Callable[[str], Path], tmp_path: Path) -> None:
    """And so does `--mode broker`."""
    root = store_copy("ok_540_clean")
    spoil(root, 1, HOW["one more"])
    before = {part: files(root / part) for part in PARTS}
    outcome = recovered(root, Request("broker", "5.4"), backup=tmp_path / "backup", yes=True)
    assert outcome.recovery.plan.summary["corrected"] == []
    assert {part: files(root / part) for part in PARTS} == before


def test_the_unit_that_recover_makes_itself(store_copy: Callable[[str], Path], tmp_path: Path) -> None:
    """Of a lost queue, between two records that leave out one number: the record says it too, at once."""
    root = store_copy("ok_540_clean")
    before = {part: files(root / part) for part in PARTS}
    key = queue_of(root)
    place = spoil(root, 1, HOW["a high byte"])
    shutil.rmtree(detect(root).consume_queues[key].folder)
    found = planned(root)  # as `rebuild` does it: the record stays
    assert not found.misrouted and [task.key for task in found.tasks] == [key]
    assert [record.physical_offset for record in found.renumbered] == [place]
    outcome = recovered(root, backup=tmp_path / "backup")
    assert len(outcome.recovery.plan.summary["corrected"]) == 1
    assert {part: [row[0] for row in files(root / part)] for part in PARTS} == {
        part: [row[0] for row in rows] for part, rows in before.items()
    }
    assert files(root / "commitlog") == before["commitlog"] and not codes(root)
    assert not recovered(root, backup=tmp_path / "second").recovery.is_needed


# Two explanations, or no witness: it stays as it is


@pytest.mark.parametrize(("numbers", "is_one_queue"), paired([(0,), (-1,), (1, 2)], [True, False]))
def test_without_units_neighbours_are_no_evidence(
    is_one_queue: bool, numbers: Sequence[int], store_copy: Callable[[str], Path], tmp_path: Path
) -> None:
    """Nothing tells what the record should say but those before it, or those behind it."""
    root = store_copy("ok_540_clean")
    key = queue_of(root)
    for number in numbers:
        spoil(root, number, HOW["one more"])
    before = files(root / "commitlog")
    shutil.rmtree(detect(root).consume_queues[key].folder if is_one_queue else root / "consumequeue")
    assert is_left(root, tmp_path) and files(root / "commitlog") == before
    assert not recovered(root, backup=tmp_path / "second").recovery.is_needed


@pytest.mark.parametrize("number", [1, -1])
def test_a_unit_where_the_record_says(number: int, store_copy: Callable[[str], Path], tmp_path: Path) -> None:
    """Two units of the queue name it: one of them is wrong, the record need not be."""
    root = store_copy("ok_540_clean")
    key = queue_of(root)
    with Store.open(root) as store:
        high = store.max_offset(*key)
        queue = store.queue(*key)
        assert queue is not None
        unit = queue.unit(number % high)
    assert isinstance(unit, Unit)
    said = high + 1
    spoil(root, number, numbered(lambda _: said))
    (file,) = (
        file
        for file in detect(root).consume_queues[key].files
        if file.file_from_offset <= said * UNIT_SIZE < file.end
    )
    with file.path.open("r+b") as opened:
        opened.seek(said * UNIT_SIZE - file.file_from_offset)
        opened.write(encode_unit(unit))
    before = files(root / "commitlog")
    assert not planned(root).misrouted
    if number < 0:  # else it lies between two that leave out one number: there its only unit is made anew
        assert is_left(root, tmp_path) and files(root / "commitlog") == before


def test_two_other_units(store_copy: Callable[[str], Path], tmp_path: Path) -> None:
    """Neither stands where the record says."""
    root = store_copy("ok_540_clean")
    path = unit_file(root)
    spoil(root, 1, HOW["a high byte"])
    data = bytearray(path.read_bytes())
    data[4 * UNIT_SIZE : 5 * UNIT_SIZE] = data[UNIT_SIZE : 2 * UNIT_SIZE]
    path.write_bytes(data)
    assert not planned(root).misrouted


@pytest.mark.parametrize("field", [11, 19])
def test_a_unit_that_does_not_agree(field: int, store_copy: Callable[[str], Path], tmp_path: Path) -> None:
    """In the size, or in the tags code."""
    root = store_copy("ok_540_clean")
    path = unit_file(root)
    spoil(root, 1, HOW["a high byte"])
    data = bytearray(path.read_bytes())
    data[UNIT_SIZE + field] ^= 1
    path.write_bytes(data)
    assert not planned(root).misrouted


@pytest.mark.parametrize("field_of", [1, 2])
def test_a_neighbour_without_a_witness(field_of: int, store_copy: Callable[[str], Path]) -> None:
    """Both are damaged, and one of the units: the numbers around the other one do not tell it."""
    root = store_copy("ok_540_clean")
    path = unit_file(root)
    for number in (1, 2):
        spoil(root, number, HOW["a low byte"])
    data = bytearray(path.read_bytes())
    data[field_of * UNIT_SIZE + 11] ^= 1  # the size
    path.write_bytes(data)
    assert not planned(root).misrouted


@pytest.mark.parametrize("number", [0, -1])
def test_beside_lost_records_another_number_may_be_right(number: int, tmp_path: Path) -> None:
    """At an end of the queue, whatever is lost; once the log is whole again nothing speaks for another."""
    root = tmp_path / "store"
    write_whole(root, keyed(40))
    key = queue_of(root)
    with Store.open(root) as store:
        own = [item for item in store.messages() if (item.message.topic, item.message.queue_id) == key]
        before, after = (own[0], own[1]) if number == 0 else (own[-2], own[-1])
        between = [
            item for item in store.messages() if before.end <= item.physical_offset < after.physical_offset
        ]
    assert between
    place = spoil(root, number, HOW["a high byte"])
    write(between[0], 0, bytes(80))
    assert not planned(root).misrouted
    (row,) = recovered(root, backup=tmp_path / "backup").recovery.plan.summary["corrected"]
    assert row["physical_offset"] == place and not codes(root)


def test_the_greater_part_of_a_queue_is_right(tmp_path: Path) -> None:
    """Of few records without any behind them, it is not for the others to say what is wrong."""
    root = tmp_path / "store"
    write_whole(root, keyed(5, queues=1))
    with Store.open(root) as store:
        records = list(store.messages())
    for stored in records[2:]:
        write(stored, *HOW["a high byte"](stored))
    assert is_left(root, tmp_path)
    for stored in records[:2]:
        write(stored, *HOW["a high byte"](stored))
    assert is_left(root, tmp_path)  # nor for none


def test_what_a_property_crc_vouches_for(store_copy: Callable[[str], Path]) -> None:
    """The record is sound with the number that it says: the unit is wrong."""
    root = store_copy("ok_540_small_propcrc")
    key = queue_of(root)
    with Store.open(root) as store:
        stored = store.get_by_queue_offset(*key, 1)
    assert stored is not None
    start = stored.physical_offset - int(stored.path.name)
    record = bytearray(stored.path.read_bytes()[start : start + stored.message.total_size])
    record[QUEUE_OFFSET_OFFSET] ^= 2
    data = properties.seal_property_crc(bytes(record))
    write(stored, 0, data)
    with Store.open(root) as store:
        found = store.find(stored.physical_offset)
    assert found is not None and not found.status and found.message.queue_offset != 1
    assert not planned(root).misrouted
