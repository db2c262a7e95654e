"""The rows of `rmqtool browse`: what other commands know is shown, and damage has its code."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from rmqtool import Selection, Store, lookup
from rmqtool.message.rows import RowFormat, message_row
from rmqtool.problems import BY_CODE
from rmqtool.read.by_time import exact_offset_by_time
from rmqtool.report.browse.groups import group_rows
from rmqtool.report.browse.log import FileRecords, file_row
from rmqtool.report.browse.messages import MessageRow, QueueMessages
from rmqtool.report.browse.record import record_at, row_at
from rmqtool.report.browse.topics import Topics, queue_rows
from rmqtool.report.info import store_info
from rmqtool.report.stats.lag import group_lags
from rmqtool.write.store_writer import StoreWriter
from tests.support.stores import Library
from tests.support.tail_writer import SMALL, message

STORES = ("ok_497_expired", "ok_533_clean", "ok_540_small_ipv6")


def rows_of(store: Store) -> Iterator[tuple[tuple[str, int], MessageRow]]:
    """Every row of every queue, in pages of 20."""
    for key, queue in store.queues.items():
        messages = QueueMessages(store, queue)
        for start in range(messages.start, messages.stop, 20):
            for row in messages.page(start, start + 20):
                yield key, row


@pytest.mark.parametrize("name", STORES)
def test_a_sound_store(
    cases: Library, name: str, unchanged: Callable[[Path], AbstractContextManager[None]]
) -> None:
    """Pages show every message of every queue once, as dump shows them; nothing is damaged or changed."""
    form = RowFormat(names=("tags", "keys", "store_timestamp_ms", "size"))
    path = cases.path(name)
    with unchanged(path), Store.open(path) as store:
        found = list(rows_of(store))
        assert not [row for _, row in found if row.problems]
        want = {
            (key, unit.physical_offset)
            for key, queue in store.queues.items()
            for _, unit in queue.units()
            if unit.physical_offset >= store.commit_log.min_offset
        }
        shown = [(key, row) for key, row in found if row.topic]
        assert {(key, row.physical_offset) for key, row in shown} == want
        assert len(shown) == len(want) > 250
        for key, row in shown[::11]:
            stored = store.get(row.physical_offset or 0)
            assert stored is not None
            cells = message_row(stored.message, stored.physical_offset, stored.file, form)
            assert (row.tags, list(row.keys)) == (cells["tags"], cells["keys"])
            assert (row.store_ms, row.size) == (cells["store_timestamp_ms"], cells["size"])
            assert store.queues[key].unit(row.queue_offset or 0) is not None
            record = record_at(store, row, None)
            assert (record.size, record.problems) == (row.size, ())
            assert dict(record.fields)["topic"] == row.topic
            assert sum(len(each.data) for each in record.rows if "." not in each.name) == row.size


def test_queues_in_rocksdb(cases: Library) -> None:
    """Every record that a unit names is shown once, and read like those of queues in files."""
    with Store.open(cases.path("kind_rocksdb_540")) as store:
        found = list(rows_of(store))
        want = [
            (key, unit.physical_offset) for key, queue in store.queues.items() for _, unit in queue.units()
        ]
        assert [(key, row.physical_offset) for key, row in found] == want
        assert len(want) > 90 and not [row for _, row in found if row.problems]
        topics = [dict(record_at(store, row, None).fields)["topic"] for _, row in found]
        assert topics == [topic for (topic, _), _ in found]


@pytest.mark.parametrize("name", STORES)
def test_topics_and_queues(cases: Library, name: str) -> None:
    """The counts are those of info; topics without queues are listed, and system topics come last."""
    with Store.open(cases.path(name)) as store:
        topics = Topics(store)
        rows = {row.topic: row for row in topics.rows(topics.names)}
        info = {row["topic"]: row for row in store_info(store)["topics"]}
        assert {topic for topic, row in rows.items() if row.queues} == set(info)
        for topic, row in info.items():
            assert (rows[topic].queues, rows[topic].messages) == (row["queue_count"], row["messages"])
            queues = queue_rows(store, topic, topics.queue_ids(topic))
            assert [(each.queue_id, each.max_offset) for each in queues] == [
                (each["queue_id"], each["max_offset"]) for each in row["queues"]
            ]
        assert rows["TBW102"].queues == 0
        kinds = [rows[topic].kind for topic in topics.names]
        assert kinds[0] == "" and kinds[-1] == "system" and kinds.index("system") > kinds.index("retry")


@pytest.mark.parametrize(
    "code",
    ["CL03", "CL04", "CL05", "CL06", "CL08", "CL13", "CL14", "CQ05", "CQ08", "CQ14"],
)
def test_damage_has_its_code(cases: Library, code: str) -> None:
    """Each kind of damage that a message shows is in its row; the record says what it is in words."""
    name = next(path.name for path in (Path("fixtures").glob(f"*_{code.lower()}_*")))
    with Store.open(cases.path(name)) as store:
        found = [row for _, row in rows_of(store) if row.problems]
        assert code in {each for row in found for each in row.problems}
        assert {each for row in found for each in row.problems} <= set(BY_CODE)
        bad = next(row for row in found if code in row.problems)
        if bad.physical_offset is not None and store.commit_log.file_of(bad.physical_offset) is not None:
            record = record_at(store, bad, None)
            assert any(text.startswith(code) for text in record.problems)
            assert record.rows


def test_units_after_an_empty_one_are_shown(cases: Library) -> None:
    """A broker stops at an empty unit; the browser shows what comes after it."""
    with Store.open(cases.path("bad_cq08_invalid_unit")) as store:
        key = next(key for key, row in rows_of(store) if "CQ08" in row.problems)
        messages = QueueMessages(store, store.queues[key])
        bad = next(row for row in messages.page(messages.start, messages.stop) if "CQ08" in row.problems)
        assert bad.number >= store.queues[key].end()
        assert messages.page(bad.number + 1, bad.number + 2)[0].topic == key[0]


def test_times_and_offsets(cases: Library) -> None:
    """Positions are those of lookup; what is outside of the queue leads to its nearest end."""
    with Store.open(cases.path("ok_540_expired")) as store:
        for topic, queue_id in list(store.queues)[::5]:
            queue = store.queues[topic, queue_id]
            messages = QueueMessages(store, queue)
            for row in messages.page(messages.start, messages.stop)[::9]:
                if row.store_ms is None:
                    continue
                exact = exact_offset_by_time(store, topic, queue_id, row.store_ms)
                assert messages.page(*_one(messages.number_at(row.store_ms)))[0].queue_offset == exact[0]
                assert row.queue_offset is not None
                assert messages.number_of(row.queue_offset) == row.number
            assert messages.number_of(1 << 60) in (messages.stop - 1, messages.start)
            assert messages.number_of(0) == messages.start or messages.start == 0
            assert messages.number_at(1 << 50) == messages.stop


def _one(number: int) -> tuple[int, int]:
    return number, number + 1


def test_every_byte_leads_to_its_record(cases: Library) -> None:
    """An offset inside a record gives the record; the unused rest of the log says so."""
    with Store.open(cases.path("ok_540_clean")) as store:
        row = next(row for _, row in rows_of(store) if row.topic == "pubOrder")
        assert row.physical_offset is not None and row.size is not None
        for offset in (row.physical_offset, row.physical_offset + 10, row.physical_offset + row.size - 1):
            assert row_at(store, offset).physical_offset == row.physical_offset
        after = row_at(store, store.end_offset() + 5)
        assert after.note == "zeros to the end of the file"
        assert record_at(store, after, None).size is None


def test_the_files_of_the_log(cases: Library) -> None:
    """Every event of a walk over the log is one row, damage with its code."""
    for name in ("ok_540_clean", "bad_cl04_wrong_length", "bad_cl10_bad_blank"):
        with Store.open(cases.path(name)) as store:
            rows = []
            for file in store.layout.commit_log:
                assert file_row(store, file).problems == ()
                records = FileRecords(store, file)
                while block := records.more(100):
                    rows += block
            events = list(store.events())
            assert [row.physical_offset for row in rows] == [event.physical_offset for event in events]
            codes = {code for row in rows for code in row.problems}
            assert name.split("_")[1].upper() in codes or name.startswith("ok") and not codes


def test_groups(cases: Library) -> None:
    """The lag is that of stats, without reading the units of the lag."""
    with Store.open(cases.path("ok_540_clean")) as store:
        rows = list(group_rows(store))
        want: dict[tuple[str | None, str], int] = {}
        for lag in group_lags(store, Selection()):
            want[lag.group, lag.topic] = want.get((lag.group, lag.topic), 0) + (lag.messages or 0)
        assert {(row.group, row.topic): row.lag or 0 for row in rows} == want
        assert any(row.lag for row in rows)
        only = list(group_rows(store, "pubOrder"))
        assert [(row.group, row.status) for row in only] == [(None, ("no_group",))]


def test_hits_are_rows(cases: Library) -> None:
    """What a look-up finds is shown as the queue shows it."""
    from rmqtool.report.browse.messages import record_row

    with Store.open(cases.path("ok_540_clean")) as store:
        hits = [record_row(hit.stored) for hit in lookup(store, "ORDER_5", kind="any", scan="never")]
        assert len(hits) == 15
        queue = QueueMessages(store, store.queues[hits[0].topic, hits[0].queue_id or 0])
        number = queue.number_of(hits[0].queue_offset or 0)
        assert queue.page(*_one(number))[0]._replace(number=0) == hits[0]._replace(number=0)


def test_a_growing_queue(tmp_path: Path) -> None:
    """New units are found by looking again, those in a new file of the queue too."""
    with StoreWriter.create(tmp_path / "store", "5.4", **SMALL) as writer:
        for number in range(8):
            writer.put(message(number))
        writer.flush()
        with Store.open(tmp_path / "store") as store:
            messages = QueueMessages(store, store.queues["TopicTest", 0])
            assert not messages.refresh()
            before = messages.stop
            for number in range(8, 1000):
                writer.put(message(number))
            writer.flush()
            assert messages.refresh()
            assert messages.stop - before == 248  # 992 in 4 queues; a file holds 100
            assert messages.page(*_one(before))[0].keys == (f"key-{before * 4}",)


def test_files_that_vanish(store_copy: Callable[[str], Path]) -> None:
    """What a broker deletes while it is shown is a row that says so, not damage."""
    path = store_copy("ok_540_clean")
    with Store.open(path) as store:
        messages = QueueMessages(store, store.queues["pubOrder", 0])
        topics = Topics(store)
        shutil.rmtree(path / "commitlog")
        (row,) = messages.page(3, 4)
        assert (row.problems, row.note) == ((), "the file of the log was deleted")
    with Store.open(path) as store:
        topics = Topics(store)
        shutil.rmtree(path / "consumequeue")
        row = next(row for row in topics.rows(["pubOrder"]))
        assert row.messages is None
        assert [each.kind for each in queue_rows(store, "pubOrder", [0])] == ["gone"]


def test_a_page_reads_what_is_on_it(cases: Library) -> None:
    """Twenty rows of a queue of 1,400 read a few bytes for each, not the queue and not the log."""
    counters = Path("/proc/self/io")
    if not counters.exists():
        pytest.skip("the system does not count the bytes of a process")

    def read_so_far() -> int:
        return int(counters.read_text().split()[1])

    with Store.open(cases.path("ok_540_clean")) as store:
        messages = QueueMessages(store, store.queues["pubTopicOne", 0])
        messages.page(0, 1)  # files are open
        before = read_so_far()
        rows = messages.page(700, 720)
        count = read_so_far() - before
    sizes = sum(row.size or 0 for row in rows)
    assert len(rows) == 20
    assert count < sizes + 20 * (4096 + 20) + 4096
