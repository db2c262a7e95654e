"""One walk over the commit log for the starts of several brokers: batches of records, and where they end.

The walk runs one batch ahead in a thread of its own (the kernels release the GIL), so that what is
made of a batch costs no time of its own where there are two cores.

Source: CommitLog#checkMessageAndReturnSize; spec 02 section 4.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import field
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from rmqtool.broker.rules import StartRules, StartSettings
from rmqtool.errors import UnreadableError
from rmqtool.formats import message as form
from rmqtool.lazy_dataclass import dataclass
from rmqtool.log.dispatch import BAD_DELAY, PROPERTY_CRC_PRESENT, Dispatch, dispatch_columns
from rmqtool.log.events import (
    BAD_NUMBER,
    BODY_CRC,
    OFFSET_MISMATCH,
    PROPERTY_CRC_BAD,
    Blank,
    CorruptRange,
    LogGap,
)
from rmqtool.log.frames import Frames, walk
from rmqtool.message.system_topics import SCHEDULE_TOPIC
from rmqtool.queue.light_queues import Named, named_units
from rmqtool.storage.layout import StoreFile
from rmqtool.storage.source import open_source

if TYPE_CHECKING:
    from rmqtool.log.scan_cache import ScanCache
    from rmqtool.storage.source import ByteSource

    Array = np.ndarray[Any, np.dtype[Any]]

T = TypeVar("T")
_WINDOW = 8 << 20
_SCHEDULE = SCHEDULE_TOPIC.encode()


@dataclass(frozen=True)
class Batch:
    """Records that follow each other in one file, shape (n,).

    `rows` are FRAME rows whose physical_offset is the stored one, as a broker takes it; `positions`
    where the records are. `foreign` says whether the two differ anywhere. `plain`: every record is
    of the first version, with the right CRC, and all its numbers can be parsed. `shared` is for whoever takes
    the batch several times. `light` are the units of light queues that the records name.
    """

    rows: Array
    positions: Array
    foreign: bool
    dispatch: Dispatch
    topics: list[bytes]
    plain: bool
    light: tuple[Named, ...] = ()
    shared: dict[Any, Any] = field(default_factory=dict)

    @property
    def end(self) -> int:
        """The physical offset after the last record."""
        return int(self.positions[-1]) + int(self.rows["size"][-1])


@dataclass(frozen=True, slots=True)
class Halt:
    """No record at physical offset `at`.

    `is_blank`: a blank is there, so a broker goes on in the next file. `end` is the physical offset
    after the last byte of the corrupt range that is not zero.
    """

    at: int
    is_blank: bool
    end: int


Event = Batch | Halt


def ahead(items: Iterator[T]) -> Iterator[T]:
    """The items, each made by a thread while the one before it is used."""
    with ThreadPoolExecutor(1, "rmqtool-predict") as pool:
        future = pool.submit(next, items, None)
        while (item := future.result()) is not None:
            future = pool.submit(next, items, None)
            yield item


def scan(
    files: Sequence[StoreFile],
    settings: StartSettings,
    *,
    sound: ScanCache | None = None,
    keep_cache: bool = False,
    progress: Callable[[int], None] | None = None,
) -> Iterator[tuple[int, Event]]:
    """(number of the file, event) for all files, in order; a file ends with a Halt.

    Records after a Halt are those that a resynchronising walk finds.

    Args:
        files: of the log.
        settings: whether CRCs are checked.
        sound: files that were walked already, by salvage.
        keep_cache: leave what was read in the page cache.
        progress: called with the bytes just walked.

    Raises:
        UnreadableError: a file cannot be opened or read.
    """
    for number, file in enumerate(files):
        found = sound.find(file.path, file.size) if sound is not None else None
        for event in _walked(file, settings, keep_cache) if found is None else _events(found.events(), file):
            yield number, event
        if progress is not None:
            progress(file.size)


def _walked(file: StoreFile, settings: StartSettings, keep_cache: bool) -> Iterator[Event]:
    source = _open(file, keep_cache)
    try:
        yield from file_events(source, file, crc=settings.checks_crc)
        if source.unreadable:
            raise UnreadableError(
                "cannot be read", path=file.path,
                physical_offset=file.file_from_offset + source.unreadable[0][0],
            )  # fmt: skip
    finally:
        source.close()


def _open(file: StoreFile, keep_cache: bool) -> ByteSource:
    try:
        return open_source(file.path, keep_cache=keep_cache)
    except OSError as error:
        raise UnreadableError(f"cannot read: {error.strerror}", path=file.path) from error


def file_events(
    source: ByteSource, file: StoreFile, *, crc: bool, start: int = 0, stop: int | None = None
) -> Iterator[Event]:
    """The events of one file from the position `start` on, up to `stop`."""
    walked = walk(
        source, file_from_offset=file.file_from_offset, start=start, stop=stop, crc=crc, window=_WINDOW
    )
    return _events(
        ((event, dispatch_columns(event)) if isinstance(event, Frames) else event for event in walked),
        file, start,
    )  # fmt: skip


def _events(
    walked: Iterable[tuple[Frames, Dispatch] | LogGap],
    file: StoreFile,
    start: int = 0,
) -> Iterator[Event]:
    """The events of a start out of those of a walk over one file, which began at the position `start`."""
    end: int | None = file.file_from_offset + start
    for event in walked:
        if isinstance(event, tuple):
            batch = _batch(*event)
            end = batch.end
            yield batch
        else:
            end, at = None, event.physical_offset
            written = event.nonzero_end if isinstance(event, CorruptRange) else at
            yield Halt(at, isinstance(event, Blank), written)
    if end is not None:
        yield Halt(end, False, end)


def _batch(frames: Frames, dispatch: Dispatch) -> Batch:
    rows = frames.rows
    positions = rows["physical_offset"]
    is_foreign = (rows["status"] & OFFSET_MISMATCH) != 0
    has_foreign = bool(is_foreign.any())
    if has_foreign:
        # the rows are shared with the walk only until the next event, and positions are still needed
        rows, positions = rows.copy(), positions.copy()
        starts = frames.starts()
        for row in np.flatnonzero(is_foreign).tolist():
            at = int(starts[row]) + form.PHYSICAL_OFFSET_OFFSET
            rows["physical_offset"][row] = int.from_bytes(frames.data[at : at + 8].tobytes(), signed=True)
    is_plain = not (rows["status"] | (rows["version"] - 1) | (dispatch.flags & BAD_NUMBER)).any()
    return Batch(rows, positions, has_foreign, dispatch, list(frames.topics), is_plain,
                 named_units(frames, dispatch))  # fmt: skip


def first_unsound(batch: Batch, rules: StartRules, settings: StartSettings, start: int = 0) -> int:
    """The first row, from `start` on, at which a broker's scan ends; the number of rows when it goes on.

    Its lengths add up; what a broker checks besides is the magic, a CRC, and numbers among the properties.
    """
    rows, flags = batch.rows, batch.dispatch.flags
    checks_property_crc = settings.checks_property_crc and rules.profile.has_inner_batch
    if batch.plain and not checks_property_crc:
        return len(rows)
    bad = np.zeros(len(rows), bool)
    if not rules.profile.writes_version_2:
        bad |= rows["version"] != 1
    if settings.checks_crc:
        if checks_property_crc:
            bad |= (flags & (PROPERTY_CRC_PRESENT | PROPERTY_CRC_BAD)) != PROPERTY_CRC_PRESENT
        else:
            bad |= (rows["status"] & BODY_CRC) != 0
    bad |= unparsed(batch, rules)
    bad[:start] = False
    return int(np.argmax(bad)) if bad.any() else len(rows)


def unparsed(batch: Batch, rules: StartRules) -> Array:
    """Which rows hold numbers, among the properties that a broker reads, that Java cannot parse."""
    wrong_number: Array = (batch.dispatch.flags & BAD_NUMBER) != 0
    if not wrong_number.any():
        return wrong_number
    bad_delay = batch.dispatch.delay_level == BAD_DELAY
    delayed = batch.topics.index(_SCHEDULE) if _SCHEDULE in batch.topics else -1
    inner = wrong_number & ~bad_delay if rules.profile.has_inner_batch else np.zeros(len(wrong_number), bool)
    return np.asarray((wrong_number & bad_delay & (batch.rows["topic_id"] == delayed)) | inner)
