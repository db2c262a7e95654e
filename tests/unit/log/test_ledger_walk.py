"""The walk over the files of a DLedger log: the compiled one, the plain one, and that both say the same."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmqtool.formats.ledger import FILE_END, HEADER, HEADER_SIZE
from rmqtool.log.damage import is_torn
from rmqtool.log.events import (
    BODY_CRC,
    ENTRY_MISMATCH,
    OFFSET_MISMATCH,
    Blank,
    CorruptRange,
    Reason,
    StoredMessage,
    TrailingZeros,
)
from rmqtool.log.frames import Frames, walk
from rmqtool.log.python_scan import walk_reference
from rmqtool.storage.source import BytesSource
from tests.support.records import record
from tests.support.scan_logs import damaged, entries, entry_logs, file_end, log, values

WINDOWS = [1, 200, 1000, 1 << 20]
A, B, C = record("A", b"first"), record("B", b"second" * 20), record("C", b"", {"KEYS": "k"})
SIZES = [each.total_size for each in (A, B, C)]
PLACES = [48, 96 + SIZES[0], 144 + SIZES[0] + SIZES[1]]
END = PLACES[2] + SIZES[2]


def events(data: bytes, **arguments: Any) -> list[Any]:
    """The events of the plain walk, which those of the compiled one equal at every window size."""
    arguments = {"file_from_offset": 0, "entry_header": HEADER_SIZE, "check_entries": True} | arguments
    plain = list(walk_reference(BytesSource(data), **arguments))
    for window in WINDOWS:
        assert values(walk(BytesSource(data), window=window, **arguments)) == values(plain)
    return plain


def positions(found: list[Any]) -> list[int]:
    """Where the records are."""
    return [event.physical_offset for event in found if isinstance(event, StoredMessage)]


def statuses(found: list[Any]) -> list[int]:
    """The status of each record."""
    return [event.status for event in found if isinstance(event, StoredMessage)]


def patched(data: bytes, at: int, new: bytes) -> bytes:
    """The same with `new` bytes at a position."""
    return data[:at] + new + data[at + len(new) :]


@pytest.mark.parametrize("base", [0, 1 << 30, 1 << 40])
def test_records_have_their_own_offsets(base: int) -> None:
    found = events(entries(A, B, C, base=base, end=file_end(100)), file_from_offset=base)
    assert positions(found) == [base + place for place in PLACES]
    assert statuses(found) == [0, 0, 0]
    assert found[-1] == Blank(base + END, 100, 100)


@pytest.mark.parametrize("left", [8, 9, 40, 48, 55, 56, 300])
def test_ends_of_files(left: int) -> None:
    """The end mark may stand where no entry would fit; zeros are the end of the log."""
    assert events(entries(A, B, C, end=file_end(left)))[3:] == [Blank(END, left, left)]
    assert events(entries(A, B, C, end=bytes(left)))[3:] == [TrailingZeros(END, left)]
    assert events(entries(A, B, C))[3:] == []


def test_a_classic_log_has_no_entries() -> None:
    """Its records are found, but each of them lacks its header."""
    data = log(A, B, C)
    assert all(status & ENTRY_MISMATCH for status in statuses(events(data)))
    found = events(entries(A, B), entry_header=0)
    assert positions(found) == PLACES[:2] and isinstance(found[0], CorruptRange)


@pytest.mark.parametrize("field", ["magic", "size", "position", "body_length"])
def test_a_wrong_header_is_a_status(field: str) -> None:
    """The record shows itself where it ends: the walk goes on after it."""
    at = PLACES[1] - HEADER_SIZE + HEADER.offsets[field]
    data = patched(entries(A, B, C, end=bytes(100)), at, b"\x7f\xff\xff\xff")
    found = events(data)
    assert positions(found) == PLACES and statuses(found) == [0, ENTRY_MISMATCH, 0]


@pytest.mark.parametrize("damage", [bytes(48), b"\xff" * 48, FILE_END.pack(-1, 5), HEADER.pack(*range(9))])
def test_a_header_of_other_bytes_hides_no_record(damage: bytes) -> None:
    found = events(patched(entries(A, B, C), PLACES[1] - HEADER_SIZE, damage))
    assert positions(found) == PLACES and statuses(found) == [0, ENTRY_MISMATCH, 0]


def test_readers_do_not_check_headers() -> None:
    """A message is sound whatever precedes it: the same by way of the queues and of the log."""
    data = patched(entries(A, B, C), PLACES[1] - HEADER_SIZE, bytes(48))
    assert statuses(events(data, check_entries=False)) == [0, 0, 0]


def test_index_term_and_unused_fields_are_not_the_walk() -> None:
    """They are compared with those of the entry before, which a walk from here has not seen."""
    at = PLACES[1] - HEADER_SIZE
    for name in ("entry_index", "term", "channel", "chain_crc", "body_crc"):
        assert statuses(events(patched(entries(A, B, C), at + HEADER.offsets[name], b"\1"))) == [0, 0, 0]


def test_a_wrong_body_or_offset() -> None:
    data = entries(A, B, C)
    assert statuses(events(patched(data, PLACES[1] + 95, b"X"))) == [0, BODY_CRC, 0]
    assert statuses(events(patched(data, PLACES[1] + 28, b"\1"))) == [0, OFFSET_MISMATCH, 0]


def test_a_wrong_record_is_a_range_that_begins_with_its_entry() -> None:
    found = events(patched(entries(A, B, C), PLACES[1] + 4, b"\0"))
    bad = found[1]
    assert positions(found) == [PLACES[0], PLACES[2]]
    assert (bad.physical_offset, bad.end, bad.reason) == (PLACES[1] - 48, PLACES[2] - 48, Reason.MAGIC)
    assert bad.declared_size == 48 + SIZES[1] and bad.code == "CL05"


def test_an_end_mark_of_the_wrong_size_does_not_end_the_file() -> None:
    data = entries(A) + FILE_END.pack(-1, 17)
    data += entries(B, base=len(data))
    found = events(data)
    assert len(positions(found)) == 2
    blank = found[1]
    assert isinstance(blank, Blank) and (blank.size, blank.ends_file) == (17, False)


def test_a_log_torn_at_every_byte_is_read_to_the_last_whole_record() -> None:
    data = entries(A, B, C)
    for cut in range(PLACES[2] - HEADER_SIZE, len(data)):
        found = events(data[:cut].ljust(END + 200, b"\0"))
        if cut <= END - 2:
            assert positions(found)[:2] == PLACES[:2]
        for event in found[2:]:
            if isinstance(event, CorruptRange):
                assert is_torn(event), (cut, event)


def test_a_walk_may_begin_with_a_record_or_its_entry() -> None:
    data = entries(A, B, C, end=bytes(300))
    for start in (PLACES[1], PLACES[1] - HEADER_SIZE):
        assert positions(events(data, start=start)) == PLACES[1:]
    for stop in (PLACES[2], PLACES[2] - HEADER_SIZE, PLACES[1] + 1):
        assert positions(events(data, stop=stop)) == PLACES[:2]
    assert positions(events(data, start=PLACES[1], stop=PLACES[2])) == [PLACES[1]]
    assert positions(events(data, stop=PLACES[1])) == PLACES[:1]
    assert events(data, stop=END) == events(data)[:3]


def test_pieces_are_the_whole() -> None:
    """Readers divide a log at its records: each is read once."""
    data = entries(*[A, B, C] * 5, end=file_end(99))
    whole = positions(events(data))
    for cut in (*whole, *(place - HEADER_SIZE for place in whole)):
        assert positions(events(data, stop=cut)) + positions(events(data, start=cut)) == whole


@given(st.data())
def test_compiled_and_plain_walk_say_the_same(data: st.DataObject) -> None:
    base = data.draw(st.sampled_from([0, 1 << 30, 1 << 40]))
    stored = data.draw(entry_logs(base))
    if data.draw(st.booleans()):
        stored = data.draw(damaged(stored))
    arguments: dict[str, Any] = {"file_from_offset": base}
    if data.draw(st.booleans()):
        arguments["start"] = data.draw(st.integers(0, len(stored)))
    if data.draw(st.booleans()):
        arguments["stop"] = data.draw(st.integers(0, len(stored) + 20))
    arguments["crc"] = data.draw(st.sampled_from([True, True, False]))
    arguments["check_stored_offset"] = data.draw(st.sampled_from([True, True, False]))
    found = events(stored, **arguments)
    if "start" not in arguments and arguments.get("stop", len(stored)) >= len(stored):
        check_cover(found, base, base + len(stored))


@given(st.binary(max_size=600))
def test_any_bytes(data: bytes) -> None:
    check_cover(events(data), 0, len(data))


def check_cover(found: list[Any], start: int, end: int) -> None:
    """Every byte belongs to one event or to the header of a record, in order, up to the end or a blank."""
    position = start
    for event in found:
        assert event.physical_offset - position == (HEADER_SIZE if isinstance(event, StoredMessage) else 0)
        position = event.end
    last = found[-1] if found else None
    assert position >= end or (isinstance(last, Blank) and last.ends_file)


def test_entry_numbers_of_a_batch() -> None:
    data = entries(A, B, C, first=7, term=3)
    (frames,) = walk(BytesSource(data), file_from_offset=0, entry_header=HEADER_SIZE)
    assert isinstance(frames, Frames)
    found = frames.entry_headers()
    assert found["entry_index"].tolist() == [7, 8, 9] and found["term"].tolist() == [3, 3, 3]
    assert (found["position"] + HEADER_SIZE).tolist() == frames.rows["physical_offset"].tolist() == PLACES
