"""Messages that a broker stores under another topic: half, delayed, timer.

Source: TransactionalMessageBridge#parseHalfMessageInner, CommitLog#asyncPutMessage (4.9),
HookUtils#handleScheduleMessage (5.x); spec 01 10.3.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from rmqtool.errors import IllegalMessageError
from rmqtool.formats.message import TRANSACTION_COMMIT, TRANSACTION_MASK
from rmqtool.formats.properties import (
    DELAY,
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
)
from rmqtool.message.system_topics import HALF_TOPICS, SCHEDULE_TOPIC, TIMER_TOPIC
from rmqtool.write.options import WriteOptions
from rmqtool.write.records.property_map import illegal, is_true, number_of

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
    """Do with `target` what the broker would do.

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
