"""An anonymous temporary file: it is gone when the process ends, however it ends.

Runs of zeros become holes, so the unused tail of a log costs nothing. The folder is RMQTOOL_TMPDIR, else the
system's folder for temporary files (TMPDIR).
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable

from rmqtool.errors import FormatError, UnwritableError
from rmqtool.storage.remote_file import LocalFile

FILE_LIMIT = 1 << 31
"""Most bytes of one file of a store: a broker maps each file as a whole (DefaultMappedFile#init)."""
UNPACKED_LIMIT = 1 << 40
"""Most bytes, zeros included, that one input may unpack to; more is treated as an attack."""

_ALIGNMENT = 4096
_STEP = 64 << 10
_ZEROS = bytes(_STEP)
_ROOM = 64 << 20  # bytes left free on the device
_ASKED_EVERY = 64 << 20


def folder() -> str:
    """The folder for temporary files."""
    return os.environ.get("RMQTOOL_TMPDIR") or tempfile.gettempdir()


class Spool:
    """One temporary file; parts are appended and keep their offsets."""

    def __init__(self) -> None:
        place = folder()
        try:
            with tempfile.TemporaryFile(prefix="rmqtool-", dir=place) as file:
                self._descriptor = os.dup(file.fileno())
        except OSError as error:
            reason = error.strerror or str(error)
            raise UnwritableError(
                f"cannot make a temporary file: {reason}",
                path=place,
                hint="RMQTOOL_TMPDIR names another folder",
            ) from error
        self._end = 0
        self._asked_at = -_ASKED_EVERY
        self._written = 0

    def add(self, pieces: Iterable[bytes], limit: int | None = None) -> tuple[int, int]:
        """Append a part of at most `limit` bytes (default UNPACKED_LIMIT); returns its offset and its bytes.

        Raises:
            FormatError: the part is larger.
            UnwritableError: there is too little space.
        """
        limit = UNPACKED_LIMIT if limit is None else limit
        start = -(-self._end // _ALIGNMENT) * _ALIGNMENT
        at = start
        try:
            for piece in pieces:
                if at - start + len(piece) > limit:
                    raise FormatError(f"it unpacks to more than {limit} bytes, which no store needs")
                self._write(piece, at)
                at += len(piece)
            os.ftruncate(self._descriptor, at)
        except UnwritableError:
            raise
        except OSError as error:
            raise self._full(error.strerror or str(error)) from error
        self._end = at
        return start, at - start

    def _write(self, piece: bytes, at: int) -> None:
        view = memoryview(piece)
        for begin in range(0, len(piece), _STEP):
            part = view[begin : begin + _STEP]
            if part == _ZEROS[: len(part)]:
                continue
            if self._written - self._asked_at >= _ASKED_EVERY:
                self._ask()
            done = 0
            while done < len(part):
                done += os.pwrite(self._descriptor, part[done:], at + begin + done)
            self._written += len(part)

    def _ask(self) -> None:
        self._asked_at = self._written
        found = os.fstatvfs(self._descriptor)
        if found.f_blocks and found.f_bavail * found.f_frsize < _ROOM + _ASKED_EVERY:
            raise self._full("too little space is left")

    def _full(self, reason: str) -> UnwritableError:
        return UnwritableError(
            f"cannot unpack into a temporary file: {reason}",
            path=folder(),
            hint="RMQTOOL_TMPDIR names another folder",
        )

    def file(self) -> LocalFile:
        """The whole file for reading, also parts that are added later."""
        return LocalFile(os.dup(self._descriptor))

    def close(self) -> None:
        """Release its space."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._descriptor = -1
