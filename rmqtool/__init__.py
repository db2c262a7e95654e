"""rmqtool: the storage engine and toolkit for Apache RocketMQ's on-disk message store.

Light to import: the public names are loaded when they are first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rmqtool.problems import Finding as Finding
    from rmqtool.read.store import Store as Store
    from rmqtool.write.records.message import NewMessage as NewMessage
    from rmqtool.write.store_writer import StoreWriter as StoreWriter

__version__ = "0.1.0"
__all__ = ["Finding", "NewMessage", "Store", "StoreWriter", "__version__"]

_HOMES = {
    "Finding": "rmqtool.problems",
    "NewMessage": "rmqtool.write.records.message",
    "Store": "rmqtool.read.store",
    "StoreWriter": "rmqtool.write.store_writer",
}


def __getattr__(name: str) -> object:
    """A public name from the module where it lives. Raises AttributeError for any other name."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
