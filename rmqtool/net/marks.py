"""Files of a store that receives which say up to where its log was dispatched, and archived.

    dispatchCheckpoint   12345678 open              a run keeps queues and index: what they have beyond is
                                                    cleared by the next run
                         12345678 closed            a run has ended here: they have nothing beyond
    archiveCheckpoint    12345678 s3://bucket/logs  up to where the log is in which archive
                         12345678 /backups/logs

The number is a physical offset. Everything before it is in queues and index, on the device; or in the
archive, which saves comparing the copies again, but does not show that they are still there. A broker reads
neither file.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

from rmqtool.command_line import on_store
from rmqtool.errors import FormatError, UsageError
from rmqtool.lazy_pattern import pattern
from rmqtool.sizes import short
from rmqtool.storage import config_files
from rmqtool.storage.remote_url import is_url, local_path, parse

OPEN, CLOSED = "open", "closed"
_LINE_MAX = 5000
_NUMBER = rb"(0|[1-9][0-9]{0,17})"


class Mark(NamedTuple):
    """A physical offset, and what is said of it: `OPEN`, `CLOSED`, or the name of an archive."""

    offset: int
    text: str


class MarkFile:
    """A file with one mark, in the root of a store."""

    def __init__(self, name: str, text: bytes, what: str, hint: str) -> None:
        """Of a file `name`, whose marks have a `text` of this pattern; `what` and `hint` are for errors."""
        self.name = name
        self._line = pattern(_NUMBER + b" (" + text + b")\n")
        self._what = what
        self._hint = hint

    def read(self, root: Path) -> Mark | None:
        """The mark; None without the file. Raises UnreadableError, FormatError."""
        path = root / self.name
        if not path.exists():
            return None
        found = self._line.fullmatch(config_files.read_file(path, _LINE_MAX))
        if found is None:
            raise FormatError(f"does not say up to where the log {self._what}", path=path,
                              hint=self._hint.format(rebuild=rebuild_line(root)))  # fmt: skip
        return Mark(int(found[1]), os.fsdecode(found[2]))

    def save(self, root: Path, offset: int, text: str) -> None:
        """Replace the mark. Raises UnwritableError."""
        config_files.replace_file(root, self.name, os.fsencode(f"{offset} {text}\n"))


def rebuild_line(root: Path) -> str:
    """The command line that makes queues and index of a store again."""
    return on_store(root, "rebuild", "--apply")


REBUILD_HINT = "delete it, and run {rebuild}"
DISPATCHED = MarkFile("dispatchCheckpoint", rb"open|closed", "was dispatched", REBUILD_HINT)
"""Up to where queues and index are complete, and whether a run went on from there and did not end."""
_NAME = rb"[^\n\0]{1,4000}"
_IS_NAME = pattern(_NAME)
ARCHIVED = MarkFile("archiveCheckpoint", _NAME, "is archived", "delete it")
"""Up to where the files of the log are in which archive."""


def lower_marks(root: Path, offset: int, start: int, file_size: int) -> None:
    """Before a log that begins at `start` is cut at `offset`: what follows is dispatched and shipped again.

    Raises UnreadableError, FormatError, UnwritableError.
    """
    dispatched, archived = DISPATCHED.read(root), ARCHIVED.read(root)
    if dispatched is not None and dispatched.offset > offset:
        DISPATCHED.save(root, offset, OPEN)
    elif dispatched is None and any((root / "consumequeue").glob("*/*/*")):
        DISPATCHED.save(root, start, OPEN)
    if archived is not None and archived.offset > offset:
        ARCHIVED.save(root, offset - offset % file_size, archived.text)


def archive_name(text: str) -> str:
    """The name of an archive in its mark: an absolute path without links, or a URL without secrets.

    Raises UsageError for a text that names no place, or one that the mark cannot hold.
    """
    place = local_path(text) or text
    if not place:
        raise UsageError("the archive has no name", hint="--archive . is the current folder")
    name = str(parse(place)) if is_url(place) else _real(place)
    if _IS_NAME.fullmatch(os.fsencode(name)) is None:
        raise UsageError(f"the archive {short(text)} has a line break or NUL in its name, or too long a name")
    return name


def _real(path: str) -> str:
    return path if "\0" in path else os.path.realpath(path)
