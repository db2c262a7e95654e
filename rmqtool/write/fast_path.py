"""The fast path of an ordinary message into the log.

A put must take no longer than the broker's, some 7 microseconds, of which the write itself is a third. So
for a message that no rule concerns (not delayed, transactional or compressed, and with only topic, body,
tags, keys and further properties) this module does all of `prepare`, `pack` and the append in one function.
It gives the same bytes; `test_fast_path` compares them. Every other message, and every wrong one, takes
`prepare`.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from rmqtool.formats.message import CRC_MASK
from rmqtool.formats.properties import VALUE_END
from rmqtool.write.put_result import PutResult
from rmqtool.write.queue_offsets import QueueOffset
from rmqtool.write.records.message import NewMessage
from rmqtool.write.records.prepare import unique_ids
from rmqtool.write.records.prepared import LENGTH_SIZE, pack_length
from rmqtool.write.records.record_parts import TopicParts, load_crc32
from rmqtool.write.records.tables import tables_for

if TYPE_CHECKING:
    from rmqtool.write.reput import Reput
    from rmqtool.write.store_writer import StoreWriter
    from rmqtool.write.targets import Turns

_TOPICS_MAX = 65_536  # that are kept at hand
_QUEUES_MAX = 1024  # of such a topic
_crc32 = load_crc32()
_join_keys = " ".join
_KEYS_TYPES = frozenset({list, tuple, str})  # an iterator gives its keys only once
_join_texts = "".join
_join = b"".join
_time_ns = time.time_ns
_new = tuple.__new__  # the constructor of a named tuple takes three times as long


class _Topic:
    """The data for ordinary messages of one topic: its parts of the record, its queues, whose turn it is."""

    __slots__ = ("count", "parts", "queues", "turns")

    def __init__(self, parts: TopicParts, turns: Turns, queues: list[QueueOffset]) -> None:
        self.parts = parts
        self.turns = turns
        self.queues = queues
        self.count = len(queues)


class FastPath:
    """Puts ordinary messages of one writer."""

    def __init__(self, writer: StoreWriter, reput: Reput) -> None:
        self._writer = writer
        self._reput = reput
        self._log = writer.log
        self._tables = tables_for(writer.options)
        self._topics: dict[str, _Topic | None] = {}

    def put(self, message: NewMessage) -> PutResult | None:
        """Store an ordinary message; None, or an error of Python's, with nothing done, for any other."""
        topic, queue_id, body, own = message.topic, message.queue_id, message.body, message.properties
        tables, tags, keys, now_ms = self._tables, message.tags, message.keys, _time_ns() // 1_000_000
        known = self._topics.get(topic)
        if known is None or type(own) is not dict or type(body) is not bytes or not _is_ordinary(message):
            return None
        plan = tables.plans.get((not tags, not keys, not message.wait, tuple(own) if own else ()))
        if plan is None or not plan.template or (queue_id is not None and not 0 <= queue_id < known.count):
            return None
        born_host, store_host, _, head_size, pack_head = tables.own_hosts
        values = [*own.values()] if own else []
        if tags:
            values.append(tags)
        if keys:
            if type(keys) not in _KEYS_TYPES:
                return None
            values.append(keys if type(keys) is str else _join_keys(keys))
        values.append(message.uniq_key or unique_ids.make(born_host, now_ms))
        has_end = VALUE_END in _join_texts(values)  # refuses what is not text
        text = plan.template % plan.pick(values)
        if has_end or "" in values or not text.isascii() or text[-1] == "\0":
            return None
        magic, topic_bytes, _ = known.parts
        size = head_size + len(body) + len(topic_bytes) + LENGTH_SIZE + len(text)
        if len(body) > tables.body_limit or len(text) > tables.properties_limit or size > tables.record_limit:
            return None
        tail, crc = text.encode(), _crc32(body) & CRC_MASK
        writer, log = self._writer, self._log
        with writer.lock:
            if writer.is_closed or writer.is_broken or self._reput.error is not None:
                return None  # the long way says why
            offset = log.end
            if size > log.limit - offset:
                return None
            if queue_id is None:
                queue_id = known.turns.next
                if queue_id < 0:
                    return None
                known.turns.next = queue_id + 1 if queue_id + 1 < known.count else 0
            queue = known.queues[queue_id]
            queue_offset, stored_at = queue.next, now_ms
            if stored_at < log.store_timestamp:  # others were stored while this one waited
                stored_at = _time_ns() // 1_000_000
            head = pack_head(
                size, magic, crc, queue_id, 0, queue_offset, offset, 0, now_ms, born_host, stored_at,
                store_host, 0, 0, len(body),
            )  # fmt: skip
            try:
                log.append(_join((head, body, topic_bytes, pack_length(len(text)), tail)), offset)
                log.store_timestamp = stored_at
                queue.next = queue_offset + 1
            except BaseException as error:
                writer.interrupted(error)
                raise
        return _new(
            PutResult,
            (offset, queue_offset, size, topic, queue_id, stored_at, (offset,), store_host, False),
        )

    def learn(self, message: NewMessage) -> None:
        """Note an ordinary message that was put: others like it may take the fast path."""
        topic, own = message.topic, message.properties
        if type(own) is not dict or not _is_ordinary(message) or self._tables.crc_size:
            return
        self._tables.plan_of((not message.tags, not message.keys, not message.wait, tuple(own)))
        if topic in self._topics:
            return
        if len(self._topics) >= _TOPICS_MAX:
            self._topics.clear()
        writer = self._writer
        turns = writer.targets.turns(topic)
        if turns is None or turns.count > _QUEUES_MAX:
            self._topics[topic] = None
            return
        with writer.lock:
            queues = [writer.offsets.queue(topic, queue_id) for queue_id in range(turns.count)]
        self._topics[topic] = _Topic(self._tables.topic_of(topic), turns, queues)


def _is_ordinary(message: NewMessage) -> bool:
    return not (
        message.flag or message.sys_flag or message.delay_level or message.reconsume_times
        or message.prepared_transaction_offset or message.compression != "none"
        or message.born_host is not None or message.store_host is not None
        or message.born_timestamp is not None or message.store_timestamp is not None
    )  # fmt: skip
