"""Batches of hits of a look-up as lines or cells, identical to the text of `lookup_request.hit_row`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from rmqtool.message.cells import TextColumns, TextLines
from rmqtool.message.rows import RowFormat
from rmqtool.read.hits import Hit
from rmqtool.read.lookup_request import FIELDS, OF_HITS, Request, table_fields
from rmqtool.read.store import Store
from rmqtool.report.export.lines import CellMaker, LineFormat, LineMaker, can_be_lines

if TYPE_CHECKING:
    from rmqtool.read.hit_batches import HitBatch


def hit_maker(
    store: Store, names: Sequence[str] | None, form: RowFormat, request: Request, *,
    line_format: LineFormat | None, block_rows: int | None,
) -> HitMaker | None:  # fmt: skip
    """What makes the output of batches of hits; None if every hit needs its own row.

    Batches give the same text as rows under the conditions of `can_be_lines`, and with a column of the
    message.

    Args:
        store: the store.
        names: the requested columns; None is the default.
        form: how messages become rows.
        request: the look-up.
        line_format: the format of lines; None: the output takes none.
        block_rows: how many rows a block of a table has; None: the output takes no cells.
    """
    if not can_be_lines(store, names, form) or (names is not None and set(names).issubset(OF_HITS)):
        return None
    if line_format is not None:
        return HitLines(store, names, form, line_format, several=request.has_several)
    if block_rows is not None:
        shown = table_fields(request) if names is None else names
        return HitCells(store, shown, form, block_rows, several=request.has_several)
    return None


class HitMaker(ABC):
    """Makes lines or cells of hits. Hits that it returns need a row of their own.

    A message that reports damage does.
    """

    def __init__(self, store: Store, *, several: bool) -> None:
        self._store = store
        self._several = several
        self._made: LineMaker | None = None

    @abstractmethod
    def _maker(self) -> LineMaker:
        """What makes the columns of the message."""

    @abstractmethod
    def _written(self, columns: Any, hits: HitBatch) -> Iterator[Hit | TextLines | TextColumns]:
        """The rows of hits, all without damage, with the columns of their messages."""

    def batch(self, batch: HitBatch) -> Iterator[Hit | TextLines | TextColumns]:
        """The rows of a batch."""
        from rmqtool.read.messages import batches_of_frames

        if self._made is None:
            self._made = self._maker()
        reads, body = self._made.reads, self._made.body
        row = 0
        for each in batches_of_frames(self._store, batch.frames, batch.file, columns=reads, body=body):
            stop = row + each.batch.num_rows
            first = row
            damaged = {found.physical_offset for found in each.findings}
            if damaged:
                offsets = batch.frames.rows["physical_offset"][row:stop].tolist()
                for place, offset in enumerate(offsets, row):
                    if offset in damaged:
                        yield from self._part(each.batch, batch, row, first, place)
                        yield from self.single(batch.hit(self._store, offset))
                        first = place + 1
            yield from self._part(each.batch, batch, row, first, stop)
            row = stop

    def _part(
        self, columns: Any, batch: HitBatch, row: int, first: int, stop: int
    ) -> Iterator[Hit | TextLines | TextColumns]:
        """The rows [first, stop) of a batch; its row `row` is the first of `columns`."""
        if first < stop:
            yield from self._written(columns.slice(first - row, stop - first), batch.part(first, stop))

    def single(self, hit: Hit) -> Iterator[Hit]:
        """The rows that are still to be shown before a hit with its own row, and this hit."""
        yield hit

    def last(self) -> Iterator[TextColumns]:
        """The rows that are still to be shown at the end."""
        yield from ()

    def _column(self, name: str, hits: HitBatch) -> Any:
        """A column that only hits have."""
        import pyarrow as pa

        count = len(hits)
        if name == "found_by":
            return pa.array(["index"], pa.string()).take(pa.nulls(count, pa.int32()).fill_null(0))
        if name == "asked" and self._several:
            return pa.ListArray.from_arrays(pa.array(hits.stops), hits.table.array(hits.numbers))
        return pa.nulls(count, pa.string())


class HitLines(HitMaker):
    """Makes lines of hits; see `hit_maker`.

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
        super().__init__(store, several=several)
        if names is None and format == "csv":
            names = FIELDS
        shown: Sequence[str] = ("found_by", "asked") if several else ("found_by",)
        self._more = shown if names is None else [name for name in names if name in OF_HITS]
        self._given = names, form, format

    def _maker(self) -> LineMaker:
        return LineMaker(*self._given, self._more)

    def _written(self, columns: Any, hits: HitBatch) -> Iterator[TextLines]:
        assert self._made is not None
        more = {name: self._column(name, hits) for name in self._more}
        yield self._made.lines(self._store, columns, more)


class HitCells(HitMaker):
    """Makes cells of a table of hits, block by block; see `hit_maker`.

    The first block has rows, and so has every block with a hit that needs its own row.

    Args:
        store: the store.
        names: the columns of the table, in order.
        form: how messages become rows.
        block_rows: how many rows a block has.
        several: whether `asked` says which names a message has.
    """

    def __init__(
        self, store: Store, names: Sequence[str], form: RowFormat, block_rows: int, *, several: bool
    ) -> None:
        super().__init__(store, several=several)
        self._names, self._form, self._block_rows = names, form, block_rows
        self._more = [name for name in names if name in OF_HITS]
        self._rows = 0  # that were shown by themselves or in complete blocks
        self._rest: list[HitBatch] = []  # whose cells the maker keeps for the next block

    def _maker(self) -> CellMaker:
        return CellMaker(self._names, self._form, self._block_rows, self._more)

    def _written(self, columns: Any, hits: HitBatch) -> Iterator[Hit | TextColumns]:
        assert isinstance(self._made, CellMaker)
        if not self._rest:
            missing = -self._rows % self._block_rows or (0 if self._rows else self._block_rows)
            first = hits.part(0, min(missing, len(hits)))
            yield from self._hits(first)
            columns, hits = columns.slice(len(first)), hits.part(len(first), len(hits))
        if not len(hits):
            return
        more = {name: self._column(name, hits) for name in self._more}
        for block in self._made.blocks(self._store, columns, more):
            self._rows += block.count
            self._rest = []
            yield block
        left = self._made.left - sum(map(len, self._rest))
        if left:
            self._rest.append(hits.part(len(hits) - left, len(hits)).without_data())

    def _hits(self, hits: HitBatch) -> Iterator[Hit]:
        for offset in hits.frames.rows["physical_offset"].tolist():
            self._rows += 1
            yield hits.hit(self._store, offset)

    def single(self, hit: Hit) -> Iterator[Hit]:
        """See `HitMaker`."""
        rest, self._rest = self._rest, []
        if rest:
            assert isinstance(self._made, CellMaker)
            self._made.forget()
            for hits in rest:
                yield from self._hits(hits)
        self._rows += 1
        yield hit

    def last(self) -> Iterator[TextColumns]:
        """See `HitMaker`."""
        if isinstance(self._made, CellMaker):
            yield from self._made.last()
