"""Passes `tiered` and `compaction`: the copies of messages that a store holds, each as a store of its own.

A tiered copy and the logs of compacted topics are opened as stores (`storage.queue_logs`), and every record,
unit and key of them is checked by the passes that check any store. What these find is one finding here, TS06
or CC02, which names the code. `check_segments` finds what only such a copy can have: segments that are
missing, too short or unknown to the metadata. `compaction` compares compacted topics with the log.

Source: FlatAppendFile#recover, #recoverFileSize, IndexStoreFile; spec 06 sections 7 and 9.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise
from typing import Any

from rmqtool.check.verify.context import Context, Report
from rmqtool.errors import FormatError, UnreadableError
from rmqtool.formats import tiered as form
from rmqtool.formats.consume_queue import UNIT_SIZE
from rmqtool.log.segments import gap, name_of, named_and_missing, segments_of, without_log
from rmqtool.problems import LOAD_FAILS, Finding, finding
from rmqtool.storage.open_files import reading
from rmqtool.storage.queue_logs.compacted import without_counterpart, wrong_sizes
from rmqtool.storage.queue_logs.find import COMPACTION, as_store
from rmqtool.storage.queue_logs.model import INDEX_LIMIT, SPAN, Segment
from rmqtool.storage.queue_logs.view import CompactedLogs, QueueLogs, TieredLogs
from rmqtool.storage.storage import path_at

_BLOCK_SLOTS = 1 << 16


def check_copies(context: Context, passes: set[str]) -> Iterator[Finding]:
    """Findings on the copies in a store."""
    copies = context.layout.copies
    for logs in copies:
        if isinstance(logs, TieredLogs) and "tiered" in passes:
            yield from _inside(context, logs, "TS06")
        elif isinstance(logs, CompactedLogs) and "compaction" in passes:
            for found in _inside(context, logs, "CC02"):
                context.report.compacted_differ = True
                yield found
        logs.close()
    has_logs = any(isinstance(logs, CompactedLogs) for logs in copies)
    if "compaction" in passes and not has_logs and context.compacted_topics:
        from rmqtool.check.verify.compaction import compare

        yield from compare(context, None, COMPACTION)


def _inside(context: Context, logs: QueueLogs, code: str) -> Iterator[Finding]:
    """Findings of the passes that check any store, by one code, and those that only such a copy has."""
    from rmqtool.check.verify import verify
    from rmqtool.read.store import Store

    folder = context.layout.relative(logs.folder)
    report = Report()
    with Store(as_store(logs)) as store:
        for found in verify(
            store, jobs=context.jobs, keep_cache=context.keep_cache, limiter=context.limiter, report=report
        ):
            path = f"{folder}/{found.path}"
            if isinstance(logs, TieredLogs) and found.path == str(logs.metadata.path):
                path = context.layout.relative(logs.metadata.path or logs.folder)
            if context.live and found.problem.code in ("CQ02", "CQ03", "CQ13", "CC04"):
                continue  # a record is there before its unit, a file before its counterpart
            if found.problem.code.startswith(("TS", "CC", "UN")):
                yield replace(found, path=path)
            elif found.problem.severity == "error" or found.problem.code == "CQ03":
                detail = {"problem": found.problem.code, **found.detail}
                yield replace(
                    finding(code, path, found.physical_offset, found.length, **detail),
                    message=found.row()["message"],
                )
        if isinstance(logs, CompactedLogs):
            from rmqtool.check.verify.compaction import compare

            yield from compare(context, store, folder)
            context.report.compacted_records += report.records
    context.report.copied_records += report.records


def check_segments(logs: QueueLogs) -> Iterator[Finding]:
    """What the names and sizes of segments and the metadata of a tiered copy show. Paths are those below."""
    for stray in logs.found.strays:
        code = "TS02" if isinstance(logs, TieredLogs) else "CC04"
        yield finding(code, stray.path.relative_to(logs.folder).as_posix(), reason=stray.reason)
    if isinstance(logs, TieredLogs):
        yield from _tiered_segments(logs)
        yield from _metadata(logs)
        yield from _index(logs)
    elif isinstance(logs, CompactedLogs):
        yield from _compacted_files(logs)


def _tiered_segments(logs: TieredLogs) -> Iterator[Finding]:
    rows = [
        (segments, unit)
        for queue in logs.found.queues
        for segments, unit in ((queue.log, 1), (queue.units, UNIT_SIZE))
    ]
    for segments, unit in [*rows, (logs.found.index_segments, 1)]:
        for before, after in pairwise(segments):
            if before.end < after.base:
                yield gap(logs, before, after)
            elif before.end > after.base:
                yield finding("TS03", name_of(logs, before), after.base - before.base,
                              before.end - after.base, reason="it reaches into the next segment")  # fmt: skip
        for segment in segments:
            if segment.base % unit:
                yield finding("TS02", name_of(logs, segment), reason="its offset is not that of a unit")
            elif segment.size % unit:
                cut = segment.size % unit
                yield finding(
                    "TS03", name_of(logs, segment), segment.size - cut, cut, reason="it ends inside a unit"
                )
            if unit == 1 and segments is not logs.found.index_segments and segment.size > SPAN - 8:
                yield _too_long(logs, segment)

    yield from without_log(logs)


def _too_long(logs: QueueLogs, segment: Segment) -> Finding:
    """A finding on a segment of a log whose end is not read."""
    return finding("UN01", name_of(logs, segment), SPAN - 8, segment.size - SPAN + 8,
                   what="the end of a segment", form=f"more than {SPAN - 8} bytes")  # fmt: skip


def _metadata(logs: TieredLogs) -> Iterator[Finding]:
    path, content, reason = logs.metadata
    if path is not None and reason is not None:
        found = finding("TS05", str(path), reason=reason)
        problem = replace(found.problem, severity="warning", broker="loads the .bak")
        message = f"{found.problem.message}, but its .bak can"
        yield found if content is None else replace(found, problem=problem, message=message)
    if content is None:
        return
    there = segments_of(logs)
    last = {queue.log[-1] for queue in logs.found.queues if queue.log}
    last |= {queue.units[-1] for queue in logs.found.queues if queue.units}
    known = {key: said for key, said in content.segments.items() if said.status != form.DELETED}
    missing = dict(named_and_missing(logs))
    for key, said in sorted(known.items()):
        segment = there.get(key)
        if segment is None:
            if key in missing:
                yield missing[key]
            continue
        if segment.size < said.size:
            yield finding("TS03", name_of(logs, segment), segment.size, said.size - segment.size,
                          committed_bytes=said.size, reason="the metadata say that it is longer")  # fmt: skip
        elif segment.size > said.size and segment not in last and key[0] != form.INDEX:
            yield finding("TS03", name_of(logs, segment), said.size, segment.size - said.size,
                          committed_bytes=said.size, reason="a broker does not read its end")  # fmt: skip
    for key, segment in sorted(there.items()):
        if key not in known and segment.size:
            yield finding("TS04", name_of(logs, segment), 0, segment.size,
                          reason="the metadata do not name it, and a broker does not read it")  # fmt: skip


def _index(logs: TieredLogs) -> Iterator[Finding]:
    """The headers and slots of index segments; entries are checked against records as in any index.

    Slots of an index that is too large to be read are not checked: its items are not read either, UN01.
    """
    for segment in logs.found.index_segments:
        name = name_of(logs, segment)
        try:
            with reading(path_at(segment.place)) as file:
                header = form.decode_index_header(file.read(0, form.INDEX_HEADER.size))
                slots = form.slots_of(header, segment.size)
                wrong = [] if segment.size > INDEX_LIMIT else _wrong_slots(file.read, slots, header.items)
        except FormatError as error:
            yield finding("TS07", name, 0, segment.size, reason=error.message)
            continue
        except OSError as error:
            yield finding("IX11", name, 0, segment.size, reason=error.strerror or str(error))
            continue
        if wrong:
            yield finding(
                "TS07", name, form.INDEX_HEADER.size, None, wrong_slots=len(wrong), first_slots=wrong[:3]
            )


def _wrong_slots(read: Any, slots: int, items: int) -> list[int]:
    """The slots that do not lead to the items with their hashes; items follow in the order of slots."""
    import numpy as np

    at = form.INDEX_HEADER.size
    start = at + slots * form.INDEX_SLOT.size
    item = form.INDEX_ITEM.size
    wrong: list[int] = []
    hashes = np.frombuffer(read(start, items * item), form.INDEX_ITEM.dtype)["key_hash"].astype(np.int64)
    if len(hashes) < items:
        raise FormatError("tiered index: the file has become shorter")
    counts = np.bincount(hashes[hashes >= 0] % slots, minlength=slots)
    for first in range(0, slots, _BLOCK_SLOTS):
        count = min(_BLOCK_SLOTS, slots - first)
        block = np.frombuffer(
            read(at + first * form.INDEX_SLOT.size, count * form.INDEX_SLOT.size), form.INDEX_SLOT.dtype
        )
        numbers = np.arange(first, first + len(block))
        lengths = block["length"].astype(np.int64)
        begins = (block["position"].astype(np.int64) - start) // item
        expected = counts[first : first + len(block)] * item
        bad = lengths != expected
        inside = ~bad & (lengths > 0)
        ends = begins + lengths // item - 1
        off = inside & ((begins < 0) | (ends >= items))
        checked = inside & ~off
        bad |= off
        bad[checked] |= (hashes[begins[checked]] % slots != numbers[checked]) | (
            hashes[ends[checked]] % slots != numbers[checked]
        )
        wrong += numbers[bad].tolist()
    return wrong


def _compacted_files(logs: CompactedLogs) -> Iterator[Finding]:
    """The files of log and queue of a compacted topic, their names and sizes; units that are left out.

    A size that is wrong for the whole queue is not noticed if no other file shows the right one.
    """
    for queue in logs.found.queues:
        with suppress(UnreadableError):  # the pass on queues reports it
            units = logs.sparse_units(queue)
            for count, reason in (
                (units.left_out, "the queue offsets of units are out of range"),
                (
                    units.miscounted,
                    "units do not count one message: a broker cuts or extends the queue there",
                ),
            ):
                if count:
                    yield finding(
                        "CC02", name_of(logs, queue.units[0]), None, None, units=count, reason=reason
                    )
        for segment in queue.log:
            if segment.size > SPAN - 8:
                yield _too_long(logs, segment)
        alone = set(without_counterpart(queue))
        for segment in (*queue.log, *queue.units):
            if segment in alone:
                found = finding(
                    "CC04", name_of(logs, segment), reason="its log or its queue has no file of this name"
                )
                yield replace(found, problem=replace(found.problem, broker=LOAD_FAILS))
    for _, segment, right in wrong_sizes(logs.found.queues):
        found = finding("CC02", name_of(logs, segment), 0, segment.size, expected_bytes=right)
        does = "does not load the compaction log of the topic: consumers get no message of it"
        message = "a file of the compaction log does not have the size of the others"
        yield replace(found, problem=replace(found.problem, broker=does), message=message)
