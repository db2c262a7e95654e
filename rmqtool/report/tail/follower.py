"""Messages of many queues in the order of the log, as they come.

Dispatch writes units in the order of the log, so a unit that is seen shows that all earlier ones
are there. Each round reads every queue, and once more what came meanwhile: up to the newest unit of
the first pass nothing can be missing, and that part is given out, merged by physical offset.
Brokers that build their queues concurrently keep the order of each queue only.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import field
from heapq import merge
from typing import Any, NamedTuple

from rmqtool.errors import UnreadableError
from rmqtool.findings import Report
from rmqtool.formats import properties
from rmqtool.formats.consume_queue import PRE_BLANK
from rmqtool.lazy_dataclass import dataclass
from rmqtool.log.events import StoredMessage
from rmqtool.problems import finding
from rmqtool.report.tail.log_reader import LogReader, RecordRef
from rmqtool.report.tail.queue_tail import DeliveredUnit, PendingUnit, QueueTail
from rmqtool.report.tail.subscription import Subscription
from rmqtool.storage.open_files import OpenFiles

WAIT_MIN_S, WAIT_MAX_S = 0.005, 0.2  # between rounds: doubled while nothing comes
WAIT_BULK_S = 0.05  # after a round in bulk that has reached the end: so that the next one is one too
REFRESH_S = 0.5  # how often folders are listed again and open files closed
PATIENCE_S = 2.0  # how long the record of a unit may be missing before the unit is passed over
_BUFFERED_UNITS = 1 << 17  # of all queues together
_BUFFERED_UNITS_BEFORE_BULK = 1 << 9
_BUFFERED_UNITS_AMID_BULK = 1 << 7  # around what is not plain
_BUSY_UNITS = 256  # of a round: the next one may be one in bulk
_BLOCK = 512  # records read at a time


@dataclass
class Events:
    """The callbacks of a follower for events other than messages; each may be None.

    `report` is called for damage, `note` with texts about queues that were cut, expired or new.
    """

    report: Report | None = None
    note: Callable[[str], None] | None = None


class BulkRound(NamedTuple):
    """The result of one round in bulk: the count of units, and the selected messages as record batches."""

    units: int
    rows: list[Any]


@dataclass
class Follower:
    """Follows queues; see `messages`.

    Attributes:
        tails: the queues.
        log: the records.
        open_files: through which both read.
        wanted: which messages.
        since: messages stored before this time, ms since 1970, are left out.
        events: receives what happens.
        refresh: called now and then; gives queues that are new.
        wait: how it pauses, s.
        patience_s: how long the newest unit of a queue may be without its record.
        removed: units that were passed over, for their records had been deleted.
        bulk: reads a round of many units, if it can; see `tail.bulk`.
    """

    tails: list[QueueTail]
    log: LogReader
    open_files: OpenFiles
    wanted: Subscription = field(default_factory=Subscription)
    since: int | None = None
    events: Events = field(default_factory=Events)
    refresh: Callable[[], Sequence[QueueTail]] | None = None
    wait: Callable[[float], None] = time.sleep
    patience_s: float = PATIENCE_S
    removed: int = 0
    bulk: Callable[[], BulkRound | None] | None = None
    _units: int = 0
    _has_bulk: bool = False
    _stopped: set[int] = field(default_factory=set)
    _refreshed: float = field(default_factory=time.monotonic)

    def messages(self, *, follow: bool) -> Iterator[StoredMessage | None]:
        """The messages, in the order of the log; None where it will wait for more.

        Without `follow` it ends where nothing more is there. With it the caller ends it.
        """
        for item in self.items(follow=follow):
            if item is None or isinstance(item, StoredMessage):
                yield item

    def items(self, *, follow: bool) -> Iterator[StoredMessage | BulkRound | None]:
        """As `messages`, but a backlog comes in the rounds of `bulk`, where that is set."""
        try:
            yield from self._items(follow=follow)
        finally:
            self.open_files.close()

    def _items(self, *, follow: bool) -> Iterator[StoredMessage | BulkRound | None]:
        pause = WAIT_MIN_S
        is_busy = False
        while True:
            many = self.bulk() if self.bulk is not None and is_busy else None
            if many is not None:
                self._has_bulk = True
                if many.rows:
                    yield many
                came, is_busy, pause = True, True, WAIT_BULK_S
                behind = many.units >= _BUSY_UNITS
            else:
                self._units = 0
                yield from self._round()
                came = self._units > 0
                behind = any(tail.is_full for tail in self.tails)
                is_busy = behind or self._units >= _BUSY_UNITS
                pause = WAIT_MIN_S if came else min(2 * pause, WAIT_MAX_S)
            if not follow and not behind and not came and self._is_done():
                self._report_unserved()
                return
            if behind:
                continue
            if follow:
                yield None
                self.wait(pause)
                self._look_around()
            elif not came:
                self.wait(WAIT_MIN_S)  # a record that has not come yet

    def _is_done(self) -> bool:
        late = [tail.late_since for tail in self.tails if tail.late_since is not None]
        if late and time.monotonic() - max(late) < self.patience_s:
            return False
        return not any(tail.buffer for tail in self.tails)

    def _report_unserved(self) -> None:
        """Queues that end before where they did when they were opened: an empty unit stands in between."""
        for tail in self.tails:
            if tail.is_held_up:
                name = f"consumequeue/{tail.topic}/{tail.queue_id}"
                self._report("CQ08", name, queue_offset=tail.number)

    # one round

    def _round(self) -> Iterator[StoredMessage]:
        self._stopped.clear()
        units = _BUFFERED_UNITS
        if self.bulk is not None:
            units = _BUFFERED_UNITS_AMID_BULK if self._has_bulk else _BUFFERED_UNITS_BEFORE_BULK
        limit = max(units // max(len(self.tails), 1), 16)
        for tail in self.tails:
            if not tail.buffer:
                self._fill(tail, limit)
        waiting = [tail for tail in self.tails if tail.buffer]
        if not waiting:
            return
        bound = max(self._furthest(tail) for tail in waiting)
        for tail in self.tails:
            if not tail.is_full:
                self._fill(tail, limit)
        full = [self._furthest(tail) for tail in self.tails if tail.is_full and tail.buffer]
        yield from self._up_to(min([bound, *full]))

    def _fill(self, tail: QueueTail, limit: int) -> None:
        try:
            tail.fill(limit)
        except UnreadableError as error:
            self._report("CQ15", str(error.path), reason=error.message)
        if tail.is_suspect:
            self._look_at(tail, was_cut=False)

    @staticmethod
    def _furthest(tail: QueueTail) -> int:
        return max(found.place.physical_offset for found in tail.buffer)

    def _up_to(self, bound: int) -> Iterator[StoredMessage]:
        """Merge the buffered records up to a physical offset; each queue up to its first unit beyond."""
        rows = [self._ready(tail, bound) for tail in self.tails if tail.buffer]
        block: list[tuple[QueueTail, PendingUnit]] = []
        for _, tail, found in merge(*rows, key=lambda row: row[0]):
            block.append((tail, found))
            if len(block) == _BLOCK:
                yield from self._records(block)
                block = []
        yield from self._records(block)

    @staticmethod
    def _ready(tail: QueueTail, bound: int) -> list[tuple[int, QueueTail, PendingUnit]]:
        rows = []
        for found in tail.buffer:
            if found.place.physical_offset > bound:
                break
            rows.append((found.place.physical_offset, tail, found))
        return rows

    def _records(self, block: Sequence[tuple[QueueTail, PendingUnit]]) -> Iterator[StoredMessage]:
        """The wanted messages of these units; the units are taken from their queues."""
        looked = [self._is_looked_at(tail, found) for tail, found in block]
        places = [found.place for (_, found), wanted in zip(block, looked, strict=True) if wanted]
        records = self.log.read(places)
        for (tail, found), wanted in zip(block, looked, strict=True):
            record = next(records) if wanted else None
            if id(tail) in self._stopped:
                continue  # its order would be lost: read again in the next round
            if wanted and (record is None or not _belongs(record, tail, found)):
                if self._is_late(tail, found, record):
                    self._stopped.add(id(tail))
                    tail.forget()
                    continue
                record = None
            self._units += 1
            tail.take(0 if record is None else _mark(record))
            if record is not None and self._is_wanted(record):
                yield record

    def _is_looked_at(self, tail: QueueTail, found: PendingUnit) -> bool:
        """Whether the record is read: of the newest unit always, for its tags may not be written yet."""
        if found.place == (PRE_BLANK.physical_offset, PRE_BLANK.size):
            return False
        return found.is_newest or self.wanted.may_match(tail.topic, found.tags_code)

    def _is_wanted(self, record: StoredMessage) -> bool:
        if self.since is not None and record.message.store_timestamp < self.since:
            return False
        if not self.wanted.looks_inside:
            return True
        return self.wanted.accepts(record.message)

    def _is_late(self, tail: QueueTail, found: PendingUnit, record: StoredMessage | None) -> bool:
        """Whether a unit's record may still come; otherwise it is counted as removed or reported."""
        if record is None and found.place.physical_offset >= self.log.min_offset:
            self.log.refresh_soon()
        if found.place.physical_offset < self.log.min_offset:
            self.removed += 1
            return False
        now = time.monotonic()
        if tail.late_since is None:
            tail.late_since = now
        # Only what was written just now can be on its way.
        if found.is_newest and now - tail.late_since < self.patience_s:
            return True
        file = self.log.cut_file_of(found.place)
        failure = None if file is None else self.open_files.failures.get(file.path)
        if record is None and file is not None and failure is not None:
            self._report("CL12", self.log.layout.relative(file.path), found.place, reason=failure.reason)
            return False
        name = f"consumequeue/{tail.topic}/{tail.queue_id}"
        code = "CQ14" if record is None else "CQ05"
        self._report(code, name, found.place, queue_offset=found.queue_offset)
        return False

    def _report(self, code: str, path: str, place: RecordRef | None = None, **detail: object) -> None:
        if self.events.report is not None:
            offset, size = (None, None) if place is None else place
            self.events.report(finding(code, path, offset, size, **detail))

    def _note(self, text: str) -> None:
        if self.events.note is not None:
            self.events.note(text)

    # between rounds

    def _look_around(self) -> None:
        """Now and then: new files and queues, files that are gone, queues that were cut."""
        now = time.monotonic()
        if now - self._refreshed < REFRESH_S:
            return
        self._refreshed = now
        self.open_files.close()  # a file may have been deleted and made again
        self.log.refresh()
        was_cut = self._log_was_cut()
        for tail in self.tails:
            self._look_at(tail, was_cut=was_cut)
        if self.refresh is not None:
            self.tails += self.refresh()

    def _look_at(self, tail: QueueTail, *, was_cut: bool) -> None:
        skipped = tail.skipped
        cut = tail.look_again()
        if cut is not None or was_cut:
            # Other records may lie at the places of those that were read.
            further = tail.go_back(self._is_still_there)
            cut = further if cut is None else cut._replace(number=further.number)
        if cut is not None and cut.number < cut.stop:
            self._note(
                f"{tail.topic}/{tail.queue_id} was truncated below this reader's position: it continues at"
                f" {cut.number}, {cut.stop - cut.number} before where it was"
            )
        if tail.skipped > skipped:
            self._note(f"{tail.topic}/{tail.queue_id}: {tail.skipped - skipped} units expired unread")

    def _log_was_cut(self) -> bool:
        """Whether the record that was read last, by its place in the log, is another one now."""
        last = max(
            (tail.last for tail in self.tails if tail.last is not None and tail.last.mark),
            key=lambda unit: unit.place.physical_offset, default=None,
        )  # fmt: skip
        return last is not None and not self._is_still_there(last)

    def _is_still_there(self, unit: DeliveredUnit) -> bool:
        """Whether a record is the one that was read, or has expired since."""
        if unit.mark == 0 or unit.place.physical_offset < self.log.min_offset:
            return True
        record = next(self.log.read([unit.place]))
        return record is not None and _mark(record) == unit.mark


def mark_of(store_timestamp: int, born_timestamp: int, body_crc: int, queue_id: int) -> int:
    """A number that another record at the same place would hardly have; never 0."""
    return hash((store_timestamp, born_timestamp, body_crc, queue_id)) or 1


def _mark(record: StoredMessage) -> int:
    message = record.message
    return mark_of(message.store_timestamp, message.born_timestamp, message.body_crc, message.queue_id)


def _belongs(record: StoredMessage, tail: QueueTail, found: PendingUnit) -> bool:
    """Whether a record is the one that the unit stands for."""
    message = record.message
    if message.physical_offset != found.place.physical_offset:
        return False
    if properties.INNER_MULTI_DISPATCH.encode() in message.properties_bytes:
        return True  # a light queue's unit names a record of another topic
    return (message.topic, message.queue_id, message.queue_offset) == (
        tail.topic, tail.queue_id, found.queue_offset,
    )  # fmt: skip
