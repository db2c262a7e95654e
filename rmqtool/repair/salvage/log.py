"""The log as a whole: where it ends, which holes are filled, and the actions that repair it.

before the end, a hole     fillers; at a file's end a blank after them
before the end, a file     missing: created; short: extended; long: shortened
at the end                 zeros up to the file's end, so that no old record reappears
after the end              files of zeros stay, others are deleted
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING

from rmqtool.formats.message import BLANK_SIZE, MIN_RECORD_SIZE
from rmqtool.log.damage import code_at_end, zeros_code
from rmqtool.repair.plan import Action
from rmqtool.repair.salvage.file_scan import FileScan
from rmqtool.repair.salvage.fillers import Filled
from rmqtool.repair.salvage.model import Claim, Hole, LogFile, LostRecord
from rmqtool.repair.salvage.order import Order
from rmqtool.storage.ranges import merged, overlaps
from rmqtool.storage.source import first_nonzero, nonzero_end

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from rmqtool.storage.source import ByteSource


class Log:
    """The scans of a log's files in order, and the conclusions from them.

    `last` is the index of the last file with sound content, -1 if none. `cut_from` is the physical offset
    from which sound records are given up; the first of them are `cut_unfinished`, and are given up only
    because their last bytes may never have been written. `ends_at_hole`: the log was ended at a hole, and
    sound records may follow. `holes` are to be filled, in order; `unfilled` ones overlap unreadable bytes or
    are too short, and stay.
    """

    def __init__(self, scans: Sequence[FileScan], opener: Callable[[Path], ByteSource]) -> None:
        self.scans = scans
        self.opener = opener
        self.cut_from: int | None = None
        self.cut_unfinished: tuple[Claim, ...] = ()
        self.ends_at_hole = False
        self.holes: list[Hole] = []
        self.unfilled: list[Hole] = []
        self._settle()

    def _settle(self) -> None:
        """Find the last file and the holes before the end."""
        self.last = max((number for number, scan in enumerate(self.scans) if _has_data(scan)), default=-1)
        while self.last >= 0:
            self.scans[self.last].drop_cuts()
            if _has_data(self.scans[self.last]):
                break
            self.last -= 1
        for number, scan in enumerate(self.scans[: self.last + 1]):
            if not scan.done:
                scan.make_room()
            is_settled = scan.done or (scan.holes and scan.holes[-1].to_end)
            if number < self.last and not is_settled:
                hole = Hole(scan.end, scan.file.full_end, _end_code(scan), scan.pending, scan.last_ms)
                hole.to_end = True
                hole.next_size = self.scans[number + 1].first_size
                scan.holes.append(hole)
                scan.pending = []
        bad = merged(item for scan in self.scans for item in scan.unreadable)
        every = [hole for scan in self.scans[: self.last + 1] for hole in scan.holes]
        self.holes, self.unfilled = [], []
        for hole in every:
            usable = hole.stop - hole.start >= (BLANK_SIZE if hole.to_end else MIN_RECORD_SIZE)
            reads = not overlaps(bad, hole.start, hole.stop)
            (self.holes if usable and reads else self.unfilled).append(hole)
        self._times()

    def _times(self) -> None:
        """Set missing store times of holes at the edges of a file from the neighbouring files."""
        last = 0
        for scan in self.scans:
            for hole in scan.holes:
                hole.after_ms = hole.after_ms or last
            last = scan.last_ms or last
        first = 0
        for scan in reversed(self.scans):
            for hole in scan.holes:
                hole.before_ms = hole.before_ms or (first if hole.stop >= scan.end else 0)
            first = scan.first_ms or first

    def cut_zombies(self, order: Order) -> None:
        """End the log where records of an older log begin."""
        if order.zombies_from is None:
            return
        start, torn = self._cut(order.zombies_from)
        for scan in self.scans:
            if scan.file.full_end <= start:
                continue
            inside = scan.file.file_from_offset < start
            scan.holes = [hole for hole in scan.holes if hole.stop <= start and not hole.to_end]
            scan.end, scan.done, scan.code = max(start, scan.file.file_from_offset), False, "CL07"
            scan.is_torn = False
            scan.pending = torn if scan.file.file_from_offset <= start else []
            scan.kept = scan.kept if inside else 0
            if scan.holes and scan.holes[-1].stop == scan.end:
                scan.end = scan.holes.pop().start
            if scan.end == scan.file.file_from_offset:
                scan.kept = 0
        self._settle()

    def end_at(self, hole: Hole) -> tuple[tuple[int, int], ...]:
        """End the log at a hole and give up everything after it; returns ranges of sound records there."""
        start, _ = self._cut(hole.start)
        self.ends_at_hole = True
        sound = tuple(self._sound_from(start))
        for scan in self.scans:
            if scan.file.full_end <= start:
                continue
            scan.holes = [one for one in scan.holes if one.stop <= start]
            scan.end, scan.done, scan.code = max(start, scan.file.file_from_offset), False, hole.code
            scan.pending, scan.unreadable, scan.is_torn = [], [], False
            scan.kept = scan.kept if scan.end > scan.file.file_from_offset else 0
        self._settle()
        return sound

    def _sound_from(self, offset: int) -> Iterator[tuple[int, int]]:
        """The ranges of sound records from `offset`, the start of a record or hole, on."""
        for scan in self.scans[: self.last + 1]:
            position = scan.file.file_from_offset
            for start, stop in [*((hole.start, hole.stop) for hole in scan.holes), (scan.end, scan.end)]:
                if start > max(position, offset):
                    yield max(position, offset), start
                position = stop

    def _cut(self, offset: int) -> tuple[int, list[Claim]]:
        """(the log's end if everything from `offset` on is given up, further records that go then).

        The further records are those just before the cut whose last bytes may never have been written: at the
        end of a log a later run would drop them.
        """
        scan = next(scan for scan in self.scans if scan.file.full_end >= offset)
        torn = scan.unfinished_before(offset)
        self.cut_from = torn[0].start if torn else offset
        self.cut_unfinished = tuple(torn)
        return self.cut_from, torn

    @property
    def end(self) -> int:
        """The physical offset after the last record or filler."""
        if self.last >= 0:
            return self.scans[self.last].end
        return self.scans[0].file.file_from_offset if self.scans else 0

    @property
    def kept(self) -> int:
        """The number of sound records."""
        return sum(scan.kept for scan in self.scans)

    @property
    def has_property_crc(self) -> bool:
        """Whether records end with a property CRC, so that fillers must too."""
        return any(scan.has_property_crc for scan in self.scans)

    def is_empty_end(self, hole: Hole) -> bool:
        """Whether a hole at a file's end is empty: all bytes after those of a blank are zero."""
        if not hole.to_end:
            return False
        scan = next(one for one in self.scans if one.file.full_end == hole.stop)
        if scan.file.is_missing or not scan.file.size:
            return False
        with closing(self.opener(scan.file.path)) as source:
            start = hole.start - scan.file.file_from_offset + BLANK_SIZE
            stop = min(source.size, scan.file.full_size)
            return start >= stop or first_nonzero(source, start, stop) >= stop

    # actions

    def actions(self, filled: dict[int, Filled]) -> Iterator[Action]:
        """The changes of all files in order of their offsets; `filled` maps a hole's start to its bytes."""
        keeps_files = True
        for number, scan in enumerate(self.scans):
            if number < self.last:
                yield from self._of_full_size(scan, self._inner(scan, filled))
                continue
            is_end = number == max(self.last, 0) or (number == self.last + 1 and self.scans[self.last].done)
            if is_end and (scan.file.size or self.last < 0):
                yield from self._of_full_size(scan, self._end(scan, filled))
            else:  # after a deleted file none may stay
                keeps_files = keeps_files and _is_spare(scan)
                if not keeps_files and not scan.file.is_missing:
                    yield _delete(scan)

    def _of_full_size(self, scan: FileScan, actions: Iterator[Action]) -> Iterator[Action]:
        """The same actions; a file that is too long is replaced as a whole, so that it becomes shorter."""
        file = scan.file
        if file.size <= file.full_size:
            yield from actions
            return
        with closing(self.opener(file.path)) as source:
            content = bytearray(source.read(0, file.full_size))
        for action in actions:
            content[action.offset : action.end] = action.content or bytes(action.length)
        reason = f"the file is longer than the others: {file.size - file.full_size} bytes go"
        yield Action("replace", file.name, 0, file.full_size, reason, "CL21", content=bytes(content))

    def _inner(self, scan: FileScan, filled: dict[int, Filled]) -> Iterator[Action]:
        """The changes of a file before the last: it gets its full size, and every hole is filled."""
        file, reach = scan.file, scan.file.size
        if file.is_missing:
            reason = "a file is missing between two others"
            yield Action("create", file.name, 0, file.full_size, reason, "CL20", zeros=True)
            reach = file.full_size
        for hole in scan.holes:
            if hole.start in filled:
                action = _fill(file, hole, filled[hole.start])
                reach = max(reach, action.end)
                yield action
        yield from _padded(file, reach)

    def _end(self, scan: FileScan, filled: dict[int, Filled]) -> Iterator[Action]:
        """The changes of the file in which the log ends, or of the next one with a part of a record."""
        file = scan.file
        for hole in scan.holes:
            if hole.start in filled:
                yield _fill(file, hole, filled[hole.start])
        start = scan.end - file.file_from_offset
        if not scan.done and not scan.unreadable and (scan.code or scan.pending):  # else all is zero
            with closing(self.opener(file.path)) as source:
                stop = min(source.size, file.full_size)
                stop = nonzero_end(source, start, stop) if start < stop else start
            if stop > start:
                code, reason = scan.code or "CL05", _CUT_AT_HOLE
                if not self.ends_at_hole:
                    code = code_at_end(code, torn=scan.is_torn)
                    reason = _CUT_REASONS.get(code, "no sound record follows: the log ends here")
                yield Action("cut", file.name, start, stop - start, reason, code)
        yield from _padded(file, file.size)


_CUT_AT_HOLE = "the log is cut at its first hole: what follows is given up"
_CUT_REASONS = {
    "CL01": "the last record was not written in full",
    "CL07": "older records that remained after a truncation: they would reappear",
}


def _has_data(scan: FileScan) -> bool:
    """Whether the log reaches into a file. Unreadable bytes may be a part of it."""
    return bool(scan.kept or scan.done or scan.unreadable)


def _is_spare(scan: FileScan) -> bool:
    """Whether a file after the log's end is one that brokers create in advance: full size, all zero."""
    file = scan.file
    return file.size == file.full_size and not (scan.code or scan.pending or scan.holes)


def _end_code(scan: FileScan) -> str:
    if scan.file.is_missing:
        return "CL20"
    return scan.code or zeros_code(ends_log=False, is_whole_file=not scan.kept)


def _delete(scan: FileScan) -> Action:
    file = scan.file
    if not file.size:
        return Action("delete", file.name, 0, 0, "an empty file: 4.x does not load with it", "CL23")
    code = scan.code or zeros_code(ends_log=True, is_whole_file=True)
    return Action("delete", file.name, 0, file.size, "a file after the end of the log", code)


def _fill(file: LogFile, hole: Hole, filled: Filled) -> Action:
    what = f"{filled.fillers} filler{'s' * (filled.fillers != 1)}" if filled.fillers else "a blank"
    unknown = sum(not each.count for each in filled.lost[: filled.fillers])
    if unknown:
        what += f" ({unknown} of them for unknown messages)"
    if filled.fillers and hole.to_end:
        what += " and a blank"
    return Action(
        "fill", file.name, hole.start - file.file_from_offset, len(filled.content),
        f"{what} instead of {hole.stop - hole.start} bytes without a sound record", hole.code,
        {"physical_offset": hole.start, "fillers": filled.fillers, "lost": len(filled.lost)}, filled.content,
    )  # fmt: skip


def _padded(file: LogFile, reach: int) -> Iterator[Action]:
    """Zeros up to the full size; `reach` bytes exist or are written by other actions. None are kept."""
    if reach < file.full_size and not file.is_missing:
        yield Action("cut", file.name, reach, file.full_size - reach,
                     "the file is shorter than the others: zeros are added", "CL21",
                     {"data_bytes": 0})  # fmt: skip


def as_cut(lost: LostRecord) -> LostRecord:
    """The same record with the fate `cut`."""
    return replace(lost, fate="cut")
