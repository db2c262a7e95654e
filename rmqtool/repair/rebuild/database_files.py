"""The files of a database that is rebuilt: those of the present one, and the actions of a plan.

Files of the former database move into the backup one by one; CURRENT, which makes a folder a database, is
moved in last.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from rmqtool.errors import RefusedError
from rmqtool.repair.plan import Action
from rmqtool.storage.rocksdb.writer import CURRENT_SIZE
from rmqtool.storage.unsupported import is_rocksdb_file

Files = tuple[tuple[str, int], ...]
"""Names and sizes."""


def present_files(folder: Path, what: str) -> Files:
    """Names and sizes of the files of the present database of `what`.

    Raises:
        RefusedError: something else has the name of one. It would be a part of the new database.
    """
    if os.path.lexists(folder) and (folder.is_symlink() or not folder.is_dir()):
        raise RefusedError(f"is not a folder: the database of {what} cannot be rebuilt there", path=folder)
    found = []
    for path in sorted(folder.iterdir() if folder.is_dir() else ()):
        if not is_rocksdb_file(path.name):
            continue
        if path.is_symlink() or not path.is_file():
            raise RefusedError(
                "has the name of a file of the database and is not a plain file: it would be a part of"
                " the new database", path=path, hint="move it away",
            )  # fmt: skip
        found.append((path.name, path.stat().st_size))
    return tuple(found)


def database_actions(
    folder: str, what: str, problems: Sequence[str], old: Files, detail: Mapping[str, int]
) -> Iterator[Action]:
    """The changes that put a new database of `what` into `folder`, in the order of their paths."""
    from rmqtool.problems import BY_CODE

    names = ", ".join(BY_CODE[code].name for code in problems)
    has_current = any(name == "CURRENT" for name, _ in old)
    yield Action(
        "replace" if has_current else "create", f"{folder}/CURRENT", 0, CURRENT_SIZE,
        f"the RocksDB {what} {'is' if what == 'index' else 'are'} rebuilt from the log: {names}", problems[0],
        dict(detail), database=True,
    )  # fmt: skip
    for name, size in old:
        if name != "CURRENT":
            yield Action(
                "delete", f"{folder}/{name}", 0, size, f"a file of the former database: {names}", problems[0]
            )
