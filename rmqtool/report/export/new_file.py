"""A new local file that appears only when it is complete."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from rmqtool.errors import RefusedError
from rmqtool.report.export.outputs import OutputTarget


def check_new(path: Path) -> None:
    """Raises RefusedError if something exists at `path`."""
    if path.exists() or path.is_symlink():
        raise RefusedError("the file exists", path=path, hint="remove it or name another")


def write_new(path: Path, pieces: Iterable[bytes | memoryview]) -> int:
    """Write a new file with these bytes; returns their number.

    Raises:
        RefusedError: something exists at `path`.
        UnwritableError: it cannot be written; no file is left.
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
