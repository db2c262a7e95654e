"""Assigns lost records to the parts of a hole: claims by heads and units first, then missing queue offsets.

    1  a unit that agrees with the record's own head     sure
    2  a unit that fits between its queue's neighbours   sure
    3  a head that fits between its queue's neighbours   sure
    4  a unit that does not fit, without competition     not sure
    5  missing queue offsets, in the remaining space     sure if there is only one place for them

Space without a claim ends with a record, of which the end may be left (`traces`): this place is for a missing
number of its topic. Such space holds at least one record, so none gets two numbers before each has one. What
is left is filled with records of no queue.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import field, replace

from rmqtool.errors import FormatError
from rmqtool.formats import filler, properties
from rmqtool.formats.java import java_utf8_decode, java_utf8_encode
from rmqtool.formats.message import BLANK_SIZE, MIN_RECORD_SIZE
from rmqtool.lazy_dataclass import dataclass
from rmqtool.log.remains import End
from rmqtool.message.system_topics import HALF_TOPICS, SCHEDULE_TOPIC
from rmqtool.queue.light_queues import LIGHT_PREFIX
from rmqtool.repair.salvage.model import Claim, Hole
from rmqtool.repair.salvage.order import Gap, Key, Order

_SCHEDULE = SCHEDULE_TOPIC.encode()


def owner_of(claim: Claim, size: int, *, property_crc: bool) -> filler.Owner | None:
    """The owner that a filler of `size` bytes names; None if it must belong to no queue.

    A filler in SCHEDULE_TOPIC_XXXX without a real topic blocks its delay level on 4.x for ever; with the half
    topic as real topic every broker discards it (spec 03). If there is room, an inner batch keeps its
    numbers, and light queues keep their units.
    """
    required: list[tuple[str, str]] = []
    optional = [(properties.TAGS, filler.TAG)]
    if claim.topic == _SCHEDULE:
        required = [(properties.REAL_TOPIC, HALF_TOPICS[0]), (properties.REAL_QID, "0")]
        optional = [(properties.DELAY, str(claim.queue_id + 1))]
    if claim.count:
        required += [
            (properties.INNER_BASE, str(claim.queue_offset)),
            (properties.INNER_NUM, str(claim.count)),
        ]
    if claim.light:
        names, offsets = zip(*claim.light, strict=True)
        required += [
            (properties.INNER_MULTI_DISPATCH, ",".join(names)),
            (properties.INNER_MULTI_QUEUE_OFFSET, ",".join(map(str, offsets))),
        ]
    owner = filler.Owner(claim.topic, claim.queue_id, claim.queue_offset, tuple(required), tuple(optional))
    with suppress(FormatError):  # names of light queues may be anything
        if filler.smallest(owner, property_crc=property_crc) <= size:
            return owner
    bare = filler.Owner(claim.topic, claim.queue_id, claim.queue_offset, (), tuple(optional))
    if claim.topic == _SCHEDULE or filler.smallest(bare, property_crc=property_crc) > size:
        return None
    return bare


@dataclass(slots=True)
class Free:
    """A part [start, stop) of a hole without a claim; `wanted` are the missing records assigned to it.

    `end` is what is left of the record that ends it; with a start the part is this record. `part_of` is where
    the part without a claim begins that ends have divided.
    """

    start: int
    stop: int
    to_end: bool
    wanted: list[tuple[Claim, bool]] = field(default_factory=list)
    used: int = 0
    end: End | None = None
    part_of: int = 0

    def most(self, topic: bytes, least: int) -> int:
        """How many records of a topic, of `least` bytes each, there is room for."""
        count = max(self.room, 0) // least
        if self.end is None or self.end.start is None:
            return count
        return min(count, 1) if self.end.topic == topic and not self.wanted else 0

    @property
    def room(self) -> int:
        """Bytes left for fillers; at a file's end a blank needs some."""
        return self.stop - self.start - (BLANK_SIZE if self.to_end else 0) - self.used


@dataclass
class Parts:
    """A hole with its claims in order, whether each is sure, and the free ranges between them."""

    hole: Hole
    claims: list[Claim] = field(default_factory=list)
    sure: dict[int, bool] = field(default_factory=dict)
    free: list[Free] = field(default_factory=list)


EndBefore = Callable[[int, int], End | None]
"""See `Traces.end_before`."""


def assign(
    holes: Sequence[Hole],
    units: Sequence[Claim],
    order: Order,
    log_start: int,
    end_before: EndBefore,
    *,
    property_crc: bool,
) -> list[Parts]:
    """Assign claims to every hole; `units` are ascending, `log_start` is the log's first offset."""
    _renumber(units, order, log_start)
    starts = [hole.start for hole in holes]
    by_hole: dict[int, list[Claim]] = defaultdict(list)
    for unit in units:
        by_hole[bisect_left(starts, unit.start + 1) - 1].append(unit)
    taken: dict[Key, set[int]] = defaultdict(set)
    found = [_claims(hole, by_hole[number], order, taken) for number, hole in enumerate(holes)]
    for parts in found:
        _close_up(parts)
        parts.free = [each for item in parts.free for each in _by_ends(item, end_before)]
    _place(
        found, order.gaps if log_start == 0 else [gap for gap in order.gaps if gap.after >= 0], property_crc
    )
    return found


def _renumber(units: Iterable[Claim], order: Order, log_start: int) -> None:
    """Correct the numbers of units that are in each other's slots.

    The records of a queue are in the log in the order of their numbers. If there are as many units between
    two sound records as numbers are missing, the units get these numbers, whatever their present slots.
    """
    groups: dict[tuple[Key, int, int | None], list[Claim]] = defaultdict(list)
    for unit in units:
        if not unit.count and not _is_light(unit.topic):
            groups[_key(unit), *order.around(_key(unit), unit.start)].append(unit)
    for (_, before, after), group in groups.items():
        first = before if before >= 0 else 0
        if before < 0 and (log_start > 0 or after is None):
            continue
        right = range(first, first + len(group))
        last = max(unit.queue_offset for unit in group)
        is_all = last < right.stop if after is None else after == right.stop
        if not is_all or len({unit.start for unit in group}) != len(group):
            continue
        for unit, number in zip(group, right, strict=True):
            unit.queue_offset = number


def _claims(hole: Hole, units: Iterable[Claim], order: Order, taken: dict[Key, set[int]]) -> Parts:
    """The claims of one hole that do not contradict each other."""
    limit = hole.stop - (BLANK_SIZE if hole.to_end else 0)
    parts = Parts(hole)
    ranked = [(rank, claim.start, claim.size, number, claim)
              for number, (rank, claim) in enumerate(_ranked(hole, units, order))]  # fmt: skip
    places: list[tuple[int, int]] = []
    for rank, _, _, _, claim in sorted(ranked, key=lambda item: item[:4]):
        least = filler.smallest(filler.Owner(claim.topic, 0, 0))
        numbers = range(claim.queue_offset, claim.queue_offset + claim.step)
        known = taken[claim.topic, claim.queue_id]
        if claim.size < least or claim.start < hole.start or claim.end > limit or claim.queue_offset < 0:
            continue
        at = bisect_left(places, (claim.start, claim.end))
        if (at and places[at - 1][1] > claim.start) or (at < len(places) and places[at][0] < claim.end):
            continue
        if numbers[0] in known:
            continue
        known.update(numbers)
        insort(places, (claim.start, claim.end))
        parts.claims.append(claim)
        parts.sure[claim.start] = rank < 4
    parts.claims.sort(key=lambda claim: claim.start)
    return parts


def _ranked(hole: Hole, units: Iterable[Claim], order: Order) -> Iterable[tuple[int, Claim]]:
    """(rank, claim) of all claims for places in a hole; see the module for the ranks."""
    heads = {(head.start, head.size): head for head in hole.heads}
    groups: dict[tuple[int, int], list[Claim]] = defaultdict(list)
    for unit in units:
        groups[unit.start, unit.size].append(unit)
    for place, group in groups.items():
        head = heads.get(place)
        main = next((unit for unit in group if head is not None and _same(unit, head)), None)
        if main is not None:
            rank = 1
            heads.pop(place)
            main.code, main.taken = (head.code, head.taken) if head is not None else ("", False)
        else:
            fitting = [unit for unit in group if fits(unit, order)]
            main = min(fitting or group, key=lambda unit: _is_light(unit.topic))
            rank = 2 if fitting else 4
        main.light = tuple(
            (java_utf8_decode(unit.topic), unit.queue_offset)
            for unit in group
            if unit is not main and (_is_light(unit.topic) or unit.queue_id == main.queue_id)
        )
        yield rank, main
    for head in heads.values():
        if head.taken:
            yield 0, head
        elif head.has_queue and fits(head, order) and (head.code != "CL06" or _key(head) in order.known):
            yield 3, head


def _key(claim: Claim) -> Key:
    return claim.topic, claim.queue_id


def _same(unit: Claim, head: Claim) -> bool:
    return _key(unit) == _key(head) and unit.queue_offset == head.queue_offset and head.has_queue


def _is_light(topic: bytes) -> bool:
    return topic.startswith(java_utf8_encode(LIGHT_PREFIX))


def fits(claim: Claim, order: Order) -> bool:
    """Whether its queue offset is between those of its queue's sound records before and after it."""
    before, after = order.around(_key(claim), claim.start)
    if before >= 0 and claim.queue_offset < before:
        return False
    return after is None or claim.queue_offset + claim.step <= after


def _close_up(parts: Parts) -> None:
    """Collect the free ranges; a rest too small for a filler is added to the claim next to it."""
    hole, position = parts.hole, parts.hole.start
    for number, claim in enumerate(parts.claims):
        left = claim.start - position
        if 0 < left < filler.SIZE_MIN:
            before = parts.claims[number - 1] if number else None
            if before is not None and before.end == position:
                before.size += left
            else:
                parts.sure[position] = parts.sure.pop(claim.start)
                claim.start, claim.size = position, claim.size + left
        elif left:
            parts.free.append(Free(position, claim.start, to_end=False))
        position = claim.end
    left = hole.stop - position
    if hole.to_end:
        parts.free.append(Free(position, hole.stop, to_end=True))
    elif 0 < left < filler.SIZE_MIN and parts.claims:
        parts.claims[-1].size += left
    elif left:
        parts.free.append(Free(position, hole.stop, to_end=False))


def _by_ends(free: Free, end_before: EndBefore) -> Iterator[Free]:
    """A free range as the ranges of records whose ends are left, and what is before these."""
    free.part_of, found = free.start, []
    while not free.to_end and free.stop - free.start >= MIN_RECORD_SIZE:
        free.end = end_before(free.start, free.stop)
        start = None if free.end is None else free.end.start
        if free.end is None or start is None or start == free.start:
            break
        if start - free.start < filler.SIZE_MIN:
            free.end = free.end._replace(start=None)
            break
        found.append(replace(free, start=start, wanted=[]))
        free.stop, free.end = start, None
    yield from (free, *reversed(found))


@dataclass(slots=True)
class _Missing:
    """Queue offsets [first, first + count) without a place, to be assigned to the free ranges [low, high).

    `low` and `high` are indices of free ranges; `least` is the size of the shortest filler for one, bytes.
    """

    key: Key
    first: int
    count: int
    low: int
    high: int
    least: int
    is_sure: bool


def _place(found: Sequence[Parts], gaps: Sequence[Gap], property_crc: bool) -> None:
    """Assign missing queue offsets to the free ranges, in order within each queue."""
    free = [item for parts in found for item in parts.free]
    if not free or not gaps:
        return
    claims: dict[Key, list[Claim]] = defaultdict(list)
    for parts in found:
        for claim in parts.claims:
            claims[_key(claim)].append(claim)
    for queue in claims.values():
        queue.sort(key=lambda claim: claim.queue_offset)
    waiting: list[_Missing] = []
    for gap in gaps:
        least = filler.smallest(filler.Owner(gap.key[0], 0, 0), property_crc=property_crc)
        waiting += _missing(gap, claims[gap.key], free, least)
    # first the one whose last possible place comes first
    waiting.sort(key=lambda item: (item.high, item.low, item.key, item.first))
    for item in waiting:
        places = free[item.low : item.high]
        for place, count in zip(places, _shares(item, places), strict=True):
            for number in range(item.first, item.first + count):
                claim = Claim(0, item.least, *item.key, number, known_from="gap")
                place.wanted.append((claim, item.is_sure))
            place.used += count * item.least
            item.first, item.count = item.first + count, item.count - count


def _shares(item: _Missing, places: Sequence[Free]) -> list[int]:
    """How many of the missing records each place gets: first one where an end or nothing else shows it."""
    topic, left = item.key[0], item.count
    shares = [0] * len(places)
    named = [place.end is not None and place.end.topic == topic and not place.wanted for place in places]
    empty = [place.end is None and not place.wanted for place in places]
    for chosen in (named, empty, None):
        for number, place in enumerate(places):
            if not left:
                return shares
            if chosen is None or (chosen[number] and not shares[number]):
                share = min(place.most(topic, item.least) - shares[number], left, 1 if chosen else left)
                shares[number] += max(share, 0)
                left -= max(share, 0)
    return shares


def _missing(gap: Gap, claims: Sequence[Claim], free: Sequence[Free], least: int) -> Iterable[_Missing]:
    """The parts of a gap that no claim explains, each with the free ranges where it may be.

    `claims` are the queue's, by queue offset. A part that does not fit into these ranges is dropped: the
    records were not lost there, but a queue offset is wrong.
    """
    start = bisect_left(claims, gap.first, key=lambda claim: claim.queue_offset)
    end = bisect_left(claims, gap.stop, key=lambda claim: claim.queue_offset)
    first, after = gap.first, gap.after
    for claim in [*claims[start:end], None]:
        stop, before = (claim.queue_offset, claim.start) if claim is not None else (gap.stop, gap.before)
        low = bisect_left(free, after, key=lambda item: item.start)
        high = bisect_left(free, before, key=lambda item: item.start)
        if stop > first and stop - first <= sum(each.most(gap.key[0], least) for each in free[low:high]):
            is_sure = len({each.part_of for each in free[low:high]}) == 1
            yield _Missing(gap.key, first, stop - first, low, high, least, is_sure)
        if claim is not None:
            first, after = claim.queue_offset + claim.step, claim.end
