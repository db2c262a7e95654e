"""The store as it is served: its topics, and queues whose ends are known.

A pull costs as much as its records: where a queue begins and ends is looked for once. With `live` a queue's
end moves as units appear. The newest unit counts when two looks have read the same bytes, or when another
follows: it may be half written. A queue that has become shorter, as after a recovery, is measured again.

Nothing here is for use by several threads: each has a view of its own.

Source: TopicConfigManager, ConsumeQueue#increaseOffset; RouteInfoManager (number of queues).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from rmqtool.errors import FormatError, UnreadableError
from rmqtool.formats import config_json
from rmqtool.formats.config_json import TopicConfig
from rmqtool.formats.consume_queue import BATCH_UNIT_SIZE, UNIT_SIZE
from rmqtool.lazy_dataclass import dataclass
from rmqtool.log.log_files import relisted
from rmqtool.queue.consume_queue import AnyQueue, ConsumeQueue, open_queue
from rmqtool.read.store import Store
from rmqtool.report.tail.get_message import Window
from rmqtool.report.tail.log_reader import LogReader
from rmqtool.storage.config_files import TOPICS, read_config
from rmqtool.storage.layout import QueueFiles, can_be_folder
from rmqtool.storage.open_files import OpenFiles

QUEUES_MAX = 65_536  # queue ids of a topic: topics.json may hold any number
_LOOK_UNITS = 1024
_CHECK_S = 1.0  # how often what changes seldom is looked at: the log's start, a cut queue, new topics
_REFRESH_S = 0.02


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic as it is served: all its queues, and what topics.json says of it, if it is there."""

    name: str
    queues: int
    config: TopicConfig | None = None

    @property
    def sys_flag(self) -> int:
        """Its topicSysFlag."""
        return 0 if self.config is None else self.config.topic_sys_flag


class View:
    """A store with what has been found out about it."""

    def __init__(
        self, reopen: Callable[[], Store], *, live: bool = False, note: Callable[[str], None] | None = None
    ) -> None:
        self._reopen = reopen
        self._note = note or (lambda _: None)
        self.live = live
        self.store = reopen()
        self._open_files = OpenFiles()
        self._refreshed = self._checked = 0.0
        self._set_store(self.store)

    def _set_store(self, store: Store) -> None:
        self.store = store
        self.log = LogReader(store.layout, self._open_files, keeps=not self.live)
        self._queues: dict[tuple[str, int], ServedQueue] = {}
        self.topic_document, self.topics = _topics(store, self._note)

    def close(self) -> None:
        """Close the files."""
        self._open_files.close()
        self.store.close()

    def topic(self, name: str) -> Topic | None:
        """The topic of this name; None where the store has none."""
        found = self.topics.get(name)
        if found is None and self.live and self._is_due():
            self.look_again()
            found = self.topics.get(name)
        return found

    def _is_due(self) -> bool:
        now = time.monotonic()
        if now - self._checked < _CHECK_S:
            return False
        self._checked = now
        return True

    def look_again(self) -> None:
        """Open the store again: its topics and queues as they are now."""
        started = time.monotonic()
        try:
            store = self._reopen()
        except (FormatError, UnreadableError) as error:
            self._note(f"the store cannot be listed at the moment: {error.message}")
        else:
            self.store.close()
            self._open_files.close()
            self._set_store(store)
        # A listing that takes long is made seldom.
        self._checked = time.monotonic() + 9 * (time.monotonic() - started)

    def freshen(self) -> None:
        """Look at a live store again, unless that was a moment ago; for requests that are rare."""
        if self.live and self._is_due():
            self.look_again()

    def refresh_log(self) -> None:
        """List the files of the log again, unless that was a moment ago."""
        now = time.monotonic()
        if now - self._refreshed < _REFRESH_S:
            return
        self._refreshed = now
        log = self.store.commit_log
        log.set_files(relisted(self.store.layout, log.files))

    def queue(self, topic: str, queue_id: int) -> ServedQueue | None:
        """A queue of a known topic; None where neither its files nor topics.json have the id."""
        known = self.topics.get(topic)
        if known is None or not 0 <= queue_id < known.queues:
            return None
        found = self._queues.get((topic, queue_id))
        if found is None:
            found = ServedQueue(self, self._open_queue(known, queue_id))
            if found.queue is not None:  # topics.json may have any number of queues without files
                self._queues[topic, queue_id] = found
        return found

    def known_end(self, topic: str, queue_id: int) -> int | None:
        """The maximum offset of a queue that has been opened, as it was seen last; None of another."""
        found = self._queues.get((topic, queue_id))
        return None if found is None else found.window.high

    def _open_queue(self, topic: Topic, queue_id: int) -> AnyQueue | None:
        key = topic.name, queue_id
        layout = self.store.layout
        files = layout.consume_queues.get(key) or layout.batch_queues.get(key)
        if files is None and self.live and layout.root is not None and can_be_folder(topic.name):
            is_batch = topic.config is not None and topic.config.is_batch
            folder = layout.root / ("batchconsumequeue" if is_batch else "consumequeue")
            unit_size = BATCH_UNIT_SIZE if is_batch else UNIT_SIZE
            place = folder / topic.name / str(queue_id)
            files = QueueFiles(topic.name, queue_id, place, (), unit_size=unit_size)
        if files is None:
            return None
        return open_queue(files, self._open_files, layout.ext_queues.get(key))


def _topics(store: Store, note: Callable[[str], None]) -> tuple[dict[str, Any], dict[str, Topic]]:
    """The table of topics.json, and all topics: those in it, and those with a folder of queues."""
    layout = store.layout
    document: dict[str, Any] = {}
    configs: dict[str, TopicConfig] = {}
    if layout.config_folder is not None:
        try:
            loaded = read_config(layout.config_folder, TOPICS)
            document = config_json.resolve(loaded.document)
            configs = config_json.topics(document)
        except (FormatError, UnreadableError) as error:
            note(f"topics.json cannot be read: {error.message}; the folders of the queues count")
    queues: dict[str, int] = {name: _queues_of(config) for name, config in configs.items()}
    for topic, queue_id in (*layout.consume_queues, *layout.batch_queues):
        if queue_id < QUEUES_MAX:
            queues[topic] = max(queues.get(topic, 0), queue_id + 1)
    return document, {name: Topic(name, count, configs.get(name)) for name, count in sorted(queues.items())}


def _queues_of(config: TopicConfig) -> int:
    return min(max(config.read_queue_nums, 0), QUEUES_MAX)


class ServedQueue:
    """One queue and its window."""

    __slots__ = ("_checked", "_log_start", "_newest", "_view", "late", "queue", "window")

    def __init__(self, view: View, queue: AnyQueue | None) -> None:
        self._view = view
        self.queue = queue
        self.window = Window(0, 0, 0)
        self.late: tuple[int, float] | None = None  # a queue offset whose record has not come, and since when
        self._newest: tuple[int, bytes] | None = None
        self._checked = 0.0
        self._log_start = -1
        self._measure()

    def _measure(self) -> None:
        if self.queue is None:
            return
        if self._view.live:
            self.queue.refresh()
        end = self.queue.end()
        self._newest = None
        if self._view.live and end > self.queue.start:
            # Whether the newest unit is whole is seen when it is looked at again.
            self._newest = end - 1, self._bytes_at(end - 1)
            end -= 1
        self._set_end(end)
        self._set_low()
        if self._view.live:
            self._advance()

    def _set_end(self, end: int) -> None:
        assert self.queue is not None
        high = end
        last = self.queue.by_number(end - 1) if end > self.queue.start else None
        if not isinstance(self.queue, ConsumeQueue):
            high = (
                0 if last is None else self.queue.queue_offset(end - 1, last) + getattr(last, "batch_size", 1)
            )
        self.window = self.window._replace(high=high, end=end)
        if last is not None and self._view.live:
            files = self._view.store.commit_log.files
            if not files or last.physical_offset + last.size > files[-1].end:
                self._view.refresh_log()

    def _set_low(self) -> None:
        assert self.queue is not None
        store = self._view.store
        self._log_start = store.commit_log.min_offset
        low = self.queue.min_offset(self._log_start, store.profile)
        self.window = self.window._replace(low=low)

    def _bytes_at(self, number: int) -> bytes:
        assert self.queue is not None
        file = self.queue.file_of(number)
        return b"" if file is None else self.queue.data(file, number, number + 1)

    def look(self) -> Window:
        """Look at the queue now; returns its window."""
        if self.queue is not None and self._view.live:
            moved = self._advance()
            moved = self._advance() or moved
            if not moved:
                self._check()
        return self.window

    def poll(self) -> bool:
        """Look for new units; whether there are any."""
        if self.queue is None or not self._view.live:
            return False
        return self._advance()

    def _advance(self) -> bool:
        """Move the end past new units that are whole."""
        assert self.queue is not None
        queue, size = self.queue, self.queue.unit_size
        moved = False
        while True:
            number = self.window.end
            file = queue.file_of(number)
            if file is None:
                if time.monotonic() - self._checked < _REFRESH_S:
                    return moved
                self._checked = time.monotonic()
                queue.refresh()
                file = queue.file_of(number)
            if file is None:
                return moved
            data = queue.data(file, number, number + _LOOK_UNITS)
            count = 0
            for unit in queue.decode(data):
                if not unit.is_present:
                    break
                count += 1
            if not count:
                return moved
            newest = number + count - 1, data[(count - 1) * size : count * size]
            is_full = count == _LOOK_UNITS
            whole = count if newest == self._newest else count - 1
            self._newest = newest
            if whole:
                self._set_end(number + whole)
                moved = True
            if not is_full:
                return moved

    def _check(self) -> None:
        """Now and then: whether the log's start has moved, or the queue was cut."""
        assert self.queue is not None
        now = time.monotonic()
        if now - self._checked < _CHECK_S:
            return
        self._checked = now
        self._view.refresh_log()
        last = self.window.end - 1
        if last >= self.queue.start and self.queue.by_number(last) is None:
            self._measure()
        elif self._log_start != self._view.store.commit_log.min_offset:
            self.queue.refresh()
            self._set_low()
