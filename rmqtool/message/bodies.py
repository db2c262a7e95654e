"""The bodies of a batch of records as the application sees them, within a budget of bytes.

Uncompressed bodies are not copied here. Compressed ones are unpacked one by one: a few bytes may become
megabytes, so a batch ends before the unpacked bodies exceed its budget.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rmqtool.errors import FormatError, MissingCodecError
from rmqtool.formats import body
from rmqtool.formats.message import COMPRESSED
from rmqtool.log.frames import Frames
from rmqtool.log.string_ranges import Ranges, bodies
from rmqtool.storage.buffers import Array


@dataclass(frozen=True)
class Bodies:
    """The bodies of the first `len(ranges)` records; a body that cannot be unpacked has no value.

    `unpackable` and `codec_missing` (bool, shape (rows,)) give the reason: the body is damaged, or the
    library is not installed. Both are None if all bodies can be unpacked.
    """

    ranges: Ranges
    unpackable: Array | None = None
    codec_missing: Array | None = None


def stored_bodies(frames: Frames) -> Bodies:
    """The bodies as stored."""
    return Bodies(bodies(frames))


def plain_bodies(frames: Frames, budget: int) -> Bodies:
    """The unpacked bodies of as many records as fit into `budget` bytes, but at least one."""
    stored = bodies(frames)
    compressed = np.flatnonzero(frames.rows["sys_flag"] & COMPRESSED)
    if not len(compressed):
        return Bodies(stored)
    lengths = stored.lengths.astype(np.int64)
    lengths[compressed] = 0
    used = np.cumsum(lengths)  # bytes of uncompressed bodies up to each record
    count = len(stored)
    unpacked_bytes = 0
    values: list[bytes | None] = []
    wrong: dict[int, str] = {}
    for row in compressed.tolist():
        value = _unpack(stored.bytes_of(row), int(frames.rows["sys_flag"][row]), row, wrong)
        unpacked_bytes += len(value or b"")
        if int(used[row]) + unpacked_bytes > budget and row > 0:
            count = row
            break
        values.append(value)
    if count < len(stored):
        stored = Ranges(stored.data, stored.starts[:count], stored.lengths[:count])
    ranges = stored.replaced(compressed[: len(values)].tolist(), values)
    if not wrong:
        return Bodies(ranges)
    unpackable, codec_missing = (np.zeros(count, np.bool_) for _ in range(2))
    for row, code in wrong.items():
        if row < count:
            (unpackable if code == "CL14" else codec_missing)[row] = True
    return Bodies(ranges, unpackable, codec_missing)


def _unpack(data: bytes, sys_flag: int, row: int, wrong: dict[int, str]) -> bytes | None:
    try:
        return body.decompress(data, sys_flag)
    except MissingCodecError:
        wrong[row] = "UN01"
    except FormatError:
        wrong[row] = "CL14"
    return None
