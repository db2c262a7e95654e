"""The walk over a commit log file: the compiled one, the plain one, and that both say the same."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmqtool.formats import message
from rmqtool.log import frames as frames_module
from rmqtool.log.events import (
    BODY_CRC,
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
from tests import ROOT
from tests.support.records import record
from tests.support.scan_logs import HOST_V6, blank, damaged_logs, log, sound_logs, values
from tests.support.sweep import IS_WHOLE

pytestmark = pytest.mark.sweep

WINDOWS = [1, 200, 1000, 1 << 20]
BASES = [0, 1 << 30, 1 << 40]


def events(data: bytes, **arguments: Any) -> list[Any]:
    """The events of the plain walk, which those of the compiled one equal at every window size."""
    arguments.setdefault("file_from_offset", 0)
    plain = list(walk_reference(BytesSource(data), **arguments))
    for window in WINDOWS:
        assert values(walk(BytesSource(data), window=window, **arguments)) == values(plain)
    return plain


def positions(found: list[Any]) -> list[int]:
    """Where the records are."""
    return [event.physical_offset for event in found if isinstance(event, StoredMessage)]


def others(found: list[Any]) -> list[Any]:
    """What is no record."""
    return [event for event in found if not isinstance(event, StoredMessage)]


A, B, C = record("A", b"first"), record("B", b"second" * 20), record("C", b"", {"KEYS": "k"})
SIZE_A, SIZE_B, SIZE_C = A.total_size, B.total_size, C.total_size


def test_sound_records_of_every_form_are_rows() -> None:
    forms = [
        record("T", b"one"),
        record("x" * 200, b"version 2"),
        record("T", b"born", sys_flag=0x10, born_host=HOST_V6),
        record("T", b"stored", sys_flag=0x20, store_host=HOST_V6),
        record("T", b"both", sys_flag=0x30, born_host=HOST_V6, store_host=HOST_V6),
        record("", b""),
        record("T", b"", body_length=-5),
        record("T", b"x", properties_length=-1),
    ]
    found = events(log(*forms, base=1 << 40), file_from_offset=1 << 40)
    assert [event.status for event in found] == [0] * len(forms)
    assert [event.message.version for event in found][:2] == [1, 2]


def test_rows_of_a_batch_share_topic_numbers() -> None:
    data = log(*[record(f"T{n % 3}", b"x") for n in range(10)])
    (frames,) = walk(BytesSource(data), file_from_offset=0)
    assert isinstance(frames, Frames)
    assert frames.topics == [b"T0", b"T1", b"T2"]
    assert frames.rows["topic_id"].tolist() == [n % 3 for n in range(10)]


def test_more_topics_than_a_batch_holds() -> None:
    count = 5000
    data = log(*[record(f"topic-{n}-with-a-long-name", b"") for n in range(count)])
    found = [event for event in walk(BytesSource(data), file_from_offset=0) if isinstance(event, Frames)]
    names = [batch.topics[row["topic_id"]] for batch in found for row in batch.rows]
    assert names == [f"topic-{n}-with-a-long-name".encode() for n in range(count)]


def test_rows_may_be_kept() -> None:
    data = log(*[record("T", bytes(100), queue_offset=n) for n in range(100)])
    batches = [event for event in walk(BytesSource(data), file_from_offset=0, window=700)]
    kept = np.concatenate([batch.rows["queue_offset"] for batch in batches if isinstance(batch, Frames)])
    assert kept.tolist() == list(range(100))


def test_a_blank_ends_the_walk_whatever_follows() -> None:
    data = log(A, B)
    end = blank(500, behind=b"\0" * 30 + message.encode(replace(C, physical_offset=len(data) + 38)))
    found = events(data + end)
    assert positions(found) == [0, SIZE_A]
    assert others(found) == [Blank(len(data), 500, 500)]


def test_a_blank_of_the_wrong_size_does_not() -> None:
    data = log(A) + message.encode_blank(77)
    rest = message.encode(replace(B, physical_offset=len(data)))
    assert events(data + rest)[1:] == [Blank(SIZE_A, 77, 8 + SIZE_B), *events(data + rest)[2:]]
    assert positions(events(data + rest)) == [0, SIZE_A + 8]
    # old bytes behind it are no record of this place
    stale = message.encode(replace(B, physical_offset=7))
    sound = message.encode(replace(C, physical_offset=len(data) + len(stale)))
    found = events(data + stale + sound)
    assert positions(found) == [0, len(data) + len(stale)]
    end = len(data) + len(stale) - 2  # its properties length is 0
    bad = CorruptRange(len(data), len(stale), "CL04", Reason.UNSOUND, SIZE_B, end, to_end=False)
    assert others(found)[1] == bad


def test_zeros_to_the_end() -> None:
    data = log(A, end=bytes(5000))
    assert others(events(data)) == [TrailingZeros(SIZE_A, 5000)]
    assert others(events(data[: SIZE_A + 3])) == [TrailingZeros(SIZE_A, 3)]
    assert events(bytes(100)) == [TrailingZeros(0, 100)]
    assert events(b"") == []


@pytest.mark.parametrize("hole", [1, 3, 5000])
def test_a_zero_hole_ends_at_the_next_sound_record(hole: int) -> None:
    data = log(A) + bytes(hole + 8)
    data += message.encode(replace(B, physical_offset=len(data)))
    found = events(data)
    assert positions(found) == [0, SIZE_A + hole + 8]
    assert others(found) == [CorruptRange(SIZE_A, hole + 8, "CL02", Reason.ZERO, 0, SIZE_A, to_end=False)]


def test_a_zeroed_page_across_records() -> None:
    data = bytearray(log(A, B, B, C))
    data[SIZE_A + 50 : SIZE_A + SIZE_B + 50] = bytes(SIZE_B)
    found = events(bytes(data))
    assert positions(found) == [0, SIZE_A + 2 * SIZE_B]
    (bad,) = others(found)
    assert (bad.physical_offset, bad.end, bad.reason) == (SIZE_A, SIZE_A + 2 * SIZE_B, Reason.LENGTHS)


def test_a_flipped_body_bit_is_a_status_and_the_walk_goes_on() -> None:
    data = bytearray(log(A, B, C))
    data[SIZE_A + 90] ^= 1
    found = events(bytes(data))
    assert [event.status for event in found] == [0, BODY_CRC, 0]
    assert [event.status for event in events(bytes(data), crc=False)] == [0, 0, 0]
    # also when zeros or nothing follow
    assert [event.status for event in events(bytes(data[: SIZE_A + SIZE_B]))] == [0, BODY_CRC]
    assert events(bytes(data[: SIZE_A + SIZE_B]) + bytes(9))[1].status == BODY_CRC
    # and before other damage
    data[SIZE_A + SIZE_B + 4] ^= 1
    found = events(bytes(data))
    assert [event.status for event in found if isinstance(event, StoredMessage)] == [0, BODY_CRC]
    assert others(found)[0].reason is Reason.MAGIC


def test_a_foreign_record_is_a_status() -> None:
    data = log(A) + message.encode(replace(B, physical_offset=999_999)) + log(C, base=SIZE_A + SIZE_B)
    assert [event.status for event in events(data)] == [0, OFFSET_MISMATCH, 0]
    assert [event.status for event in events(data, check_stored_offset=False)] == [0, 0, 0]


def test_a_suspect_record_yields_to_a_sound_one_inside() -> None:
    inner = message.encode(replace(A, physical_offset=message.HEAD_SIZE_V4 + 10))
    outer = record("T", b"0123456789" + inner + b"tail")
    sound = message.encode(outer)
    assert positions(events(sound)) == [0]
    data = bytearray(sound)
    data[88] ^= 1
    assert positions(events(bytes(data))) == [0]  # it leads to the file's end: nothing speaks against it
    data += b"no record"
    found = events(bytes(data))
    assert found[0] == CorruptRange(0, 98, "CL04", Reason.UNSOUND, outer.total_size, 98, to_end=False)
    assert positions(found) == [98]


def test_copies_of_records_in_bodies_are_never_found() -> None:
    copies = record("T", log(A, B, C) * 3)
    data = bytearray(log(copies, B))
    data[4] ^= 1
    found = events(bytes(data))
    assert positions(found) == [copies.total_size]
    assert others(found)[0].reason is Reason.MAGIC


@pytest.mark.parametrize(
    ("field", "value", "reason"),
    [
        ("total_size", -1, Reason.SIZE),
        ("total_size", 90, Reason.SIZE),
        ("total_size", 2**31 - 1, Reason.SIZE),
        ("total_size", SIZE_B + 1, Reason.LENGTHS),
        ("body_length", 2**31 - 1, Reason.LENGTHS),
        ("body_length", -(2**31), Reason.LENGTHS),
        ("magic", 0x11223344, Reason.MAGIC),
        ("sys_flag", 0x30, Reason.LENGTHS),
    ],
)
def test_a_wrong_field_makes_a_bad_region(field: str, value: int, reason: Reason) -> None:
    data = bytearray(log(A, B, C))
    at = SIZE_A + message.HEADS[0].offsets[field]
    data[at : at + 4] = value.to_bytes(4, signed=True)
    found = events(bytes(data))
    assert positions(found) == [0, SIZE_A + SIZE_B]
    (bad,) = others(found)
    assert (bad.physical_offset, bad.length, bad.reason, bad.to_end) == (SIZE_A, SIZE_B, reason, False)
    assert bad.declared_size == (value if field == "total_size" else SIZE_B)


def test_a_log_torn_at_every_byte_is_read_to_the_last_whole_record() -> None:
    data = log(A, B, C)
    ends = [SIZE_A, SIZE_A + SIZE_B, len(data)]
    for cut in range(len(data) + 1):
        whole = [end for end in ends if end <= cut]
        for torn in (data[:cut], data[:cut] + bytes(len(data) - cut), data[:cut] + bytes(4096)):
            found = events(torn)
            read = [event for event in found if isinstance(event, StoredMessage) and not event.status]
            assert [event.physical_offset for event in read[: len(whole)]] == [0, *ends][: len(whole)]
            if len(read) > len(whole):
                # Torn behind the body: no CRC covers topic and properties.
                assert cut > read[-1].physical_offset + message.HEAD_SIZE_V4 + read[-1].message.body_length
                assert len(read) == len(whole) + 1


def test_start_and_stop() -> None:
    data = log(A, B, C, end=bytes(100))
    assert positions(events(data, start=SIZE_A)) == [SIZE_A, SIZE_A + SIZE_B]
    assert positions(events(data, stop=SIZE_A + 1)) == [0, SIZE_A]
    assert positions(events(data, stop=SIZE_A)) == [0]
    assert others(events(data, stop=len(data) - 60)) == [TrailingZeros(len(data) - 100, 40)]
    assert events(data, stop=0) == []


@given(st.data())
def test_compiled_and_plain_walk_say_the_same(data: st.DataObject) -> None:
    base = data.draw(st.sampled_from(BASES))
    stored = data.draw(st.one_of(sound_logs(base), damaged_logs(base)))
    arguments: dict[str, Any] = {"file_from_offset": base}
    if data.draw(st.booleans()):
        arguments["start"] = data.draw(st.integers(0, len(stored)))
    if data.draw(st.booleans()):
        arguments["stop"] = data.draw(st.integers(0, len(stored) + 20))
    arguments["crc"] = data.draw(st.sampled_from([True, True, False]))
    arguments["check_stored_offset"] = data.draw(st.sampled_from([True, True, False]))
    found = events(stored, **arguments)
    start, stop = arguments.get("start", 0), min(arguments.get("stop", len(stored)), len(stored))
    check_cover(found, base + start, base + stop)


@given(st.binary(max_size=600))
def test_any_bytes(data: bytes) -> None:
    check_cover(events(data), 0, len(data))


def check_cover(found: list[Any], start: int, end: int) -> None:
    """Every byte belongs to one event, in order, up to the end or a good blank."""
    position = start
    for event in found:
        assert event.physical_offset == position
        position = event.end
    last = found[-1] if found else None
    assert position >= end or (isinstance(last, Blank) and last.ends_file)


class CountingSource(BytesSource):
    """Counts what is asked for."""

    largest = 0
    total = 0

    def window(self, offset: int, length: int) -> Any:
        data = super().window(offset, length)
        self.largest = max(self.largest, len(data))
        self.total += len(data)
        return data

    def read(self, offset: int, length: int) -> bytes:
        data = super().read(offset, length)
        self.total += len(data)
        return data


def test_a_window_grows_to_one_record_at_most() -> None:
    source = CountingSource(log(A, record("T", bytes(50_000)), B))
    assert len(list(walk(source, file_from_offset=0, window=1000))) > 0
    assert source.largest <= 50_000 + 200


def test_a_wrong_size_does_not_grow_the_window() -> None:
    data = bytearray(log(A, B) + bytes(500_000) + b"x")
    data[SIZE_A : SIZE_A + 4] = (400_000).to_bytes(4)
    source = CountingSource(bytes(data))
    assert [type(event) for event in walk(source, file_from_offset=0, window=1000)] == [Frames, CorruptRange]
    assert source.largest <= 1000


def hostile(size: int) -> bytes:
    """Heads at every 92 bytes whose lengths all add up to the same last bytes, with wrong CRCs."""
    data = bytearray(size)
    for position in range(0, size - 400, 92):
        body = size - 3 - position - message.HEAD_SIZE_V4
        head = record("", b"", total_size=size - position, body_length=body, physical_offset=position)
        data[position : position + 88] = message.encode(head)[:88]
    data[0] ^= 1
    return bytes(data)


def test_a_file_of_plausible_heads_costs_a_few_reads_of_itself() -> None:
    source = CountingSource(hostile(1 << 19))
    started = time.process_time()
    found = list(walk(source, file_from_offset=0, window=4096))
    assert [type(event) for event in found] == [CorruptRange]
    # Pairwise they would cost 5,700 reads.
    assert source.total < 30 * source.size
    assert time.process_time() - started < 20
    assert values(found) == values(walk_reference(BytesSource(hostile(1 << 19)), file_from_offset=0))


def test_topic_numbers_of_one_batch_only() -> None:
    assert frames_module.FRAME.itemsize == 80
    assert frames_module.FRAME.isalignedstruct


@pytest.mark.skipif(not IS_WHOLE, reason="compiles all kernels anew: make sweep")
def test_kernels_never_index_outside_of_the_window(tmp_path: Path) -> None:
    """Numba's own bounds check, and ours in every load, over damaged logs."""
    root = ROOT
    environment = {**os.environ, "NUMBA_BOUNDSCHECK": "1", "NUMBA_CACHE_DIR": str(tmp_path),
                   "PYTHONPATH": str(root), "HYPOTHESIS_STORAGE_DIRECTORY": str(tmp_path),
                   "HYPOTHESIS_PROFILE": "bounds"}  # fmt: skip
    names = [
        "test_compiled_and_plain_walk_say_the_same",
        "test_any_bytes",
        "test_columns_are_those_of_the_codecs",
    ]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--import-mode=importlib"]
    command += [
        "-k",
        " or ".join(names),
        "tests/unit/log/test_frames.py",
        "tests/unit/log/test_dispatch_columns.py",
    ]
    done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:]
