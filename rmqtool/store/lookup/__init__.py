"""Messages found by what one knows of them: the engine of `rmqtool lookup`.

    keys.py        by key, unique key or tag: `find_by_key`
    places.py      by physical offset, message id, queue offset
    by_time.py     by time, as each broker answers it and exactly: `offset_by_time`
    query.py       the broker's own answer to a query by key: `query_message`
    columns.py     many keys at once, as columns: `lookup_columns`
    index_file.py  index files in small pieces
    coverage.py    which records the index cannot know
    queue_gaps.py  where the log may hold what a queue lacks
    log_scan.py    the log, where they do not help
    hits.py        what is found, what was looked at
    request.py     a look-up of the command, its rows
    time_rows.py   the rows of a look-up by time
    explain.py     the way to a key, as rows

A look-up of a few keys reads a few kilobytes in plain Python. What needs numpy is loaded when a part of
the log has to be scanned, or for thousands of keys.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rmqtool.store.lookup.by_time import exact_offset_by_time, offset_by_time
    from rmqtool.store.lookup.columns import ColumnLookup, lookup_columns
    from rmqtool.store.lookup.hits import Hit, Looked
    from rmqtool.store.lookup.keys import find_by_key
    from rmqtool.store.lookup.places import find_by_msg_id, find_by_offset, find_by_queue_offset
    from rmqtool.store.lookup.query import QueryResult, query_message

_HOMES = {
    "ColumnLookup": "columns", "Hit": "hits", "Looked": "hits", "QueryResult": "query",
    "exact_offset_by_time": "by_time", "find_by_key": "keys", "find_by_msg_id": "places",
    "find_by_offset": "places", "find_by_queue_offset": "places", "lookup_columns": "columns",
    "offset_by_time": "by_time", "query_message": "query",
}  # fmt: skip

__all__ = [
    "ColumnLookup", "Hit", "Looked", "QueryResult", "exact_offset_by_time", "find_by_key", "find_by_msg_id",
    "find_by_offset", "find_by_queue_offset", "lookup_columns", "offset_by_time", "query_message",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
