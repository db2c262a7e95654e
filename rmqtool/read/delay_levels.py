"""The delays of a store's delay levels: the one place that decides them.

    broker.conf sets messageDelayLevel      its table
    units of the level have delivery times  the delay that most of them have: delivery time minus store time
    neither                                 the broker's default, which may be wrong

The table is in the broker's configuration, which is not in the store. A broker computes the delivery time
once, when it dispatches the record, and stores it as the tags code of the unit.

Source: MessageStoreConfig#messageDelayLevel, ScheduleMessageService#computeDeliverTimestamp,
ConsumeQueue#putMessagePositionInfoWrapper; spec 01 5.2.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from rmqtool.errors import InputError
from rmqtool.formats import properties
from rmqtool.lazy_dataclass import dataclass
from rmqtool.message.system_topics import DEFAULT_DELAYS_MS, SCHEDULE_TOPIC, parse_delay_levels
from rmqtool.queue.consume_queue import ConsumeQueue
from rmqtool.times import DAY_MS, format_duration

if TYPE_CHECKING:
    from rmqtool.read.store import Store
    from rmqtool.storage.broker_conf import BrokerConf

_LONGEST_MS = 366 * DAY_MS
_STEP_MS = 1000
_LEVELS_MAX = 1000
_DIFFERENT_MAX = 1 << 16  # pairs of level and delay that are counted
_SAMPLE = 3  # units of a level


def configured(conf: BrokerConf | None) -> tuple[int, ...] | None:
    """The delays of a broker.conf, ms, of level n at n - 1; None if it does not set messageDelayLevel.

    Raises UsageError if messageDelayLevel cannot be parsed.
    """
    levels = conf.text("messageDelayLevel") if conf is not None else None
    return None if levels is None else parse_delay_levels(levels)


def is_delay(delay_ms: Any) -> Any:
    """Whether a delivery time can be right that is this long after the store time; a number, or an array.

    Every delay that a broker can have is a number of seconds.
    """
    return (delay_ms > 0) & (delay_ms < _LONGEST_MS) & (delay_ms % _STEP_MS == 0)


@dataclass(frozen=True)
class DelayLevels:
    """The delays of a store.

    Attributes:
        delays_ms: of level n at n - 1.
        known: the levels whose delay broker.conf, or a unit, shows; the others have the default.
        unclear: the delays of a level whose units show several, the most frequent one first.
    """

    delays_ms: tuple[int, ...]
    known: frozenset[int]
    unclear: dict[int, tuple[int, ...]]

    @property
    def unusual(self) -> bool:
        """Whether a level that is known does not have the broker's default."""
        return any(
            level > len(DEFAULT_DELAYS_MS) or self.delays_ms[level - 1] != DEFAULT_DELAYS_MS[level - 1]
            for level in self.known
        )

    def doubt(self, level: int, count: int) -> str | None:
        """A warning that the delivery times of `count` messages may be wrong, made from the level's delay.

        None if the delay is known, or the messages have no delay.
        """
        delay_ms = self.delays_ms[min(level, len(self.delays_ms)) - 1] if self.delays_ms else 0
        if not count or not delay_ms:
            return None
        of_level = f"{count} delayed message{'' if count == 1 else 's'} of level {level}"
        delay = format_duration(delay_ms)
        if level in self.unclear:
            others = ", ".join(format_duration(each) for each in self.unclear[level][1:4])
            return (
                f"the delivery time of {of_level} is made from the delay that most messages of the level"
                f" have, {delay}; others have {others}. If that is wrong, name the broker.conf with"
                " messageDelayLevel (--broker-conf)"
            )
        if level not in self.known:
            also = ", and other levels of this store differ from the defaults" if self.unusual else ""
            return (
                f"the delivery time of {of_level} is assumed: no unit shows the delay of the level, so it"
                f" gets the broker's default delay of {delay}{also}. If that is wrong, name the broker.conf"
                " with messageDelayLevel (--broker-conf)"
            )
        return None


class Delays:
    """Counts how long messages of each level wait."""

    def __init__(self) -> None:
        self._counts: Counter[tuple[int, int]] = Counter()

    def add(self, level: int, delay_ms: int, count: int = 1) -> None:
        """Add units of a level whose delivery time is so long after the store time; impossible ones too."""
        if 0 < level <= _LEVELS_MAX and is_delay(delay_ms):
            pair = level, delay_ms
            if pair in self._counts or len(self._counts) < _DIFFERENT_MAX:
                self._counts[pair] += count

    def levels(self, conf: BrokerConf | None) -> DelayLevels:
        """The delays of the store whose units were counted. Raises UsageError as `configured`."""
        given = configured(conf)
        if given is not None:
            return DelayLevels(given, frozenset(range(1, len(given) + 1)), {})
        of_level: dict[int, list[int]] = {}
        for (level, delay_ms), _ in sorted(self._counts.items(), key=lambda item: (-item[1], item[0])):
            of_level.setdefault(level, []).append(delay_ms)
        table = list(DEFAULT_DELAYS_MS)
        table += table[-1:] * (max(of_level, default=0) - len(table))  # as a broker counts levels above it
        for level, delays in of_level.items():
            table[level - 1] = delays[0]
        unclear = {level: tuple(delays) for level, delays in of_level.items() if len(delays) > 1}
        return DelayLevels(tuple(table), frozenset(of_level), unclear)


def delay_levels(store: Store) -> DelayLevels:
    """The delays of a store, by its broker.conf, or the newest units of each level.

    Raises UsageError as `configured`.
    """
    found = Delays()
    conf = store.layout.broker_conf
    if configured(conf) is None:
        for topic, queue_id in store.queues:
            if topic == SCHEDULE_TOPIC:
                for level, delay_ms in _newest(store, queue_id):
                    found.add(level, delay_ms)
    return found.levels(conf)


def _newest(store: Store, queue_id: int) -> Iterable[tuple[int, int]]:
    """Level and delay of the newest messages of one queue whose units have a delivery time."""
    try:
        queue = store.queue(SCHEDULE_TOPIC, queue_id)
        if not isinstance(queue, ConsumeQueue):
            return
        end = queue.max_offset()
        for _, unit in queue.units(max(end - _SAMPLE, 0), end):
            found, code = store.find(unit.physical_offset), queue.tags_code(unit)
            if found is None or code is None or found.message.topic != SCHEDULE_TOPIC:
                continue
            text = properties.decode(found.message.properties_bytes).get(properties.DELAY, "")
            level = int(text) if text.isascii() and text.isdecimal() and len(text) < 10 else 0
            yield level, code - found.message.store_timestamp
    except InputError:  # of damage; whoever needs the queue reports it
        return
