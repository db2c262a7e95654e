"""How far a broker has checked half messages.

The offsets of CID_RMQ_SYS_TRANS are those of the next half message to check, and of the next op record to
read. A broker that finds one past the end of its queue goes on at the end, and never checks what it has
skipped.

Source: TransactionalMessageServiceImpl#check, #fillOpRemoveMap, TransactionalMessageBridge#getMessage.
"""

from __future__ import annotations

from collections.abc import Mapping

from rmqtool.message.system_topics import TRANSACTION_GROUP


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
