"""rmqtool: the storage engine and toolkit for Apache RocketMQ's on-disk message store.

The public names are those of `__all__`; rmqtool-python(7) describes them. Importing the package is fast,
because a name is loaded when it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rmqtool.broker.predict import predict as predict
    from rmqtool.check.verify import verify as verify
    from rmqtool.errors import RmqtoolError as RmqtoolError
    from rmqtool.formats.message import Message as Message
    from rmqtool.log.events import StoredMessage as StoredMessage
    from rmqtool.message.rows import message_row as message_row
    from rmqtool.problems import Finding as Finding
    from rmqtool.read.hits import Hit as Hit
    from rmqtool.read.key_columns import lookup_columns as lookup_columns
    from rmqtool.read.lookup_request import lookup as lookup
    from rmqtool.read.messages import message_batches as message_batches
    from rmqtool.read.query_message import query_message as query_message
    from rmqtool.read.selection import Selection as Selection
    from rmqtool.read.store import Store as Store
    from rmqtool.report.export.run import export as export
    from rmqtool.report.tail.get_message import get_message as get_message
    from rmqtool.write.records.message import NewMessage as NewMessage
    from rmqtool.write.store_writer import StoreWriter as StoreWriter

__version__ = "0.2.0"
_HOMES = {
    "Finding": "rmqtool.problems",
    "Hit": "rmqtool.read.hits",
    "Message": "rmqtool.formats.message",
    "NewMessage": "rmqtool.write.records.message",
    "RmqtoolError": "rmqtool.errors",
    "Selection": "rmqtool.read.selection",
    "Store": "rmqtool.read.store",
    "StoreWriter": "rmqtool.write.store_writer",
    "StoredMessage": "rmqtool.log.events",
    "export": "rmqtool.report.export.run",
    "get_message": "rmqtool.report.tail.get_message",
    "lookup": "rmqtool.read.lookup_request",
    "lookup_columns": "rmqtool.read.key_columns",
    "message_batches": "rmqtool.read.messages",
    "message_row": "rmqtool.message.rows",
    "predict": "rmqtool.broker.predict",
    "query_message": "rmqtool.read.query_message",
    "verify": "rmqtool.check.verify",
}
__all__ = [
    "Finding", "Hit", "Message", "NewMessage", "RmqtoolError", "Selection", "Store", "StoreWriter",
    "StoredMessage", "__version__", "export", "get_message", "lookup", "lookup_columns",
    "message_batches", "message_row", "predict", "query_message", "verify",
]  # fmt: skip


def __getattr__(name: str) -> object:
    """A public name from the module where it lives. Raises AttributeError for any other name."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
