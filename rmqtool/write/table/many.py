"""Lists of messages into the log: as columns, with one result for each message, as `put` gives it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import repeat
from typing import TYPE_CHECKING, overload

from rmqtool.storage.buffers import Array
from rmqtool.write import encode
from rmqtool.write.encode import Batch
from rmqtool.write.put_result import PutResult, PutResults
from rmqtool.write.records.message import NewMessage
from rmqtool.write.records.wrong_values import FAILURES
from rmqtool.write.table.columns import Columns
from rmqtool.write.table.messages import columns_of
from rmqtool.write.table.pipe import Pipe, Tally
from rmqtool.write.table.rows import RowAppender

if TYPE_CHECKING:
    from rmqtool.write.store_writer import StoreWriter

_FIELDS = ("physical_offset", "queue_offset", "size", "queue_id", "store_timestamp", "store_host")
_new = tuple.__new__  # the constructor of a named tuple takes three times as long


class ManyAppender:
    """Appends lists of messages to the log of one writer."""

    def __init__(self, writer: StoreWriter) -> None:
        self._writer = writer
        self._rows = RowAppender(writer)
        self._pipe = Pipe(writer, Tally(), ahead=False)
        encode.load_kernels()

    def append(self, messages: Sequence[NewMessage], results: PutResults) -> bool:
        """Store at least one message. The caller holds the put lock.

        The results are added to `results` as soon as their messages are in the log.

        Returns:
            False if the messages have no columns, because values have wrong types; nothing is stored then.

        Raises: as `put`, for the first message that cannot be stored; those before it are.
        """
        try:
            columns = columns_of(messages)
        except FAILURES:
            return False
        refused: Exception | None = None

        def put(row: int, column: str) -> None:
            nonlocal refused
            try:
                results.add((self._writer.put(messages[row]),))
            except Exception as error:
                refused = error
                raise

        def stored(first: int, stop: int, batch: Batch) -> None:
            results.add(_Results(columns, batch, first, stop))

        try:
            self._pipe.reset()
            self._rows.append(columns, self._pipe, put, plain=False, stored=stored)
        except BaseException as error:
            if error is not refused:  # by `put`, which has noted what it was interrupted in
                self._writer.interrupted(error)
            raise
        return True


class _Results(Sequence[PutResult]):
    """The results of the plain rows [first, stop) of a batch."""

    def __init__(self, columns: Columns, batch: Batch, first: int, stop: int) -> None:
        rows = batch.rows[first:stop]
        self._values = [rows[name].copy() for name in _FIELDS]
        self._topics: Array = columns.topics[first:stop]
        self._names, self._hosts = columns.topic_values, batch.hosts

    def __len__(self) -> int:
        return len(self._topics)

    def __iter__(self) -> Iterator[PutResult]:
        offsets, queue_offsets, sizes, queue_ids, times, hosts = (each.tolist() for each in self._values)
        topics = map(self._names.__getitem__, self._topics.tolist())
        values = zip(
            offsets, queue_offsets, sizes, topics, queue_ids, times, zip(offsets, strict=True),
            map(self._hosts.__getitem__, hosts), repeat(False), strict=False,
        )  # fmt: skip
        return map(_new, repeat(PutResult), values)

    @overload
    def __getitem__(self, place: int) -> PutResult: ...

    @overload
    def __getitem__(self, place: slice) -> list[PutResult]: ...

    def __getitem__(self, place: int | slice) -> PutResult | list[PutResult]:
        if isinstance(place, slice):
            return list(self)[place]
        offset, queue_offset, size, queue_id, time, host = (int(each[place]) for each in self._values)
        return PutResult(offset, queue_offset, size, self._names[self._topics[place]], queue_id, time,
                         (offset,), self._hosts[host], False)  # fmt: skip
