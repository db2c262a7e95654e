"""The words of construct in which structures are declared; construct itself is loaded when it is needed.

A declaration is written as construct wants it (`"size" / Int32sb * "bytes of the record"`). What reads
a store takes sizes and fast codecs from it (`declare.Layout`) and never parses with it, and to load
construct takes as long as to look a message up. `Part.construct` is the real one, made when it is
first asked for; the other attributes of a part (`parse`, `build`, `subcons`, ...) are those of it.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from functools import cached_property
from types import SimpleNamespace
from typing import Any, Self

Length = int | Callable[[Any], int]
"""A number, or a function of the context: the fields before, and what `Layout` was given."""


class Part:
    """A word of construct with its arguments; with a name and a text it is a field."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self.arguments = arguments
        self.options = options
        self.name: str | None = None
        self.docs = ""

    def __rtruediv__(self, name: str) -> Self:
        """The field `name`."""
        made = copy(self)
        made.name = name
        return made

    def __mul__(self, docs: str) -> Self:
        """The field with its text."""
        made = copy(self)
        made.docs = docs
        return made

    @property
    def word(self) -> str:
        """What construct calls it."""
        return type(self).__name__

    @property
    def integer(self) -> tuple[int, bool] | None:
        """(bytes, signed) of a big-endian integer, else None."""
        return None

    def size(self, context: SimpleNamespace) -> int | None:
        """Bytes of the field; None where they depend on what `context` does not say."""
        return None

    @cached_property
    def construct(self) -> Any:
        """The construct that this declares."""
        import construct

        made = getattr(construct, self.word)
        if self.arguments or self.options:
            arguments = (each.construct if isinstance(each, Part) else each for each in self.arguments)
            made = made(*arguments, **self.options)
        if self.name is not None:
            made = self.name / made
        return made * self.docs if self.docs else made

    def __getattr__(self, attribute: str) -> Any:
        """What construct has under that name; Python's own names are never asked for there."""
        if attribute.startswith("__") or "arguments" not in self.__dict__:
            raise AttributeError(attribute)
        return getattr(self.construct, attribute)


class Struct(Part):
    """Fields one behind the other."""


class Bytes(Part):
    """So many bytes."""

    def __init__(self, length: Length) -> None:
        super().__init__(length)

    def size(self, context: SimpleNamespace) -> int | None:
        """See Part."""
        length: Length = self.arguments[0]
        try:
            return length if isinstance(length, int) else length(context)
        except AttributeError:
            return None


class IfThenElse(Part):
    """The first part where the condition, a function of the context, holds, else the second."""

    def __init__(self, condition: Callable[[Any], bool], then: Part, other: Part) -> None:
        super().__init__(condition, then, other)

    def size(self, context: SimpleNamespace) -> int | None:
        """See Part."""
        condition, then, other = self.arguments
        try:
            chosen: Part = then if condition(context) else other
        except AttributeError:
            return None
        return chosen.size(context)


class GreedyRange(Part):
    """As many of a part as there are."""


class GreedyString(Part):
    """Text of an encoding, up to the end."""


class NullTerminated(Part):
    """A part up to a terminator."""


class _GreedyBytes(Part):
    @property
    def word(self) -> str:
        return "GreedyBytes"


class _Integer(Part):
    def __init__(self, size: int, signed: bool) -> None:
        super().__init__()
        self._size = size
        self._signed = signed

    @property
    def word(self) -> str:
        return f"Int{8 * self._size}{'s' if self._signed else 'u'}b"

    @property
    def integer(self) -> tuple[int, bool]:
        return self._size, self._signed

    def size(self, context: SimpleNamespace) -> int:
        return self._size


GreedyBytes = _GreedyBytes()
Int8sb, Int8ub = _Integer(1, True), _Integer(1, False)
Int16sb, Int16ub = _Integer(2, True), _Integer(2, False)
Int32sb, Int32ub = _Integer(4, True), _Integer(4, False)
Int64sb = _Integer(8, True)
