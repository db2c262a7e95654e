"""CRC-32 by carry-less multiplication of 256-bit vectors, inside a kernel; x86 with VPCLMULQDQ only.

On such processors it is twice as fast as isal: isal's fast code needs AVX-512, and for short bodies the call
costs as much as the work. The method is Intel's ("Fast CRC Computation for Generic Polynomials Using
PCLMULQDQ", 2009), in reflected bit order: two products with powers of x modulo the polynomial move each of
four 128-bit lanes 64 bytes ahead; the next 64 bytes are added; at the end the lanes are reduced to 32 bits.
Zeros before a message do not change a CRC that starts at 0. So the first block is padded with leading zeros,
and the start value is added to the first four bytes.
It is emitted where numba compiles a kernel; only then is numba imported.
"""

from __future__ import annotations

import os
import platform
from functools import cache
from typing import Any

import llvmlite.binding
from llvmlite import ir

from rmqtool.log.compiled import Intrinsic, NumbaModule
from rmqtool.log.intrinsics import emit_prefetch

BLOCK = 64
"""Bytes per step. The same number of bytes before the message is read too, and ignored."""
SHORTEST = 4
"""Fewest bytes of a message."""

_POLYNOMIAL = 0x04C11DB7
_U64 = (1 << 64) - 1
_AHEAD = 2048  # bytes of prefetch distance: the processor's own prefetch stops at each page
types: Any = NumbaModule("core.types")
_cgutils: Any = NumbaModule("core.cgutils")

_I8, _I32, _I64 = (ir.IntType(bits) for bits in (8, 32, 64))
_LANE = ir.VectorType(_I64, 2)
_LANES = ir.VectorType(_I64, 4)


@cache
def is_available() -> bool:
    """Whether numba compiles for a processor that has the instructions."""
    if platform.machine() not in ("x86_64", "AMD64"):
        return False
    settings = ("NUMBA_CPU_NAME", "NUMBA_CPU_FEATURES", "NUMBA_ENABLE_AVX")
    if any(name in os.environ for name in settings):
        return False  # numba may compile for another processor than this one
    features = llvmlite.binding.get_host_cpu_features()
    return all(features.get(name) for name in ("avx2", "pclmul", "vpclmulqdq"))


def _divided(exponent: int) -> tuple[int, int]:
    """x**exponent divided by the polynomial: (quotient, remainder), with the highest power in the top bit."""
    divisor = _POLYNOMIAL | 1 << 32
    quotient, rest = 0, 1 << exponent
    for bit in range(exponent, 31, -1):
        if rest >> bit & 1:
            rest ^= divisor << (bit - 32)
            quotient |= 1 << (bit - 32)
    return quotient, rest


def _reflected(value: int, bits: int) -> int:
    return int(f"{value:0{bits}b}"[::-1], 2)


def _move(bits: int) -> list[int]:
    """The two factors that move a lane `bits` ahead."""
    return [_reflected(_divided(exponent)[1], 32) << 1 for exponent in (bits + 32, bits - 32)]


class _Fold:
    """Emits the LLVM code."""

    def __init__(self, builder: Any) -> None:
        self.builder = builder

    def multiply(self, a: Any, b: Any, halves: int) -> Any:
        """Carry-less products, lane by lane; `halves` bits 0 and 4: upper half of a, of b."""
        suffix = ".256" if a.type == _LANES else ""
        kind = ir.FunctionType(a.type, [a.type, a.type, _I8])
        name = f"llvm.x86.pclmulqdq{suffix}"
        function = _cgutils.get_or_insert_function(self.builder.module, kind, name)
        return self.builder.call(function, [a, b, _I8(halves)])

    def moved(self, value: Any, factors: list[int]) -> Any:
        constant = ir.Constant(value.type, factors)
        return self.builder.xor(self.multiply(value, constant, 0x00), self.multiply(value, constant, 0x11))

    def load(self, pointer: Any, offset: Any) -> list[Any]:
        """The 64 bytes at pointer + offset, as two vectors."""
        return [
            self.builder.load(
                self.builder.bitcast(
                    self.builder.gep(pointer, [self.builder.add(offset, _I64(half))]), _LANES.as_pointer()
                ),
                align=1,
            )
            for half in (0, 32)
        ]

    def step(self, pair: list[Any], block: list[Any]) -> list[Any]:
        """The state after one more block."""
        factors = _move(8 * BLOCK) * 2
        return [
            self.builder.xor(self.moved(value, factors), more)
            for value, more in zip(pair, block, strict=True)
        ]

    def lane(self, value: Any, number: int) -> Any:
        places = ir.Constant(ir.VectorType(_I32, 2), [2 * number, 2 * number + 1])
        return self.builder.shuffle_vector(value, ir.Constant(_LANES, ir.Undefined), places)

    def behind(self, value: Any, size: int) -> Any:
        """A lane without its first `size` (4 or 8) bytes, padded with zeros."""
        kind = ir.VectorType(ir.IntType(8 * size), 16 // size)
        places = ir.Constant(ir.VectorType(_I32, kind.count), list(range(1, kind.count + 1)))
        value = self.builder.bitcast(value, kind)
        return self.builder.bitcast(self.builder.shuffle_vector(value, kind(None), places), _LANE)

    def reduced(self, pair: list[Any]) -> Any:
        """The 32-bit remainder of the four lanes.

        A lane is A * x**64 + B. Times x**32, that is A * (x**96 mod P) + B * x**32, of 96 bits; its
        quotient by P comes from the upper 64 of them (Barrett), and the remainder from that.
        """
        build = self.builder
        front = self.moved(pair[0], _move(384) + _move(256))
        value = build.xor(self.lane(front, 0), self.lane(front, 1))
        value = build.xor(value, self.moved(self.lane(pair[1], 0), _move(128)))
        value = build.xor(value, self.lane(pair[1], 1))
        # A product of reflected numbers comes out one power of x too high: hence 95, and << 1.
        fold = _reflected(_divided(95)[1], 32) << 32
        quotient = _reflected(_divided(96)[0] & _U64, 64) << 1 & _U64
        polynomial = _reflected(_POLYNOMIAL | 1 << 32, 33)
        product = self.multiply(value, ir.Constant(_LANE, [fold, 0]), 0x00)
        value = build.xor(self.behind(product, 4), self.behind(value, 8))
        estimate = build.xor(value, self.multiply(value, ir.Constant(_LANE, [quotient, 0]), 0x00))
        product = self.multiply(estimate, ir.Constant(_LANE, [polynomial, 0]), 0x00)
        words = build.bitcast(build.xor(value, product), ir.VectorType(_I32, 4))
        return build.extract_element(words, _I32(2))


def _edges(builder: Any, name: str, ones: range) -> Any:
    """A pointer to 256 constant bytes, 0xFF at `ones` and else 0.

    If the first block holds n bytes of the message, its mask is the 64 bytes at n; the second block's is at
    n + 64.
    """
    data = bytearray(0xFF if place in ones else 0 for place in range(4 * BLOCK))
    constant = _cgutils.global_constant(builder, name, _cgutils.make_bytearray(data))
    return builder.bitcast(constant, _I8.as_pointer())


def _crc_code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    data, start, length = arguments
    fold = _Fold(builder)
    pointer = context.make_array(signature.args[0])(context, builder, data).data
    own_bytes = _edges(builder, "crc_own_bytes", range(BLOCK, 2 * BLOCK))
    start_value = _edges(builder, "crc_start_value", range(BLOCK, BLOCK + SHORTEST))
    # the first block holds `edge` bytes of the message, 1 to 64, at its end
    edge = builder.add(builder.and_(builder.sub(length, _I64(1)), _I64(BLOCK - 1)), _I64(1))
    first = builder.sub(builder.add(start, edge), _I64(BLOCK))
    stop = builder.add(start, length)
    parts = (fold.load(pointer, first), fold.load(own_bytes, edge), fold.load(start_value, edge))
    state = [
        _cgutils.alloca_once_value(builder, builder.xor(builder.and_(value, own), begin))
        for value, own, begin in zip(*parts, strict=True)
    ]

    def advance(block: list[Any]) -> None:
        step = fold.step([builder.load(place) for place in state], block)
        for place, value in zip(state, step, strict=True):
            builder.store(value, place)

    second = builder.add(first, _I64(BLOCK))
    with builder.if_then(builder.icmp_signed("<", second, stop)):
        begin = fold.load(start_value, builder.add(edge, _I64(BLOCK)))
        advance([builder.xor(a, b) for a, b in zip(fold.load(pointer, second), begin, strict=True)])
        third = builder.add(second, _I64(BLOCK))
        with _cgutils.for_range_slice(builder, third, stop, _I64(BLOCK), _I64) as (at, _):
            emit_prefetch(builder, builder.gep(pointer, [builder.add(at, _I64(_AHEAD))]))
            advance(fold.load(pointer, at))
    return builder.not_(fold.reduced([builder.load(place) for place in state]))


def _crc(typing_context: Any, data: Any, start: Any, length: Any) -> Any:
    return types.uint32(data, types.int64, types.int64), _crc_code


fold_crc: Any = Intrinsic(_crc)
"""(data, start, length) -> CRC-32 of data[start : start + length].

The caller guarantees that BLOCK <= start, SHORTEST <= length and start + length <= len(data).
"""
