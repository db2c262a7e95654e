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
        low = records[0].queue_offset
        first = end = records[0].physical_offset
        if first < 0 or records[-1].queue_offset - low != count - 1:
            return None
        has_gaps, places = False, []
        for record in records:  # so few that loops and lists take less time than arrays
            offset, size = record.physical_offset, record.size
            if not end <= offset <= end + _GAP_BYTES or size <= 0 or record.count != 1:
                return None
            has_gaps |= offset != end
            end = offset + size
            places.append((offset - first, size, offset))
        read = log.span(first, end - first) if end - first <= _SPAN_BYTES else None
        if read is None:
            return None
        np = self._np
        data = np.frombuffer(read, np.uint8)
        if not self._check(data, *np.array(places, np.int64).T.copy()):
            return None
        rows = self._rows[:count]
        begin, length = self._topics[0].tolist()
        if read[begin : begin + length] != java_utf8_encode(topic):
            return None
        if rows["queue_offset"].tolist() != list(range(low, low + count)):
            return None
        if rows["queue_id"].tolist() != [queue_id] * count:
            return None
        if version_1 and rows["version"].tolist() != [_VERSION_1] * count:
            return None
        view = memoryview(read)
        return [view[at : at + size] for at, size, _ in places] if has_gaps else [view]
