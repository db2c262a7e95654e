"""How far a broker has checked half messages, and where it has to go on if it does not know.

The offsets of CID_RMQ_SYS_TRANS are those of the next half message to check, and of the next op record to
read. A broker that finds one past the end of its queue goes on at the end, and never checks what it has
skipped. Without an offset it begins at the first message of the queue.

A half message is open if no op record names it and it has no copy: a broker that has checked one stores it
again, with its unique key and the time at which it was born, or gives it up in TRANS_CHECK_MAX_TIME_TOPIC.

Source: TransactionalMessageServiceImpl#check, #fillOpRemoveMap, TransactionalMessageBridge#getMessage,
#fetchConsumeOffset.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from rmqtool.formats.properties import REAL_TOPIC
from rmqtool.log.damage import WALK_CODES
from rmqtool.message.system_topics import (
    DISCARDED_TOPIC,
    HALF_TOPICS,
    OP_TOPICS,
    TRANSACTION_GROUP,
    op_offsets,
)
from rmqtool.read.selection import Selection
from rmqtool.read.store import Store

HALF_TOPIC, OP_TOPIC = HALF_TOPICS[0], OP_TOPICS[0]
"""Those of transactions that are not in RocksDB: only these have offsets of CID_RMQ_SYS_TRANS."""
_COLUMNS = (
    "topic", "queue_id", "queue_offset", "physical_offset", "uniq_key", "born_timestamp_ms", "status",
    "properties", "body",
)  # fmt: skip
_Slot = tuple[int, int]


def checked_until(
    offsets: Mapping[tuple[str, str], Mapping[int, int]], topic: str, queue_id: int, end: int | None
) -> int:
    """The offset of the next message that a broker checks; 0 if it is past `end`, for then it says nothing.

    Args:
        offsets: committed, by (topic, group) and queue id.
        topic: of half messages or op records.
        queue_id: of its queue.
        end: of the queue; None if it is unknown.
    """
    offset = offsets.get((topic, TRANSACTION_GROUP), {}).get(queue_id, 0)
    return offset if end is None or offset <= end else 0


class Checks(NamedTuple):
    """What is open in one queue of half messages.

    Attributes:
        open: queue offsets of half messages, in their order.
        ops: of each op record its queue offset, and the largest queue offset of a half message that it names.
    """

    open: tuple[int, ...]
    ops: tuple[tuple[int, int], ...]

    def first_open(self, span: tuple[int, int]) -> int:
        """The first open half message in a half-open range of queue offsets; its end if none is."""
        return min((each for each in self.open if span[0] <= each < span[1]), default=span[1])

    def first_op(self, half_offset: int, span: tuple[int, int]) -> int:
        """The first op record in a range that names a half message from `half_offset` on; its end if none."""
        named = (op for op, half in self.ops if half >= half_offset and span[0] <= op < span[1])
        return min(named, default=span[1])


def find_checks(store: Store, log_end: int | None = None) -> dict[int, Checks]:
    """What is open, by queue id.

    Fillers of `recover` and other records without a real topic are no half messages.

    Args:
        store: opened for reading.
        log_end: physical offset; later records do not count. None: all do.

    Raises: UnreadableError if the log cannot be read.
    """
    from rmqtool.read.messages import message_batches

    waiting: dict[_Slot, None] = {}
    newest: dict[tuple[str, int], _Slot] = {}
    ops: dict[int, list[tuple[int, int]]] = {}
    chosen = Selection(topics=(HALF_TOPIC, OP_TOPIC, DISCARDED_TOPIC))
    for batch in message_batches(store, chosen, columns=_COLUMNS):
        for row in batch.to_pylist():
            is_after = log_end is not None and row["physical_offset"] >= log_end
            if is_after or not WALK_CODES.isdisjoint(row["status"]):
                continue
            queue_id = row["queue_id"]
            if row["topic"] == OP_TOPIC:
                named, _ = op_offsets(row["body"] or b"")
                for number in named:
                    waiting.pop((queue_id, number), None)
                ops.setdefault(queue_id, []).append((row["queue_offset"], max(named, default=-1)))
                continue
            if row["uniq_key"]:
                earlier = newest.pop((row["uniq_key"], row["born_timestamp_ms"]), None)
                waiting.pop(earlier or (-1, -1), None)
            if row["topic"] == HALF_TOPIC and dict(row["properties"] or ()).get(REAL_TOPIC):
                waiting[queue_id, row["queue_offset"]] = None
                if row["uniq_key"]:
                    newest[row["uniq_key"], row["born_timestamp_ms"]] = queue_id, row["queue_offset"]
    return {
        queue_id: Checks(
            tuple(sorted(offset for number, offset in waiting if number == queue_id)),
            tuple(ops.get(queue_id, ())),
        )
        for queue_id in sorted({number for number, _ in waiting} | ops.keys())
    }
