"""Look-ups of thousands of keys in one pass, as columns, without decoding messages.

Compiled code follows the chains (`IndexFile.many`) and judges the records (`log.key_match`): a key costs
less than a microsecond if everything is in memory. What the index does not cover is scanned, as in
`by_key`; the tests hold the two together.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

import numpy as np

from rmqtool.errors import UnreadableError
from rmqtool.findings import Progress
from rmqtool.formats import properties
from rmqtool.formats.index import KeyKind
from rmqtool.index.index_file import Candidates, IndexFile, open_index_files
from rmqtool.lazy_dataclass import dataclass
from rmqtool.log.events import OFFSET_MISMATCH, StoredMessage
from rmqtool.log.key_match import FOUND, GONE, PYTHON, Names, judge
from rmqtool.read import coverage
from rmqtool.read.coverage import Gap
from rmqtool.read.hits import BrokenChain, KeyMatcher, ScanMode, SearchReport, hashes_of, topics_of
from rmqtool.read.key_scan import batch_hits, scan
from rmqtool.read.selection import Selection
from rmqtool.read.store import Store
from rmqtool.storage.buffers import Array
from rmqtool.storage.open_files import OpenFiles
from rmqtool.storage.source import ByteSource, open_source

if TYPE_CHECKING:
    import pyarrow as pa

_OPEN_MAX = 64  # files that stay open


@dataclass(frozen=True)
class LookupColumns:
    """The hits by rising key and physical offset; arrays of shape (hits,).

    Attributes:
        key: i4, the place of the key among those requested.
        physical_offset: i8, where the record lies, bytes.
        size: i4, bytes of the record.
        gaps: ranges of the log that the index does not cover; they were scanned, unless `scan` was never.
    """

    key: Array
    physical_offset: Array
    size: Array
    gaps: tuple[Gap, ...] = ()

    def to_arrow(self) -> pa.Table:
        """The columns as a table: key int32, physical_offset int64, size int32."""
        import pyarrow as pa

        columns = {"key": self.key, "physical_offset": self.physical_offset, "size": self.size}
        return pa.table({name: pa.array(column) for name, column in columns.items()})


def lookup_columns(
    store: Store,
    keys: Sequence[str],
    topics: str | Sequence[str] | None = None,
    *,
    kind: KeyKind = "key",
    scan: ScanMode = "auto",
    progress: Progress | None = None,
) -> LookupColumns:
    """The messages of many keys.

    Args:
        store: the store.
        keys: what is looked for; a key may be there twice.
        topics: the topic of all keys, or one for each; None tries each key in every topic.
        kind: `key` finds keys and unique keys, `uniq_key` only these, `tag` whole values of TAGS.
        scan: `auto` scans what the index does not cover, and for keys that were not found all of the log;
            `always` all of the log at once; `never` nothing, and opens no batch record.
        progress: called with the bytes of the log that were scanned.

    A record is recognized by its lengths and the offset that it stores; its body's CRC is not checked.
    Raises UnreadableError when the log cannot be read, ValueError for as many topics as do not fit.
    """
    with ColumnLookup(store) as lookup:
        return lookup(keys, topics, kind=kind, scan=scan, progress=progress)


class ColumnLookup:
    """Look-ups of many keys in one store, call after call: its files stay open until `close`."""

    def __init__(self, store: Store) -> None:
        store.layout.check_forms(log=True)
        self.store = store
        self._sources: dict[Path, ByteSource] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the files."""
        while self._sources:
            self._sources.popitem()[1].close()

    def source(self, path: Path) -> ByteSource:
        """A file of the store, opened when it is first needed. Raises OSError."""
        found = self._sources.get(path)
        if found is None:
            if len(self._sources) >= _OPEN_MAX:
                self._sources.pop(next(iter(self._sources))).close()
            found = self._sources[path] = open_source(path)
        return found

    def __call__(
        self,
        keys: Sequence[str],
        topics: str | Sequence[str] | None = None,
        *,
        kind: KeyKind = "key",
        scan: ScanMode = "auto",
        progress: Progress | None = None,
    ) -> LookupColumns:
        """See `lookup_columns`."""
        task = _Columns(self, keys, topics, kind)
        with OpenFiles() as files:
            views = open_index_files(self.store.layout, files)
            if scan == "always":
                gaps = coverage.whole_log(self.store, coverage.REQUESTED)
            else:
                task.by_index(views)
                gaps = task.gaps(views, files)
        if scan != "never":
            everything = range(len(keys))
            for gap in gaps:
                task.by_scan(everything, gap, progress)
            task.inside_of_batches()
            if scan == "auto":
                gaps = coverage.merged([*gaps, *task.not_held(gaps, progress)])
        return task.result(tuple(gaps))


def offsets_of_hashes(store: Store, views: Sequence[IndexFile], hashes: Array, broken: BrokenChain) -> Array:
    """Physical offsets, i8, of the entries that have one of the hashes, in no order."""
    found = [np.zeros(0, np.int64)]
    with ColumnLookup(store) as lookup:
        for view, [each], is_damaged in _candidates(lookup, views, [hashes]):
            if is_damaged:
                broken(view.name, "cannot be followed", 0)
            found.append(each.offsets)
    return np.concatenate(found)


def _candidates(
    lookup: ColumnLookup, views: Sequence[IndexFile], hashes: Sequence[Array]
) -> Iterator[tuple[IndexFile, list[Candidates], bool]]:
    """Per index file the entries of each array of hashes, and whether chains of it are broken or gone.

    A file that cannot be read is left out.
    """
    for view in views:
        if view.is_empty:
            continue
        try:
            source = lookup.source(view.path)
        except OSError:
            continue  # it has vanished: what it covered is a gap for who asks for it
        yield (view, *view.over(source).many(hashes))


class _Columns:
    """One look-up: what was found so far."""

    def __init__(
        self, lookup: ColumnLookup, keys: Sequence[str], topics: str | Sequence[str] | None, kind: KeyKind
    ) -> None:
        self.lookup = lookup
        self.store = lookup.store
        self.keys = keys
        self.kind = kind
        self.by_topic = topics is None
        if topics is None:
            groups: list[list[str]] = [[topic] for topic in topics_of(lookup.store, Selection())]
        else:
            groups = [[topics] if isinstance(topics, str) else list(topics)]
            if keys and len(groups[0]) not in (1, len(keys)):
                raise ValueError(f"{len(groups[0])} topics for {len(keys)} keys")
        self.groups = groups
        self.names = [Names(keys, group, kind) for group in groups] if keys else []
        self.found: list[tuple[Array, Array, Array]] = []
        self.damaged: set[str] = set()

    def by_index(self, views: Sequence[IndexFile]) -> None:
        """Add the records that the index names, after the records themselves confirmed them."""
        per_names: list[list[Candidates]] = [[] for _ in self.names]
        hashes = [names.hashes for names in self.names]
        searched: list[IndexFile] = []
        for view, each, is_damaged in _candidates(self.lookup, views, hashes):
            for place, found in enumerate(each):
                per_names[place].append(found)
            searched.append(view)
            if is_damaged:
                self.damaged.add(view.name)
        for names, each in zip(self.names, per_names, strict=True):
            if each:
                keys, offsets = (np.concatenate([getattr(c, f) for c in each]) for f in ("keys", "offsets"))
                files = np.repeat(np.arange(len(each)), [len(c.keys) for c in each])
                is_small = np.array([view.is_small for view in searched])
                for place in self._judge(names, keys, offsets, files, is_small):
                    self.damaged.add(searched[place].name)

    def _judge(self, names: Names, keys: Array, offsets: Array, files: Array, is_small: Array) -> set[int]:
        """Take what entries name and mean; those of `files` with one that names no record of its hash.

        In a large file another key is a collision: there are hundreds among 100,000 keys, and a look at
        each would take as long as the look-up.
        """
        order = np.argsort(offsets)
        keys, offsets, files = keys[order], offsets[order], files[order]
        damaged: set[int] = set()
        for file in self.store.commit_log.files:
            low, high = np.searchsorted(offsets, (file.file_from_offset, file.end))
            if low == high:
                continue
            part = slice(int(low), int(high))
            try:
                source = self.lookup.source(file.path)
            except OSError as error:
                if isinstance(error, FileNotFoundError):
                    continue  # a live broker deletes files
                raise UnreadableError(f"cannot read: {error.strerror}", path=file.path) from error
            known = len(source.unreadable)
            judged = judge(source, file.file_from_offset, names, keys[part], offsets[part])
            for start, _ in source.unreadable[known:]:
                raise UnreadableError(
                    "cannot be read", path=file.path, physical_offset=file.file_from_offset + start
                )
            good = judged.verdicts == FOUND
            for row in np.flatnonzero(judged.verdicts == PYTHON).tolist():
                good[row] = self._is_found(names, int(keys[part][row]), int(offsets[part][row]))
            doubtful = ~good & ((judged.verdicts == GONE) | is_small[files[part]])
            for row in np.flatnonzero(doubtful).tolist():
                if files[part][row] not in damaged and not self._is_collision(
                    int(names.hashes[keys[part][row]]), int(offsets[part][row])
                ):
                    damaged.add(int(files[part][row]))
            self.found.append((keys[part][good], offsets[part][good], judged.sizes[good]))
        return damaged

    def _is_collision(self, key_hash: int, offset: int) -> bool:
        """Whether an entry with this hash can name the record at an offset."""
        stored = self.store.find(offset)
        return (
            stored is not None
            and not stored.status & OFFSET_MISMATCH
            and key_hash in hashes_of(stored.message.topic, stored.message.properties_bytes)
        )

    def _is_found(self, names: Names, key: int, offset: int) -> bool:
        """Whether a record, whose properties are not UTF-8, has the key, as Java reads it."""
        stored = self.store.find(offset)
        if stored is None or stored.status & OFFSET_MISMATCH:
            return False
        group = self.groups[self.names.index(names)]
        if stored.message.topic != group[key % len(group)]:
            return False
        wanted = KeyMatcher(frozenset([self.keys[key]]), self.kind)
        return bool(wanted.found_in(properties.decode(stored.message.properties_bytes)))

    def gaps(self, views: Sequence[IndexFile], files: OpenFiles) -> list[Gap]:
        """The ranges of the log that the index does not cover."""
        if self.keys and not self.names:
            return coverage.whole_log(self.store, coverage.NO_TOPICS)
        return coverage.gaps(self.store, views, files, damaged=self.damaged, kind=self.kind)

    def not_held(self, gaps: Sequence[Gap], progress: Progress | None) -> list[Gap]:
        """Scan the log outside of `gaps` for keys that were not found; return the scanned ranges."""
        missing = np.ones(len(self.keys), bool)
        for keys, _, _ in self.found:
            missing[keys] = False
        places = np.flatnonzero(missing).tolist()
        rest = coverage.outside(gaps, coverage.NOT_HELD) if places else []
        rest = coverage.within(rest, self.store.commit_log.min_offset, None)
        for gap in rest:
            self.by_scan(places, gap, progress)
        return rest

    def by_scan(self, places: Sequence[int], gap: Gap, progress: Progress | None) -> None:
        """Scan a range of the log for the keys at `places`."""
        by_name = self._by_name(places)
        wanted = KeyMatcher(frozenset(by_name), self.kind)
        self._take(
            by_name,
            (
                (stored, wanted.found_in(properties.decode(stored.message.properties_bytes)))
                for stored in scan(self.store, wanted, Selection(), gap, SearchReport(), progress)
                if not stored.status & OFFSET_MISMATCH
            ),
        )

    def inside_of_batches(self) -> None:
        """Add the messages inside of batch records, which no index knows."""
        if self.store.layout.batch_queues and self.keys:
            by_name = self._by_name(range(len(self.keys)))
            found = batch_hits(
                self.store, KeyMatcher(frozenset(by_name), self.kind), Selection(), SearchReport()
            )
            self._take(by_name, ((hit.stored, hit.names) for hit in found))

    def _by_name(self, places: Iterable[int]) -> dict[str, list[int]]:
        by_name: dict[str, list[int]] = {}
        for place in places:
            by_name.setdefault(self.keys[place], []).append(place)
        return by_name

    def _take(
        self, by_name: Mapping[str, Sequence[int]], found: Iterable[tuple[StoredMessage, Iterable[str]]]
    ) -> None:
        """Note records, each with the names of keys that it has."""
        rows = [
            (place, stored.physical_offset, stored.message.total_size)
            for stored, names in found
            for name in names
            for place in by_name[name]
            if self._wants(place, stored.message.topic)
        ]
        if rows:
            table = np.array(rows, np.int64)
            self.found.append((table[:, 0].astype(np.int32), table[:, 1], table[:, 2].astype(np.int32)))

    def _wants(self, place: int, topic: str) -> bool:
        return self.by_topic or self.groups[0][place % len(self.groups[0])] == topic

    def result(self, gaps: tuple[Gap, ...]) -> LookupColumns:
        """All that was found, each pair of key and record once."""
        if not self.found:
            return LookupColumns(np.zeros(0, np.int32), np.zeros(0, np.int64), np.zeros(0, np.int32), gaps)
        key, offset, size = (np.concatenate(columns) for columns in zip(*self.found, strict=True))
        is_rising = bool((offset[1:] >= offset[:-1]).all())
        order = _order(key) if is_rising else np.lexsort((offset, key))
        key, offset, size = key[order], offset[order], size[order]
        new = np.ones(len(key), bool)
        new[1:] = (key[1:] != key[:-1]) | (offset[1:] != offset[:-1])
        return LookupColumns(key[new], offset[new], size[new], gaps)


def _order(key: Array) -> Array:
    """The stable order of numbers from 0 to 2^31 - 1, in a fifth of the time of a stable argsort."""
    with_place = (key.astype(np.int64) << 32) | np.arange(len(key))
    with_place.sort()
    order: Array = with_place & 0xFFFFFFFF
    return order
