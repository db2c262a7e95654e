"""JSON files of rmqtool: written so that they are complete at every moment, read as untrusted input."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, TypeVar

from rmqtool.errors import InputError, UnreadableError
from rmqtool.repair.plan.fingerprint import Fingerprint
from rmqtool.storage import durable as disk
from rmqtool.storage.open_files import opened

LARGEST = 1 << 63
"""Larger than any number of bytes and any time."""
_JSON_BYTES = 64 << 20
_TOO_DEEP = "the JSON is nested too deeply"
T = TypeVar("T")


def put_json(path: Path, document: dict[str, Any], *, own: bool = False) -> None:
    """Write a file to the device so that at every moment the old or the new one is complete.

    `own`: one of the user's, not of a store; it keeps the owner and the mode that it has.

    Raises:
        UnwritableError: it is then as it was.
    """
    new = path.with_name(f"{path.name}.new")
    disk.remove(new)  # of a run that was killed
    disk.write_new(new, json.dumps(document).encode("ascii"), like=path if own else None, own=own)
    disk.rename(new, path)
    disk.sync_folder(path.parent)


def fingerprint_row(found: Fingerprint) -> dict[str, Any]:
    """A fingerprint as JSON."""
    return {"files": found.files, "log_end": found.log_end, "touched": found.touched, "checks": found.checks}


def read_fingerprint(document: Any, path: Path) -> Fingerprint:
    """Return a fingerprint from untrusted JSON; use it only for a comparison. Raises InputError."""
    return convert(document, Fingerprint, path)


def read_bytes(path: Path) -> bytes | None:
    """Return the bytes of an untrusted file; None if it does not exist.

    Raises:
        InputError: it is too large.
        UnreadableError: it cannot be read.
    """
    try:
        with opened(path) as descriptor:
            size = os.fstat(descriptor).st_size
            if size > _JSON_BYTES:
                raise InputError(f"{size} bytes are too many", path=path)
            pieces = []
            while piece := os.read(descriptor, 1 << 24):
                pieces.append(piece)
            return b"".join(pieces)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UnreadableError(f"cannot read: {error.strerror}", path=path) from error


def read_json(path: Path) -> dict[str, Any] | None:
    """Return the JSON object in an untrusted file; None if it does not exist.

    Raises:
        InputError: it is not a JSON object, or too large.
        UnreadableError: it cannot be read.
    """
    content = read_bytes(path)
    if content is None:
        return None
    try:
        document = json.loads(content)
    except RecursionError as error:
        raise InputError(_TOO_DEEP, path=path) from error
    except (ValueError, MemoryError) as error:
        raise InputError(f"this is not JSON: {error}", path=path) from error
    if not isinstance(document, dict):
        raise InputError("this is not a JSON object", path=path)
    return document


def convert(document: Any, kind: type[T], path: Path) -> T:
    """Return untrusted JSON as a typed value. Raises InputError with the position of the error."""
    import msgspec

    try:
        return msgspec.convert(document, kind)
    # A text with a lone surrogate, where a number or the name of a field stands, raises UnicodeEncodeError.
    except RecursionError as error:
        raise InputError(_TOO_DEEP, path=path) from error
    except (msgspec.ValidationError, UnicodeEncodeError) as error:
        raise InputError(f"cannot be parsed: {error}", path=path) from error
