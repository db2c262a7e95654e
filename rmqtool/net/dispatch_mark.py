"""Up to where the log of a store that receives was dispatched: the file `dispatchCheckpoint`.

    12345678 open       a run keeps queues and index: what they have beyond is cleared by the next run
    12345678 closed     a run has ended here: they have nothing beyond

Everything before the physical offset is in queues and index, on the device. A broker does not read the file.
"""

from __future__ import annotations

from pathlib import Path

from rmqtool.errors import FormatError
from rmqtool.lazy_pattern import pattern
from rmqtool.storage import config_files

MARK_FILE = "dispatchCheckpoint"
_MARK = pattern(rb"(0|[1-9][0-9]{0,17}) (open|closed)\n")


def read_mark(root: Path) -> tuple[int, bool] | None:
    """(physical offset, whether a run that was killed has gone on from there); None without the file.

    Raises UnreadableError, FormatError.
    """
    path = root / MARK_FILE
    if not path.exists():
        return None
    found = _MARK.fullmatch(config_files.read_file(path, 64))
    if found is None:
        raise FormatError("it does not say up to where the log was dispatched", path=path,
                          hint=f"delete it, and run rmqtool rebuild {root} --apply")  # fmt: skip
    return int(found[1]), found[2] == b"open"


def save_mark(root: Path, offset: int, *, is_open: bool) -> None:
    """Note that queues and index are on the device up to a physical offset. Raises UnwritableError."""
    state = "open" if is_open else "closed"
    config_files.replace_file(root, MARK_FILE, f"{offset} {state}\n".encode())


def lower_mark(root: Path, offset: int, start: int) -> None:
    """Before a log that begins at `start` is cut at `offset`: what follows has to be dispatched again.

    Raises as `read_mark` and `save_mark`.
    """
    mark = read_mark(root)
    if mark is not None and mark[0] > offset:
        save_mark(root, offset, is_open=True)
    elif mark is None and any((root / "consumequeue").glob("*/*/*")):
        save_mark(root, start, is_open=True)
