"""How far each delay level was delivered, where delayOffset.json is lost: the log shows it.

A broker that starts without the file takes its .bak, and delivers again what was delivered since; without
both, every stored delayed message. Of a message that was delivered the log has a copy under its real topic
(read/delivered.py). So the next message to deliver of a level is the first without a copy, of its queue or
from the offset in the .bak on. This offset loses no message: messages after it that have a copy are
delivered twice, and so may be those without a unique key, of which nothing is known.

A file that is there is taken as it is: after a crash it is up to ten seconds older than the log, and to look
for copies of all that waits would take a pass over the log.

Messages of the 5.x timer do not depend on the file: timercheck says how far the timer came.

Source: ScheduleMessageService#load, #correctDelayOffset, #start; spec 02 sections 10.3 to 10.5, D1.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from rmqtool.errors import FormatError, UnreadableError
from rmqtool.formats import config_json
from rmqtool.message.system_topics import SCHEDULE_TOPIC
from rmqtool.problems import Finding, finding
from rmqtool.read.delivered import delayed_messages, delivered
from rmqtool.read.lost_config import has_config, what_happened_to
from rmqtool.storage.config_files import DELAY_OFFSETS, FOLDER, read_config

if TYPE_CHECKING:
    from rmqtool.read.delivered import Waited
    from rmqtool.read.store import Store
    from rmqtool.storage.layout import StoreLayout

MESSAGES_MAX = 1_000_000
"""With more stored delayed messages nothing is examined: 1,000,000 need 0.7 GB of memory."""


class LevelProgress(NamedTuple):
    """One delay level.

    Attributes:
        level: from 1.
        next_offset: the next queue offset to deliver.
        end_offset: the end of its queue.
        delivered: how many messages the log has a copy of, of the queue or from the offset in the .bak on.
        again: how many of these come at `next_offset` or later: they are delivered twice.
        unclear: messages there without a unique key: whether they were delivered is unknown.
        why: why `next_offset` is not later: the message there has `no_key`, or the log has `no_copy` of it;
            None if nothing is delivered twice.
    """

    level: int
    next_offset: int
    end_offset: int
    delivered: int
    again: int
    unclear: int
    why: str | None


class DelayLoss(NamedTuple):
    """What the log shows of the delay levels.

    Attributes:
        levels: in their order.
        messages: how many delayed messages are stored, from the offsets in the .bak on.
        unclear: how many of them have no unique key.
        copies: physical offsets of the copies of those that were delivered, in the order of the log.
        noted: the offsets in the .bak, by level; None if it is lost too.
    """

    levels: Sequence[LevelProgress]
    messages: int
    unclear: int
    copies: Sequence[int]
    noted: Mapping[int, int] | None = None

    @property
    def is_known(self) -> bool:
        """Whether the offsets are better than those of a broker without the file.

        Without a .bak also if it needs no better.
        """
        is_better = any(level.delivered > level.again for level in self.levels)
        return is_better or (self.noted is None and not self.unclear)

    @property
    def again(self) -> int:
        """How many messages are delivered twice by a broker with these offsets, as far as the log shows.

        If they are not known, it starts without them.
        """
        return sum(level.again for level in self.levels) if self.is_known else len(self.copies)

    def again_without(self, log_end: int | None = None) -> int:
        """How many are delivered twice without them, by a broker whose log ends at `log_end`."""
        return len(self.copies) if log_end is None else bisect_left(self.copies, log_end)

    def rows(self) -> list[dict[str, Any]]:
        """The levels as JSON."""
        return [level._asdict() for level in self.levels]


def offsets_of_bak(layout: StoreLayout) -> dict[int, int] | None:
    """The offsets of delayOffset.json.bak, by level, if the file is lost, so that a broker takes them.

    None if it does not, or the .bak cannot be understood.

    Raises:
        UnreadableError: a file exists but cannot be read.
    """
    folder = layout.config_folder
    if folder is None or not has_config(layout):
        return None
    try:
        loaded = read_config(folder, DELAY_OFFSETS)
        return config_json.delay_offsets(loaded.document) if loaded.source == "bak" else None
    except FormatError:  # a finding of its own
        return None


def old_bak(store: Store) -> Iterator[Finding]:
    """CF07 if delayOffset.json is lost, and its .bak is older than the log; the store must not be live.

    A queue or file that cannot be read is among `store.failures`.
    """
    try:
        noted = offsets_of_bak(store.layout)
        if noted is None:
            return
        keys = [key for key in store.queues if key[0] == SCHEDULE_TOPIC]
        queues = {key: (store.first_live(*key), store.queues[key].max_offset()) for key in keys}
        found = find_delay_loss(store, queues, noted=noted)
    except UnreadableError as error:
        store.note_failure(error)
        return
    if found is None or not found.copies:
        return
    count = len(found.copies)
    made = finding("CF07", f"{FOLDER}/{DELAY_OFFSETS}", records=count, levels=found.rows())
    were = "1 delayed message was delivered" if count == 1 else f"{count} delayed messages were delivered"
    how = what_happened_to(store.layout, DELAY_OFFSETS)
    them = "this message" if count == 1 else "these messages"
    yield replace(
        made,
        message=f"{how}, and its .bak is older than the log: {were} since",
        problem=replace(made.problem, broker=f"takes the .bak, and delivers {them} again"),
    )


def find_delay_loss(
    store: Store,
    queues: Mapping[tuple[str, int], tuple[int, int]],
    log_end: int | None = None,
    noted: Mapping[int, int] | None = None,
) -> DelayLoss | None:
    """What the log shows of the delay levels; None if there are more messages than `MESSAGES_MAX`.

    Args:
        store: opened for reading.
        queues: minimum and end, half-open queue offsets, by (topic, queue id).
        log_end: physical offset; later records do not count. None: all do.
        noted: the result of `offsets_of_bak`.

    Raises:
        UnreadableError: the log cannot be read.
    """
    spans = {number + 1: span for (topic, number), span in queues.items() if topic == SCHEDULE_TOPIC}
    if sum(high - low for low, high in spans.values()) > MESSAGES_MAX:
        return None
    waited = [
        each
        for each in delayed_messages(store)
        if each.level in spans
        and spans[each.level][0] <= each.queue_offset < spans[each.level][1]
        and (log_end is None or each.physical_offset < log_end)
    ]
    found = delivered(store, waited, log_end)  # of all that waited: each copy counts for one message
    of_level: dict[int, list[Waited]] = {level: [] for level in sorted(spans)}
    for each in sorted(waited, key=lambda each: each.queue_offset):
        if noted is None or each.queue_offset >= noted.get(each.level, 0):
            of_level[each.level].append(each)
    levels = [_progress(level, spans[level], messages, found) for level, messages in of_level.items()]
    left = [each for messages in of_level.values() for each in messages]
    unclear = sum(not each.uniq_key for each in left)
    copies = sorted(found[each.physical_offset] for each in left if each.physical_offset in found)
    return DelayLoss(levels, len(left), unclear, copies, noted)


def _progress(
    level: int, span: tuple[int, int], messages: Sequence[Waited], found: Mapping[int, int]
) -> LevelProgress:
    first = next((each for each in messages if each.physical_offset not in found), None)
    rest = [each for each in messages if first is not None and each.queue_offset >= first.queue_offset]
    again = sum(each.physical_offset in found for each in rest)
    unclear = sum(not each.uniq_key for each in rest)
    why = None
    if first is not None and (again or unclear):
        why = "no_copy" if first.uniq_key else "no_key"
    return LevelProgress(
        level,
        span[1] if first is None else first.queue_offset,
        span[1],
        sum(each.physical_offset in found for each in messages),
        again,
        unclear,
        why,
    )
