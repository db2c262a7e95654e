"""The topics and queues of rows: numbered, checked once each, the next offsets of queues in one array."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from rmqtool.errors import IllegalMessageError, RefusedError, UsageError
from rmqtool.formats.java import java_utf8_encode
from rmqtool.formats.message import VERSION_BY_MAGIC
from rmqtool.storage.buffers import Array
from rmqtool.storage.profile import Profile
from rmqtool.write.queue_offsets import QueueOffset
from rmqtool.write.records.message import NewMessage
from rmqtool.write.records.record_parts import topic_parts

if TYPE_CHECKING:
    from rmqtool.write.store_writer import StoreWriter


_QUEUE_ID_LIMIT = 1 << 17  # rows of higher queue ids take the careful path
_FIRST_WIDTH = 4
_FIRST_CAPACITY = 256
_UNKNOWN, _TAKES, _REFUSES = range(3)
_NOT_LOADED = QueueOffset(-1)
_TOPICS_CAPACITY = 64


class Queues:
    """Queues by number: of queue q of topic t it is topics.bases[t] + q, for q below topics.widths[t].

    Attributes:
        topics: by number.
        next_offsets: i8 by number: the queue offset of the next message.
    """

    def __init__(self, writer: StoreWriter) -> None:
        self._writer = writer
        self.topics = Topics(writer.options.profile)
        self._keys: list[tuple[int, int]] = []  # topic number and queue id
        self._queues: list[QueueOffset] = []  # the writer's, where they are in use
        self.next_offsets = np.zeros(_FIRST_CAPACITY, np.int64)
        self._known = np.zeros(_FIRST_CAPACITY, np.int64)  # what the writer got last
        self._first = np.zeros(_FIRST_CAPACITY, np.int64)  # at the first message of this table
        self._counts = np.zeros(_FIRST_CAPACITY, np.int64)  # messages of this table
        self._loaded = np.zeros(_FIRST_CAPACITY, bool)
        self._checks = np.zeros((2, _FIRST_CAPACITY), np.uint8)  # by kind: new, as stored

    def numbers(self, topics: Array, queue_ids: Array, stored: Array) -> Array:
        """The numbers of rows' queues, their offsets loaded; up to the first row that is refused.

        What a row does to the topics (one can be made, or get queues) is done in the order of rows,
        and not for rows after the one refused.

        Args:
            topics: per row the topic's number.
            queue_ids: per row, any whole number.
            stored: per row, whether it is a record as stored.
        """
        outside = (queue_ids < 0) | (queue_ids >= _QUEUE_ID_LIMIT)
        stop = _first_row(outside)
        topics, queue_ids, kinds = topics[:stop], queue_ids[:stop], stored[:stop].astype(np.int64)
        wide = queue_ids >= self.topics.widths[topics]
        if wide.any():
            needed = np.zeros(len(self.topics.names), np.int64)
            np.maximum.at(needed, topics[wide], queue_ids[wide] + 1)
            for topic in np.flatnonzero(needed).tolist():
                self._widen(topic, int(needed[topic]))
        numbers = self.topics.bases[topics] + queue_ids
        states = self._checks[kinds, numbers]
        if (states != _TAKES).any():
            stop = _first_row(states == _REFUSES)
            unknown = np.flatnonzero(states[:stop] == _UNKNOWN)
            _, first_places = np.unique(2 * numbers[unknown] + kinds[unknown], return_index=True)
            for row in unknown[np.sort(first_places)].tolist():
                if not self._check(int(numbers[row]), stored=bool(kinds[row])):
                    stop = row
                    break
            numbers = numbers[:stop]
        missing = numbers[~self._loaded[numbers]]
        if len(missing):
            self._load(np.unique(missing))
        return numbers

    def _check(self, number: int, *, stored: bool) -> bool:
        """Whether a queue takes plain messages; where one of a topic does, its others are checked as well."""
        if self._checks[int(stored), number] == _TAKES:
            return True
        topic, queue_id = self._keys[number]
        name = self.topics.names[topic]
        count = 0 if stored else self._writer.targets.plain_queues(name)
        if queue_id < count:
            base = number - queue_id
            self._checks[0, base : base + min(count, int(self.topics.widths[topic]))] = _TAKES
            return True
        message = NewMessage(name, properties=b"" if stored else {}, queue_id=queue_id)
        try:
            target = self._writer.targets.of(message)
        except (IllegalMessageError, RefusedError, UsageError):
            takes = False
        else:
            takes = target.queue_id == queue_id and not target.is_batch and not target.sys_flag
        self._checks[int(stored), number] = _TAKES if takes else _REFUSES
        return takes

    def _load(self, numbers: Array) -> None:
        found = [self._queue(number).next for number in numbers.tolist()]
        self.next_offsets[numbers] = self._known[numbers] = found
        self._loaded[numbers] = True

    def _queue(self, number: int) -> QueueOffset:
        queue = self._queues[number]
        if queue is _NOT_LOADED:
            topic, queue_id = self._keys[number]
            queue = self._queues[number] = self._writer.offsets.queue(self.topics.names[topic], queue_id)
        return queue

    def _widen(self, topic: int, width: int) -> None:
        """Give a topic at least `width` numbers, after all others; what is known of its old ones moves."""
        topics = self.topics
        old_base, old_width = int(topics.bases[topic]), int(topics.widths[topic])
        width = max(width, _FIRST_WIDTH, 2 * old_width)
        base = len(self._keys)
        least = base + width
        self.next_offsets, self._known = longer(self.next_offsets, least), longer(self._known, least)
        self._first, self._counts = longer(self._first, least), longer(self._counts, least)
        self._loaded, self._checks = longer(self._loaded, least), longer(self._checks, least)
        self._keys += [(topic, queue_id) for queue_id in range(width)]
        self._queues += [_NOT_LOADED] * width
        if old_width:
            self.save()
            old, new = slice(old_base, old_base + old_width), slice(base, base + old_width)
            for array in (self.next_offsets, self._known, self._first, self._counts, self._loaded):
                array[new] = array[old]
            self._checks[:, new] = self._checks[:, old]
            self._queues[new] = self._queues[old]
            self._counts[old] = 0
            self._loaded[old] = False
        topics.bases[topic], topics.widths[topic] = base, width

    def forget(self) -> None:
        """Others may have put messages since: ask the writer for every offset again."""
        self._loaded[:] = False

    def save(self) -> None:
        """Save the used offsets in the writer."""
        changed = np.flatnonzero(self._loaded & (self.next_offsets != self._known))
        offsets = self.next_offsets[changed]
        queues = map(self._queues.__getitem__, changed.tolist())  # all in use: their offsets are loaded
        for queue, offset in zip(queues, offsets.tolist(), strict=True):
            queue.next = offset
        fresh = changed[self._counts[changed] == 0]
        self._first[fresh] = self._known[fresh]
        self._counts[changed] += offsets - self._known[changed]
        self._known[changed] = offsets

    def used(self) -> dict[tuple[str, int], tuple[int, int]]:
        """(first queue offset, messages) by (topic, queue id) of all queues that got any."""
        places = np.flatnonzero(self._counts)
        firsts, counts = self._first[places].tolist(), self._counts[places].tolist()
        names, keys = self.topics.names, [self._keys[place] for place in places.tolist()]
        return {
            (names[topic], queue_id): (first, count)
            for (topic, queue_id), first, count in zip(keys, firsts, counts, strict=True)
        }


def _first_row(mask: Array) -> int:
    """The first row of a mask that is set; their number when none is."""
    return int(mask.argmax()) if mask.any() else len(mask)


class Topics:
    """Topics by number.

    Attributes:
        names: by number.
        data: their UTF-8 bytes, by number.
        versions: i8, shape (2, numbers or more): of records with plain messages, new ones and those as
            stored; 0: each row needs a look of its own.
        bases, widths: i8 by number, see `Queues`.
    """

    def __init__(self, profile: Profile) -> None:
        self.names: list[str] = []
        self.data: list[bytes] = []
        self.versions = np.zeros((2, _TOPICS_CAPACITY), np.int64)
        self.bases = np.zeros(_TOPICS_CAPACITY, np.int64)
        self.widths = np.zeros(_TOPICS_CAPACITY, np.int64)
        self._profile = profile
        self._numbers: dict[str, int] = {}

    def numbers(self, names: list[str]) -> Array:
        """The numbers of topics, i8; new ones are looked up."""
        found = list(map(self._numbers.get, names))
        if None in found:
            found = [
                self._add(names[place]) if number is None else number for place, number in enumerate(found)
            ]
        return np.array(found, np.int64)

    def _add(self, name: str) -> int:
        number = self._numbers[name] = len(self.names)
        self.names.append(name)
        self.data.append(java_utf8_encode(name))
        self.versions = longer(self.versions, number + 1)
        self.bases, self.widths = longer(self.bases, number + 1), longer(self.widths, number + 1)
        try:
            parts = topic_parts(name, self._profile)
        except IllegalMessageError:
            return number
        version = VERSION_BY_MAGIC[parts.magic]
        self.versions[:, number] = 0 if parts.closed else version, version
        return number


def longer(array: Array, least: int) -> Array:
    """The array, or if it is shorter than `least`, with zeros appended: twice as long, or `least`."""
    size = array.shape[-1]
    if size >= least:
        return array
    more = np.zeros((*array.shape[:-1], max(least, 2 * size) - size), array.dtype)
    return np.concatenate([array, more], axis=-1)
