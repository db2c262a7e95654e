"""Stores of integers and ranges of bytes into a byte array, for kernels; the counterpart of `intrinsics`.

The index is not checked: a kernel must check before a store that the whole range is inside. With
NUMBA_BOUNDSCHECK=1 every store is checked, like every load.
They are emitted where numba compiles a kernel; only then is numba imported.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir

from rmqtool.log.compiled import Intrinsic, NumbaModule, inlined

types: Any = NumbaModule("core.types")
_cgutils: Any = NumbaModule("core.cgutils")
_config: Any = NumbaModule("core.config")
_I8 = ir.IntType(8)
_I64 = ir.IntType(64)


def _pointer(context: Any, builder: Any, array_type: Any, array: Any, index: Any, size: Any) -> Any:
    """The address of array[index]; with BOUNDSCHECK, array[index : index + size] is checked."""
    view = context.make_array(array_type)(context, builder, array)
    if _config.BOUNDSCHECK:
        (length,) = _cgutils.unpack_tuple(builder, view.shape)
        outside = builder.or_(
            builder.icmp_signed("<", index, index.type(0)),
            builder.icmp_signed(">", builder.add(index, size), length),
        )
        with _cgutils.if_unlikely(builder, outside):
            context.call_conv.return_user_exc(builder, IndexError, ("store outside of the buffer",))
    return builder.gep(view.data, [index])


def _store(bits: int) -> Any:
    """An intrinsic (writable uint8 array, i64 index, i64 value): store the low `bits` bits, big-endian."""

    def store(typing_context: Any, array: Any, index: Any, value: Any) -> Any:
        def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            array, index, value = arguments
            pointer = _pointer(context, builder, signature.args[0], array, index, _I64(bits // 8))
            kind = ir.IntType(bits)
            value = builder.trunc(value, kind) if bits < 64 else value
            value = builder.bswap(value) if bits > 8 else value
            builder.store(value, builder.bitcast(pointer, kind.as_pointer()), align=1)
            return context.get_dummy_value()

        return types.void(array, types.int64, types.int64), code

    return Intrinsic(store)


put_8 = _store(8)
put_16 = _store(16)
put_32 = _store(32)
put_64 = _store(64)


def _address_to_fill(typing_context: Any, array: Any, index: Any, length: Any) -> Any:
    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = _pointer(context, builder, signature.args[0], *arguments)
        return builder.ptrtoint(pointer, _I64)

    return types.int64(array, types.int64, types.int64), code


address_to_fill: Any = Intrinsic(_address_to_fill)
"""(writable uint8 array, i64 index, i64 length) -> the address of array[index], for so many bytes."""


def _copy(typing_context: Any, array: Any, index: Any, address: Any, length: Any) -> Any:
    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array, index, address, length = arguments
        pointer = _pointer(context, builder, signature.args[0], array, index, length)
        source = builder.inttoptr(address, _I8.as_pointer())
        _cgutils.raw_memcpy(builder, pointer, source, length, 1)
        return context.get_dummy_value()

    return types.void(array, types.int64, types.int64, types.int64), code


copy_in: Any = Intrinsic(_copy)
"""(writable uint8 array, i64 index, i64 address, i64 length): copy the bytes at `address` into the array.

The caller guarantees that `length` is not negative and that this many bytes are readable at `address`.
"""


def _copy_short(typing_context: Any, array: Any, index: Any, address: Any, length: Any) -> Any:
    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array, index, address, length = arguments
        pointer = _pointer(context, builder, signature.args[0], array, index, length)
        source = builder.inttoptr(address, _I8.as_pointer())

        def ends(size: int) -> None:
            """Copy the first and the last `size` bytes, which overlap or are adjacent."""
            kind = ir.IntType(8 * size).as_pointer()
            last = builder.sub(length, _I64(size))
            both = [
                (
                    builder.bitcast(builder.gep(source, [at]), kind),
                    builder.bitcast(builder.gep(pointer, [at]), kind),
                )
                for at in (_I64(0), last)
            ]
            values = [builder.load(place, align=1) for place, _ in both]
            for value, (_, place) in zip(values, both, strict=True):
                builder.store(value, place, align=1)

        def within(limit: int) -> Any:
            return builder.icmp_signed("<=", length, _I64(limit))

        def shorter(sizes: list[int]) -> None:
            """Copy a length of at most twice the last of `sizes`."""
            if len(sizes) == 1:
                ends(sizes[0])
                return
            with builder.if_else(within(2 * sizes[0])) as (then, other):
                with then:
                    ends(sizes[0])
                with other:
                    shorter(sizes[1:])

        with builder.if_else(within(64)) as (short, long):
            with short:
                with builder.if_then(builder.icmp_signed(">", length, _I64(7))):
                    shorter([8, 16, 32])
                with builder.if_then(builder.icmp_signed("<", length, _I64(8))):
                    with builder.if_else(builder.icmp_signed(">", length, _I64(3))) as (four, few):
                        with four:
                            ends(4)
                        with few, builder.if_then(builder.icmp_signed(">", length, _I64(0))):
                            with builder.if_else(within(1)) as (one, more):
                                with one:
                                    ends(1)
                                with more:
                                    ends(2)
            with long:
                _cgutils.raw_memcpy(builder, pointer, source, length, 1)
        return context.get_dummy_value()

    return types.void(array, types.int64, types.int64, types.int64), code


copy_short: Any = Intrinsic(_copy_short)
"""As `copy_in`, but faster for up to 64 bytes, because it makes no call."""


@inlined
def put_i32(words: Any, at: int, value: int) -> None:
    """Write the low 32 bits of `value`, big-endian, from words[at] on."""
    put_i16(words, at, value >> 16)
    put_i16(words, at + 1, value)


@inlined
def put_i64(words: Any, at: int, value: int) -> None:
    """Write `value`, big-endian, from words[at] on."""
    put_i32(words, at, value >> 32)
    put_i32(words, at + 2, value)


@inlined
def put_i16(words: Any, at: int, value: int) -> None:
    """Write the low 16 bits of `value`, big-endian, to words[at]."""
    words[at] = np.uint16(((value & 0xFF) << 8) | ((value >> 8) & 0xFF))
