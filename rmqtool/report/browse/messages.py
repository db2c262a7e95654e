"""The messages of one queue, page by page: units by their number, records by their physical offset.

What a unit leads to is shown in its row, sound or not:

    CQ08  the unit is empty, between others that are not
    CQ10  the file of the unit is missing, between others
    CQ15  the file of the queue cannot be read
    CQ14  the unit does not point to a record
    CQ05  the record that it points to belongs to another queue
    CL..  the record is damaged: what its bytes are

A unit whose record was deleted with the oldest files of the log is not damage: its row is `expired`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import NamedTuple

from rmqtool.errors import FormatError, InputError, UnreadableError
from rmqtool.formats import message, properties
from rmqtool.formats.batch import decode_items
from rmqtool.formats.body import compression_of
from rmqtool.formats.consume_queue import BatchUnit, Unit
from rmqtool.formats.properties import INNER_MULTI_DISPATCH
from rmqtool.log.damage import codes_of, corrupt_range
from rmqtool.log.events import Blank, Reason, StoredMessage
from rmqtool.message.rows import OK, RowFormat, message_row, unpacked
from rmqtool.queue.consume_queue import AnyQueue, BatchConsumeQueue
from rmqtool.read.by_time import first_stored
from rmqtool.read.store import Store
from rmqtool.storage.source import open_source

PREVIEW = 512
"""Characters of a body in a row."""
_UNPACKED_MAX = 256 << 10  # stored bytes of a body that is unpacked for a preview
_JUDGED_MAX = 64 << 10  # bytes that are looked at to say what lies where no record is


class MessageRow(NamedTuple):
    """One unit of a queue, and the record that it points to as far as it can be read.

    `number` is the unit's place in the queue. `note` says in words what the row is if it is not a message:
    `expired`, `filler`, or what is wrong. `problems` are codes.
    """

    number: int
    queue_offset: int | None
    physical_offset: int | None = None
    size: int | None = None
    store_ms: int | None = None
    tags: str | None = None
    keys: tuple[str, ...] = ()
    body: str = ""
    note: str = ""
    problems: tuple[str, ...] = ()
    topic: str = ""
    queue_id: int | None = None
    found_by: str = ""


class QueueMessages:
    """The units of one queue by number: [start, stop) are those that can be shown.

    Raises UnreadableError, also in `refresh` and `page`, if a file of the queue cannot be read.
    """

    def __init__(self, store: Store, queue: AnyQueue) -> None:
        self.store = store
        self.queue = queue
        self.start = self._first()
        self.stop = self._last()

    def _first(self) -> int:
        """The first unit whose record can still be there; all of them if none of it has expired."""
        queue, oldest = self.queue, self.store.commit_log.min_offset
        first = next((unit for _, unit in queue.numbered(queue.start, queue.start + 1)), None)
        if first is None or first.is_pre_blank or first.physical_offset >= oldest:
            return queue.start
        return queue.first(lambda unit: unit.physical_offset >= oldest)

    def _last(self) -> int:
        """The number after the last unit, also after one that a broker would not reach."""
        end = self.queue.end()
        beyond = self.queue.after_end()
        if beyond is None:
            return end
        stop = self.queue.numbers_of(self.queue.files[-1]).stop
        return next((number + 1 for number, _ in self.queue.numbered(beyond[1], stop, reverse=True)), end)

    def refresh(self) -> bool:
        """Look for units that were added since; returns whether there are some."""
        self.queue.refresh()
        before, self.stop = self.stop, max(self.stop, self.queue.end())
        return self.stop > before

    def page(self, start: int, stop: int) -> list[MessageRow]:
        """The rows of the units [start, stop), one each."""
        start, stop = max(start, self.start), min(stop, self.stop)
        return list(map(self._row, range(start, stop)))

    def number_at(self, time_ms: int) -> int:
        """The number of the first unit whose record was stored at a time or later; `stop` without one."""
        return max(first_stored(self.store, self.queue, time_ms, self.queue.end()), self.start)

    def number_of(self, queue_offset: int) -> int:
        """The number of the unit that holds a queue offset, else the nearest that there is."""
        number: int | None = queue_offset
        if isinstance(self.queue, BatchConsumeQueue):
            number = self.queue.number_of(queue_offset)
        return min(max(self.start if number is None else number, self.start), max(self.stop - 1, self.start))

    def _row(self, number: int) -> MessageRow:
        try:
            unit = self.queue.by_number(number)
        except UnreadableError as error:
            if error.is_gone:
                return MessageRow(number, None, note="the file of the queue was deleted")
            return MessageRow(number, None, note=error.message, problems=("CQ15",))
        offset = None if isinstance(self.queue, BatchConsumeQueue) else number
        if unit is None and self.queue.file_of(number) is None:
            is_between = any(number < self.queue.numbers_of(file).start for file in self.queue.files)
            codes = ("CQ10",) if is_between and number >= self.queue.start else ()
            return MessageRow(number, offset, note="no file of the queue has this unit", problems=codes)
        if unit is None:
            return MessageRow(number, offset, note="empty unit", problems=("CQ08",))
        row = MessageRow(number, self.queue.queue_offset(number, unit), unit.physical_offset, unit.size)
        if unit.is_pre_blank:
            return row._replace(physical_offset=None, size=None, note="filler: no message")
        return self._of_unit(row, unit)

    def _of_unit(self, row: MessageRow, unit: Unit | BatchUnit) -> MessageRow:
        store = self.store
        if unit.physical_offset < store.commit_log.min_offset:
            return row._replace(note="expired: its file was deleted")
        found = read_record(store, unit.physical_offset, unit.size)
        if isinstance(found, Wrong):
            return row._replace(note=found.text, problems=found.codes)
        row = record_row(found, row)
        if not self._belongs(found):
            where = f"{found.message.topic} queue {found.message.queue_id}"
            return row._replace(note=f"a record of {where}", problems=(*row.problems, "CQ05"))
        return row

    def _belongs(self, found: StoredMessage) -> bool:
        """Whether a record belongs to this queue: by its topic and queue, or as one of a light queue."""
        record = found.message
        if (record.topic, record.queue_id) == (self.queue.topic, self.queue.queue_id):
            return True
        return INNER_MULTI_DISPATCH in properties.decode(record.properties_bytes)


class Wrong(NamedTuple):
    """Why there is no record at a place, in words and as codes (none if it is not damage)."""

    text: str
    codes: tuple[str, ...]


def read_record(store: Store, physical_offset: int, size: int) -> StoredMessage | Wrong:
    """The record at an offset, or what is there; `size` is what the unit says of it."""
    try:
        found = store.commit_log.read(physical_offset)
    except UnreadableError as error:
        if error.is_gone:
            return Wrong("the file of the log was deleted", ())
        return Wrong(error.message, ("CL12",))
    except FormatError as error:
        return Wrong(error.message, (_code_of(store, physical_offset, size),))
    if isinstance(found, Blank):
        return Wrong("no record here: the end mark of a file", ("CQ14",))
    return found


def _code_of(store: Store, physical_offset: int, size: int) -> str:
    """The code of the bytes at an offset where no whole record is."""
    file = store.commit_log.file_of(physical_offset)
    if file is None:
        return "CQ14"
    start = physical_offset - file.file_from_offset
    try:
        with closing(open_source(file.path)) as source:
            head = source.read(start, min(message.BLANK_SIZE, source.size - start))
            declared, magic = (int.from_bytes(head[at : at + 4], signed=True) for at in (0, 4))
            is_known = magic in message.VERSION_BY_MAGIC
            stop = min(start + max(min(size, _JUDGED_MAX), 1), source.size)
            reason = Reason.LENGTHS if is_known else Reason.MAGIC
            code = corrupt_range(source, file.file_from_offset, start, stop, reason, to_end=False).code
    except OSError:
        return "CL12"
    # Bytes that are not a record's head: the unit may be wrong as well as the record.
    return "CQ14" if code == "CL05" and declared != size else code


def record_row(found: StoredMessage, row: MessageRow | None = None) -> MessageRow:
    """The row of a record; `row` has what its unit says."""
    record = found.message
    form = RowFormat(names=("tags", "keys", "status"), body="none")
    cells = message_row(record, found.physical_offset, found.file, form)
    base = MessageRow(record.queue_offset, record.queue_offset) if row is None else row
    text, codes = preview(found)
    return base._replace(
        physical_offset=found.physical_offset,
        size=record.total_size,
        store_ms=record.store_timestamp,
        tags=cells["tags"],
        keys=tuple(cells["keys"]),
        body=text,
        problems=tuple(dict.fromkeys((*(code for code in cells["status"] if code != OK), *codes))),
        topic=record.topic,
        queue_id=record.queue_id,
    )


def preview(found: StoredMessage) -> tuple[str, tuple[str, ...]]:
    r"""The start of a body as text, and codes of what is wrong with it; bytes that are not text as \xHH."""
    record = found.message
    try:
        kind = compression_of(record.sys_flag)
    except FormatError as error:
        return error.message, ("CL14",)
    if kind != "none" and len(record.body) > _UNPACKED_MAX:
        return f"{len(record.body)} bytes, compressed by {kind}", ()
    plain, status = unpacked(record.body, record.sys_flag)
    if plain is None:
        return f"{len(record.body)} bytes that cannot be decompressed ({kind})", tuple(codes_of(status))
    if record.sys_flag & message.INNER_BATCH:
        return " | ".join(_batch_texts(plain)), ()
    return as_text(plain[:PREVIEW]), ()


def _batch_texts(plain: bytes) -> Iterator[str]:
    try:
        for number, item in enumerate(decode_items(plain)):
            if number == 20:
                return
            yield as_text(item.body[:PREVIEW])
    except InputError as error:
        yield error.message


def as_text(data: bytes) -> str:
    r"""Bytes as text: UTF-8, and \xHH for bytes that are none."""
    return data.decode("utf-8", "backslashreplace")
