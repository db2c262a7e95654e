"""The record at an offset of a commit log, and the ones before and after it.

The scan starts at a sound record shortly before the offset. It need not start at the beginning of the file,
because a record contains its own offset.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass, fields
from typing import Any

from rmqtool.check.diff.operands import Operand, ReadOptions
from rmqtool.formats.message import Message
from rmqtool.formats.properties import decode
from rmqtool.log.events import BODY_CRC, OFFSET_MISMATCH, Blank, LogEvent, StoredMessage, TrailingZeros
from rmqtool.log.python_scan import walk_reference
from rmqtool.storage.layout import StoreFile
from rmqtool.storage.source import ByteSource

_STEPS = (64 << 10, 4 << 20, 64 << 20)  # how far before the offset to search for a sound record
_STATUS = ((BODY_CRC, "body_crc"), (OFFSET_MISMATCH, "foreign"))


@dataclass(frozen=True, slots=True)
class Found:
    """One item of the log, [physical_offset, end); `message` is set if it is a record.

    `kind` is record, blank, unused (bytes after a blank, which no broker reads), zeros or damage.
    """

    kind: str
    physical_offset: int
    end: int
    status: str = "ok"
    message: Message | None = None

    def row(self) -> dict[str, Any]:
        """As JSON; a record with the fields that identify it."""
        row: dict[str, Any] = {
            "kind": self.kind,
            "physical_offset": self.physical_offset,
            "size": self.end - self.physical_offset,
            "status": self.status,
        }
        if self.message is not None:
            found = decode(self.message.properties_bytes)
            row |= {
                "topic": self.message.topic,
                "queue_id": self.message.queue_id,
                "queue_offset": self.message.queue_offset,
                "store_timestamp_ms": self.message.store_timestamp,
                "tags": found.get("TAGS"),
                "uniq_key": found.get("UNIQ_KEY"),
            }
        return row


@dataclass(frozen=True, slots=True)
class Neighbours:
    """The items before an offset, at it and after it; None if the file has none there."""

    before: Found | None
    at: Found | None
    after: Found | None

    def row(self) -> dict[str, Any]:
        """As JSON."""
        parts = (("before", self.before), ("at", self.at), ("after", self.after))
        return {name: None if part is None else part.row() for name, part in parts}


def around(side: Operand, offset: int, reading: ReadOptions) -> Neighbours:
    """The items of `side` around a physical offset, as far as they can be read."""
    file = side.store.commit_log.file_of(offset)
    if file is None:
        return Neighbours(None, None, None)
    try:
        source = reading.open(file.path)
    except OSError:
        return Neighbours(None, None, None)
    with closing(source):
        position = offset - file.file_from_offset
        for step in _STEPS:
            start = max(position - step, 0)
            found = _around(source, file, start, position, sure=start == 0)
            if found is not None:
                return found
        return _around(source, file, 0, position, sure=True) or Neighbours(None, None, None)


def _around(
    source: ByteSource, file: StoreFile, start: int, position: int, *, sure: bool
) -> Neighbours | None:
    """See `around`; None if no sound record before `position` shows that the scan is aligned with records.

    `sure` is whether the scan begins at the start of a record.
    """
    before = at = None
    for event in walk_reference(source, file_from_offset=file.file_from_offset, start=start):
        for found in _found(event):
            low = found.physical_offset - file.file_from_offset
            if low > position:
                return Neighbours(before, at, found) if sure else None
            if found.end - file.file_from_offset > position:
                at = found
            else:
                before = found
                sure = sure or (found.kind == "record" and found.status == "ok")
        if at is not None and not sure:
            return None
    return Neighbours(before, at, None) if sure else None


def _found(event: LogEvent) -> list[Found]:
    start, end = event.physical_offset, event.end
    if isinstance(event, StoredMessage):
        words = [word for bit, word in _STATUS if event.status & bit]
        if event.message.ends_in_zeros:
            words.append("ends_in_zeros")
        return [Found("record", start, end, "+".join(words) or "ok", event.message)]
    if isinstance(event, Blank):
        blank = Found("blank", start, end, "ok" if event.ends_file else "wrong_size")
        unused = Found("unused", end, start + event.left)
        return [blank, unused] if event.ends_file and unused.end > end else [blank]
    if isinstance(event, TrailingZeros):
        return [Found("zeros", start, end)]
    return [Found("damage", start, end, event.reason.name.lower())]


def changed_fields(a: Found | None, b: Found | None) -> list[str]:
    """Names of the fields in which two records differ; none unless both are records."""
    if a is None or b is None or a.message is None or b.message is None:
        return []
    names = (each.name for each in fields(Message))
    return [name for name in names if getattr(a.message, name) != getattr(b.message, name)]
