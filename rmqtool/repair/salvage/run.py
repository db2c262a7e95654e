"""One salvage from the first file to the list of actions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING

from rmqtool.errors import RefusedError
from rmqtool.formats.java import java_utf8_decode
from rmqtool.log.scan_cache import ScanCache
from rmqtool.repair.plan import Action
from rmqtool.repair.salvage.file_scan import FileScan, scan_file
from rmqtool.repair.salvage.fillers import Filled, fill_hole
from rmqtool.repair.salvage.log import Log, as_cut
from rmqtool.repair.salvage.model import Claim, Fill, LogFile, LostRecord, Misplaced, Salvaged
from rmqtool.repair.salvage.order import Order, has_backs, read_order
from rmqtool.repair.salvage.owners import Parts, assign, fits
from rmqtool.repair.salvage.strays import FileSet, delete_misnamed, file_set, misplaced_file, misplaced_strays
from rmqtool.repair.salvage.traces import Traces
from rmqtool.repair.salvage.units import TailUnits, units_in
from rmqtool.storage.source import open_source

if TYPE_CHECKING:
    from rmqtool.read.store import Store
    from rmqtool.storage.source import ByteSource, RateLimiter


class Run:
    """See `salvage`."""

    def __init__(
        self,
        store: Store,
        fill: Fill,
        jobs: int,
        keep_cache: bool,
        limiter: RateLimiter | None,
        progress: Callable[[int], None] | None,
    ) -> None:
        self.store = store
        self.layout = store.layout
        self.fill = fill
        self.jobs = jobs
        self.keep_cache = keep_cache
        self.limiter = limiter
        self.progress = progress or (lambda size: None)
        self._stopped = Event()
        self._sound = ScanCache()

    def open(self, path: Path) -> ByteSource:
        """A source over a file of the store."""
        return open_source(path, keep_cache=self.keep_cache, limiter=self.limiter)

    def run(self) -> Salvaged:
        """Run all steps and return the plan."""
        files = file_set(self.layout)
        misnamed, misplaced = self._misnamed(files)
        scans = self._scan(files.files)
        log = Log(scans, self.open)
        order = self._order(log)
        log.cut_zombies(order)
        with closing(Traces(log, order)) as traces:
            traces.add_heads()
            claims, tails = self._units(log, traces.heads)
            filled, tail, cut = self._fill(log, order, claims, traces)
        actions = [*files.deletes, *misnamed, *log.actions(filled)]
        lost = [record for key in sorted(filled) for record in filled[key].lost]
        lost += cut or _cut_off(log, order, tails)
        kept, gone = log.kept, 0
        if log.cut_from is not None:
            kept, gone = order.split(log.cut_from, [one.start for one in log.cut_unfinished])
        return Salvaged(
            actions=tuple(actions),
            end=log.end,
            lost=tuple(lost),
            kept=kept,
            given_up=(gone if tail else 0) + sum(record.fate == "taken" for record in lost),
            fillers=sum(item.fillers for item in filled.values()),
            unreadable=tuple(
                (scan.file.name, start - scan.file.file_from_offset, stop - scan.file.file_from_offset)
                for scan in scans
                for start, stop in scan.unreadable
            ),
            misplaced=(
                *misplaced,
                *misplaced_strays(self.layout, files, self.open, self._stopped),
                *(
                    Misplaced(scan.file.name, scan.misplaced)
                    for scan in scans
                    if scan.misplaced > scan.kept + 1
                ),
            ),
            tail=tail,
            incomplete=tuple(sorted([*_unfinished(log), *_damaged(log)], key=lambda one: one.start)),
            notes=tuple([*files.notes, *self._notes(log, order)]),
            sound=self._sound,
        )

    # files

    def _misnamed(self, files: FileSet) -> tuple[list[Action], list[Misplaced]]:
        """Return the deletions of files whose names do not fit, and the records of other places in them.

        Raises RefusedError for a file that holds sound records of its own place.
        """
        actions, misplaced = [], []
        for file in files.misnamed:
            name = self.layout.relative(file.path)
            whole = LogFile(file.path, name, file.file_from_offset, file.size, file.size)
            found, in_place = misplaced_file(whole, files, self.open, self._stopped)
            if in_place:
                raise RefusedError(
                    "this file overlaps others of the log, and all hold sound records",
                    path=file.path,
                    hint="give mappedFileSizeCommitLog with --broker-conf, or move one of them away",
                )
            actions.append(delete_misnamed(self.layout, file))
            if found is not None:
                misplaced.append(found)
            self.progress(file.size)
        return actions, misplaced

    def _scan(self, files: Sequence[LogFile]) -> list[FileScan]:
        """Walk all files, `jobs` at a time; in the order of the log.

        Whether records end with a property CRC shows when one does. A file that kept a record without its
        last bytes before that was known is walked again: which records are kept must not depend on where a
        walk's windows or the files end.
        """
        is_done = False
        with ThreadPoolExecutor(self.jobs, "rmqtool-salvage") as pool:
            futures = [pool.submit(self._scan_one, file) for file in files]
            try:
                scans = [future.result() for future in futures]
                if any(scan.has_property_crc for scan in scans):
                    scans = [self._scan_one(scan.file, True) if scan.kept_before else scan for scan in scans]
                is_done = True
            finally:
                if not is_done:
                    self._stop(futures)
        return scans

    def _stop(self, futures: Sequence[Future[FileScan]]) -> None:
        """Have all threads come back soon."""
        self._stopped.set()
        if self.limiter is not None:
            self.limiter.stop()
        for future in futures:
            future.cancel()

    def _scan_one(self, file: LogFile, has_property_crc: bool = False) -> FileScan:
        if not file.size:
            return FileScan(file)
        try:
            source = self.open(file.path)
        except OSError:
            scan = FileScan(file)
            scan.unreadable.append((file.file_from_offset, file.file_from_offset + file.size))
            return scan
        with closing(source):
            scan = scan_file(file, source, self._stopped, self._sound, has_property_crc=has_property_crc)
        if not has_property_crc:
            self.progress(file.size)
        return scan

    # what was lost

    def _order(self, log: Log) -> Order:
        if log.holes or has_backs(log.scans):
            return read_order(log.scans, self.open, self.jobs)
        return Order()

    def _units(self, log: Log, heads: set[int]) -> tuple[list[Claim], list[TailUnits]]:
        """Return the units of records in the holes and after the end; read only where there may be some."""
        if not log.holes and self.store.dispatched_end() <= log.end:
            return [], []
        ranges = [(hole.start, hole.stop) for hole in log.holes]
        heads = heads | {head.start for scan in log.scans for head in scan.pending}
        return units_in(self.layout, ranges, log.end, heads, self.open, self.store.find, self.jobs)

    def _fill(
        self, log: Log, order: Order, claims: Sequence[Claim], traces: Traces
    ) -> tuple[dict[int, Filled], tuple[tuple[int, int], ...], list[LostRecord]]:
        """Return the content of every hole, by its start; the sound ranges and lost records after a cut."""
        if not log.scans:
            return {}, (), []
        start = log.scans[0].file.file_from_offset
        crc = log.has_property_crc
        filled: dict[int, Filled] = {}
        for parts in assign(log.holes, claims, order, start, traces.end_before, property_crc=crc):
            filled[parts.hole.start] = self._fill_one(log, order, parts, crc)
        if self.fill == "records":
            return filled, (), []
        first = next((hole for hole in log.holes if filled[hole.start].lost), None)
        if first is None:
            return filled, (), []
        lost = [as_cut(record) for hole in log.holes if hole.start >= first.start
                for record in filled[hole.start].lost]  # fmt: skip
        tail = log.end_at(first)
        return {key: item for key, item in filled.items() if key < first.start}, tail, lost

    def _fill_one(self, log: Log, order: Order, parts: Parts, crc: bool) -> Filled:
        filled, hole = fill_hole(parts, property_crc=crc), parts.hole
        # without other evidence, a blank with a wrong size proves nothing else
        if hole.code == "CL10" and not hole.next_size and not filled.fillers and log.is_empty_end(hole):
            filled = replace(filled, lost=())
        if hole.to_end and filled.lost and filled.lost[-1].topic is None and self._has_units(order, parts):
            filled = replace(filled, lost=filled.lost[:-1])  # the rest of the file was a blank
        return filled

    def _has_units(self, order: Order, parts: Parts) -> bool:
        """Whether each lost record of a hole has a unit: they have all, and later records have units too."""
        if any(claim.known_from != "unit" for claim in parts.claims) or any(
            free.wanted or not free.to_end for free in parts.free
        ):
            return False
        queues = self.store.queues
        return self.store.dispatched_end() > parts.hole.stop and all(
            (java_utf8_decode(topic), queue_id) in queues for topic, queue_id in order.known
        )

    def _notes(self, log: Log, order: Order) -> Iterator[str]:
        if order.zombies_from is not None:
            yield f"from offset {order.zombies_from} on are older records that remained after a truncation"
        if log.unfilled:
            yield f"{len(log.unfilled)} damaged ranges stay: they cannot be read, or no filler fits"
        unfinished = _unfinished(log)
        if unfinished:
            yield (
                "CL13: kept with a sound body, although the properties end in zeros:"
                f" {_places(unfinished)}. Keys, tags and other properties may be lost: then consumers that"
                " select by these, and queries by key, do not find the message"
            )
        damaged = _damaged(log)
        if damaged:
            yield (
                f"CL13: kept with a sound body, although the properties are damaged: {_places(damaged)}. What"
                " cannot be parsed of them is lost, unless a slave or a backup has it (rmqtool diff)"
            )
        if log.cut_unfinished and log.ends_at_hole:
            yield (
                "CL13: given up with a sound body, because the properties end in zeros:"
                f" {_places(log.cut_unfinished)}. At the end of the log a broker keeps such a record, but the"
                " next recover would take it for one that was not written in full"
            )
        if not log.kept and log.cut_from is None and any(scan.file.size for scan in log.scans):
            yield "no record of the log is sound: is this its right file size?"


def _unfinished(log: Log) -> list[Claim]:
    return [one for scan in log.scans for one in scan.unfinished if one.start < log.end]


def _damaged(log: Log) -> list[Claim]:
    return [one for scan in log.scans for one in scan.damaged if one.start < log.end]


def _places(claims: Sequence[Claim]) -> str:
    return ", ".join([*map(_place, claims[:_NOTED_MAX]), *(["..."] if claims[_NOTED_MAX:] else [])])


def _place(one: Claim) -> str:
    topic = java_utf8_decode(one.topic)
    return f"{topic} queue {one.queue_id} offset {one.queue_offset} (at {one.start})"


def _cut_off(log: Log, order: Order, tails: Sequence[TailUnits]) -> list[LostRecord]:
    """Return the known records after the end: by units or else by heads; else that there was one."""
    if log.last < 0:
        return []
    scan = log.scans[log.last]
    after = scan.last_ms or None
    lost = [
        LostRecord(tail.topic, tail.queue_id, tail.queue_offset, tail.count, tail.physical_offset, tail.size,
                   after, None, True, "unit", "cut")
        for tail in tails
    ]  # fmt: skip
    named = {(tail.topic, tail.queue_id, number) for tail in tails if tail.count <= _NAMED_MAX
             for number in range(tail.queue_offset, tail.queue_offset + tail.count)}  # fmt: skip
    for one in log.scans[log.last :]:
        for head in one.pending:
            topic = java_utf8_decode(head.topic)
            if head.start < log.end or (topic, head.queue_id, head.queue_offset) in named:
                continue
            lost.append(
                LostRecord(
                    topic, head.queue_id, head.queue_offset, head.step, head.start, head.size, after, None,
                    head.has_queue and fits(head, order), "header", "cut",
                )
            )  # fmt: skip
    if not lost and scan.code and scan.code != "CL07" and not scan.done:
        size = scan.file.full_end - log.end
        lost.append(LostRecord(None, None, None, 0, log.end, size, after, None, False, "none", "cut"))
    return sorted(lost, key=lambda record: record.physical_offset)


_NAMED_MAX = 1 << 16
_NOTED_MAX = 10
