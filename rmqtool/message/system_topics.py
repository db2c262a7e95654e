"""The meaning of a system record: half, op, delayed, timer, retry, dead letter, trace.

`describe` turns one message into a small JSON object, or None for an ordinary message:

    kind             where                                      says
    half             RMQ_SYS_TRANS_HALF_TOPIC                   real topic and queue, transaction, checks
    half_discarded   TRANS_CHECK_MAX_TIME_TOPIC                 the same, after too many checks
    op               RMQ_SYS_TRANS_OP_HALF_TOPIC                which half queue offsets are finished
    committed        real topic, sys_flag commit                the half message's physical offset
    delayed          SCHEDULE_TOPIC_XXXX                        level, delivery time, real topic and queue
    delayed_delivered  real topic, property DELAY               level it had waited for
    timer            rmq_sys_wheel_timer                        delivery time, real topic and queue
    timer_delivered  real topic, property TIMER_OUT_MS          when it was due, when it left the wheel
    retry            %RETRY%<group>                             group, first topic and message, attempts
    dead_letter      %DLQ%<group>                               the same
    inner_batch      sys_flag inner batch                       base queue offset and the messages inside
    trace            RMQ_SYS_TRACE_TOPIC                        the trace records of the body

A delayed record for a retry topic (every consumer retry starts this way) has the fields of `retry` in an
object `retry`. Property values come from disk: a number that cannot be parsed is null.

Source: TransactionalMessageBridge, TransactionalMessageServiceImpl, ScheduleMessageService,
TimerMessageStore, AbstractSendMessageProcessor#consumerSendMsgBack; spec 01 10.3, spec 02 10, 11.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, tzinfo
from typing import Any

from rmqtool import times
from rmqtool.errors import FormatError, InputError, UsageError
from rmqtool.formats import batch, body, message, properties, trace
from rmqtool.formats.message import Message
from rmqtool.lazy_dataclass import dataclass
from rmqtool.lazy_pattern import pattern

HALF_TOPICS = ("RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_ROCKSDB_TRANS_HALF_TOPIC")
ROCKSDB_OP_TOPIC = "RMQ_SYS_ROCKSDB_TRANS_OP_HALF_TOPIC"
OP_TOPICS = ("RMQ_SYS_TRANS_OP_HALF_TOPIC", ROCKSDB_OP_TOPIC)
OP_TOPIC_OF = dict(zip(HALF_TOPICS, OP_TOPICS, strict=True))
DISCARDED_TOPIC = "TRANS_CHECK_MAX_TIME_TOPIC"
SCHEDULE_TOPIC = "SCHEDULE_TOPIC_XXXX"
TIMER_TOPIC = "rmq_sys_wheel_timer"
RETRY_PREFIX = "%RETRY%"
DLQ_PREFIX = "%DLQ%"

# Topics that every broker has without topics.json (TopicValidator).
BUILT_IN_TOPICS = frozenset({
    *HALF_TOPICS, *OP_TOPICS, DISCARDED_TOPIC, SCHEDULE_TOPIC, trace.TRACE_TOPIC, "TBW102", "BenchmarkTest",
    "SELF_TEST_TOPIC", "OFFSET_MOVED_EVENT", "CHECKPOINT_TOPIC",
})  # fmt: skip
BUILT_IN_PREFIX = "rmq_sys_"

TRANSACTION_GROUP = "CID_RMQ_SYS_TRANS"
"""The group whose offsets say how far a broker has checked half messages and op records."""
# Groups that every broker has of itself (SubscriptionGroupManager#init).
BUILT_IN_GROUPS = frozenset({
    TRANSACTION_GROUP, "TOOLS_CONSUMER", "FILTERSRV_CONSUMER", "SELF_TEST_C_GROUP", "CID_ONS-HTTP-PROXY",
    "CID_ONSAPI_PULL", "CID_ONSAPI_PERMISSION", "CID_ONSAPI_OWNER",
})  # fmt: skip

# Built-in topics that have a name in their name (TopicConfigManager#init).
MEMBER_PREFIX = "rmq_sys_SYNC_BROKER_MEMBER_"
"""Before the name of the broker."""
REVIVE_PREFIX = "rmq_sys_REVIVE_LOG_"
"""Before the name of the cluster."""
REPLY_SUFFIX = "_REPLY_TOPIC"
"""After the name of the cluster."""

# Properties that no other module uses (MessageConst).
CHECK_IMMUNITY_TIME_IN_SECONDS = "CHECK_IMMUNITY_TIME_IN_SECONDS"
TIMER_ENQUEUE_MS = "TIMER_ENQUEUE_MS"
TIMER_DEQUEUE_MS = "TIMER_DEQUEUE_MS"

DEFAULT_DELAY_LEVELS = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
UNKNOWN_LEVEL_DELAY_MS = 1000
_UNIT_MS = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_LONG = 1 << 64  # number of values of a Java long
_LEVEL = pattern(r"(\d{1,12})([smhd])", re.ASCII)
_NAME = pattern(r"[%|a-zA-Z0-9_-]+", re.ASCII)
_NAME_MAX = 255  # %RETRY% topics; how long other names may be depends on the version
_INTEGER = pattern(r"-?\d{1,19}", re.ASCII)

Description = dict[str, Any]
DueOf = Callable[[Message, int], int | None]
"""The delivery time of a delayed record of a level, ms since 1970; None if unknown."""


def is_system_topic(topic: str) -> bool:
    """Whether a broker creates this topic itself. Source: TopicValidator#isSystemTopic."""
    return topic in BUILT_IN_TOPICS or topic.startswith(BUILT_IN_PREFIX)


def is_topic_name(topic: str) -> bool:
    """Whether a broker may have made a topic of this name: no path can be made of it."""
    return len(topic) <= _NAME_MAX and _NAME.fullmatch(topic) is not None


def parse_delay_levels(text: str) -> tuple[int, ...]:
    """The delays in ms of a `messageDelayLevel` text; level n is element n - 1.

    Raises:
        UsageError: a piece is not a number followed by s, m, h or d.

    Source: MessageStoreConfig#messageDelayLevel, ScheduleMessageService#parseDelayLevel.
    """
    delays = []
    for piece in text.split():
        level = _LEVEL.fullmatch(piece)
        if level is None:
            raise UsageError(
                f"delay level {piece!r} is not a number followed by s, m, h or d",
                hint="messageDelayLevel looks like: 1s 5s 10s 30s 1m",
            )
        delays.append(int(level[1]) * _UNIT_MS[level[2]])
    return tuple(delays)


DEFAULT_DELAYS_MS = parse_delay_levels(DEFAULT_DELAY_LEVELS)


def deliver_timestamp(store_timestamp: int, level: int, delays_ms: Sequence[int] = DEFAULT_DELAYS_MS) -> int:
    """When a delayed message is due, ms since 1970.

    A level above the table counts as the highest; with an empty table the delay is one second. The sum wraps
    around like a Java long.

    Source: ScheduleMessageService#computeDeliverTimestamp, MessageStore level cap; spec 01 5.2.
    """
    capped = min(level, len(delays_ms))
    due = store_timestamp + (delays_ms[capped - 1] if capped > 0 else UNKNOWN_LEVEL_DELAY_MS)
    return (due + _LONG // 2) % _LONG - _LONG // 2


def due_by_table(delays_ms: Sequence[int]) -> DueOf:
    """The delivery times of a broker with this delay table; level n is element n - 1."""
    return lambda record, level: deliver_timestamp(record.store_timestamp, level, delays_ms)


def describe(
    record: Message,
    *,
    due_of: DueOf | None = None,
    tz: tzinfo | None = UTC,
    decoded: Mapping[str, str] | None = None,
    bodies: bool = True,
    body_limit: int = body.BODY_LIMIT,
) -> Description | None:
    """The meaning of a system record, as a JSON object; None for an ordinary message.

    Args:
        record: the message.
        due_of: gives the delivery time of delayed messages, which the record does not contain; with None
            that time is null.
        tz: zone of the RFC 3339 times next to the `_ms` numbers; None is the local zone.
        decoded: the record's properties, if the caller has decoded them already.
        bodies: include the bodies of the messages in a batch.
        body_limit: most bytes of an unpacked batch or trace body.

    A value that cannot be read is null, or `unreadable` gives the reason. Bytes from disk never raise.
    """
    found = properties.decode(record.properties_bytes) if decoded is None else decoded
    view = _View(record, found, due_of, tz, bodies, body_limit)
    by_topic = _BY_TOPIC.get(record.topic)
    if by_topic is not None:
        return by_topic(view)
    if record.sys_flag & message.INNER_BATCH:
        return _inner_batch(view)
    if record.transaction_type == message.TRANSACTION_COMMIT:
        return _committed(view)
    if record.topic.startswith(RETRY_PREFIX):
        return {"kind": "retry", **_retry(view, record.topic)}
    if record.topic.startswith(DLQ_PREFIX):
        return {"kind": "dead_letter", **_retry(view, record.topic)}
    if properties.TIMER_OUT_MS in found:
        return _timer_delivered(view)
    if properties.REAL_TOPIC in found and (view.number(properties.DELAY) or 0) > 0:
        return _delayed_delivered(view)
    return None


@dataclass(frozen=True, slots=True)
class _View:
    """One record with its properties, and readers for its numbers, times and body."""

    record: Message
    found: Mapping[str, str]
    due_of: DueOf | None
    tz: tzinfo | None
    bodies: bool
    body_limit: int

    def number(self, name: str) -> int | None:
        text = self.found.get(name, "")
        return int(text) if _INTEGER.fullmatch(text) else None

    def time(self, name: str, timestamp_ms: int | None) -> Description:
        """The pair `<name>_timestamp_ms`, `<name>_time`."""
        text = None if timestamp_ms is None else times.format_time(timestamp_ms, self.tz)
        return {f"{name}_timestamp_ms": timestamp_ms, f"{name}_time": text}

    def real(self) -> Description:
        return {
            "real_topic": self.found.get(properties.REAL_TOPIC),
            "real_queue_id": self.number(properties.REAL_QID),
        }

    def transaction(self) -> Description:
        """5.x stores the transaction id; in 4.x it is the unique key."""
        name = self.found.get(properties.TRANSACTION_ID) or self.found.get(properties.UNIQ_KEY)
        return {"transaction_id": name, "producer_group": self.found.get(properties.PGROUP)}

    def body(self) -> bytes:
        """The body as the application sees it. Raises InputError when it cannot be unpacked."""
        return body.decompress(self.record.body, self.record.sys_flag, limit=self.body_limit)


def _half(view: _View) -> Description:
    return {
        "kind": "half_discarded" if view.record.topic == DISCARDED_TOPIC else "half",
        **view.real(),
        **view.transaction(),
        "check_times": view.number(properties.TRANSACTION_CHECK_TIMES) or 0,
        "first_half_queue_offset": view.number(properties.TRAN_PREPARED_QUEUE_OFFSET),
        "check_immunity_s": view.number(CHECK_IMMUNITY_TIME_IN_SECONDS),
    }


def _op(view: _View) -> Description:
    """4.x writes one number, 5.x a list in which a comma follows every number.

    With transactions in RocksDB a property names the half message by its physical offset.
    """
    if view.record.topic == ROCKSDB_OP_TOPIC:
        place = view.number(properties.TRANS_OFFSET)
        of_rocksdb: Description = {
            "kind": "op", "half_queue_id": view.record.queue_id, "half_queue_offsets": [],
            "half_physical_offset": place,
        }  # fmt: skip
        return of_rocksdb if place is not None else of_rocksdb | {"unreadable": "no physical offset"}
    offsets, others = op_offsets(view.record.body)
    result: Description = {
        "kind": "op",
        "half_queue_id": view.record.queue_id,
        "half_queue_offsets": offsets,
    }
    if others:
        result["unreadable"] = f"{others} of {len(offsets) + others} pieces are not queue offsets"
    return result


def op_offsets(body: bytes) -> tuple[list[int], int]:
    """(queue offsets of half messages that the body of an op record names, how many pieces name none)."""
    pieces = [piece for piece in body.split(b",") if piece.strip()]
    texts = [piece.decode("latin-1").strip() for piece in pieces]
    offsets = [int(text) for text in texts if _INTEGER.fullmatch(text)]
    return offsets, len(texts) - len(offsets)


def _committed(view: _View) -> Description:
    return {
        "kind": "committed",
        "half_physical_offset": view.record.prepared_transaction_offset,
        **view.transaction(),
    }


def _delayed(view: _View) -> Description:
    """The level is DELAY; if that cannot be parsed, it follows from the queue id."""
    level = view.number(properties.DELAY) or view.record.queue_id + 1
    real = view.real()
    due = view.due_of(view.record, level) if view.due_of is not None else None
    result = {"kind": "delayed", "level": level, **view.time("deliver", due), **real}
    if str(real["real_topic"] or "").startswith(RETRY_PREFIX):
        result["retry"] = _retry(view, str(real["real_topic"]))
    return result


def _delayed_delivered(view: _View) -> Description:
    return {"kind": "delayed_delivered", "level": view.number(properties.DELAY)}


def _timer(view: _View) -> Description:
    found = view.found
    return {
        "kind": "timer",
        **view.time("deliver", view.number(properties.TIMER_OUT_MS)),
        **view.real(),
        "roll_times": view.number(properties.TIMER_ROLL_TIMES) or 0,
        "deletes_uniq_key": found.get(properties.TIMER_DEL_UNIQKEY),
    }


def _timer_delivered(view: _View) -> Description:
    return {
        "kind": "timer_delivered",
        **view.time("deliver", view.number(properties.TIMER_OUT_MS)),
        **view.time("enqueue", view.number(TIMER_ENQUEUE_MS)),
        **view.time("dequeue", view.number(TIMER_DEQUEUE_MS)),
    }


def _retry(view: _View, topic: str) -> Description:
    found = view.found
    prefix = RETRY_PREFIX if topic.startswith(RETRY_PREFIX) else DLQ_PREFIX
    return {
        "group": topic.removeprefix(prefix),
        "origin_topic": found.get(properties.DLQ_ORIGIN_TOPIC) or found.get(properties.RETRY_TOPIC),
        "origin_message_id": found.get(properties.DLQ_ORIGIN_MESSAGE_ID)
        or found.get(properties.ORIGIN_MESSAGE_ID),
        "reconsume_times": view.record.reconsume_times,
    }


def _inner_batch(view: _View) -> Description:
    base = view.number(properties.INNER_BASE)
    base = view.record.queue_offset if base is None else base
    result: Description = {
        "kind": "inner_batch",
        "base_queue_offset": base,
        "count": view.number(properties.INNER_NUM),
        "messages": [],
    }
    try:
        for index, item in enumerate(batch.decode_items(view.body())):
            result["messages"].append(_inner_message(base + index, item, view.bodies))
    except InputError as error:
        result["unreadable"] = str(error)
    return result


def _inner_message(queue_offset: int, item: batch.BatchItem, bodies: bool) -> Description:
    result: Description = {"queue_offset": queue_offset, "flag": item.flag, "body_length": len(item.body)}
    if bodies:
        try:
            result |= {"body": item.body.decode(), "body_encoding": "utf-8"}
        except UnicodeDecodeError:
            result |= {"body": base64.b64encode(item.body).decode(), "body_encoding": "base64"}
    return result | {"properties": properties.decode(item.properties_bytes)}


def _trace(view: _View) -> Description:
    try:
        return {"kind": "trace", "traces": [_one_trace(view, each) for each in trace.decode(view.body())]}
    except InputError as error:
        return {"kind": "trace", "traces": [], "unreadable": str(error)}


def _one_trace(view: _View, each: trace.Trace) -> Description:
    """One trace as named fields; as a list of its values if they are malformed."""
    try:
        fields: Description = each.fields()
    except FormatError as error:
        return {"kind": each.kind, "values": list(each.values), "unreadable": str(error)}
    if "timestamp" not in fields:
        return {"kind": each.kind, **fields}
    timestamp_ms = fields.pop("timestamp")
    text = times.format_time(timestamp_ms, view.tz) if isinstance(timestamp_ms, int) else None
    return {"kind": each.kind, "timestamp_ms": timestamp_ms, "time": text, **fields}


_BY_TOPIC: dict[str, Callable[[_View], Description]] = {
    **dict.fromkeys((*HALF_TOPICS, DISCARDED_TOPIC), _half),
    **dict.fromkeys(OP_TOPICS, _op),
    SCHEDULE_TOPIC: _delayed,
    TIMER_TOPIC: _timer,
    trace.TRACE_TOPIC: _trace,
}
