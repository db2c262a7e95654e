"""The reader of a stream: where it starts, how far a batch goes, and what its tasks read.

A stream counts by physical offsets (`streamOffsets=commitlog`, the default): a batch is a range of the
log, and every record of the log is read once. Or by queue offsets (`queue`, the default where options
name queues): a batch is a range of each queue, as with Kafka, and only what has a unit is read.

Either way a batch is a function of its two offsets, so that one which Spark runs again after a restart
has the same rows. The end of the log is that of the last whole record whose CRC is right: what a
broker is writing just now belongs to a later batch.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from rmqtool.errors import UsageError
from rmqtool.spark.errors import explain_errors
from rmqtool.spark.partitions import Piece
from rmqtool.spark.schema import requested_columns
from rmqtool.spark.stream_batches import Limits, LogStream, QueueStream

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from rmqtool.spark.options import SourceOptions

_BATCH_ONLY = ("ending", "until", "to_offset")


class StoreStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads what stores get, in micro-batches."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        if options.table != "messages":
            raise UsageError("a stream reads messages: option table is for batch reads")
        for name in _BATCH_ONLY:
            if getattr(options, name) is not None:
                raise UsageError(
                    "a stream has no end: options endingOffsets, endingTimestamp and endingPhysicalOffset"
                    " are for batch reads"
                )
        self._options = options
        self._schema = schema
        self._columns = requested_columns(schema, options)
        self._stream = (QueueStream if _counts_by_queue(options) else LogStream)(options)
        self._target: dict[str, Any] | None = None
        self._last_batch_s = time.monotonic()

    def initialOffset(self) -> dict[str, Any]:
        """Return the start of the first batch: by default the end of the stores, as with Kafka."""
        with explain_errors():
            return self._stream.first()

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return the limit of a batch; if both limits are set, `latestOffset` applies the other one too."""
        if self._options.max_offsets_per_trigger is not None:
            return ReadMaxRows(self._options.max_offsets_per_trigger)
        if self._options.max_bytes_per_trigger is not None:
            return ReadMaxBytes(self._options.max_bytes_per_trigger)
        return ReadAllAvailable()

    def latestOffset(
        self, start: dict[str, Any] | None = None, limit: ReadLimit | None = None
    ) -> dict[str, Any]:
        """Return the end of a batch that begins at `start`; `start` itself if nothing is new.

        Both are None in versions of Spark without admission control: everything there is.
        """
        with explain_errors():
            ends = self._stream.ends() if self._target is None else self._target
            if start is None:
                return ends
            if self._waits(start, ends):
                return start
            found = self._stream.cut(start, ends, self._limits(limit))
            if found != start:
                self._last_batch_s = time.monotonic()
            return found

    def _waits(self, start: dict[str, Any], ends: dict[str, Any]) -> bool:
        """Whether there is too little for a batch, and its time has not come yet, as with Kafka."""
        least, delay_ms = self._options.min_offsets_per_trigger, self._options.max_trigger_delay_ms
        if least is None or self._target is not None:
            return False
        if (time.monotonic() - self._last_batch_s) * 1000 >= delay_ms:
            return False
        return least > 1 and self._stream.cut(start, ends, Limits(least - 1)) == ends

    def _limits(self, limit: ReadLimit | None) -> Limits:
        if limit is None or isinstance(limit, ReadAllAvailable):
            return Limits()
        limits = Limits(self._options.max_offsets_per_trigger, self._options.max_bytes_per_trigger)
        if isinstance(limit, ReadMaxRows):
            limits = Limits(limit.max_rows, limits.size)
        elif isinstance(limit, ReadMaxBytes):
            limits = Limits(limits.rows, limit.max_bytes)
        return limits

    def reportLatestOffset(self) -> dict[str, Any]:
        """The end of what is there, for the progress that Spark shows."""
        with explain_errors():
            return self._stream.ends()

    def prepareForTriggerAvailableNow(self) -> None:
        """From now on nothing that comes later is read."""
        with explain_errors():
            self._target = self._stream.ends()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """The pieces of a batch."""
        with explain_errors():
            return [InputPartition(piece) for piece in self._stream.pieces(start, end)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one piece."""
        piece = partition.value
        if not isinstance(piece, Piece):
            return iter(())
        from rmqtool.spark.task import read_piece

        return read_piece(piece, self._options, self._columns, self._schema)


def _counts_by_queue(options: SourceOptions) -> bool:
    if options.stream_offsets is not None:
        return options.stream_offsets == "queue"
    return bool(options.assign) or (options.starting is not None and options.starting.names_queues)
