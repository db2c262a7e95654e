"""A DLedger log: the numbers and terms of its entries, their index units, and the files with its state.

That an entry header fits its record is seen by the walk (DL01). Here its number and its term are compared
with those of the entry before, and with the unit of the index. The files are walked on their own; what needs
the file before is compared by `LedgerCheck.take`, in the order of the log.

A start reads the newest three files in this way, and ends the log at the first entry that is wrong. Units of
the index that are missing or wrong there are made again.

Source: DLedgerMmapFileStore#recover, MemberState#loadTerm; spec 06 6.2 and 6.3.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import field
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from rmqtool.check.verify.context import CONFIG_LIMIT, Context, reason_of
from rmqtool.check.verify.state import read_small
from rmqtool.errors import FormatError, UnreadableError
from rmqtool.formats import ledger as form
from rmqtool.lazy_dataclass import dataclass
from rmqtool.log.events import ENTRY_MISMATCH
from rmqtool.problems import Finding, finding
from rmqtool.storage.ranges import merged, runs
from rmqtool.storage.storage import path_at

if TYPE_CHECKING:
    from pathlib import Path

    from rmqtool.check.verify.log_findings import ScannedFile
    from rmqtool.log.frames import Frames
    from rmqtool.storage.buffers import Array
    from rmqtool.storage.source import ByteSource
    from rmqtool.storage.storage import Place

State = TypeVar("State", form.Ends, form.Term)

_RANGES_MAX = 1000
_SMALL_MAX = 1 << 40  # entry numbers above are damage: a log has fewer


@dataclass
class Entries:
    """The entries of one file. Numbers are -1 before the first entry whose header is right.

    `end` is the physical offset after the last record. `missing` are half-open ranges of entry numbers
    without an index unit, `wrong` those whose unit differs; each has at most `_RANGES_MAX`, then the last one
    reaches over all that follow.
    """

    first_index: int = -1
    first_term: int = -1
    first_offset: int = -1
    first_size: int = 0
    last_index: int = -1
    last_term: int = -1
    end: int = -1
    missing: list[tuple[int, int]] = field(default_factory=list)
    wrong: list[tuple[int, int]] = field(default_factory=list)

    def take(self, frames: Frames, entry_header: int, index: EntryIndex) -> Iterator[tuple[str, Array]]:
        """Add the records of a window; yields (code, mask) for DL02 and DL03.

        Records of a window follow each other without gaps.
        """
        rows, headers = frames.rows, frames.entry_headers()
        places = np.flatnonzero((rows["status"] & ENTRY_MISMATCH) == 0)
        follows = int(rows["physical_offset"][0]) == self.end + entry_header
        self.end = frames.end
        if not len(places):
            return
        numbers = headers["entry_index"][places].astype(np.int64)
        terms = headers["term"][places].astype(np.int64)
        steps = np.diff(places)
        jumps, falls = np.zeros(len(rows), np.bool_), np.zeros(len(rows), np.bool_)
        jumps[places[1:]] = numbers[1:] - numbers[:-1] != steps
        falls[places[1:]] = terms[1:] < terms[:-1]
        first = int(places[0])
        if self.last_index >= 0:
            expected = self.last_index + 1 + first
            jumps[first] = numbers[0] != expected if follows else numbers[0] < expected
            falls[first] = terms[0] < self.last_term
        else:
            row = rows[first]
            self.first_index, self.first_term = int(numbers[0]), int(terms[0])
            self.first_offset, self.first_size = int(row["physical_offset"]), int(row["size"])
        if jumps.any():
            yield "DL02", jumps
        if falls.any():
            yield "DL03", falls
        sound = (numbers >= 0) & (numbers < _SMALL_MAX)
        self._compare(headers[places][sound], index)
        self.last_index, self.last_term = int(numbers[-1]), int(terms[-1])

    def _compare(self, headers: Array, index: EntryIndex) -> None:
        """Compare entries with their index units, run by run of numbers that follow each other."""
        numbers = headers["entry_index"].astype(np.int64)
        for low, high in runs(numbers):
            part, first = headers[low:high], int(numbers[low])
            units = index.units(first, high - low)
            there = units["magic"] != 0
            same = units["magic"] == form.MAGIC
            for name in ("position", "size", "entry_index", "term"):
                same &= units[name] == part[name]
            _note(self.missing, np.flatnonzero(~there) + first)
            _note(self.wrong, np.flatnonzero(there & ~same) + first)


def _note(ranges: list[tuple[int, int]], numbers: Array) -> None:
    """Add rising numbers to half-open ranges."""
    for low, high in runs(numbers):
        start, stop = int(numbers[low]), int(numbers[high - 1]) + 1
        if ranges and (ranges[-1][1] == start or len(ranges) >= _RANGES_MAX):
            ranges[-1] = ranges[-1][0], max(stop, ranges[-1][1])
        else:
            ranges.append((start, stop))


class EntryIndex:
    """Reads the units of the index of entries; for one thread. `failed` are files that cannot be read."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._files = context.layout.ledger.index if context.layout.ledger is not None else ()
        self._open: tuple[Place, ByteSource] | None = None
        self.failed: dict[str, str] = {}

    def units(self, first: int, count: int) -> Array:
        """The units of `count` entries from a number on; zeros where no file has them."""
        size = form.INDEX_UNIT_SIZE
        start, stop = first * size, (first + count) * size
        data = bytearray(stop - start)
        for place, offset, length in self._files:
            low, high = max(offset, start), min(offset + length, stop)
            if low < high:
                read = self._read(place, low - offset, high - low)
                data[low - start : low - start + len(read)] = read
        return np.frombuffer(data, form.INDEX_UNIT.dtype)

    def _read(self, place: Place, position: int, length: int) -> bytes:
        path = path_at(place)
        try:
            if self._open is None or self._open[0] != place:
                self.close()
                self._open = place, self._context.open(path)
            source = self._open[1]
            data = source.read(position, length)
        except (OSError, UnreadableError) as error:
            self.failed.setdefault(self._context.name(path), reason_of(error))
            return b""
        if source.unreadable:
            self.failed.setdefault(self._context.name(path), "a part of it cannot be read")
        return data

    def close(self) -> None:
        """Close the file that is open."""
        if self._open is not None:
            self._open[1].close()
            self._open = None


class LedgerCheck:
    """What the files of a DLedger log say together; takes them in the order of the log."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self.failed: dict[str, str] = {}
        self._missing: list[tuple[int, int]] = []
        self._wrong: list[tuple[int, int]] = []
        self._last: ScannedFile | None = None

    def take(self, scan: ScannedFile, *, is_torn: bool) -> Iterator[Finding]:
        """Add one file; findings on its first entry. `is_torn`: its last record was not written in full."""
        found = scan.entries
        if found is None:
            return
        self.failed.update(scan.failed_entries)
        if found.first_index < 0:
            return
        before = self._last.entries if self._last is not None else None
        if before is not None and self._last is not None:
            is_whole = (
                not self._last.bad and not scan.bad and self._last.file.end == scan.file.file_from_offset
            )
            expected, where = before.last_index + 1, self.context.name(scan.file.path)
            jumps = found.first_index != expected if is_whole else found.first_index < expected
            if jumps:
                yield finding("DL02", where, found.first_offset, found.first_size, records=1)
            if found.first_term < before.last_term:
                yield finding("DL03", where, found.first_offset, found.first_size, records=1)
        if is_torn:
            found.last_index -= 1
        self._missing += found.missing
        self._wrong += found.wrong
        self._last = scan

    def run(self) -> Iterator[Finding]:
        """Findings on the index and the state, once all files were taken."""
        ledger = self.context.layout.ledger
        if ledger is None:
            return
        for name, reason in self.failed.items():
            yield finding("CP06", name, reason=reason)
        last = self._last.entries if self._last is not None else None
        newest = -1 if last is None else last.last_index
        if not self.failed:
            yield from self._index(newest)
        yield from self._ends(newest, last)

    def _index(self, newest: int) -> Iterator[Finding]:
        unit = form.INDEX_UNIT_SIZE
        for start, stop in merged(self._wrong):
            path, position = self._place(start)
            yield finding(
                "DL04", path, position, (stop - start) * unit, entry_index=start, entries=stop - start
            )
        for start, stop in merged(self._missing):
            path, position = self._place(start)
            behind = stop > newest
            yield finding("DL05" if behind else "DL04", path, position, (stop - start) * unit,
                          entry_index=start, entries=stop - start)  # fmt: skip

    def _place(self, number: int) -> tuple[str, int]:
        """The index file of an entry's unit, and the unit's position in it."""
        ledger = self.context.layout.ledger
        assert ledger is not None
        start = number * form.INDEX_UNIT_SIZE
        for place, offset, _ in reversed(ledger.index):
            if offset <= start:
                return self.context.name(path_at(place)), start - offset
        return self.context.name(ledger.folder / "index"), start

    def _ends(self, newest: int, last: Entries | None) -> Iterator[Finding]:
        ledger, context = self.context.layout.ledger, self.context
        assert ledger is not None
        ends, found = self._state(ledger.folder / "checkpoint", ledger.checkpoint, form.decode_ends)
        term, of_term = self._state(ledger.folder / "currterm", ledger.term, form.decode_term)
        if last is not None:
            yield from (*found, *of_term)
        if context.live or context.bounds.bounded:
            return  # the files are written every few seconds, or not all entries were seen
        if ends is not None:
            name = context.name(ledger.folder / "checkpoint")
            detail = {"committed_index": ends.committed_index, "newest_entry": newest}
            if max(ends) > newest:
                yield finding("DL09", name, end_index=ends.end_index, **detail)
            elif newest > ends.committed_index:
                yield finding("DL08", name, entries=newest - ends.committed_index, **detail)
        if term is not None and last is not None and term.current_term < last.last_term:
            reason = "its term is older than that of the newest entry"
            yield finding("DL07", context.name(ledger.folder / "currterm"), reason=reason,
                          current_term=term.current_term, newest_term=last.last_term)  # fmt: skip

    def _state(
        self, path: Path, there: Path | None, decode: Callable[[bytes], State]
    ) -> tuple[State | None, list[Finding]]:
        """The content of a file of the state, and what is wrong with it."""
        name = self.context.name(path)
        if there is None:
            return None, [finding("DL07", name, reason="it is missing")]
        try:
            return decode(read_small(there, CONFIG_LIMIT)), []
        except OSError as error:
            return None, [finding("CP06", name, reason=reason_of(error))]
        except FormatError as error:
            return None, [finding("DL07", name, reason=error.message)]
