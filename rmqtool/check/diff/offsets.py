"""The committed offsets of two stores whose logs have parted: which of them fit which store.

A queue parts at the smallest queue offset that a record has which only one of the logs holds. Up to there
an offset means the same in both stores. Past it the offset counts messages of one log: in the other store
the same offset names other messages, or none.

An offset past the parting that is equal in both stores is that of only one of them, and which one is not
known: then none fits but that of the parting, with which a group receives messages again and skips none.

A group that has committed an offset past the parting has consumed all that both logs hold. So in the other
store it fits to begin at the parting, unless its offset there is past it too: nothing is skipped then, and
of what both hold nothing is received again.

Source: ConsumerOffsetManager, PullMessageProcessor: a committed offset is the next queue offset to consume.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from rmqtool.lazy_dataclass import dataclass
from rmqtool.read.consumer_offsets import known_offsets
from rmqtool.read.lost_config import is_group_of_brokers

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rmqtool.check.diff.operands import Key, Operand
    from rmqtool.check.diff.queues import OwnRecords

    OwnByQueue = Mapping[Key, OwnRecords]


@dataclass(frozen=True, slots=True)
class CommittedOffset:
    """The committed offset of a group in one queue, on both sides; None where it has none.

    `parts_at` is the queue offset at which the queue parts; None if neither log has records of its own in it.
    `fits_a` and `fits_b` are the offsets that fit the two stores.
    """

    group: str
    topic: str
    queue_id: int
    a: int | None
    b: int | None
    parts_at: int | None
    fits_a: int
    fits_b: int

    @property
    def is_past(self) -> bool:
        """Whether an offset is past the place where the queue parts."""
        return self.parts_at is not None and max(self.a or 0, self.b or 0) > self.parts_at

    @property
    def fits_both(self) -> bool:
        """Whether both sides have the offset, and it means the same in both."""
        return self.a == self.b and not self.is_past

    def row(self) -> dict[str, Any]:
        """As JSON."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class CommittedOffsets:
    """The committed offsets of two stores that have parted.

    `groups` and `compared` count groups, and their offsets by queue; `others` are those that do not fit both
    stores; `unknown` says why offsets of a side cannot be read: (side, reason).
    """

    groups: int
    compared: int
    others: tuple[CommittedOffset, ...]
    unknown: tuple[tuple[str, str], ...]

    def row(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "groups": self.groups,
            "compared": self.compared,
            "past_the_parting": sum(each.is_past for each in self.others),
            "others": [each.row() for each in self.others],
            "unknown": [{"side": side, "reason": reason} for side, reason in self.unknown],
        }


def committed_offsets(a: Operand, b: Operand, own_a: OwnByQueue, own_b: OwnByQueue) -> CommittedOffsets:
    """Compare the committed offsets of two stores; those of the broker's own groups are left out.

    Args:
        a: one store.
        b: the other.
        own_a: the records that only the log of `a` holds, by queue.
        own_b: likewise.
    """
    (known_a, missed_a), (known_b, missed_b) = (known_offsets(side.store, needed=True) for side in (a, b))
    names = {
        (group, topic, queue_id)
        for known in (known_a, known_b)
        for (topic, group), queues in known.items()
        for queue_id in queues
        if not is_group_of_brokers(group)
    }
    found = []
    for group, topic, queue_id in sorted(names):
        key = topic, queue_id
        firsts = [own[key].first for own in (own_a, own_b) if key in own]
        parts_at = min(firsts, default=None)
        one, other = (known.get((topic, group), {}).get(queue_id) for known in (known_a, known_b))
        in_a, in_b = min(one or 0, _end(a, key)), min(other or 0, _end(b, key))
        fits = _fitting(in_a, in_b, parts_at), _fitting(in_b, in_a, parts_at)
        if parts_at is not None and one == other and (one or 0) > parts_at:
            fits = parts_at, parts_at
        found.append(CommittedOffset(group, topic, queue_id, one, other, parts_at, *fits))
    others = tuple(each for each in found if not each.fits_both)
    unknown = [("a", reason) for reason in missed_a] + [("b", reason) for reason in missed_b]
    return CommittedOffsets(len({each.group for each in found}), len(found), others, tuple(unknown))


def _end(side: Operand, key: Key) -> int:
    span = side.spans.get(key)
    return 0 if span is None else span.max_offset


def _fitting(mine: int, other: int, parts_at: int | None) -> int:
    """The offset that fits a store, by its own offset and that of the other, each within its queue."""
    return max(mine, other if parts_at is None else min(other, parts_at))
