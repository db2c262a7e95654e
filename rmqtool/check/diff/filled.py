"""Fillers of one log that stand where the other log has the messages, after `recover` has filled a hole."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rmqtool.check.diff.ends import SideName
from rmqtool.check.diff.operands import Operand
from rmqtool.errors import UnreadableError
from rmqtool.formats.filler import is_filler
from rmqtool.lazy_dataclass import dataclass
from rmqtool.log.events import StoredMessage
from rmqtool.read.fillers import fillers, ranges_of
from rmqtool.read.selection import Selection

_SEARCHED_BYTES = 64 << 20  # of a differing range; a longer one is not a hole that recover has filled


@dataclass(frozen=True, slots=True)
class FilledRange:
    """Bytes [start, stop) of the log: `fillers` on `side`, `messages` sound records on the other."""

    side: SideName
    start: int
    stop: int
    fillers: int
    messages: int

    def row(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "side": self.side,
            "from_offset": self.start,
            "to_offset": self.stop,
            "fillers": self.fillers,
            "messages": self.messages,
        }


def filled_ranges(a: Operand, b: Operand, start: int, stop: int) -> tuple[FilledRange, ...]:
    """The fillers of either side in the records from `start`, a record's offset on both, to `stop`."""
    if stop - start > _SEARCHED_BYTES:
        return ()
    try:
        if not any(_has_filler(side, start, stop) for side in (a, b)):
            return ()
        of_a, of_b = (list(_sound_records(side, start, stop)) for side in (a, b))
    except UnreadableError:
        return ()
    found = [*_filled("a", of_a, of_b), *_filled("b", of_b, of_a)]
    return tuple(sorted(found, key=lambda each: each.start))


def _has_filler(side: Operand, start: int, stop: int) -> bool:
    """By the compiled walk where the range is large: most differing ranges have no filler."""
    return next(fillers(side.store, start=start, stop=stop), None) is not None


def _filled(side: SideName, own: list[StoredMessage], other: list[StoredMessage]) -> Iterator[FilledRange]:
    theirs = {each.physical_offset: is_filler(each.message) for each in other}
    mine = (each for each in own if is_filler(each.message) and not theirs.get(each.physical_offset, False))
    for found in ranges_of(mine, by_topic=False):
        messages = sum(
            found.start <= offset < found.stop and not is_also for offset, is_also in theirs.items()
        )
        if messages:
            yield FilledRange(side, found.start, found.stop, found.fillers, messages)


def _sound_records(side: Operand, start: int, stop: int) -> Iterator[StoredMessage]:
    from rmqtool.read.log_items import log_items

    for item in log_items(side.store, Selection(from_offset=start, to_offset=stop)):
        if isinstance(item, StoredMessage) and not item.status:
            yield item
