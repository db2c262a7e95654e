"""The search for a key as rows: every index file, slot and entry that a look-up visits.

file    a file, what its header says it covers
slot    the slot of one topic and name in it
entry   an entry of the slot's chain, the newest first, and what became of it
gap     records that the index does not cover, and why

An index in RocksDB, which a look-up reads where there are no index files, has no slots: it is shown as one
file with the entries of the names.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from datetime import UTC, tzinfo

from rmqtool import times
from rmqtool.formats import properties
from rmqtool.formats.index import Entry, KeyKind
from rmqtool.formats.java import index_key_hash
from rmqtool.index.index_file import IndexFile, open_index_files
from rmqtool.log.events import OFFSET_MISMATCH
from rmqtool.message.rows import Row
from rmqtool.read import coverage
from rmqtool.read.hits import KeyMatcher, topics_of
from rmqtool.read.selection import Selection
from rmqtool.read.store import Store
from rmqtool.storage.open_files import OpenFiles
from rmqtool.storage.rocksdb.messages import Found, find
from rmqtool.storage.unsupported import SIDE_FOLDER

FIELDS = (
    "step", "file", "topic", "name", "key_hash", "slot", "entry", "previous", "physical_offset", "to_offset",
    "store_timestamp_ms", "store_time", "end_time", "entries", "result",
)  # fmt: skip
_ANOTHER = "its record has another key"
TABLE_FIELDS = ("step", "file", "topic", "name", "slot", "entry", "previous", "physical_offset", "result")


def explain_rows(
    store: Store, names: Collection[str], selection: Selection, kind: KeyKind, tz: tzinfo | None = UTC
) -> Iterator[Row]:
    """The rows of one look-up; arguments as for `lookup_request.lookup`, `tz` is the zone of the times.

    Times of entries are those that a broker's query takes: to the second, from the file's begin on.
    """
    wanted = KeyMatcher(frozenset(names), kind)
    topics = topics_of(store, selection)
    failed: list[tuple[str, str]] = []
    with OpenFiles() as files:
        views = open_index_files(store.layout, files, lambda *each: failed.append(each))
        for view in reversed(views):
            yield _file_row(view, tz)
            for topic in topics:
                for name in sorted(wanted.names):
                    yield from _chain_rows(store, view, wanted, selection, topic, name, tz)
        yield from ({"step": "file", "file": name, "result": f"unreadable: {why}"} for name, why in failed)
        database = store.layout.rocksdb_messages
        in_rocksdb = None if views or database is None else find(database, topics, wanted.names, kind)
        if in_rocksdb is not None:
            yield from _rocksdb_rows(store, in_rocksdb, wanted, selection)
            return
        for gap in coverage.gaps(store, views, files, kind=kind):
            yield {"step": "gap", "physical_offset": gap.start, "to_offset": gap.stop, "result": gap.reason}


def _rocksdb_rows(store: Store, found: Found, wanted: KeyMatcher, selection: Selection) -> Iterator[Row]:
    """The entries of an index in RocksDB, and what `by_key` searches besides it."""
    yield {
        "step": "file", "file": SIDE_FOLDER, "physical_offset": found.first, "to_offset": found.last,
        "result": "in RocksDB",
    }  # fmt: skip
    for offset in found.offsets:
        stored = store.find(offset)
        names = [] if stored is None else wanted.found_in(properties.decode(stored.message.properties_bytes))
        name = next(iter(names), "")
        topic = "" if stored is None else stored.message.topic
        result = _outcome(store, offset, wanted, selection, name)
        yield {
            "step": "entry", "file": SIDE_FOLDER, "topic": topic, "name": name, "physical_offset": offset,
            "result": result,
        }  # fmt: skip
    if wanted.kind == "uniq_key":
        gaps = coverage.around(store, found.first, found.last)
    else:
        gaps = coverage.whole_log(store, coverage.NO_UNIQUE_KEY)
    for gap in gaps:
        yield {"step": "gap", "physical_offset": gap.start, "to_offset": gap.stop, "result": gap.reason}


def _file_row(view: IndexFile, tz: tzinfo | None) -> Row:
    header = view.header
    usable = "usable" if view.is_plausible else "size or header is impossible"
    return {
        "step": "file",
        "file": view.name,
        "physical_offset": header.begin_physical_offset,
        "to_offset": header.end_physical_offset,
        "store_timestamp_ms": header.begin_timestamp,
        "store_time": times.format_time(header.begin_timestamp, tz),
        "end_time": times.format_time(header.end_timestamp, tz),
        "entries": header.next_entry - 1,
        "result": "empty" if view.is_empty else usable,
    }


def _chain_rows(
    store: Store,
    view: IndexFile,
    wanted: KeyMatcher,
    selection: Selection,
    topic: str,
    name: str,
    tz: tzinfo | None,
) -> Iterator[Row]:
    key_hash = index_key_hash(wanted.text(topic, name))
    slot = key_hash % view.shape.slots
    newest = view.slot_value(slot)
    place: Row = {"file": view.name, "topic": topic, "name": name, "key_hash": key_hash, "slot": slot}
    yield {"step": "slot", **place, "entry": newest, "result": "chain" if newest else "empty"}
    broken: list[tuple[str, int]] = []
    for number, entry in view.chain(slot, lambda *each: broken.append(each)):
        timestamp = view.header.entry_timestamp(entry)
        yield {
            "step": "entry",
            **place,
            "key_hash": entry.key_hash,
            "entry": number,
            "previous": entry.previous,
            "physical_offset": entry.physical_offset,
            "store_timestamp_ms": timestamp,
            "store_time": times.format_time(timestamp, tz),
            "result": "of another slot: the index is damaged"
            if entry.key_hash % view.shape.slots != slot
            else _result(store, entry, key_hash, wanted, selection, name),
        }
    yield from (
        {"step": "entry", **place, "entry": entry, "result": f"the chain {why}"} for why, entry in broken
    )


def _result(
    store: Store, entry: Entry, key_hash: int, wanted: KeyMatcher, selection: Selection, name: str
) -> str:
    if entry.key_hash != key_hash:
        return "another hash"
    found = _outcome(store, entry.physical_offset, wanted, selection, name)
    return "another key with the same hash" if found == _ANOTHER else found


def _outcome(store: Store, physical_offset: int, wanted: KeyMatcher, selection: Selection, name: str) -> str:
    stored = store.find(physical_offset)
    if stored is None or stored.status & OFFSET_MISMATCH:
        return "it no longer has a sound record"
    if name not in wanted.found_in(properties.decode(stored.message.properties_bytes)):
        return _ANOTHER
    return "found" if selection.matches(stored.message, physical_offset) else "not selected"
