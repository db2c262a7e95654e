"""What a salvage finds: records to keep, holes between them, and what is known of the records lost there.

Physical offsets are bytes from the start of the commit log, times milliseconds since 1970, ranges
half-open.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from rmqtool.log.scan_cache import ScanCache
from rmqtool.repair.plan import Action

Fill = Literal["records", "none"]
KnownFrom = Literal["unit", "header", "gap", "none"]
Fate = Literal["filled", "taken", "cut"]

HOLES_MAX = 1 << 20
"""Holes and unsound records of one commit log that are mended; a log with more is no log any more."""


@dataclass(frozen=True, slots=True)
class LostRecord:
    """A record that is lost, or `count` of one queue with consecutive queue offsets.

    Attributes:
        topic: None where nothing tells whose it was; then `queue_id` and `queue_offset` are None too.
        queue_id: of the queue that has lost it.
        queue_offset: the first one's.
        count: messages; an inner batch counts as many as it held. 0 where it is not known how many.
        physical_offset: where it stood, or the filler in its place; the first one's.
        size: bytes there; of all of them together.
        after_ms: store time of the sound record before it, None without one.
        before_ms: store time of the sound record behind it, None without one.
        sure: whether the topic, queue and offset are beyond doubt.
        known_from: `unit` of its queue, its own `header`, a `gap` between queue offsets, or `none`.
        fate: `filled`; `taken` along by a hole too small for a filler (it was sound); `cut` off.
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
        records: so many are sound.
        name: the name that it had, by its first record; None where that is not known.
        is_taken: whether the log has a file of that name.
        is_readable: False where nobody can say what is in it.
    """

    path: str
    records: int = 0
    name: str | None = None
    is_taken: bool = False
    is_readable: bool = True


@dataclass(frozen=True)
class Salvaged:
    """How the commit log is mended. Nothing has been changed yet.

    Attributes:
        actions: changes of the commit log's files, in the order of their offsets; none: nothing to do.
        end: physical offset behind the last record afterwards; the log's start without a record.
        lost: every record that is lost, in the order of the log.
        kept: sound records that stay where they are.
        given_up: sound records that leave the log: taken along, or behind the cut with fill `none`.
        fillers: filler records that are written.
        unreadable: (path, start, stop) of files that the operating system could not read; nothing is
            changed there.
        misplaced: files most of whose records belong to another place, and strays that hold some.
        tail: ranges of the present log that hold sound records behind the cut, with fill `none`.
        notes: what a person should know beside.
        sound: what was seen of log files that are sound in all, for those that need it next.
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
    notes: tuple[str, ...] = ()
    sound: ScanCache = field(default_factory=ScanCache, repr=False, compare=False)

    def row(self) -> dict[str, Any]:
        """All but the actions, as JSON."""
        return {
            "end": self.end,
            "kept": self.kept,
            "given_up": self.given_up,
            "fillers": self.fillers,
            "lost": [record.row() for record in self.lost],
            "unreadable": [list(item) for item in self.unreadable],
            "misplaced": [asdict(item) for item in self.misplaced],
            "tail": [list(item) for item in self.tail],
            "notes": list(self.notes),
        }


@dataclass(slots=True)
class Claim:
    """A lost record whose place is known: `size` bytes from `start`, a physical offset.

    `count` is above 0 for an inner batch. `light` are the light queues that hold it too, with its
    queue offset there. `code` is a problem's, of a record whose head could still be read.
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
        """The physical offset behind it."""
        return self.start + self.size

    @property
    def step(self) -> int:
        """Queue offsets that it takes."""
        return max(self.count, 1)


@dataclass(slots=True)
class Hole:
    """Bytes [start, stop) of one file that hold no sound record.

    `code` is the problem that was met first. `heads` are records in it whose heads could be read,
    in order. `after_ms` and `before_ms` are the store times of the sound records around it, 0
    without one. `to_end`: it reaches to the file's end, so that a blank can end it;
    `next_size` is then the size of the record that begins the next file, 0 where it is not known.
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
    """A file that belongs into the log: `size` is what it has now, `full_size` what it must have."""

    path: Path
    name: str
    file_from_offset: int
    size: int
    full_size: int
    is_missing: bool = False

    @property
    def full_end(self) -> int:
        """The physical offset behind it, when it has its full size."""
        return self.file_from_offset + self.full_size
