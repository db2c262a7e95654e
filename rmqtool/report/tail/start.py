"""The start position of a follower: the number of the first unit to read, for each queue.

Positions are those of consumers: earliest and latest are the broker's minimum and maximum, a queue
offset counts in each queue, `-N` is N before the end. A time is looked for by bisection in the
store timestamps of the records, which rise along a queue unless a clock was set back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from fnmatch import fnmatchcase
from heapq import merge
from itertools import islice, takewhile
from operator import attrgetter
from typing import Literal, NamedTuple

from rmqtool.errors import InputError, UsageError
from rmqtool.lazy_dataclass import dataclass
from rmqtool.message.system_topics import RETRY_PREFIX
from rmqtool.near_names import listed, near_or_listed
from rmqtool.queue.consume_queue import AnyQueue, BatchConsumeQueue
from rmqtool.read.selection import is_glob
from rmqtool.read.store import Store
from rmqtool.report.tail.subscription import Subscription

QueueKey = tuple[str, int]
_MOVED_SHOWN = 5  # queues
_ONE_BY_ONE = 256  # units before compiled code helps
_SEVERAL_MAX = 1 << 14
_PART_BYTES = 16 << 20


@dataclass(frozen=True)
class StartPosition:
    """The start position; the first field that is set counts, otherwise the earliest position.

    Attributes:
        last: this many of the newest wanted messages, over all queues together.
        group: where a consumer group stands; from the earliest on where it has no offset.
        since: the first message stored at or after this time, ms since 1970.
        position: `earliest`, `latest`, a queue offset, or a negative number that counts from the end.
    """

    last: int | None = None
    group: str | None = None
    since: int | None = None
    position: Literal["earliest", "latest"] | int = "earliest"


def parse_position(text: str) -> Literal["earliest", "latest"] | int:
    """`earliest`, `latest`, a queue offset, or `-N`. Raises UsageError for other text."""
    if text == "earliest":
        return "earliest"
    if text in ("latest", "-0"):
        return "latest"
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdigit() and len(digits) < 20 and int(digits) < 1 << 63):
        raise UsageError(
            f"{text[:40]!r} is not a position", hint="use earliest, latest, a queue offset or -N"
        )
    return int(text)


def offsets_of(store: Store, group: str) -> dict[QueueKey, int]:
    """The next queue offset of a group by topic and queue.

    Empty for a group that has only its retry topic: it has consumed nothing of it.

    Raises:
        InputError: see `consumer_offsets`.
        UsageError: the group has neither offsets nor a retry topic; the hint names those that have.
    """
    from rmqtool.read.consumer_offsets import consumer_offsets, with_retry_groups

    table = with_retry_groups(consumer_offsets(store), {topic for topic, _ in store.queues})
    found = {
        (topic, queue_id): offset
        for (topic, name), queues in table.items()
        if name == group
        for queue_id, offset in queues.items()
    }
    known = {name for _, name in table}
    if group not in known:
        hint = near_or_listed(group, known, "groups that have any") if known else None
        if is_glob(group):
            names = sorted(name for name in known if fnmatchcase(name, group))
            hint = f"give one name without wildcards; groups that match: {listed(names) or 'none'}"
        raise UsageError(f"the group {group!r} has neither offsets nor a retry topic", hint=hint)
    return found


def without_offset(
    store: Store, queues: Mapping[QueueKey, AnyQueue], group: str, offsets: Mapping[QueueKey, int]
) -> Iterator[str]:
    """In words the topics with messages in queues for which a group has no offset; `offsets` are its own."""
    topics = sorted({key[0] for key in queues if key not in offsets and store.max_offset(*key) > 0})
    if topics:
        yield (
            f"the group has no offset in queues of {listed(topics)}:"
            " these are read from their first message on"
        )


def sent_back(store: Store, group: str) -> int:
    """The number of messages that the consumers of a group sent back, and that they still receive."""
    own = f"{RETRY_PREFIX}{group}"
    offsets = offsets_of(store, group)
    keys = [key for key in store.queues if key[0] == own]
    starts = {key: max(offsets.get(key, 0), store.min_offset(*key), 0) for key in keys}
    return sum(max(store.max_offset(*key) - start, 0) for key, start in starts.items())


def requested_offsets(
    store: Store, queues: Mapping[QueueKey, AnyQueue], start: StartPosition
) -> dict[QueueKey, int]:
    """The queue offsets that a start names: a group's, or one for all. Raises as `offsets_of` does."""
    if start.last is not None:
        return {}
    if start.group is not None:
        found = offsets_of(store, start.group)
        return {key: found[key] for key in queues if key in found}
    if start.since is None and isinstance(start.position, int) and start.position >= 0:
        return dict.fromkeys(queues, start.position)
    return {}


def start_numbers(
    store: Store,
    queues: Mapping[QueueKey, AnyQueue],
    start: StartPosition,
    wanted: Subscription,
    offsets: Mapping[QueueKey, int],
) -> dict[QueueKey, int]:
    """The number of the first unit to read in each queue; `offsets` of `requested_offsets`."""
    if start.last is not None:
        return _of_last(store, queues, start.last, wanted)
    return {key: _number(store, key, queue, start, offsets.get(key)) for key, queue in queues.items()}


def moved_starts(
    store: Store, queues: Mapping[QueueKey, AnyQueue], offsets: Mapping[QueueKey, int]
) -> Iterator[str]:
    """In words the queues that do not have the offset of `requested_offsets`, with a broker's status."""
    moved = []
    for key, offset in offsets.items():
        from rmqtool.report.tail.get_message import GetMessageStatus

        low, high = max(store.min_offset(*key), 0), queues[key].max_offset()
        if offset < low:
            moved.append((key, offset, f"the queue starts at {low}", GetMessageStatus.OFFSET_TOO_SMALL))
        elif offset > high:
            moved.append((key, offset, f"the queue ends at {high}", GetMessageStatus.OFFSET_OVERFLOW_BADLY))
    for (topic, queue_id), offset, why, status in moved[:_MOVED_SHOWN]:
        yield f"{topic}/{queue_id}: offset {offset} is not there, {why} ({status.value})"
    if len(moved) > _MOVED_SHOWN:
        yield f"{len(moved) - _MOVED_SHOWN} more queues do not have their offset"


def _number(store: Store, key: QueueKey, queue: AnyQueue, start: StartPosition, committed: int | None) -> int:
    low = store.min_offset(*key)
    if start.since is not None and start.group is None:
        from rmqtool.read.by_time import first_stored

        return max(first_stored(store, queue, start.since, queue.end()), number_of(queue, max(low, 0)))
    if committed is not None:
        return number_of(queue, max(committed, low, 0))
    if start.group is not None or start.position == "earliest":
        return number_of(queue, max(low, 0))
    high = queue.max_offset()
    if start.position == "latest":
        return queue.end()
    if start.position < 0:
        return number_of(queue, max(low, high + start.position, 0))
    return number_of(queue, max(start.position, low))


def number_of(queue: AnyQueue, queue_offset: int) -> int:
    """The number of the unit that holds a queue offset, or would hold it; the end for later ones."""
    if not isinstance(queue, BatchConsumeQueue):
        return queue_offset
    number = queue.number_of(queue_offset)
    if number is None:
        file = queue.file_of(queue.end() - 1)
        return 0 if file is None else queue.numbers_of(file).start
    unit = queue.by_number(number)
    past = unit is not None and queue_offset >= unit.base_offset + unit.batch_size
    return number + 1 if past else number


def _of_last(
    store: Store, queues: Mapping[QueueKey, AnyQueue], count: int, wanted: Subscription
) -> dict[QueueKey, int]:
    """Return the numbers to begin at, so that exactly the last `count` wanted messages of the log follow."""
    numbers = {key: queue.end() for key, queue in queues.items()}
    block = max((1 << 16) // max(len(queues), 1), 8)
    rows = (_back(key, queue, count, block) for key, queue in queues.items())
    is_wanted = _judge(store, wanted)
    merged = merge(*rows, reverse=True, key=attrgetter("place"))
    there = takewhile(lambda unit: unit.place >= store.commit_log.min_offset, merged)
    is_bulk = wanted.looks_inside and store.is_local
    for unit in _likely(store, there, wanted) if is_bulk else there:
        if count <= 0:
            break
        if is_wanted(unit.key[0], unit.place, unit.code):
            numbers[unit.key] = unit.number
            count -= 1
    return numbers


class _Unit(NamedTuple):
    """A unit and its queue: the record's physical offset, the unit's number, the record's size, tags code."""

    place: int
    key: QueueKey
    number: int
    size: int
    code: int


def _likely(store: Store, units: Iterator[_Unit], wanted: Subscription) -> Iterator[_Unit]:
    """The same units but those of sound records that are not wanted, which compiled code finds, many at once.

    The first ones stay: mostly no others are needed.
    """
    yield from islice(units, _ONE_BY_ONE)
    count = 2 * _ONE_BY_ONE
    while several := list(islice(units, count)):
        looked_at = [unit for unit in several if wanted.may_match(unit.key[0], unit.code)]
        for part in _parts(looked_at):
            import numpy as np

            from rmqtool.report.tail.bulk import unwanted

            places, sizes = np.array([unit.place for unit in part]), np.array([unit.size for unit in part])
            passed = unwanted(store, wanted, places, sizes)
            yield from (unit for unit in part if unit.place not in passed)
        count = min(2 * count, _SEVERAL_MAX)


def _parts(units: list[_Unit]) -> Iterator[list[_Unit]]:
    """Runs of units whose records have at most `_PART_BYTES`, or of one."""
    part: list[_Unit] = []
    left = _PART_BYTES
    for unit in units:
        if part and unit.size > left:
            yield part
            part, left = [], _PART_BYTES
        part.append(unit)
        left -= unit.size
    if part:
        yield part


def _back(key: QueueKey, queue: AnyQueue, wanted: int, block: int) -> Iterator[_Unit]:
    """All units of a queue, the newest first.

    First the last `wanted` units are read, then twice as many each time, at most `block` at once: mostly the
    first are all that are used.
    """
    stop, count = queue.end(), max(wanted, 1)
    while stop > queue.start:
        begin = max(stop - count, queue.start)
        for number, unit in queue.numbered(begin, stop, reverse=True, block=block):
            yield _Unit(unit.physical_offset, key, number, unit.size, unit.tags_code)
        stop, count = begin, 2 * count


def _judge(store: Store, wanted: Subscription) -> Callable[[str, int, int], bool]:
    def is_wanted(topic: str, place: int, code: int) -> bool:
        if not wanted.may_match(topic, code):
            return False
        try:
            found = store.get(place)
        except InputError:
            return False
        if found is None:
            return False
        return not wanted.looks_inside or wanted.accepts(found.message)

    return is_wanted
