"""Judges the bytes of a commit log while they arrive: how far they are whole, sound records.

The compiled walk of `frames`, for bytes that end anywhere: the last record is accepted as soon as its last
byte is there, and what is not whole yet is neither a record nor damage.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from typing import TYPE_CHECKING, Any

import numpy as np

from rmqtool.formats import message as form
from rmqtool.log.frames import FRAME, numbers

if TYPE_CHECKING:
    Array = np.ndarray[Any, Any]

PAD = form.BLANK_SIZE
"""Zeros that follow the bytes in their array: the walk looks at what follows a record."""
_ROWS = 32 << 10


class Stop(Enum):
    """Why the judgement ended."""

    MORE = "more bytes are needed"
    BLANK = "a blank that ends the file"
    DAMAGED = "not a record"


class Arriving:
    """Judges one log after another; the arrays of the walk are made once."""

    def __init__(self) -> None:
        from rmqtool.log import frame_kernel
        from rmqtool.log.crc import crc_address, crc_tables

        self._kernel = frame_kernel
        self._numbers = numbers()
        self._checks = frame_kernel.Checks(True, True, False, crc_address())
        self._tables = crc_tables()
        self._rows = np.empty(_ROWS, FRAME)
        self._topics = np.empty((frame_kernel.TOPICS_LIMIT, 2), np.int64)
        self._slots = np.zeros(frame_kernel.TOPIC_SLOTS, np.int32)
        self._result = np.zeros(frame_kernel.RESULT_SIZE, np.int64)
        self.position = 0
        self.stop = Stop.MORE
        self.reason = ""

    def rows(
        self, data: Array, length: int, position: int, file_start: int, file_size: int
    ) -> Iterator[Array]:
        """The sound records at the start of `data`, as rows of `frames.FRAME`, batch by batch.

        At the end `position` is the position in the file after the last of them, and `stop` says what is
        there. Rows hold until the next batch.

        Args:
            data: read-only uint8; its first byte is at `position` of the file. PAD zeros follow the bytes,
                unless they end with the file.
            length: how many bytes of `data` have arrived.
            position: where a record begins, bytes from the start of the file.
            file_start: physical offset of the file.
            file_size: bytes of the file; `length` is not beyond it.
        """
        kernel, base = self._kernel, position
        self.position, end = position, position + length
        bounds = kernel.WindowBounds(base, end, file_size, file_start, -1, 0)
        while True:
            self._slots.fill(0)
            count = kernel.walk_window(
                data, self.position, bounds, self._checks, self._tables, self._numbers,
                self._rows, self._topics, self._slots, self._result,
            )  # fmt: skip
            rows = self._rows[:count]
            damaged = np.flatnonzero(rows["status"])
            if len(damaged):
                rows = rows[: damaged[0]]
                self.position = int(self._rows[damaged[0]]["physical_offset"]) - file_start
                self._stopped(Stop.DAMAGED, "a record with a wrong CRC or place")
            else:
                self.position = int(self._result[kernel.POSITION])
            if len(rows):
                yield rows
            if len(damaged):
                return
            if int(self._result[kernel.STOPPED]) != kernel.FULL:
                break
        self._judge(data, end, base, file_size)

    def _judge(self, data: Array, end: int, base: int, file_size: int) -> None:
        """Set `stop` from what the walk says of the first bytes that it did not take."""
        kernel = self._kernel
        stopped = int(self._result[kernel.STOPPED])
        left = end - self.position
        if stopped == kernel.END or left < form.BLANK_SIZE and end < file_size:
            self._stopped(Stop.MORE)
        elif stopped == kernel.WINDOW:
            size = int(self._result[kernel.NEED])
            if size > form.RECORD_SIZE_MAX:
                self._stopped(Stop.DAMAGED, f"a record of more than {form.RECORD_SIZE_MAX} bytes")
            else:
                self._stopped(Stop.MORE)
        elif stopped == kernel.BLANK:
            at = self.position - base
            size, _ = form.BLANK.unpack(data[at : at + form.BLANK_SIZE].data)
            if size == file_size - self.position:
                self._stopped(Stop.BLANK)
            else:
                self._stopped(Stop.DAMAGED, f"a blank of {size} bytes, {file_size - self.position} are left")
        else:
            self._stopped(Stop.DAMAGED, "neither a record nor a blank")

    def _stopped(self, stop: Stop, reason: str = "") -> None:
        self.stop, self.reason = stop, reason
