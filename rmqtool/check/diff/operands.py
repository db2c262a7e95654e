"""One side of a comparison: a store as it was when the comparison began.

The store of a running broker grows. So the ends of the queues are read first, then the log's end: every
unit has its record in the compared log.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rmqtool.errors import UnreadableError, UsageError
from rmqtool.lazy_dataclass import dataclass
from rmqtool.log.log_files import Tail
from rmqtool.queue.consume_queue import Span
from rmqtool.read.store import Store
from rmqtool.storage.open_files import path_of
from rmqtool.storage.profile import NOT_WRITTEN_BY
from rmqtool.storage.size_settings import sizes_of

if TYPE_CHECKING:
    from rmqtool.storage.source import ByteSource, RateLimiter

Key = tuple[str, int]


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """How files are read: `keep_cache` leaves the read pages in the page cache."""

    keep_cache: bool = False
    limiter: RateLimiter | None = None

    def open(self, path: Path) -> ByteSource:
        """A source over a local file. Raises OSError."""
        from rmqtool.storage import source

        return source.open_source(path, keep_cache=self.keep_cache, limiter=self.limiter)


@dataclass(frozen=True, slots=True)
class Operand:
    """A store, the start (-1 without files) and end of its log, and the offsets of its queues.

    `tail.end` is the end of the last whole record: later bytes are not part of the log, as for a starting
    broker. `unreadable` lists what could not be read so far: (path, reason). `dispatched` is the physical
    offset that a running broker had dispatched before its queues were read, else -1.
    """

    store: Store
    live: bool
    spans: dict[Key, Span]
    start: int
    tail: Tail
    unreadable: tuple[tuple[str, str], ...]
    dispatched: int

    @property
    def end(self) -> int:
        """The physical offset where the log ends."""
        return self.tail.end

    @property
    def units_end(self) -> int:
        """The physical offset after the newest record that a unit names; -1 without units.

        If it is past `end`, the log has lost what follows: `append` refuses, and `recover` cuts the queues.
        """
        return max((start + size for start, size in _places(self.spans)), default=-1)

    def name(self, path: Path) -> str:
        """`path` as rows show it."""
        return self.store.layout.relative(path)

    def row(self) -> dict[str, Any]:
        """The side as JSON; offsets and sizes in bytes."""
        layout = self.store.layout
        return {
            "path": where(self.store),
            "kind": layout.kind,
            **(self.store.written_by.row() if layout.kind == "store" else NOT_WRITTEN_BY),
            "live": self.live,
            "abort": layout.abort is not None,
            "repair_unfinished": layout.guard is not None,
            "sizes": sizes_of(layout),
            "commit_log": {
                "files": len(layout.commit_log),
                "file_size": layout.commit_log_file_size,
                "min_offset": self.start,
                "end_offset": self.end,
                "last_store_timestamp_ms": self.tail.last.store_timestamp if self.tail.last else None,
            }
            if layout.commit_log
            else None,
            "queues": len(self.spans),
            "units_end_offset": self.units_end if self.spans else None,
        }


def look_at(store: Store) -> Operand:
    """The side as it is now.

    Raises:
        UsageError: a tiered copy or compacted logs: their physical offsets are not those of any other log.
    """
    live, layout = store.live, store.layout
    if layout.queue_logs is not None:
        raise UsageError(
            f"diff does not read {layout.queue_logs.name}", path=layout.queue_logs.folder,
            hint="`rmqtool copy` makes a store of it",
        )  # fmt: skip
    reasons = {layout.relative(path): reason for path, reason in layout.unreadable}
    # A running broker dispatches in the order of the log: all records before this offset have units.
    dispatched = store.dispatched_end() if live else -1
    spans: dict[Key, Span] = {}
    for key, queue in store.queues.items():
        try:
            if live:
                queue.refresh()  # units before `dispatched` may be in a file that is newer than the list
            spans[key] = queue.span(store.commit_log.min_offset, store.profile)
        except UnreadableError as error:
            if not (live and error.is_gone):
                reasons.setdefault(layout.relative(path_of(error)), error.message)
    start = _start_now(store) if live else store.commit_log.min_offset
    tail = store.commit_log.tail(_places(spans))
    return Operand(store, live, spans, start, tail, tuple(reasons.items()), dispatched)


def _places(spans: dict[Key, Span]) -> Iterator[tuple[int, int]]:
    """(physical offset, size) of the record that the newest unit of each queue names."""
    units = (span.last for span in spans.values() if span.last is not None)
    return ((unit.physical_offset, unit.size) for unit in units if not unit.is_pre_blank)


def check_places(one: Operand, other: Operand) -> None:
    """Check that equal messages lie at equal places: in a DLedger log a header precedes each.

    Raises:
        UsageError: both have a file for the same offsets, and one of these files is that of a DLedger log.
    """
    for side, others in ((one, other.store.layout), (other, one.store.layout)):
        entries = [file for file in side.store.layout.commit_log if file.entry_header]
        records = [file for file in others.commit_log if not file.entry_header]
        if not (entries and records):
            continue
        if entries[0].file_from_offset < records[-1].end and records[0].file_from_offset < entries[-1].end:
            raise UsageError(
                "only one of the stores has its log in DLedger, where equal messages lie at other offsets",
                path=Path(where(side.store)),
                hint="`rmqtool copy` of both makes stores without DLedger: compare these",
            )


def _start_now(store: Store) -> int:
    """The present start of the log: a running broker deletes its oldest files, then those of queues."""
    files = store.layout.commit_log
    there = (file.file_from_offset for file in files if file.path.exists())
    return next(there, store.commit_log.min_offset)


def where(store: Store) -> str:
    """The path of the store as far as the layout knows it: the root, a folder or a single file."""
    layout = store.layout
    if layout.root is not None:
        return str(layout.root)
    paths = [file.path for file in layout.commit_log]
    paths += (file.path for queue in layout.unit_queues for file in queue.files)
    paths += (file.path for file in layout.index_files)
    return str(paths[0] if len(paths) == 1 else paths[0].parent) if paths else ""
