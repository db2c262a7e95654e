"""Reads records at known places of a commit log file as rows, without the bytes between them.

`pick` ends at the first place without a sound record of the expected size, stored offset and CRC: only a
scan can classify the bytes there. `pick_sound` leaves such places out.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from rmqtool.formats.message import MIN_RECORD_SIZE, RECORD_SIZE_MAX
from rmqtool.lazy_dataclass import dataclass
from rmqtool.log.frames import FRAME, Frames, numbers
from rmqtool.log.range_reads import read_ranges
from rmqtool.storage.buffers import Array
from rmqtool.storage.source import ByteSource

_GAP_MAX = 16 << 10  # most bytes between records that are read too, because that is cheaper than another read
_ROWS_MAX = 32 << 10
_NEAR = 2 << 10  # most bytes between two starts that are read with one call: a call costs as much as these
_FIRST_ROWS = 256  # of the first batch, which shows how long records are
_TAIL_STEP, _TAIL_MAX = 512, 64 << 10  # bytes that are read from the start of a record of unknown size
_LONGER_SHARE = 8  # about one of so many records is longer than what is read first


@dataclass(frozen=True, slots=True)
class PickedFrames(Frames):
    """Records that need not be adjacent in the log, with the index of each in `data`.

    `places` are the physical offsets of all records of the batch, ascending, `data_starts` their indices.
    """

    places: Array
    data_starts: Array

    def starts(self) -> Array:
        """Per row, the index of the record's first byte in `data`."""
        if np.array_equal(self.rows["physical_offset"], self.places):
            return self.data_starts.copy()  # callers add to it
        found: Array = self.data_starts[np.searchsorted(self.places, self.rows["physical_offset"])]
        return found

    def copied(self) -> PickedFrames:
        """These records with rows of their own; the bytes were read for them."""
        return replace(self, rows=self.rows.copy())


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


def pick_sound(
    source: ByteSource, *, file_from_offset: int, offsets: Array, crc: bool, window: int
) -> Iterator[PickedFrames]:
    """The sound records among those at `offsets`, whose sizes are not known.

    As many bytes are read of each as most records of the batch before have. Longer records are read again,
    at the sizes that they state.

    `places` of the batches are together all of `offsets`. A place without a row may hold a sound record
    nevertheless, one that is very long or may be torn: it must be read by itself.

    Args:
        source: the file.
        file_from_offset: physical offset of its first byte.
        offsets: i8, physical offsets, ascending, each once; the file may hold anything there.
        crc: check the CRC of bodies.
        window: approximate bytes read together; a record that is longer has no row.
    """
    first, count, tail = 0, _FIRST_ROWS, _TAIL_STEP
    while first < len(offsets):
        part = offsets[first : first + count]
        apart = np.diff(part, append=part[-1:] + tail)
        used = np.cumsum(np.where(apart > _NEAR, tail, apart))
        part = part[: max(int(np.searchsorted(used, window, "right")), 1)]
        data, starts, left = _read_starts(source, part - file_from_offset, tail)
        sizes = _sizes(data, starts, left)
        can_be = (sizes >= MIN_RECORD_SIZE) & (sizes <= min(window, RECORD_SIZE_MAX))
        longer = np.flatnonzero(can_be & (sizes > left))
        longer = longer[np.cumsum(sizes[longer]) <= window]
        if len(longer):
            data = _read_again(source, longer, part - file_from_offset, sizes, data, starts, left)
        first, count, tail = first + len(part), _ROWS_MAX, _usual_size(sizes[can_be], tail)
        there = np.flatnonzero(can_be & (sizes <= left))
        yield from _sound_frames(data, starts, sizes, part, there, file_from_offset, crc=crc)


def _usual_size(sizes: Array, before: int) -> int:
    """The bytes to read of each record of the next batch, when records of these sizes were seen."""
    if not len(sizes):
        return before
    most = int(np.sort(sizes)[-1 - len(sizes) // _LONGER_SHARE])
    return min(-(-most // _TAIL_STEP) * _TAIL_STEP, _TAIL_MAX)


def _read_again(
    source: ByteSource, longer: Array, positions: Array, sizes: Array, data: Array, starts: Array, left: Array
) -> Array:
    """`data` with the records `longer` after it, whose `starts` and `left` are set."""
    begins = positions[longer]
    left[longer] = lengths = np.minimum(begins + sizes[longer], source.size) - begins
    starts[longer] = len(data) + np.cumsum(lengths) - lengths
    both = np.concatenate([data, read_ranges(source, begins, lengths, 0)])
    both.flags.writeable = False
    return both


def _sound_frames(
    data: Array, starts: Array, sizes: Array, places: Array, there: Array, file_from_offset: int, *, crc: bool
) -> Iterator[PickedFrames]:
    """The records at `there`, positions in the arrays; a batch ends before what is not sound."""
    done = taken = 0
    while taken < len(places):
        now = there[done:]
        frames, is_unsound = _frames(data, starts[now], places[now], sizes[now], file_from_offset, crc=crc)
        done += len(frames.rows) + is_unsound
        stop = int(there[done]) if done < len(there) else len(places)
        part = slice(taken, stop)
        yield replace(frames, places=places[part], data_starts=starts[part])
        taken = stop


def _read_starts(source: ByteSource, positions: Array, tail: int) -> tuple[Array, Array, Array]:
    """(data, index of each position in it, bytes from there on that were read); at least `tail` of each."""
    breaks = np.flatnonzero(np.diff(positions) > _NEAR) + 1
    lows = positions[np.concatenate([[0], breaks])]
    highs = positions[np.concatenate([breaks, [len(positions)]]) - 1] + tail
    highs = np.maximum(np.minimum(highs, source.size), lows)
    lengths = highs - lows
    begins = np.cumsum(lengths) - lengths
    group = np.repeat(np.arange(len(lows)), np.diff(np.concatenate([[0], breaks, [len(positions)]])))
    within = positions - lows[group]
    data = read_ranges(source, lows, lengths, _SIZE_BYTES)
    return data, begins[group] + within, lengths[group] - within


_SIZE_BYTES = 4


def _sizes(data: Array, starts: Array, left: Array) -> Array:
    """The sizes that records state, i8; 0 where less than the size was read."""
    places = np.minimum(starts, len(data) - _SIZE_BYTES)
    sizes = np.zeros(len(starts), np.int32)
    for byte in range(_SIZE_BYTES):
        sizes = (sizes << 8) | data[places + byte]
    found: Array = np.where(left >= _SIZE_BYTES, sizes, 0).astype(np.int64)
    return found


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
    checks = frame_kernel.Checks(crc, True, False, crc_address())
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
