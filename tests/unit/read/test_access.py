"""The way to the messages makes no difference: log, queues, index, pieces and threads give the same rows."""

from __future__ import annotations

import pickle
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmqtool import NewMessage
from rmqtool.errors import UsageError
from rmqtool.formats import index, message
from rmqtool.formats.consume_queue import Unit
from rmqtool.formats.message import Message
from rmqtool.formats.properties import decode, keys_of
from rmqtool.read import boundaries
from rmqtool.read.access import Access, plan_access
from rmqtool.read.filter import parse
from rmqtool.read.selection import Selection
from rmqtool.read.split import split
from rmqtool.read.store import Store
from rmqtool.storage.buffers import distinct
from rmqtool.times import HOUR_MS
from rmqtool.write.store_writer import StoreWriter
from tests.support.batch_rows import batch_rows, expected, seen
from tests.support.build_store import file_name, write_index, write_log, write_queue, write_store
from tests.support.records import STORE_TIMESTAMP
from tests.support.records import record as make_record
from tests.support.stores import Library
from tests.support.sweep import IS_WHOLE, in_sweeps, paired, sample

pytestmark = pytest.mark.sweep

LARGE = "torn_540_killed"
COLUMNS = ("physical_offset", "topic", "queue_id", "keys", "properties", "status", "file")
FIXTURES = ("ok_540_small_ipv6", "torn_540_killed", "gap_cl20_missing_file", "gap_cl02_zero_hole",
            "bad_cl05_unknown_magic", "bad_cl03_body_crc", "gap_cq13_queue_missing", "gap_cq02_unit_missing",
            "gap_ix03_key_not_found", "bad_ix02_chain_loop", "bad_ix01_header", "bad_ix07_stray_entry",
            "old_un01_tiered", "torn_ix09_index_header_behind")  # fmt: skip


def same(
    store: Store, selection: Selection, *, targets: tuple[int, ...] = (200_000,), tells_all: bool = True
) -> list[Access]:
    """Every way gives the rows of the plain way; a way that reads the whole log also tells the same."""
    rows, findings = expected(store, selection, COLUMNS)
    used = []
    for via in ("log", "queue", "index", "auto"):
        access = plan_access(store, selection, via=via)
        used.append(access)
        if access in used[:-1]:
            continue
        found, told = batch_rows(store, selection, COLUMNS, [access], jobs=2)
        assert found == rows, (via, access)
        is_whole = access.kind == "log" and access.start is None and access.stop is None
        if tells_all and is_whole and not selection.limit:
            assert seen(told) == seen(findings)
        for target in targets if selection.limit is None else ():
            pieces = [
                pickle.loads(pickle.dumps(piece)) for piece in split(store, access, target_bytes=target)
            ]
            in_pieces, told_there = batch_rows(store, selection, COLUMNS, pieces)
            assert in_pieces == rows, (via, target)
            assert seen(told_there) == seen(told)
    return used


def selections(rows: list[dict[str, Any]]) -> list[Selection]:
    """One of every filter, and some together, that select something of these rows."""
    topics = sorted({row["topic"] for row in rows})
    middle, late = rows[len(rows) // 2], rows[len(rows) * 3 // 4]
    keyed = next((row for row in rows[len(rows) // 3 :] if row["keys"]), middle)
    key = (keyed["keys"] or ["none"])[0]
    tags = [row["tags"] for row in rows if row["tags"]][:1] or ["none"]
    return [
        Selection(topics=topics[-1:]),
        Selection(topics=[topics[0][:3] + "*"], exclude_topics=topics[:1]),
        Selection(queues=[0]),
        Selection(topics=[topics[0], topics[-1]], queues=[0, 1], limit=5),
        Selection(tags=tags),
        Selection(keys=[key]),
        Selection(topics=[keyed["topic"]], keys=[key, "nowhere"]),
        Selection(topics=[middle["topic"]], keys=[middle["uniq_key"] or "none"]),
        Selection(since=middle["store_timestamp_ms"], topics=topics[:2]),
        Selection(until=middle["born_timestamp_ms"], time_field="born"),
        Selection(
            from_offset=middle["physical_offset"] + 1,
            to_offset=late["physical_offset"] + 5,
            topics=topics[:3],
        ),
        Selection(topics=["nowhere"]),
        Selection(queues=[0, 1], filter=parse("UNIQ_KEY IS NOT NULL AND (KEYS IS NOT NULL OR TAGS IS NULL)")),
        Selection(topics=topics[-2:], filter=parse(f"UNIQ_KEY = '{middle['uniq_key']}' OR KEYS IS NULL")),
    ]


WHAT = ("physical_offset", "topic", "tags", "keys", "uniq_key", "store_timestamp_ms", "born_timestamp_ms")


@pytest.mark.parametrize(
    "name", [*sample([name for name in FIXTURES if name != LARGE], 3), *in_sweeps([LARGE])]
)
def test_every_filter_on_real_stores(name: str, cases: Library) -> None:
    with Store.open(cases.path(name)) as store:
        rows, _ = expected(store, columns=WHAT)
        every = selections(rows)
        # each store takes a part of them, so that all are taken by several
        share = 4 if IS_WHOLE else 16
        for selection in every[FIXTURES.index(name) % share :: share]:
            same(store, selection)


def test_messages_of_a_time_without_index_are_found(tmp_path: Path) -> None:
    """The index was off for some in the middle of a file: the queues have them; else the log is read."""
    root = tmp_path / "store"
    options = {"auto_create_queues": 2, "index_slots": 100, "index_entries": 900}
    StoreWriter.create(root, commit_log_file_size=1 << 20, **options).close()
    for number in range(3):
        with StoreWriter.open(root, index=number != 1, **options) as writer:
            for each in range(60):
                writer.put(NewMessage("TU"[each % 2], b"x" * 200, keys=["dup", f"k{number}-{each}"]))
    sizes = {"index_slots": 100, "index_entries": 900}
    with Store.open(root, file_sizes=sizes) as store:
        assert same(store, Selection(topics=["T"], keys=["k1-4"]))[2].kind == "index"
        assert len(same(store, Selection(topics=["T"], keys=["dup"]))[2].offsets) == 90
        assert same(store, Selection(topics=["T", "U"], keys=["k0-2", "k1-3", "k2-5"]))[2].kind == "index"
    shutil.rmtree(root / "consumequeue" / "T")
    with Store.open(root, file_sizes=sizes) as store:
        assert same(store, Selection(topics=["T"], keys=["dup"]))[2].kind == "log"


def test_queues_and_index_are_used_where_they_can_be(cases: Library) -> None:
    with Store.open(cases.path("ok_540_small_ipv6")) as store:
        by_queue = plan_access(store, Selection(topics=["SCHEDULE_TOPIC_XXXX"]), via="queue")
        assert by_queue.kind == "queue"
        assert [each.via for each in by_queue.ranges] == ["queue", "log"]
        assert by_queue.bytes_read < by_queue.bytes_total
        row = next(row for row in expected(store, columns=WHAT)[0] if row["keys"])
        by_key = plan_access(store, Selection(topics=[row["topic"]], keys=row["keys"]), via="index")
        assert by_key.kind == "index" and row["physical_offset"] in by_key.offsets
        # without a topic by name every topic of the queues is tried
        for topics in ((), ["*"]):
            anywhere = plan_access(store, Selection(topics=topics, keys=row["keys"]), via="index")
            assert anywhere.kind == "index" and row["physical_offset"] in anywhere.offsets
            assert [each.via for each in anywhere.ranges] == ["index", "log"]
    with Store.open(cases.path("gap_cq13_queue_missing")) as store:
        assert plan_access(store, Selection(topics=["*"], queues=[0])).kind == "log"
        with pytest.raises(UsageError, match="via"):
            plan_access(store, via="magic")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "name",
    ["ok_540_clean", *in_sweeps(["torn_540_killed"]), "gap_cl02_zero_hole", "bad_cl03_body_crc",
     "gap_cq02_unit_missing"],
)  # fmt: skip
def test_a_time_range_is_looked_for_in_large_files(
    name: str, cases: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By queues, to a part of the file; the same rows come out, and of a small file all is read."""
    with Store.open(cases.path(name)) as store:
        rows, _ = expected(store, columns=WHAT)
        times = [rows[len(rows) * part // 8]["store_timestamp_ms"] for part in range(8)]
        chosen = [
            Selection(since=times[3], until=times[4]),
            Selection(since=times[6]),
            Selection(until=times[1]),
        ]
        before = [plan_access(store, selection, via="log").bytes_read for selection in chosen]
        monkeypatch.setattr(boundaries, "WORTH_BYTES", 0)
        monkeypatch.setattr(boundaries, "_STEP_BYTES", 2000)
        monkeypatch.setattr(boundaries, "CLOCK_SLACK_MS", 0)
        after = [plan_access(store, selection, via="log").bytes_read for selection in chosen]
        assert name not in ("ok_540_clean", "torn_540_killed") or sum(after) < sum(before)
        assert all(part <= whole for part, whole in zip(after, before, strict=True))
        for selection in chosen:
            same(store, selection, tells_all=False)


# -- random stores ---------------------------------------------------------------------------------


@st.composite
def random_stores(draw: st.DrawFn) -> tuple[list[Message], dict[str, Any]]:
    """Records, and what is wrong with queues, index and log."""
    count = draw(st.integers(1, 25))
    next_offset: dict[tuple[str, int], int] = {}
    records = []
    for number in range(count):
        topic, queue_id = draw(st.sampled_from(["A", "B", "AB"])), draw(st.integers(0, 1))
        offset = next_offset.get((topic, queue_id), 0)
        next_offset[topic, queue_id] = offset + 1
        found = {"KEYS": draw(st.sampled_from(["k1", "k1 k2", "k3"])), "TAGS": draw(st.sampled_from("tu"))}
        records.append(
            make_record(
                topic, bytes(draw(st.sampled_from([10, 10, 300, 900]))), found if draw(st.booleans()) else {},
                queue_id=queue_id, queue_offset=offset, store_timestamp=STORE_TIMESTAMP + 10 * number,
            )
        )  # fmt: skip
    unit = st.tuples(st.integers(0, 30), st.sampled_from(["drop", "size", "move", "double"]))
    wrong = {
        "units": draw(st.lists(unit, max_size=2)),
        "damage": draw(
            st.lists(st.tuples(st.integers(0, 12000), st.binary(min_size=1, max_size=9)), max_size=2)
        ),
        "behind": draw(st.integers(0, 3)),
        "index": draw(st.sampled_from(["none", "whole", "part"])),
    }
    return records, wrong


def write_random(root: Path, records: list[Message], wrong: dict[str, Any]) -> None:
    """The store of `random_stores`, files of 4 KiB."""
    shutil.rmtree(root, ignore_errors=True)
    stored = write_log(root / "commitlog", records)
    queues: dict[tuple[str, int], list[Unit]] = {}
    for number, record in enumerate(stored[: len(stored) - wrong["behind"]]):
        unit = Unit(record.physical_offset, record.total_size, 0)
        units = queues.setdefault((record.topic, record.queue_id), [])
        kinds = [kind for place, kind in wrong["units"] if place == number]
        if "drop" in kinds:
            continue
        if "size" in kinds:
            unit = unit._replace(size=unit.size + 8)
        if "move" in kinds:
            unit = unit._replace(physical_offset=unit.physical_offset + 4)
        units += [unit] * (2 if "double" in kinds else 1)
    for (topic, queue_id), units in queues.items():
        write_queue(root / "consumequeue" / topic / str(queue_id), units)
    _write_index(root, stored, wrong["index"])
    for at, data in wrong["damage"]:
        path = root / "commitlog" / file_name(at // 4096 * 4096)
        if path.exists():
            with path.open("r+b") as file:
                file.seek(min(at % 4096, 4096 - len(data)))
                file.write(data)


def _write_index(root: Path, stored: list[Message], how: str) -> None:
    entries = [
        (index.key_text(record.topic, key), record.physical_offset)
        for record in stored
        for key in keys_of(decode(record.properties_bytes))
    ]
    if how == "part":
        entries = [entry for entry in entries if entry[1] > stored[len(stored) // 3].physical_offset]
    if how != "none" and entries:
        write_index(root / "index" / "20231114221320123", index.Shape(8, 60), entries)


PARTS = {
    "topics": st.sampled_from([(), ("A",), ("A", "B"), ("A*",), ("nowhere",)]),
    "exclude_topics": st.sampled_from([(), (), ("AB",)]),
    "queues": st.sampled_from([(), (), (1,)]),
    "keys": st.sampled_from([(), ("k1",), ("k2", "k3")]),
    "tags": st.sampled_from([(), (), ("t",)]),
    "since": st.sampled_from([None, None, STORE_TIMESTAMP + 45]),
    "from_offset": st.sampled_from([None, None, 700, 5000]),
    "to_offset": st.sampled_from([None, None, 6000, 9000]),
}


@given(made=random_stores(), parts=st.fixed_dictionaries(PARTS), target=st.integers(1, 9000))
def test_every_filter_on_random_stores(
    made: tuple[list[Message], dict[str, Any]], parts: dict[str, Any], target: int, tmp_path: Path
) -> None:
    write_random(tmp_path / "store", *made)
    with Store.open(tmp_path / "store") as store:
        same(store, Selection(**parts), targets=(target,))


@pytest.mark.parametrize("kind", ["drop", "size", "move", "double", None])
def test_queues_that_do_not_tile_the_log_are_not_trusted(kind: str | None, tmp_path: Path) -> None:
    """One unit that is missing, wrong or there twice: its file is read from the log."""
    records = [make_record("AB"[n % 2], bytes(300), queue_offset=n // 2) for n in range(30)]
    wrong = {"units": [(12, kind)] if kind else [], "damage": [], "behind": 2, "index": "none"}
    write_random(tmp_path / "store", records, wrong)
    with Store.open(tmp_path / "store") as store:
        access = plan_access(store, Selection(topics=["A"]), via="queue")
        in_second = {each.via for each in access.ranges if each.file_from_offset == 4096}
        assert in_second == ({"log"} if kind else {"queue", "log"})
        assert {each.via for each in access.ranges if each.file_from_offset == 0} == {"queue", "log"}
        same(store, Selection(topics=["A"]))


# -- pieces ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "target"),
    paired(
        [*in_sweeps([LARGE]), "gap_cl08_zeroed_page", "ok_497_expired", "old_un01_tiered"],
        [1, 20_000, 300_000, 1 << 40],
        2,
    ),
)
def test_pieces_are_the_whole(name: str, target: int, cases: Library) -> None:
    """For any size; queues that are missing leave the walk over the heads."""
    with Store.open(cases.path(name)) as store:
        access = plan_access(store)
        whole, told = batch_rows(store, columns=COLUMNS, pieces=[access])
        pieces = split(store, access, target_bytes=target, max_pieces=40)
        assert 1 <= len(pieces) <= 40
        if target == 20_000:
            assert len(pieces) > len(access.ranges)
        rows, told_there = batch_rows(store, columns=COLUMNS, pieces=pieces)
        assert rows == whole
        assert seen(told_there) == seen(told)
        assert sum(piece.bytes_read for piece in pieces) == access.bytes_read
        assert all(len(pickle.dumps(piece)) < 4000 for piece in pieces)
        with pytest.raises(UsageError):
            split(store, access, target_bytes=0)


def test_no_piece_begins_in_a_hole(tmp_path: Path) -> None:
    """Units lead to damaged records that follow one another: what is wrong is reported once, as a whole."""
    topics = ["A" if n % 10 < 3 else "B" for n in range(100)]
    records = [
        make_record(topic, bytes(100), queue_offset=topics[:n].count(topic)) for n, topic in enumerate(topics)
    ]
    for first, last in ((60, 62), (41, 43), (10, 43), (70, 100)):
        root = tmp_path / f"{first}"
        stored = write_store(root, records, file_size=1 << 16)
        with (root / "commitlog" / file_name(0)).open("r+b") as file:
            for each in stored[first:last]:
                file.seek(each.physical_offset)
                file.write(bytes(4))
        selection = Selection(topics=["A"])
        with Store.open(root) as store:
            access = plan_access(store, selection, via="queue")
            assert access.kind == "queue"
            whole, told = batch_rows(store, selection, COLUMNS, [access])
            pieces = split(store, access, target_bytes=300)
            assert len(pieces) > 4
            assert batch_rows(store, selection, COLUMNS, pieces) == (whole, told)


def test_units_that_have_gone_since(store_copy: Any) -> None:
    """A worker that does not find the units that the access was planned with walks the log."""
    path = store_copy("ok_540_small_ipv6")
    selection = Selection(topics=["SCHEDULE_TOPIC_XXXX"])
    with Store.open(path) as store:
        access = plan_access(store, selection, via="queue")
        rows, _ = batch_rows(store, selection, COLUMNS, [access])
    assert rows and access.kind == "queue"
    shutil.rmtree(path / "consumequeue" / "SCHEDULE_TOPIC_XXXX")
    with Store.open(path) as store:
        assert batch_rows(store, selection, COLUMNS, [access])[0] == rows


@pytest.mark.parametrize("topics", [(), ("A",)])
def test_gaps_on_both_sides_of_one_entry_share_its_record(topics: tuple[str, ...], tmp_path: Path) -> None:
    """The record is read once: it ends the gap before it, and begins the gap after it."""
    keys = [{}, {"KEYS": "k1"}, {}]
    records = [make_record("A", bytes(10), found, queue_offset=n) for n, found in enumerate(keys)]
    write_random(tmp_path / "store", records, {"units": [], "damage": [], "behind": 0, "index": "whole"})
    with Store.open(tmp_path / "store") as store:
        assert same(store, Selection(topics=topics, keys=["k1"]))[2].kind == "index"


def test_a_deleted_topic_is_still_in_the_log(store_copy: Any) -> None:
    """Its queues are gone, its records are not: both ways find them."""
    path = store_copy("ok_540_small_ipv6")
    shutil.rmtree(path / "consumequeue" / "pubipv6B")
    with Store.open(path) as store:
        selection = Selection(topics=["pubipv6*"])
        accesses = same(store, selection)
        assert {row["topic"] for row in batch_rows(store, selection, COLUMNS)[0]} >= {"pubipv6B"}
        assert {access.kind for access in accesses} == {"log"}


# -- times and offsets -----------------------------------------------------------------------------


def hourly(count: int, *, jitter_ms: int = 0) -> list[Message]:
    """Records of 1000 bytes, one an hour; every third is stored with a clock that is `jitter_ms` behind."""
    return [
        make_record(
            body=bytes(800), queue_offset=n,
            store_timestamp=STORE_TIMESTAMP + n * HOUR_MS - (jitter_ms if n % 3 == 0 else 0),
        )
        for n in range(count)
    ]  # fmt: skip


@pytest.mark.parametrize("jitter_ms", [0, 599_000])
def test_files_outside_of_the_times_are_left_out(jitter_ms: int, tmp_path: Path) -> None:
    write_log(tmp_path / "commitlog", hourly(60, jitter_ms=jitter_ms))
    with Store.open(tmp_path / "commitlog") as store:
        for first in range(-1, 62, 3):
            since = STORE_TIMESTAMP + first * HOUR_MS
            selection = Selection(since=since, until=since + 5 * HOUR_MS)
            access = plan_access(store, selection)
            assert access.files_read <= 4 < access.files_total
            assert batch_rows(store, selection, COLUMNS)[0] == expected(store, selection, COLUMNS)[0]
        born = Selection(since=STORE_TIMESTAMP + HOUR_MS, time_field="born")
        assert plan_access(store, born).files_read == plan_access(store).files_total


def test_a_damaged_time_leaves_no_file_out(tmp_path: Path) -> None:
    """One record alone does not decide: its time is not covered by its CRC."""
    stored = write_log(tmp_path / "commitlog", hourly(40))
    for record in stored:
        if record.physical_offset % 4096 == 0:
            wrong = replace(record, store_timestamp=2**62 if record.physical_offset else 1)
            path = tmp_path / "commitlog" / file_name(record.physical_offset)
            data = path.read_bytes()
            path.write_bytes(message.encode(wrong) + data[wrong.total_size :])
    with Store.open(tmp_path / "commitlog") as store:
        for selection in (Selection(until=STORE_TIMESTAMP + 30 * HOUR_MS), Selection(since=STORE_TIMESTAMP)):
            assert batch_rows(store, selection, COLUMNS)[0] == expected(store, selection, COLUMNS)[0]


def test_offsets_bound_what_is_read(cases: Library) -> None:
    with Store.open(cases.path("torn_540_killed")) as store:
        rows, _ = expected(store, columns=("physical_offset",))
        middle = rows[len(rows) // 2]["physical_offset"]
        access = plan_access(store, Selection(from_offset=middle, to_offset=middle + 1000))
        assert access.files_read == 1 and access.bytes_read == 1000


def test_distinct_values_are_those_of_numpy() -> None:
    """Of offsets that repeat, of one, and of none."""
    rng = np.random.default_rng(5)
    for values in (rng.integers(0, 50, 200), np.array([3, 3]), np.array([7]), np.array([], np.int64)):
        assert distinct(values).tolist() == np.unique(values).tolist()
