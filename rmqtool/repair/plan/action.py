"""The changes of a command, as data: one `Action` for each change of a file, a `Plan` for all of them."""

from __future__ import annotations

import base64
from collections.abc import Callable
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args
from zlib import crc32

from rmqtool.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from rmqtool.repair.plan.fingerprint import Fingerprint

ActionKind = Literal["fill", "write", "cut", "create", "replace", "delete"]
KINDS: tuple[ActionKind, ...] = get_args(ActionKind)
IN_PLACE = frozenset({"fill", "write", "cut"})
"""Kinds that change bytes of a file and leave it in its place; the others mean a whole file."""
CONTENT_LIMIT = 64 * 1024
"""Bytes of new content that a row holds; of longer content it holds length and CRC-32."""


@dataclass(frozen=True, slots=True)
class Action:
    """One change of one file.

    A file is either changed in place, by any number of `fill`, `write` and `cut`, or as a whole, by one
    `replace` or `delete`. What follows a `create` of the same file may be in place.

    Attributes:
        kind: `fill` writes records over damage, `write` other bytes, `cut` zeros (the bytes cut must not
            come back as a zombie tail, spec 02 C14); each makes a file longer that ends before them.
            `create` makes a file, `replace` puts another in the place of one, `delete` takes one away:
            a file, or whatever else lies there, a folder with all that is in it.
        path: relative to the store root, `/` between names, as `StoreLayout.relative` gives it; for a
            folder of the commit log that lies outside of the root the absolute path.
        offset: first byte of the file that changes; 0 for create, replace and delete.
        length: bytes that change; for create and replace the new file's size, for delete its size.
        reason: one line for a person.
        problem: the code of the row of `problems.py` that it repairs; None if it repairs none.
        detail: numbers, as JSON. `data_bytes`: how many of `length` are not holes, where fewer are.
        content: fill and write: the new bytes, `length` of them. cut: None, its bytes become zeros.
            create and replace: the whole content; None if `Build` makes the file, or if `zeros` says
            that it is all zero.
        zeros: create only: a file of `length` zero bytes, its space reserved in the commit log.
        database: create and replace only: the file is the CURRENT of a RocksDB database, and `Build` also
            makes its other files, whose names and sizes are not known before. They are moved in first, so
            the database exists once CURRENT does. Other actions take away the files of a former database.
        mtime_ns: the file's mtime afterwards, ns since 1970. None: in commit log, queues and index the
            old one's, which expiry and the look-up by time of 4.x use; else, and for create, now.
    """

    kind: ActionKind
    path: str
    offset: int
    length: int
    reason: str
    problem: str | None = None
    detail: dict[str, Any] = field(default_factory=dict)
    content: bytes | None = None
    zeros: bool = False
    mtime_ns: int | None = None
    database: bool = False

    def __post_init__(self) -> None:
        """Raise ValueError for contradictory values: they are a bug of the planner."""
        problem = None
        if self.kind not in KINDS:
            problem = "is not a kind of action"
        elif self.offset < 0 or self.length < 0:
            problem = "has a negative number"
        elif self.offset and self.kind not in IN_PLACE:
            problem = "must change the whole file, from byte 0"
        elif self.kind in ("fill", "write") and self.content is None:
            problem = "has no content"
        elif self.kind in ("cut", "delete") and self.content is not None:
            problem = "has content"
        elif self.content is not None and len(self.content) != self.length:
            problem = f"has {len(self.content)} bytes of content, not {self.length}"
        elif self.zeros and (self.kind != "create" or self.content is not None):
            problem = "cannot be created from zeros"
        elif self.database and not (self.from_staging and self.path.endswith("/CURRENT")):
            problem = "is not a database that is built"
        if problem is not None:
            raise ValueError(f"{self.kind} of {self.path!r} {problem}")

    @property
    def end(self) -> int:
        """The position after the last byte that changes."""
        return self.offset + self.length

    @property
    def from_staging(self) -> bool:
        """Whether `Build` makes the file."""
        return self.kind in ("create", "replace") and self.content is None and not self.zeros

    @property
    def data_bytes(self) -> int:
        """Bytes that it writes or removes: `data_bytes` of `detail` where given, otherwise `length`."""
        count = self.detail.get("data_bytes")
        if not isinstance(count, int) or count < 0:
            return self.length
        return count if self.database else min(count, self.length)

    def row(self) -> dict[str, Any]:
        """The action as JSON: everything but long content, for which its CRC-32 stands."""
        row: dict[str, Any] = {
            "kind": self.kind, "path": self.path, "offset": self.offset, "length": self.length,
            "reason": self.reason, "problem": self.problem, "detail": self.detail,
        }  # fmt: skip
        if self.content is not None:
            row["crc32"] = crc32(self.content)
            if len(self.content) <= CONTENT_LIMIT:
                row["content_base64"] = base64.b64encode(self.content).decode("ascii")
        if self.zeros:
            row["zeros"] = True
        if self.database:
            row["database"] = True
        if self.mtime_ns is not None:
            row["mtime_ns"] = self.mtime_ns
        return row


Build = Callable[[Path], None]
"""Makes the files of `create` and `replace` without content, under their paths, in an empty folder.

The folder is on the store's file system. `apply` calls it once, after the changes of the commit log are on
the device; it flushes nothing.
"""


@dataclass(frozen=True)
class Plan:
    """All changes of a command, and the fingerprint of the store that they were planned for.

    Attributes:
        command: `recover`, `rebuild` or `expire`.
        options: what it was made with, as JSON: enough to make it again.
        actions: in the order in which they are done. Those of the commit log come first, then `Build`
            makes its files, from the log as it then is, then the others follow.
        fingerprint: of the store that it was made for.
        summary: for people and programs, as JSON: lost records, prediction, ...
        keep: whether what is cut, replaced and deleted is kept in a backup.
    """

    command: str
    options: dict[str, Any]
    actions: tuple[Action, ...]
    fingerprint: Fingerprint
    summary: dict[str, Any] = field(default_factory=dict)
    keep: bool = True

    @property
    def backup_bytes(self) -> int:
        """Most bytes that the backup takes if it is on another file system; 0 without a backup.

        On the same one whole files are renamed and need nothing: `space.needed` knows.
        """
        if not self.keep:
            return 0
        return sum(action.data_bytes for action in self.actions if action.kind != "create")

    def rows(self) -> list[dict[str, Any]]:
        """The actions as JSON."""
        return [action.row() for action in self.actions]
