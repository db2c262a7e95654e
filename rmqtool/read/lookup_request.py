"""A look-up: names or places of one kind, their hits, and the hits as rows."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, Literal, NamedTuple

from rmqtool.errors import UsageError
from rmqtool.findings import Progress
from rmqtool.formats import properties
from rmqtool.formats.filler import is_filler
from rmqtool.message.columns import NAMES
from rmqtool.message.rows import Row, RowFormat, message_row, spell_body
from rmqtool.read.by_key import BeforeScan, KeySearch
from rmqtool.read.hits import Hit, ScanMode, SearchReport
from rmqtool.read.selection import Selection
from rmqtool.read.store import Store

if TYPE_CHECKING:
    from rmqtool.formats.batch import BatchItem
    from rmqtool.read.by_position import Note
    from rmqtool.read.hit_batches import HitBatch

OF_HITS = ("found_by", "matched", "inside", "asked")
"""Columns that only hits have."""
FIELDS = (*NAMES, *OF_HITS)
TABLE_FIELDS = (
    "found_by", "physical_offset", "topic", "queue_id", "queue_offset", "store_time", "tags", "keys",
    "status", "body",
)  # fmt: skip
"""The body is last: a table pads every other column to its longest cell."""


LookupKind = Literal["any", "key", "uniq_key", "tag", "msg_id", "offset", "queue_offset"]


class Request(NamedTuple):
    """The names or offsets to look up, and the conditions that hits must meet.

    Attributes:
        kind: what the names or offsets are.
        names: keys, unique keys, tags or message ids; of the kind `any` all of these except tags.
        offsets: physical offsets, or queue offsets in the one queue that the selection names.
        selection: what else must hold; its limit counts hits.
        scan: when the log is scanned.
    """

    kind: LookupKind
    names: tuple[str, ...] = ()
    offsets: tuple[int, ...] = ()
    selection: Selection = Selection()
    scan: ScanMode = "auto"

    def hits(
        self,
        store: Store,
        looked: SearchReport | None = None,
        progress: Progress | None = None,
        before_scan: BeforeScan | None = None,
        note: Note | None = None,
    ) -> Iterator[Hit]:
        """The hits; see `lookup` for the order and what is raised."""
        selection = self.selection
        if self.kind in ("key", "uniq_key", "tag"):
            yield from self._search(store, looked, progress, before_scan).hits()
            return
        found = self._by_place(store, looked, progress, before_scan, note)
        loose = replace(selection, limit=None)
        # The search for keys has judged the messages inside batch records: their tags are their own.
        matching = (
            hit._replace(found_by="filler") if is_filler(hit.stored.message) else hit
            for hit in found
            if hit.found_by == "batch" or loose.matches(hit.stored.message, hit.stored.physical_offset)
        )
        yield from islice(matching, selection.limit)

    def hits_and_batches(
        self,
        store: Store,
        looked: SearchReport | None = None,
        progress: Progress | None = None,
        before_scan: BeforeScan | None = None,
        note: Note | None = None,
    ) -> Iterator[Hit | HitBatch]:
        """As `hits`, but thousands of hits through the index come as batches, each valid until the next."""
        if self.kind not in ("key", "uniq_key", "tag"):
            return self.hits(store, looked, progress, before_scan, note)
        return self._search(store, looked, progress, before_scan).hits_and_batches()

    def _search(
        self,
        store: Store,
        looked: SearchReport | None,
        progress: Progress | None,
        before_scan: BeforeScan | None,
    ) -> KeySearch:
        assert self.kind in ("key", "uniq_key", "tag")
        return KeySearch.of(
            store, self.names, self.selection, kind=self.kind, scan=self.scan, looked=looked,
            progress=progress, before_scan=before_scan,
        )  # fmt: skip

    def _by_place(
        self,
        store: Store,
        looked: SearchReport | None,
        progress: Progress | None,
        before_scan: BeforeScan | None,
        note: Note | None,
    ) -> Iterator[Hit]:
        from rmqtool.read.by_position import find_any, find_by_msg_id, find_by_offset, find_by_queue_offset

        loose = replace(self.selection, limit=None)
        if self.kind == "any":
            yield from find_any(
                store, self.names, loose, scan=self.scan, looked=looked, progress=progress,
                before_scan=before_scan, note=note,
            )  # fmt: skip
            return
        for msg_id in self.names:
            found = find_by_msg_id(
                store, msg_id, loose, scan=self.scan, looked=looked, progress=progress, note=note
            )
            yield from (hit._replace(names=(msg_id,)) for hit in found)
        if self.kind == "queue_offset":
            (topic,), (queue_id,) = loose.topics, loose.queues
            yield from find_by_queue_offset(
                store, topic, queue_id, self.offsets, scan=self.scan, looked=looked, progress=progress,
                before_scan=before_scan,
            )  # fmt: skip
            return
        for offset in self.offsets:
            yield from (hit._replace(names=(str(offset),)) for hit in find_by_offset(store, offset, note))

    @property
    def terms(self) -> tuple[str, ...]:
        """Everything that is looked up, as text."""
        return (*self.names, *map(str, self.offsets))

    @property
    def has_several(self) -> bool:
        """Whether more than one name or offset is looked up."""
        return len(self.names) + len(self.offsets) > 1


def lookup(
    store: Store,
    wanted: str | int | Collection[str | int],
    selection: Selection | None = None,
    *,
    kind: LookupKind = "key",
    scan: ScanMode = "auto",
    looked: SearchReport | None = None,
    progress: Progress | None = None,
) -> Iterator[Hit]:
    """The messages that have one of the names, or lie at one of the offsets, each once.

    Messages with names come in the log's order, followed by messages inside batch records and by those that
    the index should have known; messages with ids or at offsets come in the order of `wanted`.

    Args:
        store: the store.
        wanted: one name or offset, or several that are looked up together.
        selection: what else must hold. For names, topics narrow the search, because the index knows a name
            only together with its topic: without topics every topic is tried. For `queue_offset` it names one
            topic and one queue.
        kind: `key` finds keys and unique keys, `uniq_key` only these, `tag` whole values of TAGS, `msg_id`
            offset message ids and unique keys, `any` what `msg_id` and `key` find; `offset` takes physical
            offsets, `queue_offset` those of one queue.
        scan: `auto` scans what the index does not cover, and the whole log for names that were not found,
            but nothing for topics that the store does not have; `always` scans the whole log at once; `never`
            scans nothing, and opens no batch record.
        looked: records what was searched.
        progress: called with the bytes of the log that were scanned.

    Raises:
        UnsupportedStoreError: it is not known which of several DLedger logs it is.
        UnreadableError: the log cannot be read where it is scanned.
        UsageError: `queue_offset` without one topic and one queue.
    """
    chosen = selection or Selection()
    if kind == "queue_offset" and (len(chosen.topics), len(chosen.queues)) != (1, 1):
        raise UsageError("a queue offset needs a selection with one topic and one queue")
    values = (wanted,) if isinstance(wanted, str | int) else tuple(wanted)
    names = tuple(value for value in values if isinstance(value, str))
    offsets = tuple(value for value in values if isinstance(value, int))
    if names if kind in ("offset", "queue_offset") else offsets:
        raise UsageError(f"{kind} takes {'offsets' if names else 'texts'}")
    return Request(kind, names, offsets, chosen, scan).hits(store, looked, progress)


def table_fields(request: Request) -> tuple[str, ...]:
    """The columns of a table of the hits of a request."""
    if request.kind != "any":
        return TABLE_FIELDS
    asked = ("asked",) if request.has_several else ()
    return (TABLE_FIELDS[0], "matched", *asked, *TABLE_FIELDS[1:])


_COLUMNS = {
    "any": "keys", "key": "keys", "tag": "tags", "offset": "physical_offset", "queue_offset": "queue_offset",
}  # fmt: skip
"""The column of a table that shows what was looked up, by the kind of look-up."""


def typed_values(request: Request) -> dict[str, str]:
    """The only name or offset that is looked up, by the column of a table that shows it; else empty."""
    column = _COLUMNS.get(request.kind)
    return {} if column is None or request.has_several else {column: request.terms[0]}


def hit_row(hit: Hit, form: RowFormat, request: Request) -> Row:
    """The row of a hit: that of its message, how it was found, and of several names for which one.

    Of a batch record `inside` has the messages that were found in it. For a request of the kind `any`,
    `matched` says of each of the names in `asked` (or of the only one) what it is to the message.
    """
    stored = hit.stored
    row = message_row(stored.message, stored.physical_offset, stored.file, form) | {"found_by": hit.found_by}
    if hit.inside:
        decoded = properties.decode(stored.message.properties_bytes)
        base = decoded.get(properties.INNER_BASE, "")
        first = int(base) if base.isascii() and base.isdecimal() else stored.message.queue_offset
        row["inside"] = [_inside_row(item, first + number, form) for number, item in hit.inside]
    if request.kind == "any":
        row["matched"] = [matched_as(hit, name) for name in hit.names]
    return row | {"asked": list(hit.names)} if request.has_several else row


def matched_as(hit: Hit, name: str) -> Literal["msg_id", "uniq_key", "key"]:
    """What a name that led to a hit is to its message, or to one inside its batch."""
    if hit.found_by == "id":
        return "msg_id"
    held = [item.properties_bytes for _, item in hit.inside] or [hit.stored.message.properties_bytes]
    unique = {properties.decode(data).get(properties.UNIQ_KEY) for data in held}
    return "uniq_key" if name in unique else "key"


def _inside_row(item: BatchItem, queue_offset: int, form: RowFormat) -> Row:
    decoded = properties.decode(item.properties_bytes)
    body, encoding = spell_body(item.body, form.body)
    return {
        "queue_offset": queue_offset,
        "tags": decoded.get(properties.TAGS),
        "keys": properties.keys_of(decoded),
        "uniq_key": decoded.get(properties.UNIQ_KEY),
        "body_length": len(item.body),
        "body": body,
        "body_encoding": encoding,
    }
