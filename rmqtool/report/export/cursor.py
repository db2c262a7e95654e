"""A cursor: where an export ended, so that the next one continues exactly there.

A cursor is a small JSON file of the user. It is replaced as a whole, and only after the exported files
are complete. It is untrusted input: numbers are checked, and no path in it is written to or deleted.

    next_offset   physical offset at which the next run starts
    check         CRC of the log's bytes just before it; it detects another store, or a log that was
                  truncated and written again
    selection     the exported selection; another one would miss messages before next_offset
    unfinished    an output that was about to appear when this was written, and the cursor's place if
                  it did
"""

from __future__ import annotations

import zlib
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

from msgspec import Struct, to_builtins

from rmqtool.errors import InputError, RefusedError, UnreadableError
from rmqtool.lazy_dataclass import dataclass
from rmqtool.read.selection import Selection
from rmqtool.read.store import Store
from rmqtool.repair.plan.documents import convert, put_json, read_json
from rmqtool.storage.source import open_source

_VERSION = 1
_CHECK_BYTES = 4096
_LARGEST = 1 << 63


class Check(Struct, frozen=True):
    """CRC-32 of the `length` bytes before an offset."""

    length: int
    crc32: int


class Unfinished(Struct, frozen=True):
    """An output that may exist, and the cursor's place if it does."""

    output: str
    next_offset: int
    check: Check | None


class _Document(Struct, frozen=True, forbid_unknown_fields=True):
    version: int
    next_offset: int
    check: Check | None
    selection: dict[str, Any]
    unfinished: Unfinished | None = None


@dataclass(frozen=True)
class Cursor:
    """A cursor file.

    Attributes:
        path: path of the file.
        next_offset: physical offset at which the next run starts; None: the log's start.
        check: check of the bytes before it; None if there are none.
        selection: see `selected`.
        unfinished: an output that may exist.
    """

    path: Path
    next_offset: int | None
    check: Check | None
    selection: dict[str, Any]
    unfinished: Unfinished | None = None

    @classmethod
    def read(cls, path: Path, selection: Selection) -> Cursor:
        """The cursor of the file at `path`; a new one if the file is missing.

        Raises:
            InputError: the file is not a cursor, or holds an invalid value.
            RefusedError: it was made for another selection.
        """
        found = read_json(path)
        if found is None:
            return cls(path, None, None, selected(selection))
        document = convert(found, _Document, path)
        places: list[_Document | Unfinished] = [document]
        places += [document.unfinished] if document.unfinished is not None else []
        if document.version != _VERSION or not all(_is_sound(place) for place in places):
            raise InputError("this is not a cursor of this version of rmqtool", path=path)
        if document.selection != selected(selection):
            raise RefusedError(
                "the cursor was made for another selection", path=path,
                hint="use the same options again, or another cursor file",
            )  # fmt: skip
        return cls(path, document.next_offset, document.check, document.selection, document.unfinished)

    def at(self, store: Store, next_offset: int) -> Cursor:
        """The cursor moved to `next_offset`, without an unfinished output."""
        return replace(self, next_offset=next_offset, check=check_of(store, next_offset), unfinished=None)

    def save(self, unfinished: Unfinished | None = None) -> None:
        """Replace the file and flush it. Raises UnwritableError."""
        document = _Document(_VERSION, self.next_offset or 0, self.check, self.selection, unfinished)
        put_json(self.path, to_builtins(document), own=True)

    def verify(self, store: Store) -> None:
        """Raises RefusedError if the store's log is not the one for which the cursor was made."""
        offset, check = self.next_offset, self.check
        if offset is None or check is None or store.commit_log.file_of(offset - 1) is None:
            end = store.commit_log.files[-1].end if store.commit_log.files else 0
            if offset is not None and offset > end:
                raise self._other(f"it stands at {offset}, the log ends at {end}")
            return
        if check_of(store, offset, check.length) != check:
            raise self._other(f"the bytes before offset {offset} have changed")

    def _other(self, reason: str) -> RefusedError:
        return RefusedError(
            f"the cursor is not of this log: {reason}", path=self.path,
            hint="the log was cut back, or it is another store; delete the cursor to start again",
        )  # fmt: skip


def selected(selection: Selection) -> dict[str, Any]:
    """The parts of the selection that must be equal in all runs of one cursor; times may differ."""
    names = ("topics", "exclude_topics", "queues", "tags", "keys")
    found: dict[str, Any] = {
        name: sorted(getattr(selection, name)) for name in names if getattr(selection, name)
    }
    if selection.filter is not None:
        found["filter"] = selection.filter.text
    if selection.grep is not None:
        found["grep"] = selection.grep.text
    return found


def check_of(store: Store, offset: int, length: int = _CHECK_BYTES) -> Check | None:
    """The check of the bytes before a physical offset; None if no file holds them.

    Raises:
        UnreadableError: they cannot be read.
    """
    file = store.commit_log.file_of(offset - 1) if offset > 0 else None
    if file is None:
        return None
    position = offset - file.file_from_offset
    length = min(length, position)
    try:
        with closing(open_source(file.path)) as source:
            data = source.read(position - length, length)
    except OSError as error:
        raise UnreadableError(f"cannot read: {error.strerror}", path=file.path) from error
    return Check(len(data), zlib.crc32(data))


def _is_sound(place: _Document | Unfinished) -> bool:
    check = place.check
    return 0 <= place.next_offset < _LARGEST and (check is None or 0 <= check.length <= _CHECK_BYTES)
