"""What commands that only read must not write into: the store that they read."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from rmqtool.errors import RefusedError
from rmqtool.store import Store

_PARTS = frozenset({"commitlog", "consumequeue", "consumequeue_ext", "batchconsumequeue", "index"})
_ABOVE = 3  # consumequeue/TOPIC/QUEUE/FILE


def keep_out(store: Store, path: Path, what: str) -> None:
    """Nothing where a file or folder at `path` would lie outside the store that is read.

    Args:
        store: the store; where it is a part of one, as its log alone, the whole store counts.
        path: of what would be written.
        what: how it is called in the error.

    Raises:
        RefusedError: it lies in the store, or is the file that holds it.
    """
    real = real_path(path)
    if any(real.is_relative_to(place) for place in _places(store)):
        raise RefusedError(f"{what} would lie in the store", path=path, hint="reading never writes there")


def real_path(path: Path) -> Path:
    """`Path.resolve`, but of links that lead in a circle what can be said: who opens it then tells."""
    return Path(os.path.realpath(path))


def _places(store: Store) -> Iterator[Path]:
    """All folders and single files that belong to the store, resolved."""
    layout = store.layout
    # A file alone says nothing of the folder that it lies in, unless that is one of a store.
    found = {layout.root, *layout.commit_log_folders} if store.is_local and layout.root is not None else set()
    if "://" not in str(store.location):
        found.add(Path(str(store.location)))
    for place in found:
        real = real_path(Path(str(place)))
        yield real
        for part in (real, *real.parents)[: _ABOVE + 1]:
            if part.name in _PARTS and (part.parent / "commitlog").is_dir():
                yield part.parent
