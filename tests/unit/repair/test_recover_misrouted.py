"""Records whose topic or queue id was damaged: no CRC covers them, but the queue's unit tells them."""

from __future__ import annotations

import os
from collections.abc import Callable
from itertools import product
from pathlib import Path

import pytest

from rmqtool.formats.message import QUEUE_ID_OFFSET
from rmqtool.log.events import StoredMessage
from rmqtool.message.system_topics import SCHEDULE_TOPIC, is_system_topic
from rmqtool.read.store import Store
from rmqtool.repair.recover import Request, undo_recover
from rmqtool.storage.layout import detect
from tests.support.rebuild_checks import planned
from tests.support.recover_checks import codes, opener, recovered
from tests.support.sweep import sample
from tests.support.trees import tree_rows

STORES = ("ok_540_clean", "ok_497_small_ipv6", "ok_540_small_ipv6")
Spoil = Callable[[StoredMessage], tuple[int, bytes]]


def other_queue(stored: StoredMessage) -> tuple[int, bytes]:
    """A queue that the topic has."""
    return QUEUE_ID_OFFSET, ((stored.message.queue_id + 1) % 2).to_bytes(4)


def no_queue(_: StoredMessage) -> tuple[int, bytes]:
    """A queue that is not there."""
    return QUEUE_ID_OFFSET, (77).to_bytes(4)


def negative_queue(_: StoredMessage) -> tuple[int, bytes]:
    """A queue id that no queue has."""
    return QUEUE_ID_OFFSET, (-3).to_bytes(4, signed=True)


def other_topic(stored: StoredMessage) -> tuple[int, bytes]:
    """One letter of the topic."""
    message = stored.message
    end = message.total_size - 2 - len(message.properties_bytes)
    return end - 1, bytes([message.topic_bytes[-1] ^ 1])


def queue_of(root: Path) -> tuple[str, int]:
    """The queue with the most messages."""
    with Store.open(root) as store:
        plain = [key for key in store.queues if not is_system_topic(key[0])]
        return max(plain, key=lambda key: store.max_offset(*key) - store.min_offset(*key))


def files(folder: Path) -> list[object]:
    """The files of a folder; of folders not when they changed, for the guard was in one."""
    return [row for row in tree_rows(folder) if row[1] == "file"]


def spoil(root: Path, number: int, how: Spoil) -> int:
    """Damage the record at a queue offset (below 0: from the end); its physical offset."""
    key = queue_of(root)
    with Store.open(root) as store:
        low, high = store.min_offset(*key), store.max_offset(*key)
        assert high - low > 3
        stored = store.get_by_queue_offset(*key, (high if number < 0 else low) + number)
        assert stored is not None
    position, data = how(stored)
    status = stored.path.stat()
    times = status.st_atime_ns, status.st_mtime_ns
    with stored.path.open("r+b") as file:
        file.seek(stored.physical_offset - int(stored.path.name) + position)
        file.write(data)
    os.utime(stored.path, ns=times)
    return stored.physical_offset


HOWS = (other_queue, no_queue, negative_queue, other_topic)


@pytest.mark.sweep
@pytest.mark.parametrize(("name", "number", "how"), sample([*product(STORES, (0, 1, -1), HOWS)], 8))
def test_the_record_gets_its_queue_back(
    name: str, number: int, how: Spoil, store_copy: Callable[[str], Path], tmp_path: Path
) -> None:
    """The store is what it was before the damage, byte for byte; the plan names the record."""
    root = store_copy(name)
    sound, before = codes(root), files(root / "commitlog")
    rest = {part: files(root / part) for part in ("consumequeue", "index")}
    place = spoil(root, number, how)
    damaged = files(root / "commitlog")
    found = planned(root)
    assert [record.physical_offset for record in found.misrouted] == [place]
    assert not found.actions and found.unmended
    outcome = recovered(root, backup=tmp_path / "backup")
    (row,) = outcome.recovery.plan.summary["corrected"]
    assert (row["topic"], row["queue_id"], row["physical_offset"]) == (*queue_of(root), place)
    assert files(root / "commitlog") == before
    assert {part: files(root / part) for part in rest} == rest
    assert codes(root) == sound
    assert not recovered(root, backup=tmp_path / "second").recovery.is_needed
    undo_recover(opener(root), tmp_path / "backup")
    assert files(root / "commitlog") == damaged


@pytest.mark.parametrize("how", [no_queue, other_queue])
def test_neighbours_that_hide_each_other(
    how: Spoil, store_copy: Callable[[str], Path], tmp_path: Path
) -> None:
    """Four records in a row that name another queue: the first run gives all of them theirs back."""
    root = store_copy("ok_540_clean")
    sound, before = codes(root), files(root / "commitlog")
    places = [spoil(root, number, how) for number in (2, 3, 4, 5)]
    outcome = recovered(root, backup=tmp_path / "backup")
    rows = outcome.recovery.plan.summary["corrected"]
    assert sorted(row["physical_offset"] for row in rows) == places
    assert files(root / "commitlog") == before and codes(root) == sound
    assert not recovered(root, backup=tmp_path / "second").recovery.is_needed


def test_a_delayed_record_is_warned_of(store_copy: Callable[[str], Path], tmp_path: Path) -> None:
    """Its unit's tags code is a time, so nothing vouches for its queue; the queue that it names is told."""
    root = store_copy("ok_540_clean")
    with Store.open(root) as store:
        key = next(key for key in store.queues if key[0] == SCHEDULE_TOPIC and store.max_offset(*key))
        stored = store.get_by_queue_offset(*key, store.min_offset(*key))
        assert stored is not None
    position, data = no_queue(stored)
    with stored.path.open("r+b") as file:
        file.seek(stored.physical_offset - int(stored.path.name) + position)
        file.write(data)
    outcome = recovered(root, backup=tmp_path / "backup")
    assert any("this may be a damaged queue id" in text for text in outcome.recovery.plan.summary["warnings"])


def test_a_broker_leaves_it_as_it_is(store_copy: Callable[[str], Path], tmp_path: Path) -> None:
    """And so does `--mode broker`: neither the record nor the queue's unit changes."""
    root = store_copy("ok_540_clean")
    spoil(root, 1, no_queue)
    before = {part: files(root / part) for part in ("commitlog", "consumequeue", "index")}
    outcome = recovered(root, Request("broker", "5.4"), backup=tmp_path / "backup", yes=True)
    assert outcome.recovery.plan.summary["corrected"] == []
    assert {part: files(root / part) for part in before} == before


def test_queue_files_that_changed_places_move_no_record(store_copy: Callable[[str], Path]) -> None:
    """Each unit names a record of the other queue: the records are right."""
    root = store_copy("ok_540_clean")
    key = queue_of(root)
    first, *others = sorted(
        (queue for queue in detect(root).consume_queues.values() if queue.files),
        key=lambda queue: (queue.topic, queue.queue_id) != key,
    )
    one, other = first.files[0].path, others[0].files[0].path
    data = one.read_bytes()
    one.write_bytes(other.read_bytes())
    other.write_bytes(data)
    found = planned(root)
    assert not found.misrouted and found.tasks


def test_a_renamed_folder_moves_no_record(store_copy: Callable[[str], Path]) -> None:
    """Every unit names a record of the queue that has lost its folder: that one is made anew."""
    root = store_copy("ok_540_clean")
    topic, number = queue_of(root)
    folder = detect(root).consume_queues[topic, number].folder
    folder.rename(folder.with_name("97"))
    found = planned(root)
    assert not found.misrouted and (topic, number) in {task.key for task in found.tasks}


def test_a_unit_of_another_size_is_no_witness(store_copy: Callable[[str], Path]) -> None:
    """Nothing is written into the log on the word of a unit that names no whole record."""
    root = store_copy("ok_540_clean")
    spoil(root, 1, no_queue)
    topic, number = queue_of(root)
    layout = detect(root)
    path = layout.consume_queues[topic, number].files[0].path
    data = bytearray(path.read_bytes())
    data[20 + 11] ^= 1  # the size in unit 1
    path.write_bytes(data)
    assert not planned(root).misrouted
    outcome = recovered(root, backup=root.with_name("backup"))
    assert any("skips later messages" in text for text in outcome.recovery.plan.summary["warnings"])
