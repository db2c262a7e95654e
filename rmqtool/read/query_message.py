"""`queryMessage`, answered as a broker answers it: with its cap, its time windows and its hash collisions.

The index files are those that lie there. A broker that starts after a crash first deletes some, and
indexes a part of the log again: what it then would answer differs.

Source: DefaultMessageStore#queryMessage, IndexService#queryOffset, IndexFile#selectPhyOffset; spec 01
section 6.5, spec 02 section 8.5.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from rmqtool.errors import UnreadableError
from rmqtool.formats.index import key_text, tag_text
from rmqtool.formats.java import index_key_hash
from rmqtool.index.index_file import IndexFile, open_index_files
from rmqtool.read.store import Store
from rmqtool.storage.open_files import OpenFiles

MAX_BATCH = 64  # MessageStoreConfig maxMsgsNumBatch
FOREVER = (1 << 63) - 1
_ROUNDS = 3

IndexType = Literal["key", "tag"]


class QueryResult(NamedTuple):
    """The answer of a broker.

    Attributes:
        physical_offsets: of the records that it sends, ascending; other keys with the same hash are
            among them, for a broker leaves it to the client to look.
        last_update_timestamp: end_timestamp of the newest index file, ms since 1970; 0 where the
            index has nothing.
        last_update_offset: end_physical_offset of that file.
    """

    physical_offsets: tuple[int, ...] = ()
    last_update_timestamp: int = 0
    last_update_offset: int = 0


def query_message(
    store: Store,
    topic: str,
    key: str,
    max_num: int = MAX_BATCH,
    begin: int = 0,
    end: int = FOREVER,
    *,
    index_type: IndexType = "key",
) -> QueryResult:
    """The broker's answer to queryMessage.

    Args:
        store: the store.
        topic: the topic as stored.
        key: a key, or a unique key.
        max_num: how many at most; a broker returns up to 64 whatever the request says.
        begin: first store time, ms since 1970.
        end: last store time, included. The index knows times to the second of each file.
        index_type: `tag` asks for the tag entries that only broker 5.4 writes.
    """
    key_hash = index_key_hash(tag_text(topic, key) if index_type == "tag" else key_text(topic, key))
    result = QueryResult()
    with OpenFiles() as files:
        views = open_index_files(store.layout, files)
        last = end
        for _ in range(_ROUNDS):
            offsets = _query_offsets(views, key_hash, min(max_num, MAX_BATCH), begin, last)
            if not offsets:
                return result
            header = views[-1].header
            first_time, sent = _load(store, sorted(offsets))
            result = QueryResult(tuple(sent), header.end_timestamp, header.end_physical_offset)
            last = last if first_time is None else first_time
            if sent or last < begin:
                return result
    return result


def _query_offsets(views: list[IndexFile], key_hash: int, limit: int, begin: int, end: int) -> list[int]:
    found: list[int] = []
    for view in reversed(views):
        if view.header.is_time_matched(begin, end):
            _select(view, key_hash, limit, begin, end, found)
        if view.header.begin_timestamp < begin or len(found) >= limit:
            break
    return found


def _select(view: IndexFile, key_hash: int, limit: int, begin: int, end: int, found: list[int]) -> None:
    """IndexFile#selectPhyOffset. A broker would follow some loops for ever; this ends."""
    header = view.header
    count = header.next_entry
    number = view.slot_value(key_hash % view.shape.slots)
    if not 0 < number <= count or count <= 1:
        return
    for _ in range(count):
        entry = view.entry(number) if len(found) < limit else None
        if entry is None or entry.time_diff < 0:
            return
        time = header.entry_timestamp(entry)
        if entry.key_hash == key_hash and begin <= time <= end:
            found.append(entry.physical_offset)
        if not 0 < entry.previous <= count or entry.previous == number or time < begin:
            return
        number = entry.previous


def _load(store: Store, offsets: list[int]) -> tuple[int | None, list[int]]:
    """(store time of the first record, None where it is not there; those of `offsets` that are there)."""
    sent: list[int] = []
    first: int | None = None
    for place, offset in enumerate(offsets):
        try:
            head = store.commit_log.head(offset)
        except UnreadableError:
            continue
        if head is not None:
            first = head.store_timestamp if place == 0 else first
            sent.append(offset)
    return first, sent
