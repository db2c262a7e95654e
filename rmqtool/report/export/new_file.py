"""A local file that is there when it is whole, or not at all."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from rmqtool.errors import RefusedError
from rmqtool.report.export.outputs import OutputTarget


def check_new(path: Path) -> None:
    """Raises RefusedError where something is at `path` already."""
    if path.exists() or path.is_symlink():
        raise RefusedError("the file exists", path=path, hint="remove it or name another")


def write_new(path: Path, pieces: Iterable[bytes | memoryview]) -> int:
    """Write a new file of these bytes; how many they were.

    Raises:
        RefusedError: something is at `path`.
        UnwritableError: it cannot be written; nothing is left of it.
    """
    check_new(path)
    place, name = OutputTarget.of_file(str(path.absolute()))
    draft = place.begin(name)
    try:
        size = 0
        for piece in pieces:
            with draft.explained():
                draft.stream.write(piece)
            size += len(piece)
        draft.commit()
    finally:
        draft.abort()
    return size
