"""The messages at stake: those in damaged ranges of the log, by the units that lead there."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from rmqtool.errors import InputError
from rmqtool.formats import properties
from rmqtool.problems import Finding
from rmqtool.read.store import Store

_SEARCHES_MAX = 20_000  # queues times ranges; each is a bisection
_READ_MAX = 10_000  # units whose records are read


def damaged_ranges(findings: Iterable[Finding]) -> list[tuple[int, int]]:
    """The ranges [start, stop) of the log in which findings have lost records.

    A file that this user may not read has lost none. Of a file that is too short it is what the file lacks:
    all that it has is checked, and found by itself.
    """
    ranges = []
    for each in findings:
        if each.problem.severity != "error" or not each.problem.code.startswith("CL"):
            continue
        if each.physical_offset is None or not each.length or each.is_denied:
            continue
        start, stop = each.physical_offset, each.physical_offset + each.length
        if each.problem.code == "CL21":
            start, stop = stop, start + int(each.detail["expected_bytes"])
        if start < stop:
            ranges.append((start, stop))
    return ranges


class AtStake(NamedTuple):
    """The unit of a message that is not sound; `messages`: how many are in its record of `size` bytes."""

    topic: str
    queue_id: int
    queue_offset: int
    physical_offset: int
    size: int
    messages: int


def messages_at_stake(store: Store, ranges: Sequence[tuple[int, int]]) -> list[AtStake] | None:
    """The messages in ranges [start, stop) of the log that are not sound, by the units of queues.

    A message in several queues counts once, a message in no queue does not; a batch record counts as the
    messages in it. A range may begin with a record that is sound but for its end, or inside a record that is
    not sound. None if there are too many queues and ranges, or too many units in them, or the queues cannot
    be read.
    """
    try:
        queues = store.queues
    except InputError:  # of a form that cannot be read
        return None
    if len(queues) * len(ranges) > _SEARCHES_MAX:
        return None
    found: dict[int, AtStake] = {}
    left = _READ_MAX
    for (topic, queue_id), queue in queues.items():
        try:
            for start, stop in ranges:
                first = max(queue.number_after(start - 1) - 1, queue.start)  # it may reach into the range
                numbers = range(first, queue.number_after(stop - 1))
                left -= max(len(numbers) - 1, 0)
                if left < 0:
                    return None
                for number in numbers:
                    unit = queue.by_number(number)
                    if unit is None or unit.is_pre_blank or unit.physical_offset + unit.size <= start:
                        continue
                    if unit.physical_offset in found or _is_sound(store, unit.physical_offset):
                        continue
                    place = queue.queue_offset(number, unit), unit.physical_offset, unit.size
                    found[unit.physical_offset] = AtStake(topic, queue_id, *place, unit.messages)
        except InputError:  # a queue that cannot be read is a finding
            continue
    return list(found.values())


def are_all(store: Store, found: Iterable[AtStake], ranges: Iterable[tuple[int, int]]) -> bool:
    """Whether the records of `found` take up all of the ranges, so that no other message was in them.

    What follows the last one in a file may be a blank. Units that are lost leave bytes that none takes up.
    """
    places = sorted((each.physical_offset, each.physical_offset + each.size) for each in found)
    size = store.commit_log.file_size
    header = max((file.entry_header for file in store.commit_log.files), default=0)  # of a DLedger entry
    for start, stop in ranges:
        reached = start
        for low, high in places:
            if high <= reached or low >= stop:
                continue
            if low > reached + header and low % size > header:
                return False
            reached = high
        if reached < stop and stop % size:
            return False
    return True


def by_topic(found: Iterable[AtStake]) -> dict[str, int]:
    """How many messages each topic has among them."""
    counts: dict[str, int] = {}
    for each in found:
        counts[each.topic] = counts.get(each.topic, 0) + each.messages
    return counts


def names_of(store: Store, found: Iterable[AtStake]) -> Iterator[str]:
    """What a person calls each: topic, queue and queue offset, and the keys that can still be read."""
    for each in found:
        keys = _keys(store, each.physical_offset)
        more = f", {' '.join(keys)}" if keys else ""
        yield f"{each.topic} queue {each.queue_id} offset {each.queue_offset}{more}"


def _keys(store: Store, physical_offset: int) -> list[str]:
    stored = store.find(physical_offset)
    if stored is not None:
        return properties.keys_of(properties.decode(stored.message.properties_bytes))
    left = store.remains(physical_offset)
    string = left.properties if left is not None else None
    return properties.keys_of(properties.decode(string)) if string is not None else []


def _is_sound(store: Store, physical_offset: int) -> bool:
    """Whether a sound record is at an offset."""
    stored = store.find(physical_offset)
    return stored is not None and not stored.status
