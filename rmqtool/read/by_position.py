"""Messages by their position: a physical offset, an offset message id, a queue offset.

An offset message id holds the broker's host and the record's physical offset. A broker looks at the
offset alone, and so a message is found after the broker has moved. A unique id has as many digits:
one that does not name a record is searched as a unique key.

A queue may lack the unit of a queue offset: the queue is missing, ends before the log after a crash, or has
slots without units. The log is then scanned between the records of the neighbouring units.

Source: MessageDecoder#decodeMessageId, DefaultMessageStore#lookMessageByOffset; spec 02 section 8.1.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import closing

from rmqtool.command_line import on_store
from rmqtool.errors import FormatError, UnreadableError
from rmqtool.findings import Progress
from rmqtool.formats import properties
from rmqtool.formats.index import KeyKind
from rmqtool.formats.message import INNER_BATCH, Message
from rmqtool.formats.message_id import OffsetMessageId, offset_message_id
from rmqtool.lazy_pattern import pattern
from rmqtool.log.events import Reason, StoredMessage
from rmqtool.log.python_scan import look
from rmqtool.message.system_topics import is_system_topic
from rmqtool.queue.light_queues import LIGHT_PREFIX
from rmqtool.read import coverage
from rmqtool.read.by_key import BeforeScan, KeySearch
from rmqtool.read.coverage import Gap
from rmqtool.read.hits import Hit, ScanMode, SearchReport
from rmqtool.read.key_scan import selected
from rmqtool.read.known_topics import queue_ids, topic_names
from rmqtool.read.selection import Selection
from rmqtool.read.store import Store
from rmqtool.storage.layout import StoreFile
from rmqtool.storage.source import open_source


def lacking(
    store: Store, topic: str, queue_id: int, queue_offset: int, *, is_wrong: bool = False
) -> list[Gap]:
    """The range of the log to look in, in one gap or none; none too where the queue has the unit.

    Args:
        store: the store.
        topic: of the queue.
        queue_id: its id.
        queue_offset: the one that is looked for.
        is_wrong: the unit is there, and names another record.

    Raises:
        UnsupportedStoreError: the queues are in RocksDB.
        UnreadableError: the queue or the log cannot be read.
    """
    name = f"queue {queue_id} of {topic}"
    queue = store.queue(topic, queue_id)
    if queue is None or not queue.files:
        ids = queue_ids(store.layout, topic.__eq__) or set()
        if topic_names(store.layout) and queue_id not in ids and not is_system_topic(topic):
            return []  # no such queue was ever made
        return coverage.whole_log(store, f"{name} is missing")
    unit = queue.unit(queue_offset)
    if not is_wrong and unit is not None and not unit.is_pre_blank:
        return []
    before = next((unit for _, unit in queue.units(0, queue_offset, reverse=True)), None)
    behind = next((unit for _, unit in queue.units(queue_offset + 1)), None)
    start = store.commit_log.min_offset if before is None else before.physical_offset + before.size
    stop = store.end_offset() if behind is None else behind.physical_offset
    is_idle = behind is None and not is_wrong and (store.live or store.layout.abort is None)
    if is_idle and queue.after_end() is None:
        # No crash has taken units away: it has all that was dispatched, and may have been idle for long.
        start = max(start, store.dispatched_end())
    what = "ends before it" if behind is None else "has no unit for it"
    if is_wrong:
        what = "names another record there"
    return coverage.within([Gap(start, stop, f"{name} {what}")], store.commit_log.min_offset, None)


_NUMBER = pattern(r"\d{1,18}", re.ASCII)

Note = Callable[[str], None]
"""Called with a note on a hit, one line of text."""


def find_by_offset(store: Store, physical_offset: int, note: Note | None = None) -> Iterator[Hit]:
    """The message at a physical offset; without one `note` gets a text on what is there."""
    store.layout.check_forms(log=True)
    stored = _record_at(store, physical_offset)
    if stored is not None:
        yield Hit(stored, "offset")
    elif note is not None:
        note(_what_is_at(store, physical_offset))


def find_by_msg_id(
    store: Store,
    msg_id: str,
    selection: Selection | None = None,
    *,
    scan: ScanMode = "auto",
    looked: SearchReport | None = None,
    progress: Progress | None = None,
    note: Note | None = None,
) -> Iterator[Hit]:
    """The messages that an id names, be it an offset message id or a unique key.

    First the record whose own id it is; then the messages with that unique key; then the record at
    the id's offset, which was stored under another host.
    """
    yield from _by_id_or_key(
        store, (msg_id,), selection, "uniq_key", scan=scan, looked=looked, progress=progress, note=note
    )


def find_any(
    store: Store,
    values: Collection[str],
    selection: Selection | None = None,
    *,
    scan: ScanMode = "auto",
    looked: SearchReport | None = None,
    progress: Progress | None = None,
    before_scan: BeforeScan | None = None,
    note: Note | None = None,
) -> Iterator[Hit]:
    """The messages that values name, be they offset message ids, unique keys or keys.

    First the records whose own ids the values are; then, in one search for all other values, the messages
    with that unique key or key; then the records at the offsets of ids that name another host.
    """
    yield from _by_id_or_key(
        store, values, selection, "key", scan=scan, looked=looked, progress=progress,
        before_scan=before_scan, note=note,
    )  # fmt: skip


def _by_id_or_key(
    store: Store, values: Iterable[str], selection: Selection | None, kind: KeyKind, *, scan: ScanMode,
    looked: SearchReport | None, progress: Progress | None, note: Note | None,
    before_scan: BeforeScan | None = None,
) -> Iterator[Hit]:  # fmt: skip
    """The records whose ids the values are, messages with such keys, and records of other hosts."""
    store.layout.check_forms(log=True)
    others: dict[str, tuple[OffsetMessageId, StoredMessage] | None] = {}
    for value in values:
        place = _place_of(value)
        stored = None if place is None else _record_at(store, place.physical_offset)
        if stored is not None and _id_of(stored) == value.upper():
            yield Hit(stored, "id", (value,))
        else:
            others[value] = (place, stored) if place is not None and stored is not None else None
    search = KeySearch.of(
        store, others, selection, kind=kind, scan=scan, looked=looked, progress=progress,
        before_scan=before_scan,
    )  # fmt: skip
    for hit in search.hits():
        for name in hit.names:
            others[name] = None
        yield hit
    for value, named in others.items():
        if named is not None:
            place, stored = named
            if note is not None:
                host = _id_host(stored)
                note(f"{value} names {place.store_host}, but {host} stored the record at its offset")
            yield Hit(stored, "id", (value,))


def find_by_queue_offset(
    store: Store,
    topic: str,
    queue_id: int,
    queue_offsets: int | Iterable[int],
    *,
    scan: ScanMode = "never",
    looked: SearchReport | None = None,
    progress: Progress | None = None,
    before_scan: BeforeScan | None = None,
) -> Iterator[Hit]:
    """The messages at one or more queue offsets; in a batch queue the records that hold them.

    Where the queue lacks a unit, the log may hold the record nevertheless: `auto` scans it where that
    can be, `always` all of it, `never` only puts the place into the gaps of `looked`.

    Raises:
        FormatError: the queue's unit names no record.
        UnreadableError: queue or log cannot be read.
    """
    store.layout.check_forms(log=True)
    looked = SearchReport() if looked is None else looked
    wanted = dict.fromkeys([queue_offsets] if isinstance(queue_offsets, int) else queue_offsets)
    gaps = coverage.whole_log(store, coverage.REQUESTED) if scan == "always" else []
    seen: set[int] = set()
    for queue_offset in tuple(wanted):
        stored = store.get_by_queue_offset(topic, queue_id, queue_offset)
        is_wrong = stored is not None and not _is_at(stored.message, topic, queue_id, queue_offset)
        if stored is not None and not is_wrong:
            yield Hit(stored, "queue", (str(queue_offset),))
            seen.add(stored.physical_offset)
        if scan != "always":
            found = (
                lacking(store, topic, queue_id, queue_offset, is_wrong=is_wrong)
                if stored is None or is_wrong
                else []
            )
            gaps += found
            wanted = wanted if found else {each: None for each in wanted if each != queue_offset}
    looked.gaps = coverage.merged(gaps)
    if scan == "never" or not gaps:
        return
    if before_scan is not None:
        before_scan(looked.gaps)
    selection = Selection(topics=(topic,), queues=(queue_id,))
    for gap in looked.gaps:
        for stored in selected(store, selection, gap, looked, progress, queue_offsets=wanted):
            held = queue_offsets_of(stored.message)
            names = tuple(str(each) for each in wanted if each in held)
            if names and stored.physical_offset not in seen:
                yield Hit(stored, "scan", names)


def _is_at(record: Message, topic: str, queue_id: int, queue_offset: int) -> bool:
    """Whether a record states this queue offset; a record of a light queue states another queue's."""
    if topic.startswith(LIGHT_PREFIX):
        return True
    return (record.topic, record.queue_id) == (topic, queue_id) and queue_offset in queue_offsets_of(record)


def queue_offsets_of(record: Message) -> range:
    """The queue offsets that a record takes: one, or as many as there are messages in a batch record."""
    if not record.sys_flag & INNER_BATCH:
        return range(record.queue_offset, record.queue_offset + 1)
    values = properties.decode(record.properties_bytes)
    base, count = (values.get(name, "") for name in (properties.INNER_BASE, properties.INNER_NUM))
    first = int(base) if _NUMBER.fullmatch(base) else record.queue_offset
    return range(first, first + (int(count) if _NUMBER.fullmatch(count) else 1))


def _record_at(store: Store, physical_offset: int) -> StoredMessage | None:
    """The record that was stored for the offset; None where there is none."""
    try:
        return store.get(physical_offset)
    except (FormatError, UnreadableError):
        return None


def _place_of(msg_id: str) -> OffsetMessageId | None:
    try:
        return OffsetMessageId.decode(msg_id)
    except FormatError:
        return None


def _id_of(stored: StoredMessage) -> str:
    return offset_message_id(stored.message.store_host, stored.message.physical_offset)


def _id_host(stored: StoredMessage) -> str:
    return str(OffsetMessageId.decode(_id_of(stored)).store_host)


_RANGES_NAMED = 4


def _is_record_cut(file: StoreFile, physical_offset: int) -> bool:
    """Whether a record starts at an offset whose lengths do not add up. Raises UnreadableError."""
    with closing(open_source(file.path)) as source:
        reason, _ = look(source.read, physical_offset - file.file_from_offset, source.size, file.entry_header)
    return reason in (Reason.SIZE, Reason.LENGTHS)


def _what_is_at(store: Store, physical_offset: int) -> str:
    """Say what is at an offset where no record starts."""
    log = store.commit_log
    if not log.files:
        return "the store has no commit log"
    file = log.file_of(physical_offset)
    if file is None:
        ranges: list[list[int]] = []
        for each in log.files:
            if ranges and ranges[-1][1] == each.file_from_offset:
                ranges[-1][1] = each.end
            else:
                ranges.append([each.file_from_offset, each.end])
        held = " and ".join(f"{start} to {end - 1}" for start, end in ranges[:_RANGES_NAMED])
        more = " and more" if len(ranges) > _RANGES_NAMED else ""
        return f"no file of the log holds offset {physical_offset}: they hold {held}{more}"
    try:
        begin = store.record_before(file, physical_offset)
        for head in log.heads(begin):
            if head.physical_offset == physical_offset:
                break
            if head.physical_offset < physical_offset < head.end:
                return f"offset {physical_offset} is inside the record at {head.physical_offset}"
            if head.physical_offset > physical_offset:
                break
        for start in dict.fromkeys((physical_offset, physical_offset - file.entry_header)):
            if start >= file.file_from_offset and _is_record_cut(file, start):
                place = start + file.entry_header
                line = on_store(store.layout.root or file.path, "dump", "--explain", str(place))
                return f"a damaged record starts at offset {place}; what can be read of it: {line}"
    except (OSError, UnreadableError):
        pass  # the reader of the row's file says so where it matters
    return f"no record starts at offset {physical_offset}"
