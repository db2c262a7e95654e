"""What one log lacks where the other has the messages: fillers, damage, or messages with damaged properties.

A filler is not a message: two logs do not part where one of them has a filler. `parting` passes
fillers, and finds the first two different messages.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import fields
from itertools import groupby
from typing import Any, Literal, NamedTuple

from rmqtool.check.diff.carried import Carried
from rmqtool.check.diff.ends import SideName
from rmqtool.check.diff.operands import Operand
from rmqtool.errors import UnreadableError
from rmqtool.formats.filler import is_filler
from rmqtool.formats.message import Message
from rmqtool.lazy_dataclass import dataclass
from rmqtool.log.events import StoredMessage
from rmqtool.message.rows import OK, RowFormat, message_row
from rmqtool.read.fillers import fillers, ranges_of
from rmqtool.read.selection import Selection

_SEARCHED_BYTES = 64 << 20  # of a differing range; a longer one is not a hole that recover has filled
_OWN_FIELDS = 2  # different records differ in at least this many fields; with fewer, one of them is damaged


Lack = Literal["fillers", "damage", "properties"]
"""What one log has instead of messages: fillers, no sound records, or messages that `recover` keeps as they
are, with damaged properties: some of their keys, tags or other properties are gone."""

_STATUS = RowFormat(body="none", names=("status",))


def is_whole(message: Message, physical_offset: int) -> bool:
    """Whether nothing of a stored message is damaged, its properties included."""
    status: list[str] = message_row(message, physical_offset, "", _STATUS)["status"]
    return status == [OK]


@dataclass(frozen=True, slots=True)
class LackingRange:
    """Bytes [start, stop) of the log, of which `side` lacks something, and the other has `messages` records.

    Attributes:
        fillers: how many; 0 unless these are what `side` has.
        carried: what `side` has of these messages elsewhere.
    """

    kind: Lack
    side: SideName
    start: int
    stop: int
    fillers: int
    messages: int
    carried: Carried | None = None

    def row(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "kind": self.kind,
            "side": self.side,
            "from_offset": self.start,
            "to_offset": self.stop,
            **({"fillers": self.fillers} if self.fillers else {}),
            "messages": self.messages,
            "carried": self.carried.row() if self.carried is not None else None,
        }


class _Place(NamedTuple):
    """Where a record is in the log, half-open, and whether it is a filler or an undamaged message."""

    start: int
    stop: int
    is_filler: bool
    is_whole: bool


class _Sound(NamedTuple):
    """The sound records of one log in a range: the places of all of them, and the fillers."""

    places: list[_Place]
    fillers: list[StoredMessage]


def lacking_ranges(a: Operand, b: Operand, start: int, stop: int) -> tuple[LackingRange, ...]:
    """What either side lacks in [start, stop) where the other side has messages."""
    if stop - start > _SEARCHED_BYTES:
        return ()
    try:
        of_a, of_b = (_sound(side, start, stop) for side in (a, b))
    except UnreadableError:
        return ()
    found = [
        *_filled("a", of_a, of_b), *_lost("a", a, of_a, of_b),
        *_filled("b", of_b, of_a), *_lost("b", b, of_b, of_a),
    ]  # fmt: skip
    return tuple(sorted(found, key=lambda each: each.start))


def _sound(side: Operand, start: int, stop: int) -> _Sound:
    from rmqtool.read.log_items import log_items

    found = _Sound([], [])
    for item in log_items(side.store, Selection(from_offset=start, to_offset=stop)):
        if isinstance(item, StoredMessage) and not item.status:
            at, record = item.physical_offset, item.message
            place = _Place(at, item.end, is_filler(record), is_whole(record, at))
            found.places.append(place)
            if place.is_filler:
                found.fillers.append(item)
    return found


def _lost(name: SideName, side: Operand, own: _Sound, other: _Sound) -> Iterator[LackingRange]:
    """The damage of `side`; `own` and `other` are the records of the two logs."""
    mine, filled = {each.start: each for each in own.places}, [each for each in own.places if each.is_filler]

    def lack(each: _Place) -> Lack | None:
        before = bisect_left(filled, (each.stop,)) - 1  # the last filler that begins before the record ends
        is_filled = before >= 0 and filled[before].stop > each.start
        return None if each.is_filler or is_filled else _lack_at(side, mine, each)

    for kind, run in groupby(other.places, key=lack):
        if kind is not None:
            places = list(run)
            yield LackingRange(kind, name, places[0].start, places[-1].stop, 0, len(places))


def _lack_at(side: Operand, own: dict[int, _Place], theirs: _Place) -> Lack | None:
    """What `side`, whose records are `own` by offset, has instead of a message of the other log."""
    here = own.get(theirs.start)
    if here is None:
        found = side.store.find(theirs.start)
        if found is None or found.status:
            return "damage"
    # Of a record that the walk does not count as sound only the end is damaged: it has become zeros.
    return "properties" if theirs.is_whole and not (here is not None and here.is_whole) else None


def _filled(side: SideName, own: _Sound, other: _Sound) -> Iterator[LackingRange]:
    """The fillers of `side`; `own` and `other` are the records of the two logs."""
    theirs = {each.start: each.is_filler for each in other.places}
    mine = (each for each in own.fillers if not theirs.get(each.physical_offset, False))
    for found in ranges_of(mine, by_topic=False):
        messages = sum(
            found.start <= offset < found.stop and not is_also for offset, is_also in theirs.items()
        )
        if messages:
            yield LackingRange("fillers", side, found.start, found.stop, found.fillers, messages)


def changed_fields(a: Message, b: Message) -> list[str]:
    """Names of the fields in which two records differ."""
    names = (each.name for each in fields(Message))
    return [name for name in names if getattr(a, name) != getattr(b, name)]


def are_different(a: Message, b: Message) -> bool:
    """Whether two records at one offset are different messages.

    A CRC does not cover the whole record, so a difference in a single field may be damage. A filler has
    replaced a message of its own log.
    """
    return len(changed_fields(a, b)) >= _OWN_FIELDS and not (is_filler(a) or is_filler(b))


def parting(a: Operand, b: Operand, start: int, stop: int) -> int | None:
    """Where two logs part: the offset of the first different messages, or of fillers within which they part.

    Args:
        a: one log.
        b: the other.
        start: the offset of a record on both sides.
        stop: the end of the searched range.

    Returns:
        The physical offset, None if up to `stop` only fillers or damage differ.
    """
    stop = min(stop, start + _SEARCHED_BYTES)
    try:
        return _parting(_Records(a, start), _Records(b, start), stop)
    except UnreadableError:
        return None


def first_different(a: Operand, b: Operand, start: int, stop: int) -> int | None:
    """The offset of the first different messages in a range that begins with damage; None without any.

    The logs part there, or before it within the damage.
    """
    stop = min(stop, start + _SEARCHED_BYTES)
    try:
        places = [{each.start for each in _sound(side, start, stop).places} for side in (a, b)]
    except UnreadableError:
        return None
    for offset in sorted(places[0] & places[1]):
        one, other = a.store.find(offset), b.store.find(offset)
        if one is not None and other is not None and are_different(one.message, other.message):
            return offset
    return None


def _parting(one: _Records, other: _Records, stop: int) -> int | None:
    agreed = one.offset  # up to here both have the same records, or one has fillers
    while one.offset is not None and other.offset is not None and min(one.offset, other.offset) < stop:
        if one.offset != other.offset:
            behind, ahead = (one, other) if one.offset < other.offset else (other, one)
            if not (behind.is_filler or ahead.was_filler):
                return agreed
            behind.advance()
            continue
        agreed = one.offset
        if not (one.is_filler or other.is_filler):
            if one.message is None or other.message is None:
                if one.end != other.end:
                    return None  # a damaged record does not say where the next one begins
            elif are_different(one.message, other.message):
                return agreed
            agreed = one.end
        one.advance()
        other.advance()
    return None


class _Records:
    """The records of one log from an offset on; `offset` is None after the last one."""

    def __init__(self, side: Operand, start: int) -> None:
        self._side = side
        self._heads = side.store.commit_log.heads(start)
        self.is_filler = False
        self.advance()

    def advance(self) -> None:
        """Go to the next record; blanks are passed. Raises UnreadableError."""
        self.was_filler = self.is_filler
        head = next(self._heads, None)
        self.offset = head.physical_offset if head is not None else None
        self.end = head.end if head is not None else 0
        found = self._side.store.find(self.offset) if self.offset is not None else None
        self.message = found.message if found is not None and not found.status else None
        self.is_filler = self.message is not None and is_filler(self.message)


def start_of_fillers(side: Operand, first: int, stop: int) -> int:
    """The offset of the first of the fillers that follow each other up to `stop`, at least `first`."""
    try:
        found = list(fillers(side.store, start=max(first, stop - _SEARCHED_BYTES), stop=stop))
    except UnreadableError:
        return first
    return ranges_of(found, by_topic=False)[-1].start if found else first
