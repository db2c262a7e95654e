"""The data of a salvage: holes between sound records, and the lost records that are known.

Physical offsets are bytes from the start of the commit log, times milliseconds since 1970, ranges
half-open.
"""

from __future__ import annotations

from dataclasses import asdict, field
from pathlib import Path
from typing import Any, Literal

from rmqtool.lazy_dataclass import dataclass
from rmqtool.log.scan_cache import ScanCache
from rmqtool.repair.plan import Action

Fill = Literal["records", "none"]
KnownFrom = Literal["unit", "header", "end", "gap", "none"]
Fate = Literal["filled", "taken", "cut"]

HOLES_MAX = 1 << 20
"""Most holes and unsound records that are repaired; with more, this is not a commit log any more."""


@dataclass(frozen=True, slots=True)
class LostRecord:
    """A lost record, or `count` lost records of one queue with consecutive queue offsets.

    Attributes:
        topic: None if unknown; then `queue_id` and `queue_offset` are None too.
        queue_id: id of the queue that lost it.
        queue_offset: the first one's.
        count: number of messages, including those inside a batch; 0 if unknown.
        physical_offset: the place of the first record, or of the filler that replaces it.
        size: bytes there, of all of them together.
        after_ms: store time of the sound record before it, None if there is none.
        before_ms: store time of the sound record after it, None if there is none.
        sure: whether topic, queue and offset are certain.
        known_from: `unit` of its queue, its own `header` or `end`, a `gap` between queue offsets, or `none`.
            Place and size are a guess with `gap` and `none`: bytes that the hole has for it.
        fate: `filled`; `taken`: sound, but sacrificed because a hole next to it is too small for a filler;
            `cut` off.
    """

    topic: str | None
    queue_id: int | None
    queue_offset: int | None
    count: int
    physical_offset: int
    size: int
    after_ms: int | None
    before_ms: int | None
    sure: bool
    known_from: KnownFrom
    fate: Fate

    def row(self) -> dict[str, Any]:
        """The lost record as JSON."""
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(frozen=True, slots=True)
class Misplaced:
    """A file whose sound records belong to another place: it was renamed, or is another log's.

    Attributes:
        path: as `Action.path`.
        records: number of sound records.
        name: its original name according to its first record; None if unknown.
        is_taken: whether the log has a file of that name.
        is_readable: False if it cannot be read.
    """

    path: str
    records: int = 0
    name: str | None = None
    is_taken: bool = False
    is_readable: bool = True


@dataclass(frozen=True)
class Salvaged:
    """The plan for the commit log. Nothing has been changed yet.

    Attributes:
        actions: changes of the commit log's files, in the order of their offsets; empty if none are needed.
        end: physical offset after the last record afterwards; the log's start if there is no record.
        lost: every lost record, in the order of the log.
        kept: number of sound records that stay where they are.
        given_up: number of sound records that are removed: `taken`, or after the cut with fill `none`.
        fillers: number of filler records that are written.
        unreadable: (path, start, stop) of ranges that the operating system could not read, positions in
            the file; they are not changed.
        misplaced: files most of whose records belong to another place, and strays with records.
        tail: ranges of the present log with sound records after the cut, with fill `none`.
        incomplete: the first kept records whose properties are damaged, or end in zeros.
        notes: further remarks, as texts.
        sound: cached scans of completely sound log files, for later steps.
    """

    actions: tuple[Action, ...]
    end: int
    lost: tuple[LostRecord, ...] = ()
    kept: int = 0
    given_up: int = 0
    fillers: int = 0
    unreadable: tuple[tuple[str, int, int], ...] = ()
    misplaced: tuple[Misplaced, ...] = ()
    tail: tuple[tuple[int, int], ...] = ()
    incomplete: tuple[Claim, ...] = ()
    notes: tuple[str, ...] = ()
    sound: ScanCache = field(default_factory=ScanCache, repr=False, compare=False)

    def row(self) -> dict[str, Any]:
        """Everything except the actions, as JSON."""
        return {
            "end": self.end,
            "kept": self.kept,
            "given_up": self.given_up,
            "fillers": self.fillers,
            "lost": [record.row() for record in self.lost],
            "unreadable": [list(item) for item in self.unreadable],
            "misplaced": [asdict(item) for item in self.misplaced],
            "tail": [list(item) for item in self.tail],
            "incomplete": [claim.start for claim in self.incomplete],
            "notes": list(self.notes),
        }


@dataclass(slots=True)
class Claim:
    """A lost record whose place is known: `size` bytes from the physical offset `start`.

    `count` is above 0 for an inner batch. `light` are the light queues that also hold it, with its queue
    offset there. `code` is the problem of a record whose head could still be read.
    """

    start: int
    size: int
    topic: bytes
    queue_id: int
    queue_offset: int
    count: int = 0
    known_from: KnownFrom = "header"
    code: str = ""
    taken: bool = False
    has_queue: bool = True
    light: tuple[tuple[str, int], ...] = ()

    @property
    def end(self) -> int:
        """The physical offset after it."""
        return self.start + self.size

    @property
    def step(self) -> int:
        """The number of queue offsets that it uses."""
        return max(self.count, 1)


@dataclass(slots=True)
class Hole:
    """Bytes [start, stop) of one file that hold no sound record.

    `code` is the first problem in it. `heads` are records in it whose heads could be read, in order.
    `after_ms` and `before_ms` are the store times of the sound records before and after it, 0 if there is
    none. `to_end` is whether it reaches the file's end, so that a blank can end it; `next_size` is then the
    size of the first record of the next file, 0 if unknown.
    """

    start: int
    stop: int
    code: str
    heads: list[Claim] = field(default_factory=list)
    after_ms: int = 0
    before_ms: int = 0
    to_end: bool = False
    next_size: int = 0


@dataclass(slots=True)
class LogFile:
    """A file of the log: `size` is its present size, `full_size` the required one, bytes."""

    path: Path
    name: str
    file_from_offset: int
    size: int
    full_size: int
    is_missing: bool = False

    @property
    def full_end(self) -> int:
        """The physical offset after it at its full size."""
        return self.file_from_offset + self.full_size
