"""Compacted topics against the commit log: what the compaction log must hold of a queue, and what it holds.

Up to the offset in position-checkpoint a compaction has kept the last message of each text of KEYS, unless
its body is empty, and nothing else; from there on the log has every message that was dispatched, for a start
dispatches none again that the commit log's other queues have. What has expired in the commit log is not
compared. Memory grows with the number of keys, not with that of messages.

Source: CompactionLog#compaction, #getOffsetMap, CompactionPositionMgr, CompactionService#putRequest; spec 06
section 9.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rmqtool.check.verify.context import Context
from rmqtool.errors import FormatError, UnreadableError
from rmqtool.formats import compaction, config_json
from rmqtool.problems import Finding, finding
from rmqtool.read.messages import message_batches
from rmqtool.read.selection import Selection
from rmqtool.storage.config_files import read_or_none
from rmqtool.storage.queue_logs.compacted import LOG

if TYPE_CHECKING:
    from rmqtool.read.store import Store
    from rmqtool.storage.buffers import Array

_COMPARED = (
    "size",
    "flag",
    "sys_flag",
    "body_crc",
    "born_timestamp_ms",
    "store_timestamp_ms",
    "tags",
    "uniq_key",
)
_COLUMNS = ["queue_offset", "physical_offset", "keys", "body_length", *_COMPARED]
_SHOWN = 3
_ALL = 1 << 62
_MERGED_ROWS = 1 << 20


def compare(context: Context, compacted: Store | None, folder: str) -> Iterator[Finding]:
    """Findings on each queue of `compacted`, the store of the logs in `folder`; None if there are no logs."""
    positions = _positions(context)
    if compacted is not None and not (context.live or context.after_crash):
        yield from _without_positions(context)
    topics = context.compacted_topics
    keys = {key for key in context.store.queues if key[0] in topics}
    for topic, queue_id in sorted(keys if compacted is None else keys | compacted.queues.keys()):
        path = f"{folder}/{LOG}/{topic}/{queue_id}"
        selection = Selection(topics=(topic,), queues=(queue_id,))
        batches = () if compacted is None else message_batches(compacted, selection, columns=_COLUMNS)
        kept = pa.Table.from_batches(batches, message_schema()).sort_by("queue_offset")
        last = positions.get((topic, queue_id), -1) if positions is not None else None
        place = {"topic": topic, "queue_id": queue_id}
        dispatched_to = context.dispatch_from if topic in topics else None
        yield from _Queue(context, kept, last, dispatched_to).findings(selection, path, place)


def message_schema() -> pa.Schema:
    """The schema of the columns that are compared."""
    from rmqtool.message.schema import arrow_schema

    return arrow_schema(_COLUMNS)


def _positions(context: Context) -> dict[tuple[str, int], int] | None:
    """The last compacted queue offset of each queue; None if no file says it: CC01 reports a damaged one.

    A broker reads the .bak if the file is missing.
    """
    try:
        both = _position_files(context)
        texts = (read_or_none(each if each.exists() else None) for each in both)
        loaded = config_json.load_with_bak(both[0].name, *texts)
        return compaction.positions(loaded.document) if loaded.source in ("file", "bak") else None
    except (FormatError, UnreadableError):
        return None


def _position_files(context: Context) -> tuple[Path, Path]:
    assert context.layout.root is not None
    path = context.layout.root / "compaction/position-checkpoint"
    return path, path.with_name(f"{path.name}.bak")


def _without_positions(context: Context) -> Iterator[Finding]:
    """A note if both files are gone, which a broker writes when it stops: it compacts all again."""
    path, bak = _position_files(context)
    if not (path.exists() or bak.exists()):
        found = finding("CC01", context.name(path), reason="it is missing")
        problem = replace(found.problem, severity="note", repair=None)
        message = "compaction/position-checkpoint is missing: which messages were compacted is not known"
        yield replace(found, problem=problem, message=message)


class _Queue:
    """One queue: `kept` is what its compaction log has, `last` the last compacted queue offset.

    If that is not known (None), all may be compacted, and no message of the compaction log is too much.
    Messages before `dispatched_to` in the commit log were dispatched, and are not dispatched again; a start
    dispatches later ones that are behind the end of the compaction log. None: that is not known.
    """

    def __init__(self, context: Context, kept: pa.Table, last: int | None, dispatched_to: int | None) -> None:
        self._context = context
        self._kept = kept
        self._dispatched_to = dispatched_to
        self._offsets: Array = kept["queue_offset"].to_numpy()
        self._is_known = last is not None
        self._end = int(self._offsets[-1]) if len(self._offsets) else -1
        self._last = last if last is not None else self._end if len(self._offsets) else _ALL
        self._again_from = _ALL
        self._newest = pa.table({"key": pa.array([], pa.string()), "newest": pa.array([], pa.int64())})
        self._first: int | None = None
        self._lacking: list[Array] = []
        self._differing: list[Array] = []

    def findings(self, selection: Selection, path: str, place: dict[str, object]) -> Iterator[Finding]:
        """Compare with the messages of the queue in the commit log."""
        parts: list[pa.Table] = []
        for batch in message_batches(self._context.store, selection, columns=_COLUMNS):
            parts.append(self._take(pa.Table.from_batches([batch])))
            if sum(part.num_rows for part in parts) > _MERGED_ROWS:
                self._merge(parts)
                parts.clear()
        self._merge(parts)
        if self._first is None:
            return
        newest = self._newest["newest"].to_numpy()
        expected = newest[newest % 2 == 1] // 2
        lacking = np.concatenate([*self._lacking, np.setdiff1d(expected, self._offsets)])
        lacking = lacking[lacking < self._again_from]
        compacted = self._offsets[(self._offsets <= self._last) & (self._offsets >= self._first)]
        superseded = np.setdiff1d(compacted, expected) if self._is_known else compacted[:0]
        differing = np.concatenate([np.zeros(0, np.int64), *self._differing])
        for code, offsets, reason in (
            ("CC03", lacking, "the compaction log lacks messages that it must keep"),
            ("CC03", superseded, "the compaction log keeps messages that later ones replace"),
            ("CC05", differing, "fields differ"),
        ):
            if len(offsets):
                first = np.sort(offsets)[:_SHOWN].tolist()
                found = finding(
                    code, path, None, None, **place, messages=len(offsets), queue_offsets=first, reason=reason
                )
                text = f"{reason}: {len(offsets)}, the first at queue offset {first[0]}"
                yield replace(found, message=text) if code == "CC03" else found

    def _take(self, source: pa.Table) -> pa.Table:
        """Compare some messages; return the keys that a compaction has seen, with the newest offset."""
        offsets: Array = source["queue_offset"].to_numpy()
        if not len(offsets):
            return self._newest.slice(0, 0)
        self._first = int(offsets.min()) if self._first is None else min(self._first, int(offsets.min()))
        is_behind = offsets > self._end
        late = offsets > self._last
        if self._dispatched_to is None:
            late &= ~is_behind
        else:
            again = offsets[is_behind & (source["physical_offset"].to_numpy() >= self._dispatched_to)]
            self._again_from = int(again.min(initial=self._again_from))
        self._lacking.append(np.setdiff1d(offsets[late], self._offsets))
        self._compare(source, offsets)
        rows = source.filter(pa.array(offsets <= self._last))
        key = pc.binary_join(rows["keys"].combine_chunks(), " ")
        has_body = pc.cast(pc.greater(rows["body_length"], 0), pa.int64())
        marked = pc.add(pc.multiply(rows["queue_offset"], 2), has_body)
        seen = pa.table({"key": key, "newest": marked})
        return _newest_of(seen.filter(pc.greater(pc.utf8_length(seen["key"]), 0)))

    def _merge(self, parts: list[pa.Table]) -> None:
        self._newest = _newest_of(pa.concat_tables([self._newest, *parts]))

    def _compare(self, source: pa.Table, offsets: Array) -> None:
        """The fields of messages that both have."""
        at = np.searchsorted(self._offsets, offsets)
        both = np.zeros(len(offsets), bool)
        inside = at < len(self._offsets)
        both[inside] = self._offsets[at[inside]] == offsets[inside]
        mine, theirs = source.filter(pa.array(both)), self._kept.take(pa.array(at[both]))
        differs = np.zeros(int(both.sum()), bool)
        for name in _COMPARED:
            equal = pc.fill_null(pc.equal(mine[name], theirs[name]), False)
            nulls = pc.and_(pc.is_null(mine[name]), pc.is_null(theirs[name]))
            differs |= ~pc.or_(equal, nulls).to_numpy()
        self._differing.append(offsets[both][differs])


def _newest_of(seen: pa.Table) -> pa.Table:
    """The largest number of each key."""
    found = seen.group_by("key").aggregate([("newest", "max")])
    return pa.table({"key": found["key"], "newest": found["newest_max"]})
