"""POP records in RocksDB: what consumers have received by pop and not acknowledged.

    popState   due time i64 | group | @ | topic | @ | queue id i32 | @ | queue offset i64 -> JSON

Everything is big-endian, so the records are in the order of their due times.

Source: PopConsumerRecord, PopConsumerRocksdbStore; spec 06 section 4.
"""

from __future__ import annotations

import struct
from typing import Any

from rmqtool.errors import FormatError
from rmqtool.formats import config_json
from rmqtool.formats.java import java_utf8_encode
from rmqtool.formats.parts import GreedyString, Struct
from rmqtool.lazy_dataclass import dataclass

FAMILY = "popState"
"""The column family."""

VALUE = Struct(
    "document"
    / GreedyString("utf-8")
    * "JSON: popTime and invisibleTime in ms, groupId, topicId, queueId, offset (the queue offset), retryFlag"
    " (the topic is the retry topic: 1 of v1, 2 of v2), attemptTimes, attemptId",
)
TEXT = (
    "A message that a group has popped and not acknowledged: a value of the column family `popState` in"
    " kvStore/. Its key: due time in ms (8), group, `@`, topic, `@`, queue id (4), `@`, queue offset (8)."
)

_DUE = struct.Struct(">q")
_TAIL = struct.Struct(">cicq")


@dataclass(frozen=True, slots=True)
class PopRecord:
    """A message that a group has received and not acknowledged; it is received again at `due_ms`."""

    group: str
    topic: str
    queue_id: int
    queue_offset: int
    pop_ms: int
    invisible_ms: int
    retry: int
    attempts: int
    attempt_id: str | None

    @property
    def due_ms(self) -> int:
        """When it is received again, ms since 1970."""
        return self.pop_ms + self.invisible_ms


def key_of(record: PopRecord) -> bytes:
    """The key of a record."""
    names = java_utf8_encode(f"{record.group}@{record.topic}")
    return _DUE.pack(record.due_ms) + names + _TAIL.pack(b"@", record.queue_id, b"@", record.queue_offset)


def decode(key: bytes, value: bytes) -> PopRecord:
    """The record of a key and its value.

    Raises:
        FormatError: the value is not a record in JSON, or has another key.
    """
    found = config_json.parse(value)
    if not isinstance(found, dict):
        raise FormatError("a POP record that is not a JSON object")
    attempt_id = found.get("attemptId")
    record = PopRecord(
        group=_text(found, "groupId"),
        topic=_text(found, "topicId"),
        queue_id=_number(found, "queueId"),
        queue_offset=_number(found, "offset"),
        pop_ms=_number(found, "popTime"),
        invisible_ms=_number(found, "invisibleTime"),
        retry=_number(found, "retryFlag"),
        attempts=_number({"attemptTimes": 0, **found}, "attemptTimes"),
        attempt_id=attempt_id if isinstance(attempt_id, str) else None,
    )
    try:
        expected = key_of(record)
    except struct.error as error:
        raise FormatError("a POP record with a number out of its range") from error
    if expected != key:
        raise FormatError("a POP record that has another key than its values say")
    return record


def _number(found: dict[Any, Any], name: str) -> int:
    value = found.get(name)
    if not isinstance(value, int) or isinstance(value, bool):
        raise FormatError(f"a POP record whose {name} is {value!r:.40}, not a number")
    return value


def _text(found: dict[Any, Any], name: str) -> str:
    value = found.get(name)
    if not isinstance(value, str):
        raise FormatError(f"a POP record whose {name} is {value!r:.40}, not a text")
    return value
