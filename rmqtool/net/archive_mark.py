"""Up to where the log of a store that receives is in which archive: the file `archiveCheckpoint`.

    12345678 s3://bucket/logs
    12345678 /backups/logs

It saves comparing copies again. That a copy is still there is not known from it.
"""

from __future__ import annotations

import os
from pathlib import Path

from rmqtool.errors import FormatError, UsageError
from rmqtool.lazy_pattern import pattern
from rmqtool.sizes import short
from rmqtool.storage import config_files
from rmqtool.storage.remote_url import is_url, local_path, parse

MARK_FILE = "archiveCheckpoint"
_NAME = pattern(rb"[^\n\0]{1,4000}")
_MARK = pattern(rb"(0|[1-9][0-9]{0,17}) ([^\n\0]{1,4000})\n")


def archive_name(text: str) -> str:
    """The name of an archive in the mark: an absolute path without links, or a URL without secrets.

    Raises UsageError for a text that names no place, or one that the mark cannot hold.
    """
    place = local_path(text) or text
    if not place:
        raise UsageError("the archive has no name", hint="--archive . is the current folder")
    name = str(parse(place)) if is_url(place) else _real(place)
    if _NAME.fullmatch(os.fsencode(name)) is None:
        raise UsageError(f"the archive {short(text)} has a line break or NUL in its name, or too long a name")
    return name


def _real(path: str) -> str:
    return path if "\0" in path else os.path.realpath(path)


def read_mark(root: Path) -> tuple[int, str] | None:
    """(physical offset, archive): up to where the log is in which one; None without the file.

    Raises UnreadableError, FormatError.
    """
    path = root / MARK_FILE
    if not path.exists():
        return None
    found = _MARK.fullmatch(config_files.read_file(path))
    if found is None:
        raise FormatError("it does not say up to where the log is archived", path=path, hint="delete it")
    return int(found[1]), os.fsdecode(found[2])


def save_mark(root: Path, offset: int, archive: str) -> None:
    """Note that the log is in the archive up to a physical offset. Raises UnwritableError."""
    config_files.replace_file(root, MARK_FILE, os.fsencode(f"{offset} {archive}\n"))


def lower_mark(root: Path, offset: int, file_size: int) -> None:
    """Before a log is cut at `offset`: files that change have to be shipped again.

    Raises as `read_mark` and `save_mark`.
    """
    mark = read_mark(root)
    if mark is not None and mark[0] > offset:
        save_mark(root, offset - offset % file_size, mark[1])
