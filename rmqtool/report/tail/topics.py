"""The queues that are followed, and new ones as they appear.

A folder is listed again only when its mtime has changed, so that a thousand topics cost only a
thousand calls of stat.

In a stopped store the records that no queue has a unit for are followed too.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from rmqtool.errors import UnreadableError, UsageError
from rmqtool.findings import Report
from rmqtool.formats.consume_queue import BATCH_UNIT_SIZE, UNIT_SIZE
from rmqtool.queue.consume_queue import BatchConsumeQueue, open_queue
from rmqtool.read.compacted import compacted_texts
from rmqtool.read.known_topics import queue_ids
from rmqtool.read.selection import Selection
from rmqtool.read.store import Store
from rmqtool.read.unread import unserved
from rmqtool.report.tail.follower import Events, Follower
from rmqtool.report.tail.log_reader import LogReader
from rmqtool.report.tail.queue_tail import QueueTail
from rmqtool.report.tail.start import (
    QueueKey,
    StartPosition,
    moved_starts,
    requested_offsets,
    start_numbers,
    without_offset,
)
from rmqtool.report.tail.subscription import Subscription
from rmqtool.storage.layout import QueueFiles
from rmqtool.storage.listing import Listing
from rmqtool.storage.open_files import OpenFiles
from rmqtool.storage.single_file import queue_id_of_name
from rmqtool.storage.storage import path_at

_MEND = "rmqtool recover rebuilds the queues"


def behind_texts(store: Store, selection: Selection) -> Iterator[str]:
    """In words: how much of the log no queue has, and which selected queues have no files.

    Nothing for a store that is in use, whose queues lag for a moment, or for a remote one, where
    the last unit of every queue takes too long to be read.
    """
    if store.live or not store.is_local:
        return
    try:
        start, end = max(store.dispatched_end(), store.commit_log.min_offset), store.end_offset()
    except UnreadableError:
        return  # it is reported as damage
    if start < end:
        behind = f"the queues end {end - start} bytes before the log, at offset {start}"
        yield f"{behind}: later messages are not shown; {_MEND}"
    there = set(store.queues)
    for topic in sorted(each for each in selection.topics if not set("*?[") & set(each)):
        known = queue_ids(store.layout, topic.__eq__) or set()
        requested = known & set(selection.queues) if selection.queues else known
        missing = sorted(queue_id for queue_id in requested if (topic, queue_id) not in there)
        if missing and len(missing) == len(requested):
            which = f"queue {', '.join(map(str, missing))} of {topic}" if selection.queues else topic
            yield f"{which} has no files of queues; if the log has messages of it, {_MEND}"


_SETTLED_NS = 2_000_000_000
_FOLDERS = (("consumequeue", UNIT_SIZE), ("batchconsumequeue", BATCH_UNIT_SIZE))


def open_tail(
    store: Store,
    selection: Selection,
    start: StartPosition,
    wanted: Subscription | None = None,
    *,
    follow: bool = False,
    report: Report | None = None,
    note: Callable[[str], None] | None = None,
) -> Follower:
    """A follower of the selected queues, ready at its start.

    Args:
        store: the store; what it has now is where `latest` is, and where a tail without `follow` ends.
        selection: topics and queues; nothing else of it counts.
        start: where to begin.
        wanted: which messages.
        follow: keep looking for new messages, files, queues and topics.
        report: receives findings.
        note: receives texts about queues that were cut, expired or new, about offsets that are not there or
            that the group lacks,
            about queues that lag behind the log of a stopped store, and about compacted topics.

    Raises:
        UsageError: no store root, or one that is not local with `follow`; see `offsets_of`.
        UnsupportedStoreError: the queues are in RocksDB, or it is not known where the log is.
    """
    layout = store.layout
    if layout.kind not in ("store", "tiered") or layout.root is None:
        raise UsageError(
            "only a store has queues and a log to follow", hint="rmqtool dump shows single files"
        )
    if follow and not store.is_local:
        raise UsageError("only a store on a disk of this machine can be followed", hint="omit --follow")
    layout.check_forms(log=True, queues=True)
    wanted = wanted or Subscription()
    queues = {
        key: queue
        for key, queue in store.queues.items()
        if selection.matches_topic(key[0]) and (not selection.queues or key[1] in selection.queues)
    }
    if report is not None:
        for damage in unserved(store, queues):
            report(damage)
    offsets = requested_offsets(store, queues, start)
    numbers = start_numbers(store, queues, start, wanted, offsets)
    if note is not None:
        for text in (
            *moved_starts(store, queues, offsets),
            *(without_offset(store, queues, start.group, offsets) if start.group is not None else ()),
            *behind_texts(store, selection),
            *compacted_texts(layout, selection),
        ):
            note(text)
    open_files = OpenFiles()
    tails = []
    for key, queue in queues.items():
        files = (layout.batch_queues if isinstance(queue, BatchConsumeQueue) else layout.consume_queues)[key]
        stop = None if follow else queue.end()
        tails.append(QueueTail(open_queue(files, open_files), numbers[key], stop))
    log = LogReader(layout, open_files)
    follower = Follower(tails, log, open_files, wanted, start.since, Events(report, note))
    if follow:
        for tail in tails:
            tail.remember()
        follower.refresh = NewQueues(layout.root, selection, queues, open_files)
    elif not store.live:
        follower.patience_s = 0.0
    return follower


class NewQueues:
    """Returns queues that were created since the last call; they are read from their first unit on."""

    def __init__(
        self,
        root: Path,
        selection: Selection,
        known: Iterable[QueueKey],
        files: OpenFiles,
    ) -> None:
        self._root = root
        self._selection = selection
        self._known = set(known)
        self._files = files
        self._times: dict[Path, int] = {}
        self._topics: dict[Path, list[Path]] = {}

    def __call__(self) -> list[QueueTail]:
        """The new ones."""
        return [
            tail for name, unit_size in _FOLDERS for tail in self._in_folder(self._root / name, unit_size)
        ]

    def _in_folder(self, folder: Path, unit_size: int) -> Iterator[QueueTail]:
        if self._has_changed(folder):
            topics = Listing().folders_and_others(folder)[0]
            self._topics[folder] = [
                path_at(place) for name, place in topics if self._selection.matches_topic(name)
            ]
        for topic in self._topics.get(folder, ()):
            if self._has_changed(topic):
                yield from self._of_topic(topic, unit_size)

    def _of_topic(self, topic: Path, unit_size: int) -> Iterator[QueueTail]:
        listing = Listing()
        for name, entry in listing.folders_and_others(topic)[0]:
            queue_id = queue_id_of_name(name)
            wanted = queue_id is not None and (
                not self._selection.queues or queue_id in self._selection.queues
            )
            if queue_id is None or not wanted or (topic.name, queue_id) in self._known:
                continue
            self._known.add((topic.name, queue_id))
            files = QueueFiles(topic.name, queue_id, entry, (), unit_size=unit_size)
            queue = open_queue(files.relisted(), self._files)
            yield QueueTail(queue, queue.start)

    def _has_changed(self, folder: Path) -> bool:
        try:
            changed = folder.stat().st_mtime_ns
        except OSError:
            self._times.pop(folder, None)
            return False
        # A change within one tick of the file system's clock does not show: such a time is not kept.
        if time.time_ns() - changed < _SETTLED_NS:
            return True
        if self._times.get(folder) == changed:
            return False
        self._times[folder] = changed
        return True
