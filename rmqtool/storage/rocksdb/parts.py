"""Which parts of a store are in RocksDB databases that can be read: they leave `StoreLayout.unsupported`.

A database that cannot be read stays there, with the reason. Source: spec 06 section 1.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from rmqtool.errors import InputError
from rmqtool.storage.rocksdb.config import RocksdbConfig
from rmqtool.storage.rocksdb.database import Database
from rmqtool.storage.rocksdb.queues import RocksdbQueues
from rmqtool.storage.unsupported import (
    POP_RECORDS,
    QUEUES_IN_ROCKSDB,
    SIDE_FOLDER,
    SIDE_STORE,
    TIMER_MESSAGES,
    Unsupported,
)

if TYPE_CHECKING:
    from rmqtool.storage.layout import StoreLayout

_INDEX = "second index entries"  # without broker.conf: a broker mostly writes index files as well
_SIDE_FAMILIES = (("default", _INDEX), ("timer", TIMER_MESSAGES), ("trans", "half messages"))


def open_parts(layout: StoreLayout, root: Path) -> None:
    """Open what the layout calls unsupported, and move the parts that can be read to `read_only`."""
    for part in layout.unsupported:
        if part.what in QUEUES_IN_ROCKSDB:
            _open_queues(layout, part, root / "consumequeue")
        elif part.what == POP_RECORDS:
            _open_pop(layout, part)
    side = tuple(part for part in layout.unsupported if part.path == root / SIDE_FOLDER)
    if side:
        _open_side(layout, side, root / SIDE_FOLDER)
    config = tuple(part for part in layout.unsupported if part.what == "config")
    if config:
        _open_config(layout, config, root / "config")


def _read(layout: StoreLayout, *parts: Unsupported) -> None:
    layout.unsupported = tuple(part for part in layout.unsupported if part not in parts)
    layout.read_only = (*layout.read_only, *parts)


def _broken(layout: StoreLayout, error: InputError, *parts: Unsupported) -> None:
    reasons = {
        part: replace(
            part, reason=error.message, place=(Path(error.path or part.path), error.physical_offset)
        )
        for part in parts
    }
    layout.unsupported = tuple(reasons.get(part, part) for part in layout.unsupported)


def _open_queues(layout: StoreLayout, part: Unsupported, folder: Path) -> None:
    """The only queues, or second ones."""
    opened = RocksdbQueues(folder)
    try:
        _ = opened.queues
    except InputError as error:
        opened.close()
        _broken(layout, error, part)
    else:
        layout.rocksdb = opened
        _read(layout, part)


def _open_pop(layout: StoreLayout, part: Unsupported) -> None:
    database = Database(part.path)
    try:
        _ = database.families
    except InputError as error:
        _broken(layout, error, part)
    else:
        layout.pop = database
        _read(layout, part)
    finally:
        database.close()


def _open_side(layout: StoreLayout, parts: tuple[Unsupported, ...], folder: Path) -> None:
    """Timer messages and the index are read there; the log says which transactions are open."""
    database = Database(folder)
    try:
        filled = [what for family, what in _SIDE_FAMILIES if database.first(family, b"") is not None]
    except InputError as error:
        _broken(layout, error, *parts)
        return
    finally:
        database.close()
    named = [part for part in parts if part.what != SIDE_STORE] or [
        Unsupported(each, folder) for each in filled
    ]
    is_complete = not (database.lacks_log or database.lost_edits(is_clean=True))
    layout.rocksdb_messages = None if is_complete and not named else database
    layout.unsupported = tuple(part for part in layout.unsupported if part not in parts)
    layout.read_only = (*layout.read_only, *named)


def _open_config(layout: StoreLayout, parts: tuple[Unsupported, ...], folder: Path) -> None:
    config = RocksdbConfig(folder)
    try:
        _ = config.documents
    except InputError as error:
        _broken(layout, error, *parts)
    else:
        for part in parts:
            failed = config.failed.get(part.path)
            if failed is None:
                _read(layout, part)
            else:
                _broken(layout, failed, part)
        if config.documents:
            layout.rocksdb_config = config
