"""Ranges of the log that the index does not cover: its files are missing, damaged, or lag behind.

Every search by key reads these gaps from the log: `by_key`, `key_columns` and `index_access` share this rule.

An index file covers the records from its first entry's to its last entry's. Records before, between and after
the files were never put into one that still exists: its files were deleted or could not be read, or the index
was off. Mostly these ranges are empty, or hold messages without keys. The keys of one record may be in two
files: next to a gap, the record of a first or last entry belongs to the gap. A file with broken links covers
nothing, and for tags neither does a file of a broker that indexed none.

Source: IndexService#load, #buildIndex; spec 01 sections 6.6 and 6.7.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from itertools import islice, takewhile
from typing import Literal, NamedTuple

from rmqtool.errors import UnreadableError
from rmqtool.formats import message as form
from rmqtool.formats import properties
from rmqtool.formats.index import KeyKind, tag_text
from rmqtool.formats.java import index_key_hash
from rmqtool.index.index_file import IndexFile, open_index_files
from rmqtool.log.log_heads import Head, heads_of_file, is_blank
from rmqtool.read.store import Store
from rmqtool.storage.layout import StoreFile
from rmqtool.storage.open_files import OpenFiles

NO_INDEX = "there are no index files"
BEFORE = "older than the index"
BETWEEN = "between two index files"
BEHIND = "newer than the index"
DAMAGED = "unreliable index file"
MISPLACED = "index entries lead to a damaged record, or to another one"
NO_TAGS = "the index holds no tags there"
NOT_HELD = "it is not in the index"
NO_TOPICS = "the store names no topic to look for"
NO_UNIQUE_KEY = "the index in RocksDB lacks messages without a unique key"
REQUESTED = "asked for"

_HEADS_MAX = 4096  # heads of records that are read to find where a gap ends
_FILES_MAX = 8
_TAG_SAMPLES = 1024  # entries at each end of a file among which a tagged message is searched for
_ZEROS_SEEN = 64 << 10  # bytes of zeros that are taken for the end of what was written


class Gap(NamedTuple):
    """Records of the log that the index does not cover: [start, stop), physical offsets; None: to the end."""

    start: int
    stop: int | None
    reason: str

    def holds(self, physical_offset: int) -> bool:
        """Whether an offset lies in it."""
        return physical_offset >= self.start and (self.stop is None or physical_offset < self.stop)


def whole_log(store: Store, reason: str) -> list[Gap]:
    """Return the whole log as one gap; none for a store without a log."""
    return [Gap(store.commit_log.min_offset, None, reason)] if store.commit_log.files else []


def _record_end(store: Store, physical_offset: int) -> int:
    """The end of the record at an offset; the offset itself if there is none."""
    try:
        head = store.commit_log.head(physical_offset)
    except UnreadableError:
        head = None
    return physical_offset if head is None else head.end


def covered_range(store: Store, file: IndexFile) -> tuple[int, int]:
    """The records of an index file, first entry's to last entry's: half-open physical offsets."""
    header = file.header
    return header.begin_physical_offset, _record_end(store, header.end_physical_offset)


def covered_ranges(store: Store) -> list[tuple[int, int]]:
    """The records of every index file that can be used, as `covered_range`."""
    with OpenFiles() as files:
        found = open_index_files(store.layout, files)
        return [covered_range(store, file) for file in found if file.is_plausible and not file.is_empty]


def gaps(
    store: Store, index: Iterable[IndexFile], files: OpenFiles, *, damaged: Collection[str] = (),
    kind: KeyKind = "key",
) -> list[Gap]:  # fmt: skip
    """The ranges of the log that no usable index file covers, ascending and apart.

    Ranges without a record are left out.

    Args:
        store: the store.
        index: its index files.
        files: to read the log with.
        damaged: names of index files with broken links; what they cover is a gap.
        kind: what is searched for; a file without tags is a gap for tags.
    """
    usable = [file for file in index if file.is_plausible and not file.is_empty]
    found = _not_covered(store, usable, files)
    for file in usable:
        if file.name in damaged:
            found.append(Gap(*covered_range(store, file), DAMAGED))
        elif kind == "tag" and not _has_tags(store, file):
            found.append(Gap(*covered_range(store, file), NO_TAGS))
    return merged(found)


def _not_covered(store: Store, usable: list[IndexFile], files: OpenFiles) -> list[Gap]:
    """Return the gaps before, between and after usable index files."""
    if not usable:
        return whole_log(store, NO_INDEX)
    found: list[Gap] = []
    position, last, reason = store.commit_log.min_offset, store.commit_log.min_offset, BEFORE
    for file in sorted(usable, key=lambda file: file.header.begin_physical_offset):
        start, stop = covered_range(store, file)
        if start > position >= 0 and _without_end(store, Gap(position, start, reason), files):
            found.append(Gap(last, _record_end(store, start), reason))
        if stop >= position:
            position, last, reason = stop, file.header.end_physical_offset, BETWEEN
    behind = _without_end(store, Gap(position, None, BEHIND), files)
    if behind is None and usable[-1].is_full:
        behind = Gap(position, position, BEHIND)
    return found if behind is None else [*found, behind._replace(start=last)]


def around(store: Store, first: int, last: int) -> list[Gap]:
    """The ranges before and after an index whose first and last record are at these physical offsets."""
    found = [Gap(store.commit_log.min_offset, first, BEFORE), Gap(_record_end(store, last), None, BEHIND)]
    return [gap for gap in found if gap.stop is None or gap.start < gap.stop]


def merged(found: Iterable[Gap]) -> list[Gap]:
    """The gaps in order; those that overlap or touch are one, with the reasons of all."""
    result: list[Gap] = []
    for gap in sorted(found, key=lambda each: each.start):
        last = result[-1] if result else None
        if last is None or (last.stop is not None and last.stop < gap.start):
            result.append(gap)
            continue
        stop = None if last.stop is None or gap.stop is None else max(last.stop, gap.stop)
        reasons = last.reason if gap.reason in last.reason.split("; ") else f"{last.reason}; {gap.reason}"
        result[-1] = last._replace(stop=stop, reason=reasons)
    return result


def outside(found: Iterable[Gap], reason: str) -> list[Gap]:
    """Return the ranges from 0 on that lie between gaps, which are ordered and do not overlap."""
    result: list[Gap] = []
    position: int | None = 0
    for gap in found:
        if position is not None and position < gap.start:
            result.append(Gap(position, gap.start, reason))
        position = gap.stop
    return result if position is None else [*result, Gap(position, None, reason)]


def within(found: Iterable[Gap], start: int | None, stop: int | None) -> list[Gap]:
    """Return the parts of the gaps that lie in [start, stop), physical offsets."""
    result = []
    for gap in found:
        low = gap.start if start is None else max(gap.start, start)
        ends = [end for end in (gap.stop, stop) if end is not None]
        high = min(ends) if ends else None
        if high is None or low < high:
            result.append(Gap(low, high, gap.reason))
    return result


def _without_end(store: Store, gap: Gap, files: OpenFiles) -> Gap | None:
    """The gap up to the last record in it; None where no record begins in it.

    Only heads are read, and not more than some thousand: a longer gap stays as it is, and so does one
    with damage in it, which may hide records.
    """
    position = gap.start
    for _ in range(_FILES_MAX):
        for head in islice(_heads(store, files, position), _HEADS_MAX):
            if gap.stop is not None and head.physical_offset >= gap.stop:
                return None if position == gap.start else gap._replace(stop=position)
            position = head.end
            if gap.stop is not None and position >= gap.stop:
                return gap
        file = store.commit_log.file_of(position)
        kind = "end" if file is None else _kind_at(files, file, position)
        if kind == "blank" and file is not None:
            if gap.stop is not None and file.end >= gap.stop:
                return None if position == gap.start else gap._replace(stop=position)
            gap = gap._replace(start=file.end) if position == gap.start else gap
            position = file.end
            continue
        if kind == "end" or (kind == "zeros" and file is not None and _is_end(store, files, file.end)):
            return None if position == gap.start else gap._replace(stop=position)
        return gap
    return gap


def _heads(store: Store, files: OpenFiles, position: int) -> Iterator[Head]:
    file = store.commit_log.file_of(position)
    try:
        if file is not None:
            yield from takewhile(lambda head: head.total_size > 0, heads_of_file(files, file, position))
    except UnreadableError:
        return


def _kind_at(files: OpenFiles, file: StoreFile, offset: int) -> Literal["blank", "zeros", "other"]:
    """Whether a blank, zeros as far as is read, or something else is at an offset of a file."""
    try:
        data = files.read(file.path, offset - file.file_from_offset, _ZEROS_SEEN)
    except UnreadableError:
        return "other"
    if not data.strip(b"\0"):
        return "zeros"
    left = file.end - offset
    if len(data) < form.BLANK_SIZE:
        return "other"
    first, second = form.BLANK.unpack(data)
    return "blank" if is_blank(first, second, left, file.entry_header) else "other"


def _is_end(store: Store, files: OpenFiles, offset: int) -> bool:
    """Whether no file from `offset` on begins with anything but zeros."""
    later = (file for file in store.commit_log.files if file.file_from_offset >= offset)
    return all(_kind_at(files, file, file.file_from_offset) == "zeros" for file in later)


def _has_tags(store: Store, file: IndexFile) -> bool:
    """Whether an index file holds tags, as those of 5.4 do: judged by its first and its last tagged message.

    False if none of the messages that are read has tags.
    """
    last = min(file.header.next_entry, file.shape.entries) - 1
    # The tag of a message is put last: of the one at which a file became full it may be in the next file.
    split = file.header.end_physical_offset if file.is_full else None
    first_found = _tag_is_there(store, file, range(1, min(last, _TAG_SAMPLES) + 1), split)
    return first_found and _tag_is_there(store, file, range(last, max(last - _TAG_SAMPLES, 0), -1), split)


def _tag_is_there(store: Store, file: IndexFile, numbers: range, split: int | None) -> bool:
    for number in numbers:
        entry = file.entry(number)
        if entry is not None and entry.physical_offset == split:
            continue
        stored = None if entry is None else store.find(entry.physical_offset)
        tags = (
            None
            if stored is None
            else properties.decode(stored.message.properties_bytes).get(properties.TAGS)
        )
        if stored is not None and tags:
            key_hash = index_key_hash(tag_text(stored.message.topic, tags))
            return stored.physical_offset in file.offsets(key_hash, lambda why, entry: None)
    return False
