"""The property string of a message that no template covers, and the topic and queue that it determines.

`rewrite` redirects half, delayed and timer messages: they are stored under a system topic.

Source: SendMessageProcessor#sendMessage, HookUtils#checkInnerBatch, MessageExtEncoder#encode;
spec 01 3.6, 10.1 to 10.3.
TransactionalMessageBridge#parseHalfMessageInner, CommitLog#asyncPutMessage (4.9),
HookUtils#handleScheduleMessage (5.x); spec 01 10.3.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from rmqtool.errors import IllegalMessageError
from rmqtool.formats import properties
from rmqtool.formats.java import java_utf8_encode
from rmqtool.formats.message import (
    INNER_BATCH,
    PROPERTY_CRC_NAME,
    PROPERTY_CRC_SIZE,
    TRANSACTION_COMMIT,
    TRANSACTION_MASK,
)
from rmqtool.formats.properties import (
    DELAY,
    INNER_NUM,
    MAX_SIZE,
    REAL_QID,
    REAL_TOPIC,
    TIMER_DEL_UNIQKEY,
    TIMER_DELAY_MS,
    TIMER_DELAY_SEC,
    TIMER_DELIVER_MS,
    TIMER_OUT_MS,
    TRAN_MSG,
    TRANSACTION_ID,
    UNIQ_KEY,
    VALUE_END,
)
from rmqtool.lazy_dataclass import dataclass
from rmqtool.message.system_topics import HALF_TOPICS, SCHEDULE_TOPIC, TIMER_TOPIC
from rmqtool.storage.profile import Profile
from rmqtool.write.options import WriteOptions
from rmqtool.write.records.deferred_offsets import DeferredOffsets, deferred_offsets
from rmqtool.write.records.message import NewMessage
from rmqtool.write.records.property_map import (
    broker_map,
    check_pairs,
    check_units,
    client_map,
    first_string,
    illegal,
    is_true,
    map_string,
    number_of,
    put_wait_last,
    too_large,
)

HALF_TOPIC: Final = HALF_TOPICS[0]
TIMER_MAX_DELAY_MS = 259_200_000  # timerMaxDelaySec
TIMER_PRECISION_MS = 1000  # timerPrecisionMs

REWRITING_NAMES = frozenset({DELAY, TRAN_MSG, TIMER_DELAY_SEC, TIMER_DELAY_MS, TIMER_DELIVER_MS})
"""Without any of these properties a message stays under its topic."""


@dataclass(slots=True)
class Target:
    """Where a message goes, changed step by step; `rewritten`: its string was made once more."""

    topic: str
    queue_id: int
    sys_flag: int
    found: dict[str, str]
    rewritten: bool = False

    def move(self, topic: str, queue_id: int) -> None:
        """Store it under another topic; REAL_TOPIC and REAL_QID name the present one."""
        self.found[REAL_TOPIC] = self.topic
        self.found[REAL_QID] = str(self.queue_id)
        self.topic, self.queue_id, self.rewritten = topic, queue_id, True


def rewrite(target: Target, options: WriteOptions, now_ms: int, reconsume_times: int) -> None:
    """Redirect `target` as a broker would.

    Raises:
        IllegalMessageError: a time or level that is not a number, a timer out of its range, or a
            transaction that is to be delayed, which would never be delivered.
    """
    found = target.found
    level = number_of(found, DELAY, 32)
    if is_true(found.get(TRAN_MSG)) and not (reconsume_times > 0 and level > 0):
        if level > 0 or (options.profile.has_timer and _is_timer(found)):
            raise illegal(
                "a transaction cannot be delayed", column="delay_level" if level > 0 else "properties"
            )
        _make_half(target, options)
    if target.sys_flag & TRANSACTION_MASK not in (0, TRANSACTION_COMMIT):
        return
    if options.profile.has_timer:
        if level > 0:
            for name in (TIMER_DELIVER_MS, TIMER_DELAY_SEC, TIMER_DELAY_MS):
                found.pop(name, None)
        elif target.topic != TIMER_TOPIC and _is_timer(found):
            _make_timer(target, now_ms)
    if level > 0:
        make_delayed(target, options, level)


def make_delayed(target: Target, options: WriteOptions, level: int) -> None:
    """Move it to the queue of its delay level; a level above the table's counts as its last."""
    highest = len(options.delays_ms)
    if not highest:
        raise illegal("the store has no delay levels", column="delay_level")
    if level > highest:
        level = highest
        target.found[DELAY] = str(level)
    target.move(SCHEDULE_TOPIC, level - 1)


def _make_half(target: Target, options: WriteOptions) -> None:
    uniq_key = target.found.get(UNIQ_KEY)
    if options.profile.names_transaction and uniq_key:
        target.found[TRANSACTION_ID] = uniq_key
    target.sys_flag &= ~TRANSACTION_MASK
    target.move(HALF_TOPIC, 0)


def _is_timer(found: Mapping[str, str]) -> bool:
    return TIMER_OUT_MS not in found and not found.keys().isdisjoint(
        (TIMER_DELIVER_MS, TIMER_DELAY_MS, TIMER_DELAY_SEC)
    )


def _make_timer(target: Target, now_ms: int) -> None:
    found = target.found
    try:
        if TIMER_DELAY_SEC in found:
            deliver_ms = now_ms + number_of(found, TIMER_DELAY_SEC) * 1000
        elif TIMER_DELAY_MS in found:
            deliver_ms = now_ms + number_of(found, TIMER_DELAY_MS)
        else:
            deliver_ms = number_of(found, TIMER_DELIVER_MS)
    except ValueError as error:
        raise _illegal_timer("a timer's time is not an integer") from error
    if deliver_ms <= now_ms:
        if TIMER_DEL_UNIQKEY in found:
            raise _illegal_timer("the timer to delete is already due")
        return
    if deliver_ms - now_ms > TIMER_MAX_DELAY_MS:
        raise _illegal_timer(
            f"a timer {deliver_ms - now_ms} ms ahead: at most {TIMER_MAX_DELAY_MS} ms are allowed"
        )
    # A multiple goes one step lower, as in Java.
    found[TIMER_OUT_MS] = str((deliver_ms - 1) // TIMER_PRECISION_MS * TIMER_PRECISION_MS)
    target.move(TIMER_TOPIC, 0)


def _illegal_timer(text: str) -> IllegalMessageError:
    return illegal(text, status="WHEEL_TIMER_MSG_ILLEGAL", column="properties")


_END = VALUE_END.encode()
_INNER = b"INNER_"  # begins all names that make a record `late`


class Stored(NamedTuple):
    """The values that the properties of a message determine.

    Attributes:
        topic: where it goes, with `queue_id`.
        data: the property string, UTF-8, without the property CRC.
        sealed: the property CRC follows.
        late: offsets that it waits for.
        takes: how many queue offsets.
    """

    topic: str
    queue_id: int
    sys_flag: int
    data: bytes
    sealed: bool
    late: DeferredOffsets | None
    takes: int


def place_new(
    message: NewMessage,
    options: WriteOptions,
    now_ms: int,
    queue_id: int,
    sys_flag: int,
    uniq_key: str,
    *,
    batch_topic: bool,
) -> Stored:
    """A new message, through every rule of the broker.

    Args:
        message: its `properties` are a mapping.
        options: of the store.
        now_ms: ms since 1970.
        queue_id: of its topic.
        sys_flag: with what compression and topic add.
        uniq_key: for UNIQ_KEY, when the properties have none.
        batch_topic: the topic has queue.type=BatchCQ.

    Raises:
        IllegalMessageError: see `prepare`.
    """
    profile = options.profile
    client = client_map(message, uniq_key)
    check_pairs(client.items())
    found = broker_map(client, options)
    if options.property_crc:
        found.pop(PROPERTY_CRC_NAME, None)
    text = first_string(found, profile)
    if profile.checks_properties_early:
        check_units(text)
    if not profile.stores_wait:
        put_wait_last(found)
    target = Target(message.topic, queue_id, sys_flag, found)
    rewrite(target, options, now_ms, message.reconsume_times)
    if target.rewritten:
        text = map_string(found, profile)
        if profile.checks_properties_early and target.topic != SCHEDULE_TOPIC:
            check_units(text)
    data = java_utf8_encode(text)
    check_size(data, sealed=options.property_crc)
    check_inner(found, sys_flag, profile, batch_topic=batch_topic)
    return Stored(
        target.topic, target.queue_id, target.sys_flag, data, options.property_crc,
        deferred_offsets(found, target.topic, target.queue_id, target.sys_flag, options),
        count_of(found, target.sys_flag),
    )  # fmt: skip


def place_stored(
    message: NewMessage, options: WriteOptions, queue_id: int, sys_flag: int, *, batch_topic: bool
) -> Stored:
    """A message whose properties are a stored string: only its property CRC is computed again.

    Raises:
        IllegalMessageError: fields that are properties are given too; the string is too large, or
            the message is an inner batch and the topic does not take it.
    """
    if message.tags or message.keys or message.uniq_key or message.delay_level:
        raise illegal("tags, keys, uniq_key and delay_level cannot join properties that are kept as stored")
    data = bytes(message.properties) if isinstance(message.properties, bytes) else b""
    sealed = True
    if properties.property_crc(data) is not None:
        data = data[:-PROPERTY_CRC_SIZE]
    elif options.property_crc:
        data += _END if data and not data.endswith(_END) else b""
    else:
        sealed = False
    check_size(data, sealed=sealed)
    found = properties.decode(data) if _INNER in data or sys_flag & INNER_BATCH else {}
    check_inner(found, sys_flag, options.profile, batch_topic=batch_topic)
    return Stored(
        message.topic, queue_id, sys_flag, data, sealed,
        deferred_offsets(found, message.topic, queue_id, sys_flag, options, data), count_of(found, sys_flag),
    )  # fmt: skip


def check_size(data: bytes, *, sealed: bool) -> None:
    """Raises IllegalMessageError for more than 32767 bytes, those of the property CRC included."""
    size = len(data) + sealed * PROPERTY_CRC_SIZE
    if size > MAX_SIZE:
        raise too_large(size)


def check_inner(found: Mapping[str, str], sys_flag: int, profile: Profile, *, batch_topic: bool) -> None:
    """Refuse a batch in one record where none can be. Raises IllegalMessageError."""
    if not profile.has_inner_batch:
        return
    if sys_flag & INNER_BATCH:
        if not batch_topic:
            raise illegal(
                "an inner batch (sys_flag 80) is for topics with queue.type=BatchCQ only", column="sys_flag"
            )
    elif INNER_NUM in found:
        raise illegal("the property INNER_NUM is for an inner batch (sys_flag 80) only", column="properties")


def count_of(found: Mapping[str, str], sys_flag: int) -> int:
    """Queue offsets that a record takes. Raises IllegalMessageError: INNER_NUM is not a number."""
    return max(number_of(found, INNER_NUM), 1) if sys_flag & INNER_BATCH else 1
