"""The usual answer to a pull, checked at once: messages of an ordinary queue, close together in one file.

Compiled code takes the units and the records with one call. Where it finds anything that is not as it should
be, `get_message` and `records.checked_records` look at units and records one by one, and know why.
"""

from __future__ import annotations

from typing import Any, cast

from rmqtool.formats.consume_queue import UNIT, UNIT_SIZE
from rmqtool.formats.java import java_utf8_encode
from rmqtool.queue.consume_queue import ConsumeQueue
from rmqtool.report.tail.log_reader import LogReader

_SPAN_BYTES = 1 << 20  # records further apart are read one by one
_RECORDS_MAX = 1024
_ANY_VERSION = 2


class WholeAnswer:
    """Checks answers; `load` makes it ready, until then nothing is taken."""

    def __init__(self) -> None:
        self._is_ready = False

    def load(self) -> None:
        """Load the compiled check, which may take seconds. For any thread."""
        import numpy as np

        from rmqtool.log.crc import crc_address, crc_tables
        from rmqtool.log.frame_kernel import Checks
        from rmqtool.log.frames import numbers
        from rmqtool.queue.pull_kernel import sound_records

        self._array: Any = np.frombuffer
        self._counts, out = np.zeros(1, np.int64), np.empty(_SPAN_BYTES, np.uint8)
        self._out = out.data
        checks = Checks(True, True, False, crc_address())
        self._sound_records: Any = cast("Any", sound_records).bound(
            UNIT_SIZE, self._counts, out, checks, crc_tables(), numbers()
        )
        self._check(b"\0" * UNIT_SIZE, b"\0", 0, b"T", 0, 0, _ANY_VERSION, 0)
        self._is_ready = True

    def _check(
        self, units: bytes, data: bytes, base: int, topic: bytes, queue_id: int, offset: int, version: int,
        most_bytes: int,
    ) -> int:  # fmt: skip
        """See `pull_kernel.sound_records`."""
        array = self._array
        return int(self._sound_records(
            array(units, "u1"), array(data, "u1"), base, array(topic, "u1"), queue_id, offset, version,
            most_bytes,
        ))  # fmt: skip

    def answer(
        self, log: LogReader, queue: ConsumeQueue, topic: str, queue_id: int, start: int, stop: int,
        *, most_bytes: int, version_1: bool,
    ) -> tuple[int, memoryview] | None:  # fmt: skip
        """(messages, their records in order); None where units and records must be looked at one by one.

        The records are those of this answer until the next one is asked for.

        Args:
            log: where the records lie.
            queue: whose messages are wanted.
            topic: of the queue.
            queue_id: of the queue.
            start: queue offset of the first message.
            stop: queue offset after the last one; a file of the queue may end before.
            most_bytes: of all records; the first is taken whatever its size.
            version_1: all of them must be of version 1.
        """
        file = queue.file_of(start) if self._is_ready else None
        if file is None:
            return None
        units = queue.data(file, start, min(stop, start + _RECORDS_MAX))
        if len(units) < UNIT_SIZE:
            return None
        base = UNIT.codec.unpack_from(units)[0]
        last, size, _ = UNIT.codec.unpack_from(units, len(units) - len(units) % UNIT_SIZE - UNIT_SIZE)
        length = last + size - base
        span = log.span(base, length) if base >= 0 < length <= _SPAN_BYTES else None
        if span is None:
            return None
        version = 1 if version_1 else _ANY_VERSION
        name = java_utf8_encode(topic)
        taken = self._check(units, span.data, span.start, name, queue_id, start, version, most_bytes)
        return (int(self._counts[0]), self._out[:taken]) if taken else None
