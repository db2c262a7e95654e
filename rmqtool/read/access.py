"""How the records of a selection are reached: through the log, the consume queues or the index.

Whatever the path, the same records come out: what a queue or the index cannot be trusted with is read
from the log, and every record that is read is tested against the whole selection.

An `Access` is small and can be pickled: a worker that opened the same store can read it, or one of the
pieces that `split` makes of it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from rmqtool.errors import UsageError
from rmqtool.read.boundaries import is_before, is_behind, time_bounds
from rmqtool.read.log_items import end_of_selection
from rmqtool.read.selection import Selection
from rmqtool.read.store import Store
from rmqtool.storage.layout import StoreFile

LONG_MAX = (1 << 63) - 1
"""The largest Java long and the largest i8 of a column: bytes past it are never a record."""

Kind = Literal["log", "queue", "index"]
Via = Literal["auto", "log", "queue", "index"]


@dataclass(frozen=True, slots=True)
class LogRange:
    """The records of one file that start in [start, stop), physical offsets.

    A record, or nothing that is known, starts at `start`. `path` is the file as rows name it. By way of
    `queue` only the records that units of `Access.queues` name are read, by way of `index` only those
    at `Access.offsets`. `bytes_read` is what is read of it, about.
    """

    path: str
    file_from_offset: int
    start: int
    stop: int
    bytes_read: int
    via: Kind = "log"

    @property
    def size(self) -> int:
        """Bytes of log that it spans."""
        return self.stop - self.start


@dataclass(frozen=True, slots=True)
class Access:
    """What to read for a selection.

    Attributes:
        kind: the way that most of it goes.
        ranges: by rising offset; they do not overlap.
        queues: (topic, queue id) whose units name the records of the ranges of kind `queue`.
        offsets: physical offsets, rising, of the records of the ranges of kind `index`.
        sizes: their sizes, bytes.
        start: the first physical offset that this access stands for; None: the log's start.
        stop: the offset after the last one; None: the log's end.
        end: where the log ends for this reading, as a live store's end moves; None: at its files' end.
        is_first: whether it is a whole one or the first piece, which reports on the log as a whole.
        files_read: log files of which something is read.
        files_total: log files of the store.
        bytes_read: bytes of log that are read, at most.
        bytes_total: bytes of the log's files.
        reason: why this way, for a person.
    """

    kind: Kind
    ranges: tuple[LogRange, ...]
    queues: tuple[tuple[str, int], ...] = ()
    offsets: tuple[int, ...] = ()
    sizes: tuple[int, ...] = ()
    start: int | None = None
    stop: int | None = None
    end: int | None = None
    is_first: bool = True
    files_read: int = 0
    files_total: int = 0
    bytes_read: int = 0
    bytes_total: int = 0
    reason: str = ""

    def of_ranges(self, ranges: tuple[LogRange, ...]) -> Access:
        """The same with other ranges, counted again."""
        return replace(
            self,
            ranges=ranges,
            files_read=len({each.path for each in ranges}),
            bytes_read=sum(each.bytes_read for each in ranges),
        )


def plan_access(store: Store, selection: Selection = Selection(), *, via: Via = "auto") -> Access:  # noqa: B008 - frozen
    """The cheapest way to all records of a selection, as far as it can be trusted; else the log.

    Args:
        store: the store.
        selection: what is wanted; its limit is ignored.
        via: `log` asks for the log; `queue` and `index` for these as far as they can serve at all.

    What of the log lies outside of the offsets or times of the selection is left out, and not checked.
    Store times rise along a log, so the first records of a file and of the next bound them, and in a
    large file records that queues name; a clock that was set back by less than ten minutes does no harm.

    Raises:
        UsageError: an unknown `via`.
    """
    from rmqtool.read.index_access import index_access
    from rmqtool.read.queue_access import queue_access

    if via not in ("auto", "log", "queue", "index"):
        raise UsageError(f"via {via!r} is none of auto, log, queue, index")
    access = _log_access(store, selection)
    found = None
    if via in ("auto", "index"):
        found = index_access(store, selection, access, always=via == "index")
    if found is None and via in ("auto", "queue"):
        found = queue_access(store, selection, access, always=via == "queue")
    return access if found is None else found


def _log_access(store: Store, selection: Selection) -> Access:
    end = end_of_selection(store, selection)
    layout = store.layout
    files = [file for file in layout.commit_log if file.size]
    first = _first_file(store, selection, files)
    last = _behind_last_file(store, selection, files)
    ranges, left_out = [], 0
    for file in files[first:last]:
        start, stop = file.file_from_offset, file.end
        if end is not None:
            stop = min(stop, end)
        if selection.from_offset is not None and selection.from_offset > start:
            inside = selection.from_offset < stop
            start = store.record_before(file, selection.from_offset) if inside else stop
        if file in (files[first], files[last - 1]):
            size = stop - start
            start, stop = time_bounds(store, start, stop, selection)
            left_out += size - (stop - start)
        if start < stop:
            name = layout.relative(file.path)
            ranges.append(LogRange(name, file.file_from_offset, start, stop, stop - start))
    by_time = len(files) - max(last - first, 0)
    parts = [f"{by_time} of {len(files)} files"] * bool(by_time) + ["parts of files"] * bool(left_out)
    reason = f"{' and '.join(parts)} are outside the time range" if parts else "the log is read"
    bounds = (
        files[first].file_from_offset if first else None,
        files[last].file_from_offset if last < len(files) else None,
    )
    access = Access(
        "log", (), start=bounds[0], stop=bounds[1], end=end, files_total=len(files),
        bytes_total=sum(file.size for file in files), reason=reason,
    )  # fmt: skip
    return access.of_ranges(tuple(ranges))


def _first_file(store: Store, selection: Selection, files: list[StoreFile]) -> int:
    """The number of the first file that may hold a record of the time range."""
    number = 0
    if selection.since is None or selection.time_field != "store":
        return number
    while number + 1 < len(files):
        if not is_before(store, files[number + 1].file_from_offset, selection.since):
            break
        number += 1
    return number


def _behind_last_file(store: Store, selection: Selection, files: list[StoreFile]) -> int:
    """One more than the number of the last file that may hold a record of the time range."""
    number = len(files)
    if selection.until is None or selection.time_field != "store":
        return number
    while number > 1:
        if not is_behind(store, files[number - 1].file_from_offset, selection.until):
            break
        number -= 1
    return number
