"""Thousands of ranges of one file, read by one call of compiled code.

A call of `os.pread` takes twice as long as the system needs for a range of some hundred bytes, and its bytes
are then copied once more.
"""

from __future__ import annotations

import ctypes
import sys
from functools import cache

import numpy as np

from rmqtool.storage.buffers import Array
from rmqtool.storage.source import ByteSource, FileSource, buffer_of, read_pieces

_POINTER_BYTES = 8  # an offset of a file has as many in every C library of such a machine


@cache
def _pread_address() -> int:
    """The address of the C library's pread; 0 where it cannot be called."""
    if sys.platform == "win32" or ctypes.sizeof(ctypes.c_void_p) != _POINTER_BYTES:
        return 0
    try:
        return ctypes.cast(ctypes.CDLL(None).pread, ctypes.c_void_p).value or 0
    except (OSError, AttributeError):
        return 0


def read_ranges(source: ByteSource, starts: Array, lengths: Array, room: int) -> Array:
    """The bytes of the ranges [starts, starts + lengths), end to end, and `room` zeros after them.

    For ranges far apart, all inside of the size of the source: nothing is fetched ahead or dropped. Bytes
    that the file does not have any more, or that cannot be read, are zeros. The result does not change while
    it is referenced.

    Args:
        source: the file.
        starts: i8.
        lengths: i8, not negative.
        room: bytes.
    """
    address = _pread_address() if isinstance(source, FileSource) else 0
    if not isinstance(source, FileSource) or not address:
        pieces = read_pieces(source, starts.tolist(), lengths.tolist())
        padded = (piece.ljust(size, b"\0") for piece, size in zip(pieces, lengths.tolist(), strict=True))
        return np.frombuffer(b"".join([*padded, bytes(room)]), np.uint8)
    from rmqtool.log import range_reads_kernel as kernel

    places = np.cumsum(lengths) - lengths
    done = np.empty(len(starts), np.int64)
    total = int(lengths.sum())
    data = buffer_of(total + room)
    kernel.read_ranges(address, source.descriptor_for(total), starts, lengths, places, data, done)
    # Short: the end of the file, or bytes that cannot be read, which `read` notes.
    for k in np.flatnonzero(done != lengths).tolist():
        piece = source.read(int(starts[k]), int(lengths[k])).ljust(int(lengths[k]), b"\0")
        data[places[k] : places[k] + len(piece)] = np.frombuffer(piece, np.uint8)
    data[total:] = 0
    data.flags.writeable = False
    return data
