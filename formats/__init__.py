"""The structures of the store: bytes <-> values, without files, clock or platform.

`STRUCTURES` lists what rmqtool-store(5) describes, in its order; it loads every module here. A structure has
an encoder and a decoder even where the product needs only one of them: together they are the reference of the
format, and tests compare the compiled code with them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rmqtool.formats.structures import STRUCTURES

__all__ = ["STRUCTURES"]


def __getattr__(name: str) -> Any:
    if name == "STRUCTURES":
        from rmqtool.formats import structures

        return structures.STRUCTURES
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
