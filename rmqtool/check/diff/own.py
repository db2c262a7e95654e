"""The records that only one of two diverged logs holds, and the queue offsets that they need.

Source: CommitLogDispatcherBuildConsumeQueue: prepared and rolled back messages get no unit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from rmqtool.formats.message import TRANSACTION_COMMIT, TRANSACTION_MASK
from rmqtool.read.selection import Selection

if TYPE_CHECKING:
    from rmqtool.check.diff.operands import Key, Operand

_COLUMNS = ("topic", "queue_id", "queue_offset", "physical_offset", "sys_flag")


class OwnRecords(NamedTuple):
    """The records of one queue in a range of the log: their smallest and largest queue offset.

    `oldest` and `newest` are the physical offsets of the first and the last record.
    """

    first: int
    last: int
    oldest: int
    newest: int


def own_records(side: Operand, start: int) -> dict[Key, OwnRecords]:
    """The dispatched records of a log from the physical offset `start` on, by queue.

    Damage is skipped: `verify` reports it.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    from rmqtool.read.messages import message_batches

    found: dict[Key, OwnRecords] = {}
    selection = Selection(from_offset=start, to_offset=side.end)
    for batch in message_batches(side.store, selection, columns=_COLUMNS, crc=False):
        table = pa.Table.from_batches([batch])
        kinds = pc.bit_wise_and(table["sys_flag"], pa.scalar(TRANSACTION_MASK, table["sys_flag"].type))
        table = table.filter(pc.is_in(kinds, pa.array([0, TRANSACTION_COMMIT], kinds.type)))
        wanted = [(column, end) for column in ("queue_offset", "physical_offset") for end in ("min", "max")]
        for row in table.group_by(["topic", "queue_id"]).aggregate(wanted).to_pylist():
            key = row["topic"], row["queue_id"]
            first, last = row["queue_offset_min"], row["queue_offset_max"]
            old = found.get(key)
            if old is not None:  # batches come in the log's order
                first, last = min(old.first, first), max(old.last, last)
            oldest = row["physical_offset_min"] if old is None else old.oldest
            found[key] = OwnRecords(first, last, oldest, row["physical_offset_max"])
    return found
