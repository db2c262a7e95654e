"""Every error that rmqtool raises, with the exit code that a command ends with.

    RmqtoolError                     70 would be a bug; every class below names its own code
      UsageError                 2   a value that the user gave makes no sense
        FilterError              2   a filter expression that every broker would reject
      InputError                 3   the input could not be read or understood in full
        NotAStoreError           3   the path holds no message store
        UnsupportedStoreError    3   recognised, but kept in a form that is out of reach (RocksDB, ...)
        UnreadableError          3   an I/O error; also an OSError
        MissingCodecError        3   a library for a compression is not installed
        FormatError              3   bytes that do not have the expected structure; also a ValueError
        IllegalMessageError      3   a message that every broker would reject; carries the broker's status
      UnwritableError            3   an I/O error while writing (full disk, permission); also an OSError
      RefusedError               4   not done, because it would lose messages or needs a deliberate act
      StoreInUseError            5   the store's lock is held

Damage is not an exception: checks yield `rmqtool.problems.Finding`. An exception means "cannot go on".
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

EXIT_OK = 0
EXIT_FINDINGS = 1
EXIT_USAGE = 2
EXIT_INPUT = 3
EXIT_REFUSED = 4
EXIT_IN_USE = 5
EXIT_BUG = 70
EXIT_INTERRUPTED = 130

EXIT_STATUS = (
    (EXIT_OK, "Success; nothing is wrong (there may be notes)."),
    (
        EXIT_FINDINGS,
        "The command worked, but there are findings of severity warning or error, something requested was"
        " not found, or the plan would change something.",
    ),
    (EXIT_USAGE, "Usage error."),
    (
        EXIT_INPUT,
        "Part of the input could not be read or understood; the rest was reported. Also: output could not"
        " be written.",
    ),
    (EXIT_REFUSED, "Refused: the command would lose messages or needs explicit consent."),
    (EXIT_IN_USE, "The store is in use and the command needs exclusive access."),
    (EXIT_BUG, "A bug in rmqtool."),
    (EXIT_INTERRUPTED, "Interrupted; results so far were printed."),
)  # fmt: skip
"""What each exit code means."""

# If several reasons apply, the first of these is the exit code.
_PRECEDENCE = (EXIT_BUG, EXIT_IN_USE, EXIT_REFUSED, EXIT_INPUT, EXIT_FINDINGS, EXIT_OK)


def worst_exit_code(*codes: int) -> int:
    """The one exit code for several reasons; 0 for none."""
    return min(codes, key=_PRECEDENCE.index, default=EXIT_OK)


AS_OWNER = "run rmqtool as the owner of the file, or as root"
"""What to do where the operating system denies this user access."""
_DENIED = (os.strerror(errno.EACCES), os.strerror(errno.EPERM))


def is_denied(message: object) -> bool:
    """Whether the message of an I/O error says that this user may not read or write the file."""
    return str(message).endswith(_DENIED)


_BEFORE_PATH = (
    "cannot read", "cannot write", "cannot list", "cannot lock", "cannot take the lock",
    "cannot make the folder",
)  # fmt: skip
_VERBS = ("is ", "has ", "does ", "belongs ", "cannot be ")


def in_one_line(message: str, path: Path | str | None, physical_offset: int | None = None) -> str:
    """`message` with its place, in one line that can be searched.

    A path follows the message; it is the subject of a message that has none, and the object of a verb
    without one: "no such file or folder: a", "a is already a store", "cannot read a: Permission denied".
    """
    where = [] if path is None or message.startswith(f"{path} ") else [str(path)]
    if physical_offset is not None:
        where.append(f"offset {physical_offset}")
    if not where:
        return message
    place = ", ".join(where)
    verb, colon, reason = message.partition(": ")
    if path is not None and colon and verb.startswith(_BEFORE_PATH):
        return f"{verb} {place}: {reason}"
    if path is not None and message.startswith(_VERBS):
        return f"{place}{'' if physical_offset is None else ','} {message}"
    return f"{message}: {place}"


class RmqtoolError(Exception):
    """Base of all errors that rmqtool raises on purpose.

    `message` says what, `path` and `physical_offset` say where, `hint` says what to do; `lines` are more
    lines for it, such as command lines. `column` names the column of a message row that caused the error, if
    one did. `results` has what a call returns for the part of its work that it did before the error: see
    `StoreWriter.put_many`.
    """

    exit_code = EXIT_INPUT
    results: Sequence[Any] = ()
    lines: Sequence[str] = ()

    def __init__(
        self,
        message: str,
        *,
        path: Path | str | None = None,
        physical_offset: int | None = None,
        hint: str | None = None,
        column: str | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.path = path
        self.physical_offset = physical_offset
        self.hint = hint
        self.column = column

    def __str__(self) -> str:
        return self.message

    @property
    def in_one_line(self) -> str:
        """The message with its place."""
        return in_one_line(self.message, self.path, self.physical_offset)


class UsageError(RmqtoolError):
    """A value given by the user makes no sense."""

    exit_code = EXIT_USAGE


class FilterError(UsageError):
    """A filter expression that every broker would reject; it fails at character `position` (from 0)."""

    def __init__(self, message: str, *, position: int, hint: str | None = None) -> None:
        super().__init__(f"the filter cannot be read at character {position + 1}: {message}", hint=hint)
        self.position = position


class InputError(RmqtoolError):
    """The input could not be read or understood in full."""

    exit_code = EXIT_INPUT


class NotAStoreError(InputError):
    """The path is neither a message store nor a single store file."""


class UnsupportedStoreError(InputError):
    """The store keeps this part in a form that is recognised but out of reach."""


class UnreadableError(InputError, OSError):
    """An I/O error while reading; unreadable is not the same as damaged."""

    def __init__(self, message: str, **place: Any) -> None:
        super().__init__(message, **place)
        if self.hint is None and is_denied(message):
            self.hint = AS_OWNER

    @property
    def is_gone(self) -> bool:
        """Whether the file does not exist: a running broker has deleted it, or another program."""
        return isinstance(self.__cause__, FileNotFoundError)


class MissingCodecError(InputError):
    """A compression library is not installed."""


class FormatError(InputError, ValueError):
    """The bytes do not have the expected structure."""


class IllegalMessageError(InputError, ValueError):
    """A message that a broker would reject; `status` is the broker's reason (PutMessageStatus)."""

    def __init__(
        self, message: str, *, status: str, hint: str | None = None, column: str | None = None
    ) -> None:
        super().__init__(f"{message} ({status})", hint=hint, column=column)
        self.status = status


class UnwritableError(RmqtoolError, OSError):
    """An I/O error while writing: a full disk, a missing permission, a read-only file system."""

    exit_code = EXIT_INPUT


class RefusedError(RmqtoolError):
    """Refused: the action would lose messages, or it needs a deliberate act.

    `needs` is the option, without dashes, with which a command does it anyway; None if none does.
    """

    exit_code = EXIT_REFUSED
    needs: str | None = None


class StoreInUseError(RmqtoolError):
    """The store's lock is held by another process and the command needs it."""

    exit_code = EXIT_IN_USE
