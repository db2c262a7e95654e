"""Bytes of records, or of parts of them, read from the log a second time, as a column."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from rmqtool.errors import UnreadableError
from rmqtool.formats import message as form
from rmqtool.read.store import Store
from rmqtool.storage.buffers import Array
from rmqtool.storage.layout import StoreFile
from rmqtool.storage.source import ByteSource, open_source

_GAP_BYTES = 64 << 10  # most bytes between two requested ranges that are read together
_RUN_BYTES = 8 << 20  # most bytes of ranges that are read together; a longer range is read alone


def body_ranges(physical_offset: Array, sys_flag: Array, body_length: Array) -> tuple[Array, Array]:
    """(physical offsets, lengths) of the stored bodies of records, shapes (rows,)."""
    growth = form.HOST_V6_SIZE - form.HOST_V4_SIZE
    heads = np.full(len(sys_flag), form.HEAD_SIZE_V4, np.int64)
    for bit in (form.BORN_HOST_V6, form.STORE_HOST_V6):
        heads += growth * ((sys_flag & bit) != 0)
    return physical_offset + heads, np.maximum(body_length.astype(np.int64), 0)


class LogBytes:
    """Reads ranges of a store's log; keeps one file open. The caller closes it."""

    def __init__(self, store: Store) -> None:
        self._log = store.commit_log
        self._file: StoreFile | None = None
        self._source: ByteSource | None = None

    def close(self) -> None:
        """Close the file."""
        if self._source is not None:
            self._source.close()
        self._source = self._file = None

    def column(self, starts: Array, lengths: Array) -> pa.Array:
        """The bytes [starts, starts + lengths) as a binary column; `starts` are ascending physical offsets.

        Raises:
            UnreadableError: the bytes cannot be read any more.
        """
        ends = starts + lengths
        pieces = []
        first = 0
        while first < len(starts):
            file = self._open(int(starts[first]))
            last = first + 1
            # The last range that is worth reading together with the first.
            stop = int(np.searchsorted(starts, min(int(starts[first]) + _RUN_BYTES, file.end)))
            gaps = np.flatnonzero(starts[last:stop] - ends[first : max(stop - 1, first)] > _GAP_BYTES)
            last = last + int(gaps[0]) if len(gaps) else max(stop, last)
            pieces.append(self._run(file, starts[first:last], ends[first:last]))
            first = last
        return pa.concat_arrays(pieces) if pieces else pa.array([], pa.binary())

    def _run(self, file: StoreFile, starts: Array, ends: Array) -> pa.Array:
        base, length = int(starts[0]), int(ends[-1] - starts[0])
        assert self._source is not None
        data = self._source.window(base - file.file_from_offset, length)
        if len(data) < length:
            raise UnreadableError("the file has become shorter", path=file.path, physical_offset=base)
        # Requested ranges and gaps alternate; take every other one.
        edges = np.empty(2 * len(starts), np.int32)
        edges[0::2], edges[1::2] = starts - base, ends - base
        buffers = [None, pa.py_buffer(edges), pa.py_buffer(np.ascontiguousarray(data))]
        parts = pa.Array.from_buffers(pa.binary(), len(edges) - 1, buffers)
        return parts.take(pa.array(np.arange(0, len(edges) - 1, 2)))

    def _open(self, physical_offset: int) -> StoreFile:
        file = self._file
        if file is None or not file.file_from_offset <= physical_offset < file.end:
            self.close()
            file = self._log.file_of(physical_offset)
            if file is None:
                raise UnreadableError("no file holds this offset", physical_offset=physical_offset)
            try:
                self._source = open_source(file.path)
            except OSError as error:
                raise UnreadableError(f"cannot read: {error}", path=file.path) from error
            self._file = file
        return file
