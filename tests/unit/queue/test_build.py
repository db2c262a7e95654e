"""Kernels over entries of queues, against loops in plain Python."""

from __future__ import annotations

from array import array
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from rmqtool.queue.build import ENTRY, OffsetRuns, after_newest, note_last, order_by_queue, queue_codes

_LONG = st.integers(-(1 << 63), (1 << 63) - 1)
_OFFSETS = st.integers(0, 6) | st.sampled_from([(1 << 63) - 1, -(1 << 63)]) | _LONG


@st.composite
def entries(draw: st.DrawFn) -> np.ndarray[Any, np.dtype[Any]]:
    """Units of a few queues."""
    found = np.zeros(draw(st.integers(0, 12)), ENTRY)
    for entry in found:
        entry["topic"], entry["queue_id"] = draw(st.integers(0, 2)), draw(st.sampled_from([-1, 0, 1]))
        entry["queue_offset"], entry["batch_size"] = draw(_OFFSETS), draw(st.integers(-2, 3))
        entry["physical_offset"], entry["size"] = draw(st.integers(0, 20)), draw(st.integers(1, 5))
    return found


@given(parts=st.lists(entries(), max_size=4), is_batch=st.booleans())
def test_runs_of_queue_offsets(parts: list[Any], is_batch: bool) -> None:
    runs = OffsetRuns()
    expected: dict[int, list[tuple[int, int]]] = {}
    for part in parts:
        runs.add(part, 2 if is_batch else 1)
        for code, entry in zip(queue_codes(part).tolist(), part, strict=True):
            first = int(entry["queue_offset"])
            stop = first + (min(max(int(entry["batch_size"]), 1), 2) if is_batch else 1)
            stop = (stop + (1 << 63)) % (1 << 64) - (1 << 63)
            own = expected.setdefault(code, [])
            if own and own[-1][1] == first:
                own[-1] = own[-1][0], stop
            else:
                own.append((first, stop))
    assert dict(runs.queues()) == expected


@given(part=entries(), data=st.data(), is_batch=st.booleans())
def test_the_newest_and_the_last_of_each_queue(part: Any, data: st.DataObject, is_batch: bool) -> None:
    codes = queue_codes(part).tolist()
    known = sorted(set(codes))
    numbers = np.array([known.index(code) for code in codes], np.int32)
    newest = array("q", data.draw(st.lists(st.integers(-1, 25), min_size=9, max_size=9)))
    found, count = after_newest(part, numbers, newest, is_batch=is_batch)
    ends = part["physical_offset"] + (0 if is_batch else part["size"])
    assert found.tolist() == [end > newest[number] for end, number in zip(ends, numbers, strict=True)]
    assert count == int(found.sum())
    offsets, sizes = np.full(9, -7, np.int64), np.full(9, -7, np.int32)
    note_last(part, numbers, offsets, sizes)
    last = {int(number): row for row, number in enumerate(numbers)}
    for number in range(9):
        entry = part[last[number]] if number in last else {"queue_offset": -7, "batch_size": -7}
        assert (offsets[number], sizes[number]) == (entry["queue_offset"], entry["batch_size"])


@given(codes=st.lists(st.integers(-2, 2) | _LONG, max_size=30))
def test_the_order_of_queues_is_stable(codes: list[int]) -> None:
    column = np.array(codes, np.int64)
    assert order_by_queue(column).tolist() == np.argsort(column, kind="stable").tolist()
