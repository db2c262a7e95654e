"""From one construct declaration to everything else: sizes, numpy dtypes, fast codecs, tables.

A structure is declared once, as a `construct.Struct` whose fields carry their text
(`"size" / Int32sb * "bytes of the record"`). `Layout` derives from it, for structures and heads
of a fixed size: the field table (man page, annotated hex), a `struct.Struct` (fast codec) and a
numpy dtype. construct itself is the reference codec; the tests hold the fast ones against it.
construct's `.compile()` is never used on bytes from disk (its manual warns against it).

`parts` provides the vocabulary of construct and loads it only when a declaration is used to parse.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from functools import cached_property
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from rmqtool.formats.parts import Part
from rmqtool.lazy_dataclass import dataclass

if TYPE_CHECKING:
    import numpy as np

_INTEGER_CODES = {(1, True): "b", (2, True): "h", (4, True): "i", (8, True): "q",
                  (1, False): "B", (2, False): "H", (4, False): "I", (8, False): "Q"}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a declaration.

    `offset` and `size` are bytes from the structure's start; None if they depend on a length
    field before. `kind` is `i8`, `i32`, `u8`, ... for integers, `u32le`, ... for little-endian ones, `bytes`
    otherwise.
    """

    name: str
    offset: int | None
    size: int | None
    kind: str
    text: str


def fields_of(declaration: Part, **context: int) -> Iterator[Field]:
    """The fields of `declaration`, a Struct, in order; `context` gives the values that lengths depend on."""
    known = SimpleNamespace(**context)
    offset: int | None = 0
    for part in declaration.arguments:
        integer = part.integer
        size = part.size(known)
        kind = "bytes" if integer is None else f"{'i' if integer[1] else 'u'}{integer[0] * 8}"
        kind += "le" if part.is_little else ""
        yield Field(part.name, offset, size, kind, " ".join(part.docs.split()))
        offset = None if offset is None or size is None else offset + size


class Layout:
    """A structure of fixed size: its fields, a `struct.Struct` and a numpy dtype.

    Args:
        name: the structure's name in man pages and errors.
        declaration: a Struct of `parts`. Every field is an integer or bytes.
        text: one paragraph on what the structure is.
        context: values that fix the sizes of fields which depend on another field.
    """

    def __init__(self, name: str, declaration: Part, text: str, **context: int) -> None:
        self.name = name
        self.declaration = declaration
        self.text = text
        self.fields = tuple(fields_of(declaration, **context))
        integers = [part for part in declaration.arguments if part.integer is not None]
        self.is_little = any(part.is_little for part in integers)
        if self.is_little and not all(part.is_little or part.integer[0] == 1 for part in integers):
            raise TypeError(f"{name} mixes the two orders of bytes")
        self.codec = struct.Struct(
            (">", "<")[self.is_little] + "".join(_struct_code(name, field) for field in self.fields)
        )
        self.size = self.codec.size

    @cached_property
    def offsets(self) -> dict[str, int]:
        """Byte offset of every field from the structure's start."""
        return {field.name: field.offset for field in self.fields if field.offset is not None}

    @cached_property
    def dtype(self) -> np.dtype[np.void]:
        """The numpy dtype, packed: `dtype.itemsize == size`."""
        import numpy as np

        order = "<" if self.is_little else ">"
        dtype = np.dtype([(field.name, _numpy_code(field, order)) for field in self.fields])
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


def _numpy_code(field: Field, order: str) -> str:
    if field.kind == "bytes":
        return f"V{field.size}"
    return f"{order}{field.kind[0]}{field.size}"
