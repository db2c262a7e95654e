"""Rebuild on small logs written field by field: where units go when numbers are odd, expired or light."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmqtool.errors import RefusedError
from rmqtool.formats import index, message
from rmqtool.formats.consume_queue import (
    PRE_BLANK,
    UNIT_SIZE,
    BatchUnit,
    Unit,
    decode_batch_units,
    decode_units,
)
from rmqtool.formats.message import Message
from rmqtool.read.selection import Selection
from rmqtool.read.store import Store
from rmqtool.repair.plan import Action
from rmqtool.repair.rebuild import kept, plan_rebuild
from rmqtool.repair.rebuild.log_view import LogView, Patch, PatchedSource
from rmqtool.storage.layout import detect
from rmqtool.storage.source import BytesSource, open_source
from rmqtool.write import dispatcher
from tests.support.build_store import file_name, write_log, write_queue
from tests.support.rebuild_checks import inodes, planned, problems, queue_files, rebuilt
from tests.support.records import STORE_TIMESTAMP, record
from tests.support.whole_store import SHAPE, codes_of, keyed, unit_of, write_config, write_whole

FILE = 400  # bytes of a queue file: 20 units
LOG = 4096
CONF = {"mappedFileSizeConsumeQueue": FILE, "mappedFileSizeCommitLog": LOG, "maxHashSlotNum": SHAPE.slots,
        "maxIndexNum": SHAPE.entries, "mapperFileSizeBatchConsumeQueue": 460}  # fmt: skip


@contextmanager
def read_by(way: str) -> Iterator[None]:
    """The log is dispatched from what the survey kept, or read again by compiled code or plain Python."""
    before = kept.LIMIT, dispatcher._COLD_BYTES, dispatcher._WARM_BYTES
    if way != "kept":
        kept.LIMIT = 0
        dispatcher._COLD_BYTES = dispatcher._WARM_BYTES = 0 if way == "compiled" else 1 << 62
    try:
        yield
    finally:
        kept.LIMIT, dispatcher._COLD_BYTES, dispatcher._WARM_BYTES = before


def conf(tmp_path: Path, **more: Any) -> Path:
    path = tmp_path / "broker.conf"
    path.write_text("".join(f"{key}={value}\n" for key, value in {**CONF, **more}.items()))
    return path


def of_broker(root: Path, version: str) -> Path:
    """The empty store with a sign of the broker's version."""
    if version == "5.4":
        (root / "rocksdbstore").mkdir(parents=True)
    else:
        (root / "config").mkdir(parents=True)
        (root / "config/delayOffset.json").write_text('{\n\t"offsetTable":{}\n}')
    return root


def log_of(root: Path, numbers: Sequence[int], **fields: Any) -> list[Message]:
    """A log with records of these queue offsets, one millisecond apart, in one queue."""
    made = [
        record(body=b"x" * 200, found={"TAGS": "t"}, queue_offset=number,
               **{"store_timestamp": STORE_TIMESTAMP + place, **fields})
        for place, number in enumerate(numbers)
    ]  # fmt: skip
    return write_log(root / "commitlog", made, file_size=LOG)


def queue(root: Path, name: str = "TopicTest/0") -> list[Unit]:
    """The units of a queue from its first file on, without the empty ones at its end."""
    files = sorted((root / "consumequeue" / name).iterdir())
    found = [unit for path in files for unit in decode_units(path.read_bytes())]
    while found and not found[-1].is_present:
        found.pop()
    return found


WAYS = pytest.mark.parametrize("way", ["kept", "compiled", "plain"])


@WAYS
def test_numbers_that_are_left_out_are_kept_by_fillers(tmp_path: Path, way: str) -> None:
    root = tmp_path / "store"
    stored = log_of(root, [0, 1, 2, 7, 8, 30, 31])
    with read_by(way):
        found = rebuilt(root, conf(tmp_path))
    units = [unit_of(item) for item in stored]
    assert queue(root) == [*units[:3], *[PRE_BLANK] * 4, *units[3:5], *[PRE_BLANK] * 21, *units[5:]]
    assert found.queue_ends == {("TopicTest", 0): (0, 32)}
    assert not planned(root, conf(tmp_path)).actions


@WAYS
@pytest.mark.parametrize("odd", [15, 3])
def test_one_record_that_is_off_keeps_its_place(tmp_path: Path, way: str, odd: int) -> None:
    """Its neighbours say where its unit belongs."""
    root = tmp_path / "store"
    stored = log_of(root, [*range(10), odd, *range(11, 14)])
    with read_by(way):
        rebuilt(root, conf(tmp_path))
    assert queue(root) == [unit_of(item) for item in stored]
    assert not planned(root, conf(tmp_path)).actions


@WAYS
def test_a_queue_that_was_made_anew_begins_at_its_last_beginning(tmp_path: Path, way: str) -> None:
    root = tmp_path / "store"
    stored = log_of(root, [0, 1, 2, 0, 1, 5, 0, 1])
    with read_by(way):
        rebuilt(root, conf(tmp_path))
    assert queue(root) == [unit_of(item) for item in stored[-2:]]
    assert not planned(root, conf(tmp_path)).actions


def test_repeated_numbers_leave_a_queue_alone_unless_it_is_gone(tmp_path: Path) -> None:
    root = tmp_path / "store"
    stored = log_of(root, [0, 1, 2, 3, 2, 3, 4])
    rebuilt(root, conf(tmp_path))
    assert queue(root) == [unit_of(item) for item in (*stored[:4], stored[-1])]
    assert not planned(root, conf(tmp_path)).actions
    with (root / "consumequeue/TopicTest/0" / file_name(0)).open("r+b") as file:
        file.seek(UNIT_SIZE)
        file.write(bytes(UNIT_SIZE))
    before = queue_files(root)
    found = rebuilt(root, conf(tmp_path))
    assert not found.actions
    assert [(item.topic, item.queue_id) for item in found.unmended] == [("TopicTest", 0)]
    assert "repeat" in found.unmended[0].reason
    assert queue_files(root) == before


def test_hostile_numbers_are_left(tmp_path: Path) -> None:
    """A queue offset that no file could hold, negative ones, a jump that no fillers bridge."""
    root = tmp_path / "store"
    stored = write_log(root / "commitlog", [
        *(record("Far", queue_offset=number) for number in (0, 1 << 40)),
        *(record("Out", queue_offset=number) for number in ((1 << 63) - 5, (1 << 63) - 4)),
        *(record("Below", queue_offset=number) for number in (-7, -6)),
        *(record("Good", queue_offset=number) for number in (0, 1)),
        record("..", queue_offset=0), record("a/b", queue_offset=0),
    ], file_size=LOG)  # fmt: skip
    found = rebuilt(root, conf(tmp_path))
    assert {item.topic for item in found.unmended} == {"Far", "Out", "Below", "..", "a/b"}
    assert set(queue_files(root)) == {f"consumequeue/Good/0/{file_name(0)}"}
    assert queue(root, "Good/0") == [Unit(item.physical_offset, item.total_size, 0) for item in stored[6:8]]


def _expired(tmp_path: Path, numbers: Sequence[int]) -> tuple[Path, list[Message], list[Message]]:
    """A store whose first log file is gone: (root, records that are gone, records that are there)."""
    root = tmp_path / "store"
    stored = log_of(root, numbers)
    write_queue(root / "consumequeue/TopicTest/0", [unit_of(item) for item in stored], first=numbers[0],
                file_size=FILE)  # fmt: skip
    (root / "commitlog" / file_name(0)).unlink()
    gone = [item for item in stored if item.physical_offset < LOG]
    return root, gone, stored[len(gone) :]


@WAYS
def test_units_of_expired_records_stay_below_the_live_ones(tmp_path: Path, way: str) -> None:
    """In the file in which the live ones begin; files before it are not touched."""
    root, gone, there = _expired(tmp_path, range(9, 60))
    first = there[0].queue_offset
    assert first % 20 and first > 20, "the live ones begin inside the second file"
    bad = root / "consumequeue/TopicTest/0" / file_name(FILE)
    whole = bad.read_bytes()
    with bad.open("r+b") as file:
        file.seek((first + 2) % 20 * UNIT_SIZE)
        file.write(bytes(UNIT_SIZE))
    before = inodes(root)
    with read_by(way):
        found = rebuilt(root, conf(tmp_path))
    assert bad.read_bytes() == whole
    assert queue(root) == [Unit(0, 0, 0)] * 9 + [unit_of(item) for item in (*gone, *there)]
    oldest = f"consumequeue/TopicTest/0/{file_name(0)}"
    assert inodes(root)[oldest] == before[oldest]
    assert found.queue_ends[("TopicTest", 0)] == (first, 60)
    assert not planned(root, conf(tmp_path)).actions


@WAYS
def test_without_them_fillers_keep_the_numbering(tmp_path: Path, way: str) -> None:
    root, _, there = _expired(tmp_path, range(9, 60))
    for path in (root / "consumequeue/TopicTest/0").iterdir():
        path.unlink()
    with read_by(way):
        rebuilt(root, conf(tmp_path))
    first = there[0].queue_offset
    fillers = [PRE_BLANK] * (first % 20)
    assert queue(root) == [*fillers, *(unit_of(item) for item in there)]
    assert min((root / "consumequeue/TopicTest/0").iterdir()).name == file_name(first // 20 * FILE)
    assert codes_of(root, passes=("queues",)) == []


def test_a_queue_whose_records_have_all_expired_keeps_its_end(tmp_path: Path) -> None:
    """Behind it stand units of records that are no more: these go, and no number is used twice."""
    root = tmp_path / "store"
    old = log_of(root, range(30))
    new = [replace(item, topic_bytes=b"Other") for item in log_of(root, range(60))][30:]
    write_log(root / "commitlog", [*old, *new], file_size=LOG)
    gone = [item for item in old if item.physical_offset < LOG]
    for number in range(len(old) * 400 // LOG):
        (root / "commitlog" / file_name(number * LOG)).unlink()
    live = detect(root).commit_log[0].file_from_offset
    expired = [unit_of(item) for item in old if item.physical_offset < live]
    loose = [Unit(1 << 30, 100, 0)] * 3
    folder = root / "consumequeue/Gone/0"
    write_queue(folder, [*expired[:25], *loose], file_size=FILE)
    assert gone and len(expired) >= 25
    found = rebuilt(root, conf(tmp_path))
    assert queue(root, "Gone/0") == expired[:25]
    assert found.queue_ends[("Gone", 0)] == (25, 25)
    assert len(list(folder.iterdir())) == 2
    assert not planned(root, conf(tmp_path)).actions


def test_a_batch_queue_without_records_keeps_what_has_expired(tmp_path: Path) -> None:
    """Units behind the log's end go; where all do, the queue's files go."""
    root = tmp_path / "store"
    log_of(root, range(60))
    (root / "commitlog" / file_name(0)).unlink()
    expired = [BatchUnit(number * 100, 100, 0, STORE_TIMESTAMP, number * 5, 5) for number in range(14)]
    loose = [BatchUnit((1 << 30) + number, 100, 0, STORE_TIMESTAMP, 70 + number, 1) for number in range(9)]
    folder = root / "batchconsumequeue/Batch"
    write_queue(folder / "0", [*expired, *loose], file_size=460)
    write_queue(folder / "1", loose, file_size=460)
    oldest = (folder / "0" / file_name(0)).stat()
    found = rebuilt(root, conf(tmp_path))
    assert not found.unmended
    assert found.queue_ends[("Batch", 0)] == (70, 70) and found.queue_ends[("Batch", 1)] == (0, 0)
    assert [path.name for path in sorted((folder / "0").iterdir())] == [file_name(0), file_name(460)]
    assert (folder / "0" / file_name(0)).stat().st_ino == oldest.st_ino
    data = (folder / "0" / file_name(460)).read_bytes()
    assert [unit for unit in decode_batch_units(data) if unit.is_present] == expired[10:]
    assert not list((folder / "1").iterdir())
    assert not planned(root, conf(tmp_path)).actions


def test_a_queue_that_no_record_explains_goes_into_the_backup(tmp_path: Path) -> None:
    root = tmp_path / "store"
    stored = log_of(root, range(5))
    rebuilt(root, conf(tmp_path))
    write_queue(root / "consumequeue/Stray/3", [unit_of(item) for item in stored], file_size=FILE)
    found = rebuilt(root, conf(tmp_path))
    name = f"consumequeue/Stray/3/{file_name(0)}"
    assert [(action.kind, action.path) for action in found.actions] == [("delete", name)]
    assert not (root / name).exists()
    assert list((tmp_path / "store.backup").rglob(file_name(0)))


@WAYS
def test_light_queues_are_made_from_what_records_say(tmp_path: Path, way: str) -> None:
    root = of_broker(tmp_path / "store", "5.4")
    names = {"INNER_MULTI_DISPATCH": "%LMQ%a,%LMQ%b", "TAGS": "t"}
    made = [
        record(found={**names, "INNER_MULTI_QUEUE_OFFSET": f"{number},{number + 4}"}, queue_offset=number)
        for number in range(6)
    ]
    made += [record("%RETRY%g", found={**names, "INNER_MULTI_QUEUE_OFFSET": "6,10"})]
    stored = write_log(root / "commitlog", made, file_size=LOG)
    units = [unit_of(item) for item in stored[:6]]
    write_config(root, "topics.json", {"topicConfigTable": {"TopicTest": {}, "%RETRY%g": {}}})
    with read_by(way):
        found = rebuilt(root, conf(tmp_path))
    assert queue(root, "%LMQ%a/0") == units
    assert queue(root, "%LMQ%b/0") == [PRE_BLANK] * 4 + units
    assert found.light == {("%LMQ%a", 0), ("%LMQ%b", 0)} and not found.deleted
    assert not planned(root, conf(tmp_path)).actions
    with read_by(way):
        without_light = conf(tmp_path, enableMultiDispatch="false")
        assert not planned(root, without_light).actions, "units that records explain are no strays"


def test_queues_of_a_deleted_topic_are_made_only_by_name(tmp_path: Path) -> None:
    """A broker's own topics need not be in topics.json."""
    root = tmp_path / "store"
    topics = ("Kept", "Deleted", "RMQ_SYS_TRANS_OP_HALF_TOPIC")
    write_log(root / "commitlog", [record(topic) for topic in topics], file_size=LOG)
    write_config(root, "topics.json", {"topicConfigTable": {"Kept": {}}})
    found = rebuilt(root, conf(tmp_path))
    assert found.deleted == (("Deleted", 0),)
    assert {path.name for path in (root / "consumequeue").iterdir()} == {"Kept", topics[2]}
    rebuilt(root, conf(tmp_path), selection=Selection(topics=["Del*"]))
    assert queue(root, "Deleted/0")


def test_only_what_is_asked_for_is_made(tmp_path: Path) -> None:
    root = tmp_path / "store"
    write_whole(root, keyed(12, queues=3), queue_file_size=FILE, log_file_size=LOG)
    before = queue_files(root)
    for path in (root / "consumequeue/TopicTest").rglob("0*0"):
        path.unlink() if path.is_file() else None
    rebuilt(root, conf(tmp_path), selection=Selection(topics=["Topic*"], queues=[1]))
    name = f"consumequeue/TopicTest/1/{file_name(0)}"
    assert queue_files(root) == {name: before[name]}
    assert not planned(root, conf(tmp_path), queues=False).tasks
    rebuilt(root, conf(tmp_path), index=False)
    assert queue_files(root) == before


def test_damage_of_the_log_comes_first(tmp_path: Path) -> None:
    """A queue whose records are lost is left alone while it has files; one that is gone keeps its places."""
    root = tmp_path / "store"
    stored = write_whole(root, keyed(20, queues=1), queue_file_size=FILE, log_file_size=LOG)
    lost = stored[7]
    with (root / "commitlog" / file_name(0)).open("r+b") as file:
        file.seek(lost.physical_offset)
        file.write(bytes(lost.total_size))
    path = root / "consumequeue/TopicTest/0" / file_name(0)
    assert not planned(root, conf(tmp_path)).tasks
    with path.open("r+b") as file:
        file.seek(3 * UNIT_SIZE)
        file.write(bytes(UNIT_SIZE))
    found = planned(root, conf(tmp_path))
    assert not found.tasks and "recover" in found.unmended[0].reason
    path.unlink()
    rebuilt(root, conf(tmp_path))
    units = [unit_of(item) for item in stored]
    assert queue(root) == [*units[:7], PRE_BLANK, *units[8:]]


def test_created_files_get_the_time_of_their_newest_record(tmp_path: Path) -> None:
    root = tmp_path / "store"
    log_of(root, range(45))
    rebuilt(root, conf(tmp_path))
    times = [path.stat().st_mtime_ns for path in sorted((root / "consumequeue/TopicTest/0").iterdir())]
    assert times == [(STORE_TIMESTAMP + last) * 1_000_000 for last in (19, 39, 44)]


def test_a_full_index_goes_on_in_a_new_file(tmp_path: Path) -> None:
    """3 keys each: 67 x 3 entries are 199 places and two more; only the last file is made anew."""
    root = of_broker(tmp_path / "store", "4.9")
    stored = write_log(root / "commitlog", keyed(67), file_size=LOG)
    made = rebuilt(root, conf(tmp_path))
    first, second = sorted((root / "index").iterdir())
    heads = [index.decode_header(path.read_bytes()) for path in (first, second)]
    assert [head.next_entry - 1 for head in heads] == [199, 2]
    assert made.index_timestamp == heads[0].end_timestamp
    before = first.stat().st_ino, first.read_bytes()
    content = second.read_bytes()
    second.unlink()
    found = rebuilt(root, conf(tmp_path))
    assert found.index is not None and (len(found.index.kept), found.index.keys) == (1, 2)
    assert (first.stat().st_ino, first.read_bytes()) == before
    assert max((root / "index").iterdir()).read_bytes() == content
    assert found.index_timestamp == heads[0].end_timestamp == stored[-1].store_timestamp
    assert not problems(root, conf(tmp_path))


def test_a_file_that_is_not_full_is_made_anew_with_what_follows(tmp_path: Path) -> None:
    """Keys would have gone on in it."""
    root = of_broker(tmp_path / "store", "5.4")
    write_log(root / "commitlog", keyed(20), file_size=LOG)
    rebuilt(root, conf(tmp_path))
    only = next((root / "index").iterdir())
    content = only.read_bytes()
    (root / "index/20991231235959999").write_bytes(b"x")
    found = rebuilt(root, conf(tmp_path))
    assert [(action.kind, action.path) for action in found.actions] == [
        ("replace", f"index/{only.name}"), ("delete", "index/20991231235959999"),
    ]  # fmt: skip
    assert [path.name for path in (root / "index").iterdir()] == [only.name]
    assert only.read_bytes() == content


@pytest.mark.parametrize("count", [49, 50, 99, 100])
def test_the_plan_knows_how_many_index_files_come_out(tmp_path: Path, count: int) -> None:
    """Also where the last one is just full, and where a record without a key follows it."""
    root = tmp_path / "store"
    made = [record(found={"KEYS": "a b"}, queue_offset=number) for number in range(count)]
    for tail in ([], [record(queue_offset=count)]):
        write_log(root / "commitlog", [*made, *tail], file_size=LOG)
        found = rebuilt(root, conf(tmp_path, maxIndexNum=99 if count == 49 else 100 + count % 2))
        assert found.index is not None
        names = [path.name for path in sorted((root / "index").iterdir())]
        assert list(found.index.names) == names
        for path in (root / "index").iterdir():
            path.unlink()


def test_the_log_as_it_will_be_counts(tmp_path: Path) -> None:
    """What a plan writes into the log is in queues and index; no byte of the store changes."""
    root = of_broker(tmp_path / "store", "5.4")
    stored = write_whole(root, keyed(20, queues=1), queue_file_size=FILE, log_file_size=LOG)
    other = record("Other", stored[7].body, {"KEYS": "new"}, physical_offset=stored[7].physical_offset)
    room = stored[7].total_size - other.total_size
    filler = replace(other, body=other.body + b"x" * room, body_length=other.body_length + room,
                     total_size=stored[7].total_size,
                     body_crc=message.masked_crc(other.body + b"x" * room))  # fmt: skip
    data = message.encode(filler)
    write_config(root, "topics.json", {"topicConfigTable": {"TopicTest": {}, "Other": {}}})
    last = stored[-1]
    name = file_name(last.physical_offset // LOG * LOG)
    base = int(name)
    actions = [
        Action("fill", f"commitlog/{file_name(0)}", stored[7].physical_offset, len(data), "", content=data),
        Action("cut", f"commitlog/{name}", last.physical_offset - base, last.total_size, ""),
    ]
    found = planned(root, conf(tmp_path), log_actions=actions)
    assert found.log_end == last.physical_offset
    assert found.queue_ends == {("Other", 0): (0, 1), ("TopicTest", 0): (0, 19)}
    assert {task.key for task in found.tasks} == {("Other", 0), ("TopicTest", 0)}
    assert found.last_store_timestamp == stored[-2].store_timestamp
    assert found.index is not None and found.index.keys == 18 * 4 + 1


_PATCHES = st.lists(
    st.tuples(st.integers(0, 40), st.integers(0, 20), st.none() | st.binary(min_size=20, max_size=20)),
    max_size=6,
)


@given(
    data=st.binary(max_size=40),
    patches=_PATCHES,
    reads=st.lists(st.tuples(st.integers(0, 70), st.integers(0, 70))),
)
def test_a_patched_source_reads_as_if_it_had_been_written(
    data: bytes, patches: list[tuple[int, int, bytes | None]], reads: list[tuple[int, int]]
) -> None:
    size = max([len(data), *(offset + length for offset, length, _ in patches)])
    wanted = bytearray(data.ljust(size, b"\0"))
    laid = []
    for offset, length, content in patches:
        piece = None if content is None else content[:length]
        laid.append(Patch(offset, offset + length, piece))
        wanted[offset : offset + length] = bytes(length) if piece is None else piece
    source = PatchedSource(BytesSource(data), size, laid)
    for offset, length in [*reads, (0, size)]:
        expected = bytes(wanted[offset : offset + length])
        assert source.read(offset, length) == expected
        assert source.window(offset, length).tobytes() == expected
        place = source.data_from(min(offset, size))
        assert not any(wanted[offset:place])


def test_a_view_knows_new_and_vanished_files(tmp_path: Path) -> None:
    root = tmp_path / "store"
    log_of(root, range(40))
    layout = detect(root)
    names = [layout.relative(file.path) for file in layout.commit_log]
    new = f"commitlog/{file_name(10 * LOG)}"
    actions = [
        Action("delete", names[1], 0, LOG, ""),
        Action("create", new, 0, LOG, "", zeros=True),
        Action("write", new, 5, 3, "", content=b"abc"),
        Action("replace", names[0], 0, 4, "", content=b"wxyz"),
        Action("cut", names[2], LOG, LOG, ""),
    ]
    view = LogView(layout, actions)
    sizes = {view.layout.relative(file.path): file.size for file in view.layout.commit_log}
    assert sizes == {names[0]: 4, names[2]: 2 * LOG, **dict.fromkeys(names[3:], LOG), new: LOG}
    made, replaced, cut = (view.open(root / name) for name in (new, names[0], names[2]))
    assert made is not None and made.read(0, LOG) == b"\0\0\0\0\0abc".ljust(LOG, b"\0")
    assert replaced is not None and replaced.read(0, 100) == b"wxyz"
    assert cut is not None and cut.read(LOG, 2 * LOG) == bytes(LOG)
    assert view.open(root / names[3]) is None
    cut.close()
    source = open_source(root / names[3])
    source.close()


def test_queues_in_rocksdb_are_a_new_database(tmp_path: Path) -> None:
    """The MANIFEST that CURRENT names is not there. Single queues are not rebuilt."""
    root = tmp_path / "store"
    log_of(root, range(3))
    (root / "consumequeue").mkdir()
    (root / "consumequeue/CURRENT").write_text("MANIFEST-000004\n")
    with Store(detect(root)) as store:
        found = plan_rebuild(store)
        assert found.database is not None and found.database.problems[0] == "RD01" and not found.tasks
        of_queues = [each for each in found.actions if each.path.startswith("consumequeue")]
        assert [(each.kind, each.path) for each in of_queues] == [("replace", "consumequeue/CURRENT")]
        with pytest.raises(RefusedError, match="consume queues"):
            plan_rebuild(store, selection=Selection(queues=(0,)))
        assert plan_rebuild(store, queues=False).database is None
