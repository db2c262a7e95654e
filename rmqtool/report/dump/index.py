"""Index files as rows: header, entries, slots, or the chains of the slots.

    header    one row per file
    entries   every entry in use, in the order in which they were put
    slots     the slots that hold an entry
    chains    the entries again, slot by slot, the newest of each slot first, as a query meets them

An entry holds the hash of `topic#key`, not the text: a key is found by its hash, other keys with
the same hash too. Files are read in blocks, slots and chains at their places, so a sparse file of
420 MB costs what is in it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, tzinfo
from functools import cached_property
from typing import TYPE_CHECKING, Literal, get_args

from rmqtool import times
from rmqtool.errors import FormatError, UsageError
from rmqtool.findings import Report
from rmqtool.formats import index, java
from rmqtool.formats.index import Entry, Header, Shape
from rmqtool.message.rows import Row
from rmqtool.problems import finding
from rmqtool.read.selection import Selection, is_glob
from rmqtool.storage.layout import IndexFilePath, StoreLayout
from rmqtool.storage.open_files import pread, reading
from rmqtool.storage.out_of_reach import report_out_of_reach

if TYPE_CHECKING:
    from rmqtool.storage.random_file import RandomFile

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
        report: told about bad places; their offset is in bytes from the file's start.
        tz: zone of the times; None is the local zone.
        reverse: the last first; not for chains, whose order is a query's.

    Raises:
        UsageError: a selection that an entry has nothing for.
    """
    hashes = wanted_hashes(selection)
    report_out_of_reach(layout, "index entries", report)
    left = selection.limit
    for file in reversed(layout.index_files) if reverse else layout.index_files:
        shape = Shape(layout.index_slots, layout.index_entries)
        try:
            with reading(file.path) as opened:
                reader = _Reader(layout, file, shape, opened, report, tz)
                for row in reader.rows(part, reverse=reverse):
                    if not _selected(row, selection, hashes):
                        continue
                    if left == 0:
                        return
                    left = None if left is None else left - 1
                    yield row
        except OSError as error:
            name = layout.relative(file.path)
            report(finding("IX11", name, 0, file.size, reason=error.strerror or str(error)))


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


def _selected(row: Row, selection: Selection, hashes: frozenset[int] | None) -> bool:
    if "key_hash" not in row:
        return True
    if hashes is not None and row["key_hash"] not in hashes:
        return False
    if selection.since is not None and row["store_timestamp_ms"] < selection.since:
        return False
    if selection.until is not None and row["store_timestamp_ms"] >= selection.until:
        return False
    return selection.matches_offset(row["physical_offset"])


@dataclass
class _Reader:
    """One index file, open."""

    layout: StoreLayout
    file: IndexFilePath
    shape: Shape
    opened: RandomFile
    report: Report
    tz: tzinfo | None

    def rows(self, part: Part, *, reverse: bool) -> Iterator[Row]:
        if self.file.size < index.HEADER_SIZE:
            self._tell("IX06", 0, self.file.size)
            return
        if self.file.size != self.shape.size:
            self._tell("IX06", 0, self.file.size, expected=self.shape.size)
        if self.header.next_entry > self.shape.entries:
            self._tell("IX01", 0, index.HEADER_SIZE, index_count=self.header.index_count)
        if part == "header":
            yield self._header_row()
        elif part == "entries":
            yield from (self._entry_row("entries", *each) for each in self._entries(reverse))
        elif part == "slots":
            yield from self._slot_rows(reverse)
        else:
            for slot, newest in self._slots(reverse=False):
                yield from self._chain_rows(slot, newest)

    @cached_property
    def name(self) -> str:
        return self.layout.relative(self.file.path)

    @cached_property
    def header(self) -> Header:
        return index.decode_header(pread(self.opened, index.HEADER_SIZE, 0))

    @cached_property
    def room(self) -> int:
        """Entries [1, room) are inside the file."""
        room = (self.file.size - self.shape.entry_offset(0)) // index.ENTRY_SIZE
        return min(max(room, 0), self.shape.entries)

    @cached_property
    def stop(self) -> int:
        """Entries [1, stop) are in use and inside the file."""
        return min(self.header.next_entry, self.room)

    @property
    def grows(self) -> bool:
        """Whether it is the newest file of a store that is open, or was not closed."""
        return self.layout.abort is not None and self.file == self.layout.index_files[-1]

    def _tell(self, code: str, offset: int, length: int, **detail: int) -> None:
        self.report(finding(code, self.name, offset, length, **detail))

    def _header_row(self) -> Row:
        header = self.header
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
            "slots": self.shape.slots,
            "entries": self.shape.entries,
            "file": self.name,
        }

    def _entries(self, reverse: bool) -> Iterator[tuple[int, Entry]]:
        blocks = range(1, self.stop, _BLOCK)
        for first in reversed(blocks) if reverse else blocks:
            count = min(_BLOCK, self.stop - first)
            data = pread(self.opened, count * index.ENTRY_SIZE, self.shape.entry_offset(first))
            numbers = range(len(data) // index.ENTRY_SIZE)
            for number in reversed(numbers) if reverse else numbers:
                yield first + number, index.decode_entry(data, number * index.ENTRY_SIZE)

    def _entry_row(self, part: Part, number: int, entry: Entry) -> Row:
        timestamp = self.header.entry_timestamp(entry)
        return {
            "part": part,
            "slot": entry.key_hash % self.shape.slots,
            "entry": number,
            "key_hash": entry.key_hash,
            "physical_offset": entry.physical_offset,
            "time_diff_s": entry.time_diff,
            "store_timestamp_ms": timestamp,
            "store_time": times.format_time(timestamp, self.tz),
            "previous": entry.previous,
            "file": self.name,
        }

    def _slots(self, *, reverse: bool) -> Iterator[tuple[int, int]]:
        """(slot, entry) of the slots that are not 0; blocks of zeros are passed over."""
        blocks = range(0, self.shape.slots, _BLOCK)
        for first in reversed(blocks) if reverse else blocks:
            count = min(_BLOCK, self.shape.slots - first)
            data = pread(self.opened, count * index.SLOT_SIZE, self.shape.slot_offset(first))
            if data.count(0) == len(data):
                continue
            numbers = range(len(data) // index.SLOT_SIZE)
            for number in reversed(numbers) if reverse else numbers:
                entry = index.decode_slot(data, number * index.SLOT_SIZE)
                if entry:
                    yield first + number, entry

    def _slot_rows(self, reverse: bool) -> Iterator[Row]:
        for slot, entry in self._slots(reverse=reverse):
            yield {"part": "slots", "slot": slot, "entry": entry, "file": self.name}

    def _chain_rows(self, slot: int, newest: int) -> Iterator[Row]:
        """A chain goes to smaller and smaller entry numbers; anything else would be a loop.

        Slots of a file that grows may name entries that its header does not count yet; these are left out.
        """
        number, limit = newest, self.room if self.grows else self.stop
        while number:
            if not 0 < number < limit:
                self._tell("IX02", self.shape.slot_offset(slot), index.SLOT_SIZE, slot=slot, entry=number)
                return
            data = pread(self.opened, index.ENTRY_SIZE, self.shape.entry_offset(number))
            try:
                entry = index.decode_entry(data)
            except FormatError:
                return  # the file became shorter since it was listed
            if number < self.stop:
                yield self._entry_row("chains", number, entry) | {"slot": slot}
            number, limit = entry.previous, number
