"""The overview of a store, from the first and last bytes of its files.

Nothing is scanned: the log's end is found from the furthest queue unit, queue ranges from the ends of
queue files. So the time does not depend on the number of bytes. Results that need a scan (damage, counts
per tag) come from `verify` and `stats`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from rmqtool.broker.expiry_rules import disk_of
from rmqtool.check.verify.files import check_files
from rmqtool.errors import FormatError, InputError, UnreadableError
from rmqtool.formats import checkpoint as checkpoint_format
from rmqtool.formats import epoch
from rmqtool.formats import index as index_format
from rmqtool.formats import ledger as ledger_format
from rmqtool.formats.fastjson import READ_LIMIT
from rmqtool.formats.message import BLANK_MAGIC, BLANK_SIZE
from rmqtool.log.events import StoredMessage
from rmqtool.log.log_files import Tail
from rmqtool.log.log_heads import Head
from rmqtool.problems import Finding
from rmqtool.queue.consume_queue import ConsumeQueue, Span
from rmqtool.read.hidden_messages import hidden_messages
from rmqtool.read.known_topics import topic_names
from rmqtool.read.lost_config import (
    is_folder_lost,
    lost_config,
    lost_topics,
    unknown_topics,
    unreadable_config,
)
from rmqtool.read.store import Store
from rmqtool.report import ends
from rmqtool.storage.layout import StoreFile, StoreLayout
from rmqtool.storage.listing import Listing
from rmqtool.storage.lock import LockState
from rmqtool.storage.open_files import path_of, read_head
from rmqtool.storage.profile import NOT_WRITTEN_BY
from rmqtool.storage.queue_logs.find import as_store
from rmqtool.storage.queue_logs.view import CompactedLogs
from rmqtool.storage.size_settings import sizes_of
from rmqtool.storage.source import first_nonzero, open_source
from rmqtool.storage.unsupported import TIMER_MESSAGES
from rmqtool.storage.usage import usage

_STATE_MAX = 64 << 10
_TIMERS_MAX = 16 << 20  # bytes of a database whose timer messages are counted
SEARCHED_BYTES = 8 << 20
"""Of a single log file that does not begin with a record, so much is searched for the first one."""
COUNTED_RECORDS_MAX = 10_000  # most records after the checkpoint that are counted one by one

Info = dict[str, Any]
Spans = dict[tuple[str, int], Span]


class _Unreadable:
    """The files and folders that could not be read, each once, except those that are gone."""

    def __init__(self, store: Store) -> None:
        self._layout, self._failures = store.layout, store.failures
        self._reasons = {self._layout.relative(path): reason for path, reason in self._layout.unreadable}

    def note(self, error: UnreadableError) -> None:
        """Add the file of `error`, unless a live broker has deleted it."""
        if not error.is_gone:
            self._reasons.setdefault(self._layout.relative(path_of(error)), error.message)

    def note_lock(self, holder: LockState) -> None:
        """Add the lock if it could not be asked for."""
        if holder.failure and self._layout.lock is not None:
            self._reasons.setdefault(self._layout.relative(self._layout.lock), holder.failure)

    def read_head(self, path: Path, length: int) -> bytes | None:
        """The first bytes of a file; None if it is missing, or cannot be read, which is noted."""
        try:
            return read_head(path, length)
        except UnreadableError as error:
            self.note(error)
            return None

    def rows(self) -> list[Info]:
        """Path and reason of each."""
        reasons = {self._layout.relative(path): failure.reason for path, failure in self._failures.items()}
        return [{"path": path, "reason": reason} for path, reason in {**reasons, **self._reasons}.items()]

    def names(self, path: str) -> bool:
        """Whether `path`, as shown in rows, is one of them."""
        return path in self._reasons


def store_info(store: Store) -> Info:
    """The overview as plain values: offsets and sizes in bytes, times in ms since 1970.

    Keys: path, kind, written_by, written_by_candidates, written_by_reason, record_versions, sizes,
    commit_log, ledger, queue_logs, copies, topics, topics_without_queue, has_batch_queues, index,
    in_rocksdb, queues_without_files, checkpoint, epochs, state, config_lost,
    behind, power_failure, disk, problems, unsupported, unreadable. Parts that the input lacks are None.
    `problems` are findings from the names and sizes of files, and from the ends of queues and index.
    """
    layout, unreadable, holder = store.layout, _Unreadable(store), store.holder
    unreadable.note_lock(holder)
    heads, spans = _file_heads(store, unreadable), _spans(store, unreadable)
    inside = _head_inside(store, unreadable) if not heads else None
    units = [span.last for span in spans.values() if span.last is not None]
    places = [(unit.physical_offset, unit.size) for unit in units if not unit.is_pre_blank]
    tail = store.commit_log.tail(places if inside is None else [(inside.physical_offset, inside.total_size)])
    heads += [] if inside is None else [inside]
    units_end = max((offset + size for offset, size in places), default=-1)
    checkpoint, index = _checkpoint(store, unreadable), _index(store, unreadable)
    at_risk = _at_risk(store, checkpoint, _Known(heads, spans, tail), unreadable)
    for path in layout.config.values():
        unreadable.read_head(path, 1)
    problems = [*_problems(store, spans, tail)]
    if ends.is_judged(store):
        problems += ends.ahead(spans, tail, index)
        problems += ends.missing(store, checkpoint.index_msg_timestamp if checkpoint is not None else 0)
    return {
        "path": str(layout.root if layout.root is not None else _any_path(store)),
        "kind": layout.kind,
        **(store.written_by.row() if layout.kind == "store" else NOT_WRITTEN_BY),
        "record_versions": sorted({head.version for head in (*heads, *filter(None, (tail.last,)))}),
        "sizes": sizes_of(layout),
        "commit_log": _commit_log(store, tail, heads, index),
        "ledger": _ledger(store, unreadable),
        "queue_logs": _queue_logs(store, spans),
        "copies": _copies(layout, unreadable),
        "topics": _topics(spans),
        "topics_without_queue": _without_queue(store),
        "has_batch_queues": bool(layout.batch_queues),
        "in_rocksdb": _in_rocksdb(layout),
        "queues_without_files": _without_files(layout),
        "index": index,
        "checkpoint": None if checkpoint is None else {
            name: getattr(checkpoint, name) for name in (
                "physic_msg_timestamp", "logics_msg_timestamp", "index_msg_timestamp",
                "master_flushed_offset", "confirm_phy_offset")},
        "epochs": _epochs(store, unreadable),
        "state": _state(layout, holder),
        "config_lost": is_folder_lost(layout),
        "behind": _behind(layout, units_end, tail, index),
        "power_failure": at_risk,
        "disk": _disk(store),
        "problems": [
            row
            for row in (item.row() for item in problems)
            if not (row["problem"] == "CP06" and unreadable.names(row["path"]))
        ],
        "unsupported": _unsupported(layout),
        "unreadable": unreadable.rows(),
    }  # fmt: skip


def _in_rocksdb(layout: StoreLayout) -> list[Info]:
    """The parts that are read from RocksDB; of the timer how many messages it has, and how many wait.

    Those of a large database are not counted.
    """
    rows = []
    for part in layout.read_only:
        row: Info = {"what": part.what, "path": layout.relative(part.path)}
        if part.what == TIMER_MESSAGES and layout.rocksdb_messages is not None:
            small = sum(size for _, size in Listing().files(part.path)) <= _TIMERS_MAX
            found = None
            with suppress(InputError):  # verify reports it
                from rmqtool.storage.rocksdb.messages import read_timers

                found = read_timers(layout.rocksdb_messages) if small else None
            row["entries"] = len(found.entries) if found is not None else None
            row["pending"] = found.pending if found is not None else None
        rows.append(row)
    return rows


def _unsupported(layout: StoreLayout) -> list[Info]:
    """The parts in a form that is not read; a database that is gone is a problem."""
    return [
        {"what": part.what, "form": part.form, "path": layout.relative(part.path)}
        for part in layout.unsupported
        if not part.is_lost
    ]


def _problems(store: Store, spans: Spans, tail: Tail) -> Iterator[Finding]:
    """Findings from the names and sizes of files, and config files that are missing or cannot be read."""
    yield from check_files(store.layout, store.profile, live=store.live)
    messages: dict[str, int] = {}
    for (topic, _), span in spans.items():
        messages[topic] = messages.get(topic, 0) + span.messages
    yield from unreadable_config(store.layout)
    yield from lost_topics(store.layout, len(messages))
    yield from unknown_topics(store.layout, messages)
    last_ms = 0 if tail.last is None else tail.last.store_timestamp
    yield from lost_config(store.layout, messages, live=store.live, last_ms=last_ms)
    ranges = {key: (max(span.min_offset, 0), span.max_offset) for key, span in spans.items()}
    yield from hidden_messages(store.layout, ranges, ranges.get)


def _any_path(store: Store) -> str:
    layout = store.layout
    files = [file.path for file in layout.commit_log]
    files += (file.path for file in layout.index_files)
    files += (file.path for queue in layout.unit_queues for file in queue.files)
    return str(files[0]) if len(files) == 1 else str(files[0].parent) if files else ""


def _file_heads(store: Store, unreadable: _Unreadable) -> list[Head]:
    """The head of the first record of every log file that begins with one, in order."""
    heads = []
    for file in store.layout.commit_log:
        try:
            head = store.commit_log.head(file.first_record)
        except UnreadableError as error:
            unreadable.note(error)
            continue
        if head is not None:
            heads.append(head)
    return heads


def _head_inside(store: Store, unreadable: _Unreadable) -> Head | None:
    """The head of the first record near the start of a single log file that does not begin with one.

    Such a file is a part of one, as fsck leaves it in lost+found, or damaged at its start.
    """
    if store.layout.kind != "commitlog" or len(store.layout.commit_log) != 1:
        return None
    start = store.commit_log.min_offset
    try:
        for event in store.events(start, start + SEARCHED_BYTES):
            if isinstance(event, StoredMessage):
                return store.commit_log.head(event.physical_offset)
    except UnreadableError as error:
        unreadable.note(error)
    return None


def _spans(store: Store, unreadable: _Unreadable) -> Spans:
    """Offsets and newest unit of every queue that can be read."""
    spans: Spans = {}
    for key, span in store.spans():
        if isinstance(span, UnreadableError):
            unreadable.note(span)
        else:
            spans[key] = span
    return spans


def _commit_log(store: Store, tail: Tail, heads: list[Head], index: Info | None) -> Info | None:
    """The log's files, offsets and times; `newest_store_timestamp` is the latest that is known.

    `bytes_before_records` are those before the first record that was found; None if none was. `bytes_after`
    are those after `end_offset` up to the end of its file, of files without queues, if data follows there:
    damage, or a record that is cut; None if not. Then `end_offset` may not be the log's end.

    The last record is not always the newest: `append` and `copy` keep the times of messages.
    """
    layout = store.layout
    if not layout.commit_log or layout.queue_logs is not None:
        return None
    first = heads[0] if heads else None
    after = _bytes_after(store, tail.end)
    times = [head.store_timestamp for head in (*heads, *filter(None, (tail.last,)))]
    if index is not None and index["last_physical_offset"] < tail.end:
        times.append(index["last_timestamp"])
    return {
        "files": len(layout.commit_log),
        "folders": [str(folder) for folder in layout.commit_log_folders],
        "size_bytes": sum(file.size for file in layout.commit_log),
        "min_offset": store.commit_log.min_offset,
        "end_offset": tail.end,
        "bytes_before_records": first.physical_offset - layout.commit_log[0].first_record if first else None,
        "first_store_timestamp": first.store_timestamp if first else None,
        "last_store_timestamp": tail.last.store_timestamp if tail.last else None,
        "newest_store_timestamp": max(times) if tail.last else None,
        "bytes_after": after,
        "last_file_used_bytes": _used(layout.commit_log, tail.end) if after is None else None,
    }


def _bytes_after(store: Store, end: int) -> int | None:
    """How many bytes of a log file follow `end`, if some of the first are not zeros, nor the file's end mark.

    Only of files without queues: the queues of a store show where its log ends.
    """
    file = store.commit_log.file_of(end)
    if store.layout.kind != "commitlog" or file is None:
        return None
    start = end - file.file_from_offset
    try:
        source = open_source(file.path, keep_cache=True)
    except OSError:  # noted where the file was read
        return None
    try:
        stop = min(start + SEARCHED_BYTES, file.size)
        mark = source.read(start, BLANK_SIZE)[4:]
        is_end = mark == BLANK_MAGIC.to_bytes(4, signed=True) or first_nonzero(source, start, stop) == stop
    finally:
        source.close()
    return None if is_end else file.size - start


def _ledger(store: Store, unreadable: _Unreadable) -> Info | None:
    """The DLedger log: where it begins, and what its files say of its state."""
    layout = store.layout
    if layout.ledger is None:
        return None
    ends = term = None
    for path in filter(None, (layout.ledger.checkpoint, layout.ledger.term)):
        data = unreadable.read_head(path, _STATE_MAX)
        with suppress(FormatError):  # verify reports it
            if path == layout.ledger.checkpoint:
                ends = ledger_format.decode_ends(data or b"")
            else:
                term = ledger_format.decode_term(data or b"")
    return {
        "path": layout.relative(layout.ledger.folder),
        "files": len(layout.ledger.data),
        "min_offset": min((offset for _, offset, _ in layout.ledger.data), default=None),
        "end_index": ends.end_index if ends else None,
        "committed_index": ends.committed_index if ends else None,
        "current_term": term.current_term if term else None,
        "vote_leader": term.vote_leader or None if term else None,
    }


def _queue_logs(store: Store, spans: Spans) -> list[Info] | None:
    """The logs of queues: which offsets of its own log a queue has, and the physical offset of the first."""
    logs = store.layout.queue_logs
    if logs is None:
        return None
    rows = []
    for queue in logs.found.queues:
        places, span = logs.places[queue.key], spans.get(queue.key)
        first = store.head(places.start) if queue.log else None
        last = store.head(span.last.physical_offset) if span is not None and span.last is not None else None
        rows.append({
            "topic": queue.topic, "queue_id": queue.queue_id, "segments": len(queue.log),
            "size_bytes": sum(segment.size for segment in queue.log),
            "begin_offset": queue.log[0].base if queue.log else None,
            "end_offset": queue.log[-1].end if queue.log else None,
            "physical_offset": places.start if queue.log else None,
            "first_store_timestamp": first.store_timestamp if first is not None else None,
            "last_store_timestamp": last.store_timestamp if last is not None else None,
        })  # fmt: skip
    return rows


def _copies(layout: StoreLayout, unreadable: _Unreadable) -> list[Info]:
    """The tiered copy in the store, and the logs of compacted topics: each is read as a store of its own."""
    rows = []
    for logs in layout.copies:
        queues = [queue for queue in logs.found.queues if queue.log]
        if queues:
            row: Info = {"kind": logs.kind, "path": str(logs.folder), "queues": len(queues)}
            if isinstance(logs, CompactedLogs):
                row["compacted_queues"] = _compacted_queues(layout, logs, unreadable)
            rows.append(row)
        logs.close()
    return rows


def _compacted_queues(layout: StoreLayout, logs: CompactedLogs, unreadable: _Unreadable) -> list[Info]:
    """Records of each queue of the compaction log; `compacted_to` is null if position-checkpoint lacks it."""
    from rmqtool.report.dump.timer import compaction_rows

    rows = compaction_rows(layout, lambda found: None)  # verify reports CC01
    positions = {(row["topic"], row["queue_id"]): row["queue_offset"] for row in rows}
    with Store(as_store(logs)) as store:
        spans = _spans(store, unreadable)
    return [
        {"topic": key[0], "queue_id": key[1], "messages": span.messages, "compacted_to": positions.get(key)}
        for key, span in sorted(spans.items())
    ]


def _used(files: tuple[StoreFile, ...], end: int) -> int | None:
    for file in reversed(files):
        if file.file_from_offset < end <= file.end:
            return end - file.file_from_offset
    return None


def _topics(spans: Spans) -> list[Info]:
    """The queues of each topic with the offsets that a broker would serve."""
    topics: dict[str, list[Info]] = {}
    for (topic, queue_id), span in spans.items():
        topics.setdefault(topic, []).append({
            "queue_id": queue_id, "min_offset": span.min_offset, "max_offset": span.max_offset,
            "messages": span.messages,
        })  # fmt: skip
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


def _without_queue(store: Store) -> int | None:
    """How many topics of topics.json have no queue: of a broker's own topics most never get one."""
    layout = store.layout
    if layout.kind != "store":
        return None
    return len(topic_names(layout) - {topic for topic, _ in store.queues})


def _without_files(layout: StoreLayout) -> list[Info]:
    """The queues of which there is only the folder."""
    queues = (queue for queue in layout.unit_queues if not queue.files)
    return [{"topic": queue.topic, "queue_id": queue.queue_id} for queue in queues]


def _index(store: Store, unreadable: _Unreadable) -> Info | None:
    headers = []
    for file in store.layout.index_files:
        head = unreadable.read_head(file.path, index_format.HEADER_SIZE)
        if head is not None and len(head) == index_format.HEADER_SIZE:
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


def _index_behind(index: Info | None, last: Head | None) -> int | None:
    """Bytes of log from the newest indexed record to the last one; records without keys count too."""
    if index is None or last is None:
        return None
    return max(last.physical_offset - int(index["last_physical_offset"]), 0)


def _behind(layout: StoreLayout, units_end: int, tail: Tail, index: Info | None) -> Info:
    """How far queues and index are behind the log; None if each queue has a log of its own."""
    own = layout.queue_logs is not None
    is_known = units_end >= 0 and layout.commit_log and not own
    return {
        "queues_bytes": max(tail.end - units_end, 0) if is_known else None,
        "index_bytes": None if own else _index_behind(index, tail.last),
    }


def _checkpoint(store: Store, unreadable: _Unreadable) -> checkpoint_format.Checkpoint | None:
    path = store.layout.checkpoint
    data = unreadable.read_head(path, checkpoint_format.FILE_SIZE) if path is not None else None
    try:
        return checkpoint_format.decode(data) if data is not None else None
    except FormatError:
        return None


def _epochs(store: Store, unreadable: _Unreadable) -> list[Info] | None:
    """The epochs of controller mode, by rising number; None without an epoch file that can be read."""
    path = store.layout.epoch
    data = unreadable.read_head(path, READ_LIMIT) if path is not None else None
    try:
        found = epoch.decode(data) if data is not None else None
    except FormatError:  # verify reports it
        return None
    return None if found is None else [entry._asdict() for entry in found]


def _state(layout: StoreLayout, holder: LockState) -> Info:
    return {
        "clean": layout.abort is None and layout.guard is None and not holder.is_held,
        "abort": layout.abort is not None,
        "repair_unfinished": layout.guard is not None,
        "lock": holder.state,
        "lock_holder_pid": holder.pid,
        "lock_note": holder.reason or None,
    }


class _Known(NamedTuple):
    """The parts of the log that were read: the first record of every file, the queues' offsets, the tail."""

    heads: list[Head]
    spans: Spans
    tail: Tail


def _at_risk(
    store: Store,
    checkpoint: checkpoint_format.Checkpoint | None,
    known: _Known,
    unreadable: _Unreadable,
) -> Info | None:
    """The records that a power failure now could cost: those newer than the checkpoint's flush time.

    All records up to the checkpoint's physic time are on disk; newer ones may be in memory only. This is an
    upper bound, because most of them were flushed in between (spec 02 section 14).
    """
    last = known.tail.last
    if last is None or store.layout.kind != "store" or checkpoint is None:
        return None
    flushed = checkpoint.physic_msg_timestamp
    if last.store_timestamp <= flushed:
        return {"seconds": 0.0, "records": 0, "records_exact": True}
    try:
        counted = _newer_than(store, flushed, known)
    except UnreadableError as error:
        unreadable.note(error)
        return None
    return {
        "seconds": (last.store_timestamp - flushed) / 1000 if flushed > 0 else None,
        "records": min(counted, COUNTED_RECORDS_MAX),
        "records_exact": counted <= COUNTED_RECORDS_MAX,
    }


def _newer_than(store: Store, timestamp_ms: int, known: _Known) -> int:
    """How many records are newer, up to COUNTED_RECORDS_MAX + 1. Raises UnreadableError.

    A search in the longest queue finds a record near the first of them; from there heads are counted.
    """
    count = 0
    for head in store.commit_log.heads(_last_not_newer(store, timestamp_ms, known)):
        if head.store_timestamp > timestamp_ms:
            count += 1
            if count > COUNTED_RECORDS_MAX:
                break
    return count


def _last_not_newer(store: Store, timestamp_ms: int, known: _Known) -> int:
    """Physical offset of a record that is not newer than `timestamp_ms`, near the last such record."""
    best = store.commit_log.min_offset
    for head in known.heads:
        if head.store_timestamp <= timestamp_ms:
            best = head.physical_offset
    lengths = {
        key: span.max_offset
        for key, span in known.spans.items()
        if isinstance(store.queues[key], ConsumeQueue)
    }
    if not lengths:
        return best
    longest = max(lengths, key=lambda key: lengths[key])
    low, high = 0, lengths[longest]
    while low < high:
        middle = (low + high) // 2
        unit = store.queues[longest].unit(middle)
        found = store.head(unit.physical_offset) if unit is not None else None
        if found is None or found.store_timestamp <= timestamp_ms:
            low = middle + 1
            best = max(best, found.physical_offset) if found is not None else best
        else:
            high = middle
    return best


def _disk(store: Store) -> Info | None:
    """Space of the file system that holds the log, as the broker's disk rules compute it.

    `usage` is what the store takes of it and of other disks, by file and folder of its root.
    """
    folders = store.layout.commit_log_folders
    if not folders or not store.is_local:
        return None
    try:
        found = os.statvfs(folders[0])
    except FileNotFoundError:
        return None
    except OSError as error:
        store.note_unread(folders[0], error.strerror or str(error))
        return None
    disk = disk_of(found)
    return {
        "total_bytes": disk.total + disk.reserved,
        "free_bytes": disk.usable,
        "reserved_bytes": disk.reserved,
        "used_ratio": disk.ratio if disk.total else None,
        "usage": [each._asdict() for each in usage(store.layout, store.note_unread)],
    }
