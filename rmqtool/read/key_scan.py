"""Scans of the log for ranges that the index does not cover, and for messages inside of batches."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from rmqtool.errors import FormatError, MissingCodecError, UnreadableError
from rmqtool.findings import Progress
from rmqtool.formats import properties
from rmqtool.formats.java import java_utf8_encode
from rmqtool.formats.message import INNER_BATCH
from rmqtool.log.events import StoredMessage
from rmqtool.problems import Finding
from rmqtool.queue.consume_queue import BatchConsumeQueue
from rmqtool.read.coverage import Gap
from rmqtool.read.hits import Hit, KeyMatcher, SearchReport
from rmqtool.read.log_items import is_small, log_items
from rmqtool.read.selection import Selection
from rmqtool.read.store import Store
from rmqtool.storage.open_files import OpenFiles

if TYPE_CHECKING:
    from rmqtool.formats.batch import BatchItem
    from rmqtool.read.access import Via

_NAMES_MAX = 16  # names that are looked for one by one: in a record, in the bytes of a batch, or in damage
_DAMAGE_MAX = 64 << 20  # bytes of damaged ranges that are searched for names


def scan(
    store: Store,
    wanted: KeyMatcher,
    selection: Selection,
    gap: Gap,
    looked: SearchReport,
    progress: Progress | None,
) -> Iterator[StoredMessage]:
    """The messages in a range of the log that have one of the names, or may have it."""
    is_tag = wanted.kind == "tag"
    chosen = replace(selection, tags=wanted.names) if is_tag else replace(selection, keys=wanted.names)
    via: Via = "auto" if is_tag else "log"
    is_few = len(wanted.names) <= _NAMES_MAX
    yield from selected(store, chosen, gap, looked, progress, via=via, may_be_plain=is_few)


def selected(
    store: Store,
    selection: Selection,
    gap: Gap,
    looked: SearchReport,
    progress: Progress | None,
    *,
    via: Via = "log",
    may_be_plain: bool = True,
    queue_offsets: Collection[int] = (),
) -> Iterator[StoredMessage]:
    """The messages of a selection in a range of the log; a few others may be among them.

    With `queue_offsets` records that state another queue offset are left out, unless they are batch records.
    """
    end = max((file.end for file in store.commit_log.files), default=0)
    stop = end if gap.stop is None else min(gap.stop, end)
    if store.live and gap.stop is None:
        stop = store.end_offset()  # past it a broker is writing
    size = sum(
        max(min(store.layout.written_end(file), stop) - max(file.file_from_offset, gap.start), 0)
        for file in store.commit_log.files
    )
    if size <= 0:
        return
    looked.scanned_bytes += size
    chosen = replace(selection, from_offset=gap.start, to_offset=stop)
    if may_be_plain and is_small(store, gap.start, stop):
        for item in log_items(store, chosen):
            if isinstance(item, StoredMessage):
                yield item
            elif isinstance(item, Finding):
                looked.report(item)
        return
    import numpy as np

    from rmqtool.read.access import plan_access
    from rmqtool.read.messages import frame_batches

    access = plan_access(store, chosen, via=via)
    report = looked.report
    for frames, mask, _ in frame_batches(
        store, chosen, access=access, crc=False, report=report, progress=progress
    ):
        rows = frames.rows[mask]
        if queue_offsets:
            is_batch = rows["sys_flag"] & INNER_BATCH != 0
            rows = rows[is_batch | np.isin(rows["queue_offset"], list(queue_offsets))]
        for offset in rows["physical_offset"].tolist():
            stored = store.find(offset)
            if stored is not None:
                yield stored


def names_in_damage(
    store: Store, names: Sequence[str], damage: Iterable[Finding]
) -> Iterator[tuple[str, int, int]]:
    """The names that stand in damaged ranges of the log as keys stand in properties.

    Only the first names, and the first bytes of all ranges, are searched. Yields the name, and the physical
    offsets at which its range begins and ends.
    """
    left = _DAMAGE_MAX
    with OpenFiles() as files:
        for found in damage:
            start, size = found.physical_offset, min(found.length or 0, left)
            file = None if start is None else store.commit_log.file_of(start)
            if start is None or file is None or size <= 0:
                continue
            left -= size
            with suppress(UnreadableError):  # a finding of its own
                data = files.read(file.path, start - file.file_from_offset, size)
                for name in names[:_NAMES_MAX]:
                    text = re.escape(java_utf8_encode(name))
                    if re.search(b"(?<=[\x01 ])" + text + b"(?![^\0\x02 ])", data):
                        yield name, start, start + (found.length or 0)


def batch_hits(store: Store, wanted: KeyMatcher, selection: Selection, looked: SearchReport) -> Iterator[Hit]:
    """The inner batch records that hold a message with one of the names, queue by queue.

    A broker does not index the messages inside.
    """
    for (topic, queue_id), queue in store.queues.items():
        if not isinstance(queue, BatchConsumeQueue) or not selection.matches_topic(topic):
            continue
        if selection.queues and queue_id not in selection.queues:
            continue
        for _, unit in queue.units():
            stored = store.find(unit.physical_offset)
            if stored is None:
                continue
            looked.batches += 1
            inside, names = _inside(stored, wanted, selection)
            of_record = replace(selection, tags=(), keys=(), grep=None)
            if names and of_record.matches(stored.message, stored.physical_offset):
                yield Hit(stored, "batch", names, inside)


def _inside(
    stored: StoredMessage, wanted: KeyMatcher, selection: Selection
) -> tuple[tuple[tuple[int, BatchItem], ...], tuple[str, ...]]:
    """The messages of a batch record with one of the names that the selection selects; their names."""
    record, tags, grep = stored.message, selection.tags, selection.grep
    if not record.sys_flag & INNER_BATCH:
        return (), ()
    from rmqtool.formats import batch, body  # not for a look-up through the index, which is to start fast

    found: list[tuple[int, BatchItem]] = []
    names: dict[str, None] = {}
    try:
        items = body.decompress(record.body, record.sys_flag)
        if not _may_hold(items, wanted):
            return (), ()
        for number, item in enumerate(batch.decode_items(items)):
            decoded = properties.decode(item.properties_bytes)
            has = wanted.found_in(decoded)
            is_selected = not tags or decoded.get(properties.TAGS) in tags
            if has and is_selected and (grep is None or grep.found_in(item.body)):
                found.append((number, item))
                names |= dict.fromkeys(has)
    except (FormatError, MissingCodecError):
        pass  # what came before the damage counts; `verify` reports the damage
    return tuple(found), tuple(names)


def _may_hold(items: bytes, wanted: KeyMatcher) -> bool:
    """Whether one of a few names occurs in the bytes; True where that is not checked."""
    if len(wanted.names) > _NAMES_MAX or any("\ufffd" in name for name in wanted.names):
        return True  # U+FFFD may have been read from bytes that are not UTF-8
    return any(java_utf8_encode(name) in items for name in wanted.names)
