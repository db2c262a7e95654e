"""What a follower reads in bulk, as lines of JSON: the text that the rows would have.

The libraries for it are loaded when there is first enough to read.
"""

from __future__ import annotations

from collections.abc import Sequence
from threading import Thread
from typing import TYPE_CHECKING, Any

from rmqtool.message.cells import TextLines
from rmqtool.message.rows import RowFormat
from rmqtool.report.tail.follower import BulkRound, Follower

if TYPE_CHECKING:
    from rmqtool.report.export.lines import LineMaker
    from rmqtool.report.tail.bulk import Bulk


class BulkLines:
    """Has a follower read in bulk, and makes lines of its record batches.

    Args:
        follower: the queues.
        form: how messages become rows; see `can_be_lines`.
        names: the columns, in the order asked for; None is all that say something.
        in_background: load in a thread, and go on one by one meanwhile: the first time on a machine
            kernels are compiled, which takes many seconds.
    """

    def __init__(
        self,
        follower: Follower,
        form: RowFormat,
        names: Sequence[str] | None,
        *,
        in_background: bool = False,
    ) -> None:
        self._follower = follower
        self._form = form
        self._names = names
        self._made: tuple[Bulk, LineMaker] | None = None
        self._error: Exception | None = None
        self._loading = Thread(target=self._warm, daemon=True) if in_background else None
        self._is_loading = False
        follower.bulk = self._round

    def _make(self) -> tuple[Bulk, LineMaker]:
        from rmqtool.report.export.lines import LineMaker
        from rmqtool.report.tail.bulk import Bulk

        maker = LineMaker(self._names, self._form, "jsonl")
        return Bulk(self._follower, maker.reads, maker.body), maker

    def _warm(self) -> None:
        try:
            made = self._make()
            for batch in made[0].warm():
                self._lines(batch, *made)
            self._made = made
        except Exception as error:  # raised again where somebody waits for it
            self._error = error

    def _round(self) -> BulkRound | None:
        if self._error is not None:
            raise self._error
        if self._made is None and self._loading is None:
            self._made = self._make()
        if self._made is not None:
            return self._made[0].round()
        if self._loading is not None and not self._is_loading:
            self._is_loading = True
            self._loading.start()
        return None

    def lines(self, batch: Any) -> TextLines:
        """The lines of a batch."""
        assert self._made is not None  # it has made the batch
        return self._lines(batch, *self._made)

    def _lines(self, batch: Any, bulk: Bulk, maker: LineMaker) -> TextLines:
        try:
            return maker.lines(bulk.store, batch)
        finally:
            bulk.store.close()
