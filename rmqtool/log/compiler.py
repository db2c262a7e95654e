"""The compilation of kernels by numba: a function and arguments to an object file.

The object file has one function, `int32 symbol(const int64 *words, int64 *result)`: `words` holds one word
for each array and integer of the arguments, in their order: the address of the array object, or the value.
It returns 0, or numba's status of an exception. It needs nothing of Python, numpy or numba to run.

Imports numba: only `compiled` imports this module, in a process that has to compile.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from types import CodeType, FunctionType
from typing import Any

import numba
from llvmlite import binding, ir
from numba.core import types
from numba.core.compiler_lock import global_compiler_lock
from numba.extending import intrinsic
from numba.np import arrayobj

from rmqtool.log.compiled import DATA_AT, DIMENSIONS_AT, STRIDES_AT, Inlined, Intrinsic, Kernel

_OPTIONS = {"nogil": True, "_nrt": False, "no_cpython_wrapper": True, "no_cfunc_wrapper": True}
_LIBC = {"memcpy", "memmove", "memset", "memcmp", "bcmp"}  # what LLVM may call
# numba's own types do not cover these
_njit: Any = numba.njit
_typeof: Any = numba.typeof
_populate_array: Any = arrayobj.populate_array
_BaseTuple: Any = types.BaseTuple
_I32, _I64 = ir.IntType(32), ir.IntType(64)


def object_file(function: Callable[..., Any], arguments: tuple[Any, ...], symbol: str) -> bytes:
    """Compile `function` for the types of `arguments`; the object file, whose function is `symbol`."""
    with global_compiler_lock:
        dispatcher = _njit(**_OPTIONS)(_for_numba(function))
        kinds = tuple(_typeof(argument) for argument in arguments)
        dispatcher.compile(kinds)
        module = binding.parse_assembly(_entry(dispatcher.overloads[kinds], symbol))
        _close(module, symbol)
        triple, processor, features = dispatcher.targetctx.codegen().magic_tuple()
        # the engine does not resolve all kinds of position-independent references of x86
        relocation = "static" if triple.startswith("x86") else "default"
        machine = binding.Target.from_triple(triple).create_target_machine(
            cpu=processor, features=features, opt=3, reloc=relocation, codemodel="jitdefault", jit=True
        )
        code: bytes = machine.emit_object(module)
        return code


def _close(module: Any, symbol: str) -> None:
    """Make `symbol` the only name that `module` defines, and check that it needs no unknown one.

    The engine holds the code of all kernels, whose other names are not unique; a name that it cannot
    resolve would end the process.
    """
    for value in (*module.functions, *module.global_variables):
        if not value.is_declaration:
            if value.name != symbol:
                value.linkage = binding.Linkage.internal
        elif not value.name.startswith("llvm.") and value.name not in _LIBC:
            raise RuntimeError(f"{symbol} needs {value.name}")


def _for_numba(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function`, with numba's objects instead of our kernels, inlined functions and intrinsics."""
    assert isinstance(function, FunctionType)
    names = set(_names(function.__code__))
    others = {
        name: _translated(value)
        for name, value in function.__globals__.items()
        if name in names and isinstance(value, (Kernel, Inlined, Intrinsic))
    }
    return FunctionType(
        function.__code__, {**function.__globals__, **others}, function.__name__, function.__defaults__,
        function.__closure__,
    )  # fmt: skip


def _names(code: CodeType) -> Iterator[str]:
    """Names of globals that `code` uses, and the functions inside of it."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


@cache
def _translated(part: Kernel | Inlined | Intrinsic) -> Any:
    """What numba calls for it."""
    if isinstance(part, Intrinsic):
        return intrinsic(part.function)
    return _njit(forceinline=isinstance(part, Inlined), **_OPTIONS)(_for_numba(part.function))


def _entry(compiled: Any, symbol: str) -> str:
    """The optimised LLVM code of a compiled function and of `symbol`, which calls it."""
    context = compiled.target_context
    library = context.codegen().create_library(symbol)
    library.add_linking_library(compiled.library)
    module = context.create_module(symbol)
    kind = ir.FunctionType(_I32, [_I64.as_pointer(), _I64.as_pointer()])
    entry = ir.Function(module, kind, symbol)
    builder = ir.IRBuilder(entry.append_basic_block())
    words, place = entry.args
    position = 0

    def word() -> Any:
        nonlocal position
        position += 1
        return builder.load(builder.gep(words, [_I64(position - 1)]))

    def field(array: Any, at: int) -> Any:
        """A pointer to integers from a field of an array object."""
        pointer = builder.inttoptr(builder.add(array, _I64(at)), _I64.as_pointer().as_pointer())
        return builder.load(pointer)

    def value(kind: Any) -> Any:
        if isinstance(kind, types.Array):
            array = word()
            dimensions, strides = field(array, DIMENSIONS_AT), field(array, STRIDES_AT)
            item = context.get_data_type(kind.dtype)
            view = context.make_array(kind)(context, builder)
            _populate_array(
                view,
                data=builder.bitcast(field(array, DATA_AT), item.as_pointer()),
                shape=[builder.load(builder.gep(dimensions, [_I64(k)])) for k in range(kind.ndim)],
                strides=[builder.load(builder.gep(strides, [_I64(k)])) for k in range(kind.ndim)],
                itemsize=_I64(context.get_abi_sizeof(item)),
                meminfo=None,
            )
            return view._getvalue()
        if isinstance(kind, _BaseTuple):
            return context.make_tuple(builder, kind, [value(part) for part in kind.types])
        integer = context.get_value_type(kind)
        return builder.trunc(word(), integer) if integer.width < _I64.width else word()

    signature, function = compiled.signature, compiled.fndesc
    status, result = context.call_conv.call_function(
        builder, context.declare_function(module, function), function.restype, function.argtypes,
        [value(kind) for kind in signature.args],
    )  # fmt: skip
    if signature.return_type != types.none:
        extend = builder.sext if signature.return_type.signed else builder.zext
        builder.store(extend(result, _I64) if result.type.width < _I64.width else result, place)
    builder.ret(builder.select(status.is_ok, _I32(0), status.code))
    library.add_ir_module(module)
    library.finalize()
    text: str = library.get_llvm_str()
    return text
