"""The usual answer to a pull, checked at once: messages of an ordinary queue, close together in one file.

Compiled code takes the units and the records with one call. Where it finds anything that is not as it should
be, `get_message` and `records.checked_records` look at units and records one by one, and know why. Nothing is
copied here: the pieces are views of the bytes that were read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rmqtool.formats.consume_queue import UNIT, UNIT_SIZE
from rmqtool.formats.java import java_utf8_encode
from rmqtool.queue.consume_queue import ConsumeQueue
from rmqtool.report.tail.log_reader import LogReader

if TYPE_CHECKING:
    from rmqtool.log.frame_kernel import Checks

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
        self._sound_records = sound_records
        self._checks: Checks = Checks(True, True, False, crc_address())
        self._tables, self._numbers = crc_tables(), numbers()
        self._runs = np.empty((_RECORDS_MAX + 1, 2), np.int64)
        self._check(b"\0" * UNIT_SIZE, b"\0", 0, b"T", 0, 0, _ANY_VERSION, 0)
        self._is_ready = True

    def _check(
        self, units: bytes, data: bytes, base: int, topic: bytes, queue_id: int, offset: int, version: int,
        most_bytes: int,
    ) -> int:  # fmt: skip
        """See `pull_kernel.sound_records`."""
        array = self._array
        return self._sound_records(
            array(units, "u1"), array(data, "u1"), base, array(topic, "u1"), queue_id, offset, version,
            most_bytes, UNIT_SIZE, self._runs, self._checks, self._tables, self._numbers,
        )  # fmt: skip

    def answer(
        self, log: LogReader, queue: ConsumeQueue, topic: str, queue_id: int, start: int, stop: int,
        *, most_bytes: int, version_1: bool,
    ) -> tuple[int, list[memoryview]] | None:  # fmt: skip
        """(messages, their bytes in order); None where units and records must be looked at one by one.

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
        read = log.span(base, length) if base >= 0 < length <= _SPAN_BYTES else None
        if read is None:
            return None
        version = 1 if version_1 else _ANY_VERSION
        name = java_utf8_encode(topic)
        count = self._check(units, read, base, name, queue_id, start, version, most_bytes)
        if not count:
            return None
        view = memoryview(read)
        pieces = []
        for begin, end in self._runs[: count + 1].tolist():
            if begin < 0:
                break
            pieces.append(view[begin:end])
        return count, pieces
