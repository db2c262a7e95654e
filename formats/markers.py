"""The two small files that say in what state the store is: `abort` and `lock`.

`abort` exists from start to clean stop. 4.x leaves it empty, 5.x writes the broker's process id
as decimal text without a line end. `lock` holds four letters; a running broker holds a record lock
on its first byte.

Source: DefaultMessageStore#createTempFile, DefaultMessageStore#start; spec 01 section 8.
"""

from __future__ import annotations

from rmqtool.errors import FormatError
from rmqtool.formats.parts import Bytes, GreedyBytes, Struct

ABORT = Struct("pid" / GreedyBytes * "process id of the broker as decimal text (5.x); no bytes (4.x)")
ABORT_TEXT = (
    "Exists while a broker runs and after an unclean stop. abort.bak is a copy of the previous abort."
)
LOCK = Struct("text" / Bytes(4) * "the letters lock")
LOCK_TEXT = "A running broker holds an exclusive POSIX record lock on byte 0. The file remains after a stop."
LOCK_CONTENT = b"lock"
_PID_LIMIT = 20  # digits; a process id is a Java long at most


def decode_abort(data: bytes) -> int | None:
    """The process id in an `abort` file; None in an empty one.

    Raises:
        FormatError: anything but up to 20 ASCII digits.
    """
    if not data:
        return None
    if len(data) > _PID_LIMIT or not (data.isascii() and data.isdigit()):
        raise FormatError("abort holds no process id")
    return int(data)


def encode_abort(pid: int | None) -> bytes:
    """The bytes of `abort`: the process id for 5.x, None for 4.x. Raises FormatError for a negative one."""
    if pid is None:
        return b""
    if pid < 0:
        raise FormatError(f"{pid} is not a process id")
    return str(pid).encode("ascii")
