"""The lost records of a plan as JSON: what is known of each, and what can still be read in its place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

from rmqtool.errors import InputError
from rmqtool.formats import properties
from rmqtool.log.commit_log import REMAINS_MAX
from rmqtool.log.events import StoredMessage
from rmqtool.message.rows import RowFormat, message_row
from rmqtool.message.system_topics import SCHEDULE_TOPIC
from rmqtool.read.delay_loss import MESSAGES_MAX
from rmqtool.read.delivered import delayed_messages, delivered
from rmqtool.storage.config_files import delay_offsets

if TYPE_CHECKING:
    from rmqtool.read.store import Store
    from rmqtool.repair.salvage import LostRecord

READ_MAX = 1000
"""So many lost records are read, the first of the log of which anything is there."""
_SEARCHED_MAX = 100_000  # lost records, of most of which nothing is there
_BYTES_MAX = 256 << 20  # of lost records that are read
_FORM = RowFormat(body="none", names=("status", "keys", "uniq_key"))


def lost_rows(store: Store, lost: Sequence[LostRecord]) -> list[dict[str, Any]]:
    """The lost records, with keys and unique key of the first `READ_MAX` of which anything is left.

    `status` has the codes of what is damaged, as in `dump`, or `ok` for a sound record that is given up. It
    is None if no record can be read there. Then `remains` says what is left of it, and keys and unique key
    are those of its end. `delivered` is how many delayed messages were delivered before they were lost.
    """
    next_offsets = _next_offsets(store)
    rows = [_row(record, next_offsets) for record in lost]
    left, places = _BYTES_MAX, READ_MAX
    for row, record in islice(zip(rows, lost, strict=True), _SEARCHED_MAX):
        size = min(record.size, REMAINS_MAX)
        left -= size
        if left < 0 or not places:
            break
        if not _is_there(store, record.physical_offset, size):
            continue
        places -= 1
        found = _read(store, record)
        if found is not None:
            row |= message_row(found.message, found.physical_offset, found.file, _FORM)
        elif record.count <= 1:
            row |= _remains(store, record)
    return rows


def delayed_originals(store: Store, lost: Sequence[LostRecord]) -> list[dict[str, Any]]:
    """The delayed messages that were delivered, but of which the log has no copy, where messages are lost.

    The record that waited is sound, so nothing of the message is lost but its place in its queue. A row has
    the real `topic` and `queue_id`, and of the record that waited `delay_level`, `delay_queue_offset`,
    `physical_offset` and `uniq_key`.

    Raises UnreadableError if the log cannot be read.
    """
    queues = {(record.topic, record.queue_id) for record in lost if record.topic != SCHEDULE_TOPIC}
    next_offsets = _next_offsets(store)
    if not queues or not next_offsets:
        return []
    stored = islice(delayed_messages(store), MESSAGES_MAX)
    waited = [
        each
        for each in stored
        if (each.topic, each.queue_id) in queues
        and each.uniq_key
        and each.queue_offset < next_offsets.get(each.level - 1, 0)
    ]
    found = delivered(store, waited)
    return [
        {
            "topic": each.topic,
            "queue_id": each.queue_id,
            "delay_level": each.level,
            "delay_queue_offset": each.queue_offset,
            "physical_offset": each.physical_offset,
            "uniq_key": each.uniq_key,
        }
        for each in waited
        if each.physical_offset not in found
    ]


def _is_there(store: Store, physical_offset: int, size: int) -> bool:
    """Whether anything of a record may be left."""
    try:
        return not store.commit_log.is_zero(physical_offset, size)
    except InputError:
        return False  # salvage has reported what is there


def _remains(store: Store, record: LostRecord) -> dict[str, Any]:
    """The values of a row that say what is left of a record; none if nothing is."""
    if record.known_from == "gap":
        return {}  # its place is not known
    try:
        found = store.commit_log.remains(record.physical_offset, record.size, record.topic)
    except InputError:
        return {}  # salvage has reported what is there
    if found is None:
        return {}
    values = properties.decode(found.properties) if found.properties is not None else {}
    head = found.head or {}
    row: dict[str, Any] = {
        "remains": {
            "header": found.head is not None,
            "born_timestamp_ms": head.get("born_timestamp"),
            "store_timestamp_ms": head.get("store_timestamp"),
            "body_bytes": found.body_bytes,
            "body_length": found.body_length,
            "properties": found.properties is not None,
            "tags": values.get(properties.TAGS),
        }
    }
    if values:
        row |= {"keys": properties.keys_of(values), "uniq_key": values.get(properties.UNIQ_KEY)}
    return row


def _read(store: Store, record: LostRecord) -> StoredMessage | None:
    """The damaged record; None if its head is damaged too, or if `record` stands for several records."""
    try:
        found = store.commit_log.read(record.physical_offset)
    except InputError:
        return None  # salvage has reported what is there
    if not isinstance(found, StoredMessage):
        return None
    size = found.message.total_size
    return found if size == record.size or (record.count == 1 and size < record.size) else None


def _next_offsets(store: Store) -> dict[int, int]:
    """The next offset to deliver by the queue id of SCHEDULE_TOPIC_XXXX; empty if nothing says it."""
    folder = store.layout.config_folder
    try:
        offsets = {} if folder is None else delay_offsets(folder)
    except InputError:
        return {}  # CF02
    return {level - 1: offset for level, offset in offsets.items()}


def _row(record: LostRecord, next_offsets: Mapping[int, int]) -> dict[str, Any]:
    is_delayed = record.topic == SCHEDULE_TOPIC and record.queue_offset is not None
    first = record.queue_offset or 0
    passed = min(next_offsets.get(record.queue_id or 0, 0), first + record.count) if is_delayed else first
    return {
        "topic": record.topic,
        "queue_id": record.queue_id,
        "queue_offset": record.queue_offset,
        "count": record.count,
        "physical_offset": record.physical_offset,
        "size": record.size,
        "stored_after_timestamp_ms": record.after_ms,
        "stored_before_timestamp_ms": record.before_ms,
        "sure": record.sure,
        "known_from": record.known_from,
        "fate": record.fate,
        "delivered": max(passed - first, 0),
        "status": None,
        "keys": None,
        "uniq_key": None,
        "remains": None,
    }
