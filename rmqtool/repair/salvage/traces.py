"""What holes themselves show of their records: headers and ends that are left, where no unit has the record.

A header says where its record is and which number it has in its queue. The topic, which follows the body,
is often lost with the rest; it is then that of the only queue of this id that lacks the number. An end says
topic and place; its queue and number are those of a gap (`owners`).
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING

from rmqtool.formats import message as form
from rmqtool.log.remains import End, LeftHead, end_of, heads_in, stored_topic, topic_from
from rmqtool.repair.salvage.full_size import of_full_size
from rmqtool.repair.salvage.model import Claim
from rmqtool.repair.salvage.order import Key, Order
from rmqtool.storage.ranges import merged, overlaps

if TYPE_CHECKING:
    from rmqtool.repair.salvage.file_scan import FileScan
    from rmqtool.repair.salvage.log import Log
    from rmqtool.storage.source import ByteSource

_BYTES_MAX = 256 << 20  # of holes that are searched for headers
_PIECE = 16 << 20  # of a hole; more than any broker takes for one message
_HEAD_MAX = max(layout.size for layout in form.HEADS.values())
_ENDS_MAX = 2000  # ends that are searched for


class Traces:
    """Searches the holes of a log, `_BYTES_MAX` of them for headers, and `_ENDS_MAX` places for ends.

    `heads` are the offsets of all headers that were found, also of those whose queue is unknown.
    """

    def __init__(self, log: Log, order: Order) -> None:
        self.log = log
        self.order = order
        self.heads: set[int] = set()
        self._bytes = _BYTES_MAX
        self._ends = _ENDS_MAX
        self._open: tuple[FileScan, ByteSource] | None = None

    def close(self) -> None:
        """Close the file that was read last."""
        if self._open is not None:
            self._open[1].close()
            self._open = None

    def add_heads(self) -> None:
        """Add the headers in holes to their heads, and those after the log's end to what is pending there."""
        for number, scan in enumerate(self.log.scans):
            for hole in scan.holes:
                self._add(scan, hole.start, hole.stop, hole.heads, hole.code)
            if 0 <= self.log.last <= number and scan.code not in ("", "CL07") and not scan.done:
                stop = min(scan.end + _PIECE, scan.file.full_end)
                self._add(scan, scan.end, stop, scan.pending, scan.code)

    def _add(self, scan: FileScan, start: int, stop: int, heads: list[Claim], code: str) -> None:
        known = {head.start for head in heads}
        stop = min(stop, scan.file.file_from_offset + scan.file.size)  # the rest of a short file has nothing
        while start < stop and self._bytes > 0:
            data = self._read(scan, start, min(start + _PIECE, stop))
            self._bytes -= len(data)
            for head in heads_in(data, start):
                self.heads.add(head.physical_offset)
                claim = None if head.physical_offset in known else self._claim(head, data, start)
                if claim is not None:
                    claim.code = code
                    known.add(claim.start)
                    heads.append(claim)
            if not data or start + len(data) >= stop:
                break
            start += len(data) - _HEAD_MAX  # a header may be in two pieces
        heads.sort(key=lambda head: head.start)

    def _claim(self, head: LeftHead, data: bytes, start: int) -> Claim | None:
        """The record of a header; None if it has no queue, or nothing shows which one."""
        flags = head.values["sys_flag"]
        if flags & form.INNER_BATCH or flags & form.TRANSACTION_MASK not in (0, form.TRANSACTION_COMMIT):
            return None
        place, number = (head.values["queue_id"], head.values["queue_offset"])
        topic = self._topic(head, data, start)
        if topic is None:
            return None
        return Claim(head.physical_offset, head.values["total_size"], topic, place, number)

    def _topic(self, head: LeftHead, data: bytes, start: int) -> bytes | None:
        """The topic of the record of a header, by itself, else by the queues that lack its number."""
        at = head.topic_at() - start
        whole = topic_from(data, at)
        if whole is not None:
            return whole
        near: list[tuple[Key, int]] = []
        for key in self.order.known:
            before, after = self.order.around(key, head.physical_offset)
            name, number = stored_topic(key[0]), head.values["queue_offset"]
            fits = before <= number and (after is None or number < after)
            if key[1] == head.values["queue_id"] and fits:
                if name.startswith(data[at : at + len(name)].rstrip(b"\0")):
                    near.append((key, before))
        if len(near) > 1:
            near = [each for each in near if each[1] == head.values["queue_offset"]]
        return near[0][0][0] if len(near) == 1 else None

    def end_before(self, start: int, stop: int) -> End | None:
        """The end of the record that ends a part [start, stop) of a hole; its positions are physical."""
        scans = self.log.scans
        number = bisect_right(scans, start, key=lambda scan: scan.file.file_from_offset) - 1
        last = self._read(scans[number], stop - 1, stop)
        if last in (b"", b"\0") or self._ends <= 0:
            return None
        self._ends -= 1
        start = max(start, stop - _PIECE)
        end = end_of(self._read(scans[number], start, stop))
        if end is None:
            return None
        return end._replace(
            start=None if end.start is None else start + end.start, topic_at=start + end.topic_at
        )

    def _read(self, scan: FileScan, start: int, stop: int) -> bytes:
        """The bytes of a physical range of one file; none if the walk could not read it."""
        base = scan.file.file_from_offset
        if start - base >= scan.file.size or overlaps(merged(scan.unreadable), start, stop):
            return b""
        if self._open is None or self._open[0] is not scan:
            self.close()
            self._open = scan, of_full_size(self.log.opener(scan.file.path), scan.file)
        return self._open[1].read(start - base, min(stop - base, scan.file.size) - (start - base))
