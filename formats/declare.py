"""From one construct declaration to everything else: sizes, numpy dtypes, fast codecs, tables.

A structure is declared once, as a `construct.Struct` whose fields carry their text
(`"size" / Int32sb * "bytes of the record"`). `Layout` derives from it, for structures and heads
of a fixed size: the field table (man page, annotated hex), a `struct.Struct` (fast codec) and a
numpy dtype. construct itself is the reference codec; the tests hold the fast ones against it.
construct's `.compile()` is never used on bytes from disk (its manual warns against it).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from construct import BytesInteger, Construct, FormatField, Renamed, Struct

if TYPE_CHECKING:
    import numpy as np

_INTEGER_CODES = {(1, True): "b", (2, True): "h", (4, True): "i", (8, True): "q",
                  (1, False): "B", (2, False): "H", (4, False): "I", (8, False): "Q"}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a declaration.

    `offset` and `size` are bytes from the structure's start; None where they depend on a length
    field before. `kind` is `i8`, `i32`, `u8`, ... for big-endian integers, `bytes` otherwise.
    """

    name: str
    offset: int | None
    size: int | None
    kind: str
    text: str


def _inner(subcon: Construct) -> Construct:
    while isinstance(subcon, Renamed):
        subcon = subcon.subcon
    return subcon


def _text(subcon: Construct) -> str:
    docs: Any = getattr(subcon, "docs", "")
    return " ".join(str(docs).split())


def _integer(subcon: Construct) -> tuple[int, bool] | None:
    """(bytes, signed) of an integer field, else None.

    `fmtstr` is never trusted for the size: numpy and struct read its letters differently (`>l` is
    4 bytes in construct and 8 in numpy).
    """
    inner = _inner(subcon)
    if isinstance(inner, FormatField):
        letter = str(inner.fmtstr)[-1]
        return (inner.sizeof(), letter.islower()) if letter.lower() in "bhilq" else None
    if isinstance(inner, BytesInteger):
        return inner.sizeof(), bool(inner.signed)
    return None


def fields_of(declaration: Struct, **context: int) -> Iterator[Field]:
    """The fields of `declaration` in order; `context` fixes what lengths depend on."""
    offset: int | None = 0
    for subcon in declaration.subcons:
        integer = _integer(subcon)
        size: int | None
        if integer is not None:
            size, signed = integer
            kind = f"{'i' if signed else 'u'}{size * 8}"
        else:
            size, kind = _size(subcon, context), "bytes"
        yield Field(str(subcon.name), offset, size, kind, _text(subcon))
        offset = None if offset is None or size is None else offset + size


def _size(subcon: Construct, context: Mapping[str, int]) -> int | None:
    from construct import SizeofError

    try:
        return int(subcon.sizeof(**context))
    except (SizeofError, AttributeError, KeyError):
        return None


class Layout:
    """A structure of fixed size: its fields, a `struct.Struct` and a numpy dtype.

    Args:
        name: the structure's name in man pages and errors.
        declaration: the construct declaration. Every field is an integer or bytes.
        text: one paragraph on what the structure is.
        context: values that fix the sizes of fields which depend on another field.
    """

    def __init__(self, name: str, declaration: Struct, text: str, **context: int) -> None:
        self.name = name
        self.declaration = declaration
        self.text = text
        self.fields = tuple(fields_of(declaration, **context))
        self.codec = struct.Struct(">" + "".join(_struct_code(name, field) for field in self.fields))
        self.size = self.codec.size

    @cached_property
    def offsets(self) -> dict[str, int]:
        """Byte offset of every field from the structure's start."""
        return {field.name: field.offset for field in self.fields if field.offset is not None}

    @cached_property
    def dtype(self) -> np.dtype[np.void]:
        """The numpy dtype, big-endian and packed: `dtype.itemsize == size`."""
        import numpy as np

        dtype = np.dtype([(field.name, _numpy_code(field)) for field in self.fields])
        assert dtype.itemsize == self.size, (self.name, dtype.itemsize, self.size)
        return dtype

    def unpack(self, buffer: bytes | bytearray | memoryview, offset: int = 0) -> tuple[Any, ...]:
        """The field values at `offset`, in declaration order. Raises struct.error when short."""
        return self.codec.unpack_from(buffer, offset)

    def pack(self, *values: Any) -> bytes:
        """The bytes of one structure. Raises struct.error for a value out of range."""
        return self.codec.pack(*values)


def _struct_code(name: str, field: Field) -> str:
    if field.size is None:
        raise TypeError(f"{name}.{field.name} has no fixed size")
    if field.kind == "bytes":
        return f"{field.size}s"
    return _INTEGER_CODES[field.size, field.kind.startswith("i")]


def _numpy_code(field: Field) -> str:
    if field.kind == "bytes":
        return f"V{field.size}"
    return f">{field.kind[0]}{field.size}"
