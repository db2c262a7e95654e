"""Units of the timer log that are gone; and those not read yet that do not lead to their messages.

    gone            bytes that are no unit, before the end of the timer log that timercheck notes
    offset, size    not those of a record of the timer's queue: the message is never delivered
    link            not an earlier unit of the same slot: earlier messages of the slot are never delivered

Units of slots that were read do not matter any more. A broker checks only whether a unit is one: it ends the
timer log at the first that is not, and takes the messages from there on from their queue again. Slots of the
wheel go on leading to the units that are gone, and new units link to them.

Source: TimerMessageStore#recover, #doEnqueue, #dequeue; TimerWheel#getSlot; TimerFlushService.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from rmqtool.errors import InputError
from rmqtool.formats import timer as form
from rmqtool.message.system_topics import TIMER_TOPIC
from rmqtool.storage.open_files import OpenFiles, read_head

if TYPE_CHECKING:
    from collections.abc import Callable

    from rmqtool.read.store import Store
    from rmqtool.storage.buffers import Array
    from rmqtool.storage.layout import StoreFile, StoreLayout

_UNIT = form.LOG_UNIT.size
_BLOCK = (1 << 20) // _UNIT * _UNIT
_READ_MAX = 10_000  # records


class WrongUnit(NamedTuple):
    """A unit that does not lead to its message, or to the unit before it.

    Attributes:
        file: of the timer log.
        position: in the file.
        physical_offset: of the message, as the unit has it.
        reason: what is wrong.
        is_after_log: no record is there, and all records of the timer's queue are before it. `recover` ends
            the timer log at such a unit.
    """

    file: StoreFile
    position: int
    physical_offset: int
    reason: str
    is_after_log: bool = False


class GoneUnit(NamedTuple):
    """The first place without a unit; `flushed` is the end of the timer log that timercheck notes."""

    file: StoreFile
    position: int
    flushed: int

    @property
    def reason(self) -> str:
        """What is wrong."""
        return f"no unit is there, but timercheck notes units up to {self.flushed}"


def precision_ms(store: Store) -> int:
    """The time of a slot of the wheel, in ms."""
    conf = store.layout.broker_conf
    value = conf.integer("timerPrecisionMs") if conf is not None else None
    return value if value is not None and value > 0 else form.DEFAULT_PRECISION_MS


def sound_units(files: Iterable[StoreFile]) -> Iterator[tuple[StoreFile, int, Array]]:
    """(file, position, units), block by block: of each file the units before bytes that are none."""
    import numpy as np

    with OpenFiles() as opened:
        for file in files:
            end, is_whole = 0, True
            while is_whole:
                data = opened.read(file.path, end, _BLOCK)
                units = np.frombuffer(data, form.LOG_UNIT.dtype, len(data) // _UNIT)
                is_unit = (units["size"] == _UNIT) & (units["magic"] & ~np.int32(form.MAGIC_BITS) == 0)
                is_whole = len(units) > 0 and bool(is_unit.all())
                count = len(units) if is_whole else int(np.argmin(is_unit)) if len(units) else 0
                yield file, end, units[:count]
                end += count * _UNIT


def gone_unit(layout: StoreLayout) -> GoneUnit | None:
    """The first place of the timer log that has no unit although timercheck counts one there, or None.

    Raises:
        UnreadableError: timercheck, or a file of the timer log, cannot be read.
    """
    data = read_head(layout.timer_check, form.CHECK.size) if layout.timer_check is not None else None
    if not data or len(data) < form.CHECK.size:
        return None
    flushed = form.decode_check(data).last_timer_log_flush_position
    files = [file for file in layout.timer_log if file.file_from_offset < flushed]
    ends = {file: position + len(units) * _UNIT for file, position, units in sound_units(files)}
    with OpenFiles() as opened:
        for file, end in ends.items():
            is_end = form.is_log_blank(opened.read(file.path, end, form.LOG_BLANK.size))
            if file.file_from_offset + end < flushed and not is_end:
                return GoneUnit(file, end, flushed)
    return None


def wrong_units(store: Store, read_ms: int) -> Iterator[WrongUnit]:
    """The wrong ones of the units that a broker reads from the time `read_ms` on.

    Raises:
        UnreadableError: a file of the timer log cannot be read.
    """
    files = store.layout.timer_log
    places, units = waiting_units(store, read_ms)
    if not len(units):
        return

    def wrong(number: int, reason: str, *, is_after_log: bool = False) -> WrongUnit:
        place = int(places[number])
        file = next(each for each in reversed(files) if each.file_from_offset <= place)
        offset = int(units["physical_offset"][number])
        return WrongUnit(file, place - file.file_from_offset, offset, reason, is_after_log)

    yield from _without_record(store, units, wrong)
    for number in _badly_linked(places, units, files[0].file_from_offset, precision_ms(store)):
        yield wrong(number, "its link does not lead to an earlier unit of the same slot")


def waiting_units(store: Store, read_ms: int) -> tuple[Array, Array]:
    """(places in the timer log, units) of the units that a broker reads from the time `read_ms` on.

    Raises:
        UnreadableError: a file of the timer log cannot be read.
    """
    import numpy as np

    step_ms = precision_ms(store)
    places, found = [np.zeros(0, np.int64)], [np.zeros(0, form.LOG_UNIT.dtype)]
    for file, position, units in sound_units(store.layout.timer_log):
        chosen = np.flatnonzero(_slots(units, step_ms) >= read_ms // step_ms)
        places.append(chosen * _UNIT + file.file_from_offset + position)
        found.append(units[chosen])
    return np.concatenate(places), np.concatenate(found)


def _slots(units: Array, step_ms: int) -> Array:
    """The time of the slot of each unit, in steps."""
    import numpy as np

    return np.asarray((units["write_time"].astype(np.int64) + units["delay"].astype(np.int64)) // step_ms)


def _without_record(store: Store, units: Array, wrong: Callable[..., WrongUnit]) -> Iterator[WrongUnit]:
    """Those that name no record of the timer's queue; what its units do not show, the log does."""
    import numpy as np

    offsets = units["physical_offset"].astype(np.int64)
    known, sizes = _queue(store)
    at = np.searchsorted(known, offsets)
    inside = np.minimum(at, max(len(known) - 1, 0))
    is_known = np.zeros(len(units), bool)
    if len(known):
        is_known = (known[inside] == offsets) & (sizes[inside] == units["message_size"])
    expired = (offsets >= 0) & (offsets < store.commit_log.min_offset)
    for number in np.flatnonzero(~is_known & ~expired)[:_READ_MAX].tolist():
        offset, size = int(offsets[number]), int(units["message_size"][number])
        record = store.find(offset) if offset >= 0 else None
        if record is None:
            is_after = offset >= 0 and at[number] == len(known)
            yield wrong(number, f"no record is at {offset}", is_after_log=bool(is_after))
        elif record.message.topic != TIMER_TOPIC:
            yield wrong(number, f"the record at {offset} is not one of {TIMER_TOPIC}")
        elif record.message.total_size != size:
            yield wrong(number, f"the record at {offset} has {record.message.total_size} bytes, not {size}")


def _queue(store: Store) -> tuple[Array, Array]:
    """(physical offsets, sizes) of the units of the timer's queue that can be read."""
    import numpy as np

    from rmqtool.queue.consume_queue import ConsumeQueue
    from rmqtool.queue.units import UnitReader

    offsets, sizes = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    queue = store.queues.get((TIMER_TOPIC, 0))
    if isinstance(queue, ConsumeQueue):
        try:
            with UnitReader() as reader:
                start, stop = store.first_live(TIMER_TOPIC, 0), queue.max_offset()
                for _, units in reader.live_between(queue, start, stop):
                    offsets.append(units["physical_offset"].astype(np.int64))
                    sizes.append(units["size"].astype(np.int64))
        except (InputError, FileNotFoundError):
            pass  # a finding of its own
    places, lengths = np.concatenate(offsets), np.concatenate(sizes)
    order = np.argsort(places, kind="stable")
    return places[order], lengths[order]


def _badly_linked(places: Array, units: Array, first: int, step_ms: int) -> Sequence[int]:
    """Which units do not link to a unit of their slot; what is before the first file has expired."""
    import numpy as np

    links, slots = units["previous_position"].astype(np.int64), _slots(units, step_ms)
    at = np.minimum(np.searchsorted(places, links), len(places) - 1)
    is_right = (places[at] == links) & (slots[at] == slots) & (links < places)
    is_right |= (links == -1) | ((links >= 0) & (links < first))
    found: list[int] = np.flatnonzero(~is_right).tolist()
    return found
