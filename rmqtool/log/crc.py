"""CRC-32 inside a kernel, by the fastest of three methods that this machine supports.

1. `crc_fold`, if the processor has VPCLMULQDQ: part of the kernel itself.
2. isal's function, called by its address. The address is an ordinary argument of the kernel, so that
   the cached machine code contains nothing specific to this process; 0 means that isal is missing.
3. Tables, slice-by-16, at about a fifth of isal's speed.

Data that is too short for the first method, or too close to the start of the array, uses the others.

Numba is imported only where it compiles a kernel.
"""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

import numpy as np
from llvmlite import ir

from rmqtool.log.compiled import Intrinsic, NumbaModule, compiled, inlined
from rmqtool.log.crc_fold import BLOCK, SHORTEST, fold_crc, is_available
from rmqtool.log.intrinsics import address_of

types: Any = NumbaModule("core.types")
_POLYNOMIAL = 0xEDB88320
_CHECK_INPUT, _CHECK_VALUE = b"123456789", 0xCBF43926


@cache
def crc_address() -> int:
    """The address of isal's crc32_gzip_refl(u32 seed, const u8 *, u64 length) -> u32, or 0.

    Not every platform exports the symbol. The name alone is not trusted, so a test call is made.
    """
    try:
        import isal.isal_zlib

        function = ctypes.CDLL(isal.isal_zlib.__file__).crc32_gzip_refl
    except (ImportError, OSError, AttributeError):
        return 0
    function.restype = ctypes.c_uint32
    function.argtypes = (ctypes.c_uint32, ctypes.c_char_p, ctypes.c_uint64)
    if function(0, _CHECK_INPUT, len(_CHECK_INPUT)) != _CHECK_VALUE:
        return 0
    return ctypes.cast(function, ctypes.c_void_p).value or 0


@cache
def crc_tables() -> np.ndarray[Any, np.dtype[np.uint32]]:
    """The (16, 256) tables of slice-by-16: row k is for a byte that is followed by k more bytes."""
    values = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        values = (values >> np.uint32(1)) ^ (values & np.uint32(1)) * np.uint32(_POLYNOMIAL)
    tables = np.empty((16, 256), np.uint32)
    tables[0] = values
    for row in range(1, 16):
        tables[row] = (tables[row - 1] >> 8) ^ values[tables[row - 1] & 0xFF]
    tables.flags.writeable = False
    return tables


def _call_code(typing_context: Any, function: Any, seed: Any, start: Any, length: Any) -> Any:
    signature = types.uint32(types.uintp, types.uint32, types.uintp, types.uint64)

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        function, seed, start, length = arguments
        byte_pointer = ir.IntType(8).as_pointer()
        kind = ir.FunctionType(ir.IntType(32), [ir.IntType(32), byte_pointer, ir.IntType(64)])
        target = builder.inttoptr(function, kind.as_pointer())
        return builder.call(target, [seed, builder.inttoptr(start, byte_pointer), length])

    return signature, code


_call: Any = Intrinsic(_call_code)


@compiled
def _table_crc(data: Any, start: int, length: int, tables: Any) -> Any:
    crc = np.uint32(0xFFFFFFFF)
    position = start
    end = start + length
    while position + 16 <= end:
        folded = np.uint32(0)
        for k in range(4):
            byte = np.uint32(data[position + k]) ^ ((crc >> np.uint32(8 * k)) & np.uint32(0xFF))
            folded ^= tables[15 - k, byte]
        for k in range(4, 16):
            folded ^= tables[15 - k, data[position + k]]
        crc = folded
        position += 16
    while position < end:
        crc = (crc >> np.uint32(8)) ^ tables[0, (crc ^ np.uint32(data[position])) & np.uint32(0xFF)]
        position += 1
    return crc ^ np.uint32(0xFFFFFFFF)


@inlined
def _called_crc(data: Any, start: int, length: int, address: int, tables: Any) -> Any:
    if address != 0:
        return _call(np.uintp(address), np.uint32(0), address_of(data, start), np.uint64(length))
    return _table_crc(data, start, length, tables)


@inlined
def _folded_crc(data: Any, start: int, length: int, address: int, tables: Any) -> Any:
    if start >= BLOCK and length >= SHORTEST:
        return fold_crc(data, start, length)
    return _called_crc(data, start, length, address, tables)


crc_of = _folded_crc if is_available() else _called_crc
"""(data, start, length, crc_address(), crc_tables()) -> CRC-32 of data[start : start + length].

The caller guarantees that 0 <= start, 0 <= length and start + length <= len(data).
"""
