"""Index files as rows: header, entries, slots, or the chains of the slots.

    header    one row per file
    entries   every entry in use, in the order in which they were put
    slots     the slots that hold an entry
    chains    the entries again, slot by slot, the newest of each slot first, as a query meets them

An entry holds the hash of `topic#key`, not the text: a key is found by its hash, and so are other keys with
the same hash. Entries and slots are read in blocks, chains entry by entry, so a sparse file of 420 MB costs
what is in it. Only selected entries are decoded.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, tzinfo
from typing import Literal, get_args

from rmqtool import times
from rmqtool.errors import UnreadableError, UsageError
from rmqtool.findings import Report
from rmqtool.formats import index, java
from rmqtool.formats.index import Entry, Shape
from rmqtool.index.index_file import PAST_END, IndexFile, open_index_file
from rmqtool.lazy_dataclass import dataclass
from rmqtool.message.rows import Row
from rmqtool.problems import Finding, finding
from rmqtool.read.selection import Selection, is_glob
from rmqtool.storage.layout import StoreLayout
from rmqtool.storage.open_files import OpenFiles
from rmqtool.storage.out_of_reach import report_out_of_reach

Part = Literal["header", "entries", "slots", "chains"]
PARTS: tuple[Part, ...] = get_args(Part)

FIELDS = (
    "part", "slot", "entry", "key_hash", "physical_offset", "time_diff_s", "store_timestamp_ms", "store_time",
    "previous", "begin_timestamp_ms", "begin_time", "end_timestamp_ms", "end_time", "begin_physical_offset",
    "end_physical_offset", "hash_slot_count", "index_count", "slots", "entries", "file",
)  # fmt: skip
TABLE_FIELDS: dict[Part, tuple[str, ...]] = {
    "header": ("begin_time", "end_time", "begin_physical_offset", "end_physical_offset", "hash_slot_count",
               "index_count", "slots", "entries", "file"),
    "entries": ("entry", "slot", "key_hash", "physical_offset", "store_time", "previous", "file"),
    "slots": ("slot", "entry", "file"),
    "chains": ("slot", "entry", "key_hash", "physical_offset", "store_time", "previous", "file"),
}  # fmt: skip
_BLOCK = 1 << 16


def index_rows(
    layout: StoreLayout,
    selection: Selection,
    part: Part,
    report: Report,
    *,
    tz: tzinfo | None = UTC,
    reverse: bool = False,
) -> Iterator[Row]:
    """Rows of one part of the index files, oldest file first (newest with `reverse`).

    Args:
        layout: the store's files; a file's shape is the layout's.
        selection: of entries. Keys and tags are looked for by their hash, which takes the topic:
            then `topics` must be whole names. Times are those that a query would take, offsets are
            physical offsets. `limit` counts rows.
        part: which part.
        report: called with findings; their offset is in bytes from the file's start.
        tz: zone of the times; None is the local zone.
        reverse: the last row first; not for chains, whose order is that of a query.

    Raises:
        UsageError: the selection names something that an entry does not hold.
    """
    wanted = _Wanted(selection, wanted_hashes(selection))
    report_out_of_reach(layout, "index entries", report)
    if layout.has_index_in_rocksdb:
        assert layout.rocksdb_messages is not None
        report(
            _not_listed(layout.relative(layout.rocksdb_messages.folder), has_files=bool(layout.index_files))
        )
    shape = Shape(layout.index_slots, layout.index_entries)
    left = selection.limit
    with OpenFiles() as files:
        for listed in reversed(layout.index_files) if reverse else layout.index_files:
            name, size = layout.relative(listed.path), listed.size
            if size < index.HEADER_SIZE:
                report(finding("IX06", name, 0, size))
                continue
            try:
                file = open_index_file(files, listed, shape, name)
                if size != shape.size:
                    report(finding("IX06", name, 0, size, expected=shape.size))
                # The newest file of a store that is open, or was not closed, grows.
                grows = layout.abort is not None and listed == layout.index_files[-1]
                for row in _Rows(file, wanted, report, tz, grows).rows(part, reverse):
                    if left == 0:
                        return
                    left = None if left is None else left - 1
                    yield row
            except UnreadableError as error:
                cause = error.__cause__
                reason = (cause.strerror if isinstance(cause, OSError) else None) or str(cause or error)
                report(finding("IX11", name, 0, size, reason=reason))


def _not_listed(where: str, *, has_files: bool) -> Finding:
    """That entries in RocksDB are not among the rows: next to index files a note."""
    unread = finding("UN01", where)
    message = "index entries in RocksDB are not shown, only those of index files; verify and lookup read them"
    problem = replace(unread.problem, severity="note", input_unread=False) if has_files else unread.problem
    return replace(unread, problem=problem, message=message)


def wanted_hashes(selection: Selection) -> frozenset[int] | None:
    """The key hashes that the selection's topics, keys and tags have; None selects every entry.

    Raises:
        UsageError: keys or tags without topics, topics without them, or a glob.
    """
    if selection.queues or selection.exclude_topics:
        raise UsageError("an index entry names no queue and no topic")
    names = (*selection.keys, *selection.tags)
    if not names and not selection.topics:
        return None
    if not names or not selection.topics or any(is_glob(topic) for topic in selection.topics):
        raise UsageError(
            "an index entry holds the hash of topic and key, not their text",
            hint="give a full topic name and a key: --topic TopicTest --key ID",
        )
    texts = [index.key_text(topic, key) for topic in selection.topics for key in selection.keys]
    texts += [index.tag_text(topic, tag) for topic in selection.topics for tag in selection.tags]
    return frozenset(map(java.index_key_hash, texts))


@dataclass(frozen=True)
class _Wanted:
    """Which entries are selected: tested one by one in chains, and in blocks as arrays."""

    selection: Selection
    hashes: frozenset[int] | None

    @property
    def is_everything(self) -> bool:
        narrow = self.selection
        bounds = (narrow.since, narrow.until, narrow.from_offset, narrow.to_offset)
        return self.hashes is None and all(bound is None for bound in bounds)

    def holds(self, entry: Entry, timestamp: int) -> bool:
        """Whether an entry with this time is selected."""
        if self.hashes is not None and entry.key_hash not in self.hashes:
            return False
        if self.selection.since is not None and timestamp < self.selection.since:
            return False
        if self.selection.until is not None and timestamp >= self.selection.until:
            return False
        return self.selection.matches_offset(entry.physical_offset)

    def places(self, data: bytes, begin_timestamp: int) -> Sequence[int]:
        """The places of the selected entries in `data`, ascending; `begin_timestamp` is the header's."""
        if self.is_everything:
            return range(len(data) // index.ENTRY_SIZE)
        import numpy as np

        entries = np.frombuffer(data, index.ENTRY.dtype, len(data) // index.ENTRY_SIZE)
        timestamps = begin_timestamp + entries["time_diff"].astype(np.int64) * 1000
        mask = np.ones(len(entries), bool)
        if self.hashes is not None:
            mask &= np.isin(entries["key_hash"], list(self.hashes))
        low, high = self.selection.from_offset, self.selection.to_offset
        bounds = [(timestamps, self.selection.since, self.selection.until),
                  (entries["physical_offset"], low, high)]  # fmt: skip
        for values, first, stop in bounds:
            if first is not None:
                mask &= values >= first
            if stop is not None:
                mask &= values < stop
        places: list[int] = np.flatnonzero(mask).tolist()
        return places


@dataclass
class _Rows:
    """The rows of one index file; `grows`: a broker is perhaps adding entries."""

    file: IndexFile
    wanted: _Wanted
    report: Report
    tz: tzinfo | None
    grows: bool

    def rows(self, part: Part, reverse: bool) -> Iterator[Row]:
        name, header = self.file.name, self.file.header
        if header.next_entry > self.file.shape.entries:
            self.report(finding("IX01", name, 0, index.HEADER_SIZE, index_count=header.index_count))
        if part == "header":
            yield self._header_row()
        elif part == "entries":
            yield from (self._entry_row("entries", *each) for each in self._entries(reverse))
        elif part == "slots":
            for slot, entry in self._slots(reverse):
                yield {"part": "slots", "slot": slot, "entry": entry, "file": name}
        else:
            for slot, newest in self._slots(reverse=False):
                yield from self._chain_rows(slot, newest)

    def _header_row(self) -> Row:
        header = self.file.header
        return {
            "part": "header",
            "begin_timestamp_ms": header.begin_timestamp,
            "begin_time": times.format_time(header.begin_timestamp, self.tz),
            "end_timestamp_ms": header.end_timestamp,
            "end_time": times.format_time(header.end_timestamp, self.tz),
            "begin_physical_offset": header.begin_physical_offset,
            "end_physical_offset": header.end_physical_offset,
            "hash_slot_count": header.hash_slot_count,
            "index_count": header.index_count,
            "slots": self.file.shape.slots,
            "entries": self.file.shape.entries,
            "file": self.file.name,
        }

    def _entries(self, reverse: bool) -> Iterator[tuple[int, Entry]]:
        """(number, entry) of the selected entries in use."""
        blocks = range(1, self.file.used, _BLOCK)
        for first in reversed(blocks) if reverse else blocks:
            data = self.file.entry_bytes(first, min(first + _BLOCK, self.file.used))
            places = self.wanted.places(data, self.file.header.begin_timestamp)
            for place in reversed(places) if reverse else places:
                yield first + place, index.decode_entry(data, place * index.ENTRY_SIZE)

    def _entry_row(self, part: Part, number: int, entry: Entry) -> Row:
        timestamp = self.file.header.entry_timestamp(entry)
        return {
            "part": part,
            "slot": entry.key_hash % self.file.shape.slots,
            "entry": number,
            "key_hash": entry.key_hash,
            "physical_offset": entry.physical_offset,
            "time_diff_s": entry.time_diff,
            "store_timestamp_ms": timestamp,
            "store_time": times.format_time(timestamp, self.tz),
            "previous": entry.previous,
            "file": self.file.name,
        }

    def _slots(self, reverse: bool) -> Iterator[tuple[int, int]]:
        """(slot, entry) of the slots that are not 0; blocks of zeros are passed over."""
        blocks = range(0, self.file.shape.slots, _BLOCK)
        for first in reversed(blocks) if reverse else blocks:
            data = self.file.slot_bytes(first, first + _BLOCK)
            if data.count(0) == len(data):
                continue
            numbers = range(len(data) // index.SLOT_SIZE)
            for number in reversed(numbers) if reverse else numbers:
                entry = index.decode_slot(data, number * index.SLOT_SIZE)
                if entry:
                    yield first + number, entry

    def _chain_rows(self, slot: int, newest: int) -> Iterator[Row]:
        """The selected entries of a chain; where it does not fall it would be a loop, and ends.

        Slots of a file that grows may name entries that its header does not count yet; these are left out.
        """
        stop = self.file.used

        def broken(why: str, number: int) -> None:
            if why != PAST_END:  # else the file became shorter since it was listed
                place = (self.file.shape.slot_offset(slot), index.SLOT_SIZE)
                self.report(finding("IX02", self.file.name, *place, slot=slot, entry=number))

        limit = self.file.entry_count if self.grows else stop
        for number, entry in self.file.chain_from(newest, limit, broken):
            timestamp = self.file.header.entry_timestamp(entry)
            if number < stop and self.wanted.holds(entry, timestamp):
                yield self._entry_row("chains", number, entry) | {"slot": slot}
