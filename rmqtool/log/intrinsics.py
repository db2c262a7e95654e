"""Loads of integers from a byte array, one machine instruction each, for kernels.

The index is not checked: a kernel must check before a load that the whole integer is inside. With
NUMBA_BOUNDSCHECK=1 every load is checked, as are numba's own; a test runs in this mode.
They are emitted where numba compiles a kernel; only then is numba imported.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from rmqtool.log.compiled import Intrinsic, NumbaModule

types: Any = NumbaModule("core.types")
_cgutils: Any = NumbaModule("core.cgutils")
_config: Any = NumbaModule("core.config")
_I32 = ir.IntType(32)
_I64 = ir.IntType(64)


def _pointer(size: int, context: Any, builder: Any, array_type: Any, array: Any, index: Any) -> Any:
    """The address of array[index]; with BOUNDSCHECK, array[index : index + size] is checked."""
    view = context.make_array(array_type)(context, builder, array)
    if _config.BOUNDSCHECK:
        (length,) = _cgutils.unpack_tuple(builder, view.shape)
        outside = builder.or_(
            builder.icmp_signed("<", index, index.type(0)),
            builder.icmp_signed(">", builder.add(index, index.type(size)), length),
        )
        with _cgutils.if_unlikely(builder, outside):
            context.call_conv.return_user_exc(builder, IndexError, ("load outside of the window",))
    return builder.gep(view.data, [index])


def _load(bits: int, *, signed: bool, big_endian: bool = True) -> Any:
    """An intrinsic (uint8 array, i64 index) -> the integer of `bits` bits there, as an i64 or u64."""

    def load(typing_context: Any, array: Any, index: Any) -> Any:
        def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            pointer = _pointer(bits // 8, context, builder, signature.args[0], *arguments)
            value = builder.load(builder.bitcast(pointer, ir.IntType(bits).as_pointer()), align=1)
            if big_endian and bits > 8:
                value = builder.bswap(value)
            if bits == 64:
                return value
            return builder.sext(value, _I64) if signed else builder.zext(value, _I64)

        return (types.int64 if signed else types.uint64)(array, types.int64), code

    return Intrinsic(load)


def _trailing_zeros(typing_context: Any, value: Any) -> Any:
    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.cttz(arguments[0], ir.IntType(1)(0))

    return types.int64(types.uint64), code


trailing_zeros: Any = Intrinsic(_trailing_zeros)
"""(u64) -> the number of trailing zero bits; 64 for 0."""

i8 = _load(8, signed=True)
u8 = _load(8, signed=False)
i16 = _load(16, signed=True)
i32 = _load(32, signed=True)
i64 = _load(64, signed=True)
u64 = _load(64, signed=False)
u64_little = _load(64, signed=False, big_endian=False)
"""Little-endian: the first byte is the lowest."""


TEXT_MARKS_BYTES = 32
"""That `text_marks` looks at."""


def _text_marks(typing_context: Any, array: Any, index: Any) -> Any:
    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kind = ir.VectorType(ir.IntType(8), TEXT_MARKS_BYTES)
        pointer = _pointer(TEXT_MARKS_BYTES, context, builder, signature.args[0], *arguments)
        data = builder.load(builder.bitcast(pointer, kind.as_pointer()), align=1)
        found = [
            builder.icmp_unsigned(how, data, ir.Constant(kind, [byte] * TEXT_MARKS_BYTES))
            for how, byte in (("==", 0x22), ("==", 0x5C), ("<", 0x20))
        ]
        marks = builder.or_(builder.or_(found[0], found[1]), found[2])
        return builder.zext(builder.bitcast(marks, ir.IntType(TEXT_MARKS_BYTES)), _I64)

    return types.uint64(array, types.int64), code


text_marks: Any = Intrinsic(_text_marks)
"""(uint8 array, i64 index) -> u64: bit k says whether array[index + k], for k below TEXT_MARKS_BYTES, is one
of the bytes that JSON escapes in texts: a quote, a backslash or a control character."""


def _address(typing_context: Any, array: Any, index: Any) -> Any:
    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = _pointer(0, context, builder, signature.args[0], *arguments)
        return builder.ptrtoint(pointer, _I64)

    return types.uintp(array, types.int64), code


address_of: Any = Intrinsic(_address)
"""(uint8 array, i64 index) -> the address of array[index]."""


def emit_prefetch(builder: Any, pointer: Any) -> None:
    """Emit a prefetch of the cache line of `pointer`; not an access, so any address is allowed."""
    kind = ir.FunctionType(ir.VoidType(), [pointer.type, _I32, _I32, _I32])
    function = _cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
    builder.call(function, [pointer, _I32(0), _I32(3), _I32(1)])


def _prefetch(typing_context: Any, array: Any, index: Any) -> Any:
    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array, index = arguments
        view = context.make_array(signature.args[0])(context, builder, array)
        emit_prefetch(builder, builder.gep(view.data, [index]))
        return context.get_dummy_value()

    return types.void(array, types.int64), code


prefetch: Any = Intrinsic(_prefetch)
"""(uint8 array, i64 index): prefetch the cache line of array[index]; any index is allowed."""
