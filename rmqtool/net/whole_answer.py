"""The usual answer to a pull, checked at once: records of one queue that lie close together in one file.

The compiled check of `point_read` takes all of them with one call. Where it finds anything that is not as it
should be, or the records are not of that kind, `records.checked_records` looks at them one by one and knows
why. Nothing is copied here: the pieces are views of the bytes that were read.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rmqtool.formats.java import java_utf8_encode
from rmqtool.report.tail.get_message import Pulled
from rmqtool.report.tail.log_reader import LogReader

if TYPE_CHECKING:
    from rmqtool.log.frame_kernel import Checks

_GAP_BYTES = 32 << 10  # as `log_reader`
_SPAN_BYTES = 4 << 20
_RECORDS_MAX = 1024
_LEAST = 3  # so few are looked at one by one as fast
_VERSION_1 = 1


class WholeAnswer:
    """Checks answers; `load` makes it ready, until then nothing is taken."""

    def __init__(self) -> None:
        self._is_ready = False

    def load(self) -> None:
        """Load the compiled check, which may take seconds. For any thread."""
        import numpy as np

        from rmqtool.log import frame_kernel, point_read_kernel
        from rmqtool.log.crc import crc_address, crc_tables
        from rmqtool.log.frames import FRAME, numbers

        self._np: Any = np
        self._kernel = point_read_kernel
        self._checks: Checks = frame_kernel.Checks(True, True, False, crc_address())
        self._tables, self._numbers = crc_tables(), numbers()
        self._rows = np.empty(_RECORDS_MAX, FRAME)
        self._topics = np.empty((frame_kernel.TOPICS_LIMIT, 2), np.int64)
        self._slots = np.zeros(frame_kernel.TOPIC_SLOTS, np.int32)
        self._steps = np.arange(_RECORDS_MAX)
        self._result = np.zeros(point_read_kernel.RESULT_SIZE, np.int64)
        self._check(np.zeros(8, np.uint8), *(np.zeros(0, np.int64) for _ in range(3)))
        self._is_ready = True

    def _check(self, data: Any, starts: Any, sizes: Any, offsets: Any) -> bool:
        """Whether all are sound records of one topic; `_rows` has them."""
        self._slots.fill(0)
        self._kernel.rows_at(
            data, starts, sizes, offsets, self._checks, self._tables, self._numbers, self._rows, self._topics,
            self._slots, self._result,
        )  # fmt: skip
        found = self._result
        return (
            int(found[self._kernel.COUNT]) == len(starts)
            and not found[self._kernel.UNSOUND]
            and int(found[self._kernel.TOPICS]) == 1
        )

    def pieces(
        self, log: LogReader, topic: str, queue_id: int, records: Sequence[Pulled], *, version_1: bool
    ) -> list[memoryview] | None:
        """The bytes of all these records, in order; None where they must be looked at one by one.

        Args:
            log: where they lie.
            topic: of their queue.
            queue_id: of their queue.
            records: of one queue, with a message each, one unit after the other.
            version_1: all of them must be of version 1.
        """
        count = len(records)
        if not self._is_ready or not _LEAST <= count <= _RECORDS_MAX:
            return None
        np = self._np
        offsets = np.array([record.physical_offset for record in records], np.int64)
        sizes = np.array([record.size for record in records], np.int64)
        low = records[0].queue_offset
        if records[-1].queue_offset - low != count - 1 or any(record.count != 1 for record in records):
            return None
        ends = offsets + sizes
        gaps = offsets[1:] - ends[:-1]
        first, end = int(offsets[0]), int(ends[-1])
        if first < 0 or int(sizes.min()) <= 0 or int(gaps.min()) < 0 or int(gaps.max()) > _GAP_BYTES:
            return None
        read = log.span(first, end - first) if end - first <= _SPAN_BYTES else None
        if read is None:
            return None
        starts = offsets - first
        data = np.frombuffer(read, np.uint8)
        if not self._check(data, starts, sizes, offsets):
            return None
        rows = self._rows[:count]
        name = self._topics[0]
        begin = int(name[0])
        if read[begin : begin + int(name[1])] != java_utf8_encode(topic):
            return None
        if (rows["queue_id"] != queue_id).any() or (rows["queue_offset"] != self._steps[:count] + low).any():
            return None
        if version_1 and (rows["version"] != _VERSION_1).any():
            return None
        view = memoryview(read)
        if not gaps.any():
            return [view]
        return [view[at:stop] for at, stop in zip(starts.tolist(), (ends - first).tolist(), strict=True)]
