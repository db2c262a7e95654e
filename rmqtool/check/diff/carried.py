"""The messages that only one of two diverged logs has, by unique key: those to carry over to the other.

After a failover producers may have sent again what the other side holds too, or someone has carried
messages over before. A unique key names a message of a topic, and with the number of deliveries a
message of a retry topic; physical and queue offsets of the two logs say nothing about each other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rmqtool.check.diff.operands import Operand
from rmqtool.formats.filler import HOST, is_filler
from rmqtool.formats.message_id import host_text
from rmqtool.lazy_dataclass import dataclass
from rmqtool.problems import Finding
from rmqtool.read.selection import Selection

if TYPE_CHECKING:
    import pyarrow as pa

NOT_CARRIED = "RMQ_SYS*"
"""Topics whose messages mean nothing in another store: half messages, ops, traces."""
_COMPARED_BYTES = 2 << 30  # of each log: the keys of these are held in memory
_RANGES_MAX = 100
_COLUMNS = ("physical_offset", "topic", "uniq_key", "reconsume_times", "born_host", "store_host")


@dataclass(frozen=True, slots=True)
class Carried:
    """The messages of one diverged log, from the offset where the logs part.

    Attributes:
        messages: all of them, without the topics `NOT_CARRIED` and without fillers.
        in_other: those of which the other log has the unique key, topic and number of deliveries.
        without_key: those that have no unique key: whether the other log has them is unknown.
        ranges: ranges of physical offsets that hold all others, and those without a unique key, but
            none of `in_other`; empty if there are too many ranges.
        damaged: damaged places in this log.
    """

    messages: int
    in_other: int
    without_key: int
    ranges: tuple[tuple[int, int], ...]
    damaged: int

    def row(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "messages": self.messages,
            "in_other": self.in_other,
            "only_here": self.messages - self.in_other - self.without_key,
            "without_uniq_key": self.without_key,
            "ranges": [{"from_offset": start, "to_offset": stop} for start, stop in self.ranges],
            "damaged_places": self.damaged,
        }


def carried(a: Operand, b: Operand, start: int) -> tuple[Carried, Carried] | None:
    """Compare the messages of both logs from the physical offset `start` on; None if they are too many."""
    if max(a.end, b.end) - start > _COMPARED_BYTES:
        return None
    one, other = _Side(a, start), _Side(b, start)
    return one.compared(other), other.compared(one)


class _Side:
    """The messages of one log: their places and what identifies each, null without a unique key."""

    def __init__(self, side: Operand, start: int) -> None:
        import numpy as np
        import pyarrow as pa

        from rmqtool.read.messages import message_batches

        self._end = side.end
        self._damaged = 0
        chosen = Selection(exclude_topics={NOT_CARRIED}, from_offset=start, to_offset=side.end)
        found = list(message_batches(side.store, chosen, columns=_COLUMNS, report=self._report))
        table = pa.Table.from_batches(found) if found else None
        self._places = np.array([], np.int64) if table is None else table["physical_offset"].to_numpy()
        self._names = pa.array([], pa.string()) if table is None else _names(table)
        self._is_message = np.ones(len(self._places), bool)
        for row in () if table is None else np.flatnonzero(_has_hosts_of_filler(table)).tolist():
            stored = side.store.find(int(self._places[row]))
            self._is_message[row] = stored is None or not is_filler(stored.message)

    def _report(self, finding: Finding) -> None:
        self._damaged += finding.problem.severity == "error"

    def compared(self, other: _Side) -> Carried:
        """What the other side has of these messages."""
        import numpy as np
        import pyarrow.compute as pc

        is_message = self._is_message
        has_key = self._names.is_valid().to_numpy(zero_copy_only=False)
        known = pc.is_in(self._names, value_set=other._names, skip_nulls=True)
        in_other = known.to_numpy(zero_copy_only=False) & has_key & is_message
        wanted = is_message & ~in_other
        # A range begins with the first wanted message, and ends before the next one that is not.
        edges = np.flatnonzero(np.diff(wanted.astype(np.int8), prepend=0, append=0))
        places = np.append(self._places, self._end)
        ranges = [(int(places[first]), int(places[last])) for first, last in edges.reshape(-1, 2)]
        return Carried(
            int(is_message.sum()),
            int(in_other.sum()),
            int((is_message & ~has_key).sum()),
            tuple(ranges) if len(ranges) <= _RANGES_MAX else (),
            self._damaged,
        )


def _names(table: pa.Table) -> pa.Array:
    import pyarrow as pa
    import pyarrow.compute as pc

    parts = [pc.cast(table[name], pa.string()) for name in ("topic", "reconsume_times", "uniq_key")]
    return pc.binary_join_element_wise(*parts, "\x01").combine_chunks()


def _has_hosts_of_filler(table: pa.Table) -> Any:
    import pyarrow.compute as pc

    host = host_text(HOST)
    return pc.and_(pc.equal(table["born_host"], host), pc.equal(table["store_host"], host)).to_numpy()
