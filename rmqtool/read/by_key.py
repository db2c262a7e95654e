"""Messages by key, unique key or tag: through the index, and by scan where the index does not reach.

The index holds 31 bits of a hash, so every entry is judged by its record: topic and keys must be
those requested. Where the index lacks a part of the log (`coverage`), that part is scanned;
for names that are then still missing the rest of the log is too: a broker whose index was off for a while
leaves files that seem to cover what they do not. Batch records are opened. Nothing is cut off.

Source: IndexService#buildIndex, MQAdminImpl#queryMessage; spec 01 section 6, spec 02 sections 8.5, 9.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property, partial
from itertools import chain, pairwise
from typing import TYPE_CHECKING

from rmqtool.errors import UnreadableError
from rmqtool.findings import Progress
from rmqtool.formats import properties
from rmqtool.formats.index import KeyKind
from rmqtool.index.index_file import IndexFile, open_index_files
from rmqtool.log.events import OFFSET_MISMATCH, StoredMessage
from rmqtool.read import coverage
from rmqtool.read.coverage import Gap
from rmqtool.read.hits import (
    BrokenChain,
    Hit,
    KeyMatcher,
    NamesLeft,
    ScanMode,
    SearchReport,
    hashes_of,
    topics_of,
)
from rmqtool.read.key_scan import batch_hits, scan
from rmqtool.read.known_topics import names_only_unknown_topics
from rmqtool.read.selection import Selection
from rmqtool.read.store import Store
from rmqtool.storage.open_files import OpenFiles

if TYPE_CHECKING:
    from rmqtool.read.hit_batches import HitBatch
    from rmqtool.read.name_table import HashColumn, NameTable
    from rmqtool.storage.buffers import Array
    from rmqtool.storage.rocksdb.messages import Found

BeforeScan = Callable[[Sequence[Gap]], None]
"""Called with the ranges and reasons before ranges of the log are scanned, once or twice."""

_MANY = 2048  # chains to follow, or records to judge: more of them are handled by compiled code


class KeySearch:
    """One look-up of names; see `lookup_request.lookup`."""

    def __init__(
        self,
        store: Store,
        wanted: KeyMatcher,
        selection: Selection,
        scan: ScanMode = "auto",
        looked: SearchReport | None = None,
        progress: Progress | None = None,
        before_scan: BeforeScan | None = None,
    ) -> None:
        self.store = store
        self.wanted = wanted
        self.scan = scan
        self.looked = SearchReport() if looked is None else looked
        self.progress = progress
        self._before_scan = before_scan
        self._in_batches = False
        self._batches: list[HitBatch] = []
        self._limit = selection.limit
        self._selection = replace(selection, limit=None)
        self._hashes: set[int] | HashColumn = set()
        self._misplaced_offsets: set[int] = set()
        self._seen: dict[int, set[str]] = {}
        self._missing = NamesLeft(wanted.names)

    @classmethod
    def of(
        cls,
        store: Store,
        names: str | Collection[str],
        selection: Selection | None = None,
        *,
        kind: KeyKind = "key",
        scan: ScanMode = "auto",
        looked: SearchReport | None = None,
        progress: Progress | None = None,
        before_scan: BeforeScan | None = None,
    ) -> KeySearch:
        """The look-up with these arguments; see `lookup_request.lookup`.

        Raises:
            UnsupportedStoreError: it is not known which of several DLedger logs it is.
        """
        store.layout.check_forms(log=True)
        wanted = KeyMatcher(frozenset([names] if isinstance(names, str) else names), kind)
        selection, looked = selection or Selection(), looked or SearchReport()
        if scan == "auto" and names_only_unknown_topics(store.layout, selection):
            looked.without_topic, scan = True, "never"
        return cls(store, wanted, selection, scan, looked, progress, before_scan)

    def hits(self) -> Iterator[Hit]:
        """The hits, up to the selection's limit.

        In the log's order; after them what is inside of batches, and what the index should have known.
        """
        for found in self._found():
            assert isinstance(found, Hit)
            yield found

    def hits_and_batches(self) -> Iterator[Hit | HitBatch]:
        """As `hits`, but thousands of hits through the index come as batches.

        A batch is valid until the next one is requested.
        """
        # Java reads a missing value as an empty one, and with a limit few hits are made.
        self._in_batches = self._limit is None and "" not in self.wanted.names
        return self._found()

    def _found(self) -> Iterator[Hit | HitBatch]:
        if self._limit == 0 or not self.wanted.names:
            return
        steps = (self._known, self._misplaced_hits, self._inside_of_batches, self._not_held)
        for hit in chain.from_iterable(step() for step in steps):
            if not isinstance(hit, Hit):
                self._missing.found_in(hit)
                # Only the first step yields batches, and no record twice.
                self._batches.append(hit.without_data())
                yield hit
                continue
            self._missing.found(hit.names)
            if hit.found_by != "index":
                self._remember_batches()
            known = self._seen.setdefault(hit.stored.physical_offset, set())
            # A batch record may have been found by its own key, and then by those of messages inside.
            if known and (hit.found_by != "batch" or known.issuperset(hit.names)):
                continue
            known.update(hit.names)
            yield hit
            if len(self._seen) == self._limit:
                return

    def _remember_batches(self) -> None:
        """Note what batches have shown: it is looked up only if something else is found."""
        for batch in self._batches:
            offsets = batch.frames.rows["physical_offset"].tolist()
            names = batch.names
            for offset, (start, stop) in zip(offsets, pairwise(batch.stops.tolist()), strict=True):
                self._seen.setdefault(offset, set()).update(names[start:stop])
        self._batches.clear()

    def _known(self) -> Iterator[Hit | HitBatch]:
        topics = topics_of(self.store, self._selection)
        with OpenFiles() as files:
            views = open_index_files(
                self.store.layout, files, lambda *failed: self.looked.unreadable.append(failed)
            )
            self.looked.index_files = len(views)
            in_rocksdb = None if views else self._in_rocksdb(topics)
            offsets: list[int] | Array = (
                self._candidates(topics, views) if in_rocksdb is None else in_rocksdb.offsets
            )
            self.looked.gaps = self._gaps(topics, views, files, in_rocksdb)
        gaps = self.looked.gaps if self.scan != "never" else []
        self._announce(gaps)
        place = 0
        for gap in gaps:
            start = bisect_left(offsets, gap.start, place)
            stop = len(offsets) if gap.stop is None else bisect_left(offsets, gap.stop, start)
            yield from self._judged_together(offsets[place:start])
            known = set(_as_list(offsets[start:stop]))
            for hit in self._scanned(gap, self.wanted):
                is_known = hit.stored.physical_offset in known
                yield hit._replace(found_by="index") if is_known else hit
            if gap.stop is None and known:
                self.looked.past_end += sorted(filter(self._is_past_end, known))
            place = stop
        yield from self._judged_together(offsets[place:])

    def _misplaced_hits(self) -> Iterator[Hit]:
        """Search the ranges of index files with an entry that names no sound record of its hash."""
        if self.scan != "auto" or not self._misplaced_offsets:
            return
        with OpenFiles() as files:
            views = open_index_files(self.store.layout, files)
            found = [
                Gap(*coverage.covered_range(self.store, view), coverage.MISPLACED)
                for view in views
                if view.is_plausible
                and not self._misplaced_offsets.isdisjoint(_as_list(self._entries(self._hashes, [view])))
            ]
        low, high = self._bounds()
        gaps = [
            gap
            for rest in coverage.outside(self.looked.gaps, coverage.MISPLACED)
            for gap in coverage.within(
                coverage.within(coverage.merged(found), low, high), rest.start, rest.stop
            )
        ]
        self._announce(gaps)
        self.looked.gaps = coverage.merged([*self.looked.gaps, *gaps])
        for gap in gaps:
            yield from self._scanned(gap, self.wanted)

    def _inside_of_batches(self) -> Iterator[Hit]:
        """Search the messages inside of batch records, which no broker indexes.

        Unique keys that were found are not searched again.
        """
        names = self._missing.names() if self.wanted.kind == "uniq_key" else self.wanted.names
        if names and self.scan != "never" and self.store.layout.batch_queues:
            wanted = KeyMatcher(frozenset(names), self.wanted.kind)
            yield from batch_hits(self.store, wanted, self._selection, self.looked)

    def _not_held(self) -> Iterator[Hit]:
        """Search the rest of the log for the names that were not found."""
        self.looked.without_log = not self.store.commit_log.files
        if self.scan != "auto" or self.looked.without_log:
            return
        missing = frozenset(self._missing.names())
        if not missing:
            return
        rest = coverage.outside(self.looked.gaps, coverage.NOT_HELD)
        gaps = coverage.within(rest, *self._bounds())
        self._announce(gaps)
        for gap in gaps:
            yield from self._scanned(gap, KeyMatcher(missing, self.wanted.kind))

    def _bounds(self) -> tuple[int | None, int | None]:
        """The range of physical offsets of the selection, as parameters of `coverage.within`."""
        low, high = self._selection.from_offset, self._selection.to_offset
        return max(low or 0, self.store.commit_log.min_offset), high

    def _announce(self, gaps: Sequence[Gap]) -> None:
        if gaps and self._before_scan is not None:
            self._before_scan(gaps)

    # the index

    def _in_rocksdb(self, topics: Collection[str]) -> Found | None:
        """What an index in RocksDB holds; None without one."""
        database = self.store.layout.rocksdb_messages
        if database is None or self.scan == "always":
            return None
        from rmqtool.storage.rocksdb.messages import find

        found = find(database, topics, self.wanted.names, self.wanted.kind)
        self.looked.topics = len(topics)
        self.looked.entries += 0 if found is None else len(found.offsets)
        return found

    @cached_property
    def _table(self) -> NameTable:
        from rmqtool.read.name_table import NameTable

        return NameTable(self.wanted.names)

    def _candidates(self, topics: Collection[str], views: Sequence[IndexFile]) -> list[int] | Array:
        """Physical offsets of the entries with a requested hash, ascending, each once."""
        self.looked.topics = len(topics)
        if len(self.wanted.names) * len(topics) < _MANY:
            self._hashes = self.wanted.hashes(topics)
        else:
            self._hashes = self._table.hashes(topics, self.wanted.kind)
        found = self._entries(self._hashes, views, self._broken)
        self.looked.entries += len(found)
        if isinstance(found, list):
            return sorted(set(found))
        from rmqtool.storage.buffers import distinct

        return distinct(found)

    def _entries(
        self,
        hashes: set[int] | HashColumn,
        views: Sequence[IndexFile],
        broken: BrokenChain = lambda *why: None,
    ) -> list[int] | Array:
        """Return the physical offsets that the entries with these hashes name, in no order."""
        if len(hashes) * len(views) > _MANY or not isinstance(hashes, set):
            from rmqtool.read.key_columns import offsets_of_hashes
            from rmqtool.read.name_table import HashColumn

            column = hashes if isinstance(hashes, HashColumn) else HashColumn.of(hashes)
            return offsets_of_hashes(self.store, views, column.values, broken)
        found: list[int] = []
        for view in views:
            for key_hash in hashes:
                found += view.offsets(key_hash, partial(broken, view.name))
        return found

    def _broken(self, name: str, why: str, entry: int) -> None:
        self.looked.broken.append((name, why, entry))

    def _judged_together(self, offsets: list[int] | Array) -> Iterator[Hit | HitBatch]:
        """The hits among the records at `offsets`, ascending; very many as batches, if these are wanted."""
        if not self._in_batches or len(offsets) < _MANY:
            yield from self._judged(_as_list(offsets))
            return
        import numpy as np

        from rmqtool.read.hit_batches import BatchJudge

        judge = BatchJudge(self.store, self._table, self.wanted.kind, self._selection)
        for batch, others, collisions in judge.judged(np.asarray(offsets, np.int64)):
            yield from _in_order(batch, self._judged(others))
            for offset, topic, properties_bytes in collisions:
                self._collides(offset, topic, properties_bytes)

    def _judged(self, offsets: Iterable[int]) -> Iterator[Hit]:
        """The hits among the records at `offsets`."""
        for offset in offsets:
            if not self._selection.matches_offset(offset):
                continue
            stored = self.store.find(offset)
            if stored is None or stored.status & OFFSET_MISMATCH:
                if self.store.commit_log.min_offset <= offset < self._log_end:
                    self.looked.dead.append(offset)
                    self._misplaced_offsets.add(offset)
                elif self._is_past_end(offset):
                    self.looked.past_end.append(offset)
                else:
                    self.looked.gone += 1
                continue
            names = self._names(stored)
            if not names:
                self._collides(offset, stored.message.topic, stored.message.properties_bytes)
            elif self._selection.matches(stored.message, offset):
                yield Hit(stored, "index", names)
            else:
                self.looked.excluded += 1
                self._missing.found(names)  # the index holds it

    def _collides(self, offset: int, topic: str, properties_bytes: bytes) -> None:
        """Note a record without a requested name: another key of the same hash, or a damaged index."""
        self.looked.collisions += 1
        if self._hashes.isdisjoint(hashes_of(topic, properties_bytes)):
            self._misplaced_offsets.add(offset)

    def _is_past_end(self, offset: int) -> bool:
        """Whether the log lacks its end, where the record was; a broker may have added what is there now."""
        is_selected = self._selection.matches_offset(offset)
        has_log = bool(self.store.commit_log.files)
        return is_selected and has_log and offset >= self._log_end and not self._is_live

    @cached_property
    def _is_live(self) -> bool:
        return self.store.live

    @cached_property
    def _log_end(self) -> int:
        """The offset after the last record; if the log cannot be read, after its last file."""
        try:
            return self.store.end_offset()
        except UnreadableError:
            return max((file.end for file in self.store.commit_log.files), default=0)

    def _names(self, stored: StoredMessage) -> tuple[str, ...]:
        return self.wanted.found_in(properties.decode(stored.message.properties_bytes))

    # the log

    def _gaps(
        self, topics: Collection[str], views: Sequence[IndexFile], files: OpenFiles, in_rocksdb: Found | None
    ) -> list[Gap]:
        """The ranges of the log that are to be scanned, ascending and apart."""
        store = self.store
        if self.scan == "always":
            found = coverage.whole_log(store, coverage.REQUESTED)
        elif not topics:
            found = coverage.whole_log(store, coverage.NO_TOPICS)
        elif in_rocksdb is not None and self.wanted.kind == "uniq_key":
            found = coverage.around(store, in_rocksdb.first, in_rocksdb.last)
        elif in_rocksdb is not None:
            found = coverage.whole_log(store, coverage.NO_UNIQUE_KEY)
        else:
            broken = {name for name, _, _ in self.looked.broken}
            found = coverage.gaps(store, views, files, damaged=broken, kind=self.wanted.kind)
        return coverage.within(found, self._selection.from_offset, self._selection.to_offset)

    def _scanned(self, gap: Gap, wanted: KeyMatcher) -> Iterator[Hit]:
        """The hits in one range of the log."""
        for stored in scan(self.store, wanted, self._selection, gap, self.looked, self.progress):
            names = wanted.found_in(properties.decode(stored.message.properties_bytes))
            if names and self._selection.matches(stored.message, stored.physical_offset):
                yield Hit(stored, "scan", names)


def _as_list(offsets: list[int] | Array) -> list[int]:
    return offsets if isinstance(offsets, list) else offsets.tolist()


def _in_order(batch: HitBatch | None, hits: Iterator[Hit]) -> Iterator[Hit | HitBatch]:
    """The hits of a batch and single ones, in the log's order; few single ones divide the batch."""
    row = 0
    for hit in hits:
        if batch is not None:
            stop = batch.first_from(hit.stored.physical_offset)
            if stop > row:
                yield batch.part(row, stop)
            row = stop
        yield hit
    if batch is not None and row < len(batch):
        yield batch.part(row, len(batch))
