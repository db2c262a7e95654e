"""Selected messages of a store as Arrow record batches, at the speed of a scan.

    schema.py         the Arrow types of the one table of columns
    access.py         how the messages are reached: log, queue or index
    queue_access.py   by units of consume queues, where these tile the log
    index_access.py   by the index
    boundaries.py     places where a record begins, for pieces and for the time range in a large file
    split.py          pieces of an access that workers read on their own
    walk.py           one range of a file: batches of records, and what lies between them
    residual.py       the selection's test on whole batches
    bodies.py         bodies, unpacked within a budget
    columns.py        one column of a batch
    reading.py        one reading of an access, and the findings on the way
    parallel.py       ranges in threads, results in order
    messages.py       message_batches, frame_batches

The rows are those of `rmqtool.store.rows`, field by field; `tests/test_batches.py` holds them against it.

What reads is loaded when it is asked for: Spark's driver, which only plans, does without.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from rmqtool.store.batches.access import Access, LogRange, plan_access
from rmqtool.store.batches.split import split

if TYPE_CHECKING:
    from rmqtool.store.batches.messages import frame_batches, message_batches
    from rmqtool.store.batches.reading import FrameBatch
    from rmqtool.store.batches.schema import arrow_schema

_HOMES = {
    "FrameBatch": "reading", "arrow_schema": "schema", "frame_batches": "messages",
    "message_batches": "messages",
}  # fmt: skip
__all__ = [
    "Access", "FrameBatch", "LogRange", "arrow_schema", "frame_batches", "message_batches", "plan_access",
    "split",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
