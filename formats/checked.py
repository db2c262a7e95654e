"""Codecs of structures of fixed size that raise `FormatError` for everything that does not fit."""

from __future__ import annotations

import struct
from typing import Any

from rmqtool.errors import FormatError
from rmqtool.formats.declare import Layout


def unpack(layout: Layout, buffer: bytes | memoryview, offset: int = 0) -> tuple[Any, ...]:
    """The field values of the structure at byte `offset` of `buffer`, in declaration order.

    Raises:
        FormatError: too few bytes are left there.
    """
    if offset < 0 or layout.size > len(buffer) - offset:
        raise FormatError(f"{layout.name}: {layout.size} bytes needed, {len(buffer) - offset} left")
    return layout.unpack(buffer, offset)


def pack(layout: Layout, *values: int) -> bytes:
    """The bytes of one structure.

    Raises:
        FormatError: a value does not fit its field.
    """
    try:
        return layout.pack(*values)
    except struct.error as error:
        raise FormatError(f"{layout.name}: a value does not fit its field: {error}") from error
