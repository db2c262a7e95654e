"""The compiled half of `range_reads`: calls of the C library's pread by its address, which is an argument.

Imports llvmlite: only `range_reads` imports this module.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir

from rmqtool.log.compiled import Intrinsic, NumbaModule, compiled
from rmqtool.log.store_intrinsics import address_to_fill

types: Any = NumbaModule("core.types")


def _call_code(
    typing_context: Any, function: Any, descriptor: Any, target: Any, length: Any, offset: Any
) -> Any:
    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        function, descriptor, target, length, offset = arguments
        wide, narrow = ir.IntType(64), ir.IntType(32)
        pointer = ir.IntType(8).as_pointer()
        kind = ir.FunctionType(wide, [narrow, pointer, wide, wide])
        given = [builder.trunc(descriptor, narrow), builder.inttoptr(target, pointer), length, offset]
        return builder.call(builder.inttoptr(function, kind.as_pointer()), given)

    return types.int64(types.int64, types.int64, types.int64, types.int64, types.int64), code


_pread: Any = Intrinsic(_call_code)
"""(address of pread, descriptor, address, length, offset) -> its result."""


@compiled
def read_ranges(
    function: int, descriptor: int, starts: Any, lengths: Any, places: Any, data: Any, done: Any
) -> None:
    """Read lengths[k] bytes at starts[k] of the file to data[places[k] :], and set done[k] to the result.

    The caller guarantees that they fit into `data`.
    """
    for k in range(len(starts)):
        target = address_to_fill(data, np.int64(places[k]), np.int64(lengths[k]))
        done[k] = _pread(function, descriptor, target, np.int64(lengths[k]), np.int64(starts[k]))
