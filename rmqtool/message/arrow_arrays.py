"""Gathered texts and bodies as Arrow arrays, without a copy."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from rmqtool.log.string_ranges import Gathered


def binary_array(found: Gathered, kind: pa.DataType) -> pa.Array:
    """The column as an array of `kind`, string or binary; rows without a value are null."""
    count = len(found.offsets) - 1
    valid, nulls = None, 0
    if found.present is not None:
        valid = pa.py_buffer(np.packbits(found.present, bitorder="little"))
        nulls = count - int(np.count_nonzero(found.present))
    buffers = [valid, pa.py_buffer(found.offsets), pa.py_buffer(found.data)]
    return pa.Array.from_buffers(kind, count, buffers, nulls)
