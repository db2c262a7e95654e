"""Reads records at known places of a commit log file as rows, without the bytes between them.

The reading ends at the first place without a sound record of the expected size, stored offset and CRC: only a
scan can classify the bytes there.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from rmqtool.lazy_dataclass import dataclass
from rmqtool.log.frames import FRAME, Frames, numbers
from rmqtool.storage.buffers import Array
from rmqtool.storage.source import ByteSource

_GAP_MAX = 16 << 10  # most bytes between records that are read too, because that is cheaper than another read
_ROWS_MAX = 32 << 10


@dataclass(frozen=True, slots=True)
class PickedFrames(Frames):
    """Records that need not be adjacent in the log, with the index of each in `data`.

    `places` are the physical offsets of all records of the batch, ascending, `data_starts` their indices.
    """

    places: Array
    data_starts: Array

    def starts(self) -> Array:
        """Per row, the index of the record's first byte in `data`."""
        found: Array = self.data_starts[np.searchsorted(self.places, self.rows["physical_offset"])]
        return found


def pick(
    source: ByteSource, *, file_from_offset: int, offsets: Array, sizes: Array, crc: bool, window: int
) -> Iterator[PickedFrames]:
    """The records at these places, in batches; ends early at the first place without the expected record.

    Args:
        source: the file.
        file_from_offset: physical offset of its first byte.
        offsets: i8, physical offsets, ascending; the records are inside of the file and do not overlap.
        sizes: i8, their sizes in bytes.
        crc: check the CRC of bodies.
        window: approximate bytes read together; a record is always read as a whole.
    """
    first = 0
    while first < len(offsets):
        used = np.cumsum(_costs(offsets[first : first + _ROWS_MAX], sizes[first : first + _ROWS_MAX]))
        stop = first + max(int(np.searchsorted(used, window, "right")), 1)
        data, starts = _read(source, offsets[first:stop] - file_from_offset, sizes[first:stop])
        done = 0
        while first + done < stop:
            part = slice(first + done, stop)
            frames, is_unsound = _frames(
                data, starts[done:], offsets[part], sizes[part], file_from_offset, crc=crc
            )
            if len(frames.rows):
                yield frames
            if is_unsound:
                return
            done += len(frames.rows)
        first = stop


def _costs(offsets: Array, sizes: Array) -> Array:
    """The bytes read for each record, including a small gap before it."""
    costs = sizes.copy()
    gaps = offsets[1:] - offsets[:-1] - sizes[:-1]
    costs[1:] += np.where(gaps <= _GAP_MAX, gaps, 0)
    return costs


def _read(source: ByteSource, positions: Array, sizes: Array) -> tuple[Array, Array]:
    """(data, index of each record in it); records close to each other are read together."""
    ends = positions + sizes
    breaks = np.flatnonzero(positions[1:] - ends[:-1] > _GAP_MAX) + 1
    lows = positions[np.concatenate([[0], breaks])]
    highs = ends[np.concatenate([breaks, [len(ends)]]) - 1]
    pieces = []
    for low, high in zip(lows.tolist(), highs.tolist(), strict=True):
        piece = source.read(low, high - low)
        pieces.append(piece.ljust(high - low, b"\0"))  # the file has become shorter
    places = np.cumsum(highs - lows) - (highs - lows)
    group = np.searchsorted(lows, positions, "right") - 1
    return np.frombuffer(b"".join(pieces), np.uint8), positions - lows[group] + places[group]


def _frames(
    data: Array, starts: Array, offsets: Array, sizes: Array, file_from_offset: int, *, crc: bool
) -> tuple[PickedFrames, bool]:
    """(the records up to the first unexpected one or a full table of topics, whether one was unexpected)."""
    from rmqtool.log import frame_kernel
    from rmqtool.log import point_read_kernel as picked_kernel
    from rmqtool.log.crc import crc_address, crc_tables

    rows = np.empty(len(offsets), FRAME)
    topics = np.empty((frame_kernel.TOPICS_LIMIT, 2), np.int64)
    slots = np.zeros(frame_kernel.TOPIC_SLOTS, np.int32)
    result = np.zeros(picked_kernel.RESULT_SIZE, np.int64)
    checks = frame_kernel.Checks(crc, True, crc_address())
    picked_kernel.rows_at(
        data, starts, sizes, offsets, checks, crc_tables(), numbers(), rows, topics, slots, result
    )
    names = [
        data[start : start + length].tobytes()
        for start, length in topics[: int(result[picked_kernel.TOPICS])].tolist()
    ]
    count = int(result[picked_kernel.COUNT])
    frames = PickedFrames(rows[:count], names, data, 0, file_from_offset, offsets, starts)
    return frames, bool(result[picked_kernel.UNSOUND])
