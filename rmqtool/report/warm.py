"""Brings the newest part of a store into the page cache: what its first consumers will read.

A consumer reads units of its queue, then the records at their offsets; a query by key reads the index. After
a restart of the host none of it is in memory, and every pull waits for the device.

Source: DefaultMessageStore#getMessage; spec 02 section 8.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from rmqtool.errors import UnreadableError
from rmqtool.formats import index as index_format
from rmqtool.lazy_dataclass import dataclass
from rmqtool.read.store import Store
from rmqtool.storage.layout import StoreFile
from rmqtool.storage.open_files import data_ranges, read_head, reading
from rmqtool.storage.page_cache import resident_bytes
from rmqtool.storage.random_file import RandomFile
from rmqtool.storage.source import RateLimiter
from rmqtool.storage.storage import Place, path_at

_PIECE = 4 << 20  # bytes of one read


@dataclass(frozen=True, slots=True)
class Section:
    """The bytes [start, stop) of a file; `part` is `queues`, `log` or `index`."""

    part: str
    place: Place
    start: int
    stop: int


@dataclass(slots=True)
class Warmed:
    """One part afterwards, in bytes.

    Attributes:
        part: `queues`, `log` or `index`.
        files: how many files it has sections of.
        bytes: of these sections, holes not counted.
        resident_before_bytes: were in the page cache already; None if the system does not report it.
        resident_bytes: are now; None if the system does not report it.
        left_out_bytes: were not read, because the bound was reached.
    """

    part: str
    files: int = 0
    bytes: int = 0
    resident_before_bytes: int | None = 0
    resident_bytes: int | None = 0
    left_out_bytes: int = 0


def sections(store: Store, last: int, *, queues: bool, index: bool) -> Iterator[Section]:
    """The sections for the newest `last` bytes of the log, the most wanted first.

    With `queues` first the units of its messages, then the log from its end backwards, with `index` then the
    index files that hold its keys, the newest first. What cannot be read is left out and noted
    (`Store.failures`).

    Raises:
        UnsupportedStoreError: it is not known where the log is, or, with `queues`, the queues are in RocksDB.
    """
    store.layout.check_forms(log=True, queues=queues, files=True)
    log = store.commit_log
    if not log.files:
        return
    try:
        end = store.end_offset()  # by the queues: the log may be damaged before it
    except UnreadableError as error:
        store.note_failure(error)
        end = log.files[-1].end
    start = max(end - last, log.min_offset)
    if queues:
        yield from _of_queues(store, start)
    for file in reversed(log.files):
        yield from _of_file("log", file, start, end)
    if index:
        yield from _of_index(store, start)


def _of_file(part: str, file: StoreFile, start: int, end: int) -> Iterator[Section]:
    """The part of a file with the offsets [start, end) in its queue of files."""
    low, high = max(start, file.file_from_offset), min(end, file.end)
    if low < high:
        yield Section(part, file.place, low - file.file_from_offset, high - file.file_from_offset)


def _of_queues(store: Store, start: int) -> Iterator[Section]:
    for queue in store.queues.values():
        try:
            stop = queue.end()
            first = queue.first(lambda unit: unit.physical_offset >= start, stop)
        except UnreadableError as error:
            store.note_failure(error)
            continue
        size = queue.unit_size
        for file in reversed(queue.files):
            yield from _of_file("queues", file, first * size, stop * size)


def _of_index(store: Store, start: int) -> Iterator[Section]:
    for file in reversed(store.layout.index_files):
        try:
            head = read_head(file.path, index_format.HEADER_SIZE)
        except UnreadableError as error:
            store.note_failure(error)
            continue
        if head is None or len(head) < index_format.HEADER_SIZE:
            continue
        header = index_format.decode_header(head)
        if header.end_physical_offset < start:
            return
        yield Section("index", file.path, 0, file.size)


def warm(
    store: Store, chosen: Iterable[Section], bound: int, *, limiter: RateLimiter | None = None
) -> list[Warmed]:
    """Read the sections in their order, at most `bound` bytes in total; one Warmed for each part.

    Of the section that reaches the bound, the end is read: it is the newest. A file that cannot be read is
    noted (`Store.failures`).
    """
    found: dict[str, Warmed] = {}
    files: dict[str, set[Place]] = {}
    for section in chosen:
        part = found.setdefault(section.part, Warmed(section.part))
        files.setdefault(section.part, set()).add(section.place)
        part.files = len(files[section.part])
        try:
            with reading(path_at(section.place)) as file:
                bound -= _warm(file, section, part, bound, limiter)
                if file.size < section.stop:
                    store.note_unread(path_at(section.place), "the file has become shorter")
        except OSError as error:
            reason = f"cannot read: {error.strerror or error}"
            failure = UnreadableError(reason, path=path_at(section.place))
            failure.__cause__ = error
            if not failure.is_gone:  # a running broker deletes files
                store.note_failure(failure)
    return list(found.values())


def _warm(file: RandomFile, section: Section, part: Warmed, bound: int, limiter: RateLimiter | None) -> int:
    """Read one section backwards, at most `bound` bytes; how many were read."""
    path, stop = path_at(section.place), min(section.stop, file.size)
    ranges = [
        (max(low, section.start), high) for low, high in data_ranges(file, stop) if high > section.start
    ]
    read = 0
    for low, high in reversed(ranges):
        part.bytes += high - low
        begin = max(low, high - (bound - read))
        part.left_out_bytes += begin - low
        part.resident_before_bytes = _sum(part.resident_before_bytes, resident_bytes(path, low, high))
        for at in reversed(range(begin, high, _PIECE)):
            length = min(_PIECE, high - at)
            if limiter is not None:
                limiter.take(length)
            file.read(at, length)
        read += high - begin
        part.resident_bytes = _sum(part.resident_bytes, resident_bytes(path, low, high))
    return read


def _sum(total: int | None, more: int | None) -> int | None:
    """None once the system has not reported a part."""
    return None if total is None or more is None else total + more
