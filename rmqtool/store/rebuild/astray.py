"""Records whose head names another queue than their own, for which no CRC vouches; and their own queue.

The CRC of the body covers neither topic nor queue id. (That of the properties, where it is written,
covers both: with it such a record is not sound.) A record has lost its queue when everything else tells
of one queue, and its own word alone of another:

    its own queue       has a unit at the record's queue offset that names it: place, size and tags code;
                        the queue's other records leave out this number, right where the record lies
    the queue it names  has no unit for it, and its other records do not leave the number to it, or has no
                        files at all

A queue without another record is never one's own: a folder that was renamed looks the same. The record's
topic and queue id are written as its unit's queue says. Without that the queue would keep a gap, and
while the log begins at 0 brokers pass over messages behind the filler of a gap (spec 03).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rmqtool.formats import message as form
from rmqtool.formats import properties
from rmqtool.formats.java import java_utf8_encode, tags_code
from rmqtool.scan.queues import UnitReader
from rmqtool.store.plan import Action
from rmqtool.store.system_topics import LIGHT_PREFIX, SCHEDULE_TOPIC
from rmqtool.store.verify.spans import Key, Span

if TYPE_CHECKING:
    import numpy as np

    from rmqtool.store.commit_log import StoredMessage
    from rmqtool.store.verify.context import Context
    from rmqtool.store.verify.queue_units import Units

ASTRAY = "a record of it names another queue than its own: mend that first (rmqtool recover)"
"""Why queues and index are left alone while the log has such records."""
_LOOKED_AT_MAX = 10_000
"""Units that are compared with the record that they name: more are no single damaged records."""


@dataclass(frozen=True, slots=True)
class Astray:
    """One such record: the queue that it says, its own, and where its topic and queue id stand."""

    path: Path
    physical_offset: int
    queue_offset: int
    said: Key
    key: Key
    fields: tuple[tuple[int, bytes], ...]
    """(position in the file, the right bytes) of what is wrong in it."""

    def row(self) -> dict[str, Any]:
        """The record as JSON."""
        return {
            "physical_offset": self.physical_offset,
            "topic": self.key[0],
            "queue_id": self.key[1],
            "queue_offset": self.queue_offset,
            "said_topic": self.said[0],
            "said_queue_id": self.said[1],
        }


def astray_records(
    context: Context, spans: dict[Key, Span], units: dict[Key, Units], reader: UnitReader
) -> Iterator[Astray]:
    """The records that name another queue than their own, queue by queue; files are read, not changed."""
    left = _LOOKED_AT_MAX
    for key, queue in context.layout.consume_queues.items():
        if key[0] == SCHEDULE_TOPIC or key[0].startswith(LIGHT_PREFIX) or key not in units:
            continue  # their units have other tags codes, or name records of other topics
        for run in units[key].unclaimed:
            for slot in range(run.first, min(run.last + 1, run.first + left)):
                left -= 1
                unit = reader.read(queue.files, slot, 1)[0]
                found = _of_unit(context, spans, key, slot, unit)
                if found is not None and not _has_unit(context, found, reader):
                    yield found


def _of_unit(context: Context, spans: dict[Key, Span], key: Key, slot: int, unit: np.void) -> Astray | None:
    """The record that a unit without one names, where all but its own word says that it is this queue's."""
    stored = context.store.find(int(unit["physical_offset"]))
    if stored is None or stored.status:
        return None
    message = stored.message
    said = (message.topic, message.queue_id)
    topic = java_utf8_encode(key[0])
    found = properties.decode(message.properties_bytes)
    same = (message.total_size, message.queue_offset, tags_code(found.get(properties.TAGS)))
    if (
        said == key
        or same != (int(unit["size"]), slot, int(unit["tags_code"]))
        or len(topic) != len(message.topic_bytes)
        or message.transaction_type not in (0, form.TRANSACTION_COMMIT)
        or message.sys_flag & form.INNER_BATCH
        or properties.INNER_MULTI_DISPATCH in found
    ):
        return None
    wants, has = spans.get(key), spans.get(said)
    if wants is None or has is None or wants.is_batch or has.is_batch:
        return None
    is_between = _is_between(wants, stored) and said not in context.layout.consume_queues
    if not is_between and not (_leaves_out(wants, stored) and _is_misfit(has, stored)):
        return None
    return Astray(
        stored.path, stored.physical_offset, slot, said, key, tuple(_fields(context, stored, topic, key[1]))
    )


def _is_between(span: Span, stored: StoredMessage) -> bool:
    """Whether the record's number is left out between two records of a queue, and it lies between them."""
    number, start = stored.message.queue_offset, stored.physical_offset
    return any(
        item.after <= start < item.physical_offset and item.expected <= number < item.queue_offset
        for item in span.breaks
    )


def _leaves_out(span: Span, stored: StoredMessage) -> bool:
    """The same, or it comes before all of the queue's records or behind them."""
    number, start = stored.message.queue_offset, stored.physical_offset
    if start >= span.end:
        return number >= span.next
    if start < span.first_physical:
        return number < span.first
    return _is_between(span, stored)


def _is_misfit(span: Span, stored: StoredMessage) -> bool:
    """Whether the numbers of the queue's records break off at this one, or it is the only one."""
    return span.count == 1 or any(
        stored.physical_offset == item.physical_offset or stored.end == item.after for item in span.breaks
    )


def _has_unit(context: Context, found: Astray, reader: UnitReader) -> bool:
    """Whether the queue that the record says has a unit for it."""
    queue = context.layout.consume_queues.get(found.said)
    if queue is None:
        return False
    unit = reader.read(queue.files, found.queue_offset, 1)[0]
    return int(unit["physical_offset"]) == found.physical_offset and int(unit["size"]) > 0


def _fields(
    context: Context, stored: StoredMessage, topic: bytes, queue_id: int
) -> Iterator[tuple[int, bytes]]:
    file = context.store.commit_log.file_of(stored.physical_offset)
    assert file is not None
    start, message = stored.physical_offset - file.file_from_offset, stored.message
    if message.queue_id != queue_id:
        yield start + form.QUEUE_ID_OFFSET, queue_id.to_bytes(4, signed=True)
    if message.topic_bytes != topic:
        behind = message.total_size - 2 - len(message.properties_bytes) - len(topic)
        yield start + behind, topic


def corrections(records: Iterable[Astray], names: dict[Path, str]) -> Iterator[Action]:
    """The changes of the log that give each record its topic and queue id back.

    Args:
        records: the records.
        names: the log files' names for actions.
    """
    for found in records:
        said, own = (f"queue {queue_id} of {topic}" for topic, queue_id in (found.said, found.key))
        for position, content in found.fields:
            yield Action(
                "write", names[found.path], position, len(content),
                f"the record at {found.physical_offset} says {said}; its unit, its place and its queue offset"
                f" say {own}",
                "CL15",
                {"topic": found.key[0], "queue_id": found.key[1], "queue_offset": found.queue_offset},
                content,
            )  # fmt: skip
