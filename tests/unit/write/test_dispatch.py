"""Dispatch: the queue and index files that follow from a log, held against those of real brokers."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmqtool.errors import UnreadableError, UnwritableError
from rmqtool.formats import index
from rmqtool.formats.consume_queue import (
    BATCH_UNIT_SIZE,
    PRE_BLANK,
    UNIT_SIZE,
    Unit,
    decode_units,
    encode_unit,
)
from rmqtool.formats.java import tags_code
from rmqtool.formats.message import (
    TRANSACTION_COMMIT,
    TRANSACTION_PREPARED,
    TRANSACTION_ROLLBACK,
    Message,
)
from rmqtool.message.system_topics import DEFAULT_DELAY_LEVELS, SCHEDULE_TOPIC, parse_delay_levels
from rmqtool.read.store import Store
from rmqtool.storage.layout import detect
from rmqtool.storage.profile import PROFILES
from rmqtool.write import dispatcher
from rmqtool.write.dispatcher import Dispatcher
from rmqtool.write.options import WriteOptions
from tests import ROOT
from tests.support.build_store import file_name, write_log, write_queue
from tests.support.hard_limits import size_limit
from tests.support.records import STORE_TIMESTAMP, record
from tests.support.stores import Library, case, real_cases
from tests.support.sweep import sample
from tests.support.whole_store import SHAPE, keyed

SMALL = WriteOptions(
    commit_log_file_size=4096, consume_queue_file_size=10 * UNIT_SIZE,
    batch_queue_file_size=8 * BATCH_UNIT_SIZE, index_slots=7, index_entries=20, multi_dispatch=True,
)  # fmt: skip
TRANSACTIONS = (TRANSACTION_PREPARED, TRANSACTION_COMMIT, TRANSACTION_ROLLBACK)
WHOLE = [name for name in real_cases() if "killed" not in name and "expired" not in name]
RECOVERED = [name for name in real_cases() if name.endswith("_after_recovery")]
PARTS = [name for name in real_cases() if name not in (*WHOLE, *RECOVERED)]


@contextmanager
def compiled(wanted: bool) -> Iterator[None]:
    """Every range is dispatched by compiled code, or none is."""
    limits = dispatcher._COLD_BYTES, dispatcher._WARM_BYTES
    dispatcher._COLD_BYTES = dispatcher._WARM_BYTES = 0 if wanted else 1 << 62
    try:
        yield
    finally:
        dispatcher._COLD_BYTES, dispatcher._WARM_BYTES = limits


def opened(root: Path, options: WriteOptions, start: int, batch: Iterable[str] = ()) -> Dispatcher:
    return Dispatcher(root, options, detect(root), start=start, batch_topics=set(batch).__contains__)


def run(
    root: Path, options: WriteOptions, start: int, stops: Sequence[int], batch: Iterable[str] = ()
) -> int:
    """Dispatch a log in steps and write everything out; how many records that were."""
    found = opened(root, options, start, batch)
    count = sum(found.run(stop) for stop in stops)
    found.write_out()
    found.close()
    return count


def beside(log: Path, root: Path) -> Path:
    """A store at `root` that has nothing but the log of another."""
    root.mkdir()
    (root / "commitlog").symlink_to(log)
    return root


def queue_files(root: Path) -> dict[str, bytes]:
    return {
        path.relative_to(root).as_posix(): path.read_bytes()
        for part in ("consumequeue", "batchconsumequeue")
        for path in sorted((root / part).rglob("*"))
        if path.is_file()
    }


def index_files(root: Path) -> list[bytes]:
    return [path.read_bytes() for path in sorted((root / "index").iterdir())]


def files_of(root: Path) -> tuple[dict[str, bytes], list[bytes]]:
    return queue_files(root), index_files(root)


def units(root: Path) -> dict[str, dict[int, Unit]]:
    """The units of the plain queues that are present, by queue and queue offset."""
    found: dict[str, dict[int, Unit]] = {}
    for name, data in queue_files(root).items():
        if name.startswith("consumequeue"):
            queue, _, first = name.rpartition("/")
            own = found.setdefault(queue.removeprefix("consumequeue/"), {})
            for number, unit in enumerate(decode_units(data), int(first) // UNIT_SIZE):
                if unit.is_present:
                    own[number] = unit
    return found


def entries(root: Path, options: WriteOptions) -> list[tuple[int, int]]:
    """(physical offset, key hash) of all index entries, in their order."""
    shape = options.index_shape
    found = []
    for data in index_files(root):
        stop = index.decode_header(data).next_entry
        items = (index.decode_entry(data, shape.entry_offset(n)) for n in range(1, stop))
        found += [(item.physical_offset, item.key_hash) for item in items]
    return found


def by_record(found: Iterable[tuple[int, int]]) -> dict[int, list[int]]:
    """Key hashes by physical offset; each record's entries stand together."""
    together = groupby(found, key=lambda item: item[0])
    groups = [(offset, [key for _, key in items]) for offset, items in together]
    assert len({offset for offset, _ in groups}) == len(groups)
    return dict(groups)


def real(cases: Library, name: str) -> tuple[Path, WriteOptions, int, int, set[str]]:
    """(store, options, log start, log end, batch topics) of a real store."""
    root, this = cases.path(name), case(name)
    layout = detect(root)
    levels = this.settings.get("messageDelayLevel", DEFAULT_DELAY_LEVELS)
    options = WriteOptions(
        profile=PROFILES[this.profile], commit_log_file_size=layout.commit_log_file_size,
        consume_queue_file_size=layout.consume_queue_file_size,
        batch_queue_file_size=layout.batch_queue_file_size, index_slots=layout.index_slots,
        index_entries=layout.index_entries, delays_ms=parse_delay_levels(levels),
    )  # fmt: skip
    with Store.open(root) as store:
        end = store.commit_log.end_offset()
    batch = {topic for topic, _ in layout.batch_queues}
    return root, options, layout.commit_log[0].file_from_offset, end, batch


@pytest.mark.parametrize("name", WHOLE)
@pytest.mark.parametrize("fast", [True, False], ids=["compiled", "plain"])
def test_a_real_log_gives_the_brokers_files(cases: Library, tmp_path: Path, name: str, fast: bool) -> None:
    root, options, start, end, batch = real(cases, name)
    ours = beside(root / "commitlog", tmp_path / "store")
    with compiled(fast):
        assert run(ours, options, start, [end], batch) > 300
    assert queue_files(ours) == queue_files(root)
    assert index_files(ours) == index_files(root)


@pytest.mark.sweep
@pytest.mark.parametrize("name", sample(RECOVERED, 2))
def test_a_recovered_store_has_the_same_queues_and_keys(cases: Library, tmp_path: Path, name: str) -> None:
    """Its broker has indexed again the record with which the last full index file ends: we do not."""
    root, options, start, end, batch = real(cases, name)
    ours = beside(root / "commitlog", tmp_path / "store")
    with compiled(True):
        run(ours, options, start, [end], batch)
    assert queue_files(ours) == queue_files(root)
    mine, theirs = by_record(entries(ours, options)), by_record(entries(root, options))
    assert mine.keys() == theirs.keys()
    doubled = [offset for offset in mine if mine[offset] != theirs[offset]]
    assert len(doubled) == 1
    own, found = mine[doubled[0]], theirs[doubled[0]]
    assert found == own[: len(found) - len(own)] + own


@pytest.mark.sweep
@pytest.mark.parametrize("name", sample(PARTS, 3))
def test_other_real_stores_have_our_units(cases: Library, tmp_path: Path, name: str) -> None:
    """Expired: queues begin late. Killed: the broker had not dispatched everything yet."""
    root, options, start, end, batch = real(cases, name)
    ours = beside(root / "commitlog", tmp_path / "store")
    with compiled(True):
        run(ours, options, start, [end], batch)
    mine = units(ours)
    for queue, theirs in units(root).items():
        live = {number: unit for number, unit in theirs.items() if unit.physical_offset >= start}
        own = {number: unit for number, unit in mine.get(queue, {}).items() if not unit.is_pre_blank}
        assert live.items() <= own.items(), queue
        assert name.startswith("torn") or live == own
    keys = by_record(entries(ours, options))
    theirs_by_record = by_record(item for item in entries(root, options) if item[0] >= start)
    assert theirs_by_record.items() <= keys.items()


def test_small_steps_and_new_beginnings_give_the_same_files(cases: Library, tmp_path: Path) -> None:
    """Stopped and opened again anywhere, from records that were dispatched already, plain and compiled."""
    root, options, start, end, batch = real(cases, "ok_540_clean")
    with Store.open(root) as store:
        offsets = [head.physical_offset for head in store.commit_log.heads(start)]
    ours = beside(root / "commitlog", tmp_path / "store")
    marks = [start, *offsets[7::499], end]
    for number, (first, stop) in enumerate(pairwise(marks)):
        again = offsets[max(offsets.index(first) - 3 * number, 0)]
        middle = (first + stop) // 2  # inside a record, which is then taken whole
        with compiled(number % 2 == 0):
            run(ours, options, again, [middle, stop], batch)
    assert queue_files(ours) == queue_files(root)
    assert index_files(ours) == index_files(root)


_PROPERTIES = st.dictionaries(
    st.sampled_from(["TAGS", "KEYS", "UNIQ_KEY", "DELAY", "INNER_BASE", "INNER_NUM", "INNER_MULTI_DISPATCH",
                     "INNER_MULTI_QUEUE_OFFSET"]),
    st.sampled_from(["1", "7", "-2", "x", "a b  c", "%LMQ%l,other", "3,4", "2,", "\u0663", "99999999999"]),
)  # fmt: skip


@st.composite
def _records(draw: st.DrawFn) -> Message:
    found: Any = draw(_PROPERTIES | st.sampled_from([b"TAGS\x01\xff\x02KEYS\x01k\x02", b"\x02\x01"]))
    return record(
        draw(st.sampled_from(["A", "B", "Batch", SCHEDULE_TOPIC, "%RETRY%g", "a/b"])), b"x", found,
        queue_id=draw(st.sampled_from([0, 0, 1, -5])), queue_offset=draw(st.integers(0, 30)),
        sys_flag=draw(st.sampled_from([0, 0, 0, *TRANSACTIONS])),
        store_timestamp=STORE_TIMESTAMP + draw(st.integers(-3000, 9000)),
    )  # fmt: skip


@given(records=st.lists(_records(), max_size=60), profile=st.sampled_from(["4.9", "5.4"]), data=st.data())
def test_compiled_equals_plain(
    tmp_path_factory: pytest.TempPathFactory, records: list[Message], profile: str, data: st.DataObject
) -> None:
    """Whatever records are in the log: odd queue offsets, properties, transactions, in any steps."""
    folder = tmp_path_factory.mktemp("dispatch")
    stored = write_log(folder / "log", records or [record()], file_size=SMALL.commit_log_file_size)
    ends = [item.physical_offset + item.total_size for item in stored]
    options = replace(SMALL, profile=PROFILES[profile])
    found = []
    for fast in (True, False):
        root = beside(folder / "log", folder / f"store{fast}")
        stops = sorted(data.draw(st.sets(st.sampled_from(ends))) | {ends[-1]})
        with compiled(fast):
            assert run(root, options, 0, stops, ["Batch"]) == len(stored)
        found.append(files_of(root))
    assert found[0] == found[1]


@pytest.mark.parametrize(("profile", "entries"), [("4.9", 0), ("5.4", 1)])
def test_a_record_with_a_tag_alone_after_a_full_index_file(
    tmp_path: Path, profile: str, entries: int
) -> None:
    """It makes the next file, also where tags are not indexed."""
    records = [record("A", b"x", b"KEYS\x01k\x02")] * 19 + [record("A", b"x", b"TAGS\x01t\x02")]
    stored = write_log(tmp_path / "log", records, file_size=SMALL.commit_log_file_size)
    options = replace(SMALL, profile=PROFILES[profile])
    found = []
    for fast in (True, False):
        root = beside(tmp_path / "log", tmp_path / f"store{fast}")
        with compiled(fast):
            assert run(root, options, 0, [stored[-1].physical_offset + stored[-1].total_size]) == 20
        found.append(index_files(root))
    assert found[0] == found[1]
    assert [max(index.decode_header(data).next_entry - 1, 0) for data in found[0]] == [19, entries]


def dispatched(tmp_path: Path, records: Sequence[Message], options: WriteOptions = SMALL) -> list[Message]:
    """Write a log below `tmp_path` and dispatch it; the records as stored."""
    stored = write_log(tmp_path / "commitlog", records, file_size=options.commit_log_file_size)
    run(tmp_path, options, 0, [stored[-1].physical_offset + stored[-1].total_size])
    return stored


@pytest.mark.parametrize("fast", [True, False], ids=["compiled", "plain"])
def test_where_units_go(tmp_path: Path, fast: bool) -> None:
    """A queue that begins late gets fillers; a gap is closed; what is below the end is refused, but for 0."""
    offsets = [13, 14, 17, 13, 0, 99]
    with compiled(fast):
        stored = dispatched(tmp_path, [record(queue_offset=offset) for offset in offsets])
    taken = [Unit(item.physical_offset, item.total_size, 0) for n, item in enumerate(stored) if n != 3]
    data = queue_files(tmp_path)
    assert list(data) == [f"consumequeue/TopicTest/0/{file_name(200)}"]
    expected = b"".join(encode_unit(unit) for unit in [PRE_BLANK] * 3 + taken)
    assert data[f"consumequeue/TopicTest/0/{file_name(200)}"] == expected.ljust(200, b"\0")


@pytest.mark.parametrize("fast", [True, False], ids=["compiled", "plain"])
def test_delayed_messages_carry_their_time_of_delivery(tmp_path: Path, fast: bool) -> None:
    options = replace(SMALL, delays_ms=(1000, 5000))
    levels = ["1", "2", "18", "0", "-1", "x"]
    records = [record(SCHEDULE_TOPIC, found={"DELAY": level, "TAGS": "t"}, queue_offset=n)
               for n, level in enumerate(levels)]  # fmt: skip
    with compiled(fast):
        dispatched(tmp_path, records, options)
    codes = [unit.tags_code for unit in units(tmp_path)[f"{SCHEDULE_TOPIC}/0"].values()]
    times = [STORE_TIMESTAMP + delay for delay in (1000, 5000, 5000)]
    assert codes == [*times, *[tags_code("t")] * 3]


@pytest.mark.parametrize("fast", [True, False], ids=["compiled", "plain"])
def test_a_queue_of_fillers_takes_the_next_record(tmp_path: Path, fast: bool) -> None:
    """A broker that recovers such a queue refuses all records below 2^31."""
    write_queue(tmp_path / "consumequeue/TopicTest/0", [PRE_BLANK] * 3, file_size=200)
    with compiled(fast):
        (stored,) = dispatched(tmp_path, [record(queue_offset=3)])
    assert units(tmp_path)["TopicTest/0"][3].physical_offset == stored.physical_offset


@pytest.mark.parametrize("fast", [True, False], ids=["compiled", "plain"])
@pytest.mark.parametrize("topic", ["../../out", "..", "a/b", ""])
def test_no_topic_leads_out_of_the_store(tmp_path: Path, topic: str, fast: bool) -> None:
    root = tmp_path / "a" / "store"
    with compiled(fast):
        dispatched(root, [record(topic, found={"KEYS": "k"}), record()])
    assert list(units(root)) == ["TopicTest/0"]
    assert len(entries(root, SMALL)) == 1
    outside = [path for path in tmp_path.rglob("*") if root not in path.parents]
    assert sorted(outside) == [root.parent, root]


@pytest.mark.parametrize("fast", [True, False], ids=["compiled", "plain"])
def test_a_full_index_file_is_told_when_it_is_on_the_device(tmp_path: Path, fast: bool) -> None:
    options = replace(SMALL, index_slots=SHAPE.slots, index_entries=SHAPE.entries)
    stored = write_log(tmp_path / "commitlog", keyed(80), file_size=options.commit_log_file_size)
    found = opened(tmp_path, options, 0)
    with compiled(fast):
        found.run(stored[20].physical_offset)
        found.sync()
        assert found.index_timestamp == 0
        found.run(stored[-1].physical_offset + stored[-1].total_size)
        assert found.index_timestamp == 0
        found.sync()
    first, _ = map(index.decode_header, index_files(tmp_path))
    assert first.index_count == SHAPE.entries
    assert found.index_timestamp == first.end_timestamp
    assert (found.position, found.store_timestamp) == (
        stored[-1].physical_offset + stored[-1].total_size, stored[-1].store_timestamp,
    )  # fmt: skip
    found.close()


@pytest.mark.parametrize("fast", [True, False], ids=["compiled", "plain"])
def test_a_full_disk_leaves_no_torn_unit_and_can_be_gone_on_from(tmp_path: Path, fast: bool) -> None:
    options = replace(SMALL, consume_queue_file_size=100 * UNIT_SIZE)
    stored = write_log(tmp_path / "log", keyed(60, queues=3), file_size=options.commit_log_file_size)
    end = stored[-1].physical_offset + stored[-1].total_size
    whole = beside(tmp_path / "log", tmp_path / "whole")
    ours = beside(tmp_path / "log", tmp_path / "ours")
    with compiled(fast):
        run(whole, options, 0, [end])
        found = opened(ours, options, 0)
        found.run(stored[9].physical_offset)
        found.write_out()
        before = queue_files(ours)
        with size_limit(10 * UNIT_SIZE + 7), pytest.raises(UnwritableError):
            found.run(end)
            found.write_out()
        for name, data in queue_files(ours).items():
            used = data.rstrip(b"\0")
            assert len(used) <= 10 * UNIT_SIZE
            assert used.startswith(before[name].rstrip(b"\0"))
            assert queue_files(whole)[name].startswith(used)
        found.run(end)
        found.write_out()
        found.close()
    assert files_of(ours) == files_of(whole)


@pytest.mark.parametrize("fast", [True, False], ids=["compiled", "plain"])
def test_many_queues_are_written_also_after_a_failure(tmp_path: Path, fast: bool) -> None:
    """Enough for several threads; one topic's folder cannot be made at first."""
    records = [record(f"Topic{n % 300:03}", queue_offset=n // 300, queue_id=n % 2) for n in range(900)]
    stored = write_log(tmp_path / "log", records, file_size=1 << 20)
    end = stored[-1].physical_offset + stored[-1].total_size
    options = replace(SMALL, commit_log_file_size=1 << 20)
    ours = beside(tmp_path / "log", tmp_path / "ours")
    (ours / "consumequeue").mkdir()
    (ours / "consumequeue" / "Topic123").write_bytes(b"")
    with compiled(fast):
        found = opened(ours, options, 0)
        found.run(end)
        with pytest.raises(UnwritableError):
            found.write_out()
        (ours / "consumequeue" / "Topic123").unlink()
        found.write_out()
        found.sync()
        found.close()
    expected: dict[str, list[Unit]] = {}
    for item in stored:
        units_of_queue = expected.setdefault(f"{item.topic}/{item.queue_id}", [])
        units_of_queue.append(Unit(item.physical_offset, item.total_size, 0))
    assert {name: list(found.values()) for name, found in units(ours).items()} == expected


def test_a_missing_log_file_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "commitlog").mkdir()
    found = opened(tmp_path, SMALL, 0)
    with pytest.raises(UnreadableError):
        found.run(4096)
    found.close()


def test_few_records_need_neither_numpy_nor_numba(tmp_path: Path) -> None:
    stored = write_log(tmp_path / "commitlog", keyed(5), file_size=SMALL.commit_log_file_size)
    code = (
        "import sys\n"
        "from pathlib import Path\n"
        "from rmqtool.storage.layout import detect\n"
        "from rmqtool.write.dispatcher import Dispatcher\n"
        "from rmqtool.write.options import WriteOptions\n"
        "root = Path(sys.argv[1])\n"
        "options = WriteOptions(commit_log_file_size=4096)\n"
        "found = Dispatcher(root, options, detect(root), start=0, batch_topics=lambda topic: False)\n"
        "found.run(int(sys.argv[2])); found.sync(); found.close()\n"
        "print(sorted({'numpy', 'numba', 'pyarrow'} & set(sys.modules)))\n"
    )
    end = str(stored[-1].physical_offset + stored[-1].total_size)
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path), end], capture_output=True, text=True, check=True,
        cwd=ROOT, env=dict(os.environ),
    )  # fmt: skip
    assert done.stdout == "[]\n"
    assert len(units(tmp_path)["TopicTest/0"]) == 3
