"""Commit logs compared: the common range, what stands where they part, who is ahead, what one side lacks."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from rmqtool.check.diff.log import LogDifference
from rmqtool.cli import main
from rmqtool.formats import epoch, filler, message
from rmqtool.formats.index import Shape
from rmqtool.read.store import Store
from tests.support.build_store import file_name, patch, write_log
from tests.support.diffs import Pair, diff_of, make_pair
from tests.support.records import record
from tests.support.stores import Library
from tests.support.trees import copy_sparse, copy_tree
from tests.support.whole_store import keyed, write_units, write_whole

SIZE = 8192
SHAPE = Shape(50, 600)


@pytest.fixture
def pair(tmp_path: Path) -> Pair:
    return make_pair(tmp_path)


def log_of(a: Path, b: Path, **arguments: object) -> LogDifference:
    found = diff_of(a, b, **arguments).log
    assert found is not None
    return found


def offsets_of(root: Path) -> list[int]:
    """The physical offsets of a store's records."""
    with Store.open(root) as store:
        return [stored.physical_offset for stored in store.messages(damage="skip")]


def patch_log(root: Path, offset: int, data: bytes) -> None:
    patch(root / "commitlog" / file_name(offset - offset % SIZE), offset % SIZE, data)


def test_a_copy_is_identical(pair: Pair) -> None:
    """All of it was compared, and nothing is said but that."""
    found = diff_of(*pair)
    assert not found.differs and not found.has_more and not found.unread
    assert found.log is not None
    assert (found.log.start, found.log.stop) == (0, found.a.end)
    assert found.log.compared_bytes == found.a.end > 3 * SIZE
    assert (found.log.ranges, found.log.only, found.log.ahead, found.log.behind_end) == ([], (), None, None)


@pytest.mark.parametrize("jobs", [1, 3])
def test_one_byte_of_a_body(pair: Pair, jobs: int) -> None:
    """The place, the record on both sides, which of them is sound, and the field that differs."""
    offsets = offsets_of(pair[0])
    patch_log(pair[1], offsets[40] + message.HEADS[0].size + 3, b"\xff")
    found = log_of(*pair, jobs=jobs)
    (each,) = found.ranges
    assert (each.start, each.stop, each.count) == (offsets[40] + 91, offsets[40] + 92, 1)
    assert (found.differing_bytes, found.more, each.changed) == (1, False, ["body"])
    assert each.a is not None and each.b is not None
    for side, status in ((each.a, "ok"), (each.b, "body_crc")):
        assert side.before is not None and side.at is not None and side.after is not None
        places = [part.physical_offset for part in (side.before, side.at, side.after)]
        assert places == offsets[39:42]
        assert (side.at.kind, side.at.status) == ("record", status)
    assert each.a.at is not None and each.a.at.row()["uniq_key"] == "U00000040"


def test_every_differing_range_up_to_a_limit(pair: Pair) -> None:
    """Ranges that are near each other are one; behind the limit only bytes are counted."""
    offsets = offsets_of(pair[0])
    wanted = [offsets[3], offsets[40], offsets[70], offsets[95]]
    for offset in wanted:
        patch_log(pair[1], offset + 100, b"\xf0\xf0")
        patch_log(pair[1], offset + 130, b"\xf0")
    found = log_of(*pair)
    assert [(each.start, each.stop, each.count) for each in found.ranges] == [
        (offset + 100, offset + 131, 3) for offset in wanted
    ]
    found = log_of(*pair, limit=2)
    assert [each.start for each in found.ranges] == [offset + 100 for offset in wanted[:2]]
    assert (found.more, found.differing_bytes) == (True, 12)


def test_more_ranges_in_one_file_than_are_told(pair: Pair) -> None:
    """That there are more is said, also when no other file differs."""
    for offset in (SIZE + 100, SIZE + 6000):
        patch_log(pair[1], offset, b"\xf0")
    found = log_of(*pair, limit=1)
    assert ([each.start for each in found.ranges], found.more) == ([SIZE + 100], True)
    assert not log_of(*pair, limit=2).more


def test_a_page_of_zeros_and_a_head_that_is_gone(pair: Pair) -> None:
    """Where no record is left it says so, and where the next one begins."""
    offsets = offsets_of(pair[0])
    patch_log(pair[0], offsets[20], bytes(offsets[22] - offsets[20]))
    (each,) = log_of(*pair).ranges
    assert each.start in range(offsets[20], offsets[20] + 8)
    assert each.a is not None and each.a.at is not None and each.a.after is not None
    assert (each.a.at.kind, each.a.at.physical_offset, each.a.at.end) == ("damage", offsets[20], offsets[22])
    assert each.a.after.physical_offset == offsets[22]
    assert each.b is not None and each.b.at is not None and each.b.at.status == "ok"
    assert each.changed == []


def test_bytes_behind_a_blank(pair: Pair) -> None:
    """They differ, and it says that nobody reads them; so does a blank of a wrong size."""
    with Store.open(pair[0]) as store:
        blank = next(event for event in store.events() if type(event).__name__ == "Blank")
    patch_log(pair[1], blank.physical_offset + 20, b"\1")
    (each,) = log_of(*pair).ranges
    assert each.a is not None and each.b is not None and each.a.at is not None and each.b.at is not None
    assert (each.a.at.kind, each.b.at.kind) == ("unused", "unused")
    patch_log(pair[1], blank.physical_offset, b"\0\0\1\0")
    (each,) = log_of(*pair).ranges
    assert each.b is not None and each.b.at is not None
    assert (each.b.at.kind, each.b.at.status) == ("blank", "wrong_size")


def test_a_slave_that_began_later_and_is_behind(pair: Pair) -> None:
    """Nothing differs; the master is ahead, and holds what expired or was never sent."""
    a, b = pair
    offsets = offsets_of(a)
    (b / "commitlog" / file_name(0)).unlink()
    cut = next(offset for offset in reversed(offsets[:90]) if offset % SIZE > 1000)
    base = cut - cut % SIZE
    patch_log(b, cut, bytes(base + SIZE - cut))
    for path in sorted((b / "commitlog").iterdir()):
        if int(path.name) > base:
            path.unlink()
    found = diff_of(a, b)
    assert found.log is not None and not found.log.differs and found.has_more
    assert (found.log.start, found.log.stop) == (SIZE, cut)
    assert (found.log.ahead, found.log.ahead_bytes) == ("a", found.a.end - cut)
    first, last = found.log.only
    assert (first.side, first.place, first.start, first.stop) == ("a", "before", 0, SIZE)
    assert first.records == sum(offset < SIZE for offset in offsets)
    assert (last.side, last.place, last.start, last.stop) == ("a", "after", cut, found.a.end)
    assert last.records == sum(offset >= cut for offset in offsets)
    newest = found.a.tail.last
    assert newest is not None and last.last_store_timestamp == newest.store_timestamp
    assert found.log.behind_end is not None and found.log.behind_end.state == "empty"
    turned = diff_of(b, a)
    assert turned.log is not None
    assert (turned.log.ahead, [part.side for part in turned.log.only]) == ("b", ["b", "b"])


@pytest.mark.parametrize(
    ("tail", "state"), [(b"", "empty"), (None, "part"), (b"\1\2\3", "other"), ("hole", "other")]
)
def test_what_the_shorter_log_has_behind_its_end(pair: Pair, tail: bytes | str | None, state: str) -> None:
    """Nothing, the first bytes of the record on its way, or something else."""
    a, b = pair
    offsets = offsets_of(a)
    last, size = offsets[-1], record_size(a, offsets[-1])
    whole = log_bytes(a, last, size)
    patch_log(b, last, bytes(size))
    piece = whole[: size // 2] if tail is None else tail
    if tail == "hole":  # the middle is there and the first bytes are not
        patch_log(b, last + 100, whole[100:150])
    elif isinstance(piece, bytes):
        patch_log(b, last, piece)
    found = log_of(a, b)
    assert (found.stop, found.ahead, found.ahead_bytes) == (last, "a", size)
    assert not found.differs
    assert found.behind_end is not None
    assert (found.behind_end.side, found.behind_end.state) == ("b", state)


def record_size(root: Path, offset: int) -> int:
    with Store.open(root) as store:
        stored = store.get(offset)
        assert stored is not None
        return stored.message.total_size


def log_bytes(root: Path, offset: int, length: int) -> bytes:
    data = (root / "commitlog" / file_name(offset - offset % SIZE)).read_bytes()
    return data[offset % SIZE : offset % SIZE + length]


def test_a_file_that_one_side_lacks(pair: Pair) -> None:
    """A hole in the middle is a difference, in part of a file too; what follows is compared."""
    a, b = pair
    (b / "commitlog" / file_name(SIZE)).unlink()
    found = log_of(a, b)
    assert found.differs and not found.ranges
    assert [(part.side, part.place, part.start, part.stop) for part in found.only] == [
        ("a", "inside", SIZE, 2 * SIZE)
    ]
    copy_sparse(a / "commitlog" / file_name(SIZE), b / "commitlog" / file_name(SIZE))
    with (b / "commitlog" / file_name(SIZE)).open("r+b") as file:
        file.truncate(5000)
    (part,) = log_of(b, a).only
    assert (part.side, part.place, part.start, part.stop) == ("b", "inside", SIZE + 5000, 2 * SIZE)


def test_a_copy_that_was_broken_off(pair: Pair) -> None:
    """The last file is short: the copy is behind, up to the last whole record."""
    a, b = pair
    offsets = offsets_of(a)
    last = max((b / "commitlog").iterdir())
    keep = [offset for offset in offsets if offset >= int(last.name)][1] - int(last.name) + 50
    with last.open("r+b") as file:
        file.truncate(keep)
    found = log_of(a, b)
    assert (found.stop, found.ahead) == (int(last.name) + keep - 50, "a")
    assert not found.differs
    assert found.behind_end is not None and found.behind_end.state == "part"


def test_files_of_another_size(tmp_path: Path) -> None:
    """The same bytes at the same offsets, in files of twice the size: identical, and one byte is found."""
    write_whole(tmp_path / "a", keyed(100), log_file_size=SIZE, shape=SHAPE)
    copy_tree(tmp_path / "a", tmp_path / "b")
    files = sorted((tmp_path / "b/commitlog").iterdir())
    data = b"".join(path.read_bytes() for path in files)
    for path in files:
        path.unlink()
    for base in range(0, len(data), 2 * SIZE):
        piece = data[base : base + 2 * SIZE].ljust(2 * SIZE, b"\0")
        (tmp_path / "b/commitlog" / file_name(base)).write_bytes(piece)
    found = diff_of(tmp_path / "a", tmp_path / "b")
    assert found.b.store.layout.commit_log_file_size == 2 * SIZE
    assert found.log is not None and not found.log.differs
    assert found.log.compared_bytes == found.a.end == found.b.end
    offset = SIZE + 700
    patch(tmp_path / "b/commitlog" / file_name(0), offset, b"\xee")
    assert log_of(tmp_path / "a", tmp_path / "b").ranges[0].start == offset


def test_logs_without_a_common_range(tmp_path: Path) -> None:
    """Each holds what the other lacks, and that is a difference even where one may hold more."""
    write_whole(tmp_path / "a", keyed(20), log_file_size=SIZE)
    write_log(tmp_path / "b/commitlog", keyed(20), file_size=SIZE, start=10 * SIZE)
    found = diff_of(tmp_path / "a", tmp_path / "b")
    assert found.differs and found.differs_in_common and found.log is not None
    assert found.log.compared_bytes == 0
    assert [(part.side, part.place) for part in found.log.only] == [("a", "before"), ("b", "after")]


def fill(root: Path, first: int, last: int) -> None:
    """Replace the records `first` to `last`, by number, with one filler, as recover does."""
    offsets = offsets_of(root)
    start, size = offsets[first], offsets[last] + record_size(root, offsets[last]) - offsets[first]
    time = 1_700_000_000_000
    patch_log(root, start, filler.encode(size, start, born_timestamp=time, store_timestamp=time))


@pytest.mark.parametrize(
    ("side", "numbers", "wanted"),
    [("a", [], []), ("a", [(20, 20), (46, 49)], [(20, 1), (46, 4)]),
     ("b", [(47, 47), (48, 49), (78, 79)], [(47, 3)])],
)  # fmt: skip
def test_two_logs_that_parted(
    tmp_path: Path, side: str, numbers: list[tuple[int, int]], wanted: list[tuple[int, int]]
) -> None:
    """A slave that was ahead of its master: the same records up to a place, then two sound ones.

    Fillers in one log, just before the place or at the end, do not move the place.
    """
    records = keyed(80)
    write_whole(tmp_path / "a", records, log_file_size=SIZE, shape=SHAPE)
    other = [
        item
        if number < 50
        else replace(item, born_timestamp=item.born_timestamp + 1, store_timestamp=item.store_timestamp + 1)
        for number, item in enumerate(records)
    ]
    write_whole(tmp_path / "b", other, log_file_size=SIZE, shape=SHAPE)
    for root, entries in (("a", [(1, 0), (2, 4096)]), ("b", [(1, 0), (3, 4096)])):
        data = epoch.encode([epoch.Entry(*entry) for entry in entries])
        (tmp_path / root / "epochFileCheckpoint").write_bytes(data)
    offsets = offsets_of(tmp_path / "a")
    place = offsets[50]
    for each in numbers[::-1]:
        fill(tmp_path / side, *each)
    found = diff_of(tmp_path / "a", tmp_path / "b")
    assert found.log is not None and found.log.diverged is not None and found.log.diverged.start == place
    filled = [part for each in found.log.ranges for part in each.lacking if part.kind == "fillers"]
    assert [(part.side, part.start, part.messages) for part in filled] == [
        (side, offsets[first], count) for first, count in wanted
    ]
    for held, operand in ((found.log.diverged.a, found.a), (found.log.diverged.b, found.b)):
        records = sum(each >= place for each in offsets_of(tmp_path / held.side))
        assert (held.start, held.stop, held.records) == (place, operand.end, records)
    if numbers:
        few = log_of(tmp_path / "a", tmp_path / "b", limit=1)  # the range need not be listed
        assert few.diverged is not None and few.diverged.start == place
        return
    assert found.log.epochs == (2, 3)
    assert (found.log.has_epochs, found.log.epochs_end) == (True, 4096)
    first_range = found.log.ranges[0]
    assert first_range.start == place + 47
    assert first_range.changed == ["born_timestamp", "store_timestamp"]
    assert first_range.a is not None and first_range.b is not None
    assert first_range.a.at is not None and first_range.b.at is not None
    assert (first_range.a.at.status, first_range.b.at.status) == ("ok", "ok")
    assert found.queues is not None and not found.queues.differs


def test_where_a_slave_cuts_its_log(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """By the epochs of controller mode, as the slave decides it: it does not compare bytes."""
    write_whole(tmp_path / "a", keyed(60), log_file_size=SIZE, shape=SHAPE)
    write_whole(tmp_path / "b", keyed(50), log_file_size=SIZE, shape=SHAPE)
    ends = [log_of(tmp_path / name, tmp_path / name).stop for name in "ab"]
    for epochs_a, epochs_b, place, text in (
        ([(1, 0), (2, 4096)], [(1, 0), (2, 4096)], ends[1], f"of A cuts its log at {ends[1]}"),
        ([(1, 0), (2, 4096)], [(1, 0), (3, 6000)], 4096, "of A or B cuts its log at 4096"),
        ([(1, 0)], [(2, 50)], None, "none in common"),
    ):
        for root, entries in (("a", epochs_a), ("b", epochs_b)):
            data = epoch.encode([epoch.Entry(*entry) for entry in entries])
            (tmp_path / root / "epochFileCheckpoint").write_bytes(data)
        found = log_of(tmp_path / "a", tmp_path / "b").row()
        assert (found["has_epochs"], found["epochs_end"]) == (True, place)
        main(["diff", str(tmp_path / "a"), str(tmp_path / "b"), "--format", "text"])
        assert text in capfd.readouterr().out
    (tmp_path / "b/epochFileCheckpoint").write_bytes(b"2\n7\n1-0\n")
    assert not log_of(tmp_path / "a", tmp_path / "b").has_epochs


def test_logs_that_parted_at_the_last_record(tmp_path: Path) -> None:
    """One record each, of other lengths: the longer log is not simply ahead."""
    records = keyed(30)
    for name, body in (("a", b"mine"), ("b", b"longer")):
        write_whole(tmp_path / name, [*records, record(body=body)], log_file_size=1 << 20)
    found = log_of(tmp_path / "a", tmp_path / "b")
    assert found.diverged is not None and found.diverged.start == offsets_of(tmp_path / "a")[-1]
    assert (found.diverged.a.records, found.diverged.b.records) == (1, 1)
    assert (found.ahead, found.ahead_bytes) == ("b", 2)


@pytest.mark.parametrize("damaged", "ab")
def test_logs_that_part_after_damage(tmp_path: Path, damaged: str) -> None:
    """The damage and the messages that differ are one range: the logs part with the first of these."""
    records = keyed(80)
    later = [replace(each, store_timestamp=each.store_timestamp + 1, born_timestamp=1) for each in records]
    write_whole(tmp_path / "a", records, log_file_size=SIZE, shape=SHAPE)
    write_whole(tmp_path / "b", [*records[:50], *later[50:]], log_file_size=SIZE, shape=SHAPE)
    offsets = offsets_of(tmp_path / "a")
    for first, last, place in ((47, 48, 50), (47, 51, 51)):
        patch_log(tmp_path / damaged, offsets[first], bytes(offsets[last] - offsets[first]))
        found = log_of(tmp_path / "a", tmp_path / "b")
        (each,) = found.ranges
        assert each.start < offsets[48] and found.diverged is not None
        assert found.diverged.start == offsets[place]
        assert {(part.side, part.kind) for part in each.lacking} == {(damaged, "damage")}


def test_damage_is_no_parting(pair: Pair) -> None:
    """Not one field of one sound record, nor a record that is not sound, nor a filler, at the end too."""
    offsets = offsets_of(pair[0])
    for offset, place in ((offsets[30], 47), (offsets[-1], 47), (offsets[20], 100)):
        patch_log(pair[1], offset + place, b"\xf3")  # the time of birth, a body
        found = log_of(*pair)
        assert found.ranges and found.diverged is None, (offset, place)
    fill(pair[0], 99, 99)  # the newest record that both have
    found = log_of(*pair)
    assert found.ranges and found.diverged is None


def test_damage_alike_on_both_sides(pair: Pair) -> None:
    """Equal bytes are no difference, sound or not, and what differs behind them is described."""
    offsets = offsets_of(pair[0])
    for root in pair:
        patch_log(root, offsets[30] + 4, b"\xff" * 60)
    assert not log_of(*pair).differs
    patch_log(pair[1], offsets[32] + 100, b"\xf0")
    (each,) = log_of(*pair).ranges
    assert each.a is not None and each.a.at is not None and each.a.at.physical_offset == offsets[32]


def test_a_folder_of_files_and_a_single_file(pair: Pair) -> None:
    """The log alone is compared, also of a store with a part of its log."""
    a, b = pair
    found = diff_of(a, b / "commitlog")
    assert found.log is not None and not found.log.differs and found.queues is None and found.config is None
    (b / "commitlog" / file_name(SIZE)).write_bytes(bytes(SIZE))
    found = diff_of(a / "commitlog" / file_name(2 * SIZE), b / "commitlog" / file_name(2 * SIZE))
    assert found.log is not None and not found.log.differs
    assert (found.log.start, found.log.stop) == (2 * SIZE, found.a.end)


def test_a_record_longer_than_what_is_read_before_it(tmp_path: Path) -> None:
    """The record that holds a place is found however far before the place it begins."""
    records = [record(body=b"\1" * 500), record(body=b"\2" * 200_000), record(body=b"\3" * 500)]
    for name in "ab":
        write_units(tmp_path / name, write_log(tmp_path / name / "commitlog", records, file_size=1 << 18))
    offsets = offsets_of(tmp_path / "a")
    path, position = tmp_path / "b/commitlog" / file_name(0), offsets[1] + 190_000
    patch(path, position, b"\7")
    (each,) = log_of(tmp_path / "a", tmp_path / "b").ranges
    for side, status in ((each.a, "ok"), (each.b, "body_crc")):
        assert side is not None and side.before is not None and side.at is not None and side.after is not None
        assert [part.physical_offset for part in (side.before, side.at, side.after)] == offsets
        assert side.at.status == status


@pytest.mark.parametrize("name", ["ok_497_clean", "ok_533_clean", "ok_540_small_ipv6"])
def test_real_stores(cases: Library, tmp_path: Path, name: str) -> None:
    """A broker's store against its copy, and against the copy with a flipped byte in every log file."""
    a = cases.path(name)
    b = cases.copy(name, tmp_path / "b")
    found = diff_of(a, b)
    assert not found.differs and not found.has_more
    with Store.open(a) as store:
        places = [
            stored.physical_offset + message.head_layout(stored.message.sys_flag).size
            for stored in store.messages()
            if stored.message.body
        ]
    for path in sorted((b / "commitlog").iterdir()):
        inside = [
            place - int(path.name) for place in places if 0 <= place - int(path.name) < path.stat().st_size
        ]
        if inside:
            place = inside[len(inside) // 2]
            patch(path, place, bytes([path.read_bytes()[place] ^ 1]))
    log = log_of(a, b)
    assert log.differing_bytes == len(log.ranges) > 0
    for each in log.ranges:
        assert each.a is not None and each.b is not None and each.a.at is not None and each.b.at is not None
        assert (each.a.at.kind, each.a.at.status, each.b.at.status) == ("record", "ok", "body_crc")


def test_an_expired_store(cases: Library) -> None:
    """Two states of one broker: the later one lost its head, went on, and agrees in between."""
    found = diff_of(cases.path("ok_540_clean"), cases.path("ok_540_expired"))
    assert found.log is not None
    assert not found.log.differs and found.log.compared_bytes > 0
    assert {(part.side, part.place) for part in found.log.only} >= {("a", "before")}
    assert found.queues is not None and not found.queues.differs


def test_a_store_without_a_log(pair: Pair) -> None:
    shutil.rmtree(pair[1] / "commitlog")
    found = diff_of(*pair)
    assert found.log is not None and found.differs_in_common
    assert [(part.side, part.start) for part in found.log.only] == [("a", 0)]
