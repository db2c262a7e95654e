"""Batches of messages as lines for `dump` and `tail`, identical to the text of single rows.

The libraries are loaded when the first lines are made.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any, Literal

from rmqtool.formats.body import BODY_LIMIT
from rmqtool.message.cells import TextColumns, TextLines
from rmqtool.message.rows import RowFormat
from rmqtool.read.store import Store

if TYPE_CHECKING:
    from rmqtool.message.column_arrays import BodyKind
    from rmqtool.report.export.columns import BodyPart

LineFormat = Literal["jsonl", "csv"]
_OF_BODIES = frozenset({"body", "body_encoding", "status"})


def can_be_lines(store: Store, names: Sequence[str] | None, form: RowFormat) -> bool:
    """Whether batches give the same text as rows: no parts of fields, no repeated name, default bodies.

    Args:
        store: the store; the names of its files must be valid Unicode, because `file` is text.
        names: the requested columns; None is all that have a value.
        form: how messages become rows.
    """
    wanted = names or ()
    is_usual = form.body in ("text", "none") and form.body_limit == BODY_LIMIT
    if not is_usual or (names is not None and not names) or any("." in name for name in wanted):
        return False
    return len(set(wanted)) == len(wanted) and all(
        _is_text(store.layout.relative(file.path)) for file in store.layout.commit_log
    )


def _is_text(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


class LineMaker:
    """Makes lines of batches.

    Args:
        names: the columns, in the requested order; None is all that have a value.
        form: how messages become rows; see `can_be_lines`.
        format: format of the lines.
        more: columns of the caller; without `names` they are the last ones.
        first: columns of the caller before those of a message, only without `names`.

    Attributes:
        reads: columns that a batch must have.
        body: whether its bodies must be unpacked, see `message_batches`.
    """

    def __init__(
        self, names: Sequence[str] | None, form: RowFormat, format: LineFormat, more: Sequence[str] = (),
        first: Sequence[str] = (),
    ) -> None:  # fmt: skip
        from rmqtool.report.export.columns import ColumnPlan
        from rmqtool.report.export.text import TextForm, csv_lines, json_lines

        self._form = form
        of_message = None if names is None else [name for name in names if name not in more]
        body: BodyPart = "none" if form.body == "none" else "plain"
        self._plan = ColumnPlan.of(of_message, body, format, as_rows=True)
        shown = (*first, *self._plan.names, *more) if names is None else tuple(names)
        self._text = TextForm(shown, form.tz, shows_nulls=names is not None)
        self._make = json_lines if format == "jsonl" else csv_lines
        self.reads = self._plan.reads
        unpacks = form.body != "none" and not _OF_BODIES.isdisjoint(self.reads)
        self.body: BodyKind = "plain" if unpacks else "stored"

    def lines(self, store: Store, batch: Any, more: Mapping[str, Any] | None = None) -> TextLines:
        """The lines of a batch of this store, with the values of the caller's columns as Arrow arrays."""
        return TextLines(memoryview(self._make(self._complete(store, batch, more), self._text)), len(batch))

    def _complete(self, store: Store, batch: Any, more: Mapping[str, Any] | None = None) -> Any:
        from rmqtool.report.export.records import LogBytes
        from rmqtool.report.export.system import SystemColumn

        with closing(LogBytes(store)) as log:
            meaning = SystemColumn(store, self._form.tz, bodies=self._form.body != "none")
            complete = self._plan.complete(batch, log, meaning)
        for name, values in (more or {}).items():
            complete = complete.append_column(name, values)
        return complete


class CellMaker(LineMaker):
    """Makes columns of texts of batches: what a table shows where nothing is cut.

    Args:
        names: the columns of the table, in order.
        form: how messages become rows; see `can_be_lines`.
        block_rows: how many rows a block has; the rows that are left over wait for the next batch.
        more: columns of the caller, among `names`.
    """

    def __init__(
        self, names: Sequence[str], form: RowFormat, block_rows: int, more: Sequence[str] = ()
    ) -> None:
        super().__init__(names, form, "csv", more)
        self.names = tuple(names)
        self.block_rows = block_rows
        self._rest: list[Any] = []

    @property
    def left(self) -> int:
        """How many rows are left over."""
        return len(self._rest[0]) if self._rest else 0

    def blocks(
        self, store: Store, batch: Any, more: Mapping[str, Any] | None = None
    ) -> Iterator[TextColumns]:
        """The complete blocks of a batch and of what was left over, with the columns of the caller."""
        import pyarrow as pa

        from rmqtool.report.export.text import plain_texts

        complete = self._complete(store, batch, more)
        cells = [plain_texts(complete, name, self._text) for name in self.names]
        if self._rest:
            cells = [pa.concat_arrays(parts) for parts in zip(self._rest, cells, strict=True)]
        whole = len(cells[0]) // self.block_rows * self.block_rows
        if whole:
            yield TextColumns([column.slice(0, whole) for column in cells], whole, self.block_rows)
        self._rest = [column.slice(whole) for column in cells]

    def last(self) -> Iterator[TextColumns]:
        """What is left over at the end."""
        if self.left:
            yield TextColumns(self._rest, self.left, self.block_rows)

    def forget(self) -> None:
        """Drop what is left over: its rows are shown in another way."""
        self._rest = []
