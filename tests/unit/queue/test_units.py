"""Units as arrays follow the rules of units as tuples, and the bisection of a queue is the plain search."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmqtool.errors import UnreadableError
from rmqtool.formats.consume_queue import (
    BATCH_UNIT_SIZE,
    PRE_BLANK,
    UNIT_SIZE,
    BatchUnit,
    Unit,
    decode_batch_units,
    decode_units,
    encode_batch_unit,
    encode_unit,
)
from rmqtool.queue.consume_queue import AnyQueue, open_queue
from rmqtool.queue.units import UnitReader, live, present, queue_offsets, unit_array
from rmqtool.read.table_files import QueueFile
from rmqtool.storage.layout import QueueFiles, StoreFile
from rmqtool.storage.open_files import OpenFiles
from rmqtool.storage.source import BytesSource

AnyUnit = Unit | BatchUnit
LONGS, INTS, SHORTS = (st.integers(-(1 << bits), (1 << bits) - 1) for bits in (63, 31, 15))
PLAIN = st.one_of(
    st.just(PRE_BLANK), st.just(Unit(0, 0, 0)), st.builds(Unit, LONGS, INTS, LONGS),
    st.builds(Unit, st.integers(0, 9), st.integers(0, 2), LONGS),
)  # fmt: skip
BATCH = st.one_of(
    st.just(BatchUnit(0, 0, 0, 0, 0, 0)),
    st.builds(BatchUnit, LONGS, INTS, LONGS, LONGS, LONGS, SHORTS, INTS, INTS),
    st.builds(
        BatchUnit, *map(st.integers, (0, 0), (9, 2)), LONGS, LONGS, LONGS, st.integers(-1, 2), INTS, INTS
    ),
)
QUEUES = st.one_of(st.lists(PLAIN, max_size=40), st.lists(BATCH, min_size=1, max_size=40))


def encoded(units: Iterable[AnyUnit]) -> bytes:
    return b"".join(
        encode_batch_unit(unit) if isinstance(unit, BatchUnit) else encode_unit(unit) for unit in units
    )


def unit_size(units: Sequence[AnyUnit]) -> int:
    return BATCH_UNIT_SIZE if units and isinstance(units[0], BatchUnit) else UNIT_SIZE


@given(units=QUEUES, first=st.integers(0, 1 << 40), rest=st.binary(max_size=19))
def test_arrays_and_tuples_agree(units: list[AnyUnit], first: int, rest: bytes) -> None:
    size, data = unit_size(units), encoded(units) + rest
    decode = decode_units if size == UNIT_SIZE else decode_batch_units
    rows = unit_array(data, size)
    assert [tuple(row) for row in rows.tolist()] == [tuple(unit) for unit in decode(data)] == units
    assert present(rows).tolist() == [unit.is_present for unit in units]
    assert live(rows).tolist() == [unit.is_present and not unit.is_pre_blank for unit in units]
    offsets = [
        unit.base_offset if isinstance(unit, BatchUnit) else at for at, unit in enumerate(units, first)
    ]
    assert queue_offsets(rows, first).tolist() == offsets


@given(units=QUEUES, start=st.integers(0, 50), count=st.integers(0, 50), base=st.integers(0, 3))
def test_reader_gives_the_units_of_both_kinds(
    units: list[AnyUnit], start: int, count: int, base: int
) -> None:
    size, data = unit_size(units), encoded(units)
    file = SimpleNamespace(path=Path("x"), file_from_offset=base * size, size=len(data))
    queue = SimpleNamespace(files=(file,), unit_size=size)
    numbers = range(base, base + len(units))
    nothing = unit_array(bytes(size), size)[0]
    with UnitReader(lambda path: BytesSource(data)) as reader:
        found = reader.read(queue, start, count)
        rows = unit_array(data, size)
        expected = [
            rows[number - base] if number in numbers else nothing for number in range(start, start + count)
        ]
        assert found.tolist() == [row.tolist() for row in expected]
        blocks = [
            (first + at, row) for first, block in reader.blocks(file, size) for at, row in enumerate(block)
        ]
        assert all(row == rows[number - base] for number, row in blocks)
        assert {number for number, row in enumerate(rows, base) if row != nothing} <= {n for n, _ in blocks}
        between = [n for part, _ in reader.live_between(queue, start, start + count) for n in part.tolist()]
    chosen = np.flatnonzero(live(rows)) + base
    assert between == [number for number in chosen.tolist() if start <= number < start + count]


def write(folder: Path, units: Sequence[AnyUnit], per_file: int, first: int) -> QueueFiles:
    """A queue whose first file begins with the number `first`; the last file is filled up with zeros."""
    size, files = unit_size(units), []
    for start in range(0, len(units), per_file):
        path = folder / str(len(files))
        data = encoded(units[start : start + per_file]).ljust(per_file * size, b"\0")
        path.write_bytes(data)
        files.append(StoreFile(path, (first + start) * size, len(data)))
    return QueueFiles("T", 0, folder, tuple(files), unit_size=size)


@pytest.mark.parametrize("is_batch", [False, True])
@pytest.mark.parametrize("first", [0, 14])
@pytest.mark.parametrize("count", [1, 7, 20, 21])
def test_searches_find_what_a_walk_finds(tmp_path: Path, is_batch: bool, first: int, count: int) -> None:
    """By physical offset, by queue offset and by any other rule; fillers and the unused end do not count."""
    units: list[AnyUnit] = [PRE_BLANK] * 3 if not is_batch else []
    for at in range(count):
        units.append(BatchUnit(50 * at, 50, 0, 0, 3 * at, 3) if is_batch else Unit(50 * at, 50, 0))
    with OpenFiles() as files:
        queue: AnyQueue = open_queue(write(tmp_path, units, 7, first), files)
        fillers, end = (0 if is_batch else 3), first + len(units)
        assert (queue.start, queue.end(), queue.after_end()) == (first, end, None)
        for wanted in range(-60, 50 * count + 60, 25):
            numbers = [
                n for n, unit in enumerate(units[fillers:], first + fillers) if unit.physical_offset >= wanted
            ]
            assert queue.first(lambda unit: unit.physical_offset >= wanted) == min(numbers, default=end)  # noqa: B023
            live_from = (
                queue.max_offset()
                if not numbers
                else queue.queue_offset(numbers[0], units[numbers[0] - first])
            )
            assert queue.first_live(wanted) == live_from
            until = [unit for unit in units if unit.physical_offset <= wanted]
            assert queue.before(wanted) == (until[-1] if until else None)
            assert queue.number_after(wanted) == first + len(until)
            rest = queue.without(1)
            later = [number for number in numbers if rest.files and number >= rest.start]
            assert rest.first(lambda unit: unit.physical_offset >= wanted, end) == min(later, default=end)  # noqa: B023


def test_holes_and_units_after_the_end(tmp_path: Path) -> None:
    units = [Unit(50 * at, 50, 0) for at in range(10)]
    with OpenFiles() as files:
        queue = open_queue(write(tmp_path, [*units[:4], Unit(0, 0, 0), *units[5:]], 20_000, 0), files)
        present_ones = [0, 1, 2, 3, 5, 6, 7, 8, 9]
        assert [number for number, _ in queue.numbered(0, 20_000)] == present_ones
        assert [number for number, _ in queue.numbered(0, 20_000, reverse=True, block=3)] == present_ones[
            ::-1
        ]


def test_a_queue_that_grows(tmp_path: Path) -> None:
    """A file that is shorter than a unit is left out until it has one."""
    units = [Unit(50 * at, 50, 0) for at in range(9)]
    written = write(tmp_path, units[:5], 5, 0)
    (tmp_path / "0").rename(tmp_path / f"{0:020}")
    with OpenFiles() as files:
        queue = open_queue(written, files)
        queue.refresh()
        later = tmp_path / f"{5 * UNIT_SIZE:020}"
        later.touch()
        queue.refresh()
        assert (len(queue.files), queue.end()) == (1, 5)
        later.write_bytes(encoded(units[5:]))
        assert queue.by_number(5) is None
        queue.refresh()
        assert (queue.end(), queue.by_number(5)) == (9, units[5])


def test_a_file_that_became_shorter_is_not_taken_for_a_queue_without_units(tmp_path: Path) -> None:
    """Its last units would be missing from a table, and records from what the index does not name."""
    path = tmp_path / f"{0:020}"
    path.write_bytes(encode_unit(Unit(0, 100, 1)) * 50)
    file = StoreFile(path, 0, 60 * UNIT_SIZE)
    with UnitReader() as reader:
        assert sum(len(units) for _, units in reader.blocks(file, UNIT_SIZE)) == 50
        with pytest.raises(UnreadableError, match="bytes 1000 to 1200 of a queue cannot be read") as caught:
            reader.must_be_read(file)
        assert caught.value.path == path
        whole = StoreFile(path, 0, 50 * UNIT_SIZE)
        reader.must_be_read(whole)
    table = QueueFile("broker-a", "consumequeue/T/0/0", file, "T", 0, UNIT_SIZE)
    with pytest.raises(UnreadableError):
        list(table.blocks())
