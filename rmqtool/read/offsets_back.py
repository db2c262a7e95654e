"""Committed offsets that went back: those of consumerOffset.json are behind those of its .bak (CF11).

A broker writes both every five seconds, the text of before as the .bak, also when it stops. So offsets that
are behind were reset in the last seconds before the stop, or the file was restored or edited since. The .bak
holds them until the next write, of the broker or of `reset-offset`, replaces it.

What rmqtool has set back itself is noted in the file (`config_change.OFFSETS_SET_BACK`). In a live store the
two say nothing: the broker writes both again from its memory.

Source: ConfigManager#persist, MixAll#string2File; spec 01 section 9.1.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from rmqtool.command_line import argument
from rmqtool.errors import UnreadableError
from rmqtool.formats import config_json
from rmqtool.formats.config_change import OFFSETS_SET_BACK
from rmqtool.formats.fastjson import READ_LIMIT
from rmqtool.lazy_dataclass import dataclass
from rmqtool.problems import Finding, finding
from rmqtool.read.lost_config import CONSUMER_OFFSETS, has_config, is_group_of_brokers
from rmqtool.read.store import Store
from rmqtool.sizes import cut_name
from rmqtool.storage.config_files import FOLDER
from rmqtool.storage.open_files import read_head

_PAIRS_NAMED = 2  # topics of groups that a message names
_QUEUES_NAMED = 2  # of each of them
_LISTED = 100  # offsets in the detail of a finding


@dataclass(frozen=True, slots=True)
class WentBack:
    """The offset of a group in one queue that is behind the one in the .bak.

    Attributes:
        before: in the .bak, at most the end of the queue.
        offset: in the file; None if the queue is not there any more.
        messages: how many the group receives again; at most so many without an offset.
    """

    group: str
    topic: str
    queue_id: int
    before: int
    offset: int | None
    messages: int

    def row(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "group": self.group, "topic": self.topic, "queue_id": self.queue_id,
            "from": self.before, "to": self.offset, "messages": self.messages,
        }  # fmt: skip


def offsets_that_went_back(store: Store) -> list[WentBack]:
    """The committed offsets that are behind those of the .bak, by group, topic and queue.

    Only those after which the queue has messages; none of the broker's own groups, or if one of the files
    cannot be read or understood. A queue that cannot be read is among `store.failures`. The store must not
    be live.
    """
    texts = _texts(store)
    if texts is None:
        return []
    documents = [config_json.load_with_bak(CONSUMER_OFFSETS, text, None).document for text in texts]
    present, before = map(config_json.consumer_offsets, documents)
    if documents[0].get(OFFSETS_SET_BACK) is True:
        return []
    found = (
        _went_back(store, key, queue_id, offset, present[key].get(queue_id))
        for key, of_queues in before.items()
        if key in present and not is_group_of_brokers(key[1])
        for queue_id, offset in of_queues.items()
    )
    return sorted(filter(None, found), key=lambda each: (each.group, each.topic, each.queue_id))


def _texts(store: Store) -> tuple[bytes | None, bytes | None] | None:
    """The texts of the file and its .bak; None if one is missing, or RocksDB has the offsets."""
    layout, folder = store.layout, store.layout.config_folder
    names = (CONSUMER_OFFSETS, f"{CONSUMER_OFFSETS}.bak")
    if folder is None or not has_config(layout) or not layout.config.keys() >= set(names):
        return None
    try:
        text, bak = (read_head(folder / name, READ_LIMIT) for name in names)
    except UnreadableError as error:
        store.note_failure(error)
        return None
    return text, bak


def _went_back(
    store: Store, key: tuple[str, str], queue_id: int, before: int, now: int | None
) -> WentBack | None:
    """One offset, if it is behind; `before` and `now` may be any numbers."""
    (topic, group), place = key, (key[0], queue_id)
    if place not in store.queues or before <= (-1 if now is None else now):
        return None
    try:
        start, end = store.first_live(*place), store.queues[place].max_offset()
    except UnreadableError as error:
        store.note_failure(error)
        return None
    except FileNotFoundError:
        return None  # deleted since
    messages = min(before, end) - max(now or 0, start)
    return WentBack(group, topic, queue_id, min(before, end), now, messages) if messages > 0 else None


def went_back_finding(store: Store) -> Iterator[Finding]:
    """CF11, once, if committed offsets of a store that is not live went back."""
    found = offsets_that_went_back(store)
    if not found:
        return
    groups, messages = {each.group for each in found}, sum(each.messages for each in found)
    made = finding(
        "CF11", f"{FOLDER}/{CONSUMER_OFFSETS}", groups=len(groups), offsets=len(found), messages=messages,
        went_back=[each.row() for each in found[:_LISTED]],
    )  # fmt: skip
    yield replace(made, message=f"{what_went_back(found)} ({_named(found)})")


def what_went_back(found: Sequence[WentBack]) -> str:
    """Say how many offsets of how many groups went back, and what that costs."""
    groups, messages = {each.group for each in found}, sum(each.messages for each in found)
    are = "1 committed offset" if len(found) == 1 else f"{len(found)} committed offsets"
    of = "1 group" if len(groups) == 1 else f"{len(groups)} groups"
    most = "up to " if any(each.offset is None for each in found) else ""
    again = f"{most}{messages} message{'s'[messages == 1 :]}"
    is_behind = "is" if len(found) == 1 else "are"
    return f"{are} of {of} {is_behind} behind {CONSUMER_OFFSETS}.bak, so that consumers receive {again} again"


def bak_words(store: Store) -> tuple[str, ...]:
    """The words of the command line that puts the .bak of a local store back."""
    folder = store.layout.config_folder
    assert folder is not None, "offsets went back"
    return "cp", "-p", *(argument(folder / name) for name in (f"{CONSUMER_OFFSETS}.bak", CONSUMER_OFFSETS))


def _named(found: Sequence[WentBack]) -> str:
    """The first topics of groups with their first offsets, the ones with the most messages first."""
    pairs: dict[tuple[str, str], list[WentBack]] = {}
    for each in found:
        pairs.setdefault((each.group, each.topic), []).append(each)
    most = sorted(pairs, key=lambda pair: -sum(each.messages for each in pairs[pair]))
    texts = []
    for group, topic in most[:_PAIRS_NAMED]:
        queues = pairs[group, topic]
        steps = [f"{each.before} -> {'none' if each.offset is None else each.offset}" for each in queues]
        if len(steps) > _QUEUES_NAMED:
            steps[_QUEUES_NAMED:] = [f"{len(steps) - _QUEUES_NAMED} more"]
        texts.append(f"{cut_name(group)} in {cut_name(topic)}: {', '.join(steps)}")
    if len(pairs) > _PAIRS_NAMED:
        texts.append(f"{len(pairs) - _PAIRS_NAMED} more topics of groups")
    return "; ".join(texts)
