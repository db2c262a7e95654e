"""The vocabulary of construct for declaring structures; construct itself is loaded only when needed.

A declaration has construct's own syntax (`"size" / Int32sb * "bytes of the record"`). Code that reads a
store takes sizes and fast codecs from it (`declare.Layout`) and never parses with it; loading construct
would take as long as looking up a message. `Part.construct` creates the real construct on first use. All
other attributes of a part (`parse`, `build`, `subcons`, ...) are forwarded to it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from types import SimpleNamespace
from typing import Any, Self

Length = int | Callable[[Any], int]
"""A number, or a function of the context: the preceding fields and the context of `Layout`."""


class Part:
    """A word of construct with its arguments; with a name and a text it is a field."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self.arguments = arguments
        self.options = options
        self.name: str | None = None
        self.docs = ""

    def __rtruediv__(self, name: str) -> Self:
        """The field `name`."""
        return self._with("name", name)

    def __mul__(self, docs: str) -> Self:
        """The field with its text."""
        return self._with("docs", docs)

    def _with(self, attribute: str, value: str) -> Self:
        """Return the same part with another value of an attribute; `copy` takes three times as long."""
        made = object.__new__(type(self))
        vars(made).update(vars(self))
        setattr(made, attribute, value)
        return made

    @property
    def word(self) -> str:
        """Its name in construct."""
        return type(self).__name__

    @property
    def integer(self) -> tuple[int, bool] | None:
        """(bytes, signed) of an integer, else None."""
        return None

    @property
    def is_little(self) -> bool:
        """Whether it is an integer whose first byte is the lowest, as in RocksDB; others are big-endian."""
        return False

    def size(self, context: SimpleNamespace) -> int | None:
        """Bytes of the field; None if they depend on a value that `context` lacks."""
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
        """Forwards `attribute` to construct, except for Python's own names (`__x__`)."""
        if attribute.startswith("__") or "arguments" not in self.__dict__:
            raise AttributeError(attribute)
        return getattr(self.construct, attribute)


class Struct(Part):
    """Fields one after the other."""


class Bytes(Part):
    """A given number of bytes."""

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
    """The first part if the condition, a function of the context, holds, else the second."""

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
    """A part, repeated up to the end."""


class GreedyString(Part):
    """Text of an encoding, up to the end."""


class NullTerminated(Part):
    """A part up to a terminator."""


class _GreedyBytes(Part):
    @property
    def word(self) -> str:
        return "GreedyBytes"


class _Integer(Part):
    def __init__(self, size: int, signed: bool, order: str = "b") -> None:
        super().__init__()
        self._size = size
        self._signed = signed
        self._order = order

    @property
    def word(self) -> str:
        return f"Int{8 * self._size}{'s' if self._signed else 'u'}{self._order}"

    @property
    def is_little(self) -> bool:
        """See Part."""
        return self._order == "l"

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
Int16ul, Int32ul, Int64ul = _Integer(2, False, "l"), _Integer(4, False, "l"), _Integer(8, False, "l")
"""Little-endian, as RocksDB writes them."""
