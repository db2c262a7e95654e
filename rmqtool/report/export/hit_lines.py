"""Batches of hits of a look-up as lines, identical to the text of `lookup_request.hit_row`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from rmqtool.message.cells import TextLines
from rmqtool.message.rows import RowFormat
from rmqtool.read.lookup_request import FIELDS, OF_HITS
from rmqtool.read.store import Store
from rmqtool.report.export.lines import LineFormat, LineMaker, can_be_lines

if TYPE_CHECKING:
    from rmqtool.read.hit_batches import HitBatch


def hits_can_be_lines(store: Store, names: Sequence[str] | None, form: RowFormat) -> bool:
    """Whether batches give the same text as rows: as `can_be_lines`, with a column of the message."""
    return can_be_lines(store, names, form) and (names is None or not set(names).issubset(OF_HITS))


class HitLines:
    """Makes lines of hits; see `hits_can_be_lines`.

    Args:
        store: the store.
        names: the columns, in the requested order; None is all that have a value.
        form: how messages become rows.
        format: format of the lines.
        several: whether `asked` says which names a message has.
    """

    def __init__(
        self, store: Store, names: Sequence[str] | None, form: RowFormat, format: LineFormat, *,
        several: bool,
    ) -> None:  # fmt: skip
        self._store = store
        self._several = several
        if names is None and format == "csv":
            names = FIELDS
        shown: Sequence[str] = ("found_by", "asked") if several else ("found_by",)
        self._more = shown if names is None else [name for name in names if name in OF_HITS]
        self._maker = LineMaker(names, form, format, self._more)

    def lines(self, batch: HitBatch) -> Iterator[TextLines | int]:
        """Lines, and the physical offsets of messages that report damage: their rows are made one by one."""
        from rmqtool.read.messages import batches_of_frames

        row = 0
        made = batches_of_frames(
            self._store, batch.frames, batch.file, columns=self._maker.reads, body=self._maker.body
        )
        for each in made:
            count = each.batch.num_rows
            damaged = {found.physical_offset for found in each.findings}
            first = 0
            if damaged:
                offsets = batch.frames.rows["physical_offset"][row : row + count].tolist()
                for place, offset in enumerate(offsets):
                    if offset in damaged:
                        yield from self._written(each.batch, batch, row, first, place)
                        yield offset
                        first = place + 1
            yield from self._written(each.batch, batch, row, first, count)
            row += count

    def _written(self, made: Any, batch: HitBatch, row: int, first: int, stop: int) -> Iterator[TextLines]:
        """The rows [first, stop) of a batch of columns whose first row is hit `row`."""
        if first == stop:
            return
        hits = batch.part(row + first, row + stop)
        more = {name: self._column(name, hits) for name in self._more}
        yield self._maker.lines(self._store, made.slice(first, stop - first), more)

    def _column(self, name: str, hits: HitBatch) -> Any:
        import pyarrow as pa

        count = len(hits.frames.rows)
        if name == "found_by":
            return pa.array(["index"], pa.string()).take(pa.nulls(count, pa.int32()).fill_null(0))
        if name == "asked" and self._several:
            names = pa.array(hits.names, pa.string())
            return pa.ListArray.from_arrays(pa.array(hits.stops, pa.int32()), names)
        return pa.nulls(count, pa.string())
