"""What an operator asks first about a store, answered from heads and tails of its files.

Nothing is scanned: the log's end is found from the furthest queue unit, queue ranges from the ends
of queue files, so the answer takes the same time whatever the number of bytes. What only a scan can
tell (damage, counts per tag) is the work of `verify` and `stats`.
"""

from __future__ import annotations

import os
from typing import Any

from rmqtool.errors import FormatError
from rmqtool.formats import checkpoint as checkpoint_format
from rmqtool.formats import index as index_format
from rmqtool.formats.consume_queue import Unit
from rmqtool.store import Store
from rmqtool.store.commit_log import StoredMessage
from rmqtool.store.consume_queue import ConsumeQueue
from rmqtool.store.layout import StoreFile
from rmqtool.store.open_files import head_of

COUNTED_RECORDS_MAX = 10_000  # records behind the checkpoint that are counted one by one

Info = dict[str, Any]


def store_info(store: Store) -> Info:
    """Everything at a glance, as plain values: offsets and sizes in bytes, times in ms since 1970.

    Keys: path, kind, written_by, record_versions, sizes, commit_log, topics, index, checkpoint,
    state, behind, power_failure, disk, unsupported. Parts that the input does not have are None.
    """
    layout = store.layout
    end = store.end_offset()
    first, last = _first_message(store), _last_message(store, end)
    checkpoint = _checkpoint(store)
    topics = _topics(store)
    index = _index(store)
    units_end = store.dispatched_end()
    return {
        "path": str(layout.root if layout.root is not None else _any_path(store)),
        "kind": layout.kind,
        "written_by": store.profile.name if layout.kind == "store" else None,
        "record_versions": _versions(store, last),
        "sizes": {name: {"value": getattr(layout, name), "from": layout.origins.get(name)} for name in (
            "commit_log_file_size", "consume_queue_file_size", "batch_queue_file_size", "index_slots",
            "index_entries")},
        "commit_log": _commit_log(store, end, first, last),
        "topics": topics,
        "index": index,
        "checkpoint": None if checkpoint is None else {
            name: getattr(checkpoint, name) for name in (
                "physic_msg_timestamp", "logics_msg_timestamp", "index_msg_timestamp",
                "master_flushed_offset", "confirm_phy_offset")},
        "state": _state(store),
        "behind": {
            "queues_bytes": max(end - units_end, 0) if units_end >= 0 and layout.commit_log else None,
            "index_bytes": _index_behind(index, last),
        },
        "power_failure": _at_risk(store, checkpoint, last),
        "disk": _disk(store),
        "unsupported": [
            {"what": part.what, "form": part.form, "path": layout.relative(part.path)}
            for part in layout.unsupported
        ],
    }  # fmt: skip


def _any_path(store: Store) -> str:
    layout = store.layout
    queues = (*layout.consume_queues.values(), *layout.batch_queues.values())
    files = [file.path for file in layout.commit_log]
    files += (file.path for file in layout.index_files)
    files += (file.path for queue in queues for file in queue.files)
    return str(files[0]) if len(files) == 1 else str(files[0].parent) if files else ""


def _first_message(store: Store) -> StoredMessage | None:
    """The first record of the oldest file that begins with one."""
    for file in store.layout.commit_log:
        found = store.find(file.file_from_offset)
        if found is not None:
            return found
    return None


def _last_message(store: Store, end: int) -> StoredMessage | None:
    """The record that ends the log: from the newest units, or walked to in the last file."""
    newest: StoredMessage | None = None
    for queue in store.queues.values():
        unit = queue.last_unit()
        if unit is None or (isinstance(unit, Unit) and unit.is_pre_blank):
            continue
        if newest is None or unit.physical_offset > newest.physical_offset:
            newest = store.find(unit.physical_offset) or newest
    start = newest.physical_offset if newest is not None else _last_file_start(store, end)
    for event in store.events(start, end):
        if isinstance(event, StoredMessage):
            newest = event
    return newest


def _last_file_start(store: Store, end: int) -> int:
    file = store.commit_log.file_of(max(end - 1, 0))
    return file.file_from_offset if file is not None else 0


def _versions(store: Store, last: StoredMessage | None) -> list[int]:
    """Versions of the records that are looked at: the first of every file, and the last."""
    heads = (store.find(file.file_from_offset) for file in store.layout.commit_log)
    return sorted({found.message.version for found in (*heads, last) if found is not None})


def _commit_log(
    store: Store, end: int, first: StoredMessage | None, last: StoredMessage | None
) -> Info | None:
    layout = store.layout
    if not layout.commit_log:
        return None
    return {
        "files": len(layout.commit_log),
        "folders": [str(folder) for folder in layout.commit_log_folders],
        "size_bytes": sum(file.size for file in layout.commit_log),
        "min_offset": store.commit_log.min_offset,
        "end_offset": end,
        "first_store_timestamp": first.message.store_timestamp if first else None,
        "last_store_timestamp": last.message.store_timestamp if last else None,
        "last_file_used_bytes": _used(layout.commit_log, end),
    }


def _used(files: tuple[StoreFile, ...], end: int) -> int | None:
    for file in reversed(files):
        if file.file_from_offset < end <= file.end:
            return end - file.file_from_offset
    return None


def _topics(store: Store) -> list[Info]:
    """Per topic its queues with the offsets that the broker would serve."""
    topics: dict[str, list[Info]] = {}
    for topic, queue_id in store.queues:
        low, high = store.min_offset(topic, queue_id), store.max_offset(topic, queue_id)
        topics.setdefault(topic, []).append(
            {"queue_id": queue_id, "min_offset": low, "max_offset": high, "messages": max(high - low, 0)}
        )
    return [
        {
            "topic": topic,
            "queue_count": len(queues),
            "messages": sum(queue["messages"] for queue in queues),
            "min_offset": min(queue["min_offset"] for queue in queues),
            "max_offset": max(queue["max_offset"] for queue in queues),
            "queues": sorted(queues, key=lambda queue: int(queue["queue_id"])),
        }
        for topic, queues in sorted(topics.items())
    ]


def _index(store: Store) -> Info | None:
    headers = []
    for file in store.layout.index_files:
        head = head_of(file.path, index_format.HEADER_SIZE)
        if len(head) == index_format.HEADER_SIZE:
            headers.append(index_format.decode_header(head))
    if not headers:
        return None
    return {
        "files": len(store.layout.index_files),
        "entries": sum(max(header.next_entry - 1, 0) for header in headers),
        "entries_per_file": max(store.layout.index_entries - 1, 0),
        "first_timestamp": min(header.begin_timestamp for header in headers),
        "last_timestamp": max(header.end_timestamp for header in headers),
        "last_physical_offset": max(header.end_physical_offset for header in headers),
    }


def _index_behind(index: Info | None, last: StoredMessage | None) -> int | None:
    """Bytes of log between the newest indexed record and the log's last; records without keys count."""
    if index is None or last is None:
        return None
    return max(last.physical_offset - int(index["last_physical_offset"]), 0)


def _checkpoint(store: Store) -> checkpoint_format.Checkpoint | None:
    path = store.layout.checkpoint
    if path is None:
        return None
    try:
        return checkpoint_format.decode(head_of(path, checkpoint_format.FILE_SIZE))
    except FormatError:
        return None


def _state(store: Store) -> Info:
    layout, holder = store.layout, store.holder
    return {
        "clean": layout.abort is None and layout.guard is None and not holder.is_held,
        "abort": layout.abort is not None,
        "repair_unfinished": layout.guard is not None,
        "lock": holder.state,
        "lock_holder_pid": holder.pid,
        "lock_note": holder.reason or None,
    }


def _at_risk(
    store: Store, checkpoint: checkpoint_format.Checkpoint | None, last: StoredMessage | None
) -> Info | None:
    """What a power failure now could cost: records newer than the checkpoint's flush time.

    The checkpoint's physic time covers a thorough flush; newer records may be in memory only. An
    upper bound, for most of them were flushed in between (spec 02 section 14).
    """
    if last is None or store.layout.kind != "store":
        return None
    flushed = checkpoint.physic_msg_timestamp if checkpoint is not None else 0
    newest = last.message.store_timestamp
    if newest <= flushed:
        return {"seconds": 0.0, "records": 0, "records_exact": True}
    counted = _newer_than(store, flushed)
    return {
        "seconds": (newest - flushed) / 1000 if flushed > 0 else None,
        "records": min(counted, COUNTED_RECORDS_MAX),
        "records_exact": counted <= COUNTED_RECORDS_MAX,
    }


def _newer_than(store: Store, timestamp_ms: int) -> int:
    """How many records are newer, up to COUNTED_RECORDS_MAX + 1.

    The longest queue leads near the first of them; from there heads are counted.
    """
    count = 0
    for head in store.commit_log.heads(_last_not_newer(store, timestamp_ms)):
        if head.store_timestamp > timestamp_ms:
            count += 1
            if count > COUNTED_RECORDS_MAX:
                break
    return count


def _last_not_newer(store: Store, timestamp_ms: int) -> int:
    """Physical offset of a record that is not newer than `timestamp_ms`, near the last such record."""
    best = store.commit_log.min_offset
    for file in store.layout.commit_log:
        first = store.find(file.file_from_offset)
        if first is not None and first.message.store_timestamp <= timestamp_ms:
            best = file.file_from_offset
    queues = [queue for queue in store.queues.values() if isinstance(queue, ConsumeQueue)]
    if not queues:
        return best
    queue = max(queues, key=lambda item: item.max_offset())
    low, high = 0, queue.max_offset()
    while low < high:
        middle = (low + high) // 2
        unit = queue.unit(middle)
        found = store.find(unit.physical_offset) if unit is not None else None
        if found is None or found.message.store_timestamp <= timestamp_ms:
            low = middle + 1
            best = max(best, found.physical_offset) if found is not None else best
        else:
            high = middle
    return best


def _disk(store: Store) -> Info | None:
    """The file system that holds the log, as the broker's disk rules see it."""
    folders = store.layout.commit_log_folders
    if not folders:
        return None
    try:
        found = os.statvfs(folders[0])
    except OSError:
        return None
    total, free = found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize
    used = found.f_blocks - found.f_bfree
    ratio = used / (used + found.f_bavail) if used + found.f_bavail else None
    return {"total_bytes": total, "free_bytes": free, "used_ratio": ratio}
