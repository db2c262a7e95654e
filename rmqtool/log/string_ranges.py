"""Columns of texts or bodies as ranges of bytes in a window, gathered by compiled code.

A `Ranges` has the places of the values of a column: nothing is copied before `gather`. Values that are
computed (an unpacked body, a property string that is not UTF-8) are appended to the window's data.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rmqtool.formats import message as form
from rmqtool.lazy_dataclass import dataclass
from rmqtool.log.frames import Frames
from rmqtool.storage.buffers import Array

_SAMPLE_BYTES = 64 << 10  # of a window, to learn which bytes are rare
_COLUMN_MAX = 0x7FFFFFFF
"""Most bytes of one column of a batch, because offsets are i32."""


@dataclass(frozen=True)
class Ranges:
    """One range of bytes per row: data[starts[k] : starts[k] + lengths[k]]; a length of -1 means no value.

    data: read-only u1; starts: i8, lengths: i4, both of shape (rows,) and contiguous.
    """

    data: Array
    starts: Array
    lengths: Array

    def __len__(self) -> int:
        return len(self.starts)

    def bytes_of(self, row: int) -> bytes:
        """The bytes of one row; empty if it has no value."""
        start = int(self.starts[row])
        return self.data[start : start + max(int(self.lengths[row]), 0)].tobytes()

    def replaced(self, rows: Sequence[int], values: Sequence[bytes | None]) -> Ranges:
        """Return the ranges with other values in some rows; None means no value."""
        starts, lengths = self.starts.copy(), self.lengths.copy()
        given = [value or b"" for value in values]
        sizes = np.array([len(value) for value in given], np.int64)
        starts[rows] = len(self.data) + np.cumsum(sizes) - sizes
        lengths[rows] = [-1 if value is None else len(value) for value in values]
        data = np.concatenate([self.data, np.frombuffer(b"".join(given), np.uint8)])
        data.flags.writeable = False
        return Ranges(data, starts, lengths)


@dataclass(frozen=True)
class Gathered:
    """A column in Arrow's layout.

    offsets: i4, shape (rows + 1,); data: u1; present: bool, shape (rows,), or None if all rows have a value.
    """

    offsets: Array
    data: Array
    present: Array | None


def gather(ranges: Ranges) -> Gathered:
    """Concatenate the bytes of all rows.

    Raises:
        OverflowError: they are too many for offsets of 32 bits.
    """
    from rmqtool.log import string_ranges_kernel as text_kernel

    lengths = ranges.lengths
    present = lengths >= 0
    is_full = bool(present.all())
    offsets = np.zeros(len(ranges) + 1, np.int64)
    np.cumsum(lengths if is_full else np.maximum(lengths, 0), out=offsets[1:])
    if offsets[-1] > _COLUMN_MAX:
        raise OverflowError(f"a column of {offsets[-1]} bytes in one batch")
    offsets = offsets.astype(np.int32)
    data = np.empty(int(offsets[-1]), np.uint8)
    text_kernel.gather(ranges.data, ranges.starts, offsets, data)
    return Gathered(offsets, data, None if is_full else present)


def from_table(numbers: Array, texts: Sequence[bytes | None]) -> Ranges:
    """The rows texts[numbers[k]]; `numbers` of shape (rows,)."""
    data, starts, lengths = table_of(texts)
    return Ranges(data, starts[numbers], lengths[numbers])


def table_of(texts: Sequence[bytes | None]) -> tuple[Array, Array, Array]:
    """(data, starts, lengths) of a list of texts; None has the length -1."""
    given = [text or b"" for text in texts]
    lengths = np.array([-1 if text is None else len(text) for text in texts], np.int32)
    stops = np.cumsum([len(text) for text in given], dtype=np.int64)
    starts: Array = stops - np.maximum(lengths, 0)
    # one more byte, because an empty array has no address
    return np.frombuffer(b"".join(given) + b"\0", np.uint8), starts, lengths


def are_utf8(ranges: Ranges) -> Array:
    """Which rows are UTF-8: bool, shape (rows,); True for rows without a value."""
    from rmqtool.log import string_ranges_kernel as text_kernel

    flags = np.empty(len(ranges), np.bool_)
    text_kernel.utf8_flags(ranges.data, ranges.starts, ranges.lengths, flags)
    return flags


def contain(ranges: Ranges, text: bytes, *, ignores_case: bool = False) -> Array:
    """Which rows contain `text`, which is not empty: bool, shape (rows,).

    With `ignores_case` ASCII letters match in either case.
    """
    from rmqtool.log import string_ranges_kernel as text_kernel

    found = np.empty(len(ranges), np.bool_)
    wanted = np.frombuffer(text.lower() if ignores_case else text, np.uint8)
    # A letter of either case has its lower case once bit 5 is set.
    is_letter = (wanted >= ord("a")) & (wanted <= ord("z")) & ignores_case
    masks = np.where(is_letter, 0x20, 0).astype(np.uint8)
    first = second = 0
    if len(wanted) > 1:  # the two bytes of the text that are rarest here decide where it is compared
        counts = np.bincount(ranges.data[:_SAMPLE_BYTES], minlength=256)
        often = counts[wanted] + np.where(is_letter, counts[wanted ^ masks], 0)
        first, second = np.argsort(often, kind="stable")[:2].tolist()
    text_kernel.contain(ranges.data, ranges.starts, ranges.lengths, wanted, masks, first, second, found)
    return found


class TextSet:
    """A set of texts for look-ups; its hash table is built once for all batches."""

    def __init__(self, texts: Sequence[bytes] | Ranges) -> None:
        if isinstance(texts, Ranges):
            self._table = texts.data, texts.starts, texts.lengths
        else:
            self._table = table_of(texts)
        self._slots = np.zeros(1 << (2 * len(texts)).bit_length(), np.int32)
        if len(texts):  # most selections have none: do not load a kernel for them
            from rmqtool.log import string_ranges_kernel as text_kernel

            text_kernel.fill_slots(*self._table, self._slots)

    def holds(self, ranges: Ranges) -> Array:
        """Which rows are one of the texts: bool, shape (rows,); False for rows without a value."""
        return self.numbers(ranges) >= 0

    def numbers(self, ranges: Ranges) -> Array:
        """Which of the texts each row is: i4, shape (rows,); -1 for other texts and for no value."""
        from rmqtool.log import string_ranges_kernel as text_kernel

        numbers = np.empty(len(ranges), np.int32)
        text_kernel.numbers_in_slots(
            ranges.data, ranges.starts, ranges.lengths, *self._table, self._slots, numbers
        )
        return numbers


def distinct(ranges: Ranges) -> tuple[Array, list[bytes]]:
    """(numbers, values): row k is values[numbers[k]]. All rows must have a value.

    If there are very many values, a value may occur more than once.
    """
    from rmqtool.log import frame_kernel
    from rmqtool.log import string_ranges_kernel as text_kernel

    table = np.empty((frame_kernel.TOPICS_LIMIT, 2), np.int64)
    numbers = np.empty(len(ranges), np.int32)
    result = np.zeros(1, np.int64)
    values: list[bytes] = []
    first = 0
    while first < len(ranges):
        slots = np.zeros(frame_kernel.TOPIC_SLOTS, np.int32)
        stop = text_kernel.number_ranges(
            ranges.data, ranges.starts, ranges.lengths, first, table, slots, numbers, result
        )
        numbers[first:stop] += len(values)
        for start, length in table[: int(result[0])].tolist():
            values.append(ranges.data[start : start + length].tobytes())
        first = int(stop)
    return numbers, values


def bodies(frames: Frames) -> Ranges:
    """The bodies as stored."""
    lengths = np.maximum(frames.rows["body_length"], 0)
    return Ranges(frames.data, frames.body_starts(), lengths)


def hosts(frames: Frames, *, born: bool) -> Ranges:
    """The 8 or 20 bytes of the born or the store host, as stored."""
    flags = frames.rows["sys_flag"]
    growth = form.HOST_V6_SIZE - form.HOST_V4_SIZE
    starts = frames.starts()
    if born:
        starts += form.HEADS[0].offsets["born_host"]
        is_long = (flags & form.BORN_HOST_V6) != 0
    else:
        starts += form.HEADS[0].offsets["store_host"]
        starts += growth * ((flags & form.BORN_HOST_V6) != 0)
        is_long = (flags & form.STORE_HOST_V6) != 0
    return Ranges(frames.data, starts, (form.HOST_V4_SIZE + growth * is_long).astype(np.int32))


def offset_message_ids(frames: Frames) -> Gathered:
    """The offset message ids, from the stored host and the stored physical offset."""
    from rmqtool.log import string_ranges_kernel as text_kernel

    found = hosts(frames, born=False)
    offsets = np.zeros(len(found) + 1, np.int32)
    np.cumsum(2 * (found.lengths + 8), out=offsets[1:])
    data = np.empty(int(offsets[-1]), np.uint8)
    text_kernel.offset_ids(
        frames.data, frames.starts(), form.PHYSICAL_OFFSET_OFFSET, found.starts, offsets, data
    )
    return Gathered(offsets, data, None)
