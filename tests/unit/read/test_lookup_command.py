"""`rmqtool lookup`: what it takes and shows, and how it ends."""

from __future__ import annotations

import io
import os
import shutil
import sys
from collections import defaultdict
from collections.abc import Callable
from itertools import islice
from pathlib import Path

import numpy as np
import pytest

from rmqtool.formats import batch, index, properties
from rmqtool.formats.consume_queue import UNIT_SIZE, Unit
from rmqtool.formats.index import ENTRY_SIZE, HEADER_SIZE, Shape, key_text
from rmqtool.formats.java import index_key_hash
from rmqtool.formats.message_id import offset_message_id
from rmqtool.index import index_file
from rmqtool.read.store import Store
from rmqtool.storage import lock
from rmqtool.write.records.message import NewMessage
from rmqtool.write.store_writer import StoreWriter
from tests.support.build_store import patch
from tests.support.exports import small_store
from tests.support.lookups import Lookup, held_keys
from tests.support.stores import Library
from tests.support.sweep import IS_WHOLE, in_sweeps
from tests.support.whole_store import SHAPE, keyed, write_whole

pytestmark = pytest.mark.sweep

CLEAN = "ok_540_clean"


@pytest.fixture
def lookup(capfdbinary: pytest.CaptureFixture[bytes]) -> Lookup:
    """`rmqtool lookup` with what it wrote."""
    return Lookup(capfdbinary)


def key_of(store: Path, count: int = 2) -> tuple[str, list[int]]:
    """A key of at least so many messages, and their offsets."""
    with Store.open(store) as opened:
        held = held_keys(opened)
    key = next(key for key in held if len(held[key]) >= count)
    return key, [each.physical_offset for each in held[key]]


def test_a_key_gives_message_rows(cases: Library, lookup: Lookup) -> None:
    store = cases.path(CLEAN)
    key, offsets = key_of(store)
    result = lookup(store, "--key", key)
    assert (result.code, result.err) == (0, "")
    assert [row["physical_offset"] for row in result.rows] == offsets
    assert all(key in (*row["keys"], row["uniq_key"]) for row in result.rows)
    assert {row["found_by"] for row in result.rows} == {"index"}
    assert [row["physical_offset"] for row in lookup(store, "--key", key, "--max", 1).rows] == offsets[:1]
    topic = result.rows[0]["topic"]
    narrow = lookup(store, "--key", key, "--topic", topic, "--fields", "topic,found_by")
    assert {tuple(row) for row in narrow.rows} == {("topic", "found_by")}
    assert {row["topic"] for row in narrow.rows} == {topic}
    assert lookup(store, "--key", key, "--until", "2001-01-01").code == 1


def test_messages_inside_of_a_batch_are_shown(cases: Library, lookup: Lookup) -> None:
    """Each with its own queue offset, keys and body."""
    with Store.open(cases.path(CLEAN)) as store:
        record = next(store.queue_messages("pubBatchCQ", 0))
        base, items = record.message.queue_offset, list(batch.decode_items(record.message.body))
    wanted = properties.decode(items[1].properties_bytes)
    (row,) = lookup(cases.path(CLEAN), "--uniq-key", wanted[properties.UNIQ_KEY]).rows
    assert (row["found_by"], row["physical_offset"]) == ("batch", record.physical_offset)
    (inside,) = row["inside"]
    assert (inside["queue_offset"], inside["body"]) == (base + 1, items[1].body.decode())
    own = properties.decode(record.message.properties_bytes)[properties.UNIQ_KEY]
    both = lookup(cases.path(CLEAN), "--uniq-key", own, "--uniq-key", wanted[properties.UNIQ_KEY])
    names = {name for each in both.rows for name in each["asked"]}
    assert (both.code, names) == (0, {own, wanted[properties.UNIQ_KEY]})
    odd = lookup(cases.path(CLEAN), "--uniq-key", wanted[properties.UNIQ_KEY], "--tag", "nothing like it")
    assert not odd.rows
    assert (inside["keys"], inside["uniq_key"]) == (
        wanted[properties.KEYS].split(),
        wanted[properties.UNIQ_KEY],
    )


def test_what_a_partial_answer_lacks_is_told(store_copy: Callable[[str], Path], lookup: Lookup) -> None:
    """A record that is damaged, options that leave it out, an index file that is gone."""
    store = store_copy(CLEAN)
    key, offsets = key_of(store)
    left_out = lookup(store, "--key", key, "--tag", "nothing like it")
    assert left_out.code == 1
    assert f"{len(offsets)} matches that other options exclude" in left_out.err
    assert "scanning" not in left_out.err
    with Store.open(store) as opened:
        file = opened.commit_log.file_of(offsets[0])
        size = opened.find(offsets[0]).message.total_size
    with file.path.open("r+b") as log:
        log.seek(offsets[0] - file.file_from_offset)
        log.write(bytes(size))
    damaged = lookup(store, "--key", key)
    assert damaged.code == 1
    assert [row["physical_offset"] for row in damaged.rows] == offsets[1:]
    assert f"leads to offset {offsets[0]}, which has no sound record" in damaged.err
    scanned = lookup(store, "--key", key, "--scan", "always")
    assert scanned.code == 1
    assert "CL02 zeros in the middle of the log; sound records follow: commitlog/" in scanned.err
    assert f"offset {offsets[0]}, {size} bytes" in scanned.err
    min(store.joinpath("index").iterdir()).unlink()
    never = lookup(store, "--key", key, "--scan", "never")
    assert "not searched: the log at offsets 0 to " in never.err


def test_entries_past_the_end_of_the_log(store_copy: Callable[[str], Path], lookup: Lookup) -> None:
    """The messages of the key may be among the lost ones. Of a log that is written to this is not known."""
    store = store_copy(CLEAN)
    held = {row["physical_offset"]: row["uniq_key"] for row in lookup(store, "ORDER_5").rows}
    *_, last = sorted((store / "commitlog").iterdir())
    assert len(held) == 15 and min(held) > int(last.name) + 150_000
    os.truncate(last, 150_000)
    line = f"(3374002 to 3449054): it may be among the lost messages; rmqtool recover {store}\n"
    for arguments in ((), ("--topic", "pubOrder"), ("--scan", "always")):
        cut = lookup(store, "ORDER_5", *arguments)
        assert (cut.code, cut.rows) == (1, [])
        assert f"rmqtool: 15 index entries of this key point past the end of the log {line}" in cut.err
        assert "15 entries past the end of the log" in cut.err
    several = lookup(store, "--key", "ORDER_5", "--key", "ORDER_XYZ")
    assert f"rmqtool: 15 index entries of these keys point past the end of the log {line}" in several.err
    one = lookup(store, "--uniq-key", held[3449054])
    assert "1 index entry of this unique key points past the end of the log (3449054): it may" in one.err
    assert "past the end" not in lookup(store, "ORDER_XYZ").err
    held_lock = lock.acquire(store / "lock")
    try:
        assert "15 entries whose record is not in the log" in lookup(store, "ORDER_5").err
    finally:
        held_lock.release()


def test_entries_before_the_start_of_the_log(store_copy: Callable[[str], Path], lookup: Lookup) -> None:
    store = store_copy(CLEAN)
    row, *_ = lookup(store, "--topic", "pubTopicOne", "--time", "2000-01-01").rows
    key = lookup(store, "--topic", "pubTopicOne", "--offset", row["physical_offset"]).rows[0]["uniq_key"]
    min((store / "commitlog").iterdir()).unlink()
    found = lookup(store, "--key", key)
    assert found.code == 1 and "1 entry whose record is not in the log" in found.err
    assert "past the end" not in found.err


def test_many_keys_in_one_pass(
    cases: Library, lookup: Lookup, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From a file and from standard input; which were found, and which were not."""
    store = cases.path(CLEAN)
    with Store.open(store) as opened:
        held = held_keys(opened)
    keys = list(held)[:40]
    text = "".join(f"{key}\n" for key in (*keys, "", "nothing"))
    (tmp_path / "keys").write_text(text, "utf-8")
    result = lookup(store, "--keys-from", tmp_path / "keys")
    wanted = sorted({each.physical_offset for key in keys for each in held[key]})
    assert [row["physical_offset"] for row in result.rows] == wanted
    assert all(set(row["asked"]) <= set(keys) and row["asked"] for row in result.rows)
    assert result.code == 1
    assert "not found: 1 of 41 keys: nothing" in result.err

    class Input:
        buffer = io.BytesIO(text.replace("\n", "\t \r\n").encode())

    monkeypatch.setattr("sys.stdin", Input)
    assert lookup(store, "--keys-from", "-").rows == result.rows


@pytest.mark.parametrize("name", [*in_sweeps([CLEAN]), "bad_cl03_body_crc", "bad_cl14_bad_body"])
def test_thousands_of_hits_give_the_lines_of_single_ones(
    name: str, cases: Library, lookup: Lookup, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Text, order, notes and exit code, also for damaged records and names that nothing has."""
    store = cases.path(name)
    for place in ("output", "table"):
        monkeypatch.setattr(f"rmqtool.{place}.TABLE_BLOCK_ROWS", 3)
    monkeypatch.setattr("rmqtool.output.FLUSH_SECONDS", 1e9)
    monkeypatch.setattr("rmqtool.index.index_file._WINDOW_SLOTS", 11)
    monkeypatch.setattr("rmqtool.index.index_file._WINDOW_ENTRIES", 5)
    with Store.open(store) as opened:
        held = held_keys(opened)
        records = list(opened.messages(damage="skip"))
    keys = list(held)[:: len(held) // (40 if IS_WHOLE else 10) + 1]
    damaged = next((place for place, each in enumerate(records) if each.status), 0)
    near = [
        properties.decode(each.message.properties_bytes)
        for each in records[max(damaged - 9, 0) : damaged + 1]
    ]
    keys += [found["UNIQ_KEY"] for found in near if "UNIQ_KEY" in found]
    text = "".join(f"{key}\n" for key in (*keys, "nothing"))
    (tmp_path / "keys").write_text(text, "utf-8")
    for arguments in (
        (), ("--format", "csv"), ("--body", "none", "--topic", "T*"), ("--tag", "TagA", "--scan", "never"),
        ("--fields", "asked,inside,uniq_key,found_by,system"), ("--max", 7), ("--format", "table"),
        ("--format", "table", "--fields", "keys,asked,inside,body,status"),
    ):  # fmt: skip
        given = (store, "--keys-from", tmp_path / "keys", *arguments)
        monkeypatch.setattr("rmqtool.read.by_key._MANY", 1 << 40)
        plain = lookup(*given)
        monkeypatch.setattr("rmqtool.read.by_key._MANY", 1)
        found = lookup(*given)
        assert (found.code, found.err, found.out) == (plain.code, plain.err, plain.out), arguments


def test_a_record_that_the_file_cuts_off(cases: Library, lookup: Lookup, tmp_path: Path) -> None:
    """The bytes that are left are those of the file, and a line shows what can be read."""
    store = cases.copy("ok_497_clean", tmp_path / "store")
    second = sorted((store / "commitlog").iterdir())[1]
    os.truncate(second, 600_000)
    found = lookup(store, "--topic", "pub-Topic_Four", "--queue", "3", "--queue-offset", "149")
    assert found.code == 3 and "does not fit into the 13114 bytes left in the file: " in found.err  # noqa: PLR2004
    assert found.err.endswith(f"what can be read of it: rmqtool dump {store} --explain 1635462\n")
    found = lookup(store, "plain", "--scan", "never")
    assert "1 entry whose record is" in found.err


def test_other_kinds(cases: Library, lookup: Lookup) -> None:
    """Each kind finds the message that the key has found."""
    store = cases.path(CLEAN)
    row = lookup(store, "--key", key_of(store, 1)[0], "--max", 1).rows[0]
    place = ("--topic", row["topic"], "--queue", row["queue_id"], "--queue-offset", row["queue_offset"])
    for arguments, found_by in (
        (("--offset", row["physical_offset"]), "offset"),
        (("--msg-id", row["offset_msg_id"]), "id"),
        (("--uniq-key", row["uniq_key"]), "index"),
        (("--msg-id", row["uniq_key"]), "index"),
        (place, "queue"),
    ):
        result = lookup(store, *arguments)
        assert result.code == 0, result.err
        assert {**row, "found_by": found_by} in result.rows


def test_nothing_is_found(cases: Library, lookup: Lookup) -> None:
    """1, what was looked at, and topics that are like the one asked for."""
    store = cases.path(CLEAN)
    result = lookup(store, "--key", "nothing", "--topic", "pubBatc")
    assert (result.code, result.out) == (1, b"")
    assert result.err.splitlines() == [
        "rmqtool: the store has no topic pubBatc; nearest: pubBatch, pubBatchCQ",
        "rmqtool: only the index was searched: --scan always also finds messages of a deleted topic",
    ]
    result = lookup(store, "--key", "nothing", "--topic", "pubBatc", "--scan", "always")
    assert "no message with key nothing; searched 3 index files, 1 topic" in result.err
    assert "upper and lower case differ\nrmqtool: the store has no topic pubBatc; nearest: pubB" in result.err
    inside = lookup(store, "--offset", 5)
    assert inside.code == 1
    assert "inside the record at 0" in inside.err
    assert lookup(store, "--topic", "none", "--time", 0).code == 1


def test_places_that_are_beyond_say_what_there_is(cases: Library, lookup: Lookup) -> None:
    store = cases.path(CLEAN)
    result = lookup(store, "--topic", "pubRetry", "--queue", 0, "--queue-offset", 500)
    assert result.code == 1 and "queue 0 of pubRetry has 0 to 11" in result.err
    result = lookup(store, "--offset", 99_999_999)
    assert result.code == 1 and "they hold 0 to 4194303" in result.err


def test_an_offset_in_a_gap_of_the_log(store_copy: Callable[[str], Path], lookup: Lookup) -> None:
    """All ranges that the files hold are named, not only from the first to the last byte."""
    root = store_copy(CLEAN)
    (root / "commitlog" / f"{1 << 20:020}").unlink()
    result = lookup(root, "--offset", 1_701_240)
    assert result.code == 1 and "they hold 0 to 1048575 and 2097152 to 4194303" in result.err


def test_what_a_queue_lacks_is_looked_for_in_the_log(tmp_path: Path, lookup: Lookup) -> None:
    """Its folder is gone, it ends too early after a crash, a unit in it is zeroed; each is said."""
    store = tmp_path / "store"
    stored = write_whole(store, keyed(40))
    (store / "abort").touch()
    queue = next(each for each in (store / "consumequeue" / stored[0].topic).iterdir())
    mine = [each for each in stored if str(each.queue_id) == queue.name]
    place = ("--topic", stored[0].topic, "--queue", queue.name, "--queue-offset")
    path = next(queue.iterdir())
    whole = path.read_bytes()
    end = len(mine) * UNIT_SIZE
    asked = mine[-2:]
    for units, reason in (
        (whole[: end - 3 * UNIT_SIZE] + bytes(3 * UNIT_SIZE) + whole[end:], "ends before it"),
        (
            whole[: end - 2 * UNIT_SIZE] + bytes(UNIT_SIZE) + whole[end - UNIT_SIZE :],
            f"queue {queue.name} of",
        ),
        (b"", "is missing"),
    ):
        path.write_bytes(units)
        if not units:
            shutil.rmtree(queue)
        has_last = bool(units[end - UNIT_SIZE : end].strip(b"\0"))
        for message in asked[:1] if has_last else asked:
            found = lookup(store, *place, message.queue_offset)
            assert found.code == int(has_last) and reason in found.err
            assert ("CQ08" in found.err) is has_last  # more units behind those that are lacking
            assert [row["physical_offset"] for row in found.rows] == [message.physical_offset]
            assert found.rows[0]["found_by"] == "scan"
            never = lookup(store, *place, message.queue_offset, "--scan", "never")
            assert never.code == 1 and "not searched: the log" in never.err and reason in never.err
        if units:
            there = lookup(store, *place, mine[0].queue_offset, *place[-1:], asked[0].queue_offset)
            assert [row["found_by"] for row in there.rows] == ["queue", "scan"]
    always = lookup(store, *place, mine[0].queue_offset, "--scan", "always")
    assert (always.code, len(always.rows)) == (0, 1)
    beyond = lookup(store, *place, 1 << 40)
    assert beyond.code == 1 and "bytes of log files" in beyond.err


def test_a_damaged_queue_of_a_store_that_was_closed_cleanly(
    store_copy: Callable[[str], Path], lookup: Lookup
) -> None:
    """A unit that names another record, one that is empty, a folder without files."""
    store = store_copy("ok_540_clean")
    path = store / "consumequeue/pubOrder/1/00000000000000000000"
    whole = path.read_bytes()
    place = ("--topic", "pubOrder", "--queue", 1, "--queue-offset")
    (right,) = lookup(store, *place, 5).rows
    for unit in (whole[9 * UNIT_SIZE : 10 * UNIT_SIZE], bytes(UNIT_SIZE), None):
        if unit is None:
            path.unlink()
        else:
            path.write_bytes(whole[: 5 * UNIT_SIZE] + unit + whole[6 * UNIT_SIZE :])
        found = lookup(store, *place, 5)
        assert [row | {"found_by": "queue"} for row in found.rows] == [right]
        assert found.rows[0]["found_by"] == "scan"
        never = lookup(store, *place, 5, "--scan", "never")
        assert not never.rows and "not searched: the log" in never.err
    for topic, queue in (("Nope", 0), ("pubOrder", 77)):
        told = lookup(store, "--topic", topic, "--queue", queue, "--queue-offset", 1)
        assert told.code == 1 and "bytes of log files" not in told.err


def test_a_queue_of_a_sound_store_has_all_there_is(tmp_path: Path, lookup: Lookup) -> None:
    """It may be idle while others go on: the log behind its end is read only when that is asked for."""
    store = tmp_path / "store"
    first = write_whole(store, [*keyed(4), *keyed(40, queues=3)])[0]
    place = ("--topic", first.topic, "--queue", first.queue_id, "--queue-offset", 1 << 40)
    told = lookup(store, *place)
    assert told.code == 1 and "bytes of log files" not in told.err
    assert "bytes of log files" in lookup(store, *place, "--scan", "always").err


def test_a_scan_is_announced(store_copy: Callable[[str], Path], lookup: Lookup) -> None:
    """Where and why; with --scan never it is told what was left out."""
    root = store_copy("ok_540_small_ipv6")
    for path in (root / "index").iterdir():
        path.unlink()
    key, offsets = key_of(root, 1)
    result = lookup(root, "--key", key)
    assert [row["found_by"] for row in result.rows] == ["scan"] * len(offsets)
    assert "scanning the log at offsets 0 to the end (there are no index files)" in result.err
    never = lookup(root, "--key", key, "--scan", "never")
    assert never.code == 1
    assert "see --scan" in never.err
    assert lookup(root, "--key", key, "--quiet").err == ""


def test_explain_shows_the_way(cases: Library, lookup: Lookup) -> None:
    """Files, slots, chains; every message that is found is at the end of one."""
    store = cases.path(CLEAN)
    key, offsets = key_of(store)
    rows = lookup(store, "--key", key, "--explain").rows
    assert {row["step"] for row in rows} >= {"file", "slot", "entry"}
    assert {row["physical_offset"] for row in rows if row["result"] == "found"} == set(offsets)
    assert lookup(store, "--key", "nothing", "--explain").code == 1
    shown = lookup(store, "--key", key, "--explain", "--format", "table")
    assert "topics without an entry of this hash are not shown; --topic" in shown.err
    assert len(shown.out.splitlines()) < len(rows) / 4


def test_times(cases: Library, lookup: Lookup) -> None:
    """The broker's answer and the exact one, for each queue."""
    store = cases.path("ok_497_clean")
    with Store.open(store) as opened:
        message = next(each.message for each in opened.messages() if each.message.queue_offset > 3)
    place = ("--topic", message.topic, "--queue", message.queue_id, "--time", message.store_timestamp)
    for broker in ("4.9", "5.4"):
        (row,) = lookup(store, *place, "--broker", broker, "--bound", "upper").rows
        assert row["broker"] == broker
        assert row["exact_offset"] >= message.queue_offset
        assert row["min_offset"] <= row["broker_offset"] <= row["max_offset"]
    assert len(lookup(store, "--topic", "*", "--time", "now").rows) == 50
    (row,) = lookup(store, *place[:4], "--time", "2001-01-01", "--bound", "upper").rows
    assert (row["exact_offset"], row["store_time"]) == (None, None)
    (row,) = lookup(store, *place[:4], "--time", "now").rows
    assert row["exact_offset"] == row["max_offset"]


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("--key", "a", "--offset", 1),
        ("--queue-offset", 1),
        ("--queue-offset", 1, "--topic", "a*", "--queue", 1),
        ("--time", 0),
        ("--time", "soon", "--topic", "a"),
        ("--offset", 1, "--explain"),
        ("--key", "a", "--explain", "--trace"),
        ("--key", "a", "--fields", "nonsense"),
        ("--keys-from", os.devnull),
        ("--broker", "3.2", "--time", 0),
        ("--offset", 0, "--max", 1 << 63),
        ("--offset", 0, "--bound", "upper"),
        ("--key", "a", "--broker", "4.9"),
    ],
)
def test_wrong_usage(arguments: tuple[object, ...], cases: Library, lookup: Lookup) -> None:
    result = lookup(cases.path(CLEAN), *arguments)
    assert (result.code, result.out) == (2, b"")
    assert len(result.err.splitlines()) <= 3


def test_hostile_keys(cases: Library, lookup: Lookup, tmp_path: Path) -> None:
    """Control characters, invalid UTF-8 and very long keys are keys like others; none reaches a terminal."""
    store = cases.path(CLEAN)
    (tmp_path / "keys").write_bytes(b"\xff\xfe\n\x1b[31m\n" + b"k" * 100_000 + b"\n")
    result = lookup(store, "--keys-from", tmp_path / "keys")
    assert result.code == 1
    assert "\x1b" not in result.err
    assert lookup(store, "--keys-from", tmp_path / "nothing").code == 3
    assert lookup(store, "--key", "a\0b", "--topic", "../../etc").code == 1


def test_keys_of_a_closed_standard_input(
    cases: Library, lookup: Lookup, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", None)
    result = lookup(cases.path(CLEAN), "--keys-from", "-")
    assert (result.code, result.err) == (3, "rmqtool: standard input is closed\n")


def test_a_damaged_record_is_no_damaged_index(tmp_path: Path, lookup: Lookup) -> None:
    """Its entry is right: the search of the log says that the record is not."""
    store = small_store(tmp_path / "s", 1)
    with StoreWriter.open(store, auto_create_queues=1, reserve=False) as writer:
        place = writer.put(NewMessage("T", b"x", keys=("lost",), queue_id=0)).physical_offset
        writer.put(NewMessage("T", b"y", keys=("after",), queue_id=0))
    (log,) = (store / "commitlog").iterdir()
    patch(log, place + 4, b"\x01")
    found = lookup(store, "--key", "lost")
    assert "index entries lead to a damaged record, or to another one" in found.err
    assert "unreliable index" not in found.err


def test_slots_that_are_exchanged(tmp_path: Path, lookup: Lookup) -> None:
    """A chain of sound entries that belong to other slots is damage: the log is scanned."""
    write_whole(tmp_path, keyed(20))
    (path,) = (tmp_path / "index").iterdir()
    data = bytearray(path.read_bytes())
    slots = slice(index.HEADER_SIZE, SHAPE.entry_offset(0))
    data[slots] = (2).to_bytes(4) * SHAPE.slots
    path.write_bytes(data)
    for n in range(20):
        result = lookup(tmp_path, "--uniq-key", f"U{n:08}")
        assert [row["uniq_key"] for row in result.rows] == [f"U{n:08}"], result.err
    assert "entry of another slot" in result.err
    data[slots] = b"".join((2 + number % 3).to_bytes(4) for number in range(SHAPE.slots))
    path.write_bytes(data)
    several = lookup(tmp_path, *(each for n in range(20) for each in ("--uniq-key", f"U{n:08}")))
    assert len(several.rows) == 20 and several.err.count("is damaged") == 1 and " more" in several.err


@pytest.mark.parametrize("lost", ["nothing", "slots", "slots and an entry"])
@pytest.mark.parametrize("entries_read", [10_000, 300])
@pytest.mark.parametrize("unknown", [1, 9])
def test_keys_that_count_up_leave_pages_of_slots_empty(
    lost: str, entries_read: int, unknown: int, tmp_path: Path, lookup: Lookup,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """They have neighbouring slots. Only where entries are lost too, an empty page of slots is doubted."""
    monkeypatch.setattr(index_file, "_ENTRIES_READ_MAX", entries_read * ENTRY_SIZE)
    monkeypatch.setattr(index_file, "_SMALL", entries_read * ENTRY_SIZE)
    monkeypatch.setattr(index_file, "_BLOCK", entries_read)
    root, shape = tmp_path / "store", Shape(5000, 4000)
    sizes = {"index_slots": shape.slots, "index_entries": shape.entries}
    with StoreWriter.create(root, commit_log_file_size=1 << 20, auto_create_queues=1, **sizes) as writer:
        for number in range(1000, 2000):
            writer.put(NewMessage("T", b"x", keys=[f"o{number}"], uniq_key=f"u{number}"))
    (path,) = (root / "index").iterdir()
    slots = np.frombuffer(path.read_bytes(), ">i4", shape.slots, HEADER_SIZE)
    doubted = (
        name
        for name in (f"none{number}" for number in range(100_000))
        if not slots[max((at := index_key_hash(key_text("T", name)) % shape.slots) - 127, 0) : at + 128].any()
    )
    keys = list(islice(doubted, unknown))
    if lost != "nothing":
        keys[0] = key = "o1700"
        key_hash = index_key_hash(key_text("T", key))
        at = shape.slot_offset(key_hash % shape.slots) // 512 * 512
        entries = np.frombuffer(path.read_bytes(), ">i4", 5 * 2001, shape.entry_offset(0))[::5]
        (number,) = np.flatnonzero(entries == key_hash).tolist()
        with path.open("r+b") as file:
            file.seek(max(at, HEADER_SIZE))
            file.write(bytes(512))
            if lost == "slots and an entry":
                file.seek(shape.entry_offset(number))
                file.write(bytes(ENTRY_SIZE))
    asked = [text for key in keys for text in ("--key", key)]
    found = lookup(root, *asked)
    assert ("unreliable index file" in found.err) == (lost != "nothing")
    assert ("is damaged: a hash chain has lost its slot (slot " in found.err) == (lost == "slots")
    assert (" may have lost slots: slot " in found.err) == (lost == "slots and an entry")
    assert [row["found_by"] for row in found.rows] == ([] if lost == "nothing" else ["scan"])
    (root / "abort").touch()
    text = " was not closed: a hash chain has lost its slot (slot "
    found, never = lookup(root, *asked), lookup(root, *asked, "--scan", "never")
    assert (text in found.err, text in never.err) == (lost == "slots", lost == "slots")
    assert ("; the log is scanned instead\n" in found.err) == (lost == "slots")
    assert "is damaged" not in found.err and "instead" not in never.err


def test_trace_tells_what_became_of_a_message(cases: Library, lookup: Lookup) -> None:
    store = cases.path(CLEAN)
    row = lookup(store, "--key", key_of(store, 1)[0], "--max", 1).rows[0]
    rows = lookup(store, "--offset", row["physical_offset"], "--trace").rows
    assert row["physical_offset"] in [each["physical_offset"] for each in rows]


def test_a_trace_has_the_delivery_time_of_the_unit(cases: Library, lookup: Lookup) -> None:
    """Level 4 of that broker is an hour, by the default table half a minute."""
    store = cases.path(CLEAN)
    with Store.open(store) as opened:
        queue = opened.queue("SCHEDULE_TOPIC_XXXX", 3)
        assert queue is not None
        unit = queue.unit(queue.max_offset() - 1)
    assert isinstance(unit, Unit)
    rows = lookup(store, "--offset", unit.physical_offset, "--trace").rows
    due = [row["detail"]["deliver_timestamp_ms"] for row in rows if row["kind"] == "delayed"]
    assert due == [unit.tags_code]


def test_a_fate_is_told_once(cases: Library, lookup: Lookup) -> None:
    """However many records of a message are hits, and however they were asked for."""
    store = cases.path(CLEAN)
    with Store.open(store) as opened:
        records = defaultdict(list)
        for stored in opened.messages():
            key = properties.decode(stored.message.properties_bytes).get(properties.UNIQ_KEY)
            if key and stored.message.topic != "RMQ_SYS_TRANS_OP_HALF_TOPIC":
                records[key].append(stored.physical_offset)
    moved = next(key for key in records if len(records[key]) > 2)
    single = next(key for key in records if len(records[key]) == 1)
    once = lookup(store, "--offset", records[moved][0], "--trace").rows
    result = lookup(store, "--uniq-key", moved, "--trace")
    assert [row for row in result.rows if row["kind"] != "group"] == [
        row for row in once if row["kind"] != "group"
    ]
    assert len(result.rows) == len(once) > 2
    both = lookup(store, "--uniq-key", moved, "--uniq-key", single, "--trace").rows
    assert {row["physical_offset"] for row in both} >= {*records[moved], *records[single]}
    # --max counts messages, not the rows of their fates: one that is missing is still told.
    missing = lookup(store, "--uniq-key", single, "--uniq-key", "nothing", "--max", 2, "--trace")
    assert missing.code == 1 and "not found: 1 of 2" in missing.err


def test_a_file_that_is_full_in_the_middle_of_a_message(tmp_path: Path, lookup: Lookup) -> None:
    """The last message's tag is in the next file: this one holds tags all the same."""
    store = small_store(tmp_path / "s", 60, index_slots=50, index_entries=101)
    with Store.open(store) as opened:
        assert len(opened.layout.index_files) == 2
    found = lookup(store, "--tag", "A", "--topic", "T")
    assert (found.code, found.err, len(found.rows)) == (0, "", 60)
    assert {row["found_by"] for row in found.rows} == {"index"}


def test_what_cannot_be_read_is_told(tmp_path: Path, lookup: Lookup, monkeypatch: pytest.MonkeyPatch) -> None:
    """No message is said to be missing where it may be in a file that nobody could read."""
    store = small_store(tmp_path / "s", 8)
    queue = next((store / "consumequeue/T/0").iterdir())
    queue.rename(tmp_path / "queue")
    os.mkfifo(queue)
    place = ("--queue-offset", 0, "--topic", "T", "--queue", 0)
    for arguments in (place, (*place, "--scan", "never"), ("--time", "now", "--topic", "T")):
        found = lookup(store, *arguments)
        assert found.code == 3 and f"not a plain file): consumequeue/T/0/{queue.name}" in found.err
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    found = lookup(store, "--offset", 17)
    assert found.code == 3 and "CL12" in found.err and "Permission denied" in found.err


def plain_key_of(store: Path) -> tuple[str, list[int], dict[str, str]]:
    """A key of KEYS, the offsets of its messages, and the names of the first of them."""
    with Store.open(store) as opened:
        held = held_keys(opened)
        for key, found in held.items():
            message = opened.find(found[0].physical_offset).message
            decoded = properties.decode(message.properties_bytes)
            if len(found) > 1 and key in properties.keys_of(decoded):
                offset_id = offset_message_id(message.store_host, message.physical_offset)
                names = {"uniq_key": decoded[properties.UNIQ_KEY], "offset_msg_id": offset_id}
                return key, [each.physical_offset for each in found], names | {"topic": message.topic}
    raise AssertionError("no two messages have the same key")


def test_a_value_needs_no_option(cases: Library, lookup: Lookup) -> None:
    """It is a message id, a unique key or a key, in this order; `matched` says which."""
    store = cases.path(CLEAN)
    key, offsets, first = plain_key_of(store)
    by_key = lookup(store, key)
    assert (by_key.code, by_key.err) == (0, "")
    assert [row["physical_offset"] for row in by_key.rows] == offsets
    assert {tuple(row["matched"]) for row in by_key.rows} == {("key",)}
    assert not any("asked" in row for row in by_key.rows)
    by_unique_key = lookup(store, first["uniq_key"])
    assert [row["matched"] for row in by_unique_key.rows] == [["uniq_key"]] * len(by_unique_key.rows)
    assert offsets[0] in {row["physical_offset"] for row in by_unique_key.rows}
    (by_id,) = lookup(store, first["offset_msg_id"]).rows
    assert (by_id["matched"], by_id["found_by"]) == (["msg_id"], "id")
    assert by_id["physical_offset"] == offsets[0]


def test_several_values_of_different_kinds(cases: Library, lookup: Lookup) -> None:
    """All values are looked up together; `asked` and `matched` name them in the same order."""
    store = cases.path(CLEAN)
    key, offsets, first = plain_key_of(store)
    last = lookup(store, "--offset", offsets[-1]).rows[0]
    both = lookup(store, key, first["uniq_key"], last["offset_msg_id"], "nothing")
    assert both.code == 1
    assert "not found: 1 of 4 values: nothing" in both.err
    seen = {(row["physical_offset"], *zip(row["asked"], row["matched"], strict=True)) for row in both.rows}
    assert (offsets[0], (first["uniq_key"], "uniq_key"), (key, "key")) in seen
    assert (offsets[-1], (last["offset_msg_id"], "msg_id")) in seen
    table = lookup(store, key, first["uniq_key"], "--format", "table").out.decode().splitlines()
    assert table[0].split()[:3] == ["found_by", "matched", "asked"]


def test_values_are_narrowed_and_explained_as_keys_are(cases: Library, lookup: Lookup) -> None:
    """--topic, --tag, --max, --trace and --explain work; a value next to another kind is a usage error."""
    store = cases.path(CLEAN)
    key, offsets, first = plain_key_of(store)
    assert [row["physical_offset"] for row in lookup(store, key, "--max", 1).rows] == offsets[:1]
    for narrow in (("--topic", "another"), ("--tag", "nothing like it"), ("--until", "2001-01-01")):
        assert (lookup(store, first["offset_msg_id"], *narrow).rows, lookup(store, key, *narrow).rows) == (
            [],
            [],
        )
    assert lookup(store, key, "--explain").out == lookup(store, "--key", key, "--explain").out
    assert lookup(store, key, "--trace").out == lookup(store, "--key", key, "--trace").out
    assert "VALUE and --key exclude each other" in lookup(store, key, "--key", key).err
    assert "VALUE is empty" in lookup(store, "").err
    missing = lookup(store, "nothing", "--topic", first["topic"])
    assert missing.code == 1
    assert "no message with message id, unique key or key nothing" in missing.err
    assert f"keys of a topic: rmqtool dump {store} --topic {first['topic']} --fields keys" in missing.err


def test_a_text_in_bodies_leads_to_dump(cases: Library, lookup: Lookup) -> None:
    """--grep alone, and a value with a space, which no key can have: the line searches the bodies."""
    store = cases.path(CLEAN)
    line = f"rmqtool dump {store} --topic 'pub*' --queue 0 --grep 'red login' --since 2001-01-01 --tz UTC"
    result = lookup(store, "--grep", "red login", "--topic", "pub*", "--queue", "0", "--since", "2001-01-01")
    assert result.code == 2
    history = f"rmqtool lookup {store} --offset OFFSET --trace"
    assert result.err.splitlines() == [
        "rmqtool: nothing to look up", f"  to search bodies: {line}",
        f"  then, for the history of one by its physical_offset: {history}",
    ]  # fmt: skip
    assert f"; rmqtool dump {store} -n 5 shows keys" in " ".join(lookup(store).err.split())
    assert (
        f"to search bodies: rmqtool dump {store} --grep 'red login\\.'\n" in lookup(store, "red login.").err
    )


def test_a_selection_without_a_key_leads_to_dump(cases: Library, lookup: Lookup) -> None:
    """The line shows the same messages: with all filters, and the zone that the times are in."""
    store = cases.path(CLEAN)
    filters = ("--topic", "a b", "--queue", "0", "--since", "2001-01-01", "--until", "2001-01-02")
    result = lookup(store, *filters, "--max", 5, "--tz", "Asia/Shanghai")
    line = (
        f"rmqtool dump {store} --topic 'a b' --queue 0 --since 2001-01-01 --until 2001-01-02 --limit 5"
        " --tz Asia/Shanghai"
    )
    assert result.code == 2
    assert result.err.splitlines()[:2] == [
        "rmqtool: nothing to look up",
        f"  to show all these messages: {line}",
    ]
    assert f"; rmqtool dump {store} -n 5 shows keys" in " ".join(lookup(store, "--tz", "UTC").err.split())


def test_a_table_is_not_as_wide_as_the_longest_body(cases: Library, lookup: Lookup) -> None:
    """The body is the last column, so nothing is padded to it."""
    lines = lookup(cases.path(CLEAN), "rand64k", "--format", "table").out.decode()
    head, rule, *rows = lines.splitlines()
    assert head.endswith("  body") and len(rule) < 300 and max(map(len, rows)) > 60_000  # noqa: PLR2004


def test_a_narrow_table_keeps_the_place_and_not_what_was_typed(
    cases: Library, lookup: Lookup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next commands take physical_offset; a key or tag that each row repeats makes room for it."""
    monkeypatch.setattr("rmqtool.output._is_terminal", lambda stream: stream is sys.stdout)
    monkeypatch.setenv("PAGER", "cat")
    monkeypatch.setenv("COLUMNS", "80")
    store = cases.path("ok_497_clean")
    names = "physical topic queue queue store tags keys body".split()
    for words, hidden in (
        (["ORDER_5"], {"keys": "ORDER_5"}), (["--key", "ORDER_5", "--max", "1"], {"keys": "ORDER_5"}),
        (["--key", "ORDER_5", "--key", "ORDER_6"], {}), (["--tag", "poison"], {"tags": "poison"}),
        (["--offset", "299"], {"physical_offset": "299"}), (["--offset", "0", "--offset", "299"], {}),
        (["--topic", "pubOrder", "--queue", "1", "--queue-offset", "4"], {"queue_offset": "4"}),
    ):  # fmt: skip
        found = lookup(store, *words, "--format", "table")
        out, err = found.out.decode(), found.err
        shown = [*names]
        for name, text in hidden.items():
            shown.remove(name.split("_")[0])
            assert f"{name} is {text}" in " ".join(err.split())
        assert out.splitlines()[0].replace("\x1b[1m", "").split() == shown, words
        assert "physical_offset" not in err.partition("too narrow")[2]


def test_an_id_of_another_host_and_a_value_inside_a_batch(cases: Library, lookup: Lookup) -> None:
    """The id leads to the record only if no message has it as a key; tags are those of the message inside."""
    store = cases.path(CLEAN)
    _, offsets, _ = plain_key_of(store)
    moved = f"0A0A0A0A{20911:08X}{offsets[0]:016x}"
    result = lookup(store, moved)
    assert [row["physical_offset"] for row in result.rows] == [offsets[0]]
    assert "names 10.10.10.10:20911, but 127.0.0.1:20911 stored the record" in result.err
    with Store.open(store) as opened:
        record = next(opened.queue_messages("pubBatchCQ", 0))
        wanted = properties.decode(list(batch.decode_items(record.message.body))[1].properties_bytes)
    for value, kind in ((wanted[properties.UNIQ_KEY], "uniq_key"), (wanted[properties.KEYS], "key")):
        assert any(
            (row["found_by"], row["matched"]) == ("batch", [kind]) for row in lookup(store, value).rows
        )
    tag = wanted[properties.TAGS]
    for option in ("--msg-id", "--uniq-key"):
        assert len(lookup(store, option, wanted[properties.UNIQ_KEY], "--tag", tag).rows) == 1
